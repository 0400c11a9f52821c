"""What a platform's reader hands over: the fixed facts of a machine, and why a field is missing."""

from __future__ import annotations

import msgspec

from mlsd.records import Record


class Facts(Record, frozen=True, kw_only=True):
    """What does not change while a machine runs. None: could not be read; `missing` says why."""

    identity: str | None  # what tells this machine from others; never stored as it is
    os: str | None
    chip: str | None = None
    hardware_model: str | None = None
    performance_cores: int | None = None
    efficiency_cores: int | None = None
    logical_cores: int | None = None
    gpu_cores: int | None = None
    memory_bytes: int | None = None
    wired_limit_bytes: int | None = None
    peak_bandwidth_gb_s: float | None = None
    peak_bandwidth_source: str | None = None
    missing: dict[str, str] = msgspec.field(default_factory=dict)  # field -> why it would be None on this platform


class State(Record, frozen=True, kw_only=True):
    """What changes while a machine runs. None: the platform does not say."""

    power_source: str | None  # "ac", "battery"
    low_power_mode: bool | None
    thermal_state: str | None = None
