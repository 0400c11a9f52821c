"""Cut models are loaded by llama.cpp; that they compute what the target without those blocks does is shown in
`tests/drafters/layer_skip/test_subset.py`, for every kind of cut."""

import msgspec
import numpy as np
import pytest

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import attention_only, keep_layers, recurrent_only, silence, write_edit
from mlsd.gguf_tools.synthetic.write import write_random

TOKENS = list(range(40, 60))


def logits(path):
    options = ContextOptions(n_ctx=64, n_threads=1, n_batch=32, max_outputs=32, device_sampling=False)
    with LlamaModel(path) as model, open_context(model, options) as context:
        context.decode(TOKENS, n_outputs=len(TOKENS))
        return context.logits()


def test_a_prediction_block_is_left_out_of_a_draft(tmp_path):
    shape = msgspec.structs.replace(TINY["qwen35"], n_mtp_blocks=1)
    write_random(tmp_path / "mtp.gguf", shape, seed=1)
    source = Source(tmp_path / "mtp.gguf")
    write_edit(source, keep_layers(source, range(8)), tmp_path / "trunk.gguf")
    trunk = Source(tmp_path / "trunk.gguf")
    assert trunk.count("block_count", None) == 8
    assert trunk.count("nextn_predict_layers", None) is None
    assert not any(".nextn." in tensor.name for tensor in trunk.tensors)
    assert np.array_equal(logits(trunk.path), logits(source.path))


def test_an_attention_model_has_no_recurrent_part(tiny, tmp_path):
    source = Source(tiny / "llama.gguf")
    with pytest.raises(ModelFileError, match="no recurrent part"):
        recurrent_only(source, [0])
    with pytest.raises(ModelFileError, match="no parallel blocks"):
        attention_only(source, [0])
    with pytest.raises(InputError, match="No block has a part"):
        silence(keep_layers(source, [0]), ["ssm_out"], label="")
    with pytest.raises(InputError, match="onto itself"):
        write_edit(source, keep_layers(source, [0]), source.path)
