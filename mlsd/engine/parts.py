"""Which part of the network each node of a graph belongs to: pure rules over the names that llama.cpp gives.

A node is a tensor and what computes it. Names are those of llama.cpp's builders (``attn_out-3``), without the number of
the block. Nodes without a telling name (``node_21``) are computed for the next telling one, so they belong to it.
"""

import re
from collections.abc import Sequence
from typing import Literal

from mlsd.errors import UnsupportedError
from mlsd.records import Record

# embeddings: token ids to rows; attention: over the text, with projections and cache; recurrent: the mixer of state
# layers; experts: router and routed experts; ffn: dense feed-forward, shared experts; head: rows to logits; sampling:
# logits to tokens on the device; rest: final norm, and what no rule knows.
Part = Literal["embeddings", "attention", "recurrent", "experts", "ffn", "head", "sampling", "rest"]
PARTS: tuple[Part, ...] = ("embeddings", "attention", "recurrent", "experts", "ffn", "head", "sampling", "rest")


class Node(Record, frozen=True, kw_only=True):
    """One node of a graph, in the order of computing."""

    name: str
    operation: str  # as ggml names it: MUL_MAT, VIEW, ...


# A view computes nothing, and its name says where it points, not what it is for.
_FREE = frozenset({"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "NONE"})
_BY_OPERATION: dict[str, Part] = {
    "FLASH_ATTN_EXT": "attention",
    "SSM_SCAN": "recurrent",
    "SSM_CONV": "recurrent",
    "GATED_DELTA_NET": "recurrent",
    "GATED_LINEAR_ATTN": "recurrent",
    "RWKV_WKV6": "recurrent",
    "RWKV_WKV7": "recurrent",
    "MUL_MAT_ID": "experts",
}
_BY_NAME: dict[Part, re.Pattern[str]] = {
    "head": re.compile(r"result_output"),
    "embeddings": re.compile(r"(inp_)?embd|inp_scaled|model\.(input_embed|embed_tokens)"),
    "rest": re.compile(
        r"result_norm|h_nextn|mtp_(shared_head_norm|tok_embd|[he]norm|concat|eh_proj)|(embd|g)_norm|concat_embd"
    ),
    "experts": re.compile(r"(mtp_)?ffn_moe_\w+"),
    "ffn": re.compile(r"(mtp_)?(ffn_(gate|up|down|swiglu|silu|gelu|relu|shexp)\w*|shared_expert_\w+)"),
    "attention": re.compile(r"(mtp_)?([QKV]cur\S*|kqv\w*|attn_(out|output|gated|pregate)|gate_sigmoid)"),
    "recurrent": re.compile(r"linear_attn_\w+|(ssm|mamba2?|conv|wkv)_\w+|cache_[rs]_l"),
}
# Sums that close a part: they belong to what they close.
_CLOSING = re.compile(r"(mtp_)?(ffn_inp|attn_residual|layer_out|ffn_out|post_ffn|post_moe|l_out)|eagle3_prenorm")
_LAYER = re.compile(r"-(\d+)$")
_CACHE = re.compile(r"cache_[rskv]_l(?=\d)")


def node_parts(nodes: Sequence[Node]) -> tuple[Part, ...]:
    """The part of each node. Raises: UnsupportedError for a graph without a head.

    Between a telling node and a closing sum (residuals) nodes belong to the former; others to the next telling name.
    """
    heads = [i for i, node in enumerate(nodes) if _stem(node.name) == "result_output"]
    if not heads:
        raise UnsupportedError("The graph of this model has no result_output, so its parts cannot be separated.")
    parts_by_name: list[Part | None] = [_part_of(node) for node in nodes[: heads[-1] + 1]]
    last = -1  # the last node whose part is known
    for i, node in enumerate(nodes[: heads[-1]]):
        closes = node.operation not in _FREE and _CLOSING.fullmatch(_stem(node.name))
        if parts_by_name[i] is None and last >= 0 and closes:
            parts_by_name[last + 1 : i + 1] = [parts_by_name[last]] * (i - last)
        if parts_by_name[i] is not None:
            last = i
    parts: list[Part] = ["sampling"] * len(nodes)
    following: Part = "head"
    for i in range(heads[-1], -1, -1):
        following = parts_by_name[i] or following
        parts[i] = following
    for i in range(1, heads[-1]):
        if nodes[i].operation in _FREE:
            parts[i] = parts[i - 1]
    return tuple(parts)


def _part_of(node: Node) -> Part | None:
    if node.operation in _FREE:
        return None
    stem = _stem(node.name)
    for part, pattern in _BY_NAME.items():
        if pattern.fullmatch(stem):
            return part
    return _BY_OPERATION.get(node.operation)


def _stem(name: str) -> str:
    """The name without the number of its block and without what a view adds."""
    first = name.split(" ", 1)[0]
    cache = _CACHE.match(first)
    return cache[0] if cache else _LAYER.sub("", first)


def part_ends(parts: Sequence[Part]) -> tuple[int, ...]:
    """Numbers of the nodes after which another part begins, the last node among them."""
    return tuple(i for i in range(len(parts)) if i + 1 == len(parts) or parts[i + 1] != parts[i])


def part_sums(ends: Sequence[int], parts: Sequence[Part], spans_ns: Sequence[int]) -> dict[Part, int]:
    """Time of each part from the spans that end at `ends`; parts that the graph does not have are left out."""
    sums: dict[Part, int] = {}
    for end, span in zip(ends, spans_ns, strict=True):
        sums[parts[end]] = sums.get(parts[end], 0) + span
    return {part: sums[part] for part in PARTS if part in sums}
