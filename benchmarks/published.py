"""What predictions for Apple chips are worth: fitted to half of the public sources, asked about the other half's rows.

Prints every row with its predicted range; With MLSD_WRITE_PASSES=1 in the environment it fits all
sources and writes mlsd/assets/passes.toml.
"""

from __future__ import annotations

import functools
import math
import os
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from scipy.optimize import least_squares

from benchmarks.harness import Result
from mlsd.analysis.advise.answer import Question, answer
from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.mac_rows import MacRow, mac_passes, mac_rows
from mlsd.analysis.fits.costmodel import iid_alpha
from mlsd.analysis.predict.arms import Known
from mlsd.errors import InputError
from mlsd.gguf_tools.shapes import FULL
from mlsd.hardware.chips import CHIPS
from mlsd.planning import passes
from mlsd.planning.known_shapes import shape_facts, shape_of
from mlsd.planning.passes import AppleChip, Constants, Engine, Work
from mlsd.records import NO_DRAFTER

ASSET = Path(__file__).parent.parent / "mlsd" / "assets" / "passes.toml"
LEVEL = 0.9
_HALVINGS = 6  # of the sources, at random; both halves are tested
_FOLDS = 6  # of a half's sources, to calibrate intervals
_GENERATIONS = (1, 2, 3, 4, 5)
# What is thought of each constant before any row is seen, and how firmly: a value and the deviation of its logarithm.
_PLAIN: dict[str, tuple[float, float]] = {
    "share": (0.89, 0.08),
    "expert_share": (0.5, 0.5),
    "layer_ms": (0.1, 0.6),
    "mlx": (1.0, 0.4),
    "recurrent": (1.65, 0.5),
    "recurrent_mlx": (1.0, 0.4),
    "mixture": (1.35, 0.5),
    "mixture_mlx": (1.0, 0.4),
    "ultra": (1.35, 0.4),
    "ultra_mlx": (1.0, 0.3),
    "first_mlx": (1.0, 0.3),
    "unpack_ms": (0.18, 1.5),
    "width": (math.e**0.01, 0.3),  # an exponent, kept as a logarithm like the rest
    "M1": (1.2, 0.3),
    "M2": (1.1, 0.3),
    "M4": (0.9, 0.3),
    "M5": (0.8, 0.3),
}
_ROWS: dict[str, tuple[float, float]] = {
    "base": (20.0, 0.7),
    "llama.cpp": (1.6, 0.5),
    "M1": (3.5, 0.5),
    "M2": (1.7, 0.5),
    "M4": (1.0, 0.4),
    "M5": (0.5, 0.4),
    "free_rows": (3.0, 0.4),
    "mixture": (30.0, 0.5),
    "round_ms": (1.0, 0.7),
    "round_llama.cpp": (0.5, 0.4),
}


@dataclass(frozen=True)
class Plain:
    """One row of plain decoding."""

    source: str
    label: str
    work: Work
    chip: AppleChip
    engine: Engine
    tok_s: float
    prefill_tok_s: float | None = None

    def ms(self, c: Constants) -> float:
        """T(1) as predicted."""
        return passes.plain_ms(self.work, self.chip, self.engine, c)


@dataclass(frozen=True)
class Rounds:
    """One row of speculation, or one wide pass: how long a round is in units of T(1)."""

    source: str
    label: str
    work: Work
    chip: AppleChip
    engine: Engine
    gamma: int
    method: str  # "" for a bare pass
    t_one_ms: float
    ratio: float | None = None  # measured: T(k) / T(1), or MGL / speedup
    mgl: float | None = None
    speedup: float | None = None
    step: Work | None = None  # a drafting step

    def length(self, c: Constants, rows_factor: float = 1.0) -> float:
        """T_round / T(1)."""
        rows = passes.rows_ms(self.work, self.chip, self.gamma, self.engine, at=c) * rows_factor
        wide = 1 + rows / self.t_one_ms
        if not self.method:
            return wide
        step = 0.0 if self.step is None else passes.plain_ms(self.step, self.chip, self.engine, c)
        n_steps = 1 if passes.drafts_a_block(self.method) else self.gamma
        return wide + (n_steps * step + (1 + n_steps) * c.round_ms[self.engine]) / self.t_one_ms

    def range(self, c: Constants) -> tuple[float, float]:
        """Both ends of T_round / T(1)."""
        rows, whole = passes.rows_spread(self.gamma, c)
        return self.length(c, 1 / rows) / whole, self.length(c, rows) * whole


