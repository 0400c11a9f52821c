"""What was claimed and what these trials say: the scoreboard that opens a page of the study, and the whole table."""

from collections import Counter
from collections.abc import Sequence

from mlsd.analysis.claims.claim_tests import Decision
from mlsd.analysis.claims.claims import Claim, ClaimVerdict
from mlsd.analysis.study.study import Study, attempt
from mlsd.planning.suite import load_suites
from mlsd.report.render.table import Cell, Table, Tone, interval, significant, table, text, words
from mlsd.report.tables.paper import profile_of
from mlsd.stats import grouped
from mlsd.units import quoted

STUDY_SUITES = frozenset("ABCDF")
DECISION_TONES: dict[str, Tone] = {
    "holds here": "good",
    "does not hold here": "bad",
    "refuted": "bad",
    "not decided yet": "caution",
    "not measured": "quiet",
}


def of_the_study(study: Study) -> list[ClaimVerdict]:
    """The study's own claims, where this database holds suites of the study; else none."""
    if study.trials.empty or not STUDY_SUITES & set(study.trials["suite"]):
        return []
    verdicts, _ = attempt(lambda: study.verdicts)
    return [one for one in verdicts or () if one.claim.source.startswith("study")]


def verdict_line(verdicts: Sequence[ClaimVerdict]) -> str:
    """How many of these claims hold here, in at most 15 words."""
    counts = Counter(_COUNTED[one.decision] for one in verdicts)
    parts = ", ".join(f"{counts[word]} {word}" for word in dict.fromkeys(_COUNTED.values()) if counts[word])
    others = any(one.others for one in verdicts)
    return f"The study's {len(verdicts)} claims{' on other models' if others else ''}: {parts}."


_COUNTED: dict[Decision, str] = {
    "refuted": "refuted",
    "does not hold here": "not holding",
    "holds here": "holding",
    "not decided yet": "undecided",
    "not measured": "unmeasured",
}


def next_step(study: Study, verdicts: Sequence[ClaimVerdict]) -> str | None:
    """The command that decides more of them: more repeats of what is undecided, else what is not measured yet.

    Of the latter what this profile's models can measure, and nothing that was measured already.
    """
    where = f"{f' --profile {quoted(study.profile)}' if study.profile else ''} --db {quoted(study.source)}"
    open_ = Counter(name for one in verdicts if one.decision == "not decided yet" for name in _suites(one.claim)[0])
    if named := sorted(set(open_) & set(study.trials["suite"])):
        by_changes = grouped(named, lambda suite: _changes(study, suite))
        changes, suites = max(by_changes.items(), key=lambda item: sum(map(open_.__getitem__, item[1])))
        own = study.trials[study.trials["suite"].isin(suites)]
        return f"mlsd run {' '.join(suites)}{changes} --repeats {2 * (1 + int(own['repeat'].max()))}{where}"
    roles, here = profile_of(study), set(study.trials["suite"])
    for claim in (one.claim for one in verdicts if one.decision == "not measured" and one.claim.command):
        names, changed = _suites(claim)
        done = not changed and all(name in here and not _changes(study, name) for name in names)
        if not done and (roles is None or set(claim.needs) <= set(roles.roles)):
            return f"{claim.command}{where}"
    return None


def _suites(claim: Claim) -> tuple[list[str], bool]:
    """Those of its command, and whether it changes them."""
    names, _, options = claim.command.removeprefix("mlsd run ").partition(" --")
    return names.split(), bool(options)


def _changes(study: Study, name: str) -> str:
    """What trials of a suite have that the suite does not say, as options."""
    own = study.trials[study.trials["suite"] == name]
    (suite,) = load_suites([name], profile_of(study))
    written = {
        "prompt": {prompt for part in suite.parts for prompt in part.prompts},
        "gamma": {gamma for part in suite.parts for gamma in part.gammas},
        "n-predict": {suite.n_predict},
    }
    found = {key: set(own[key.replace("-", "_")].dropna()) - {0} for key in written}
    options = []
    for key in (key for key in written if found[key] != written[key]):
        values = [str(value) for value in sorted(found[key])]
        options += [f" --{key} {value}" for value in (values if key == "prompt" else [",".join(values)]) if value]
    return "".join(options)


def scoreboard(verdicts: Sequence[ClaimVerdict]) -> Table:
    """Each claim of the study: what it printed, what is found here, and the figure that decides."""
    others = ", ".join(dict.fromkeys(name for one in verdicts for name in one.others))
    return table(
        "The study's claims",
        verdicts,
        words("claim", lambda v: v.claim.text),
        words("here", lambda v: text(v.decision, DECISION_TONES[v.decision])),
        words("printed", lambda v: v.claim.printed),
        words("the figure that decides", _deciding),
        words("of", lambda v: v.scope, "texts, and repeats of each, behind the figure"),
        words("section", lambda v: v.claim.source.removeprefix("study, "), detail=True),
        id="scoreboard",
        note=f"Not the study's models: {others}. They show directions here and refute nothing of it." if others else "",
    )


def _deciding(verdict: ClaimVerdict) -> Cell:
    effect = verdict.effect
    if effect is None:
        return text(None, "quiet", verdict.sentence)
    shown = f"{verdict.meaning}: {interval(effect).text}, against {significant(verdict.against or 0.0)}"
    return Cell(text=shown, sort=shown, note=verdict.sentence)


def claim_table(study: Study) -> Table:
    """Every published claim, decided on these trials."""

    def effect(verdict: ClaimVerdict) -> Cell:
        ids, more = verdict.trials, len(verdict.trials) - 30
        shown = f"trials {', '.join(map(str, ids[:30]))}{f' and {more} more' if more > 0 else ''}" if ids else ""
        return Cell(text=verdict.sentence, sort=verdict.sentence, note=shown)

    def printed_audit(verdict: ClaimVerdict) -> Cell:
        counts = verdict.published_audit or {}
        shown = ("refuted: " if verdict.print_refuted else "") + ", ".join(f"{n} {w}" for w, n in counts.items() if n)
        return text(shown or None, "bad" if counts.get("impossible") else "")

    return table(
        "What was claimed, and what these trials say",
        study.verdicts,
        words("claim", lambda v: v.claim.text),
        words("here", lambda v: text(v.decision, DECISION_TONES[v.decision])),
        words("effect", effect, "the tooltip names the trials"),
        words("printed", lambda v: f"{v.claim.printed} ({v.claim.source})"),
        words("audit of it, rows", printed_audit),
        id="claims",
        note="Effects stand over several arms; their intervals are Student's over prompts (of one prompt over blocks), "
        "corrected for the choice of the best: another kind than those of one arm.",
    )
