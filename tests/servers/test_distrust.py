"""Which clock counts: the server's where whole answers confirm it, and ours of whole answers where they do not."""

import pytest

from mlsd.servers.distrust import decode_ns_of
from mlsd.servers.endpoint import ServerAnswer

MS = 1_000_000


@pytest.mark.parametrize(
    ("claimed_ms", "counted_ms"),
    [
        (100, 100),  # honest: what passed here is a little more
        (97, 97),  # within the noise of clocks and buffers
        (10, 102),  # a tenth: ours counts
        (89, 102),
        (130, 102),  # too slow a plain server makes the other one fast
        (None, 102),
    ],
)
def test_a_clock_counts_where_whole_answers_confirm_it(claimed_ms: int | None, counted_ms: int) -> None:
    claimed = None if claimed_ms is None else claimed_ms * MS
    answer = ServerAnswer(n_tokens=32, decode_ns=claimed, total_ns=130 * MS)
    assert decode_ns_of(answer, ServerAnswer(n_tokens=1, total_ns=28 * MS)) == counted_ms * MS


def test_an_answer_no_longer_than_one_of_a_single_token_is_not_timed() -> None:
    assert decode_ns_of(ServerAnswer(n_tokens=32, total_ns=28 * MS), ServerAnswer(n_tokens=1, total_ns=30 * MS)) is None
