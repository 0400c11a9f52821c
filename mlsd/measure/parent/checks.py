"""Doubts about a run as values: what its trials and the machine around them say against their numbers."""

import datetime
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mlsd.measure.parent.disturbance import DISTURBED_NS
from mlsd.records import Conditions, Environment, QualityWarning, Record, Status, Trial
from mlsd.stats import grouped, t_quantile
from mlsd.trials.decisions import SHORT_DECODE_NS
from mlsd.trials.rates import speed
from mlsd.units import GIB, MIB, NS_PER_MS, counted, format_bytes, format_percent

SPREAD_LIMIT = 0.10  # standard deviation over mean; the limit at which pyperf warns, too
DRIFT_LIMIT = 0.02  # change of the baseline over the run that is worth a word
SWAP_GROWTH_BYTES = 64 * MIB
BACKGROUND_CORES, BACKGROUND_SHARE = 0.5, 0.1
LEAST_LOAD_NS = 500_000_000  # of generations, to judge the load in them
# macOS moves what idles to swap before memory is short, and its services make a load of one to two by themselves.
MAC_SWAP_GROWTH_BYTES, MAC_BACKGROUND_CORES, MAC_BACKGROUND_SHARE = GIB, 2.0, 0.25
WARNINGS = {  # what each code means; the documentation shows it
    "on_battery": "the machine ran on battery, which slows many down",
    "low_power_mode": "the system was set to save power",
    "throttled": "the system reported heat and slowed down",
    "background_load": "other programs kept over half a core and a tenth of all busy (Mac: two and a quarter of all)",
    "swap_growth": f"swap grew by {SWAP_GROWTH_BYTES // MIB} MiB (Mac: 1 GiB) or more: models did not fit in memory",
    "failed_trials": "trials gave no number; they are stored with the reason, and the next run retries them",
    "failed_native_calls": "llama.cpp refused calls, so later results were stale; such trials are invalid",
    "diverged": "the output, or the state behind it, differs from plain decoding by more than rounding explains",
    "unstable_output": "greedy repeats of one case differ, so the backend is not deterministic",
    "disturbed": f"the worker waited over {DISTURBED_NS // 10**9} s and a quarter of the trial; its time is not used",
    "kept_hot": "the machine was hot at every attempt, so the times are kept but marked",
    "invalid_trials": "trials are invalid for another, stated reason",
    "not_timed": "the method ran only to measure acceptance; its times are not a speed",
    "sync_fallback": "the draft could not share the target's memory and kept its own",
    "too_short": f"decoding took less than {SHORT_DECODE_NS // NS_PER_MS} ms, so any other process distorts it",
    "wide_spread": f"repeats of one case scatter by {100 * SPREAD_LIMIT:.0f} % or more (standard deviation over mean)",
    "baseline_drift": f"plain decoding changed by {100 * DRIFT_LIMIT:.0f} % or more over the run",
    "anchor_drift": f"passes timed between blocks changed by {100 * DRIFT_LIMIT:.0f} % or more over the run: heat",
    "passes_not_timed": "`compare` could not time single passes of a build",
    "output_near_tie": "`compare`: the builds' plain outputs differ only by rounding; speeds are comparable",
    "output_diverged": "`compare`: the builds' plain outputs differ like two models'; speeds are not comparable",
    "server": "`server`: the message explains it; see the server page",
}


class Drift(Record, frozen=True, kw_only=True):
    """How much the baseline's speed changed from the first to the last trial, as a fraction; 95 % interval."""

    change: float
    low: float
    high: float
    n_trials: int
    span_s: float

    @property
    def decided(self) -> bool:
        """Whether the interval excludes no change."""
        return not self.low <= 0.0 <= self.high


def check_run(trials: Sequence[Trial], environment: Environment | None = None) -> list[QualityWarning]:
    """Everything that speaks against a run: the machine, trials that do not count, and times that scatter."""
    conditions = [trial.conditions for trial in trials if trial.conditions is not None]
    measured = [trial for trial in trials if trial.status is not Status.FAILED]
    return [*condition_warnings(conditions, environment), *_not_counted(trials, measured), *_scattered(measured)]


