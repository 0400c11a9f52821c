"""How fast a chip should decode a model plainly, by its name: the range that holds most public rows.

The time of a pass is that of `hardware.apple_passes`.
"""

import functools
import re

import msgspec

from mlsd.analysis.audit.model_name import read_model_name
from mlsd.analysis.audit.rows import AuditRow
from mlsd.gguf_tools.shape import FULL, SAME_SHAPE, Shape
from mlsd.hardware import apple_passes as passes
from mlsd.hardware.apple_passes import Engine, Work
from mlsd.hardware.chips import bins
from mlsd.planning.known_shapes import sized_facts
from mlsd.records import Record

_ENGINES: tuple[Engine, ...] = ("llama.cpp", "mlx")
_SCALES = 0.5  # bits that scales add to a stored weight: blocks of 32 with 16 bits, MLX groups of 64 with two of them


class PlainSpeed(Record, frozen=True, kw_only=True):
    """What plain decoding should reach, tok/s."""

    low: float
    high: float


def plain_speed(model: str, chip: str) -> PlainSpeed | None:
    """The range of a model on a chip, over its bins and both engines; None where name or chip do not say enough."""
    return _range(model, chip, _ENGINES)


@functools.cache
def _range(model: str, chip: str, engines: tuple[Engine, ...]) -> PlainSpeed | None:
    work, peaks = _work(model), sorted({one.peak_bandwidth_gb_s for one in bins(chip) if one.peak_bandwidth_gb_s})
    if work is None or not peaks:
        return None
    machines = [m for peak in peaks if (m := passes.apple_chip(chip, peak_gb_s=peak)) is not None]
    ends = [passes.plain_ms(work, machine, engine) for machine in machines for engine in engines]
    if not ends:
        return None
    factor = passes.spread_of(work, machines[0])
    return PlainSpeed(low=1e3 / (max(ends) * factor), high=1e3 * factor / min(ends))


_GGUF = re.compile(r"gguf|(?<![a-z0-9])(?:ud-)?i?q[1-8]_[0-9k]", re.IGNORECASE)


def least_pass_ms(model: str, row: AuditRow) -> float | None:
    """The shortest pass of a model that public rows lead to expect on the row's chip, in the engines that it may be of.

    Files of GGUF are decoded by llama.cpp.
    """
    named = f"{row.target} {row.draft or ''}"
    engines: tuple[Engine, ...] = ("llama.cpp",) if row.engine == "llama.cpp" or _GGUF.search(named) else _ENGINES
    ends = None if row.chip is None else _range(model, row.chip, engines)
    return None if ends is None else 1e3 / ends.high


def _work(model: str) -> Work | None:
    """What one token asks, by the name alone."""
    name, shape = read_model_name(model), _shape(model)
    if not name.active_b or not name.bits:
        return None
    bits = name.bits + _SCALES * (name.bits < 16)
    facts = sized_facts(model, max(name.total_b or 0.0, name.active_b), name.active_b, bits)
    if shape is not None:
        of_shape = {name: getattr(shape, name) for name in ("architecture", "n_layers", "n_embd")}
        facts = msgspec.structs.replace(facts, **of_shape)
    return passes.work_of(facts)


def _shape(model: str) -> Shape | None:
    """The longest known shape that the name holds."""
    text = "-".join(model.lower().split())
    known = max((one for one in (*FULL, *SAME_SHAPE) if one in text), key=len, default=None)
    return None if known is None else FULL[SAME_SHAPE.get(known, known)]
