"""Are sessions that stop when they know enough right, and sooner done? Simulated, with known truths and hostile noise.

Every session asks `mlsd.trials.decisions`, after every block, as `bench`, `tune`, `compare` and `server` do. Beside it
stand what those programs did before (0.2.0) and the intervals that were tried in place of the one chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks.harness import Result
from mlsd.analysis.compare.gate import Measure, Series, judge, known_well
from mlsd.drafters.options import Span
from mlsd.measure.run.tune import first_gammas, gammas_beside
from mlsd.stats import best_of, mean_over
from mlsd.trials.decisions import PROCESSES, Decision, Timing, decide, standings, tail
from mlsd.trials.fates import Fate

Values = NDArray[np.float64]
RECORDED = 0.10  # of one trial's ln tok/s: half of studies/tiny-epyc-cpu.record.json.gz is above, half below
CALM = 0.03  # of the calmest tenth of it
MOST = 40  # blocks of a session without a decision
_GAMMA_SPACE = {"gamma": Span(low=1, high=16)}
LOOKS = (*range(1, 13), 16, 20, 25, 30, 40)  # every one of the first dozen, where most sessions end


# --- noise --------------------------------------------------------------------------------------------------------


def _normal(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> Values:
    return rng.normal(0, size, shape)


def _unlike(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> Values:
    """Arms whose standard deviations differ by a factor of e^0.5."""
    return rng.normal(0, size, shape) * np.exp(rng.normal(0, 0.5, (*shape[:2], 1)))


def _drift(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> Values:
    """3 % slower each block, arms of a block in random order."""
    return rng.normal(0, size, shape) - 0.03 * _places(rng, shape)


def _tails(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> Values:
    return rng.standard_t(2, shape) * size / 1.5


def _spikes(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> Values:
    """64 passes of 2 ms, 30 % of them with a scheduler slice of 4 ms."""
    return -np.log(128 + 4 * rng.binomial(64, 0.3, shape)) + rng.normal(0, size / 10, shape)


def _throttling(rng: np.random.Generator, shape: tuple[int, ...], size: float) -> Values:
    """From some place on everything runs at 0.78 of the speed."""
    return rng.normal(0, size, shape) - 0.25 * (_places(rng, shape) > rng.random((shape[0], 1, 1)) * 10)


def _places(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    order = rng.random(shape).argsort(axis=1) / shape[1]
    return np.asarray(order + np.arange(shape[2]))


NOISE: Mapping[str, Callable[[np.random.Generator, tuple[int, ...], float], Values]] = {
    "normal noise": _normal,
    "arms unlike": _unlike,
    "drift": _drift,
    "heavy tails": _tails,
    "spikes of 4 ms": _spikes,
    "throttling": _throttling,
}


def speeds(kind: str, n_sessions: int, n_arms: int, size: float = RECORDED, seed: int = 0, most: int = MOST) -> Values:
    """Logarithms of tok/s of sessions x (plain and arms) x blocks, of arms that gain nothing."""
    return NOISE[kind](np.random.default_rng(seed), (n_sessions, 1 + n_arms, most), size)


# --- sessions -----------------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """How a session ended."""

    decision: Decision
    trials: int
    blocks: int
    falsely: bool  # at any look an arm was decided against its truth


def race(logs: Values, truth: Values | None = None, n_choices: int | None = None, *, apart: bool = False) -> Ended:
    """A session on (plain and arms) x blocks of ln tok/s that ends when all is decided; arms drop out as it goes."""
    return session([logs], None if truth is None else [truth], n_choices, apart=apart)[0]


def session(
    cells: Sequence[Values],
    truths: Sequence[Values] | None = None,
    n_choices: int | None = None,
    *,
    apart: bool = False,
) -> list[Ended]:
    """The same on several prompts, each of which ends for itself."""
    truths = truths or [np.zeros(len(logs) - 1) for logs in cells]
    told: list[Timing[int]] = []
    ended: list[Ended | None] = [None] * len(cells)
    racing = [tuple(map(str, range(len(logs) - 1))) for logs in cells]
    trials, falsely, open_ = [0] * len(cells), [False] * len(cells), set(range(len(cells)))
    for block in range(min(logs.shape[1] for logs in cells)):
        for cell in open_:
            for name in (None, *racing[cell]):
                log = cells[cell][0 if name is None else 1 + int(name), block]
                told.append(Timing(cell, name, ("p", block), math.exp(log), Fate.VALID))
            trials[cell] += 1 + len(racing[cell])
        if block + 1 not in LOOKS:
            continue
        decisions = standings(told, n_choices=n_choices, apart=apart)
        for cell in tuple(open_):
            decision = decisions[cell]
            for one in decision.standings:
                gain = truths[cell][int(one.name)]
                wrong = (one.effect == "faster" and gain <= 0) or (one.effect == "slower" and gain >= 0)
                falsely[cell] = falsely[cell] or wrong
            racing[cell] = decision.racing
            ended[cell] = Ended(decision, trials[cell], block + 1, falsely[cell])
            if decision.done():
                open_.remove(cell)
        if not open_:
            break
    return [one for one in ended if one is not None]


class Share(NamedTuple):
    """Shares of sessions."""

    false: float
    covered: float  # of the intervals printed at the stop


Processes = Literal["none", "of a block", "of the session"]  # of servers, which differ from each other


def null_sessions(
    kind: str, n_arms: int, n_sessions: int, size: float = RECORDED, seed: int = 0, processes: Processes = "none"
) -> Share:
    """Sessions in which nothing gains; each arm may be a process that is a little faster or slower by itself."""
    logs = speeds(kind, n_sessions, n_arms, size, seed)
    if processes != "none":
        places = (n_sessions, 1 + n_arms, MOST if processes == "of a block" else 1)
        logs = logs + np.random.default_rng(seed + 1).normal(0, PROCESSES / math.sqrt(2), places)
    return _shares([race(one, apart=processes == "of the session")] for one in logs)


def null_prompts(kind: str, n_arms: int, n_sessions: int, unlike: float = 0.0, seed: int = 0) -> Share:
    """Sessions of four prompts in which nothing gains; their standard deviations a factor of e^`unlike` apart."""
    cells = [speeds(kind, n_sessions, n_arms, RECORDED, 100 * seed + place) for place in range(4)]
    factors = np.exp(np.random.default_rng(seed).normal(0, unlike, (n_sessions, len(cells))))
    return _shares(session([cell[i] * factors[i, j] for j, cell in enumerate(cells)]) for i in range(n_sessions))


def null_waves(kind: str, n_sessions: int, n_choices: int | None = None, seed: int = 0) -> Share:
    """Whole searches of `tune` over gammas 1 to 16 in which nothing gains."""
    return _shares([waves(logs, n_choices)] for logs in speeds(kind, n_sessions, 16, RECORDED, seed, 200))


def waves(logs: Values, n_choices: int | None = None) -> Ended:
    """A search on (plain and gammas) x blocks: the first gammas, then the neighbours of the leader, then it alone."""
    told: list[Timing[int]] = []
    wave, most, block, trials, falsely = tuple(first_gammas(_GAMMA_SPACE)), 4, 0, 0, False
    while True:
        racing = wave
        for _ in range(most):
            for gamma in (0, *racing):
                speed = math.exp(logs[gamma, block])
                told.append(Timing(0, f"{gamma}" if gamma else None, ("p", block), speed, Fate.VALID))
            trials, block = trials + 1 + len(racing), block + 1
            decision = standings(told, n_choices=n_choices)[0]
            falsely = falsely or any(one.effect in ("faster", "slower") for one in decision.standings)
            racing = tuple(gamma for gamma in wave if str(gamma) in decision.racing)
            if decision.done(among=set(map(str, wave))) or not racing or block == logs.shape[1]:
                break
        leader = decision.of(decision.leader or "") or max(decision.standings, key=lambda one: one.ratio.value)
        beside = gammas_beside(int(leader.name), [int(one.name) for one in decision.standings], _GAMMA_SPACE)
        if block == logs.shape[1]:
            return Ended(decision, trials, block, falsely)
        if beside and leader.effect != "slower":
            wave = (*beside, int(leader.name))
        elif leader.effect == "undecided" and most == 4:
            wave, most = (int(leader.name),), 30
        else:
            return Ended(decision, trials, block, falsely)


def null_comparisons(kind: str, n_sessions: int, n_measures: int = 4, margin: float = 0.05, seed: int = 0) -> float:
    """Share of sessions of `compare --until 5%`, of one build against itself, that ever find a change."""
    measures = [Measure(name=str(i), unit="tok/s", sense="rate") for i in range(n_measures)]
    each = [speeds(kind, n_sessions, 2, CALM, 100 * seed + i) for i in range(n_measures)]
    alarms = 0
    for own in zip(*each, strict=True):
        sides = [np.exp(logs) for logs in own]
        for n in (n for n in LOOKS if n > 1):
            series = [
                Series(measure=measure, a=tuple(a[:n]), b=tuple(b[:n]), control=tuple(control[:n]))
                for measure, (a, b, control) in zip(measures, sides, strict=True)
            ]
            found = judge(series, margin)
            if any(one.verdict not in ("same", "undecided") for one in found):
                alarms += 1
                break
            if known_well(found, margin):
                break
    return alarms / n_sessions


def _shares(sessions: Iterable[Sequence[Ended]]) -> Share:
    false, covered = [], []
    for ended in sessions:
        false.append(any(end.falsely for end in ended))
        ratios = [one.ratio for end in ended for one in end.decision.standings]
        covered += [r.low is not None and r.high is not None and r.low <= 1 <= r.high for r in ratios]
    return Share(float(np.mean(false)), float(np.mean(covered)))


def skewed_prompts(n_prompts: int, n_sessions: int, seed: int = 0) -> float:
    """Coverage of an arm's interval over prompts whose gains are exponential: a few texts gain most."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(n_sessions):
        gains = rng.exponential(0.3, n_prompts)
        places = [(str(p), b) for p in range(n_prompts) for b in range(3)]
        plain = {place: float(rng.normal(0, CALM)) for place in places}
        own = {place: float(gains[int(place[0])] + rng.normal(0, CALM)) for place in places}
        ratio = decide(plain, {"a": own}).standings[0].ratio
        hits += ratio.low is not None and ratio.high is not None and ratio.low <= math.exp(0.3) <= ratio.high
    return hits / n_sessions


