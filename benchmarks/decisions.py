"""Do intervals cover, are decisions right, and are sessions that stop when they know enough sooner done? Simulated.

Truths are known and noise is hostile. Every session asks what its surface prints (`trials.results.arm_results`,
`trials.on_or_off`, tables) or the gate of `compare`, once at its end or after every block, as the programs do.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Result, percent
from mlsd.analysis.compare.gate import Measure, Series, judge, precise_enough
from mlsd.drafters.options import Range
from mlsd.measure.parent.tune import first_gammas, neighbouring_gammas
from mlsd.records import Case, DrafterSpec, ModelRef, PromptRef, Status, Trial
from mlsd.stats import grouped, mean_over
from mlsd.store.sessions import latest
from mlsd.trials.intervals import PROCESSES, Design, Stopping, against, estimate, intervals
from mlsd.trials.on_or_off import Answer, answers
from mlsd.trials.rates import Sums
from mlsd.trials.results import ArmResult, Measured, SessionPlan, arm_results, decisions, pooled_results
from mlsd.units import NS_PER_S

Values = NDArray[np.float64]
RECORDED = 0.10  # of one trial's ln tok/s: half of studies/tiny-epyc-cpu.record.gz is above, half below
CALM = 0.03  # of the calmest tenth of it
MOST = 40  # blocks of a session without a decision
_N_TOKENS = 33
_TOKENS = tuple(range(_N_TOKENS))
_GAMMA_SPACE = {"gamma": Range(low=1, high=16)}
LOOKS = (*range(1, 13), 16, 20, 25, 30, 40)  # every one of the first dozen, where most sessions end


# --- noise --------------------------------------------------------------------------------------------------------


Shape = tuple[int, ...]  # sessions, arms, blocks


def _places(rng: np.random.Generator, shape: Shape) -> Values:
    """Where a trial stands in its session, arms of a block in random order."""
    return np.asarray(rng.random(shape).argsort(axis=1) / shape[1] + np.arange(shape[2]))


def _wander(rng: np.random.Generator, shape: Shape, size: float) -> Values:
    sessions, arms, blocks = shape
    walk = rng.normal(0, 0.03, (sessions, 1, arms * blocks)).cumsum(axis=2)
    order = rng.random(shape).argsort(axis=1) + arms * np.arange(blocks)
    return np.asarray(rng.normal(0, size, shape) + np.take_along_axis(walk.repeat(arms, axis=1), order, axis=2))


NOISE: Mapping[str, Callable[[np.random.Generator, Shape, float], Values]] = {
    "normal noise": lambda rng, shape, size: rng.normal(0, size, shape),
    # Standard deviations of arms differ by a factor of e^0.5.
    "arms unlike": lambda rng, shape, size: rng.normal(0, size, shape) * np.exp(rng.normal(0, 0.5, (*shape[:2], 1))),
    "drift": lambda rng, shape, size: rng.normal(0, size, shape) - 0.03 * _places(rng, shape),  # 3 % slower a block
    "heavy tails": lambda rng, shape, size: rng.standard_t(2, shape) * size / 1.5,
    # 64 passes of 2 ms, 30 % of them with a scheduler slice of 4 ms.
    "spikes of 4 ms": lambda rng, shape, size: (
        -np.log(128 + 4 * rng.binomial(64, 0.3, shape)) + rng.normal(0, size / 10, shape)
    ),
    # From some place on everything runs at 0.78 of the speed.
    "throttling": lambda rng, shape, size: (
        rng.normal(0, size, shape) - 0.25 * (_places(rng, shape) > rng.random((shape[0], 1, 1)) * 10)
    ),
    # One trial of ten is a third slower: something else ran.
    "stalls": lambda rng, shape, size: rng.normal(0, size / 3, shape) - 0.4 * (rng.random(shape) < 0.1),
    "wandering": _wander,  # the machine's speed walks by 3 % from trial to trial
}


def speeds(kind: str, n_sessions: int, n_arms: int, size: float = RECORDED, seed: int = 0, most: int = MOST) -> Values:
    """Logarithms of tok/s of sessions x (plain and arms) x blocks, of arms that gain nothing."""
    return NOISE[kind](np.random.default_rng(seed), (n_sessions, 1 + n_arms, most), size)


# --- sessions -----------------------------------------------------------------------------------------------------


class Ended(NamedTuple):
    """How a session ended on one prompt."""

    arms: tuple[ArmResult, ...]  # plain decoding left out
    answer: Answer
    trials: int
    blocks: int
    falsely: bool  # at any look an arm, or the answer, was decided against its truth


def _case(gamma: int, prompt: str) -> Case:
    return Case(
        suite="bench",
        target=ModelRef(id="target"),
        prompt=PromptRef(key=prompt, sha256="a" * 64, workload=prompt.partition(" ")[0]),
        n_predict=_N_TOKENS,
        drafter=DrafterSpec(name="pld") if gamma else DrafterSpec(),
        gamma=gamma,
    )


def _trial(case: Case, block: int, log: float) -> Measured:
    """A valid trial that decodes e^log tok/s; each of its rounds accepts seven tokens."""
    trial = Trial(
        case_id=case.id, arm=case.arm, gamma=case.gamma, block=block, repeat=block, position=0,
        status=Status.VALID,
        started_at="", tokens=_TOKENS, decode_ns=round(_TOKENS[-1] * NS_PER_S / math.exp(log)),
    )  # fmt: skip
    return Measured(case, trial, Sums(rounds=4, proposed=28, accepted=28, committed=32), block)


def race(logs: Values, truth: Values | None = None, *, apart: bool = False) -> Ended:
    """A session on (plain and arms) x blocks of ln tok/s that ends when all is decided; arms drop out as it goes."""
    return session([logs], None if truth is None else [truth], apart=apart)[0]


def session(cells: Sequence[Values], truths: Sequence[Values] | None = None, *, apart: bool = False) -> list[Ended]:
    """The same on several prompts, each of which ends for itself; arm i drafts i tokens."""
    truths = truths or [np.zeros(len(logs) - 1) for logs in cells]
    cases = [[_case(gamma, f"p{cell}") for gamma in range(len(logs))] for cell, logs in enumerate(cells)]
    plan = SessionPlan(stopping=Stopping.SEQUENTIAL, process_per_arm=apart).count(case for own in cases for case in own)
    trials, open_ = list[Measured](), dict(enumerate(truths))
    ended: dict[int, Ended] = {}
    racing = [[*range(len(logs))] for logs in cells]
    for block in range(min(logs.shape[1] for logs in cells)):
        trials += [_trial(cases[c][gamma], block, cells[c][gamma, block]) for c in open_ for gamma in racing[c]]
        if block + 1 not in LOOKS:
            continue
        raced = {question.text: one for question, one in decisions(trials, plan).items()}
        arms = grouped(_speculative(arm_results(trials, plan)), lambda arm: arm.text)
        for cell, truth in tuple(open_.items()):
            own, decision = arms[f"p{cell}"], raced[f"p{cell}"]
            falsely = (cell in ended and ended[cell].falsely) or says_falsely(own, truth)
            racing[cell] = [0, *(arm.case.gamma for arm in own if arm.name in decision.racing)]
            n_trials = sum(one.case.prompt.key == f"p{cell}" for one in trials)
            ended[cell] = Ended(tuple(own), answers(own)[0], n_trials, block + 1, falsely)
            if decision.done():
                del open_[cell]
        if not open_:
            break
    return [ended[cell] for cell in range(len(cells))]


def _speculative(arms: Iterable[ArmResult]) -> list[ArmResult]:
    return [arm for arm in arms if not arm.is_plain]


def says_falsely(arms: Sequence[ArmResult], truth: Values | None = None) -> bool:
    """Whether a word of an arm, or the answer to use one, is against its gain; without `truth` all gain nothing."""

    def gain(arm: ArmResult) -> float:
        return 0.0 if truth is None else float(truth[arm.case.gamma - 1])

    words = any(
        (arm.effect == "faster" and gain(arm) <= 0) or (arm.effect == "slower" and gain(arm) >= 0) for arm in arms
    )
    used = [one.best for one in answers(arms) if one.use == "on" and one.best is not None]
    return words or any(gain(arm) <= 0 for arm in used)


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


def null_prompts(kind: str, n_arms: int, n_sessions: int, seed: int = 0) -> Share:
    """Sessions of four prompts in which nothing gains, each prompt answered for itself."""
    cells = [speeds(kind, n_sessions, n_arms, RECORDED, 100 * seed + place) for place in range(4)]
    return _shares(session([cell[i] for cell in cells]) for i in range(n_sessions))


def null_workloads(kind: str, n_prompts: int, n_sessions: int, text: float = 0.1, seed: int = 0) -> Share:
    """One answer for several prompts, whose gains are N(0, `text`), asked after each of thirty blocks."""
    each = [speeds(kind, n_sessions, 1, RECORDED, 100 * seed + place, 30) for place in range(n_prompts)]
    gains = np.random.default_rng(seed).normal(0, text, (n_sessions, n_prompts))
    plan = SessionPlan(pool="all", stopping=Stopping.SEQUENTIAL)
    cases = [[_case(g, f"p{i}") for g in (0, 1)] for i in range(n_prompts)]
    false, covered = [], []
    for i in range(n_sessions):
        logs = [own[i] + np.array([[0.0], [gain]]) for own, gain in zip(each, gains[i], strict=True)]
        looks = [_speculative(arm_results(_block_trials(cases, logs, n), plan)) for n in LOOKS if n <= 30]
        false.append(any(map(says_falsely, looks)))
        covered += [arm.ratio is not None and not arm.ratio.decided() for arm in looks[-1]]
    return Share(float(np.mean(false)), float(np.mean(covered)))


def _block_trials(cases: Sequence[Sequence[Case]], logs: Sequence[Values], n_blocks: int) -> list[Measured]:
    return [
        _trial(case, block, own[arm, block])
        for prompts, own in zip(cases, logs, strict=True)
        for arm, case in enumerate(prompts)
        for block in range(n_blocks)
    ]


def false_words(kind: str, n_arms: int, n_sessions: int, n_blocks: int = 3, size: float = RECORDED) -> dict[str, float]:
    """Shares of sessions of fixed repeats, nothing gaining, of which a surface says a false faster or slower.

    bench: its table and answers, of four prompts each for itself. report: its answers, tables of each workload and of
    all together, of a suite with two prompts of each of two workloads. fit: its table of gammas, of that suite.
    """
    each = [speeds(kind, n_sessions, n_arms, size, place, n_blocks) for place in range(4)]
    cases = [[_case(gamma, f"{text} {i}") for gamma in range(1 + n_arms)] for text in ("code", "prose") for i in (1, 2)]
    false: dict[str, list[bool]] = {"bench": [], "report": [], "fit": []}
    for i in range(n_sessions):
        trials = _block_trials(cases, [own[i] for own in each], n_blocks)
        false["bench"].append(says_falsely(_speculative(arm_results(trials, SessionPlan(pool="prompt")))))
        suite = SessionPlan(pool="workload")
        pooled = _speculative(latest(pooled_results(trials, suite)))
        false["report"].append(says_falsely(_speculative(latest(arm_results(trials, suite)))) or says_falsely(pooled))
        false["fit"].append(any(one.effect in ("faster", "slower") for one in pooled))
    return {surface: float(np.mean(own)) for surface, own in false.items()}


def null_waves(kind: str, n_sessions: int, seed: int = 0) -> Share:
    """Whole searches of `tune` over gammas 1 to 16 in which nothing gains."""
    return _shares([waves(logs)] for logs in speeds(kind, n_sessions, 16, RECORDED, seed, 200))


def waves(logs: Values) -> Ended:
    """A search on (plain and gammas) x blocks: the first gammas, then the neighbours of the leader, then it alone."""
    plan = SessionPlan(pool="all", stopping=Stopping.SEQUENTIAL)
    cases = [_case(gamma, "code") for gamma in range(len(logs))]
    trials = list[Measured]()
    wave, most, block, falsely = tuple(first_gammas(_GAMMA_SPACE)), 4, 0, False
    while True:
        racing = wave
        for _ in range(most):
            trials += [_trial(cases[gamma], block, logs[gamma, block]) for gamma in (0, *racing)]
            block += 1
            (decision,) = decisions(trials, plan).values()
            arms = _speculative(arm_results(trials, plan))
            names = {arm.name: arm.case.gamma for arm in arms}
            falsely = falsely or says_falsely(arms)
            racing = tuple(gamma for gamma in wave if gamma in {names[name] for name in decision.racing})
            asked = {str(name) for name, gamma in names.items() if gamma in wave}
            if decision.done(among=asked) or not racing or block == logs.shape[1]:
                break
        leader = max(arms, key=lambda arm: (arm.effect != "slower", arm.ratio.value if arm.ratio else 0.0))
        gamma, ended = leader.case.gamma, Ended(tuple(arms), answers(arms)[0], len(trials), block, falsely)
        beside = neighbouring_gammas(gamma, list(names.values()), _GAMMA_SPACE)
        if block == logs.shape[1]:
            return ended
        if beside and leader.effect != "slower":
            wave = (*beside, gamma)
        elif leader.effect == "not decided yet" and most == 4:
            wave, most = (gamma,), 30
        else:
            return ended


def comparisons(
    kind: str,
    n_sessions: int,
    n_blocks: int | None = 10,
    change: float = 0.0,
    size: float = CALM,
    n_measures: int = 6,
    seed: int = 0,
) -> float:
    """Share of sessions of `compare` that find B changed; without `n_blocks` of those that go on `--until 5%`."""
    measures = [Measure(name=str(i), unit="tok/s", sense="rate") for i in range(n_measures)]
    most = n_blocks or MOST
    each = np.stack([speeds(kind, n_sessions, 2, size, 100 * seed + i, most) for i in range(n_measures)], axis=1)
    each[:, :, 1] += change
    found = 0
    for own in np.exp(each):
        for n in (n_blocks,) if n_blocks else (n for n in LOOKS if n > 5):
            series = [
                Series(measure=measure, a=tuple(a[:n]), b=tuple(b[:n]), control=tuple(control[:n]))
                for measure, (a, b, control) in zip(measures, own, strict=True)
            ]
            findings = judge(series, 0.02 if n_blocks else 0.05, Stopping.FIXED if n_blocks else Stopping.SEQUENTIAL)
            if any(one.verdict not in ("same", "not decided yet") for one in findings):
                found += 1
                break
            if not n_blocks and precise_enough(findings, 0.05):
                break
    return found / n_sessions


def _shares(sessions: Iterable[Sequence[Ended]]) -> Share:
    false, covered = [], []
    for ended in sessions:
        false.append(any(end.falsely for end in ended))
        ratios = [arm.ratio for end in ended for arm in end.arms]
        covered += [r is not None and r.decided() is False for r in ratios]
    return Share(float(np.mean(false)), float(np.mean(covered)))


def skewed_prompts(n_prompts: int, n_sessions: int, seed: int = 0) -> float:
    """Coverage of an arm's interval over prompts whose gains are exponential: a few texts gain most."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(n_sessions):
        gains = rng.exponential(0.3, n_prompts)
        plain = {(str(p), b): float(rng.normal(0, CALM)) for p in range(n_prompts) for b in range(3)}
        own = {place: float(gains[int(place[0])] + rng.normal(0, CALM)) for place in plain}
        hits += (
            against(plain, {"a": own}, Design(n_arms=1, stopping=Stopping.FIXED))["a"].decided(math.exp(0.3)) is False
        )
    return hits / n_sessions


