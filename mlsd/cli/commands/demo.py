"""``mlsd demo``: the three ways in which a measurement of speculative decoding can end, as commands to repeat."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.main import cli
from mlsd.cli.options import build_option, option_of, output_option
from mlsd.cli.output import note
from mlsd.errors import MlsdError, ModelFileError
from mlsd.models.library import resolve_model
from mlsd.planning.options import option
from mlsd.records import EngineOptions

if TYPE_CHECKING:
    from mlsd.trials.results import ArmResult

_FOLDER = click.Path(file_okay=False, path_type=Path)
_SHOWN_ROUNDS = 12
# Target and draft of the first two steps: a real model where its package is, else what every installation holds.
_REAL, _EMBEDDED = ("smollm2-135m", "smollm2-135m-noise05"), ("tiny-dense", "tiny-draft")


@click.command()
@output_option("Folder of the report.", type=_FOLDER, required=False, default="results/demo", show_default=True)
@click.option("--quick", is_flag=True, help="Fewer tokens and blocks: a preview, not a measurement.")
@option_of(option(EngineOptions, "n_threads"))
@build_option
@click.pass_context
def demo(ctx: click.Context, /, output: Path, quick: bool, n_threads: int | None) -> None:
    """Print an honest win, an honest loss and an invalid result beside the truth, and write a report of them."""
    database = output / "demo.sqlite"
    for old in output.glob("demo.sqlite*"):  # this command's own file; a demo starts from nothing
        old.unlink()
    threads = ["--n-threads", str(n_threads)] if n_threads else []
    target, draft = _models()
    own = ["--n-predict", "24" if quick else "96", "--db", str(database), *threads]
    decided = [*own, "--until", "decided", "--budget-s"]
    fixed = [*own, "--repeats", "2" if quick else "3", "--prompt", "factual"]  # what is invalid needs no decision
    look_up = ["--drafter", "pld", "--drafter", "oracle", "--gamma", "16", "--prompt", "copy"]
    # A step ends once it is decided, or when its blocks have taken so many seconds.
    copying = [target, *look_up, *decided, "3" if quick else "60"]
    drafting = [target, "--draft", draft, "--gamma", "2", *decided, "3" if quick else "45"]
    pair = ["random-moe", "--draft", "random-draft"]
    ignoring = [*pair, "--gamma", "4,8,16", "--rollback", "unchecked", *fixed]
    checking = [*pair, "--gamma", "4", "--n-predict", "16", *fixed[2:]]
    steps: list[tuple[str, list[str], Callable[[Sequence[ArmResult]], str]]] = [
        (f"{target} is asked to repeat a passage of its prompt, and prompt lookup copies from there:", copying, win),
        (f"The same model answers, and {draft}, about as large, drafts for it:", drafting, loss),
        (
            "A hybrid mixture of 0.5 billion random weights, made now, with a random draft, right only by chance, as "
            "the study ran its models: failed rollbacks are ignored:",
            ignoring,
            invalid,
        ),
        ("The same pair, its rollbacks checked:", checking, honest),
    ]
    endings = []
    for title, arguments, explain in steps:
        endings.append(explain(_run(ctx, title, ["bench", *arguments])))
        note(endings[-1])
        if explain is invalid:
            note(_rounds(database))
    _run(ctx, "The report:", ["report", "--db", str(database), "-o", str(output)])
    note("\n".join(["", *endings]))


def _models() -> tuple[str, str]:
    """Target and draft: real ones where they are, else the embedded ones, with a note."""
    try:
        resolve_model(_REAL[0])
    except ModelFileError as error:
        note(
            f"{error.message} Using the embedded {_EMBEDDED[0]} instead: it repeats little of its prompt, so prompt "
            f"lookup can gain less. For the real model: {error.hint}"
        )
        return _EMBEDDED
    return _REAL


def _run(ctx: click.Context, title: str, command: list[str]) -> Any:
    """A command as a user would give it, and what it returns."""
    note(f"\n{title}\n$ mlsd {shlex.join(command)}")
    try:
        result = cli.main(args=command, prog_name="mlsd", standalone_mode=False)
    except MlsdError as error:
        raise MlsdError(f"The demo stopped in `mlsd {command[0]}`: {error.message}", hint=error.hint) from error
    if result and isinstance(result, int):
        ctx.exit(result)
    return result


def win(arms: Sequence[ArmResult]) -> str:
    """The first ending in a sentence, whether it came or not: the best gamma, beside the control's best."""
    pld, oracle = (_fastest(arms, name) for name in ("pld", "oracle"))
    bound = _bound(pld, oracle)
    if pld.standing is None:
        return f"NO USABLE MEASUREMENT: {pld.decision}; {bound}."
    if pld.effect == "faster":
        return f"THE HONEST WIN: copying, prompt lookup {pld.standing.finding} and writes the same text; {bound}."
    name = "NOT DECIDED YET" if pld.is_open else "NO WIN on this machine"
    return f"{name}: copying, prompt lookup {pld.standing.finding}; {bound}."


