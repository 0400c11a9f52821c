"""What a platform's reader returns of a machine, and how it reads a number."""

import psutil

from mlsd.records import Environment, Record


class MachineFacts(Record, frozen=True, kw_only=True):
    """The environment, and for each of its fields that is None the reason."""

    environment: Environment
    missing: dict[str, str]
    identity: str | None = None  # what distinguishes this machine from others; never stored


def on_battery() -> bool | None:
    """Whether this machine runs on its battery; one without a battery does not, and some batteries do not say."""
    battery = psutil.sensors_battery()
    plugged: bool | None = True if battery is None else battery.power_plugged
    return None if plugged is None else not plugged


def whole_number(text: object) -> int | None:
    """Digits as a number; None for anything else."""
    return int(str(text)) if text is not None and str(text).isdecimal() else None