Row = TypeVar("Row", Plain, Rounds)


# --- rows -----------------------------------------------------------------------------------------------------------


@functools.cache
def work_named(target: str, bits: float | None = None) -> Work | None:
    """What a target asks, by its name as sources write it."""
    text = "-".join(target.lower().split()).replace("-bit", "bit")
    name, quant = shape_of(text)
    if name is None or (quant is None and bits is None):
        return None
    try:
        facts = shape_facts(text, FULL[name], quant or "Q8_0")
        scale = 1.0 if quant else (bits or 8.5) / 8.5
    except InputError:  # blocks that do not divide its rows: as many bits from Q8_0
        facts, scale = shape_facts(text, FULL[name], "Q8_0"), (bits or 6.5) / 8.5
    scaled = {key: round(scale * (getattr(facts, key) or 0)) for key in ("weight_bytes", "active_bytes")}
    return passes.work_of(msgspec.structs.replace(facts, **scaled))


def plain_rows() -> list[Plain]:
    """Every row of plain decoding that can be asked; one of each source, machine and model."""
    found: dict[tuple[str, ...], Plain] = {}
    for table in published.load("mac-plain").tables:
        for cells in table.cells:
            if "tok_s" in cells:
                prefill = cells.get("prefill_tok_s")
                _add(found, table.source, cells, float(cells["tok_s"]), None, float(prefill) if prefill else None)
    for row in mac_rows():
        if row.known_wrong or row.plain_tok_s is None or row.chip is None:
            continue
        cells = {"chip": row.chip, "engine": row.engine or "", "target": _target(row)}
        _add(found, row.source, cells, row.plain_tok_s, row.bits, None)
    return list(found.values())


def _target(row: MacRow) -> str:
    return f"{row.family}-{row.target}" if row.target[0].isdigit() else row.target


def _add(
    found: dict[tuple[str, ...], Plain],
    source: str,
    cells: dict[str, str],
    tok_s: float,
    bits: float | None,
    prefill: float | None,
) -> None:
    work, chip = work_named(cells["target"], bits), passes.apple_chip(cells["chip"])
    key = (source, cells["chip"], cells["engine"], cells["target"])
    if work is None or chip is None or key in found:
        return
    engine: Engine = "llama.cpp" if "llama" in cells["engine"] else "mlx"
    # One repository's files are one source, and so are all community rows of one collection and machine.
    found[key] = Plain(source.split(",")[0], ", ".join(key[1:]), work, chip, engine, tok_s, prefill)


def round_rows() -> list[Rounds]:
    """Every speculative row that can be asked, and wide passes."""
    found = []
    for row in mac_rows():
        if row.method == NO_DRAFTER or row.known_wrong or row.chip is None or row.gamma in (None, 0):
            continue
        work, chip = work_named(_target(row), row.bits), passes.apple_chip(row.chip)
        speedup = row.speedup or (row.sd_tok_s / row.plain_tok_s if row.sd_tok_s and row.plain_tok_s else None)
        step = None if work is None else _step(row, work)
        if work is None or chip is None or speedup is None or (step is None and row.method != "lookup"):
            continue
        engine: Engine = "llama.cpp" if "llama" in (row.engine or "") else "mlx"
        t_one = 1e3 / row.plain_tok_s if row.plain_tok_s else passes.plain_ms(work, chip, engine)
        mgl = _mgl(row)
        assert row.gamma is not None
        label = f"{row.chip}, {row.engine}, {row.target}, {row.method}, gamma {row.gamma}"
        ratio = None if mgl is None else mgl / speedup
        found.append(
            Rounds(
                row.source.split(",")[0],
                label,
                work,
                chip,
                engine,
                row.gamma,
                row.method,
                t_one,
                ratio,
                mgl,
                speedup,
                step,
            )
        )
    return found + _passes()


