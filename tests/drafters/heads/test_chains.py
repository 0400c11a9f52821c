"""EAGLE-3 heads and next-token blocks of random weights: exact on every target, and what a fresh run gives."""

from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mlsd.drafters import check_target, drafting_key, recipe
from mlsd.drafters.chain import Chain
from mlsd.drafters.heads.eagle3 import eagle_memory
from mlsd.drafters.heads.mtp import ARCHITECTURES, block_memory
from mlsd.drafters.recipe import opening_of
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.heads import EagleHead, NextTokenHead
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.tree import ROOT
from mlsd.engine.verify import Verification
from mlsd.errors import InputError, MlsdError, UnsupportedError
from mlsd.folders import asset_path
from mlsd.gguf_tools.source import Source
from mlsd.planning.prompts import load_prompt
from mlsd.records import DrafterSpec, ModelRef, Sampling
from tests.drafters.arena import CLOCK, Arena, prompt_of
from tests.drafters.head_arena import (
    EAGLE_LAYERS,
    N_PREDICT,
    N_VOCAB_DRAFT,
    TABLES,
    TARGETS,
    FirstRows,
    MtpArena,
    mixed_run,
)
from tests.gguf_tools.random_heads import write_random_eagle3
from tests.measure.examples import case

TREE = "eagle3-tree:depth=3,top_k=4,commit=redecode"


@pytest.mark.parametrize(("method", "name"), [*(("eagle3", name) for name in TARGETS), ("mtp", "qwen35")])
def test_the_first_proposal_of_every_round_is_that_of_a_run_from_scratch(
    heads: Arena, blocks: Arena, method: str, name: str
) -> None:
    gamma, arena, draft = 5, *((blocks, None) if method == "mtp" else (heads, f"{name}-eagle3"))

    def head(context: LlamaContext) -> EagleHead | NextTokenHead:
        return NextTokenHead(context) if draft is None else EagleHead(arena.model(draft), context)

    with arena.opened(name, method, gamma, draft=draft) as (context, _):
        make = block_memory if method == "mtp" else eagle_memory
        with closing(FirstRows(make(context, head(context), CLOCK), Chain(CLOCK))) as watched:  # type: ignore[operator]
            result, mixed = mixed_run(arena, name, context, watched, gamma)
        options = msgspec.structs.replace(context.options, n_snapshots=0)
    assert {r.accepted for r in result.rounds} >= set(range(gamma))
    assert len(watched.first) == len(mixed.texts) > 5
    with open_context(arena.model(name), options) as fresh, closing(head(fresh)) as scratch:
        fresh.layer_rows.keep_hidden() if draft is None else fresh.layer_rows.keep(EAGLE_LAYERS[name])
        for text, logits in watched.first:
            fresh.clear()
            scratch.clear()
            fresh.decode(text[:-1])
            rows = fresh.layer_rows.rows[: len(text) - 1]
            if isinstance(scratch, EagleHead):
                scratch.decode(text[1:], scratch.encode(rows))
            else:
                scratch.decode(text, np.concatenate([np.zeros_like(rows[:1]), rows]))
            assert np.abs(scratch.logits()[0] - logits).max() <= max(2 * arena.noise(name), 1e-3)


def test_a_head_that_hands_on_the_last_row_repeats_the_target(tiny: Path, tmp_path: Path) -> None:
    """Its encoder picks the third of the three rows, which is the one under the target's own output matrix; its block
    adds nothing. So its first proposal is what the target said after the same position: the newest token."""
    target = tiny / "qwen35.gguf"
    pick = np.concatenate([np.zeros((64, 128)), np.eye(64)], axis=1).astype(np.float32)
    fixed = {
        "fc.weight": pick,
        "blk.0.attn_output.weight": np.zeros((64, 64), dtype=np.float32),
        "blk.0.ffn_down.weight": np.zeros((64, 128), dtype=np.float32),
        "output_norm.weight": np.ones(64, dtype=np.float32),
    }
    write_random_eagle3(tmp_path / "echo.gguf", Source(target), (2, 4, 8), fixed=fixed)
    with closing(Arena({"qwen35": target, "echo": tmp_path / "echo.gguf"})) as arena:
        prompt = prompt_of(2)
        plain = arena.plain("qwen35", prompt, N_PREDICT)
        with arena.opened("qwen35", "eagle3", 2, draft="echo") as (context, drafter):
            drafter.begin(prompt, np.random.default_rng(0))
            context.decode(prompt)
            for token in plain[:-1]:
                drafter.observe(Verification(accepted=0, committed=(token,)))
                assert drafter.propose(2).tokens[0] == token
                context.decode((token,))


