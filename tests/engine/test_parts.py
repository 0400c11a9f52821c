"""Which part of a network a node belongs to: rules over names, and what they make of real graphs."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.taps import GraphTap, TappedContext
from mlsd.engine.parts import PARTS, Node, Part, node_parts, part_ends, part_sums
from mlsd.errors import UnsupportedError
from mlsd.gguf_tools.shape import TINY, TINY_ATTENTION

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


def graph(path: Path) -> list[Node]:
    tap = GraphTap()
    options = ContextOptions(n_ctx=256, n_threads=1, max_outputs=3, flash_attention="on")
    with LlamaModel(path) as model, TappedContext(model, options) as context, context.tapped(tap):
        context.decode([1, 2, 3], n_outputs=3)
    return tap.nodes


def expected(name: str, n_layers: int, n_attention: int) -> Counter[str]:
    products: Counter[str] = Counter({"head": 1})
    state, attention = TURNS.get(name, (PRODUCTS.get(name, {}), PRODUCTS.get(name, {})))
    for block, times in ((attention, n_attention), (state, n_layers - n_attention)):
        products.update({part: count * times for part, count in block.items()})
    return products


@pytest.mark.parametrize("name", [*TINY, *TINY_ATTENTION])
def test_every_matrix_product_of_a_real_graph_belongs_to_the_part_that_multiplies(tiny: Path, name: str) -> None:
    nodes = graph(tiny / f"{name}.gguf")
    parts = node_parts(nodes)
    found = Counter(
        part for node, part in zip(nodes, parts, strict=True) if node.operation in ("MUL_MAT", "MUL_MAT_ID")
    )
    layers = [node for node in nodes if re.fullmatch(r"l_out-\d+", node.name)]
    attention = [node for node in nodes if node.operation == "FLASH_ATTN_EXT"]
    assert found == expected(name, len(layers), len(attention))
    assert parts[0] == "embeddings"
    assert parts[-1] == "sampling"  # the context picks tokens on the device
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