# --- the machine ------------------------------------------------------------------------------------------------


def condition_warnings(
    conditions: Sequence[Conditions], environment: Environment | None = None, *, at_rest: bool = False
) -> Iterator[QualityWarning]:
    """Doubts from the machine's state, in the order it was read; `at_rest`: while nothing was measured."""
    if count := sum(bool(c.on_battery) for c in conditions):
        yield _warning("on_battery", f"On battery {_share(count, conditions)}.", "Plug the machine in and run again.")
    if count := sum(bool(c.low_power_mode) for c in conditions):
        sentence = f"Low-power mode was on {_share(count, conditions)}."
        yield _warning("low_power_mode", sentence, "Turn it off in the system's battery settings and run again.")
    if hot := [c.thermal_state for c in conditions if c.thermal_state not in (None, "nominal")]:
        states = ", ".join(sorted({str(state) for state in hot}))
        sentence = f"The machine was throttled {_share(len(hot), conditions)} ({states})."
        yield _warning("throttled", sentence, "Let it cool, raise --cool-down, and compare within blocks only.")
    is_mac = environment is not None and environment.os.startswith("macOS")
    if (others := _others_cores(conditions, at_rest)) is not None:
        cores = environment.logical_cores if environment and environment.logical_cores else 1
        least, share = (MAC_BACKGROUND_CORES, MAC_BACKGROUND_SHARE) if is_mac else (BACKGROUND_CORES, BACKGROUND_SHARE)
        if others > max(least, share * cores):
            busy = f"about {others:.1f} of {cores} logical cores" if others < cores else "every logical core"
            yield _warning("background_load", f"Other programs kept {busy} busy.", "Close them and run again.")
    used = [c.swap_used_bytes for c in conditions if c.swap_used_bytes is not None]
    if used and (grown := max(used) - used[0]) >= (MAC_SWAP_GROWTH_BYTES if is_mac else SWAP_GROWTH_BYTES):
        yield _warning(
            "swap_growth",
            f"Swap grew by {format_bytes(grown)} during the run.",
            "The models do not fit into memory: close other programs, or choose a smaller profile or quantization.",
        )


def _others_cores(conditions: Sequence[Conditions], at_rest: bool) -> float | None:
    """Cores that other programs kept busy on average: the load while nothing is measured, else their processor time.

    None where that is not known, or the time too short for what the system counts in hundredths of a second.
    """
    if at_rest:
        loads = [c.load_1min for c in conditions if c.load_1min is not None]
        return statistics.median(loads) if loads else None
    timed = [c for c in conditions if c.generation_ns and c.processor_ns is not None and c.machine_ns is not None]
    span_ns = sum(c.generation_ns or 0 for c in timed)
    if span_ns < LEAST_LOAD_NS:
        return None
    return sum((c.machine_ns or 0) - (c.processor_ns or 0) for c in timed) / span_ns


# --- the trials -------------------------------------------------------------------------------------------------


Points = dict[str, list[tuple[float, float]]]  # of each case: when in s, ln of a speed


def plain_points(trials: Iterable[Trial]) -> Points:
    """Decode tok/s of the AR arm over the run, by case."""
    points: Points = defaultdict(list)
    for trial in trials:
        tok_s = speed(trial) if trial.arm == "ar" else None
        if tok_s is not None:
            points[trial.case_id].append((_seconds(trial.started_at), math.log(tok_s)))
    return points