# --- what was before ----------------------------------------------------------------------------------------------


def old_tune(rng: np.random.Generator, gains: Values, size: float, n_blocks: int = 4) -> tuple[int | None, int]:
    """0.2.0: settings one after the other beside plain trials of their own; the median pruner; any ``low > 1`` wins.

    The winner's place (None: off) and the trials that it took.
    """
    kept: list[list[float]] = []  # means after each block
    found: list[tuple[float, int]] = []
    trials, finished = 0, 0
    for place, gain in enumerate(gains):
        logs: list[float] = []
        means: list[float] = []
        for block in range(n_blocks):
            logs.append(float(gain + rng.normal(0, size) - rng.normal(0, size)))
            means.append(float(np.mean(logs)))
            trials += 2
            others = [one[block] for one in kept if len(one) > block]
            behind = block >= 1 and finished >= 4 and others and max(means) < np.median(others)
            if behind and block + 1 < n_blocks:
                break
        kept.append(means)
        if len(logs) == n_blocks:
            finished += 1
            ratio = mean_over([math.exp(x) for x in logs], ratio=True)
            if ratio.low is not None and ratio.low > 1:
                found.append((ratio.value, place))
    return (max(found)[1] if found else None), trials


def fixed(logs: Values, n_blocks: int) -> int | None:
    """A bench of so many blocks and the corrected choice of 0.2.0's report: the winner's place, or off."""
    m = len(logs) - 1
    ratios = [mean_over([*np.exp(logs[1 + i, :n_blocks] - logs[0, :n_blocks])], ratio=True) for i in range(m)]
    good = [(best_of(one, m, ratio=True), i) for i, one in enumerate(ratios)]
    return max(((one.value, i) for one, i in good if (one.low or 0) > 1), default=(0.0, None))[1]


