"""What became of a trial: whether its output and its time can be used, and if not, why."""

from __future__ import annotations

import enum

from mlsd.records import Trial

SABOTAGED, UNCHECKED = "sabotage", "unchecked"  # rollbacks that break on purpose, or whose failures are ignored
OLD_DISTURBED = "disturbed"  # how the reason of such a trial began before schema 8 had a column for it


class Fate(enum.StrEnum):
    """The end of a trial, the worst last; the value is the word for people."""

    VALID = "valid"  # every call succeeded, the rollback is exact, and the output is that of plain decoding
    DISTURBED = "disturbed"  # stopped or starved: the output is right, the time is not the method's
    UNPROVEN = "not proven"  # there was nothing to compare with, or a server contradicts itself
    DIVERGED = "diverged"  # the output, or the memory left behind, is not that of plain decoding
    CALLS_FAILED = "failed native calls"  # llama.cpp refused calls: what followed used stale results
    UNCHECKED = "unchecked"  # failed calls were ignored, as asked for
    SABOTAGED = "sabotaged"  # the rollback was broken on purpose
    FAILED = "failed"  # it gave no number

    @property
    def right(self) -> bool:
        return self in (Fate.VALID, Fate.DISTURBED)


def fate_of(trial: Trial) -> Fate:
    """The fate of a trial, from its fields alone."""
    if trial.status == "failed":
        return Fate.FAILED
    if trial.valid:
        return Fate.VALID
    strategy = (trial.rollback_target or "").partition(":")[0]
    if strategy in (SABOTAGED, UNCHECKED):
        return Fate.SABOTAGED if strategy == SABOTAGED else Fate.UNCHECKED
    if trial.disturbed:
        return Fate.DISTURBED
    if trial.failed_native_calls:
        return Fate.CALLS_FAILED
    verdict = trial.losslessness and trial.losslessness.verdict
    return Fate.DIVERGED if verdict == "diverged" else Fate.UNPROVEN