def anchor_points(trials: Iterable[Trial]) -> dict[str, Points]:
    """Passes timed between blocks, as -ln of their time, of each target and width: narrow and wide ones apart."""
    points: dict[str, Points] = {}
    seen = set()
    for trial in trials:
        anchors = None if trial.conditions is None else trial.conditions.anchors
        if anchors is None or anchors in seen:  # all trials of a block carry the same
            continue
        seen.add(anchors)
        when, name = _seconds(trial.started_at), f"{anchors.target} {anchors.width}"
        for which, span_ns in (("one position", anchors.one_ns), ("the widest", anchors.wide_ns)):
            if span_ns is not None:
                points.setdefault(which, defaultdict(list))[name].append((when, -math.log(max(span_ns, 1))))
    return points


def drift_of(points: Mapping[str, Sequence[tuple[float, float]]]) -> Drift | None:
    """The trend of (time in s, ln decode tok/s) points of several cases.

    ln(decode tok/s) of trial i of case c is modelled as ``a_c + b t_i``: least squares of both sides centred within
    each case. change = exp(b span) - 1 over the longest span in which one case was measured: a trend of minutes says
    nothing of hours. Interval from Student's t with n - cases - 1 degrees of freedom. None below three of them, or when
    all trials started at once.
    """
    centred = []
    for case in points.values():
        middle_t, middle_y = statistics.fmean(t for t, _ in case), statistics.fmean(y for _, y in case)
        centred += [(t - middle_t, y - middle_y) for t, y in case]
    freedom = len(centred) - len(points) - 1
    spread = sum(t * t for t, _ in centred)
    if freedom < 3 or spread == 0:
        return None
    slope = sum(t * y for t, y in centred) / spread
    residual = sum((y - slope * t) ** 2 for t, y in centred)
    error = math.sqrt(residual / freedom / spread)
    reach = t_quantile(0.975, freedom) * error
    span = max(max(t for t, _ in case) - min(t for t, _ in case) for case in points.values())
    change, low, high = (math.expm1(b * span) for b in (slope, slope - reach, slope + reach))
    return Drift(change=change, low=low, high=high, n_trials=len(centred), span_s=span)


_SETTLE = "Compare within blocks only; let the machine settle, raise --cool-down, and run again."


def _not_counted(trials: Sequence[Trial], measured: Sequence[Trial]) -> Iterator[QualityWarning]:
    """Trials that failed, and of those that were measured the ones that are not what they should be."""
    failed = [t for t in trials if t.status is Status.FAILED]
    errors = Counter((t.reason or "no reason given").splitlines()[0] for t in failed)
    for error, count in errors.most_common():
        advice = "See `mlsd results trials --failed`; run again to retry."
        yield _warning("failed_trials", f"{counted(count, 'trial')} failed: {error}", advice)
    if failing := [t.failed_native_calls for t in measured if t.failed_native_calls]:
        yield _warning(
            "failed_native_calls",
            f"{counted(sum(failing), 'llama.cpp call')} failed in {counted(len(failing), 'trial')}, whose numbers come "
            "from stale results.",
            "Do not use these trials; choose a rollback strategy that `mlsd doctor model MODEL` reports as exact.",
        )
    for case_id, count in Counter(t.case_id for t in measured if _diverged(t)).items():
        sentence = f"In {counted(count, 'trial')} output or state differ from plain decoding by more than noise."
        advice = "The speed of a wrong output means nothing: run `mlsd doctor model` on target and draft."
        yield _warning("diverged", sentence, advice, case_id)
    outputs = dict.fromkeys((t.case_id, t.tokens) for t in measured if t.losslessness and t.tokens)  # greedy
    for case_id, count in Counter(case_id for case_id, _ in outputs).items():
        if count > 1:
            sentence = f"Greedy repeats of one case gave {count} different outputs."
            advice = "The backend is not deterministic here; compare acceptance with care."
            yield _warning("unstable_output", sentence, advice, case_id)
    if n_hot := sum(t.status is Status.HOT for t in measured):
        sentence = f"{counted(n_hot, 'trial')} ran while passes became slower, at every try."
        yield _warning("kept_hot", sentence, "They are kept and marked: compare within blocks only; a fan would help.")
    if reasons := [t.reason for t in measured if t.status is Status.DISTURBED]:
        sentence = f"Times of {counted(len(reasons), 'trial')} are not used: interrupted or starved ({reasons[0]})."
        yield _warning("disturbed", sentence, "Run the same command again to repeat them, with other programs closed.")
    invalid = [t for t in measured if t.status is Status.INVALID and not t.failed_native_calls and not _diverged(t)]
    for reason, count in Counter(t.reason or "no reason given" for t in invalid).most_common():
        sentence = f"{counted(count, 'invalid trial')}: {reason}"
        yield _warning("invalid_trials", sentence, "Leave them out of any comparison.")
    for case_id, count in Counter(t.case_id for t in measured if not t.timed).items():
        sentence = f"{counted(count, 'trial')} drafted inside the target, which measures acceptance, not speed."
        yield _warning("not_timed", sentence, "Measure the same blocks with mode=sync to get a speed.", case_id)
    fell_back = Counter((t.case_id, t.fell_back) for t in measured if t.fell_back is not None)
    for (case_id, why), count in fell_back.items():
        trials_of = counted(count, "trial")
        sentence = f"{trials_of} asked for mode=sync, but the draft kept its own memory: {why.rstrip('.')}."
        advice = "Treat them as mode=own: fewer tokens are accepted than with the target's memory."
        yield _warning("sync_fallback", sentence, advice, case_id)


