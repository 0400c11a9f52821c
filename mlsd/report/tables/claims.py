"""What was claimed and what these trials say: the scoreboard that opens a page of the study, and the whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlsd.analysis.claims.claim_tests import Decision
from mlsd.analysis.claims.claims import Claim, ClaimVerdict
from mlsd.analysis.frames import CLAIMS
from mlsd.analysis.study.study import Study, attempt
from mlsd.columns import chosen, column
from mlsd.planning.prompts import prompt_names
from mlsd.planning.question import Asked, NextStep, run_command
from mlsd.planning.suite import load_suites, used_roles
from mlsd.report.render.table import Table, interval, significant, table
from mlsd.report.tables.paper import profile_of
from mlsd.stats import grouped
from mlsd.store.rows import Run
from mlsd.trials.stages import PREPARATION, wall_ns
from mlsd.units import NS_PER_S

if TYPE_CHECKING:
    import pandas as pd

STUDY_SUITES = frozenset("ABCDF")


def of_the_study(study: Study) -> list[ClaimVerdict]:
    """The study's own claims, where this database holds suites of the study; else none."""
    if study.trials.empty or not STUDY_SUITES & set(study.trials["suite"]):
        return []
    verdicts, _ = attempt(lambda: study.verdicts)
    return [verdict for verdict in verdicts or () if verdict.claim.source.startswith("study")]


def verdict_line(verdicts: Sequence[ClaimVerdict]) -> str:
    """How many of these claims hold here, in at most 15 words."""
    counts = Counter(_COUNTED[verdict.decision] for verdict in verdicts)
    parts = ", ".join(f"{counts[word]} {word}" for word in dict.fromkeys(_COUNTED.values()) if counts[word])
    others = any(verdict.others for verdict in verdicts)
    return f"The study's {len(verdicts)} claims{' on other models' if others else ''}: {parts}."


_COUNTED: dict[Decision, str] = {
    "refuted": "refuted",
    "does not hold here": "not holding",
    "holds here": "holding",
    "not decided yet": "undecided",
    "not measured": "unmeasured",
}


def next_step(study: Study, verdicts: Sequence[ClaimVerdict]) -> NextStep | None:
    """What decides more of them: the run that was interrupted, as it was asked; else more of what is undecided; else a
    suite that is not measured yet and that this profile's models can measure.
    """
    runs = [run for run in study.runs if run.plan.get("asked")]
    if not runs:  # of a database that others measured: nothing says how it was asked for
        return None
    database, latest = {"db": [study.source]}, _asked(runs[-1])
    if runs[-1].status != "finished":
        return NextStep(command=run_command(latest, **database))
    undecided = [verdict for verdict in verdicts if verdict.decision == "not decided yet"]
    n_open = Counter(name for verdict in undecided for name in _suites(verdict.claim)[0])
    measured = {suite: run for run in runs for suite in _asked(run)[""]}  # the latest of each
    if named := sorted(set(n_open) & set(measured)):
        by_run = grouped(named, lambda suite: measured[suite].id)
        suites = max(by_run.values(), key=lambda names: sum(map(n_open.__getitem__, names)))
        asked, trials = _asked(measured[suites[0]]), study.trials[study.trials["suite"].isin(suites)]
        more = _more(trials, [verdict for verdict in undecided if set(_suites(verdict.claim)[0]) & set(suites)])
        command = run_command(asked, **{"suites": suites, "limit": (), **more, **database})
        trials_ns = int(trials["prefill_ns"].sum() + trials["decode_ns"].sum())
        prepared_ns = wall_ns(measured[suites[0]].stages, PREPARATION)
        return NextStep(command=command, seconds=(prepared_ns + trials_ns) / NS_PER_S)
    roles, here = profile_of(study), set(study.trials["suite"])
    for claim in (each.claim for each in verdicts if each.decision == "not measured" and each.claim.command):
        suites, changes = _suites(claim)
        if (changes or not set(suites) <= here) and (roles is None or set(claim.needs) <= set(roles.roles)):
            kept = {option: values for option, values in latest.items() if option in _OF_A_MACHINE}
            used = set(used_roles(load_suites(suites)))
            kept["--model"] = [binding for binding in kept.get("--model", ()) if binding.partition("=")[0] in used]
            return NextStep(command=run_command(kept, suites=suites, **changes, **database))
    return None


_OF_A_MACHINE = ("--profile", "--model", "--n-threads", "--n-gpu-layers", "--n-ctx", "--flash-attention", "--build")


def _asked(run: Run) -> Asked:
    asked: Asked = run.plan["asked"]
    return asked


def _more(trials: pd.DataFrame, undecided: Sequence[ClaimVerdict]) -> dict[str, list[str]]:
    """As much again of what is the unit of these claims: texts where there are several, else repeats."""
    behind = {trial for verdict in undecided for trial in verdict.trials}
    texts = list(dict.fromkeys(trials[trials["trial_id"].isin(behind)]["prompt"]))
    if len(texts) > 1:
        new = [name for name in prompt_names() if name not in texts and not name.startswith(_NO_TEXTS)]
        if set(texts) <= set(prompt_names()) and not any(text.startswith(_NO_TEXTS) for text in texts) and new:
            return {"prompt": [*texts, *new[: len(texts)]]}
    return {"repeats": [str(2 * (1 + int(trials["repeat"].max())))]}


_NO_TEXTS = ("length-", "random-", "copy")  # prompts that are chosen for something else than what they say


def _suites(claim: Claim) -> tuple[list[str], dict[str, list[str]]]:
    """Those of its command, and the options with which it changes them."""
    names, *options = claim.command.removeprefix("mlsd run ").split(" --")
    return names.split(), {name: [value] for name, value in (option.split() for option in options)}


def scoreboard(verdicts: Sequence[ClaimVerdict]) -> Table:
    """Each claim of the study: what it printed, what is found here, and the figure that decides."""
    others = ", ".join(dict.fromkeys(name for verdict in verdicts for name in verdict.others))
    return table(
        "The study's claims",
        verdicts,
        *chosen(CLAIMS, "claim decision printed"),
        column("the figure that decides", of=_deciding),
        column("of", "", "texts, and repeats of each, behind the figure", "scope"),
        column("section", of=lambda v: v.claim.source.removeprefix("study, "), detail=True),
        id="scoreboard",
        note=f"Not the study's models: {others}. They show directions here and refute nothing of it." if others else "",
    )


def _deciding(verdict: ClaimVerdict) -> str | None:
    if verdict.effect is None:
        return None
    limit = "" if verdict.against is None else f", against {significant(verdict.against)}"
    return f"{verdict.meaning}: {interval(verdict.effect, against=verdict.against).text}{limit}"


def claim_table(study: Study) -> Table:
    """Every published claim, decided on these trials."""
    return table(
        "What was claimed, and what these trials say",
        study.verdicts,
        *chosen(CLAIMS, "claim decision sentence"),
        column("printed", of=lambda v: f"{v.claim.printed} ({v.claim.source})"),
        column("audit of it, rows", of=_printed_audit),
        id="claims",
        note="Effects stand over several arms; their intervals are Student's over prompts (of one prompt over blocks), "
        "corrected for the choice of the best: another kind than those of one arm.",
    )


def _printed_audit(verdict: ClaimVerdict) -> str | None:
    counts = verdict.published_audit or {}
    shown = ("refuted: " if verdict.print_refuted else "") + ", ".join(f"{n} {w}" for w, n in counts.items() if n)
    return shown or None
