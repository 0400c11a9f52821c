"""What predictions for Apple chips are worth: fitted to half of the public sources, asked about the other half's rows.

Prints every row with its predicted range; With MLSD_WRITE_PASSES=1 in the environment it fits all
sources and writes mlsd/assets/passes.toml.
"""

import functools
import itertools
import math
import os
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from scipy.optimize import least_squares

from benchmarks.harness import Result
from mlsd.analysis.advise.acceptance import Stated
from mlsd.analysis.advise.answer import AdviceQuestion, AdvisedMachine, answer
from mlsd.analysis.advise.known_model import by_sizes
from mlsd.analysis.predict.evidence import Evidence
from mlsd.audits import published_tables as published
from mlsd.audits.printed import parse_printed
from mlsd.errors import InputError
from mlsd.gguf_tools.shape import FULL
from mlsd.hardware import apple_passes as passes
from mlsd.hardware.apple_passes import Constants, Runtime, Work
from mlsd.hardware.chips import CHIPS
from mlsd.planning.known_shapes import shape_facts, shape_of
from mlsd.records import NO_DRAFTER
from mlsd.stats import Interval, grouped, t_quantile
from mlsd.trials.acceptance_meanings import rate_of
from mlsd.trials.decisions import effect_of

ASSET = Path(__file__).parent.parent / "mlsd" / "assets" / "passes.toml"
LEVEL = 0.9
_MACS = ("mac-2026", "mac-autumn")
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
    "M3": (20.0, 0.6),  # of MLX
    "old": (2.0, 0.5),  # M1 and M2: a row is a pass over the weights
    "M5": (0.5, 0.4),
    "free_rows": (3.0, 0.4),
    "rows_ultra": (1.3, 0.3),
    "rows_recurrent": (1.2, 0.3),
    "experts": (0.6, 0.4),
    "round_ms": (1.0, 0.7),
    # llama.cpp: what computing a row takes of T(1), and factors of it
    "roofline K": (0.75, 0.3),
    "roofline Q4_0": (0.75, 0.3),
    "roofline Q8_0": (0.45, 0.3),
    "roofline corner": (3.5, 0.3),
    "roofline M1": (1.1, 0.2),
    "roofline M5": (0.9, 0.15),
    "roofline experts": (0.65, 0.3),
    "roofline extended M1": (1.0, 0.3),
    "roofline extended M3": (1.4, 0.3),
    "roofline power": (0.85, 0.1),
    "round_llama.cpp": (0.5, 0.4),
}
_DISTURBED = 2.0  # a plain run so much slower or faster than public rows of its chip is no unit for a round
_SPREAD = 0.15  # what rounds of two sources are thought to differ by
_PROGRAM = "program "
_APART = 0.35  # programs on one engine differ by so much: a deviation of the logarithm
_CLOCKS = {1: 1.28, 2: 1.4, 3: 1.4, 4: 1.58, 5: 1.6}  # GHz of the GPU: what a row costs goes by it


@dataclass(frozen=True)
class Plain:
    """One row of plain decoding."""

    source: str
    label: str
    work: Work
    on: Runtime
    tok_s: float
    prefill_tok_s: float | None = None

    def ms(self, c: Constants) -> float:
        """T(1) as predicted."""
        return by(self, c).plain_ms(self.work)


@dataclass(frozen=True)
class Rounds:
    """One row of speculation, or one wide pass: how long a round is in units of T(1)."""

    source: str
    label: str
    work: Work
    on: Runtime
    gamma: int
    method: str  # "" for a bare pass
    t_one_ms: float
    ratio: float | None = None  # measured: T(k) / T(1), or MGL / speedup
    mgl: float | None = None
    speedup: float | None = None
    step: Work | None = None  # a drafting step
    text: str = ""  # code or prose, where the row says

    def length(self, c: Constants) -> float:
        """T_round / T(1)."""
        return by(self, c).round_length(self.work, self.method, self.gamma, step=self.step, t_one_ms=self.t_one_ms)


Row = TypeVar("Row", Plain, Rounds)


def by(row: Plain | Rounds, c: Constants) -> Runtime:
    """Where a row was measured, by these constants."""
    return msgspec.structs.replace(row.on, constants=c)


# --- rows -----------------------------------------------------------------------------------------------------------


