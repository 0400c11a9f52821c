"""What a study database holds of the machine: T(k) of models, experts and bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mlsd.analysis.experts.coverage import Mixture, coverage_table, mixture
from mlsd.analysis.fits.bandwidth import BandwidthVerdict, BytesLine, bytes_lines, compare
from mlsd.analysis.fits.calibration import PassTime, TargetCurve, median_interval, pass_times, target_curve
from mlsd.analysis.predict.evidence import Evidence, is_curve, newest, newest_passes
from mlsd.analysis.results.comparability import Chosen
from mlsd.analysis.results.widths import Certificate, certificates, widths_words
from mlsd.analysis.study.traffic import Pass, Roof, compute_roof, timed_passes
from mlsd.errors import AnalysisError, InputError, UnsupportedError
from mlsd.records import Case, DrafterSpec, Record
from mlsd.stats import Interval, grouped
from mlsd.store.rows import CalibrationPoint, Coverage, ExpertLoad, PassShares, Run, StreamRead, TimedPass
from mlsd.store.store import Store
from mlsd.units import quoted

if TYPE_CHECKING:
    from mlsd.measure.parent.calibration import CalibrationResult


class Bandwidth(Record, frozen=True, kw_only=True):
    """The newest measurement of what the memory gives. GB/s are 10^9 bytes a second."""

    stream: dict[int, Interval]  # a plain read, by threads
    n_threads: int  # of the passes
    passes: tuple[TimedPass, ...]
    lines: tuple[BytesLine, ...]  # fastest first
    verdict: BandwidthVerdict
    measured_at: str

    @property
    def best_gb_s(self) -> float:
        """The fastest of plain reads, on however many threads, and of llama.cpp's fastest quantization."""
        return max(self.lines[0].bandwidth_gb_s.value, *(speed.value for speed in self.stream.values()))

    @property
    def reads(self) -> list[Pass]:
        """The passes of known bytes, then plain reads."""
        timed = [(one.quant, one.n_bytes, one.ms) for one in self.passes]
        reads = [
            Pass(model=quant, source="known bytes", gb_s=n / ms / 1e6, ms=Interval(value=ms), read_bytes=n)
            for quant, n, ms in timed
        ]
        plain = {f"numpy, {n} threads": speed.value for n, speed in self.stream.items()}
        return reads + [Pass(model=name, source="plain read", gb_s=gb_s) for name, gb_s in plain.items()]


def bandwidth_findings(
    reads: Sequence[StreamRead], passes: Sequence[TimedPass], n_threads: int, measured_at: str
) -> Bandwidth:
    """What plain reads and timed passes on so many threads say together."""
    lines = bytes_lines(passes)
    speeds = {n: [r.gb_s for r in own] for n, own in sorted(grouped(reads, lambda r: r.n_threads).items())}
    return Bandwidth(
        stream={n: median_interval(values) for n, values in speeds.items()},
        n_threads=n_threads,
        passes=tuple(passes),
        lines=tuple(lines),
        verdict=compare(lines, speeds[n_threads]),
        measured_at=measured_at,
    )


