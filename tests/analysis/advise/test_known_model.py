"""What a name says of a model that is not here."""

import pytest

from mlsd.analysis.advise.known_model import named
from mlsd.errors import MlsdError
from mlsd.planning.known_shapes import shape_of
from mlsd.records import ModelFacts, ModelRef


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("qwen3.5-35b-a3b", ("qwen3.5-35b-a3b", None)),
        ("Qwen3.5-35B-A3B-Q4_K_M", ("qwen3.5-35b-a3b", "Q4_K_M")),
        ("qwen3.5-35b-a3b-ud-q4_k_xl", ("qwen3.5-35b-a3b", "Q4_K_M")),
        ("qwen3.5-0.8b-bf16", ("qwen3.5-0.8b", "BF16")),
        ("qwen3.5-35b-a3b-ud-q8_k_xl", ("qwen3.5-35b-a3b", None)),
        ("qwen3.5-27b-ud-q3_k_xl", ("qwen3.5-27b", "Q3_K_XL")),
        ("qwen3.5-27b-iq2_xxs", ("qwen3.5-27b", "IQ2_XXS")),
        ("qwen3.5-27b-mxfp8", ("qwen3.5-27b", "MXFP8")),
        ("qwen3.5-9b-mtp-q4_k_m", ("qwen3.5-9b", "Q4_K_M")),
        ("qwen3.5-9b-4bit", ("qwen3.5-9b", "Q4_0")),
        ("Qwen3.8-27B-MTP-Q8_0", ("qwen3.5-27b", "Q8_0")),
        ("Llama-3.3-70B-Instruct-Q4_K_M.gguf", ("llama-3.3-70b", "Q4_K_M")),
        ("Qwen3.5-27B-4bit-MTPLX-Optimized-Speed", ("qwen3.5-27b", "Q4_0")),
        ("Qwen3.5-27B-MTPLX-Optimized-Speed-4bit", ("qwen3.5-27b", "Q4_0")),
        ("qwen3.5-27b-4-bit mixed", ("qwen3.5-27b", "Q4_0")),
        ("qwen3.5-27b-dflash-4bit", ("qwen3.5-27b", None)),
        ("qwen3.5-27bogus", (None, None)),
        ("qwen3.5-27b-q9_x", ("qwen3.5-27b", None)),
        ("gemma", (None, None)),
    ],
)
def test_ids_say_shape_and_quantization(text: str, found: tuple[str | None, str | None]) -> None:
    assert shape_of(text) == found


def test_an_id_that_is_not_here_has_the_bytes_of_its_own_quantization() -> None:
    small, large = named("qwen3.5-35b-a3b-q4_k_m"), named("qwen3.5-35b-a3b")
    assert (small.quant, large.quant) == ("Q4_K_M", "Q8_0")
    assert not small.here
    assert (small.facts.weight_bytes or 0) < 0.62 * (large.facts.weight_bytes or 0)
    assert named("qwen3.5-35b-a3b", "Q4_K_M").facts.weight_bytes == small.facts.weight_bytes
    assert named("tiny-moe").here


def test_an_assumed_quantization_is_marked_and_an_unknown_name_refused() -> None:
    assert named("qwen3.5-9b").quant_assumed and not named("qwen3.5-9b-mtp-q4_k_m").quant_assumed
    assert named("qwen3.5-35b-a3b-ud-q8_k_xl").facts.weight_bytes == pytest.approx(48_688_560_768)
    for unknown in ("qwen3.5-27bogus", "qwen3.5-27b-q9_x", "qwen3.5-9b-dflash-q8_0"):
        with pytest.raises(MlsdError, match=unknown):
            named(unknown)


def test_sizes_alone_are_enough_and_are_asked_for_with_an_unknown_name() -> None:
    small = named("phi-4-mini-3.8b-4bit", elsewhere=True)  # which starts like a larger one
    assert small.facts.n_parameters == 3_800_000_000 and small.shape is None
    oss = named("gpt-oss-120b", elsewhere=True)
    assert oss.quant_assumed and oss.quant == "Q4_0" and oss.facts.n_parameters == 116_800_000_000
    for name, hint in (
        ("mistral-small", "by its sizes: mistral-small-27b-q4"),
        ("phi-4-mini-4bit", "phi-4-mini-3.8b-q4"),
    ):
        with pytest.raises(MlsdError, match=name) as error:
            named(name, elsewhere=True)
        assert hint in error.value.hint


def test_models_of_one_shape_go_by_their_own_names() -> None:
    model = named("qwen3.8-27b")
    assert model.shape is not None and model.shape.name == "qwen3.5-27b"
    assert model.quant_assumed and named("deepseek-r1-distill-qwen-32b-q8_0").quant == "Q8_0"


def test_a_database_remembers_models_that_are_gone() -> None:
    gone = ModelFacts(ref=ModelRef(id="gone", sha256="a" * 64), architecture="llama")
    assert named("gone", stored=[gone]).facts is gone
    with pytest.raises(MlsdError, match="gone"):
        named("gone")