@functools.cache
def work_named(target: str, bits: float | None = None) -> Work | None:
    """What a target asks, by its name as sources write it."""
    text = "-".join(target.lower().split()).replace("-bit", "bit")
    name, quant = shape_of(text)
    if name is None:
        sized = by_sizes(text)
        return None if sized is None else passes.work_of(sized.facts)
    if quant is None and bits is None:
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
    rows: dict[tuple[str, ...], Plain] = {}
    for table in published.load("mac-plain").tables:
        for cells in table.cells:
            if "tok_s" in cells:
                prefill = cells.get("prefill_tok_s")
                _add(rows, table.source, cells, float(cells["tok_s"]), None, float(prefill) if prefill else None)
    for source, cells in mac_cells():
        speed = _number(cells, "tok_s" if cells.get("drafter", NO_DRAFTER) == NO_DRAFTER else "baseline_tok_s")
        if speed is not None:
            named = {"chip": cells["chip"], "engine": cells.get("engine", ""), "target": _target(cells)}
            _add(rows, source, named, speed, _number(cells, "bits"), None)
    return list(rows.values())


def mac_cells() -> list[tuple[str, dict[str, str]]]:
    """The honest rows on Macs that name their chip: source and cells."""
    studies = [published.load(name) for name in _MACS]
    tables = [table for study in studies for table in study.tables if table.audited and not table.known_error]
    return [(c.get("thread", t.source), c) for t in tables for c in t.cells if "chip" in c]


def _number(cells: dict[str, str], column: str) -> float | None:
    return parse_printed(cells[column]).value if cells.get(column, "auto") != "auto" else None


def _target(cells: dict[str, str]) -> str:
    return f"{cells.get('family')}-{cells['target']}" if cells["target"][0].isdigit() else cells["target"]


def _add(
    rows: dict[tuple[str, ...], Plain],
    source: str,
    cells: dict[str, str],
    tok_s: float,
    bits: float | None,
    prefill: float | None,
) -> None:
    work, chip = work_named(cells["target"], bits), passes.apple_chip(cells["chip"])
    key = (source, cells["chip"], cells["engine"], cells["target"])
    if work is None or chip is None or key in rows:
        return
    on = Runtime(chip=chip, program=cells["engine"])
    # One repository's files are one source, and so are all community rows of one collection and machine.
    rows[key] = Plain(source.split(",")[0], ", ".join(key[1:]), work, on, tok_s, prefill)


def round_rows() -> list[Rounds]:
    """Every speculative row that can be asked, and wide passes."""
    rows = []
    for source, cells in mac_cells():
        method, gamma = cells.get("drafter", NO_DRAFTER), int(_number(cells, "gamma") or 0)
        work, cores = work_named(_target(cells), _number(cells, "bits")), _number(cells, "gpu_cores")
        chip = passes.apple_chip(cells["chip"], gpu_cores=int(cores) if cores else None)
        sd, plain, speedup = (_number(cells, name) for name in ("tok_s", "baseline_tok_s", "speedup"))
        speedup = speedup or (sd / plain if sd and plain else None)
        plain = plain or (sd / speedup if sd and speedup else None)
        step = None if work is None else _step(cells, work)
        if method == NO_DRAFTER or not gamma or work is None or chip is None or speedup is None:
            continue
        if step is None and method != "lookup":
            continue
        on = Runtime(chip=chip, program=cells.get("engine", ""), build=_build(cells))
        if plain and not 1 / _DISTURBED < on.plain_ms(work) * plain / 1e3 < _DISTURBED:
            continue
        mgl = _mgl(cells, gamma)
        label = f"{cells['chip']}, {cells.get('engine')}, {cells['target']}, {method}, gamma {gamma}"
        rows.append(
            Rounds(
                source=source.split(",")[0],
                label=label,
                work=work,
                on=on,
                gamma=gamma,
                method=method,
                t_one_ms=1e3 / plain if plain else on.plain_ms(work),
                ratio=None if mgl is None else mgl / speedup,
                mgl=mgl,
                speedup=speedup,
                step=step,
                text=text_of(cells),
            )
        )
    return rows + _passes()


def _build(cells: dict[str, str]) -> int:
    """The number of llama.cpp's build; 0 for a commit, but for that of MTP's merge."""
    text = cells.get("build", "")
    return 9100 if text.startswith("5d5f1b4") else int(text[1:]) if re.fullmatch(r"b\d+", text) else 0


def _step(cells: dict[str, str], target: Work) -> Work | None:
    """One drafting step: of a head, or of a draft model that the row names whole."""
    method, draft = cells.get("drafter", NO_DRAFTER), cells.get("draft", "")
    if method != "draft-model":
        return passes.head_work(target, method)
    return work_named(draft) or work_named(f"{draft} 4-bit") or work_named(f"{draft} 8-bit")


