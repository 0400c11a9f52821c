"""Which clock counts: the server's as far as our own agrees, and ours where more time passed here."""

from __future__ import annotations

import pytest

from mlsd.servers.distrust import believed_decode_ns
from mlsd.servers.endpoint import Answer

MS = 1_000_000


@pytest.mark.parametrize(
    ("claimed_ms", "seen_ms", "believed_ms"),
    [
        (100, 101, 100),  # honest: what passed here is a little more
        (96, 100, 96),  # within the noise of clocks and buffers
        (10, 100, 100),  # a tenth: ours counts
        (89, 100, 100),
        (100, 20, 100),  # the last pieces came together: our clock saw little of it, and the whole answer allows it
        (10, 3, 102),  # all came together, and the whole answer took longer than is claimed
        (None, 100, 100),
        (None, 0, None),
    ],
)
def test_a_servers_clock_counts_as_far_as_ours_agrees(
    claimed_ms: int | None, seen_ms: int, believed_ms: int | None
) -> None:
    claimed = None if claimed_ms is None else claimed_ms * MS
    clocks = {"client_decode_ns": seen_ms * MS, "prompt_ns": 28 * MS, "total_ns": 130 * MS}
    answer = Answer(n_tokens=32, decode_ns=claimed, **clocks)
    assert believed_decode_ns(answer) == (None if believed_ms is None else believed_ms * MS)
