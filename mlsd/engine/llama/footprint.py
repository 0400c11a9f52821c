"""The memory that a context would take, asked of llama.cpp itself: it plans every buffer and allocates almost none.

`LlamaModel(path, simulated=True)` reads metadata alone, so a sparse file without weights serves as well. Sizes stand in
the log; only recurrent states are really allocated, for a moment.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from msgspec.structs import replace

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.heads import RowContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import LOG, fail
from mlsd.engine.llama.open import open_context
from mlsd.records import Footprint
from mlsd.units import MIB

# The lines of llama.cpp's log that give sizes: attention memory and states by their sums, buffers one line a device.
_TERMS = {
    "kv_bytes": r"llama_kv_cache[\w:]*: size = +([\d.]+) MiB",
    "states_bytes": r"llama_memory_recurrent: size = +([\d.]+) MiB",
    "compute_bytes": r" compute buffer size = +([\d.]+) MiB",
    "output_bytes": r" output buffer size = +([\d.]+) MiB",
}


def footprints(model: LlamaModel, options: Sequence[ContextOptions]) -> tuple[Footprint, ...]:
    """The memory of a context of each kind over a simulated model. Raises: NativeError for a size not in the log.

    States that are saved on the host are no part of a context, so kinds that differ in these alone are asked once.
    """
    native = [replace(wanted, n_saved_states=wanted.n_saved_states * wanted.saved_on_device) for wanted in options]
    asked = {wanted: _footprint(partial(open_context, model, wanted)) for wanted in dict.fromkeys(native)}
    return tuple(asked[wanted] for wanted in native)


def attached_footprints(
    model: LlamaModel, options: Sequence[ContextOptions], attach: Callable[[LlamaContext], RowContext]
) -> tuple[Footprint, ...]:
    """The memory of what `attach` opens next to a context of each kind, without that context."""
    sizes = []
    for wanted in options:
        with open_context(model, wanted) as context:
            sizes.append(_footprint(partial(attach, context)))
    return tuple(sizes)


def allocated_bytes(log: Sequence[str]) -> float:
    """Bytes of all the buffers that llama.cpp says in its log to have allocated for a context."""
    return sum(float(size) * MIB for size in re.findall(r" buffer size = +([\d.]+) MiB", "".join(log)))


def _footprint(opened: Callable[[], LlamaContext | RowContext]) -> Footprint:
    with LOG.everything() as lines, closing(opened()):
        pass
    text = "".join(lines)
    terms = {name: [float(size) for size in re.findall(pattern, text)] for name, pattern in _TERMS.items()}
    if not terms["compute_bytes"] or not terms["output_bytes"]:
        raise fail("llama.cpp's log gives no sizes of buffers")
    return Footprint(**{name: round(sum(parts) * MIB) for name, parts in terms.items()})