def _mgl(cells: dict[str, str], gamma: int) -> float | None:
    """Tokens a round, as the row says or as its acceptance means."""
    mgl, rounds, length, rate = (_number(cells, name) for name in ("mgl", "rounds", "n_predict", "acceptance"))
    if "n_accepted" in cells:
        rate = float(cells["n_accepted"]) / float(cells["n_proposed"])
    if rate is None and "acceptance_percent" in cells:
        rate = (_number(cells, "acceptance_percent") or 0.0) / 100
    if mgl is not None or rate is None:
        return mgl or (length / rounds if rounds and length else None)
    if cells.get("acceptance_of") == "output":
        return 1 / (1 - rate)
    return 1 + rate * gamma


_CODE, _PROSE = (
    ("code", "python", "sort", "bash", "cpp"),
    ("prose", "story", "creative", "explain", "chat", "essay", "romeo"),
)


def text_of(cells: dict[str, str]) -> str:
    """What a row says of its prompt: code, prose, or nothing of either."""
    prompt = cells.get("prompt", "").lower()
    return next((n for n, words in (("code", _CODE), ("prose", _PROSE)) if any(w in prompt for w in words)), "")


def acceptances() -> Iterator[tuple[str, str, str, float]]:
    """Source, method, text and chance of a token from every shipped table: acceptance is no matter of the machine."""
    for name in published.names():
        study = published.load(name)
        honest = [t for t in study.tables if t.audited and not t.known_error and name not in _SAID_TWICE]
        for cells in ({"thread": table.source} | cells for table in honest for cells in table.cells):
            gamma, method = int(_number(cells, "gamma") or 0), cells.get("drafter", "")
            mgl = _mgl(cells, gamma) if method in ("mtp", "dflash", "dspark", "eagle3", "draft-model") else None
            if gamma and mgl is not None and 1 < mgl < gamma + 1 and not cells["target"].startswith(("Apple", "Mac ")):
                source = cells["thread"].split(",")[0]
                yield (
                    source if "://" in source else name,
                    method,
                    text_of(cells),
                    rate_of(mgl, "position", gamma) or 0.0,
                )


_KEPT_ASIDE = "mac-drafts"
_SAID_TWICE = ("mlx-mtp", _KEPT_ASIDE)  # the rows of the first are those of mac-2026


def _passes() -> list[Rounds]:
    timed = [c for name in ("mac-plain", *_MACS) for c in published.load(name).table("passes").cells if "chip" in c]
    every = [
        (c["thread"], c["chip"], c["engine"], c["target"], int(c["n_rows"]), float(c["ms"]), _number(c, "bits"))
        for c in timed
    ]
    alone = {row[:4]: row[5] for row in every if row[4] == 1}
    rows = []
    for source, chip_name, program, target, n_rows, ms, bits in every:
        work, chip = work_named(target, bits), passes.apple_chip(chip_name)
        if n_rows == 1 or work is None or chip is None:
            continue
        t_one = alone[source, chip_name, program, target]
        label = f"{chip_name}, {program}, {target}, pass of {n_rows}"
        on = Runtime(chip=chip, program=program)
        rows.append(Rounds(source, label, work, on, n_rows - 1, "", t_one, ms / t_one))
    return rows


# --- fits -----------------------------------------------------------------------------------------------------------


def plain_constants(theta: Sequence[float], base: Constants, names: Sequence[str] = tuple(_PLAIN)) -> Constants:
    """Constants from logarithms in the order of these names."""
    values = dict(zip(names, map(math.exp, theta), strict=True))
    generations = {name: values.pop(name, 1.0) for name in ("M1", "M2", "M3", "M4", "M5")}
    values["width"] = math.log(values["width"])
    return msgspec.structs.replace(base, **values, generations=generations)


def row_constants(theta: Sequence[float], base: Constants, names: Sequence[str] = tuple(_ROWS)) -> Constants:
    """Constants from logarithms in the order of these names."""
    values = dict(zip(names, map(math.exp, theta), strict=True))
    by_clock = {g: values["M3"] * (values["M5"] if g == 5 else 1.0) * _CLOCKS[3] / _CLOCKS[g] for g in _GENERATIONS}
    rows = {f"M{g}": ms * (values["old"] if g < 3 else 1.0) for g, ms in by_clock.items()}
    return msgspec.structs.replace(
        base,
        rows={**rows, "mixture": values["experts"]},
        roofline=_named(values, "roofline "),
        programs=_named(values, _PROGRAM),
        round_ms={"mlx": values["round_ms"], "llama.cpp": values["round_llama.cpp"]},
        **{name: values[name] for name in ("free_rows", "rows_ultra", "rows_recurrent")},
    )


