"""The list of methods: every one is in it, with all that a user may set, and every preset is one that works."""

import subprocess
import sys
from pathlib import Path

import pytest

import mlsd.drafters
from mlsd.drafters import UNAVAILABLE, find_method, preset_gamma, resolve_spec
from mlsd.drafters.options import Preset
from mlsd.errors import InputError, UnsupportedError
from mlsd.methods import METHODS
from mlsd.planning.question import parse_drafter
from mlsd.records import DrafterSpec, OptionValue

PRESETS = [(name, preset) for name in METHODS for preset in find_method(name).presets]
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


@pytest.mark.parametrize("name", METHODS)
def test_a_method_describes_itself_and_each_option(name: str) -> None:
    info = find_method(name).info()
    assert info.name == name
    assert info.summary.endswith(".") and info.source
    chains = ("adaptive",) if find_method(name).chains_instead is None else ()
    assert tuple(option.name for option in info.options) == (*find_method(name).options.__struct_fields__, *chains)
    assert all(option.meaning and option.values for option in info.options), f"{name}: an option says nothing"
    assert "gamma" in info.searched


def test_the_table_names_every_file_that_holds_a_method() -> None:
    folder = Path(mlsd.drafters.__file__).parent
    files = {path for path in folder.rglob("*.py") if "\n@drafting_method(" in path.read_text(encoding="utf-8")}
    listed = {folder / f"{module.replace('.', '/')}.py" for module, *_ in METHODS.values()}
    assert files == {*listed, folder / "__init__.py"}  # which has plain decoding


def test_looking_a_method_up_loads_no_other() -> None:
    code = (
        "import sys; from mlsd.drafters import find_method; find_method('ngram-cache');"
        "others = ('mlsd.drafters.heads', 'mlsd.drafters.layer_skip', 'llama_cpp');"
        "print([name for name in sys.modules if name.startswith(others)])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_cannot_run_is_refused_with_the_reason() -> None:
    for name, missing in UNAVAILABLE.items():
        with pytest.raises(UnsupportedError, match=missing.reason):
            find_method(name)


@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_every_preset_can_be_asked_for_and_names_its_source(name: str, preset: Preset) -> None:
    spec = DrafterSpec(name=name, options={"preset": preset.name, **NEEDED.get(name, {})})
    options = find_method(name).read(spec)
    assert {key: getattr(options, key) for key in preset.options} == preset.options
    assert preset_gamma(spec) == preset.gamma >= 1
    assert preset.source


@pytest.mark.parametrize("row", PRINTED)
def test_presets_are_the_values_that_the_small_model_study_prints(row: str) -> None:
    name, _, store = row.partition(" ")
    presets = {preset.name: preset for preset in find_method(name).presets}
    for column, model in enumerate(MODELS):
        wanted = {key: values[column] for key, values in PRINTED[row].items() if values[column] is not None}
        if wanted:
            preset = presets[f"{model}-{store}" if store else model]
            assert {key: preset.gamma if key == "gamma" else preset.options[key] for key in wanted} == wanted


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_preset_names_the_known_ones(name: str) -> None:
    needed = "".join(f",{key}={value}" for key, value in NEEDED.get(name, {}).items())
    known = [preset.name for preset in find_method(name).presets]
    with pytest.raises(InputError, match=f"{name} has no preset 'paper'") as caught:
        resolve_spec(parse_drafter(f"{name}:preset=paper{needed}", None))
    assert all(preset in caught.value.hint for preset in known) if known else "no presets" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pld:speed=9", "pld has no option 'speed'"),
        ("pld:ngram=0", "pld: ngram = 0: Expected `int` >= 1"),
        ("pld:ngram=big", "pld: ngram = 'big': Expected `int`, got `str`"),
        ("pld:match=middle", "pld: match = 'middle': Invalid enum value 'middle'"),
        (
            "draft-model:depth=3",
            "draft-model has no option 'depth'. Options of draft-model, with their defaults: p_min (0.0)",
        ),
        ("draft-model:p_min=2", "draft-model: p_min = 2: Expected `float` <= 1"),
        ("dflash:depth=3", "dflash has no option 'depth'. Options of dflash, with their defaults: adaptive (0)"),
    ],
)
def test_a_wrong_option_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_spec(parse_drafter(text, None))
    assert complaint in str(caught.value)


def test_a_preset_is_written_out_and_what_is_given_wins_over_it() -> None:
    assert resolve_spec(parse_drafter("pld:preset=smollm2", None)).options == {"ngram": 3}
    assert resolve_spec(parse_drafter("pld:preset=ngram-simple,ngram=9", None)).options == {
        "ngram": 9,
        "min_ngram": 12,
        "match": "last",
    }