# --- intervals that were tried --------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """How an interval for the mean of blocks does that is looked at after each from 3 to 100."""

    false: float  # sessions in which it ever leaves the truth out
    widths: dict[int, float]  # blocks -> median half width in standard errors


def _mixture(n: Values, size: float = 0.1) -> Values:
    """Half width in standard errors of the t mixture martingale, effects N(0, 1 / size) standard deviations.

    ``q = (alpha^2 c / (n + c))^(1 / n)``, ``h^2 = (1 - q)(n + c)(n - 1) / (q (n + c) - c)`` (Wang and Ramdas 2024).
    """
    q = (0.05**2 * size / (n + size)) ** (1 / n)
    room = q * (n + size) - size
    return np.sqrt(np.where(room > 0, (1 - q) * (n + size) * (n - 1) / np.where(room > 0, room, 1), np.inf))


CANDIDATES: Mapping[str, Callable[[Values], Values]] = {
    "95 % at each look alone": lambda n: student.ppf(0.975, n - 1),
    "Pocock's level for 98 looks": lambda n: student.ppf(1 - 0.025 / 13, n - 1),
    "alpha / (k (k + 1)) at look k": lambda n: student.ppf(1 - 0.025 / ((n - 2) * (n - 1)), n - 1),
    "t mixture martingale": _mixture,
    "stitched, as chosen": lambda n: student.ppf([1 - tail(0.05, 1, int(k), 3) for k in n], n - 1),
}