def _step(row: MacRow, target: Work) -> Work | None:
    """One drafting step: of a head, or of a draft model that the row names whole."""
    if row.method != "draft-model":
        return passes.head_work(target, row.method)
    draft = row.draft or ""
    return work_named(draft) or work_named(f"{draft} 4-bit") or work_named(f"{draft} 8-bit")


def _mgl(row: MacRow) -> float | None:
    """Tokens a round, as the row says or as its acceptance means."""
    if row.mgl is not None:
        return row.mgl
    if row.rounds and row.n_predict:
        return row.n_predict / row.rounds
    if row.acceptance is None or not row.gamma:
        return None
    if row.acceptance_of == "output":
        return 1 / (1 - row.acceptance)
    return 1 + row.acceptance * row.gamma


def _passes() -> list[Rounds]:
    own = [dict(cells) for cells in published.load("mac-plain").table("passes").cells]
    every: list[tuple[str, str, str, str, int, float, float | None]] = [
        (c["thread"], c["chip"], c["engine"], c["target"], int(c["n_rows"]), float(c["ms"]), None) for c in own
    ]
    every += [
        (p.source, p.chip or "", p.engine or "", p.target, p.n_rows, p.ms, p.bits) for p in mac_passes() if p.chip
    ]
    alone = {row[:4]: row[5] for row in every if row[4] == 1}
    found = []
    for source, chip_name, program, target, n_rows, ms, bits in every:
        work, chip = work_named(target, bits), passes.apple_chip(chip_name)
        if n_rows == 1 or work is None or chip is None:
            continue
        t_one = alone[source, chip_name, program, target]
        engine: Engine = "llama.cpp" if "llama" in program else "mlx"
        label = f"{chip_name}, {program}, {target}, pass of {n_rows}"
        found.append(Rounds(source, label, work, chip, engine, n_rows - 1, "", t_one, ms / t_one))
    return found


# --- fits -----------------------------------------------------------------------------------------------------------


def plain_constants(theta: Sequence[float], base: Constants) -> Constants:
    """Constants from logarithms in the order of `_PLAIN`."""
    values = dict(zip(_PLAIN, map(math.exp, theta), strict=True))
    generations = {name: values.pop(name, 1.0) for name in ("M1", "M2", "M3", "M4", "M5")}
    values["width"] = math.log(values["width"])
    return passes.merged(base, {**values, "generations": generations})


def row_constants(theta: Sequence[float], base: Constants) -> Constants:
    """Constants from logarithms in the order of `_ROWS`."""
    values = dict(zip(_ROWS, map(math.exp, theta), strict=True))
    rows = {
        f"{engine} M{g}": values["base"] * values.get(f"M{g}", 1.0) * (values["llama.cpp"] if engine != "mlx" else 1.0)
        for engine in ("mlx", "llama.cpp")
        for g in _GENERATIONS
    }
    each = {"mlx": values["round_ms"], "llama.cpp": values["round_llama.cpp"]}
    # No public row of the kernels of b11404 was found: they do what MLX's do, so they are taken to cost as much.
    rows |= {"llama.cpp new": rows["mlx M3"], "mixture": values["mixture"]}
    return passes.merged(base, {"rows": rows, "free_rows": values["free_rows"], "round_ms": each})


def fit_plain(rows: Sequence[Plain], base: Constants) -> Constants:
    """Least squares on logarithms, each source as heavy as the root of its rows, far rows held less important."""
    measured = np.log([1e3 / row.tok_s for row in rows])
    return _fit(_PLAIN, rows, lambda c: np.log([row.ms(c) for row in rows]) - measured, plain_constants, base, 0.13)


