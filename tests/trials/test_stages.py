"""The shares of a session's time: one line that says where it went."""

from hypothesis import given
from hypothesis import strategies as st

from mlsd.trials.stages import PREPARATION, STAGES, StageTime, stage_line, summed, wall_ns

SPANS = st.integers(0, 10**12)
TIMES = st.lists(st.builds(StageTime, stage=st.sampled_from(STAGES), wall_ns=SPANS, processor_ns=SPANS))


def test_the_largest_share_stands_first_and_what_is_small_is_summed_up_as_other() -> None:
    times = [
        StageTime(stage="load", wall_ns=100_000_000, processor_ns=0),
        StageTime(stage="prefill", wall_ns=4_000_000_000, processor_ns=0),
        StageTime(stage="timed rounds", wall_ns=24_000_000_000, processor_ns=0),
        StageTime(stage="judging", wall_ns=5_900_000_000, processor_ns=0),
    ]
    assert stage_line(times) == "34.0 s: 71 % timed rounds, 17 % judging, 12 % prefill"
    assert stage_line([]) is None


@given(TIMES)
def test_sums_lose_no_time_and_name_a_stage_once(times: list[StageTime]) -> None:
    found = summed(times)
    assert sum(one.wall_ns for one in found) == wall_ns(times) == sum(one.wall_ns for one in times)
    assert sum(one.processor_ns for one in found) == sum(one.processor_ns for one in times)
    assert len({one.stage for one in found}) == len(found)
    assert wall_ns(times, PREPARATION) <= wall_ns(times)