# --- fixed repeats ------------------------------------------------------------------------------------------------


class Fixed(NamedTuple):
    """Sessions of fixed repeats."""

    covered: float  # in which all intervals hold the truth
    width: float  # median half width in standard errors of Student's interval for the same blocks


def fixed_sessions(kind: str, n_arms: int, n_blocks: int, n_sessions: int, seed: int = 0) -> Fixed:
    """One look at their end; what all arms have of gains moves no end."""
    logs = speeds(kind, n_sessions, n_arms, RECORDED, seed, n_blocks)
    covered, widths = [], []
    for own in logs[:, 1:] - logs[:, :1]:
        arms = [estimate([*map(float, arm)]) for arm in own]
        found = intervals(arms, Design(n_arms=n_arms, stopping=Stopping.FIXED))
        covered.append(all(not one.decided() for one in found))
        for one, arm in zip(found, own, strict=True):
            alone = mean_over([*np.exp(arm)], ratio=True)
            widths.append(math.log((one.high or 0) / one.value) / math.log((alone.high or 0) / alone.value))
    return Fixed(float(np.mean(covered)), float(np.median(widths)))


# --- all of it ----------------------------------------------------------------------------------------------------


def run() -> Iterator[Result]:
    """Every simulation."""
    for kind in NOISE:
        for m, n in ((1, 3), (4, 3), (4, 5), (15, 10)):
            fixed = fixed_sessions(kind, m, n, 1000)
            name = f"{m} arms, {n} blocks, {kind}: all covered (width {fixed.width:.2f} of Student's)"
            yield percent(name, fixed.covered, at_least=93.5)
        for m, n in ((1, 600), (4, 300), (16, 100)):
            found = null_sessions(kind, m, n)
            yield percent(f"{m} arms that gain nothing, {kind}: falsely decided", found.false, at_most=5.0)
            yield percent(f"{m} arms that gain nothing, {kind}: covered at the stop", found.covered, at_least=95.0)
        found = null_prompts(kind, 4, 100)
        yield percent(f"4 prompts of 4 arms that gain nothing, {kind}: falsely decided", found.false, at_most=5.0)
        found = null_waves(kind, 100)
        yield percent(f"tune, nothing gains, {kind}: falsely decided", found.false, at_most=5.0)
        for surface, false in false_words(kind, 8, 200).items():
            yield percent(f"8 arms that gain nothing, 3 blocks, {kind}: false words of {surface}", false, at_most=5.0)
        yield percent(
            f"compare of one build, 10 blocks, {kind}: a change", comparisons(kind, 200, n_measures=4), at_most=0.5
        )
        found_until = comparisons(kind, 100, None, n_measures=4)
        yield percent(f"compare --until 5% of one build, {kind}: a change", found_until, at_most=0.5)
    for text in (0.0, 0.1):
        found = null_workloads("normal noise", 4, 400, text)
        yield percent(f"4 prompts {text:g} apart, 30 looks: falsely decided", found.false, at_most=5.0)
    power = comparisons("normal noise", 400, change=-math.log(1.05), size=0.016)
    yield percent("compare, 10 blocks, noise 1.6 %: 5 % slower is found", power, at_least=80.0)
    for m in (1, 4):
        for size in (0.002, 0.01, CALM):
            for of in get_args(Processes)[1:]:
                found = null_sessions("normal noise", m, 300, size, processes=of)
                name = f"{m} servers that gain nothing, noise {size:g}, a process {of}: falsely decided"
                yield percent(name, found.false, at_most=5.0)
    for p in (3, 4, 6, 10):
        yield percent(f"{p} prompts with skewed gains: covered", skewed_prompts(p, 2000), at_least=85.0)
