"""What machine this is: chip, memory, power, heat."""

from __future__ import annotations

import psutil

from mlsd.records import Conditions


def read_conditions() -> Conditions:
    """The machine's state at this moment; what cannot be read is None."""
    return Conditions(
        load_1min=psutil.getloadavg()[0],
        available_bytes=psutil.virtual_memory().available,
        swap_used_bytes=psutil.swap_memory().used,
    )
