"""Sizes and durations are rounded before their unit is chosen."""

import pytest

from mlsd.units import format_bytes, format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0004, "0 ms"), (0.9994, "999 ms"), (0.9996, "1.0 s"), (59.94, "59.9 s"), (59.97, "1 min 00 s"),
     (3599.7, "1 h 00 min"), (7260, "2 h 01 min"), (None, "-")],
)  # fmt: skip
def test_a_duration_never_has_sixty_seconds_or_a_thousand_milliseconds(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(999, "999 B"), (1_000, "1.00 kB"), (999_994, "999.99 kB"), (999_999, "1.00 MB"), (999_999_999, "1.00 GB")],
)
def test_a_size_never_has_a_thousand_of_its_unit(n_bytes: int, text: str) -> None:
    assert format_bytes(n_bytes) == text
