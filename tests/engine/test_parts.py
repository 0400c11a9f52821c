"""Which part of a network a node belongs to, by rules over names, and how long each part of a pass takes."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.clock import MonotonicClock
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.taps import GraphTap, SpanTap, TappedContext, TensorValue
from mlsd.engine.parts import PARTS, Node, Part, node_parts, part_ends, part_sums
from mlsd.errors import EngineError, UnsupportedError
from mlsd.gguf_tools.shape import TINY, TINY_ATTENTION
from tests.engine.fake import FakeClock

OPTIONS = ContextOptions(n_ctx=256, n_threads=1, max_outputs=4, device_sampling=False, flash_attention="on")
TOKENS = [5, 9, 2, 7, 11, 3]
UNREAD: TensorValue = None  # type: ignore[assignment]  # a span tap reads no value
# Matrix products of one block by part: what the architecture's definition says it multiplies.
PLAIN = {"attention": 4, "ffn": 3}  # q, k, v, out; gate, up, down
MIXTURE = {"attention": 4, "experts": 4}  # the router, and gate, up, down of the chosen experts
PRODUCTS: dict[str, dict[str, int]] = {
    "llama": PLAIN,
    "qwen2": PLAIN,
    "qwen3": PLAIN,
    "qwen3moe": MIXTURE,
    "falcon-h1": {**PLAIN, "recurrent": 2},  # in, out
}
# Hybrids whose blocks take turns; the state layers multiply by qkv, z, alpha, beta and out.
TURNS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "qwen35": ({"recurrent": 5, "ffn": 3}, PLAIN),
    "qwen35moe": ({"recurrent": 5, "experts": 4, "ffn": 4}, {"attention": 4, "experts": 4, "ffn": 4}),  # ffn: shared
}


def expected(name: str, n_layers: int, n_attention: int) -> Counter[str]:
    products: Counter[str] = Counter({"head": 1})
    state, attention = TURNS.get(name, (PRODUCTS.get(name, {}), PRODUCTS.get(name, {})))
    for block, times in ((attention, n_attention), (state, n_layers - n_attention)):
        products.update({part: count * times for part, count in block.items()})
    return products


@pytest.mark.parametrize("name", [*TINY, *TINY_ATTENTION])
def test_products_belong_to_the_part_that_multiplies_parts_sum_to_the_pass_and_no_logit_changes(
    tiny: Path, name: str
) -> None:
    clock = MonotonicClock()
    with LlamaModel(tiny / f"{name}.gguf") as model:
        with open_context(model, OPTIONS) as plain:
            plain.decode(TOKENS, n_outputs=4)
            logits = plain.logits()
        with TappedContext(model, OPTIONS) as context:
            graph = GraphTap()
            with context.tapped(graph):
                context.decode(TOKENS, n_outputs=4)
            assert np.array_equal(context.logits(), logits)
            tap = SpanTap(graph.nodes, clock)
            for _ in range(2):  # the second pass is the one of a graph that is there already
                context.clear()
                with context.tapped(tap):
                    began_ns = clock.now_ns()
                    context.decode(TOKENS, n_outputs=4)
                    spent_ns = clock.now_ns() - began_ns
                sums = tap.take()
            assert np.array_equal(context.logits(), logits)
    assert set(sums) == set(tap.parts)
    assert min(sums.values()) > 0
    assert sum(sums.values()) <= spent_ns  # the rest of a tiny pass is this program, looking
    nodes, parts = graph.nodes, tap.parts
    counts = Counter(
        part for node, part in zip(nodes, parts, strict=True) if node.operation in ("MUL_MAT", "MUL_MAT_ID")
    )
    layers = [node for node in nodes if re.fullmatch(r"l_out-\d+", node.name)]
    attention = [node for node in nodes if node.operation == "FLASH_ATTN_EXT"]
    assert counts == expected(name, len(layers), len(attention))
    assert (parts[0], parts[-1]) == ("embeddings", "head")
    assert len(part_ends(parts)) < len(nodes) / 7  # every cut makes the device wait


def test_a_graph_without_a_head_is_refused_rather_than_guessed() -> None:
    with pytest.raises(UnsupportedError, match="result_output"):
        node_parts([Node(name="embd", operation="GET_ROWS"), Node(name="result_norm", operation="MUL")])


def test_nodes_without_a_name_belong_to_what_they_are_computed_for_and_sums_to_what_they_close() -> None:
    nodes = [
        Node(name="embd", operation="GET_ROWS"),
        Node(name="norm-0", operation="RMS_NORM"),
        Node(name="node_7", operation="FLASH_ATTN_EXT"),
        Node(name="attn_out-0", operation="MUL_MAT"),
        Node(name="ffn_inp-0", operation="ADD"),
        Node(name="ffn_norm-0", operation="MUL"),
        Node(name="ffn_gate-0", operation="MUL_MAT"),
        Node(name="attn_out-0 (view)", operation="VIEW"),  # computes nothing: its name tells nothing
        Node(name="ffn_down-0", operation="MUL_MAT"),
        Node(name="l_out-0", operation="ADD"),
        Node(name="result_norm", operation="MUL"),
        Node(name="result_output", operation="MUL_MAT"),
        Node(name="node_12", operation="ARGMAX"),
    ]
    assert node_parts(nodes) == (
        *("embeddings", "attention", "attention", "attention", "attention"),
        *("ffn", "ffn", "ffn", "ffn", "ffn", "rest", "head", "sampling"),
    )


@given(parts=st.lists(st.sampled_from(PARTS), min_size=1), data=st.data())
def test_spans_between_changes_sum_to_the_whole(parts: list[Part], data: st.DataObject) -> None:
    ends = part_ends(parts)
    assert ends[-1] == len(parts) - 1
    assert all(parts[a] != parts[b] for a, b in pairwise(ends))
    spans = data.draw(st.lists(st.integers(0, 10**9), min_size=len(ends), max_size=len(ends)))
    sums = part_sums(ends, parts, spans)
    assert set(sums) == set(parts)
    assert sum(sums.values()) == sum(spans)


def products(*names: str) -> list[Node]:
    return [Node(name=name, operation="MUL_MAT") for name in names]


def test_the_time_of_asking_is_no_part_of_a_span() -> None:
    clock = FakeClock()
    tap = SpanTap(products("attn_out-0", "node_1", "ffn_down-0", "result_output"), clock)
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
    tap = SpanTap(products("attn_out-0", "result_output"), FakeClock())
    with pytest.raises(EngineError, match="another tensor"):
        tap.wants("ssm_out-0")
    tap = SpanTap(products("attn_out-0", "result_output"), FakeClock())
    tap.wants("attn_out-0")
    with pytest.raises(EngineError, match="1 tensors"):
        tap.take()
