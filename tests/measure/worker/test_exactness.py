"""Whether widths give what single passes give."""

import numpy as np

from mlsd.clock import MonotonicClock
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.measure.worker.exactness import certify, compared
from mlsd.measure.worker.timing import TimeBudget
from mlsd.models.library import resolve_model


def test_a_token_changes_where_the_two_best_lie_nearer_than_kernels_differ() -> None:
    single = np.array([[1.0, 0.5, 0.0], [2.0, 1.99, 0.0], [0.0, 3.0, 1.0]], dtype=np.float32)
    wide = single.copy()
    assert compared(2, single, wide).is_equal and compared(2, single, wide).largest_gap is None
    wide[1, 1] += 0.02
    found = compared(2, single, wide)
    assert (found.is_equal, found.n_changed, found.n_tokens) == (False, 1, 3)
    assert found.largest_gap is not None and abs(found.largest_gap - 0.01) < 1e-6
    assert abs(found.largest_difference - 0.02) < 1e-6


def test_every_width_of_a_model_is_compared_over_whole_passes_and_says_over_how_many_tokens() -> None:
    clock = MonotonicClock()
    with LlamaModel(resolve_model("tiny-dense").path) as model:
        text = model.tokenize("def add(a, b):\n    return a + b\n" * 20)
        found = list(certify(model, ContextOptions(n_ctx=512, n_threads=1), text, (1, 2, 5, 33), TimeBudget(clock), 1))
    assert [width.rows for width in found] == [2, 5, 33]
    for width in found:
        assert width.n_tokens % width.rows == 0 and width.n_tokens >= 33
        assert width.largest_difference < 0.1 and (width.largest_gap or 0.0) <= 2 * width.largest_difference
        assert width.is_equal == (width.largest_difference == 0.0)