def candidate(name: str, n_sessions: int = 4000, seed: int = 0) -> Candidate:
    """One interval under normal noise."""
    logs = np.random.default_rng(seed).normal(0, 1, (n_sessions, 100))
    n = np.arange(1, 101)
    means = logs.cumsum(axis=1) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt(((logs**2).cumsum(axis=1) - n * means**2) / (n - 1) / n)
    half = CANDIDATES[name](n[2:].astype(float)) * errors[:, 2:]
    widths = {k: float(np.median(half[:, k - 3])) * math.sqrt(k) for k in (3, 5, 8, 15, 30, 100)}
    return Candidate(float(np.mean((np.abs(means[:, 2:]) > half).any(axis=1))), widths)


# --- time to a decision -------------------------------------------------------------------------------------------


def gains(acceptance: float, gammas: Values, cost: float = 0.12) -> Values:
    """Logarithm of Leviathan's speedup, T(k) growing by 3 % a row."""
    return np.asarray(np.log((1 - acceptance ** (gammas + 1)) / (1 - acceptance)) - np.log(1 + (cost + 0.03) * gammas))


GAMMAS = np.arange(1.0, 17.0)
PROMPTS = (0.35, 0.55, 0.7, 0.85)  # acceptance of each


class Effort(NamedTuple):
    """What both designs needed for decisions of the same quality."""

    trials: float  # of a race, on average
    right: float  # its answers within 5 % of the best, "off" where nothing gains 3 %
    fixed_trials: float  # of the least number of blocks that answers so well
    fixed_right: float


def bench_effort(size: float, n_sessions: int, seed: int = 0) -> Effort:
    """Gammas 1 to 16 on four prompts, each prompt answered for itself."""
    rng = np.random.default_rng(seed)
    cells = [(gains(a, GAMMAS), rng.normal(0, size, (n_sessions, 17, 64))) for a in PROMPTS]
    trials, right = 0, 0
    truths = [truth for truth, _ in cells]
    for i in range(n_sessions):
        logs = [noise[i] + np.append(0.0, truth)[:, None] for truth, noise in cells]
        for ended, truth in zip(session(logs, truths), truths, strict=True):
            trials += ended.trials
            best = ended.decision.best
            right += _right(None if best is None else int(best.name), truth)
    share = right / len(cells) / n_sessions
    for n_blocks in range(3, 65):
        good = [_right(fixed(x + np.append(0.0, t)[:, None], n_blocks), t) for t, noise in cells for x in noise]
        if np.mean(good) >= share:
            break
    return Effort(trials / n_sessions, share, 17 * 4 * n_blocks, float(np.mean(good)))


def _right(chosen: int | None, truth: Values) -> bool:
    if chosen is None:
        return bool(truth.max() < math.log(1.03))
    return bool(truth[chosen] > max(0.0, truth.max() - 0.05))


