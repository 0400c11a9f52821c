"""The list of methods: every one is in it, with all that a user may set, and every preset is one that works."""

from __future__ import annotations

import pytest

from mlsd.cli.options import parse_drafter
from mlsd.drafters import METHODS, UNAVAILABLE, catalogue, method_module, preset_gamma, resolve_spec
from mlsd.drafters.options import read_options
from mlsd.errors import InputError, UnsupportedError
from mlsd.records import DrafterSpec, OptionValue

PRESETS = [(name, preset) for name in METHODS for preset in getattr(method_module(name), "PRESETS", {})]
# Options without a default.
NEEDED: dict[str, dict[str, OptionValue]] = {"rest": {"store": "shipped"}, "kangaroo": {"adapter": "folder"}}

# Seed 004, table 5, in the order Qwen2.5-1.5B, SmolLM2-1.7B, Llama-3.2-1B, Vicuna-7B; its SpS has no Llama column.
MODELS = ("qwen2.5-1.5b", "smollm2", "llama-3.2-1b", "vicuna-7b")
PRINTED: dict[str, dict[str, tuple[OptionValue | None, ...]]] = {
    "draft-model": {"gamma": (2, 2, None, 10)},
    "lookahead": {"ngram": (4, 4, 6, 5), "window": (20, 20, 10, 7), "guesses": (20, 20, 10, 7)},
    "pld": {"ngram": (3, 3, 3, 3), "gamma": (20, 15, 15, 10)},
    "kangaroo": {"exit": (2, 2, 2, 2), "p_min": (0.6, 0.7, 0.8, 0.3), "gamma": (7, 7, 4, 6)},
    "draft-tree": {"gamma": (48, 48, 48, 60), "depth": (2, 3, 2, 5), "top_k": (20, 20, 20, 10)},
    "eagle3-tree": {"gamma": (48, 48, 48, 60), "depth": (2, 3, 2, 5), "top_k": (20, 20, 20, 10)},
    "rest small": {"gamma": (64, 64, 48, 64), "span": (4, 3, 3, 16)},
    "rest large": {"gamma": (64, 48, 64, 64), "span": (5, 10, 5, 16)},
}


def test_every_method_is_listed_with_its_options_explained() -> None:
    listed = {method.name: method for method in catalogue.methods()}
    assert listed.keys() == METHODS.keys()
    for name, method in listed.items():
        assert method.summary.endswith("."), f"{name}: the first line of its module is its summary"
        fields = getattr(getattr(method_module(name), "OPTIONS", None), "__struct_fields__", ())
        assert tuple(option.name for option in method.options) == fields
        assert all(option.meaning and option.values for option in method.options), f"{name}: an option says nothing"
        assert "gamma" in method.searched


def test_what_cannot_run_is_listed_with_the_reason() -> None:
    assert {entry.name for entry in catalogue.unavailable()} == UNAVAILABLE.keys()
    with pytest.raises(UnsupportedError, match="Medusa"):
        catalogue.describe("medusa")


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_every_preset_can_be_asked_for_and_says_where_it_is_from(name: str, preset: str) -> None:
    module = method_module(name)
    asked = DrafterSpec(name=name, options={"preset": preset, **NEEDED.get(name, {})})
    if hasattr(module, "OPTIONS"):
        read_options(asked, module.OPTIONS, module.PRESETS)
    gamma = preset_gamma(asked)
    assert gamma is not None
    assert gamma == module.PRESETS[preset].gamma >= 1
    assert module.PRESETS[preset].source


@pytest.mark.parametrize("row", PRINTED)
def test_presets_are_the_values_that_the_small_model_study_prints(row: str) -> None:
    name, _, store = row.partition(" ")
    presets = {preset.name: preset for preset in catalogue.describe(name).presets}
    for column, model in enumerate(MODELS):
        wanted = {key: values[column] for key, values in PRINTED[row].items() if values[column] is not None}
        if wanted:
            preset = presets[f"{model}-{store}" if store else model]
            assert {key: preset.gamma if key == "gamma" else preset.options[key] for key in wanted} == wanted


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_preset_names_the_known_ones(name: str) -> None:
    needed = "".join(f",{key}={value}" for key, value in NEEDED.get(name, {}).items())
    known = list(getattr(method_module(name), "PRESETS", {}))
    with pytest.raises(InputError, match=f"{name} has no preset 'paper'") as caught:
        resolve_spec(parse_drafter(f"{name}:preset=paper{needed}", None))
    assert all(preset in caught.value.hint for preset in known) if known else "no presets" in caught.value.hint
