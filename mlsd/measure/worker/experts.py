"""Which experts a target chooses on text and on drafted tokens, as rows of the store. Nothing here is timed."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from mlsd.engine.context import ContextOptions, padded
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.taps import Ids, RouterContext, distinct_counts
from mlsd.measure.messages import CalibrateJob, Covered
from mlsd.measure.worker.timing import TimeBudget
from mlsd.store.rows import Coverage, ExpertLoad, TokenSource

_ANCHORS = 48  # places of the text at which a draft is asked to go on
_PASS = 64  # tokens of one pass over the text
_SHARE_OF_TEXT = 0.15  # of the whole budget where a draft has its say as well
_MOST_TOKENS = 1024  # of text: means over a thousand windows and several layers are tight, large models slow

ByLayer = dict[int, list[Ids]]  # layer -> expert numbers of rows that follow each other, one array a stretch of text


def cover(
    job: CalibrateJob,
    target: LlamaModel,
    draft: LlamaModel | None,
    text: Sequence[int],
    options: ContextOptions,
    budget: TimeBudget,
) -> Covered:
    """Distinct experts in windows of consecutive tokens, and the load of each expert.

    Windows of real text slide by one; of drafted text each is a token and what the draft says after it. Raises:
    UnsupportedError without routed experts.
    """
    widest, text = max(job.windows), text[:_MOST_TOKENS]
    room = padded(len(text))
    n_ctx = min(room, target.n_ctx_train or room)
    text = text[: n_ctx - widest]
    options = msgspec.structs.replace(options, n_ctx=n_ctx)
    reading = budget.part(1.0 if draft is None else _SHARE_OF_TEXT)
    with RouterContext(target, options) as context:
        by_source: dict[TokenSource, ByLayer] = {"text": _read(context, text, widest, reading)}
        if draft is not None:
            by_source["draft"] = _drafted(context, target, draft, text, options, widest, budget)
    coverage, loads, key = list[Coverage](), list[ExpertLoad](), job.target.ref.key
    for source, layers in by_source.items():
        for layer, parts in layers.items():
            for window in job.windows:  # of a drafted stretch only the window at its start
                counts = (distinct_counts(ids if source == "text" else ids[:window], window) for ids in parts)
                if total := dict(sorted(sum(counts, Counter()).items())):
                    coverage.append(Coverage(model_key=key, source=source, layer=layer, window=window, distinct=total))
            chosen = np.bincount(np.concatenate(parts).reshape(-1), minlength=job.n_experts).tolist()
            loads.append(ExpertLoad(model_key=key, source=source, layer=layer, chosen=tuple(chosen)))
    return Covered(coverage=tuple(coverage), loads=tuple(loads))


def _read(context: RouterContext, text: Sequence[int], widest: int, budget: TimeBudget) -> ByLayer:
    """Experts of the text's tokens, as one stretch."""
    parts: dict[int, list[Ids]] = {}
    for n_passes, first in enumerate(range(0, len(text), _PASS)):
        if first >= widest and budget.left_ns <= budget.spent_ns / n_passes:
            break
        for layer, ids in context.chosen(text[first : first + _PASS]).items():
            parts.setdefault(layer, []).append(ids)
    return {layer: [np.concatenate(ids)] for layer, ids in parts.items()}


def _drafted(
    context: RouterContext,
    target: LlamaModel,
    draft: LlamaModel,
    text: Sequence[int],
    options: ContextOptions,
    n_rows: int,
    budget: TimeBudget,
) -> ByLayer:
    """Experts of verification batches of `n_rows`, at as many places of the text as there is time for."""
    chosen: ByLayer = {}
    stride = max(1, (len(text) - n_rows) // _ANCHORS)
    context.clear()
    with open_context(draft, options) as other:
        sides = ((context, target), (other, draft))
        for start in range(stride, len(text) - n_rows, stride):
            if budget.is_over:
                break
            for side, model in sides:
                side.decode(text[side.n_past : start], n_outputs=0)
                if model.is_recurrent:
                    side.save_state()
            tokens = [text[start]]
            while len(tokens) < n_rows:
                other.decode(tokens[-1:])
                tokens.append(other.greedy()[0])
            for layer, ids in context.chosen(tokens).items():
                chosen.setdefault(layer, []).append(ids)
            for side, model in sides:
                if model.is_recurrent:
                    side.load_state()
                side.truncate(start)
    return chosen
