"""How long a plan will take and what it needs, before anything runs. Pure; every estimate names its source."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from mlsd.hardware import apple_passes as passes
from mlsd.hardware.apple_passes import AppleChip, Runtime, Work
from mlsd.planning.job import Job
from mlsd.records import NO_DRAFTER, Case, ModelRef, Record, Status, Trial
from mlsd.trials.rates import speed
from mlsd.trials.stages import PREPARATION, StageTime, wall_ns
from mlsd.units import NS_PER_S, format_duration

RateSource = Literal["results", "public rows"]

_HEAT_PASSES = 9  # of a target behind a block, over many positions

# Of getting ready, where no earlier run of these arms tells: a process starts, a file is read, a rollback is checked.
_START_S, _READ_BYTES_S, _PASS_BYTES_S, _CHECK_PASSES = 2.0, 1e9, 8e9, 64


class Rate(Record, frozen=True, kw_only=True):
    """How fast a case is expected to run."""

    decode_tok_s: float
    prefill_ns: float | None = None  # of the whole prompt; None: not known, and left out of the time
    source: RateSource
    faster: float = 1.0  # the ends of its range, as factors of the time
    slower: float = 1.0


TokS = Callable[[Case], Rate | None]


class TimeEstimate(Record, frozen=True, kw_only=True):
    """The time of many trials; the sum holds only those whose rate is known."""

    seconds: float | None  # None when no rate is known
    low_seconds: float | None  # the ends of the range; equal where everything was measured
    high_seconds: float | None
    n_trials: int
    n_unknown: int
    sources: dict[RateSource, int]  # source -> trials whose rate comes from it

    @property
    def text(self) -> str:
        """The time, and the range that it lies in where it has one: ``3 h 20 min (2 h 40 min to 4 h 10 min)``."""
        low, high = self.low_seconds, self.high_seconds
        middle = format_duration(self.seconds)
        if low is None or high is None or high < 1.05 * low:
            return middle
        return f"{middle} ({format_duration(low)} to {format_duration(high)})"


def estimate_time(
    loads: Iterable[Job], tok_s: TokS, *, warmed: bool = False, rest_s: float | None = 0.0
) -> TimeEstimate:
    """Sum over all trials: prefill, then n_predict - 1 tokens at the case's rate; and what lies between blocks.

    `rest_s`: seconds between two blocks; None: passes that feel the heat, without the rests. `warmed`: every arm of a
    load begins with a whole trial that does not count.
    """
    sums, sources, n_trials = [0.0, 0.0, 0.0], Counter[RateSource](), 0
    rates: dict[str, Rate | None] = {}
    for load in loads:
        warm: set[str] = set()
        for trial in load.slots:
            n_trials += 1
            if trial.case_id not in rates:
                rates[trial.case_id] = tok_s(trial.case)
            rate = rates[trial.case_id]
            if rate is None:
                continue
            sources[rate.source] += 1
            trial_s = (trial.case.n_predict - 1) / rate.decode_tok_s + (rate.prefill_ns or 0.0) / NS_PER_S
            arm = _arm_key(trial.case)
            times = 2 if warmed and arm not in warm else 1
            warm.add(arm)
            heating = _HEAT_PASSES / rate.decode_tok_s if rest_s is None and trial.case.arm == "ar" else 0.0
            ends = (rate.faster, 1.0, rate.slower)
            sums = [total + (times * trial_s + heating) * end for total, end in zip(sums, ends, strict=True)]
        if warm and rest_s:
            sums = [total + rest_s * (len(load.blocks) - 1) for total in sums]
    n_known = sum(sources.values())
    low, middle, high = sums if n_known else (None, None, None)
    return TimeEstimate(
        seconds=middle,
        low_seconds=low,
        high_seconds=high,
        n_trials=n_trials,
        n_unknown=n_trials - n_known,
        sources=dict(sources),
    )


def preparation_s(
    files: Iterable[ModelRef], n_checked: int = 0, earlier: Iterable[Iterable[StageTime]] = ()
) -> float | None:
    """Seconds until measuring these files begins, roughly: as the latest of `earlier` runs took, else by their sizes.

    ``2 s + bytes / 1 GB/s + 64 passes of each of `n_checked` speculative arms at 8 GB/s``; None where a size is not
    known.
    """
    spans_s = [wall_ns(stages, PREPARATION) / NS_PER_S for stages in earlier]
    if spans_s:
        return spans_s[-1]
    sizes = [ref.n_bytes for ref in files]
    if None in sizes:
        return None
    n_bytes = sum(size or 0 for size in sizes)
    return _START_S + n_bytes / _READ_BYTES_S + n_checked * _CHECK_PASSES * n_bytes / _PASS_BYTES_S


def load_preparation_s(load: Job, earlier: Iterable[Iterable[StageTime]] = ()) -> float | None:
    """`preparation_s` of a load, each of whose speculative arms is checked."""
    return preparation_s(load.refs, sum(case.arm == "sd" for case in load.cases.values()), earlier)


def preparation_line(doing: str, seconds: float | None, then: str = "then blocks and any budget begin") -> str:
    """What is said of getting ready before it begins."""
    return f"{doing}: {'how long is not known' if seconds is None else f'about {format_duration(seconds)}'}, {then}."


def rates_from_results(trials: Iterable[Trial], cases: Mapping[str, Case]) -> TokS:
    """Medians over finished trials: of the same case, else of the same arm of the same models on any prompt."""
    exact: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    by_arm: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for trial in trials:
        case, rate = cases.get(trial.case_id), speed(trial)
        if case is None or trial.status is Status.FAILED or rate is None:
            continue
        exact[trial.case_id].append((rate, trial.prefill_ns))
        by_arm[_arm_key(case)].append((rate, None))

    def tok_s(case: Case) -> Rate | None:
        rates = exact.get(case.id) or by_arm.get(_arm_key(case))
        if not rates:
            return None
        prefills = [prefill for _, prefill in rates if prefill is not None]
        return Rate(
            decode_tok_s=statistics.median(rate for rate, _ in rates),
            prefill_ns=statistics.median(prefills) if prefills else None,
            source="results",
        )

    return tok_s


def _arm_key(case: Case) -> str:
    drafter = case.drafter
    options, draft = sorted(drafter.options.items()), drafter.draft.key if drafter.draft else None
    return repr((case.target.key, drafter.name, options, draft, case.gamma, case.sampling.greedy))


def rates_from_chips(
    works: Mapping[str, Work | None],
    chips: Sequence[AppleChip],
    n_prompt: Callable[[Case], int],
    *,
    scale: float | None = None,
    build: int = 0,
) -> TokS:
    """From what public rows show of a chip, or of several that it may be, with the kernels of a build of llama.cpp.

    `works` by model id. `scale`: measured over predicted time of plain decoding of other models on this machine.
    """

    def tok_s(case: Case) -> Rate | None:
        target = works.get(case.target.id)
        draft = works.get(case.drafter.draft.id) if case.drafter.draft else None
        if target is None or not chips or (case.drafter.draft is not None and draft is None):
            return None
        on = [Runtime(chip=chip, build=build) for chip in chips]
        trials = [_trial_s(case, target, draft, runtime, n_prompt(case), scale) for runtime in on]
        shortest, longest = min(trial[1] for trial in trials), max(trial[1] for trial in trials)
        middle = math.sqrt(shortest * longest)
        faster = passes.joint(shortest / middle, min(trial[0] / trial[1] for trial in trials))
        slower = passes.joint(longest / middle, max(trial[2] / trial[1] for trial in trials))
        return Rate(decode_tok_s=(case.n_predict - 1) / middle, source="public rows", faster=faster, slower=slower)

    return tok_s


def _trial_s(
    case: Case, target: Work, draft: Work | None, on: Runtime, n_prompt: int, scale: float | None
) -> tuple[float, float, float]:
    """Seconds of a whole trial on one chip: at best, in the middle, at worst."""
    factor = scale or 1.0
    plain, fill = factor * on.plain_ms(target), factor * on.prefill_ms(target)
    spread = on.spread(target) if scale is None else math.sqrt(on.spread(target))
    n_filled, n_decoded = n_prompt, case.n_predict - 1
    decoding, faster, slower = n_decoded * plain, 1 / spread, spread
    if case.drafter.name != NO_DRAFTER:
        n_filled += case.n_predict
        step = draft if draft is not None else passes.head_work(target, case.drafter.name)
        length = on.round_length(target, case.drafter.name, case.gamma, step=step)
        tokens = [sum(alpha**i for i in range(case.gamma + 1)) for alpha in passes.acceptance_of(case.drafter.name)]
        least, middle, most = on.speedups(length, target, case.gamma, tokens)
        decoding /= middle
        faster, slower = passes.joint(middle / most, faster), passes.joint(middle / least, slower)
    filling, wider = n_filled * fill, on.constants.prefill_spread
    return (
        (decoding * faster + filling / wider) / 1e3,
        (decoding + filling) / 1e3,
        (decoding * slower + filling * wider) / 1e3,
    )
