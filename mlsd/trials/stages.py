"""Where the time of a session goes: wall and processor time of its workers by stage."""

from collections.abc import Iterable
from typing import Literal, get_args

from mlsd.records import Count, Record
from mlsd.units import format_duration, format_percent

Stage = Literal[
    "load", "choose rollback", "reference", "warm-up", "prefill", "timed rounds", "judging", "resting", "other"
]
STAGES: tuple[Stage, ...] = get_args(Stage)
MEASURING: Stage = "timed rounds"
PREPARATION: tuple[Stage, ...] = ("load", "choose rollback", "reference", "warm-up")

_SHOWN = 0.01  # shares below this are summed up as other


class StageTime(Record, frozen=True, kw_only=True):
    """What a stage took, without the stages inside it."""

    stage: Stage
    wall_ns: Count
    processor_ns: Count  # of all threads of the process that measured: of a server's none


def summed(times: Iterable[StageTime]) -> tuple[StageTime, ...]:
    """One entry for each stage that took time, in the order of `STAGES`."""
    entries = list(times)
    sums = (
        StageTime(
            stage=stage,
            wall_ns=sum(time.wall_ns for time in entries if time.stage == stage),
            processor_ns=sum(time.processor_ns for time in entries if time.stage == stage),
        )
        for stage in STAGES
    )
    return tuple(time for time in sums if time.wall_ns or time.processor_ns)


def wall_ns(times: Iterable[StageTime], stages: Iterable[Stage] = STAGES) -> int:
    """The wall time of some stages, by default of all."""
    chosen = set(stages)
    return sum(time.wall_ns for time in times if time.stage in chosen)


def stage_line(times: Iterable[StageTime]) -> str | None:
    """The time of a session and its shares, the largest first: ``34 s: 71 % timed rounds, 12 % prefill``.

    None where no time is known.
    """
    stages = summed(times)
    whole_ns = wall_ns(stages)
    if not whole_ns:
        return None
    shares = {time.stage: time.wall_ns / whole_ns for time in stages}
    small = [stage for stage, share in shares.items() if share < _SHOWN and stage != "other"]
    shares["other"] = shares.get("other", 0.0) + sum(shares.pop(stage) for stage in small)
    order = sorted(shares, key=lambda stage: (stage == "other", -shares[stage]))
    parts = (f"{format_percent(shares[stage], 0)} {stage}" for stage in order if shares[stage] >= _SHOWN / 2)
    return f"{format_duration(whole_ns / 1e9)}: {', '.join(parts)}"
