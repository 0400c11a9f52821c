"""The sessions of `mlsd compare` that a database holds, as series for the gate."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from mlsd.analysis.compare.gate import MARGIN, Finding, Measure, Series, judge
from mlsd.errors import AnalysisError
from mlsd.records import EngineOptions, Environment, Record
from mlsd.stats import grouped
from mlsd.store.rows import COMPARE, CONTROL, OUTPUT, CalibrationPoint, Run, TrialFilter
from mlsd.store.store import Store
from mlsd.trials.intervals import Stopping
from mlsd.trials.results import Measured, SessionPlan, arm_results, prefill_speed

Values = dict[Measure, float]

_ONE_BLOCK = SessionPlan(pool="all")
_PASS = "T("  # begins the name of a pass's time
_NAMED = 3  # passes that a sentence takes


class ComparedSide(Record, frozen=True, kw_only=True):
    """One side of a comparison, in words for a reader."""

    role: str
    build: str  # as it was named
    run_id: int | None
    environment: Environment
    settings: str  # target, sampling and engine options, where they are not the other side's


class Comparison(Record, frozen=True, kw_only=True):
    """Two sides and what the gate says of every measure."""

    session: str
    a: ComparedSide
    b: ComparedSide
    n_blocks: int
    findings: tuple[Finding, ...]
    outputs: tuple[str, ...]  # what of B's plain output is not A's
    changed_model: bool  # rounding explains it not everywhere
    invalid: tuple[str, ...]  # why trials count nowhere

    @property
    def answer(self) -> str:
        changed = [f for f in self.findings if f.verdict not in ("same", "not decided yet")]
        clauses = _changes(changed, n_passes=sum(f.measure.name.startswith(_PASS) for f in self.findings))
        open_ = sum(f.verdict == "not decided yet" for f in self.findings)
        same = len(self.findings) - len(changed) - open_
        clauses += [f"{same} of {len(self.findings)} measures are the same"] if same else []
        clauses += [f"{open_} not decided yet"] if open_ else []
        output = "The plain output is the same."
        if self.outputs:
            output = "The plain output is another model's." if self.changed_model else "The plain outputs differ."
        return f"B against A: {'; '.join(clauses) or 'nothing could be measured'}. {output}"

    def slower(self, share: float) -> tuple[Finding, ...]:
        """What is decided to be slower, and by so much or more as far as is known."""
        worse = [(f, f.change.value) for f in self.findings if f.verdict == "slower" and f.change is not None]
        return tuple(f for f, b in worse if 1.0 - (1.0 / b if f.measure.sense == "time" else b) >= share)


def _changes(changed: Sequence[Finding], n_passes: int) -> list[str]:
    """What changed, largest first; many passes of like verdict in one clause."""
    passes = [f for f in changed if f.measure.name.startswith(_PASS)]
    together = passes if len(passes) > _NAMED else []
    alone = sorted((f for f in changed if f not in together), key=lambda f: -abs(f.percent or 0.0))
    clauses = [f"{f.measure.name} is {f.sentence}" for f in alone]
    for verdict, group in grouped(together, lambda f: f.verdict).items():
        sizes = [abs(f.percent or 0.0) for f in group]
        clauses.append(f"{len(group)} of {n_passes} T(k) are {verdict} by {min(sizes):.1f} to {max(sizes):.1f} %")
    return clauses


def sessions(store: Store, named: str | None = None, margin: float = MARGIN) -> tuple[Comparison, ...]:
    """Every session of `mlsd compare` of two builds, oldest first; or the one of that name."""
    runs: dict[str, dict[str, Run]] = {}
    for run in store.runs():
        name = str(run.plan.get("session"))
        if run.plan.get("command") == COMPARE and named in (None, name):
            runs.setdefault(name, {})[str(run.plan.get("role"))] = run
    # A run that cannot be read leaves one side.
    compared = {name: roles for name, roles in runs.items() if {"0", "1"} <= roles.keys() <= {"0", "1", CONTROL}}
    points = grouped(store.figures(CalibrationPoint) if compared else (), lambda point: point[0])
    timed = {run_id: [point for _, point in of_run] for run_id, of_run in points.items()}
    return tuple(_comparison(store, name, roles, timed, margin) for name, roles in compared.items())


def newest(store: Store, session: str | None = None, margin: float = MARGIN) -> Comparison:
    """The session of that name, else the latest. Raises: AnalysisError without one."""
    stored = sessions(store, session, margin)
    if not stored:
        raise AnalysisError(f"{store.path} contains no comparison.", hint="Run one: mlsd compare A B TARGET.")
    return stored[-1]


def _comparison(
    store: Store, name: str, runs: Mapping[str, Run], points: Mapping[int, Sequence[CalibrationPoint]], margin: float
) -> Comparison:
    trials = {role: list(store.trials(TrialFilter(run_id=run.id), rounds=False)) for role, run in runs.items()}
    settings = {role: _settings_of(of_role) for role, of_role in trials.items()}
    differ = any(setting not in ("", settings["0"]) for setting in settings.values())
    a, b = (
        ComparedSide(
            role=role,
            build=str(runs[role].plan.get("build")),
            run_id=runs[role].id,
            environment=runs[role].environment,
            settings=settings[role] if differ else "",
        )
        for role in ("0", "1")
    )
    blocks = {role: _blocks(trials[role], points.get(run.id, ())) for role, run in runs.items()}
    series = _series(blocks["0"], blocks["1"], blocks.get(CONTROL, {}))
    outputs = [w for w in store.warnings() if w.run_id == runs["1"].id and w.code.startswith(OUTPUT)]
    invalid = [m.trial for role in ("0", "1", CONTROL) for m in trials.get(role, ()) if not m.trial.valid]
    fixed = all(run.plan.get("looks") == "end" for run in runs.values())
    return Comparison(
        session=name,
        a=a,
        b=b,
        n_blocks=max((len(values.a) for values in series), default=0),
        findings=judge(series, margin, Stopping.FIXED if fixed else Stopping.SEQUENTIAL),
        outputs=tuple(warning.message for warning in outputs),
        changed_model=any(warning.code == f"{OUTPUT}diverged" for warning in outputs),
        invalid=tuple(dict.fromkeys(trial.reason or "no reason given" for trial in invalid)),
    )


def _series(a: Mapping[int, Values], b: Mapping[int, Values], control: Mapping[int, Values]) -> tuple[Series, ...]:
    """Every measure in the blocks that hold both sides; the control where it is in all."""
    shared = sorted(a.keys() & b.keys())
    has_control = bool(shared) and all(block in control for block in shared)
    return tuple(
        Series(
            measure=measure,
            a=tuple(a[block].get(measure) for block in shared),
            b=tuple(b[block].get(measure) for block in shared),
            control=tuple(control[block].get(measure) for block in shared) if has_control else (),
        )
        for measure in sorted({m for block in shared for m in b[block]}, key=_order)
        if any(measure in a[block] for block in shared)
    )


def _settings_of(trials: Sequence[Measured]) -> str:
    case = next((m.case for m in trials if m.case.arm == "ar"), None)
    if case is None:
        return ""
    usual = msgspec.structs.asdict(EngineOptions())
    changed = [(name, value) for name, value in msgspec.structs.asdict(case.engine).items() if value != usual[name]]
    return ", ".join([case.target.id, *(f"{name.replace('_', ' ')} {value}" for name, value in changed)])


def _order(measure: Measure) -> tuple[object, ...]:
    """Plain decoding first, then the arms, single passes, and what they cost beside."""
    names = ("plain", "prefill", "", "T", "checkpoint", "rollback", "memory")
    head = measure.name.split("(")[0] if measure.sense == "time" else measure.name
    numbers = tuple(int(n) for n in re.findall(r"\d+", measure.name))
    arm = re.sub(r"\d+", "", measure.name.split(":")[0])
    return (names.index(head if head in names else ""), arm, numbers, measure.name)


# --- values of a block --------------------------------------------------------------------------------------------


def _blocks(trials: Sequence[Measured], points: Iterable[CalibrationPoint] = ()) -> dict[int, Values]:
    """What each block measured. A block in which an arm lacks a valid trial of some prompt has no value of that arm."""
    by_arm = grouped(trials, lambda m: _ONE_BLOCK.name(m.case))
    passes: dict[int, Values] = defaultdict(dict)
    for point in sorted(points, key=lambda point: point.rows):  # of rollbacks the widest stays
        if measure := _pass_measure(point):
            passes[point.repeat][measure] = point.span_ns / 1e6
    levels = {}
    for block in dict.fromkeys(m.trial.repeat for m in trials):
        whole = list[Measured]()
        for arm in by_arm.values():
            repeat = [m for m in arm if m.trial.repeat == block]
            valid = {m.case.prompt.key for m in repeat if m.trial.valid and m.trial.decode_ns}
            whole += repeat if valid == {m.case.prompt.key for m in arm} else []
        levels[block] = {**_values(whole), **passes[block]}
    return levels


def _values(trials: Sequence[Measured]) -> Values:
    """Of the arms of a block; speeds and speedups are geometric means over prompts."""
    values: Values = {}
    for arm in arm_results(trials, _ONE_BLOCK):
        name, speedup = arm.arm.setting, None if arm.ratio is None else arm.ratio.value
        levels = {Measure(name=name, unit="tok/s", sense="rate"): arm.tok_s}
        if arm.is_plain:
            levels[Measure(name="prefill", unit="tok/s", sense="rate")] = prefill_speed(arm.trials)
        else:
            levels |= {_level(f"{name}: speedup", "x"): speedup, _level(f"{name}: MGL", "tokens"): arm.mgl}
            levels[_level(f"{name}: acceptance", "", is_ratio=False)] = arm.acceptance_rate
        values |= {measure: value for measure, value in levels.items() if value is not None}
    if peaks := [m.trial.peak_rss_bytes for m in trials if m.trial.peak_rss_bytes]:
        values[_level("memory", "MiB")] = max(peaks) / 2**20
    return values


def _level(name: str, unit: str, *, is_ratio: bool = True) -> Measure:
    return Measure(name=name, unit=unit, sense="level", is_ratio=is_ratio, counts=False)


def _pass_measure(point: CalibrationPoint) -> Measure | None:
    if point.kind == "target_pass":
        return Measure(name=f"{_PASS}{point.rows})", unit="ms", sense="time")
    of_memory = point.kind in ("rollback", "checkpoint")
    return Measure(name=point.kind, unit="ms", sense="time", counts=False) if of_memory else None
