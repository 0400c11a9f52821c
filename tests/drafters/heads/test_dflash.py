"""DFlash heads of random weights: exact on every target that gives out rows, and what a fresh run gives."""

from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mlsd.drafters import check_target
from mlsd.drafters.heads.dflash import BlockDraft
from mlsd.engine.context import Logits
from mlsd.engine.llama.heads import BlockHead
from mlsd.engine.llama.open import open_context
from mlsd.engine.verify import Verification
from mlsd.errors import UnsupportedError
from mlsd.gguf_tools.source import Source
from mlsd.records import DrafterSpec, ModelRef, Sampling
from tests.drafters.arena import CLOCK, Arena, prompt_of
from tests.drafters.head_arena import BLOCK_LAYERS, TARGETS, mixed_run
from tests.gguf_tools.random_heads import write_random_dflash


class Blocks(BlockHead):
    """Keeps the logits of every block."""

    def fill(self, last: int, mask: int, n_rows: int) -> Logits:
        logits = super().fill(last, mask, n_rows)
        self.filled = [*getattr(self, "filled", []), logits]
        return logits


@pytest.mark.parametrize("name", TARGETS)
def test_the_block_of_every_round_is_that_of_a_run_from_scratch(heads: Arena, name: str) -> None:
    gamma, model, weights = 5, heads.model(name), heads.model(f"{name}-dflash")
    with heads.opened(name, "dflash", gamma, draft=f"{name}-dflash") as (context, drafter):
        assert isinstance(drafter, BlockDraft)
        head = drafter._head
        with closing(Blocks(weights, context, causal=False, widest_block=8)) as filler:
            watched = BlockDraft(context, filler, head, CLOCK, Sampling())
            result, mixed = mixed_run(heads, name, context, watched, gamma)
        options = msgspec.structs.replace(context.options, n_snapshots=0)
    assert {r.accepted for r in result.rounds} >= set(range(gamma))
    noise = 2 * heads.noise(name)
    with open_context(model, options) as fresh:
        fresh.layer_rows.keep(BLOCK_LAYERS[name])
        with closing(BlockHead(weights, fresh, causal=False, widest_block=8)) as scratch:
            for text, logits in zip(mixed.texts, filler.filled, strict=True):
                fresh.clear()
                scratch.clear()
                fresh.decode(text[:-1])
                scratch.inject(fresh.layer_rows.rows[: len(text) - 1])
                again = scratch.fill(text[-1], head.mask, len(logits))
                assert np.abs(again - logits).max() <= max(noise, 1e-3)


def block(heads: Arena, head: str, text: tuple[int, ...], n_rows: int, *, causal: bool, mask: int = 511) -> Logits:
    with heads.opened("llama", "dflash", 4, draft=head) as (context, _):
        context.decode(text[:-1])
        with closing(BlockHead(heads.model(head), context, causal=causal, widest_block=8)) as filler:
            filler.inject(context.layer_rows.rows[: len(text) - 1])
            return filler.fill(text[-1], mask, n_rows)


def test_positions_of_a_block_see_each_other_unless_attention_is_causal(heads: Arena) -> None:
    """A longer block changes the rows of a shorter one only where later positions are seen."""
    for head, causal in (("dflash-causal", True), ("llama-dflash", False)):
        short, long = (block(heads, head, prompt_of(2), n, causal=causal) for n in (2, 4))
        assert (np.abs(long[:2] - short).max() < 1e-3) == causal


def test_a_markov_head_corrects_each_position_by_the_one_before(heads: Arena, tiny: Path, tmp_path: Path) -> None:
    """The same head without it gives other rows; with it the first row is corrected by the newest token."""
    options = {"n_block": 5, "seed": 0}
    write_random_dflash(tmp_path / "plain.gguf", Source(tiny / "llama.gguf"), BLOCK_LAYERS["llama"], **options)  # type: ignore[arg-type]
    with closing(Arena({"llama": tiny / "llama.gguf", "plain": tmp_path / "plain.gguf"})) as arena:
        without = block(arena, "plain", prompt_of(2), 4, causal=False)
    corrected = block(heads, "dflash-markov", prompt_of(2), 4, causal=False)
    source = Source(heads.path("dflash-markov"))
    first, second = (_floats(source, name) for name in ("markov_w1.weight", "markov_w2.weight"))
    previous = prompt_of(2)[-1]
    for i in range(4):
        np.testing.assert_allclose(corrected[i] - without[i], second @ first[previous], atol=0.02)
        previous = int(corrected[i].argmax())


def test_a_selector_takes_the_best_next_token_step_by_step(heads: Arena) -> None:
    """Scores are the block's own logits plus a product of both tokens' vectors, weighed by the position's row."""
    text, k = prompt_of(2), 5
    source = Source(heads.path("dflash-selector"))
    before, after, weigh = (
        _floats(source, f"selector_{name}.weight") for name in ("predecessor", "successor", "hidden")
    )
    with heads.opened("llama", "dflash", 4, draft="dflash-selector") as (context, drafter):
        assert isinstance(drafter, BlockDraft)
        drafter.begin(text[:-1], np.random.default_rng(0))
        context.decode(text[:-1])
        drafter.observe(Verification(accepted=0, committed=text[-1:]))
        chosen = drafter.propose(k).tokens
        logits = drafter._context.fill(text[-1], 511, k + 1)
    # The output matrix has more rows than a hidden row has numbers, so the logits give the row back.
    output = _floats(Source(heads.path("llama")), "output.weight")
    hidden = np.linalg.lstsq(output, logits.T, rcond=None)[0].T
    previous, expected = text[-1], []
    for i in range(1, k + 1):
        candidates = np.argsort(-logits[i])[:5]
        scores = logits[i][candidates] + after[candidates] @ (before[previous] * (weigh @ hidden[i]))
        previous = int(candidates[scores.argmax()])
        expected.append(previous)
    assert chosen == tuple(expected)


def _floats(source: Source, name: str) -> np.ndarray:
    import gguf

    tensor = next(tensor for tensor in source.tensors if tensor.name == name)
    values = gguf.quants.dequantize(source.data(name), tensor.type)
    return np.asarray(values).reshape(tensor.dims[::-1])


def test_the_row_after_the_last_block_is_refused(heads: Arena, tiny: Path, tmp_path: Path) -> None:
    write_random_dflash(tmp_path / "last.gguf", Source(tiny / "qwen35.gguf"), (2, 8))
    spec = DrafterSpec(name="dflash", draft=ModelRef(id="last"))
    with pytest.raises(UnsupportedError, match="wants the rows of layer 8; this qwen35 target gives out 0 to 7"):
        check_target(spec, heads.path("qwen35"), tmp_path / "last.gguf")