# --- trees --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", ["keep", "redecode"])
@pytest.mark.parametrize(("gamma", "shape"), [(3, "depth=1,top_k=3"), (9, "depth=3,top_k=4"), (24, "depth=4,top_k=5")])
def test_trees_are_exact_whatever_is_accepted_of_them(heads: Arena, gamma: int, shape: str, commit: str) -> None:
    method = f"eagle3-tree:{shape},commit={commit}"
    with heads.opened("llama", method, gamma, draft="llama-eagle3") as (context, drafter):
        result, _ = mixed_run(heads, "llama", context, drafter, gamma)
    assert {r.accepted for r in result.rounds} >= {0, 1, 2}


def test_a_tree_of_one_path_is_the_chain(heads: Arena) -> None:
    prompt, drafts = prompt_of(7), []
    for method in ("eagle3", "eagle3-tree:depth=4,top_k=1,commit=redecode"):
        with heads.opened("llama", method, 4, draft="llama-eagle3") as (context, drafter):
            drafter.begin(prompt, np.random.default_rng(0))
            context.decode(prompt)
            own = []
            for token in heads.plain("llama", prompt, 6)[:-1]:
                drafter.observe(Verification(accepted=0, committed=(token,)))
                draft = drafter.propose(4)
                own.append(draft.tokens if draft.tree is None else draft.tree.tokens)
                context.decode((token,))
            drafts.append(own)
    assert drafts[0] == drafts[1]


def test_each_level_grown_equals_its_paths_alone(heads: Arena) -> None:
    text, levels = prompt_of(3), [((1, 2, 3), (ROOT,) * 3), ((4, 5, 6, 7), (2, 0, 0, 1)), ((8, 9), (3, 1))]
    options = ContextOptions(n_ctx=256, n_threads=1, device_sampling=False, kind="layer-rows")
    with open_context(heads.model("llama"), options) as context:
        context.layer_rows.keep(EAGLE_LAYERS["llama"])
        context.decode(text)
        model = heads.model("llama-eagle3")
        with closing(EagleHead(model, context, widest_level=4)) as wide, closing(EagleHead(model, context)) as single:
            encoded = single.encode(context.layer_rows.rows[: len(text) - 1])
            for _ in range(2):  # a second tree starts from the text again
                wide.clear()
                wide.decode(text[1:], encoded)
                paths: list[tuple[int, ...]] = [()]
                for tokens, parents in levels:
                    rows = wide.grow(tokens, parents)
                    paths = [(*paths[max(parent, 0)], token) for token, parent in zip(tokens, parents, strict=True)]
                    for path, row in zip(paths, rows, strict=True):
                        single.clear()
                        single.decode(text[1:], encoded)
                        for token in path:
                            single.decode((token,), single.hidden_row())
                        # Cells of a level lie in another order, so kernels sum in another.
                        assert np.abs(single.logits()[0] - row).max() < 0.05
                wide.truncate(len(text) - 1)


# --- every kind of head ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "head"), [("eagle3", "eagle3-reduced"), (TREE, "eagle3-reduced"), ("dflash", "dflash-bonus")]
)
def test_a_reduced_vocabulary_proposes_only_what_it_maps(heads: Arena, method: str, head: str) -> None:
    mapped = set(Source(heads.path(head)).data("d2t").view(np.int64).tolist())
    assert len(mapped) == N_VOCAB_DRAFT
    with heads.opened("llama", method, 6, draft=head, sampling=Sampling(temperature=1.0)) as (context, drafter):
        drafter.begin(prompt_of(1), np.random.default_rng(0))
        context.decode(prompt_of(1))
        drafter.observe(Verification(accepted=0, committed=(3,)))
        draft = drafter.propose(4)
    assert draft.n_proposed and set(draft.tokens if draft.tree is None else draft.tree.tokens) <= mapped
    if draft.probabilities is not None:
        assert set(np.flatnonzero(draft.probabilities.sum(axis=0)).tolist()) <= mapped
        assert np.allclose(draft.probabilities.sum(axis=1), 1)


# --- refusals -----------------------------------------------------------------------------------------------------


def spec(name: str, draft: str | None = "head") -> DrafterSpec:
    return DrafterSpec(name=name, draft=None if draft is None else ModelRef(id=draft))


