"""Profiled passes: their pieces sum to the pass, and looking changes no logit."""

from pathlib import Path

import numpy as np
import pytest

from mlsd.clock import MonotonicClock
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.taps import GraphTap, SpanTap, TappedContext, TensorValue
from mlsd.engine.parts import Node
from mlsd.errors import EngineError
from mlsd.gguf_tools.shape import TINY, TINY_ATTENTION
from tests.engine.fake import FakeClock

OPTIONS = ContextOptions(n_ctx=256, n_threads=1, max_outputs=4, device_sampling=False)
TOKENS = [5, 9, 2, 7, 11, 3]
UNREAD: TensorValue = None  # type: ignore[assignment]  # a span tap reads no value


@pytest.mark.parametrize("name", [*TINY, *TINY_ATTENTION])
def test_parts_sum_to_the_pass_and_no_logit_changes(tiny: Path, name: str) -> None:
    clock = MonotonicClock()
    with LlamaModel(tiny / f"{name}.gguf") as model:
        with open_context(model, OPTIONS) as plain:
            plain.decode(TOKENS, n_outputs=4)
            expected = plain.logits()
        with TappedContext(model, OPTIONS) as context:
            graph = GraphTap()
            with context.tapped(graph):
                context.decode(TOKENS, n_outputs=4)
            assert np.array_equal(context.logits(), expected)
            tap = SpanTap(graph.nodes, clock)
            for _ in range(2):  # the second pass is the one of a graph that is there already
                context.clear()
                with context.tapped(tap):
                    began_ns = clock.now_ns()
                    context.decode(TOKENS, n_outputs=4)
                    spent_ns = clock.now_ns() - began_ns
                sums = tap.take()
            assert np.array_equal(context.logits(), expected)
    assert set(sums) == set(tap.parts)
    assert min(sums.values()) > 0
    assert sum(sums.values()) <= spent_ns  # the rest of a tiny pass is this program, looking


def nodes(*names: str) -> list[Node]:
    return [Node(name=name, operation="MUL_MAT") for name in names]


def test_the_time_of_asking_is_no_part_of_a_span() -> None:
    clock = FakeClock()
    tap = SpanTap(nodes("attn_out-0", "node_1", "ffn_down-0", "result_output"), clock)
    for name, wanted, span_ns in (
        ("attn_out-0", True, 40),
        ("node_1", False, 0),
        ("ffn_down-0", True, 20),
        ("result_output", True, 7),
    ):
        clock.advance(1_000)  # asking
        assert tap.wants(name) is wanted
        if wanted:
            clock.advance(span_ns)
            tap.visit(name, UNREAD)
    assert tap.take() == {"attention": 40, "ffn": 20, "head": 7}


def test_a_pass_over_another_graph_is_refused() -> None:
    tap = SpanTap(nodes("attn_out-0", "result_output"), FakeClock())
    with pytest.raises(EngineError, match="another tensor"):
        tap.wants("ssm_out-0")
    tap = SpanTap(nodes("attn_out-0", "result_output"), FakeClock())
    tap.wants("attn_out-0")
    with pytest.raises(EngineError, match="1 tensors"):
        tap.take()