def _scattered(trials: Sequence[Trial]) -> Iterator[QualityWarning]:
    """Times that are too short, spread over the repeats of a case, or drift over the run."""
    if short := [t.decode_ns for t in trials if t.decode_ns is not None and t.decode_ns < SHORT_DECODE_NS]:
        yield _warning(
            "too_short",
            f"{len(short)} of {len(trials)} trials decoded for less than {SHORT_DECODE_NS // NS_PER_MS} ms "
            f"(the shortest for {min(short) / NS_PER_MS:.1f} ms).",
            "Raise --n-predict: over so short a time any other process shows in the result.",
        )
    timed = ((trial.case_id, own) for trial in trials if (own := speed(trial)) is not None)
    for case_id, repeats in grouped(timed, lambda one: one[0]).items():
        speeds = [own for _, own in repeats]
        spread = statistics.stdev(speeds) / statistics.fmean(speeds) if len(speeds) > 1 else 0.0
        if spread >= SPREAD_LIMIT:
            sentence = f"The {len(speeds)} repeats scatter by {format_percent(spread)} (standard deviation over mean)."
            advice = "Add repeats (--repeats), or find out what disturbs the machine."
            yield _warning("wide_spread", sentence, advice, case_id)
    if trend := _trend_words("Plain decoding", drift_of(plain_points(trials))):
        yield _warning("baseline_drift", trend, _SETTLE)
    for width, points in anchor_points(trials).items():
        if trend := _trend_words(f"Passes over {width}, timed between blocks,", drift_of(points)):
            yield _warning("anchor_drift", trend, _SETTLE)


def _trend_words(what: str, drift: Drift | None) -> str | None:
    if drift is None or not drift.decided or abs(drift.change) < DRIFT_LIMIT:
        return None
    return (
        f"{what} changed in speed by {format_percent(drift.change)} over the run "
        f"(95 % interval {format_percent(drift.low)} to {format_percent(drift.high)}, {drift.n_trials} times)."
    )


# --- inside -----------------------------------------------------------------------------------------------------


def _warning(code: str, message: str, advice: str, case_id: str | None = None) -> QualityWarning:
    return QualityWarning(code=code, message=message, advice=advice, case_id=case_id)


def _diverged(trial: Trial) -> bool:
    return trial.losslessness is not None and trial.losslessness.verdict == "diverged"


def _share(count: int, readings: Sequence[Conditions]) -> str:
    return "all the time" if count == len(readings) else f"in {count} of {len(readings)} readings"


def _seconds(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment).timestamp()