def tune_effort(size: float, n_sessions: int, seed: int = 0) -> Effort:
    """Twenty settings on one prompt, against the search of 0.2.0 with as many blocks a setting as answer so well."""
    rng = np.random.default_rng(seed)
    truths = [gains(rng.uniform(0.3, 0.9), rng.integers(1, 17, 20).astype(float)) for _ in range(n_sessions)]
    trials = right = 0.0
    for truth in truths:
        ended = race(rng.normal(0, size, (21, MOST)) + np.append(0.0, truth)[:, None], truth)
        best = ended.decision.best
        trials += ended.trials / n_sessions
        right += _right(None if best is None else int(best.name), truth) / n_sessions
    for n_blocks in range(4, 33):  # 4 were the default
        old = [(old_tune(rng, truth, size, n_blocks), truth) for truth in truths]
        good = float(np.mean([_right(chosen, truth) for (chosen, _), truth in old]))
        if good >= right:
            break
    return Effort(trials, right, float(np.mean([used for (_, used), _ in old])), good)


# --- all of it ----------------------------------------------------------------------------------------------------


def run() -> Iterator[Result]:
    """Every simulation."""
    rng = np.random.default_rng(0)
    named = [old_tune(rng, np.zeros(20), RECORDED)[0] is not None for _ in range(500)]
    yield _share("0.2.0: tune names a winner where nothing gains", float(np.mean(named)))
    for name in CANDIDATES:
        tried = candidate(name)
        widths = ", ".join(f"{width:.1f} at {k}" for k, width in tried.widths.items())
        yield _share(f"{name}: wrong at any of 98 looks ({widths})", tried.false)
    for m, n in ((1, 1000), (4, 500), (20, 100)):
        for kind in NOISE:
            found = null_sessions(kind, m, n)
            yield _share(f"{m} arms that gain nothing, {kind}: falsely decided", found.false, most=5.0)
            yield _share(f"{m} arms that gain nothing, {kind}: covered at the stop", found.covered, least=93.0)
    for m, n in ((1, 1000), (4, 300)):
        for size in (0.002, 0.01, CALM):
            for of in get_args(Processes)[1:]:
                found = null_sessions("normal noise", m, n, size, processes=of)
                said = f"{m} servers that gain nothing, noise {size:g}, a process {of}"
                yield _share(f"{said}: falsely decided", found.false, most=5.0)
                yield _share(f"{said}: covered at the stop", found.covered, least=93.0)
    for m, n in ((1, 300), (4, 150)):
        for kind in NOISE:
            found = null_prompts(kind, m, n)
            yield _share(f"4 prompts of {m} arms that gain nothing, {kind}: falsely decided", found.false, most=5.0)
        found = null_prompts("normal noise", m, n, 0.5)
        yield _share(f"4 prompts of {m} arms that gain nothing, unlike: falsely decided", found.false, most=5.0)
    for kind in NOISE:
        found = null_waves(kind, 200)
        yield _share(f"tune, nothing gains, {kind}: falsely decided", found.false, most=5.0)
        yield _share(f"tune, nothing gains, {kind}: covered at the stop", found.covered, least=93.0)
        yield _share(f"compare --until 5% of one build, {kind}: a change", null_comparisons(kind, 200), most=0.5)
    for p in (3, 4, 6, 10):
        yield _share(f"{p} prompts with skewed gains: covered", skewed_prompts(p, 2000), least=93.0)
    for size in (CALM, RECORDED):
        for name, effort in (("bench", bench_effort(size, 40)), ("tune", tune_effort(size, 100))):
            said = f"{name} at noise {size:g}: {effort.trials:.0f} trials of {effort.fixed_trials:.0f}, right"
            yield _share(f"{said} {100 * effort.right:.0f} %", effort.trials / effort.fixed_trials, most=60.0)


def _share(name: str, share: float, *, least: float | None = None, most: float | None = None) -> Result:
    percent = 100 * share
    passed = None if least is None and most is None else (least or 0.0) <= percent <= (100.0 if most is None else most)
    bar = "" if passed is None else f">= {least:g}" if least is not None else f"<= {most:g}"
    return Result(name, percent, percent, percent, "%", bar, passed)
