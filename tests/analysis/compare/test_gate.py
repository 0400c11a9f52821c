"""The gate raises no false alarm, finds what it promised to find, and says what it takes to know more."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from mlsd.analysis.compare.gate import Finding, Measure, Series, judge, precise_enough

PLAIN = Measure(name="plain", unit="tok/s", sense="rate")
# Standard deviations of ln(value) of one turn about its block's mean: SmolLM2-135M on two cores, one thread, while
# other programs kept both cores busy twice over (load 4 to 5); and a tenth of it, as is usual where nothing else runs.
BUSY = {"plain": 0.094, "prefill": 0.137, "pld, gamma 4": 0.099, "T(1)": 0.16, "T(5)": 0.111, "memory": 0.002}
QUIET = {"plain": 0.01, "prefill": 0.015, "pld, gamma 4": 0.01, "T(1)": 0.02, "T(5)": 0.015, "memory": 0.002}
SLOWER = -math.log(1.05)


def session(seed: int, n: int, change: float = 0.0, noise: dict[str, float] = BUSY) -> list[Series]:
    """Blocks in which sides share the machine's drift, and each turn has noise that its measures share in part."""
    rng = np.random.default_rng(seed)
    drift = rng.normal(size=n).cumsum() * 0.02
    turns = rng.normal(size=(3, n))
    series = []
    for name, spread in noise.items():
        alone = rng.normal(size=(3, n))
        logs = drift + spread * (0.7 * turns + 0.714 * alone)
        logs[1] += change
        a, b, control = (tuple(math.exp(v) for v in row) for row in logs)
        measure = Measure(name=name, unit="", sense="rate")
        series.append(Series(measure=measure, a=a, b=b, control=control))
    return series


def cut(series: Sequence[Series], n: int) -> list[Series]:
    return [Series(measure=s.measure, a=s.a[:n], b=s.b[:n], control=s.control[:n]) for s in series]


def finding_of(values: Sequence[tuple[float, float]], measure: Measure = PLAIN, control: bool = False) -> Finding:
    a, b = zip(*values, strict=True)
    (finding,) = judge([Series(measure=measure, a=a, b=b, control=a if control else ())])
    return finding


def changed(findings: Sequence[Finding]) -> list[Finding]:
    return [f for f in findings if f.verdict not in ("same", "not decided yet")]


@pytest.mark.heavy
@pytest.mark.parametrize("n_blocks", [4, 10, 30])
def test_two_sides_that_are_the_same_are_the_same_or_undecided_in_99_of_100_sessions(n_blocks: int) -> None:
    alarms = sum(bool(changed(judge(session(seed, n_blocks)))) for seed in range(300))
    assert alarms <= 3


@pytest.mark.heavy
def test_going_on_until_enough_is_known_raises_no_more_alarms() -> None:
    alarms = 0
    for seed in range(100):
        whole, n = session(seed, 60, noise=QUIET), 6
        while not precise_enough(findings := judge(cut(whole, n), 0.05), 0.05) and n < 60:
            n += 1
        alarms += bool(changed(findings))
    assert alarms <= 1


@pytest.mark.heavy
@pytest.mark.parametrize("noise", [BUSY, QUIET], ids=["busy", "quiet"])
def test_a_slowdown_of_5_per_cent_is_found_within_the_promised_blocks_in_95_of_100_sessions(
    noise: dict[str, float],
) -> None:
    n_first, n_found, promises = 10, 0, []
    for seed in range(100):
        plain = judge(cut(whole := session(seed, 1200, SLOWER, noise), n_first), 0.05)[0]
        promised = n_first + (plain.more_blocks or 0)
        promises.append(promised)
        n_found += judge(cut(whole, promised), 0.05)[0].verdict == "slower"
    assert n_found >= 95
    assert max(promises) < 1200
    print(f"found {n_found} of 100 within {np.median(promises):.0f} blocks (median)")


def test_a_change_of_a_time_is_slower_where_that_of_a_rate_is_faster() -> None:
    up = [(1.0, 1.1), (1.0, 1.11), (1.0, 1.09), (1.0, 1.1), (1.0, 1.1)]
    assert finding_of(up).verdict == "faster"
    assert finding_of(up, Measure(name="T(1)", unit="ms", sense="time")).verdict == "slower"
    assert finding_of(up, Measure(name="memory", unit="MiB", sense="level")).verdict == "higher"
    assert finding_of(up).sentence == "faster by 10.0 %"