def fit_rounds(rows: Sequence[Rounds], base: Constants) -> Constants:
    """The same for rounds whose length is known."""
    known = [row for row in rows if row.ratio is not None]
    measured = np.log([row.ratio or 1.0 for row in known])
    return _fit(_ROWS, known, lambda c: np.log([row.length(c) for row in known]) - measured, row_constants, base, 0.15)


def _fit(
    priors: dict[str, tuple[float, float]],
    rows: Sequence[Plain | Rounds],
    errors: Callable[[Constants], np.ndarray],
    build: Callable[[Sequence[float], Constants], Constants],
    base: Constants,
    noise: float,
) -> Constants:
    counts = Counter(row.source for row in rows)
    weights = np.array([counts[row.source] ** -0.5 for row in rows])
    start = np.array([math.log(value) for value, _ in priors.values()])
    firm = np.array([sd for _, sd in priors.values()])

    def residuals(theta: np.ndarray) -> np.ndarray:
        return np.concatenate([errors(build(list(theta), base)) / noise * weights, (theta - start) / firm])

    return build(list(least_squares(residuals, start, loss="soft_l1", f_scale=1.5, diff_step=1e-4).x), base)


_PREFILL = {1: 10.0, 2: 8.5, 3: 8.0, 4: 6.5, 5: 2.5}  # of generations that no row is of


def fit_prefill(rows: Sequence[Plain], base: Constants) -> Constants:
    """Medians by generation of ms a token, 10^9 parameters and core."""

    def each(row: Plain) -> float:
        assert row.prefill_tok_s is not None
        return 1e3 / row.prefill_tok_s * row.chip.gpu_cores / (row.work.n_parameters / 1e9)

    timed = [row for row in rows if row.prefill_tok_s]
    found = {
        g: statistics.median(own)
        for g in _GENERATIONS
        if (own := [each(r) for r in timed if r.chip.generation == g and not r.work.expert_bytes])
    }
    prefill = {f"M{g}": found.get(g, _PREFILL[g]) for g in _GENERATIONS}
    mixtures = [each(r) / prefill[f"M{r.chip.generation}"] for r in timed if r.work.expert_bytes]
    return passes.merged(base, {"prefill": {**prefill, "mixture": statistics.median(mixtures) if mixtures else 1.6}})


# --- intervals ------------------------------------------------------------------------------------------------------


def held_out(
    rows: Sequence[Row], base: Constants, fit: Callable[[Sequence[Row], Constants], Constants]
) -> list[tuple[Constants, Row]]:
    """Each row beside constants that were fitted without its source, in folds of sources."""
    sources = sorted({row.source for row in rows})
    random.Random(1).shuffle(sources)
    found: list[tuple[Constants, Row]] = []
    for fold in range(_FOLDS):
        left = set(sources[fold::_FOLDS])
        c = fit([row for row in rows if row.source not in left], base)
        found += [(c, row) for row in rows if row.source in left]
    return found


def quantile(errors: Sequence[float]) -> float:
    """The factor that holds LEVEL of the errors (logarithms), with the margin that a next one needs."""
    ordered = sorted(abs(error) for error in errors)
    place = min(len(ordered) - 1, math.ceil(LEVEL * (len(ordered) + 1)) - 1)
    return math.exp(ordered[place])


def with_plain_spread(c: Constants, out: Sequence[tuple[Constants, Plain]]) -> Constants:
    """Spreads by kind; where a kind has fewer than twenty rows, that of all."""
    errors = {
        kind: [math.log(row.ms(k) * row.tok_s / 1e3) for k, row in out if row.work.kind == kind]
        for kind in c.plain_spread
    }
    every = [error for own in errors.values() for error in own]
    return passes.merged(
        c,
        {
            "plain_spread": {
                k: round(quantile(own) if len(own) >= 20 else max(quantile(own or every), quantile(every)), 3)
                for k, own in errors.items()
            }
        },
    )