def _named(values: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def fit_plain(rows: Sequence[Plain], base: Constants) -> Constants:
    """Least squares on logarithms, each source as heavy as the root of its rows, far rows held less important."""
    measured = np.log([1e3 / row.tok_s for row in rows])
    return _fit(_PLAIN, rows, lambda c: np.log([row.ms(c) for row in rows]) - measured, plain_constants, base, 0.13)


def fit_rounds(rows: Sequence[Rounds], base: Constants) -> Constants:
    """The same for rounds whose length is known."""
    timed = [row for row in rows if row.ratio is not None]
    measured = np.log([row.ratio or 1.0 for row in timed])
    programs = {f"{_PROGRAM}{row.on.program}": (1.0, _APART) for row in timed if row.method and row.on.engine == "mlx"}
    programs |= {f"{_PROGRAM}llama.cpp before b{passes.SETTLED}": (1.0, _APART)}
    return _fit(
        {**_ROWS, **dict(sorted(programs.items()))},
        timed,
        lambda c: np.log([row.length(c) for row in timed]) - measured,
        row_constants,
        base,
        0.15,
    )


def _fit(
    priors: dict[str, tuple[float, float]],
    rows: Sequence[Plain | Rounds],
    errors: Callable[[Constants], np.ndarray],
    build: Callable[[Sequence[float], Constants, Sequence[str]], Constants],
    base: Constants,
    noise: float,
) -> Constants:
    counts = Counter(row.source for row in rows)
    weights = np.array([counts[row.source] ** -0.5 for row in rows])
    start = np.array([math.log(value) for value, _ in priors.values()])
    firm, names = np.array([sd for _, sd in priors.values()]), tuple(priors)

    def residuals(theta: np.ndarray) -> np.ndarray:
        return np.concatenate([errors(build(list(theta), base, names)) / noise * weights, (theta - start) / firm])

    solution = least_squares(residuals, start, loss="soft_l1", f_scale=1.5, diff_step=1e-4).x
    return build(list(solution), base, names)


_PREFILL = {1: 10.0, 2: 8.5, 3: 8.0, 4: 6.5, 5: 2.5}  # of generations that no row is of


def fit_prefill(rows: Sequence[Plain], base: Constants) -> Constants:
    """Medians by generation of ms a token, 10^9 parameters and core."""

    def each(row: Plain) -> float:
        assert row.prefill_tok_s is not None
        return 1e3 / row.prefill_tok_s * row.on.chip.gpu_cores / (row.work.n_parameters / 1e9)

    timed = [row for row in rows if row.prefill_tok_s]
    medians = {
        g: statistics.median(own)
        for g in _GENERATIONS
        if (own := [each(r) for r in timed if r.on.chip.generation == g and not r.work.expert_bytes])
    }
    prefill = {f"M{g}": medians.get(g, _PREFILL[g]) for g in _GENERATIONS}
    mixtures = [each(r) / prefill[f"M{r.on.chip.generation}"] for r in timed if r.work.expert_bytes]
    prefill["mixture"] = statistics.median(mixtures) if mixtures else 1.6
    return msgspec.structs.replace(base, prefill=prefill)


# --- intervals ------------------------------------------------------------------------------------------------------


def held_out(
    rows: Sequence[Row], base: Constants, fit: Callable[[Sequence[Row], Constants], Constants], folds: int = 0
) -> list[tuple[Constants, Row]]:
    """Each row beside constants that were fitted without its source, in folds of sources, or each by itself."""
    sources = sorted({row.source for row in rows})
    random.Random(1).shuffle(sources)
    pairs: list[tuple[Constants, Row]] = []
    for fold in range(folds or len(sources)):
        left = set(sources[fold :: folds or len(sources)])
        c = fit([row for row in rows if row.source not in left], base)
        pairs += [(c, row) for row in rows if row.source in left]
    return pairs


def quantile(errors: Sequence[float]) -> float:
    """The factor that holds LEVEL of the errors (logarithms), with the margin that a next one needs."""
    ordered = sorted(abs(error) for error in errors)
    rank = min(len(ordered) - 1, math.ceil(LEVEL * (len(ordered) + 1)) - 1)
    return math.exp(ordered[rank])


def with_plain_spread(c: Constants, out: Sequence[tuple[Constants, Plain]]) -> Constants:
    """Spreads by kind; where a kind has fewer than twenty rows, that of all."""
    errors = {
        kind: [math.log(row.ms(k) * row.tok_s / 1e3) for k, row in out if row.work.kind == kind]
        for kind in c.plain_spread
    }
    every = [error for own in errors.values() for error in own]
    spreads = {
        kind: quantile(own) if len(own) >= 20 else max(quantile(own or every), quantile(every))
        for kind, own in errors.items()
    }
    return msgspec.structs.replace(c, plain_spread={kind: round(spread, 3) for kind, spread in spreads.items()})


def with_prefill_spread(c: Constants, out: Sequence[tuple[Constants, Plain]]) -> Constants:
    """The factor of prefill that holds LEVEL of the rows that print it."""
    errors = [math.log(by(row, k).prefill_ms(row.work) * (row.prefill_tok_s or 0.0) / 1e3) for k, row in out]
    return msgspec.structs.replace(c, prefill_spread=round(quantile(errors), 3) if errors else 1.6)


def with_round_spread(c: Constants, out: Sequence[tuple[Constants, Rounds]]) -> Constants:
    """The factors of what rounds take beyond 0.7 T(1), each end by the deviation of the errors on its side.

    A normal of two pieces, as programs are slower than the middle by other amounts than faster; its ends by Student's t
    over sources. A quantile of the few sources that a group has would be their largest error. Each source counts alike,
    and `_SPREAD`, which is thought of the deviation before any row is seen, as one of them.
    """
    factors = {}
    for name, members in grouped(out, lambda one: passes.spread_key(one[1].on.engine, one[1].gamma)).items():
        counts = Counter(row.source for _, row in members)
        errors = np.array([_log_excess(row.ratio or 1.0) - _log_excess(row.length(k)) for k, row in members])
        weights = np.array([1 / counts[row.source] for _, row in members])
        t, ends = t_quantile((1 + LEVEL) / 2, len(counts)), []
        for sign in (-1, 1):
            side = sign * errors > 0
            squares = float((weights * errors**2)[side].sum()) + _SPREAD**2 / 2
            ends.append(round(math.exp(sign * t * math.sqrt(squares / (float(weights[side].sum()) + 0.5))), 3))
        factors[name] = (ends[0], ends[1])
    return msgspec.structs.replace(c, round_spread={**c.round_spread, **factors})


def _log_excess(length: float) -> float:
    return math.log(max(length - passes.SURE, 0.05))


def fitted(plain: Sequence[Plain], rounds: Sequence[Rounds], base: Constants) -> Constants:
    """Everything from these rows alone, intervals included."""
    c = fit_prefill(plain, fit_plain(plain, base))
    c = with_plain_spread(c, held_out(plain, base, fit_plain, _FOLDS))
    c = with_prefill_spread(c, held_out([row for row in plain if row.prefill_tok_s], base, fit_prefill, _FOLDS))
    return fitted_rounds(rounds, c)


def fitted_rounds(rounds: Sequence[Rounds], base: Constants) -> Constants:
    """What is known of rounds from these rows alone, intervals included."""
    timed = [row for row in rounds if row.ratio is not None]
    c = fit_rounds(timed, base)
    return with_round_spread(c, held_out(timed, c, fit_rounds))


def with_acceptance(c: Constants, without: AbstractSet[str] = frozenset()) -> Constants:
    """The chance of a token by method and text, over sources but those to be tested."""
    ranges: dict[str, tuple[float, float, float]] = {}
    of: dict[str, dict[str, list[float]]] = {}
    for source, method, text, alpha in acceptances():
        if source not in without:
            for name in {method, f"{method} {text}".strip(), "any"}:
                of.setdefault(name, {}).setdefault(source, []).append(alpha)
    for name, sources in sorted(of.items()):
        every = [alpha for own in sources.values() for alpha in own]
        if len(sources) >= 3 or name == "any":
            weights = np.concatenate([np.full(len(own), 1 / len(own)) for own in sources.values()])
            low, middle, high = _weighted(np.array(every), weights, ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2))
            ranges[name] = (round(low, 3), round(middle, 3), round(high, 3))
    return msgspec.structs.replace(c, acceptance=ranges)


