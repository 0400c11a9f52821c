import gguf
import pytest

from mlsd.errors import ModelFileError
from mlsd.gguf_tools.read import model_facts, weigh
from mlsd.gguf_tools.shape import TINY, TINY_ATTENTION
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.stream import write_gguf
from mlsd.gguf_tools.surgery.edit import keep_layers
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.gguf_tools.tensor import Tensor
from mlsd.hashes import digest
from mlsd.records import ModelRef

SHAPES = {**TINY, **TINY_ATTENTION}
F32, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0


def test_one_token_reads_the_head_the_mixers_and_its_share_of_the_experts():
    tensors = [
        Tensor(name="token_embd.weight", dims=(32, 100), type=F32),
        Tensor(name="output.weight", dims=(32, 100), type=Q8_0),
        Tensor(name="blk.0.attn_q.weight", dims=(32, 32), type=Q8_0),
        Tensor(name="blk.0.ffn_up_exps.weight", dims=(32, 64, 8), type=Q8_0),
        Tensor(name="blk.1.nextn.eh_proj.weight", dims=(64, 32), type=Q8_0),
    ]
    weight = weigh(tensors, n_trunk=1, n_experts=8, n_experts_used=2)
    assert weight.total.n_parameters == 3200 + 3200 + 1024 + 16384 + 2048
    assert weight.active.n_parameters == 3200 + 1024 + 16384 // 4
    assert weight.active.n_bytes == (3200 + 1024 + 4096) * 34 // 32
    assert weight.expert.n_parameters == 2048
    assert weight.lookup.n_bytes == 12800
    assert weight.prediction.n_parameters == 2048


def test_a_tied_embedding_is_read_as_the_head():
    tensors = [Tensor(name="token_embd.weight", dims=(32, 100), type=F32)]
    assert weigh(tensors).active.n_parameters == 3200


@pytest.mark.parametrize("name", SHAPES)
def test_facts_of_a_tiny_model_agree_with_its_shape(name, tiny):
    shape = SHAPES[name]
    facts = model_facts(tiny / f"{name}.gguf")
    assert facts.ref == ModelRef(
        id=name, sha256=digest(tiny / f"{name}.gguf"), n_bytes=(tiny / f"{name}.gguf").stat().st_size
    )
    assert (facts.architecture, facts.n_layers, facts.n_embd) == (shape.architecture, shape.n_layers, shape.n_embd)
    assert facts.n_parameters == shape.n_parameters
    assert facts.n_vocab == shape.n_vocab
    assert facts.n_experts == (shape.n_experts or None)
    assert facts.n_parameters_active < facts.n_parameters
    assert sum(facts.tensor_types.values()) > 20
    assert facts.synthetic


def test_facts_of_the_real_model(smollm2):
    facts = model_facts(smollm2)
    assert facts.n_parameters == facts.n_parameters_active == 134_515_008
    assert facts.n_vocab == 49_152
    assert facts.tensor_types == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert not facts.synthetic


def split(path, folder, n_first):
    """The model as two files, the way llama.cpp splits one."""
    source = Source(path)
    places = [folder / f"x-0000{i}-of-00002.gguf" for i in (1, 2)]
    for number, (offset, tensors) in enumerate(
        zip(places, (source.tensors[:n_first], source.tensors[n_first:]), strict=True)
    ):

        def describe(writer, number=number):
            if number == 0:
                source.copy_metadata(writer)
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", 2)

        write_gguf(offset, source.architecture, tensors, describe, source.pieces)
    return places


def test_a_model_in_two_files_is_counted_whole_and_not_cut(tiny, tmp_path):
    first, second = split(tiny / "llama.gguf", tmp_path, 20)
    whole, parts = model_facts(tiny / "llama.gguf"), model_facts(first)
    assert (parts.n_parameters, parts.tensor_types) == (whole.n_parameters, whole.tensor_types)
    with pytest.raises(ModelFileError, match="one of 2 files"):
        perturb(first, tmp_path / "y.gguf", noise=0.1)
    with pytest.raises(ModelFileError, match="one of 2 files"):
        keep_layers(Source(first), [0])
    second.unlink()
    with pytest.raises(ModelFileError, match="x-00002-of-00002"):
        model_facts(first)
