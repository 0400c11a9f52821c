"""``mlsd demo``: the three ways in which a measurement of speculative decoding can end, as commands to repeat."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
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
    from mlsd.trials.decisions import Effect
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
    measured = ["--n-predict", "24" if quick else "96", "--db", str(database), *threads]
    decided = [*measured, "--until", "decided", "--budget-s"]
    fixed = [*measured, "--repeats", "2" if quick else "3", "--prompt", "factual"]  # what is invalid needs no decision
    look_up = ["--drafter", "pld", "--drafter", "oracle", "--gamma", "16", "--prompt", "copy"]
    # A step ends once it is decided, or when its blocks have taken so many seconds.
    copying = [target, *look_up, *decided, "3" if quick else "60"]
    drafting = [target, "--draft", draft, "--gamma", "2", *decided, "3" if quick else "45"]
    pair = ["random-moe", "--draft", "random-draft"]
    ignoring = [*pair, "--gamma", "4,8,16", "--rollback", "unchecked", *fixed]
    checking = [*pair, "--gamma", "4", "--n-predict", "16", *fixed[2:]]
    steps: list[tuple[str, list[str], Callable[[Sequence[ArmResult]], str]]] = [
        (
            f"{target} is asked to repeat a passage of its prompt, and prompt lookup copies from there:",
            copying,
            partial(ending, expected="faster", name="WIN"),
        ),
        (
            f"The same model answers, and {draft}, about as large, drafts for it:",
            drafting,
            partial(ending, expected="slower", name="LOSS"),
        ),
        (
            "A hybrid mixture of 0.5 billion random weights, made now, with a random draft, right only by chance, as "
            "the study ran its models: failed rollbacks are ignored:",
            ignoring,
            invalid,
        ),
        ("The same pair, its rollbacks checked:", checking, ending),
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


def ending(arms: Sequence[ArmResult], expected: Effect | None = None, name: str = "") -> str:
    """How a step ended, as `expected` or not, beside the control: drafts that are always right and free."""
    from mlsd.trials.decisions import times

    arm, *others = sorted((a for a in arms if not a.is_plain), key=lambda a: (a.control, -_speedup(a)))
    if arm.standing is None:
        return f"{'NO USABLE MEASUREMENT' if name else 'IN TRUTH'}: {arm.decision}."
    title = {expected: f"THE HONEST {name}", "not decided yet": "NOT DECIDED YET"}.get(arm.effect, f"NO {name} HERE")
    text = f"but {arm.why_not}" if arm.n_invalid else "and the text is the same"
    bound = next((times(other.ratio) for other in others if other.control and other.ratio), "")
    control = bound and f"; drafts that are always right and free were measured at {bound}"
    return f"{title if name else 'IN TRUTH'}: {arm.setting} {arm.standing.finding}, {text}{control}."


def invalid(arms: Sequence[ArmResult]) -> str:
    """What the loop that ignores failures claims, and why none of it counts."""
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
    slowest_ms = max(round_.verify_ns for round_ in rounds) / 1e6
    shown = " ".join(f"{round_.verify_ns / 1e6:.1f}" for round_ in rounds[:_SHOWN_ROUNDS])
    return (
        f"Its passes of the target, round by round, in ms: {shown} ... One that works takes {slowest_ms:.0f}; the "
        "others failed at once, and the answer of the last one was read again as if it were new."
    )


def _speedup(arm: ArmResult) -> float:
    return 0.0 if arm.ratio is None else arm.ratio.value
