"""Whether a pass over k rows gives what k passes over one row give: one text, fed in chunks of every width.

Kernels for one row and for several add up in different orders, so logits may differ in their last bits; a token changes
where the two best of single passes lie nearer together than that.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec
import numpy as np

from mlsd.engine.context import ContextOptions, Logits
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.measure.messages import report_progress
from mlsd.measure.worker.timing import TimeBudget
from mlsd.store.rows import WidthExactness

_MOST_TOKENS, _LEAST_TOKENS = 256, 32
_MOST_LOGITS = 32_000_000  # of single passes that are kept: 128 MB
_CHEAPER = 0.5  # what a row of a wide pass costs of a pass over one, about


def certify(
    model: LlamaModel,
    options: ContextOptions,
    text: Sequence[int],
    widths: Sequence[int],
    budget: TimeBudget,
    t_one_ns: int,
    model_key: str = "",
) -> Iterator[WidthExactness]:
    """Each width beside single passes, over as many tokens as the time allows; others are left out."""
    wide = sorted(width for width in widths if width > 1)
    if not wide:
        return
    affordable = budget.left_ns / max(1, t_one_ns) / (1 + _CHEAPER * len(wide))
    most = min(len(text), _MOST_TOKENS, _MOST_LOGITS // model.vocabulary.n_tokens)
    n = int(min(most, max(_LEAST_TOKENS, wide[-1], affordable)))
    options = msgspec.structs.replace(options, n_ctx=n + wide[-1], max_outputs=wide[-1], device_sampling=False)
    with closing(open_context(model, options)) as context:
        single = _logits(context, text[:n], 1)
        for width in wide:
            if budget.is_over:
                return
            report_progress("comparing widths")
            n_whole = n - n % width  # a shorter chunk at the end would be of another width
            yield compared(width, single[:n_whole], _logits(context, text[:n_whole], width), model_key)


def compared(width: int, single: Logits, wide: Logits, model_key: str = "") -> WidthExactness:
    """Logits of a width beside those of single passes, both of shape (n_tokens, n_vocab)."""
    best = single.argmax(axis=1)
    changed = np.flatnonzero(wide.argmax(axis=1) != best)
    gap = None
    if len(changed):
        two_best = np.partition(single[changed], -2, axis=1)[:, -2:]
        gap = float((two_best[:, 1] - two_best[:, 0]).max())
    return WidthExactness(
        model_key=model_key,
        rows=width,
        n_tokens=len(single),
        is_equal=bool(np.array_equal(single, wide)),
        largest_difference=float(np.abs(single - wide).max()),
        n_changed=len(changed),
        largest_gap=gap,
    )


def _logits(context: LlamaContext, text: Sequence[int], width: int) -> Logits:
    """Of every position, fed in chunks of that width; shape (n_tokens, n_vocab)."""
    context.clear()
    rows = []
    for start in range(0, len(text), width):
        chunk = text[start : start + width]
        context.decode(chunk, n_outputs=len(chunk))
        rows.append(context.logits().copy())
    return np.concatenate(rows)