def _weighted(values: np.ndarray, weights: np.ndarray, levels: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    places = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    return [float(np.interp(level, places, values[order])) for level in levels]


def speedups(row: Rounds, c: Constants) -> tuple[float, float, float]:
    """Of a row at its own MGL where it states one, else at what its method was seen to get."""
    alphas = passes.acceptance_of(row.method, row.text, c)
    mgl = [row.mgl or sum(alpha**i for i in range(row.gamma + 1)) for alpha in alphas]
    return by(row, c).speedups(row.length(c), row.work, row.gamma, mgl)


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

    @property
    def decided(self) -> bool:
        """Whether the range says faster or slower, as advice says it."""
        return effect_of(Interval(value=self.predicted, low=self.low, high=self.high)) in ("faster", "slower")


def ask(plain: Sequence[Plain], rounds: Sequence[Rounds], c: Constants) -> list[Asked]:
    """Every row with what the constants say of it; rounds as speedups."""
    asked = []
    for row in plain:
        factor, value = by(row, c).spread(row.work), 1e3 / row.ms(c)
        asked.append(Asked(row.source, row.label, value / factor, value * factor, value, row.tok_s, row.work.kind))
    for spec in rounds:
        if spec.speedup is not None:
            low, _, high = speedups(spec, c)
            named, middle, stated = (spec.source, spec.label), math.sqrt(low * high), spec.mgl is not None
            asked.append(Asked(*named, low, high, middle, spec.speedup, "rounds", spec.gamma, stated))
    return asked


def halves(plain: Sequence[Plain], rounds: Sequence[Rounds], base: Constants) -> list[list[Asked]]:
    """Every row as the half of the sources that it is not of predicts it, over several random halvings."""
    sources = sorted({row.source for rows in (plain, rounds) for row in rows})
    asked = []
    for number in range(_HALVINGS):
        drawn = random.Random(number).sample(sources, len(sources))
        for half in (set(drawn[::2]), set(drawn[1::2])):
            of_half = [row for row in plain if row.source in half]
            theirs = [row for row in rounds if row.source in half]
            c = with_acceptance(fitted(of_half, theirs, base), set(sources) - half)
            left_out = [r for r in plain if r.source not in half], [r for r in rounds if r.source not in half]
            asked.append(ask(*left_out, c))
    return asked


def one_source_out(plain: Sequence[Plain], rounds: Sequence[Rounds], base: Constants) -> list[Asked]:
    """Every speculative row that states its acceptance, as all other sources together predict it."""
    stated = [row for row in rounds if row.speedup is not None and row.mgl is not None]
    asked = []
    for source in sorted({row.source for row in stated}):
        c = fit_plain([row for row in plain if row.source != source], base)
        c = fitted_rounds([row for row in rounds if row.source != source], c)
        asked += ask([], [row for row in stated if row.source == source], c)
    return asked


def stated_rows() -> Iterator[Result]:
    """What a prediction with a stated acceptance is worth: inside, how wide, decided, and wrongly."""
    asked, aside = one_source_out(plain_rows(), round_rows(), passes.constants()), kept_aside()
    full, cut = ([a for a in aside if a.stated is stated] for stated in (True, False))
    for name, rows, bars in (
        ("llama.cpp, each source left out", [a for a in asked if ", llama.cpp," in a.label], False),
        ("MLX, each source left out", [a for a in asked if ", llama.cpp," not in a.label], False),
        ("llama.cpp, nothing fitted to them", full, False),
        ("llama.cpp, nothing fitted to them, drafts ended by p_min", cut, False),
        ("all of these but the last", asked + full, True),
    ):
        said = f"{len(rows)} rows of {len({a.source for a in rows})} sources, acceptance stated: {name}"
        decided = [a for a in rows if a.decided]
        inside, share = (100 * n / len(rows) for n in (sum(a.inside for a in rows), len(decided)))
        wrong = sum((a.low > 1) != (a.measured > 1) for a in decided)
        yield Result(f"{said}: inside", inside, inside, inside, "%", *_bar("85 .. 95", 85 <= inside <= 95, bars))
        yield _median(f"{said}: median width", [a.high / a.low for a in rows], "times", 1.8 if bars else None)
        yield Result(f"{said}: decided", share, share, share, "%", *_bar(">= 55", share >= 55, bars))
        yield Result(f"{said}: of these wrongly", wrong, wrong, wrong, "", "0", wrong == 0)
        yield _median(f"{said}: predicted over measured", [a.predicted / a.measured for a in rows], "", None)


def _bar(limit: str, passed: bool, applies: bool) -> tuple[str, bool | None]:
    return (limit, passed) if applies else ("", None)


def kept_aside() -> list[Asked]:
    """What advice says of rows that nothing is fitted to: their own acceptance stated, and their p_min and build."""
    rows = []
    for table in published.load(_KEPT_ASIDE).tables:
        for cells in table.cells:
            target, draft = ("-".join(cells[name].lower().split()) for name in ("target", "draft"))
            chip, gamma = passes.apple_chip(cells["chip"]), int(cells.get("n_max", cells["gamma"]))
            p_min = f",p_min={cells['p_min']}" if "p_min" in cells else ""
            drafter = f"draft-model:draft={draft}{p_min}"
            stated = Stated(gamma=gamma, rate=_number(cells, "acceptance"))
            if "n_output" in cells:
                counts, n_output = (int(cells["n_accepted"]), int(cells["n_proposed"])), int(cells["n_output"])
                stated = Stated(gamma=gamma, counts=counts, n_output=n_output)
            asked = AdviceQuestion(
                target=target, drafts=(drafter,), drafters=(drafter,), gammas=(gamma,), stated=stated
            )
            assert chip is not None
            on = Runtime(chip=chip, build=_build(cells))
            (said,) = (
                p for p in answer(asked, Evidence(), AdvisedMachine(runtime=on)).recommendation.prospects if p.gamma
            )
            speedup, measured = said.speedup, float(cells["tok_s"]) / float(cells["baseline_tok_s"])
            ends = (speedup.low or 0.0, speedup.high or math.inf, speedup.value)
            rows.append(Asked(table.name, f"{target} + {draft}", *ends, measured, "rounds", gamma, not p_min))
    return rows


def run() -> Iterator[Result]:
    """Fit halves and ask the others; then the questions, and every row, of the constants that ship."""
    plain, rounds, base = plain_rows(), round_rows(), passes.constants()
    asked = halves(plain, rounds, base)
    yield from results(asked)
    if os.environ.get("MLSD_WRITE_PASSES"):
        write(with_acceptance(fitted(plain, rounds, base)), [a for half in asked for a in half], plain, rounds)
    yield from questions()
    for row in sorted(ask(plain, rounds, passes.constants()), key=lambda a: (a.kind, a.label)):
        mark = "inside" if row.inside else "OUTSIDE"
        print(
            f"  {row.kind:9} {row.label:72.72} {row.low:7.4g} .. {row.high:7.4g}  measured {row.measured:7.4g}  {mark}"
        )


def results(asked: Sequence[Sequence[Asked]]) -> Iterator[Result]:
    """Coverage, errors and widths on the halves that were not fitted to."""
    every = [a for half in asked for a in half]
    plain = [a for a in every if a.kind != "rounds"]
    narrow = [a for a in every if a.kind == "rounds" and a.gamma <= 4]
    sides: dict[str, Callable[[Asked], bool]] = {
        "plain rows": lambda a: a.kind != "rounds",
        "SD rows, acceptance stated": lambda a: a.kind == "rounds" and a.stated,
        "SD rows, nothing stated": lambda a: a.kind == "rounds" and not a.stated,
    }
    for name, kept in sides.items():
        shares = [100 * statistics.fmean([a.inside for a in half if kept(a)] or [1.0]) for half in asked]
        value = 100 * statistics.fmean(a.inside for a in every if kept(a))
        said = f"{name}: inside the stated {100 * LEVEL:.0f} %"
        yield Result(said, value, min(shares), max(shares), "%", "85 .. 95", 85 <= value <= 95)
    mixtures = [a for a in plain if a.kind == "mixture"]
    for name, rows, bar in (("plain speed", plain, 12.0), ("plain speed, mixtures alone", mixtures, None)):
        yield _median(f"{name}: median error", [100 * abs(a.predicted / a.measured - 1) for a in rows], "%", bar)
    for name, rows, limit in (
        ("SD, gamma up to 4", narrow, 1.5),
        ("SD, gamma up to 4, acceptance stated", [a for a in narrow if a.stated], None),
        ("the same, llama.cpp alone", [a for a in narrow if a.stated and "llama.cpp" in a.label], None),
        ("SD, gamma up to 4, acceptance not stated", [a for a in narrow if not a.stated], None),
        ("plain", plain, None),
    ):
        yield _median(f"{name}: median width", [a.high / a.low for a in rows], "times", limit)
    rounds = [a for a in every if a.kind == "rounds"]
    decided = [a for a in rounds if a.decided]
    wrong = 100 * statistics.fmean((a.low > 1) != (a.measured > 1) for a in decided)
    share = 100 * len(decided) / len(rounds)
    yield Result("SD rows: decided faster or slower", share, share, share, "%")
    yield Result("SD rows: of these wrongly", wrong, wrong, wrong, "%", "0", wrong == 0)
    off = [max(a.predicted / a.measured, a.measured / a.predicted) for a in plain]
    within = 100 * statistics.fmean(x < 1.5 for x in off)
    yield Result("time of an answer: within a factor of 1.5", within, min(off), max(off), "%", ">= 90", within >= 90)


def _median(name: str, values: Sequence[float], unit: str, limit: float | None) -> Result:
    value, bar = statistics.median(values), "" if limit is None else f"< {limit:g}"
    return Result(name, value, min(values), max(values), unit, bar, None if limit is None else value < limit)


def questions() -> Iterator[Result]:
    """Every chip and bandwidth of the table by four targets, all drafts and methods known: how many are decided.

    As asked of a bare name (Q8_0), of the quantization that most people run, of a build with newer kernels, and with an
    acceptance stated.
    """
    places = sorted({(chip.name, chip.peak_bandwidth_gb_s) for chip in CHIPS if chip.peak_bandwidth_gb_s})
    targets = ("qwen3.5-35b-a3b", "qwen3.5-27b", "qwen3.5-9b", "qwen3.5-4b")
    bare, few = AdviceQuestion(target=""), AdviceQuestion(target="", quant="Q4_K_M")
    stated: dict[str, Any] = {"drafts": ("mtp",), "gammas": (4,), "stated": Stated(gamma=4, rate=0.8)}
    asked: list[tuple[str, AdviceQuestion, str, int, float | None]] = [
        ("llama.cpp", bare, "llama.cpp", 0, 50),
        ("mlx", bare, "mlx", 0, 50),
        ("llama.cpp, Q4_K_M", few, "llama.cpp", 0, None),
        ("llama.cpp, Q4_K_M, b11404", few, "llama.cpp", 11404, None),
        ("llama.cpp, Q4_K_M, 80 % of 4 accepted", msgspec.structs.replace(few, **stated), "llama.cpp", 0, None),
        ("mlx, 80 % of 4 accepted", msgspec.structs.replace(bare, **stated), "mlx", 0, None),
    ]
    for name, question, program, build, bar in asked:
        verdicts: Counter[str] = Counter()
        for (chip, peak), target in itertools.product(places, targets):
            apple = passes.apple_chip(chip, peak_gb_s=peak)
            on = None if apple is None else Runtime(chip=apple, program=program, build=build)
            of_target = msgspec.structs.replace(question, target=target)
            verdicts[answer(of_target, Evidence(), AdvisedMachine(runtime=on)).recommendation.verdict] += 1
        total = sum(verdicts.values())
        share = 100 * (total - verdicts["not decided yet"]) / total
        said = f"{total} questions, {name}: on {verdicts['on']}, off {verdicts['off']}"
        yield Result(said, share, share, share, "%", f">= {bar}" if bar else "", None if bar is None else share >= bar)


def write(c: Constants, asked: Sequence[Asked], plain: Sequence[Plain], rounds: Sequence[Rounds]) -> None:
    """The constants of all sources as the asset that ships."""
    plain_asked = [a for a in asked if a.kind != "rounds"]
    sd = [a for a in asked if a.kind == "rounds"]
    error = statistics.median(abs(a.predicted / a.measured - 1) for a in plain_asked)
    n_sources = len({row.source for rows in (plain, rounds) for row in rows})
    plain_inside, sd_inside = (100 * statistics.fmean(a.inside for a in rows) for rows in (plain_asked, sd))
    fitted_to = f"{len(plain)} public rows of plain decoding and {len(rounds)} of speculation or wide passes"
    checked = (
        f"fitted to half of the sources, the stated {100 * LEVEL:.0f} % held {plain_inside:.0f} % of the other half's "
        f"plain rows (median error {100 * error:.0f} %) and {sd_inside:.0f} % of its speculative ones"
    )
    c = msgspec.structs.replace(c, level=LEVEL, fitted=f"{fitted_to}, {n_sources} sources", checked=checked)
    lines = [
        "# From mac-plain, mac-2026 and mac-autumn, by `MLSD_WRITE_PASSES=1 python -m benchmarks published`.",
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
