"""Choices of blocks: what they mean, and what is refused from the header alone."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import (
    attention_layers,
    choose_layers,
    plan_cut,
    read_layers,
    state_layers,
    uniform_skip,
)
from mlsd.units import as_ranges


@given(st.sets(st.integers(0, 90), min_size=1))
def test_layers_survive_being_written_and_read(layers: set[int]) -> None:
    assert read_layers(as_ranges(sorted(layers))) == tuple(sorted(layers))


@pytest.mark.parametrize("text", ["", "x", "3-", "5-2", "-1", "1,,two", "9999999999"])
def test_text_that_names_no_blocks_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_layers(text)


@given(st.integers(3, 100), st.floats(0.01, 0.99))
def test_a_uniform_skip_spares_both_ends_and_is_spread(n_layers: int, fraction: float) -> None:
    skipped = uniform_skip(n_layers, fraction)
    assert len(set(skipped)) == len(skipped) == min(round(fraction * n_layers), n_layers - 2)
    assert all(0 < layer < n_layers - 1 for layer in skipped)
    gaps = [b - a for a, b in itertools.pairwise(skipped)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_each_way_of_choosing_names_the_blocks_that_stay() -> None:
    assert choose_layers(6, keep=[4, 0]) == (0, 4)
    assert choose_layers(6, skip=[1, 2]) == (0, 3, 4, 5)
    assert choose_layers(6, exit_after=2) == (0, 1)
    assert choose_layers(6, fraction=0.34) == (0, 1, 3, 5)
    assert choose_layers(3) == (0, 1, 2)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"keep": [6]}, "no block 6: the model has blocks 0 to 5"),
        ({"skip": [7]}, "no block 7"),
        ({"skip": range(6)}, "No block would stay"),
        ({"exit_after": 0}, "exit after block 0"),
        ({"exit_after": 7}, "exit after block 7"),
        ({"fraction": 1.0}, "share of 1.0"),
        ({"fraction": 0.5, "keep": [1]}, "keep and fraction exclude each other"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(choice: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_layers(6, **choice)  # type: ignore[arg-type]


def test_a_hybrid_without_any_attention_block_is_refused_because_it_ends_the_process(tiny: Path) -> None:
    source = Source(tiny / "qwen35.gguf")
    with pytest.raises(InputError, match="ends the process"):
        plan_cut(source, [0, 1, 2])
    with pytest.raises(InputError, match="has attention"):
        plan_cut(source, [0, 1, 2], "recurrent-blocks")
    assert plan_cut(source, range(8), "recurrent-blocks").layers == (0, 1, 2, 3, 4, 5, 6)


def test_an_architecture_that_cannot_be_renumbered_is_refused_with_the_reason(tiny: Path, tmp_path: Path) -> None:
    data = (tiny / "llama.gguf").read_bytes()
    other = tmp_path / "gemma.gguf"
    other.write_bytes(data.replace(b"llama", b"gemma"))
    with pytest.raises(ModelFileError, match="may depend on their own number"):
        plan_cut(Source(other), [0])


def test_memory_kinds_follow_the_architecture(tiny: Path) -> None:
    kinds = {name: Source(tiny / f"{name}.gguf") for name in ("llama", "qwen35", "falcon-h1")}
    assert [len(attention_layers(source)) for source in kinds.values()] == [6, 2, 4]
    assert [len(state_layers(source)) for source in kinds.values()] == [0, 6, 4]
    assert attention_layers(kinds["qwen35"]) == (3, 7)
