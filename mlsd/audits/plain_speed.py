"""How fast a chip should decode a model plainly, by its name: the range that holds most public rows.

The time of a pass is that of `hardware.apple_passes`.
"""

import functools

import msgspec

from mlsd.audits.model_name import read_model_name
from mlsd.gguf_tools.shape import FULL, SAME_SHAPE
from mlsd.hardware import apple_passes as passes
from mlsd.hardware.apple_passes import Engine, Work
from mlsd.hardware.chips import bins
from mlsd.planning.known_shapes import sized_facts

_ENGINES: tuple[Engine, ...] = ("llama.cpp", "mlx")
_SCALES = 0.5  # bits that scales add to a stored weight: blocks of 32 with 16 bits, MLX groups of 64 with two of them


@functools.cache
def plain_speed(model: str, chip: str, engines: tuple[Engine, ...] = _ENGINES) -> tuple[float, float] | None:
    """Least and most tok/s to expect of a model on a chip, over its bins and the engines; None of what is not known."""
    work, peaks = _work(model), sorted({one.peak_bandwidth_gb_s for one in bins(chip) if one.peak_bandwidth_gb_s})
    machines = [m for peak in peaks if (m := passes.apple_chip(chip, peak_gb_s=peak)) is not None]
    if work is None or not machines:
        return None
    on = [passes.Runtime(chip=machine, program=engine) for machine in machines for engine in engines]
    ends, factor = [one.plain_ms(work) for one in on], on[0].spread(work)
    return 1e3 / (max(ends) * factor), 1e3 * factor / min(ends)


def _work(model: str) -> Work | None:
    """What one token reads and computes, by the name alone: its sizes, and the longest known shape that it holds."""
    name = read_model_name(model)
    if not name.active_b or not name.bits:
        return None
    facts = sized_facts(
        model, max(name.total_b or 0.0, name.active_b), name.active_b, name.bits + _SCALES * (name.bits < 16)
    )
    text = "-".join(model.lower().split())
    shape_name = max((one for one in (*FULL, *SAME_SHAPE) if one in text), key=len, default=None)
    if shape_name is not None:
        shape = FULL[SAME_SHAPE.get(shape_name, shape_name)]
        facts = msgspec.structs.replace(
            facts, architecture=shape.architecture, n_layers=shape.n_layers, n_embd=shape.n_embd
        )
    return passes.work_of(facts)
