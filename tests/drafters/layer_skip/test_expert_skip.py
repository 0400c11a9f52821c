"""A mixture drafts for itself with fewer experts: exact, on its own memory or the target's, with all blocks or some."""

from types import SimpleNamespace

import numpy as np
import pytest

from mlsd.drafters import check_target
from mlsd.drafters.layer_skip import subset
from mlsd.drafters.layer_skip.expert_skip import ExpertSkipOptions
from mlsd.errors import InputError, UnsupportedError
from mlsd.gguf_tools.read import source_weight
from mlsd.gguf_tools.source import Source
from mlsd.records import DrafterSpec, OptionValue
from tests.drafters.arena import Arena, prompt_of
from tests.drafters.test_exactness import MIXTURES


@pytest.mark.parametrize("name", MIXTURES)
def test_fewer_experts_read_fewer_bytes(arena: Arena, name: str) -> None:
    weight = source_weight(Source(arena.path(name)))
    run = arena.run(name, "expert-skip:experts=1,mode=own", 2, prompt_of(5), 24)
    saved = weight.routed.fraction(weight.n_experts_used - 1, weight.n_experts).n_bytes
    assert run.stats["draft_read_bytes"] / run.stats["draft_steps"] == pytest.approx(
        weight.active.n_bytes - saved, abs=1
    )
    assert saved > 0


def test_the_draft_is_another_network_than_the_target(arena: Arena) -> None:
    path = arena.path("qwen3moe")
    rows = []
    for n_experts in (None, 1, 4):
        with arena.context(path, n_experts) as context:
            context.decode(prompt_of(6))
            rows.append(context.logits()[0])
    assert np.array_equal(rows[0], rows[2])  # as many as the file says
    assert np.abs(rows[0] - rows[1]).max() > 0.1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("qwen3moe", {"experts": 4}, "no smaller: qwen3moe.gguf uses 4"),
        ("qwen3moe", {"skip": "9"}, "no block 9"),
        ("qwen3moe", {"experts": 0}, "experts = 0"),
        ("llama", {}, "llama.gguf is dense: it has no routed experts"),
    ],
)
def test_what_would_not_be_smaller_is_refused_from_the_header(
    arena: Arena, name: str, options: dict[str, OptionValue], message: str
) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        check_target(DrafterSpec(name="expert-skip", options=options), arena.path(name))


def test_a_share_is_of_the_experts_in_use_and_never_less_than_one(arena: Arena) -> None:
    source = Source(arena.path("qwen3moe"))
    counts = [ExpertSkipOptions(share=share).made_draft(source).n_experts for share in (0.01, 0.5, 0.99)]
    assert counts == [1, 2, 3]


@pytest.mark.parametrize(
    ("n_experts", "backend", "runs"),
    [
        *((n, "Metal", n not in (3, 7, 9)) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 22)),
        (None, "Metal", True),
        (3, "CPU", True),
        (7, "CUDA", True),
    ],
)
def test_metal_has_kernels_for_some_counts_of_experts(n_experts: int | None, backend: str, runs: bool) -> None:
    if runs:
        subset.refuse_missing_kernel(n_experts, backend)
        return
    with pytest.raises(UnsupportedError, match=f"with {n_experts} routed experts cannot read a prompt on Metal"):
        subset.refuse_missing_kernel(n_experts, backend)


def test_a_count_without_a_kernel_is_refused_only_where_the_draft_reads_the_prompt(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subset, "backend_info", lambda _: SimpleNamespace(backend="Metal"))
    with pytest.raises(UnsupportedError, match=r"3 routed experts cannot read.*experts=2, or mode=sync"):
        arena.run("qwen3moe", "expert-skip:experts=3,mode=own", 2, prompt_of(3), 8)
    assert arena.run("qwen3moe", "expert-skip:experts=3,mode=sync", 2, prompt_of(3), 8).fell_back is None