def with_prefill_spread(c: Constants, out: Sequence[tuple[Constants, Plain]]) -> Constants:
    """The factor of prefill that holds LEVEL of the rows that print it."""
    errors = [math.log(passes.prefill_ms(row.work, row.chip, k) * (row.prefill_tok_s or 0.0) / 1e3) for k, row in out]
    return passes.merged(c, {"prefill_spread": round(quantile(errors), 3) if errors else 1.6})


def with_round_spread(c: Constants, out: Sequence[tuple[Constants, Rounds]]) -> Constants:
    """The least factors of `rows` that hold LEVEL of the rounds; of fewer than eight of a kind, those of all."""
    needed: dict[str, list[float]] = {"few": [], "many": []}
    for k, row in out:
        z = next((z for z in np.arange(0, 4, 0.02) if _holds(k, row, float(z))), 4.0)
        needed["few" if row.gamma <= 4 else "many"].append(float(z))
    every = needed["few"] + needed["many"]
    return passes.merged(
        c, {"rows_spread": {kind: round(quantile(own if len(own) >= 8 else every), 3) for kind, own in needed.items()}}
    )


def _holds(c: Constants, row: Rounds, z: float) -> bool:
    low, high = row.range(passes.merged(c, {"rows_spread": {"few": math.exp(z), "many": math.exp(z)}}))
    return row.ratio is not None and low <= row.ratio <= high


def fitted(plain: Sequence[Plain], rounds: Sequence[Rounds], base: Constants) -> Constants:
    """Everything from these rows alone, intervals included."""
    c = fit_prefill(plain, fit_plain(plain, base))
    c = with_plain_spread(c, held_out(plain, base, fit_plain))
    c = with_prefill_spread(c, held_out([row for row in plain if row.prefill_tok_s], base, fit_prefill))
    known = [row for row in rounds if row.ratio is not None]
    c = fit_rounds(known, c)
    return with_round_spread(c, held_out(known, c, fit_rounds))


def with_acceptance(c: Constants, rows: Sequence[Rounds]) -> Constants:
    """The chance of a token by method, over sources: what MGL says of it where every position is alike."""
    found: dict[str, tuple[float, float, float]] = {}
    of: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.mgl is not None and row.method and 1 < row.mgl < row.gamma + 1:
            for method in (row.method, "any"):
                of.setdefault(method, {}).setdefault(row.source, []).append(iid_alpha(row.mgl, row.gamma))
    for method, sources in of.items():
        every = [alpha for own in sources.values() for alpha in own]
        if len(sources) >= 3 or method == "any":
            weights = np.concatenate([np.full(len(own), 1 / len(own)) for own in sources.values()])
            low, middle, high = _weighted(np.array(every), weights, ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2))
            found[method] = (round(low, 3), round(middle, 3), round(high, 3))
    return passes.merged(c, {"acceptance": found})