def test_no_change_is_reported_with_the_bound_that_holds_it() -> None:
    result = finding_of([(1.0, 1.0 + 0.001 * sign) for sign in (1, -1, 1, -1, 1, -1, 1, -1)])
    assert result.verdict == "same"
    assert result.within is not None and result.change is not None and result.change.high is not None
    assert result.change.high - 1 <= result.within < 0.02
    assert result.sentence == "same within 0.2 %"


def test_counts_without_noise_are_the_same_or_changed_exactly() -> None:
    share = Measure(name="pld: acceptance", unit="", sense="level", is_ratio=False)
    assert finding_of([(0.667, 0.667)] * 4, share, control=True).sentence == "same within 0 %"
    assert finding_of([(0.667, 0.524)] * 4, share, control=True).sentence == "lower by 14.3 %"
    assert finding_of([(0.0, 0.0)] * 4, share).verdict == "same"


def test_what_is_undecided_says_how_many_blocks_would_show_how_much() -> None:
    rng = np.random.default_rng(0)
    result = finding_of([(1.0, math.exp(v)) for v in rng.normal(0, 0.03, 8)])
    assert result.verdict == "not decided yet"
    assert result.more_blocks is not None and result.more_blocks > 8
    assert result.sentence == f"not decided yet: {result.more_blocks} more blocks would show 2 %"


def test_so_much_noise_that_no_life_is_long_enough_promises_a_larger_effect() -> None:
    rng = np.random.default_rng(0)
    result = finding_of([(1.0, math.exp(v)) for v in rng.normal(0, 1.0, 8)])
    assert result.more_blocks is not None and result.more_blocks <= 1_000
    assert result.would_show is not None and result.would_show > 0.1


def test_one_block_decides_nothing() -> None:
    assert finding_of([(1.0, 2.0)]).sentence == "not decided yet: too few blocks"


def test_what_the_control_shows_too_is_not_believed_of_b() -> None:
    a, far = (1.0, 1.001, 0.999, 1.0, 1.001, 0.999), 1.1
    series = Series(measure=PLAIN, a=a, b=tuple(1.08 * v for v in a[::-1]), control=tuple(far * v for v in a))
    (result,) = judge([series])
    assert result.control is not None and result.control.decided()
    assert result.verdict == "not decided yet"
    (alone,) = judge([Series(measure=PLAIN, a=a, b=series.b)])
    assert alone.verdict == "faster"


def test_more_measures_ask_for_more_of_each() -> None:
    rng = np.random.default_rng(3)
    b = tuple(math.exp(v) for v in rng.normal(0.03, 0.02, 6))
    alone = judge([Series(measure=PLAIN, a=(1.0,) * 6, b=b)])[0]
    among = judge([Series(measure=PLAIN, a=(1.0,) * 6, b=b) for _ in range(20)])[0]
    assert alone.change is not None and among.change is not None
    assert among.change.low < alone.change.low < alone.change.value  # type: ignore[operator]


def test_blocks_that_lack_a_side_count_nowhere() -> None:
    (result,) = judge([Series(measure=PLAIN, a=(1.0, None, 1.0), b=(2.0, 2.0, None))])
    assert result.n == 1


def test_three_blocks_decide_nothing_and_neither_does_a_change_that_the_control_may_have_too() -> None:
    times = Measure(name="T(5)", unit="ms", sense="time")
    busy = Series(measure=times, a=(5.9, 6.3, 6.1), control=(1.4, 2.1, 1.7), b=(1.6, 1.9, 1.7))
    assert judge([busy])[0].verdict == "not decided yet"
    more = Series(measure=times, a=busy.a * 3, control=busy.control * 3, b=busy.b * 3)
    assert judge([more])[0].verdict == "not decided yet"


@pytest.mark.slow
def test_spikes_on_a_third_of_the_passes_raise_no_alarms() -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(40):
        sides = 2 + 4 * (rng.random((6, 3, 4)) < 0.3) + rng.normal(0, 0.02, (6, 3, 4))
        measures = [
            Series(measure=Measure(name=f"T({k})", unit="ms", sense="time"), a=tuple(a), control=tuple(c), b=tuple(b))
            for k, (a, c, b) in enumerate(sides)
        ]
        alarms += any(found.verdict in ("faster", "slower") for found in judge(measures))
    assert alarms <= 1
