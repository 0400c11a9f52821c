"""Drafting with the target's own next-token block, here one of random weights: exact, and what a fresh run gives."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mlsd.drafters import check_target
from mlsd.drafters.heads.mtp import ARCHITECTURES
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.heads import NextTokenHead
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.errors import UnsupportedError
from mlsd.folders import asset_path
from mlsd.planning.prompts import load_prompt
from mlsd.records import DrafterSpec
from tests.drafters.arena import Arena, prompt_of
from tests.drafters.head_arena import TABLES, MtpArena


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
            found = []
            for together in (len(text), 3, 1):
                head.clear()
                for first in range(0, len(text), together):
                    head.decode(text[first : first + together], rows[first : first + together])
                found.append(head.hidden_row())
    spread = np.abs(found[-1]).max()
    assert all(np.abs(one - found[-1]).max() < 0.05 * spread for one in found)


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