@pytest.mark.parametrize("method", ["eagle3", "eagle3-tree", "dflash"])
def test_what_cannot_work_is_refused_from_the_headers(heads: Arena, method: str) -> None:
    with pytest.raises(InputError, match=f"The {method} method needs a head"):
        check_target(spec(method, None), heads.path("llama"))
    with pytest.raises(UnsupportedError, match="graph of falcon-h1 does not give out"):
        check_target(spec(method), heads.path("falcon-h1"))
    for other in ("llama", "qwen35-dflash" if method != "dflash" else "qwen35-eagle3"):
        with pytest.raises(UnsupportedError, match="not a head for"):
            check_target(spec(method), heads.path("llama"), heads.path(other))


def test_trees_are_refused_on_recurrent_targets_with_the_way_out(heads: Arena) -> None:
    with pytest.raises(UnsupportedError, match="needs a target with attention memory only"):
        check_target(spec("eagle3-tree"), heads.path("qwen35"), heads.path("qwen35-eagle3"))
    with pytest.raises(UnsupportedError, match="--drafter eagle3"):
        heads.run("qwen35", "eagle3-tree", 8, prompt_of(1), 4, draft="qwen35-eagle3")


@pytest.mark.parametrize("head", ["llama-eagle3", "llama-dflash", "eagle3-wide"])
def test_a_head_cannot_run_alone(heads: Arena, head: str) -> None:
    with LlamaModel(heads.path(head)) as model, pytest.raises(UnsupportedError, match="cannot run alone"):
        open_context(model, ContextOptions(n_ctx=64, n_threads=1))
    with pytest.raises(MlsdError, match="cannot run alone"):
        heads.run("llama", "draft-model", 2, prompt_of(1), 4, draft=head)


@pytest.mark.parametrize("method", ["eagle3", "eagle3-tree", "dflash"])
def test_a_head_is_no_model_to_compare_with_its_target(method: str) -> None:
    assert drafting_key(spec(method)) is None
    assert drafting_key(spec("draft-tree")) == "id:head"


def test_unchecked_rollback_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="which a failed pass does not produce"):
        recipe(opening_of(case(drafter=spec("eagle3")), ContextOptions(n_ctx=64), "unchecked", lambda: "trim"))


@pytest.mark.parametrize("name", ["qwen35", "qwen35moe", *TABLES])
def test_the_row_that_the_next_step_reads_is_of_the_last_token_however_many_were_read_with_it(
    blocks: Arena, name: str
) -> None:
    text = prompt_of(3)
    with open_context(blocks.model(name), ContextOptions(n_ctx=64, n_threads=1, kind="layer-rows")) as context:
        context.layer_rows.keep_hidden()
        context.decode(text)
        rows = context.layer_rows.rows[: len(text) - 1]
        rows = np.concatenate([np.zeros((1, rows.shape[1]), dtype=np.float32), rows])
        with closing(NextTokenHead(context)) as head:
            hidden = []
            for together in (len(text), 3, 1):
                head.clear()
                for first in range(0, len(text), together):
                    head.decode(text[first : first + together], rows[first : first + together])
                hidden.append(head.hidden_row())
    spread = np.abs(hidden[-1]).max()
    assert all(np.abs(rows - hidden[-1]).max() < 0.05 * spread for rows in hidden)


@pytest.mark.parametrize("name", ["qwen35", "llama"])
def test_a_target_without_the_block_is_refused_from_its_header(tiny: Path, name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"no next-token block|a llama model; mtp"):
        check_target(DrafterSpec(name="mtp"), tiny / f"{name}.gguf")


def test_every_architecture_that_is_served_was_tried() -> None:
    assert {"qwen35", "qwen35moe", *(table.architecture for table in TABLES.values())} == set(ARCHITECTURES)


def test_a_model_loaded_without_its_block_is_refused(blocks: Arena) -> None:
    options = ContextOptions(n_ctx=64, n_threads=1, kind="layer-rows")
    with (
        LlamaModel(blocks.path("qwen35")) as model,
        open_context(model, options) as context,
        pytest.raises(UnsupportedError, match="without next-token block"),
    ):
        context.layer_rows.keep_hidden()


def test_a_trained_block_is_accepted_more_often_than_not() -> None:
    with closing(MtpArena({"dense": asset_path("tiny/tiny-dense-mtp.gguf")}, n_ctx=512)) as family:
        prompt = family.model("dense").tokenize(load_prompt("code").text)
        run = family.run("dense", "mtp", 3, prompt, 48)
        family.assert_exact("dense", prompt, run)
        assert run.accepted / run.proposed > 0.4