@dataclass(frozen=True)
class Machine:
    """What calibrations and bandwidth runs of one machine and build left in a database."""

    key: str  # of the environment
    source: str  # path of the database, as hints name it
    evidence: Evidence  # of this machine only
    timed: dict[str, tuple[CalibrationPoint, ...]]  # passes of every model with a curve T(k), by model key
    loads: dict[str, tuple[ExpertLoad, ...]]  # by model key
    reads: tuple[StreamRead, ...]  # of the newest bandwidth run
    passes: tuple[TimedPass, ...]
    bandwidth_run: Run | None
    shares: dict[tuple[str, str | None], tuple[PassShares, ...]]  # profiled passes by model key and drafting key

    def __bool__(self) -> bool:
        return bool(self.evidence.passes or self.evidence.coverage or self.passes or self.shares)

    @property
    def width_sentences(self) -> list[str]:
        """What was shown of passes over several rows, a sentence for each model."""
        return [f"Of {name}, {widths_words(certificate)}." for name, certificate in self.certificates.items()]

    @property
    def certificates(self) -> dict[str, Certificate]:
        """What was shown of each width, by the name of the model."""
        widths = self.evidence.widths.items()
        return {self.name_of(model): shown for (machine, model), shown in widths if machine == self.key}

    def draft_step(self, case: Case) -> PassShares | None:
        """The profiled step of the network that drafts in a case; None where none was profiled."""
        draft, target = case.drafter.draft, case.target
        if case.source != "engine":  # whose methods have names of their own
            return None
        if draft is not None:
            profiled = self.shares.get((draft.key, None), ())
        else:
            profiled = self.shares.get((target.key, part_key(case.drafter)), ())
        return next((shares for shares in profiled if shares.rows == 1), None)

    @cached_property
    def curves(self) -> dict[str, TargetCurve]:
        """T(k) of every model whose T(1) was timed, by its name. Raises AnalysisError when there is none."""
        if not self.timed:
            raise AnalysisError(
                "No passes were timed.", hint=f"Time some: mlsd calibrate MODEL --db {quoted(self.source)}."
            )
        return {self.name_of(key): target_curve(points) for key, points in self.timed.items()}

    @cached_property
    def mixtures(self) -> tuple[Mixture, ...]:
        """Every mixture whose experts were counted. Raises AnalysisError when there is none."""
        mixtures = []
        for key, coverage in self.evidence.coverage.items():
            facts = self.evidence.models.get(key)
            if facts is not None and any(row.source == "text" for row in coverage):
                table = coverage_table(coverage, facts, self.loads.get(key, ()))
                mixtures.append(mixture(self.name_of(key), table, facts, self.timed.get(key, ())))
        if not mixtures:
            some = next((facts.ref.id for facts in self.evidence.models.values() if facts.n_experts), "tiny-moe")
            raise AnalysisError(
                "No expert of a mixture was counted.",
                hint=f"Count them: mlsd calibrate {quoted(some)} --db {quoted(self.source)}.",
            )
        return tuple(mixtures)

    @cached_property
    def bandwidth(self) -> Bandwidth:
        """Lines of bytes against time. Raises AnalysisError when none was measured."""
        run = self.bandwidth_run
        n_threads = None if run is None else run.plan.get("n_threads")
        if not self.passes or run is None or n_threads is None:
            raise AnalysisError(
                "Memory bandwidth was not measured.",
                hint=f"Measure it: mlsd calibrate memory --db {quoted(self.source)}.",
            )
        return bandwidth_findings(self.reads, self.passes, n_threads, run.started_at)

    @cached_property
    def timed_passes(self) -> list[Pass]:
        """Every timed pass whose bytes are known, by model and k."""
        mixtures = {one.name: one for one in (self.mixtures if self.evidence.coverage else ())}
        passes: list[Pass] = []
        for key in self.timed:
            name, facts = self.name_of(key), self.evidence.models.get(key)
            rows = mixtures[name].coverage.rows if name in mixtures else ()
            if facts is not None:
                passes += timed_passes(name, facts, self.curves[name], {row.window: row for row in rows})
        return passes

    @cached_property
    def roof(self) -> Roof:
        """What memory and arithmetic gave here at most. Raises AnalysisError where no bandwidth was measured."""
        memory, run = self.bandwidth, self.bandwidth_run
        stated = None if run is None else run.environment.peak_bandwidth_gb_s
        return Roof(
            name="this machine",
            gb_s=memory.best_gb_s,
            gflop_s=compute_roof(self.timed_passes),
            stated_gb_s=stated,
            source=f"measured: {memory.best_gb_s:.1f} GB/s at most, and the fastest wide pass, which is no limit yet",
        )

    def name_of(self, key: str) -> str:
        """The model's id, with the start of its key where two files bear one id."""
        facts = self.evidence.models.get(key)
        if facts is None:
            return key[:12]
        same = [other for other in self.evidence.models.values() if other.ref.id == facts.ref.id]
        return facts.ref.id if len(same) == 1 else f"{facts.ref.id} [{key[:6]}]"


def read_machine(store: Store, chosen: Chosen) -> Machine:
    """Everything of the chosen machine; of each kind the newest run."""
    key, runs = chosen.environment_key, {run.id: run for run in chosen.runs}
    evidence = Evidence(
        passes={
            place: points
            for place, points in newest_passes(store, chosen.other_calibrations).items()
            if place[0] == key
        },
        coverage=newest(store.figures(Coverage), lambda row: row.model_key, runs),
        widths=certificates(store),
        models=store.models(),
    )
    timed = [(run_id, p) for run_id, p in store.figures(TimedPass) if run_id in runs]
    last = max((run_id for run_id, _ in timed), default=None)
    return Machine(
        key=key,
        source=str(store.path),
        evidence=evidence,
        timed={key: points for (_, key), points in evidence.passes.items() if is_curve(points)},
        loads=newest(store.figures(ExpertLoad), lambda load: load.model_key, runs),
        reads=tuple(r for run_id, r in store.figures(StreamRead) if run_id == last),
        passes=tuple(p for run_id, p in timed if run_id == last),
        bandwidth_run=None if last is None else runs[last],
        shares=newest(store.figures(PassShares), lambda one: (one.model_key, one.drafting_key), runs),
    )


class CalibrationFindings(Record, frozen=True, kw_only=True):
    """What one calibration says."""

    curves: tuple[TargetCurve, ...]  # by depth
    costs: dict[str, list[PassTime]]  # everything timed but T(k), of "target" and "draft"
    mixture: Mixture | None  # what verification saves on experts; None where none were counted
    not_timed: dict[int, tuple[int, ...]]  # k wanted and not reached, by depth


def calibration_findings(result: CalibrationResult, rows: Sequence[int], depths: Sequence[int]) -> CalibrationFindings:
    """What a calibration of these k and depths says."""
    points, facts = {"target": result.target_points, "draft": result.draft_points}, result.models[0]
    timed = {p.depth for p in result.target_points if p.kind == "target_pass" and p.rows == 1}
    wanted = sorted(set(depths))
    curves = tuple(target_curve(result.target_points, depth) for depth in wanted if depth in timed)
    table = coverage_table(result.coverage, facts, result.loads) if result.coverage else None
    return CalibrationFindings(
        curves=curves,
        costs={name: [p for p in pass_times(own) if p.kind != "target_pass"] for name, own in points.items()},
        mixture=None if table is None else mixture(facts.ref.id, table, facts, result.target_points),
        not_timed={
            depth: tuple(k for k in rows if not any(k in curve.per_row for curve in curves if curve.depth == depth))
            for depth in wanted
        },
    )


def part_key(spec: DrafterSpec) -> str | None:
    """The drafting key of what drafts; None of a method or an option of another release."""
    from mlsd.drafters import drafting_key  # every method with it, which listing trials does not need

    try:
        return drafting_key(spec)
    except (InputError, UnsupportedError):
        return None
