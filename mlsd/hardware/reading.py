"""What a platform's reader returns of a machine, and how it reads a number."""

from __future__ import annotations

from mlsd.records import Environment, Record


class MachineFacts(Record, frozen=True, kw_only=True):
    """The environment, and for each of its fields that is None the reason."""

    environment: Environment
    missing: dict[str, str]
    identity: str | None = None  # what distinguishes this machine from others; never stored


def whole_number(text: object) -> int | None:
    """Digits as a number; None for anything else."""
    return int(str(text)) if text is not None and str(text).isdecimal() else None
