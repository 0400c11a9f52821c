"""Kangaroo with random adapters: exact, as doubtful as asked for, and an early exit where the adapter says nothing."""

from pathlib import Path

import msgspec
import pytest

from mlsd.drafters import check_target, drafting_file, drafting_key, find_method, resolve_spec
from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.source import Source
from mlsd.records import DrafterSpec, OptionValue
from tests.drafters.arena import Arena, Run, first, prompt_of
from tests.drafters.conftest import ADAPTED
from tests.gguf_tools.adapters import write_adapter

N_PREDICT = 40


@pytest.mark.parametrize("name", ADAPTED)
def test_an_adapter_that_adds_nothing_drafts_as_an_early_exit(
    arena: Arena, adapters: dict[str, Path], name: str
) -> None:
    def run(exit_after: int, seed: int) -> Run:
        prompt, early = prompt_of(seed), f"layer-skip:mode=own,exit={exit_after}"
        method = f"kangaroo:adapter={adapters[f'{name}-identity']},exit={exit_after},p_min=0"
        kangaroo = arena.run(name, method, 3, prompt, N_PREDICT)
        arena.assert_same_counts(name, kangaroo, arena.run(name, early, 3, prompt, N_PREDICT))
        return kangaroo

    runs = (run(exit_after, seed) for seed in range(4, 12) for exit_after in (2, 4, 5))
    first(runs, lambda made: 0 < made.accepted < made.proposed)


# --- options ----------------------------------------------------------------------------------------------------------


def spec(**options: OptionValue) -> DrafterSpec:
    return DrafterSpec(name="kangaroo", options=options)


def test_an_adapter_that_was_replaced_is_refused_by_its_content(arena: Arena, tmp_path: Path, tiny: Path) -> None:
    path = write_adapter(tmp_path / "adapter", TINY["llama"], seed=1)
    first = find_method("kangaroo").read(resolve_spec(spec(adapter=str(path))))
    write_adapter(path, TINY["llama"], seed=2)
    second = find_method("kangaroo").read(resolve_spec(spec(adapter=str(path))))
    assert first.content != second.content
    target = Source(tiny / "llama.gguf")
    assert second.made_draft(target).file() == second.made_draft(target).file()
    assert second.made_draft(target).file() != msgspec.structs.replace(second, exit=3).made_draft(target).file()
    with pytest.raises(InputError, match="it was replaced"):
        first.made_draft(target)


def test_the_same_weights_draft_whatever_the_threshold(adapters: dict[str, Path], tmp_path: Path, tiny: Path) -> None:
    copy = write_adapter(tmp_path / "copy", TINY["llama"], seed=1)
    specs = [
        spec(adapter=str(adapters["llama"])),
        spec(adapter=str(copy), p_min=0.2),
        spec(adapter=str(copy), exit=3),
        spec(adapter=str(adapters["llama-identity"])),
    ]
    keys = [drafting_key(resolve_spec(spec)) for spec in specs]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    file = drafting_file(resolve_spec(specs[2]), tiny / "llama.gguf")
    assert file is not None
    assert Source(file).count("block_count", None) == 4


def test_a_target_that_the_adapter_does_not_fit_is_refused_from_its_header(
    adapters: dict[str, Path], tiny: Path
) -> None:
    with pytest.raises(InputError, match="width of a head"):
        check_target(spec(adapter=str(adapters["qwen2"])), tiny / "llama.gguf")
    with pytest.raises(InputError, match="exit after block 6"):
        check_target(spec(adapter=str(adapters["llama"]), exit=6), tiny / "llama.gguf")
    with pytest.raises(ModelFileError, match="whose blocks may compute more"):
        check_target(spec(adapter=str(adapters["llama"])), tiny / "qwen35.gguf")


def test_a_drafter_without_its_adapter_is_refused_before_any_load(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    for options, message in (({}, "needs the option adapter"), ({"adapter": str(tmp_path)}, "is a pickle")):
        with pytest.raises(InputError, match=message):
            resolve_spec(spec(**options))
