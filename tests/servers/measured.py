"""Measuring sides as tests need it: short, on one thread, into a database of its own."""

from collections.abc import Sequence
from pathlib import Path

from mlsd.planning.prompts import Prompt, load_prompt, text_sha256
from mlsd.records import DrafterSpec, EngineOptions
from mlsd.servers.bench import SPECULATION, Side
from mlsd.servers.endpoint import Endpoint
from mlsd.servers.measure import ServerResult, measure
from mlsd.servers.request import ServerRequest

ONE_THREAD = EngineOptions(n_threads=1)


def prompt_of(text: str) -> Prompt:
    """A prompt of these words."""
    return Prompt(key="given", text=text, sha256=text_sha256(text), workload="given")


def pair(
    plain: Endpoint, other: Endpoint, db: Path, *prompts: str | Prompt, gamma: int = 0, **more: object
) -> ServerResult:
    """Two servers, the first of them plain; few tokens unless a test says otherwise."""
    sides = [Side(DrafterSpec(), 0, plain), Side(DrafterSpec(name=SPECULATION), gamma, other)]
    settings: dict[str, object] = {"n_predict": 48, "repeats": 2, "engine": ONE_THREAD, **more}
    given = [load_prompt(p) if isinstance(p, str) else p for p in prompts or ("code",)]
    return measure(sides, ServerRequest(**settings), given, (), db)


def reasons(result: ServerResult, arm: str = "sd") -> list[str]:
    """Why trials of an arm do not count; nothing where all do."""
    trials = [one.trial for one in result.trials if one.trial.arm == arm]
    return [trial.reason or "" for trial in trials if not trial.valid]


def verdicts(result: ServerResult, arm: str = "sd") -> Sequence[str | None]:
    """The verdict of each trial of an arm."""
    trials = [one.trial for one in result.trials if one.trial.arm == arm]
    return [None if trial.losslessness is None else trial.losslessness.verdict for trial in trials]
