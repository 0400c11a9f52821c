"""Are sessions that stop when they know enough right, and sooner done? Simulated, with known truths and hostile noise.

Every session asks `mlsd.trials.decisions`, after every block, as `bench`, `tune`, `compare` and `server` do. Beside it
stand what those programs did before (0.2.0) and the intervals that were tried in place of the one chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks.harness import Result
from mlsd.stats import best_of, mean_over
from mlsd.trials.decisions import PROCESSES, Decision, decide, tail

Values = NDArray[np.float64]
RECORDED = 0.10  # of one trial's ln tok/s: half of studies/tiny-epyc-cpu.record.json.gz is above, half below
CALM = 0.03  # of the calmest tenth of it
MOST = 40  # blocks of a session without a decision
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
    prompt = "p"
    m, most = len(logs) - 1, logs.shape[1]
    truth = np.zeros(m) if truth is None else truth
    arms: dict[str, dict[tuple[str, int], float]] = {str(i): {} for i in range(m)}
    plain: dict[tuple[str, int], float] = {}
    racing, trials, falsely = tuple(arms), 0, False
    decision = None
    for block in range(most):
        plain[prompt, block] = float(logs[0, block])
        for name in racing:
            arms[name][prompt, block] = float(logs[1 + int(name), block])
        trials += 1 + len(racing)
        if block + 1 not in LOOKS:
            continue
        decision = decide(plain, arms, n_choices=n_choices, apart=apart)
        for one in decision.standings:
            gain = truth[int(one.name)]
            wrong = (one.effect == "faster" and gain <= 0) or (one.effect == "slower" and gain >= 0)
            falsely = falsely or wrong
        racing = decision.racing
        if decision.done():
            break
    assert decision is not None
    return Ended(decision, trials, block + 1, falsely)


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
    ended = [race(one, apart=processes == "of the session") for one in logs]
    ratios = [one.ratio for end in ended for one in end.decision.standings]
    covered = [r.low is not None and r.high is not None and r.low <= 1 <= r.high for r in ratios]
    return Share(float(np.mean([end.falsely for end in ended])), float(np.mean(covered)))


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
    for truth, noise in cells:
        for logs in noise:
            ended = race(logs + np.append(0.0, truth)[:, None], truth, n_choices=64)
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