def _weighted(values: np.ndarray, weights: np.ndarray, levels: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    places = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return [float(np.interp(level, places, values[order])) for level in levels]


def speedup_range(row: Rounds, c: Constants) -> tuple[float, float]:
    """The range of a row's speedup: its own MGL where it states one, else what its method was seen to get.

    What acceptance and round length leave open is independent, so their logarithms add up as squares.
    """
    low, high = row.range(c)
    middle = row.length(c)
    if row.mgl is not None:
        return row.mgl / high, row.mgl / low
    alphas = c.acceptance.get(row.method, c.acceptance["any"])
    mgl = [sum(alpha**i for i in range(row.gamma + 1)) for alpha in alphas]
    down = math.hypot(math.log(mgl[1] / mgl[0]), math.log(high / middle))
    up = math.hypot(math.log(mgl[2] / mgl[1]), math.log(middle / low))
    return mgl[1] / middle * math.exp(-down), mgl[1] / middle * math.exp(up)


# --- what is printed --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """One row with its range."""

    source: str
    label: str
    low: float
    high: float
    predicted: float
    measured: float
    kind: str  # of Work, or "rounds"
    gamma: int = 0
    stated: bool = True  # the row states its acceptance

    @property
    def inside(self) -> bool:
        """Whether the range holds the measurement."""
        return self.low <= self.measured <= self.high


def ask(plain: Sequence[Plain], rounds: Sequence[Rounds], c: Constants) -> list[Asked]:
    """Every row with what the constants say of it; rounds as speedups."""
    found = []
    for row in plain:
        factor = passes.spread_of(row.work, row.chip, c)
        value = 1e3 / row.ms(c)
        found.append(Asked(row.source, row.label, value / factor, value * factor, value, row.tok_s, row.work.kind))
    for one in rounds:
        if one.speedup is not None:
            low, high = speedup_range(one, c)
            found.append(
                Asked(
                    one.source,
                    one.label,
                    low,
                    high,
                    math.sqrt(low * high),
                    one.speedup,
                    "rounds",
                    one.gamma,
                    one.mgl is not None,
                )
            )
    return found


def halves(plain: Sequence[Plain], rounds: Sequence[Rounds], base: Constants) -> list[list[Asked]]:
    """Every row as the half of the sources that it is not of predicts it, over several random halvings."""
    sources = sorted({row.source for rows in (plain, rounds) for row in rows})
    found = []
    for number in range(_HALVINGS):
        drawn = random.Random(number).sample(sources, len(sources))
        for half in (set(drawn[::2]), set(drawn[1::2])):
            own = [row for row in plain if row.source in half]
            theirs = [row for row in rounds if row.source in half]
            c = with_acceptance(fitted(own, theirs, base), theirs)
            left_out = [r for r in plain if r.source not in half], [r for r in rounds if r.source not in half]
            found.append(ask(*left_out, c))
    return found


def run() -> Iterator[Result]:
    """Fit halves and ask the others; then the questions, and every row, of the constants that ship."""
    plain, rounds, base = plain_rows(), round_rows(), passes.constants()
    asked = halves(plain, rounds, base)
    yield from results(asked)
    if os.environ.get("MLSD_WRITE_PASSES"):
        write(with_acceptance(fitted(plain, rounds, base), rounds), [a for half in asked for a in half], plain, rounds)
    yield from questions()
    for one in sorted(ask(plain, rounds, passes.constants()), key=lambda a: (a.kind, a.label)):
        mark = "inside" if one.inside else "OUTSIDE"
        print(
            f"  {one.kind:9} {one.label:72.72} {one.low:7.4g} .. {one.high:7.4g}  measured {one.measured:7.4g}  {mark}"
        )


def results(asked: Sequence[Sequence[Asked]]) -> Iterator[Result]:
    """Coverage, errors and widths on the halves that were not fitted to."""
    every = [a for half in asked for a in half]
    plain = [a for a in every if a.kind != "rounds"]
    narrow = [a for a in every if a.kind == "rounds" and a.gamma <= 4]
    for name, kinds in (("plain rows", ("attention", "hybrid", "mixture")), ("SD rows", ("rounds",))):
        shares = [100 * statistics.fmean(a.inside for a in half if a.kind in kinds) for half in asked]
        value = 100 * statistics.fmean(a.inside for a in every if a.kind in kinds)
        said = f"{name}: inside the stated {100 * LEVEL:.0f} %"
        yield Result(said, value, min(shares), max(shares), "%", "85 .. 95", 85 <= value <= 95)
    mixtures = [a for a in plain if a.kind == "mixture"]
    for name, rows, bar in (("plain speed", plain, 12.0), ("plain speed, mixtures alone", mixtures, None)):
        errors = [100 * abs(a.predicted / a.measured - 1) for a in rows]
        value, low, high = statistics.median(errors), min(errors), max(errors)
        passed = None if bar is None else value < bar
        yield Result(f"{name}: median error", value, low, high, "%", f"< {bar:g}" if bar else "", passed)
    for name, rows, limit in (
        ("SD, gamma up to 4", narrow, 1.5),
        ("SD, gamma up to 4, acceptance stated", [a for a in narrow if a.stated], None),
        ("SD, gamma up to 4, acceptance not stated", [a for a in narrow if not a.stated], None),
        ("plain", plain, None),
    ):
        widths = [a.high / a.low for a in rows]
        value = statistics.median(widths)
        passed = None if limit is None else value < limit
        yield Result(
            f"{name}: median width", value, min(widths), max(widths), "times", f"< {limit:g}" if limit else "", passed
        )
    rounds = [a for a in every if a.kind == "rounds"]
    decided = [a for a in rounds if a.low > 1 or a.high < 1]
    wrong = 100 * statistics.fmean((a.low > 1) != (a.measured > 1) for a in decided)
    share = 100 * len(decided) / len(rounds)
    yield Result("SD rows: decided faster or slower", share, share, share, "%")
    yield Result("SD rows: of these wrongly", wrong, wrong, wrong, "%", "<= 5", wrong <= 5)
    off = [max(a.predicted / a.measured, a.measured / a.predicted) for a in plain]
    within = 100 * statistics.fmean(x < 1.5 for x in off)
    yield Result("time of an answer: within a factor of 1.5", within, min(off), max(off), "%", ">= 90", within >= 90)


def questions() -> Iterator[Result]:
    """Every chip and bandwidth of the table by four targets, all drafts and methods known: how many are decided."""
    nothing = Known(groups=(), passes={}, coverage={}, models={})
    places = sorted({(chip.name, chip.peak_bandwidth_gb_s) for chip in CHIPS if chip.peak_bandwidth_gb_s})
    for runtime in ("llama.cpp", "mlx"):
        verdicts: Counter[str] = Counter()
        for name, peak in places:
            for target in ("qwen3.5-35b-a3b", "qwen3.5-27b", "qwen3.5-9b", "qwen3.5-4b"):
                chip = passes.apple_chip(name, peak_gb_s=peak)
                question = Question(target=target, chip=chip, runtime=runtime)
                verdicts[answer(question, nothing, None).recommendation.verdict] += 1
        total = sum(verdicts.values())
        share = 100 * (total - verdicts["measure"]) / total
        name = f"{total} questions, {runtime}: faster {verdicts['faster']}, slower {verdicts['slower']}"
        yield Result(name, share, share, share, "%", ">= 50", share >= 50)


def write(c: Constants, asked: Sequence[Asked], plain: Sequence[Plain], rounds: Sequence[Rounds]) -> None:
    """The constants of all sources as the asset that ships."""
    own = [a for a in asked if a.kind != "rounds"]
    sd = [a for a in asked if a.kind == "rounds"]
    error = statistics.median(abs(a.predicted / a.measured - 1) for a in own)
    n_sources = len({row.source for rows in (plain, rounds) for row in rows})
    plain_inside, sd_inside = (100 * statistics.fmean(a.inside for a in rows) for rows in (own, sd))
    fitted_to = f"{len(plain)} public rows of plain decoding and {len(rounds)} of speculation or wide passes"
    checked = (
        f"fitted to half of the sources, the stated {100 * LEVEL:.0f} % held {plain_inside:.0f} % of the other half's "
        f"plain rows (median error {100 * error:.0f} %) and {sd_inside:.0f} % of its speculative ones"
    )
    c = passes.merged(c, {"level": LEVEL, "fitted": f"{fitted_to}, {n_sources} sources", "checked": checked})
    lines = [
        "# From the tables mac-plain and mac-2026, by `MLSD_WRITE_PASSES=1 python -m benchmarks published`.",
        "",
    ]
    tables = []
    for name, value in msgspec.to_builtins(c).items():
        if isinstance(value, dict):
            tables += ["", f"[{name}]"]
            tables += [f'"{key}" = {_toml(item)}' for key, item in value.items()]
        else:
            lines.append(f"{name} = {_toml(value)}")
    ASSET.write_text("\n".join([*lines, *tables]) + "\n", encoding="utf-8")
    passes.constants.cache_clear()


def _toml(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:.5g}" if isinstance(value, float) else str(value)