def _fastest(arms: Sequence[ArmResult], method: str) -> ArmResult:
    own = [arm for arm in arms if arm.case.drafter.name == method]
    return max(own, key=lambda arm: (arm.standing is not None, _speedup(arm)))


def _bound(pld: ArmResult, oracle: ArmResult) -> str:
    """What the control says of it: intervals are compared, for two measurements of the same differ by noise."""
    if oracle.standing is None or oracle.ratio is None:
        return f"the control failed ({oracle.decision}), so there is no bound to compare with"
    from mlsd.trials.decisions import times

    limit = f"drafts that are always right and free were measured at {times(oracle.ratio)}"
    if pld.standing is None or pld.ratio is None:
        return limit
    ahead = pld.ratio.value > oracle.ratio.value
    if pld.ratio.low is None or pld.ratio.high is None or oracle.ratio.low is None or oracle.ratio.high is None:
        return f"{limit}: less, which can only be noise, so the bound is not known" if ahead else limit
    if pld.ratio.low > oracle.ratio.high:
        return f"the control failed: {limit}, which nothing can exceed"
    if pld.ratio.high > oracle.ratio.low:
        return f"{limit}: the two cannot be told apart, so there is little more to gain here"
    return f"{limit}: that is the most there is here"


def loss(arms: Sequence[ArmResult]) -> str:
    """The second ending in a sentence."""
    draft = next(arm for arm in arms if not arm.is_plain)
    if draft.standing is None:
        return f"NO USABLE MEASUREMENT: {draft.decision}."
    share = "-" if draft.acceptance_rate is None else f"{100 * draft.acceptance_rate:.0f} %"
    right = f"{share} of the drafted tokens are right, the text is the same"
    if draft.effect == "slower":
        costs = "drafting costs more time than right drafts save"
        return f"THE HONEST LOSS: {right}, and yet it {draft.standing.finding}: {costs}."
    name = "NOT DECIDED YET" if draft.effect == "not decided yet" else "NO LOSS here"
    return f"{name}: {right}; with a draft about as large as its target it {draft.standing.finding}."


def invalid(arms: Sequence[ArmResult]) -> str:
    """The third ending in a sentence."""
    drafted = [arm for arm in arms if not arm.is_plain]
    ratios = [_speedup(arm) for arm in drafted]
    claims = ", ".join(f"{ratio:.2f}x at gamma {arm.case.gamma}" for ratio, arm in zip(ratios, drafted, strict=True))
    widest = drafted[-1]
    share = f"{100 * (widest.acceptance_rate or 0):.1f} %"
    return (
        f"THE INVALID ONE: a loop that ignores failures prints {claims}, where {share} of the drafts are right. No "
        f"number of it counts, for {widest.why_not or 'nothing was found'}."
    )


def _rounds(database: Path) -> str:
    """In how many rounds of the widest arm whose failures were ignored the target worked at all."""
    from mlsd.store.store import Store

    with Store.open(database, read_only=True) as store:
        trials = [stored.trial for stored in store.trials()]
    ignored = [trial for trial in trials if trial.rollback_target == "unchecked"]
    if not ignored:
        return ""
    rounds = max(ignored, key=lambda trial: trial.gamma).rounds
    slowest_ms = max(one.verify_ns for one in rounds) / 1e6
    shown = " ".join(f"{one.verify_ns / 1e6:.1f}" for one in rounds[:_SHOWN_ROUNDS])
    return (
        f"Its passes of the target, round by round, in ms: {shown} ... One that works takes {slowest_ms:.0f}; the "
        "others failed at once, and the answer of the last one was read again as if it were new."
    )


def honest(arms: Sequence[ArmResult]) -> str:
    """The fourth ending in a sentence: what the third one is in truth."""
    draft = next(arm for arm in arms if not arm.is_plain)
    if draft.standing is None:
        return f"IN TRUTH nothing is known of the same pair: {draft.decision}."
    return f"IN TRUTH the same pair {draft.standing.finding}{f', but {draft.why_not}' if draft.n_invalid else ''}."


def _speedup(arm: ArmResult) -> float:
    return 0.0 if arm.ratio is None else arm.ratio.value
