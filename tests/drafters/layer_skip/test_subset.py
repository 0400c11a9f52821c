"""Self-speculation: two modes of one draft, on every architecture, exact and in agreement with each other."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from mlsd.clock import MonotonicClock
from mlsd.drafters import check_target, find_method, preset_gamma
from mlsd.drafters.layer_skip.subset import CutDraft, LayerSkipOptions, plan
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.taps import SkipTap, TappedContext
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers, state_layers
from mlsd.measure.worker.layer_search import InPlaceDraft
from mlsd.records import DrafterSpec, OptionValue
from tests.drafters.arena import Arena, Run, prompt_of

# A cut for each kind of draft an architecture allows.
CUTS = {
    "llama": ("skip=2+4", "exit=3", "fraction=0.33"),
    "qwen2": ("skip=2+4", "fraction=0.33"),
    "qwen3": ("skip=1+2", "exit=3"),
    "qwen3moe": ("skip=2+4",),
    "qwen35": ("skip=2", "skip=1+3", "exit=5", "component=recurrent", "component=recurrent-blocks"),
    "qwen35moe": ("skip=5",),
    "falcon-h1": ("skip=1", "exit=2", "component=recurrent", "component=attention", "component=recurrent,skip=2"),
}
ALL = [(name, cut) for name, cuts in CUTS.items() for cut in cuts]
MODES = ("own", "sync")


def run(arena: Arena, name: str, cut: str, mode: str, gamma: int, seed: int = 3, n_predict: int = 40) -> Run:
    return arena.run(name, f"layer-skip:mode={mode},{cut}", gamma, prompt_of(seed), n_predict)


@pytest.mark.parametrize(("name", "cut"), ALL)
def test_both_modes_are_exact_and_sync_accepts_what_the_bridged_target_accepts(
    arena: Arena, name: str, cut: str
) -> None:
    results = {mode: run(arena, name, cut, mode, gamma=3) for mode in MODES}
    options, source = cut_of(arena, name, cut)
    for result in results.values():
        arena.assert_exact(name, prompt_of(3), result)
        assert result.fell_back is None
    arena.assert_same_counts(name, results["sync"], run_in_place(arena, name, skip_tap(plan(source, options))))
    assert "sync_ns" in results["sync"].stats, "sync fell back"


def cut_of(arena: Arena, name: str, cut: str) -> tuple[LayerSkipOptions, Source]:
    values = dict(part.split("=") for part in cut.split(","))
    options = {key: int(v) if key == "exit" else float(v) if key == "fraction" else v for key, v in values.items()}
    return LayerSkipOptions(**options), Source(arena.path(name))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "cut"), ALL)
def test_a_bridged_target_gives_the_logits_of_the_cut_file(arena: Arena, name: str, cut: str) -> None:
    options, source = cut_of(arena, name, cut)
    made = plan(source, options)
    tokens = prompt_of(5)
    context_options = ContextOptions(n_ctx=256, n_threads=1, device_sampling=False)
    with open_context(arena.open(made.file()), context_options) as context:
        expected = one_by_one(context, tokens)
    with TappedContext(arena.model(name), context_options) as bridged, bridged.tapped(skip_tap(made)):
        logits = one_by_one(bridged, tokens)
    assert np.array_equal(logits, expected)


def skip_tap(cut: CutDraft) -> SkipTap:
    """What makes the target compute the draft's logits."""
    n_layers = trunk_layers(cut.source) or 0
    attention, falcon = attention_layers(cut.source), cut.source.architecture == "falcon-h1"
    skipped = {layer for layer in range(n_layers) if layer not in cut.edit.layers}
    silent = []
    if cut.component == "attention":
        silent = [f"ssm_out-{layer}" for layer in state_layers(cut.source)]
    elif cut.component == "recurrent-blocks" and not falcon:
        skipped |= {*attention}
    elif cut.component is not None:
        silent = [f"{'attn_out' if falcon else 'attn_output'}-{layer}" for layer in attention]
    return SkipTap(sorted(skipped), silent)


def run_in_place(arena: Arena, name: str, tap: SkipTap, gamma: int = 3, seed: int = 3, n_predict: int = 40) -> Run:
    strategy = arena.strategy(arena.path(name), "target")
    options = rollback_options(strategy, arena.options, gamma)
    options = msgspec.structs.replace(options, device_sampling=False, max_outputs=gamma + 1)
    with TappedContext(arena.model(name), options) as context:
        drafter = InPlaceDraft(context, tap, recurrent=strategy != "trim")
        limits = GenerationLimits(n_predict=n_predict, gamma=gamma)
        run = generate(context, drafter, make_rollback(strategy, context), prompt_of(seed), limits, MonotonicClock())
    return Run(run, {}, options)


def one_by_one(context: LlamaContext, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    rows = []
    for token in tokens:
        context.decode((token,))
        rows.append(context.logits()[0])
    return np.stack(rows)


def test_an_early_exit_needs_no_sync_its_memory_is_the_targets_own(arena: Arena) -> None:
    arena.assert_same_counts("llama", run(arena, "llama", "exit=3", "own", 3), run(arena, "llama", "exit=3", "sync", 3))


def test_a_memory_layout_that_is_not_known_falls_back_to_own_with_the_reason(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlsd.engine.llama.state.sequence_state_version", lambda: 5)
    result = run(arena, "llama", "skip=2+4", "sync", 3)
    arena.assert_exact("llama", prompt_of(3), result)
    assert "sync_ns" not in result.stats
    assert result.fell_back is not None and "version 5" in result.fell_back
    arena.assert_same_counts("llama", result, run(arena, "llama", "skip=2+4", "own", 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "whole target"),
        ({"skip": "2+6"}, "no block 6: the model has blocks 0 to 5"),
        ({"skip": 9}, "no block 9"),
        ({"exit": 3, "exit_share": 0.5}, "exclude each other"),
        ({"exit": 3, "fraction": 0.5}, "exclude each other"),
        ({"fraction": 1.5}, "fraction = 1.5"),
        ({"mode": "fast"}, "mode = 'fast'"),
        ({"preset": "none"}, "no preset 'none'"),
        ({"component": "recurrent-blocks"}, "no recurrent part"),
    ],
)
def test_a_cut_that_cannot_be_is_refused_from_the_header(
    tiny: Path, options: dict[str, OptionValue], message: str
) -> None:
    with pytest.raises((InputError, ModelFileError), match=message):
        check_target(DrafterSpec(name="layer-skip", options=options), tiny / "llama.gguf")


@pytest.mark.parametrize(
    ("preset", "gamma", "layers"),
    [("layerskip-33", 4, (0, 1, 3, 5)), ("early-exit-50", 4, (0, 1, 2)), ("qwen2.5-control", 2, (0, 1, 3, 5))],
)
def test_presets_name_the_papers_drafts(tiny: Path, preset: str, gamma: int, layers: tuple[int, ...]) -> None:
    spec = DrafterSpec(name="layer-skip", options={"preset": preset})
    cut = plan(Source(tiny / "qwen2.gguf"), find_method("layer-skip").read(spec))
    assert (preset_gamma(spec), cut.edit.layers, cut.component) == (gamma, layers, None)
