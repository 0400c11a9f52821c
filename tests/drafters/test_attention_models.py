"""Qwen models with attention memory only: as targets, as drafts cut out of them, as the control of the hybrids."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from mlsd.drafters import check_target, preset_gamma, resolve_spec
from mlsd.drafters.layer_skip.subset import Options, cut_file, plan
from mlsd.drafters.options import read_options
from mlsd.errors import ModelFileError
from mlsd.gguf_tools.shapes import TINY_ATTENTION
from mlsd.gguf_tools.source import Source
from mlsd.records import DrafterSpec
from tests.cli.conftest import Ran, mlsd
from tests.drafters.arena import Arena, Run, first, prompt_of

__all__ = ["mlsd"]  # the fixture

Mlsd = Callable[..., Ran]
N_PREDICT = 40
CONTROL = "layer-skip:preset=qwen2.5-control"


@pytest.mark.parametrize("name", TINY_ATTENTION)
def test_memory_is_cut_back_and_every_gamma_writes_what_the_target_writes(arena: Arena, name: str) -> None:
    report = arena.report(arena.path(name))
    assert (report.target, report.draft) == ("trim", "trim")
    prompt = arena.clear_prompt(name, 3, N_PREDICT)
    for gamma in range(1, 9):
        for draft in ("", "-noise01", "-other") if gamma in (1, 4) else ("-noise01",):
            run = arena.run(name, "draft-model", gamma, prompt, N_PREDICT, draft=name + draft)
            arena.assert_exact(name, prompt, run)
            if not draft:
                assert run.accepted == run.proposed > 0
            elif draft == "-other":
                assert run.accepted < run.proposed, "nothing was rolled back"


@pytest.mark.parametrize("name", TINY_ATTENTION)
def test_a_cut_draft_grows_trees_for_its_target(name: str, tiny: Path) -> None:
    draft = cut_file(plan(Source(tiny / f"{name}.gguf"), Options(exit=4)))

    def run(arena: Arena, seed: int) -> Run:
        method = "draft-tree:depth=3,top_k=4,commit=redecode"
        made = arena.run(name, method, 12, prompt_of(seed), N_PREDICT, draft="cut")
        arena.assert_exact(name, prompt_of(seed), made)
        return made

    with closing(Arena({name: tiny / f"{name}.gguf", "cut": draft})) as arena:
        first((run(arena, seed) for seed in range(24)), lambda made: 0 < made.accepted < made.proposed)


# --- the control of the component-aware study -----------------------------------------------------------------------


def test_the_control_is_a_third_of_the_blocks_at_the_gamma_of_the_hybrids_drafts(arena: Arena) -> None:
    spec = DrafterSpec(name="layer-skip", options={"preset": "qwen2.5-control"})
    assert preset_gamma(spec) == preset_gamma(DrafterSpec(name="layer-skip", options={"preset": "falcon-h1-ssm"})) == 2
    assert resolve_spec(spec).options == {"fraction": 0.33}
    made = plan(Source(arena.path("qwen2")), read_options(resolve_spec(spec), Options))
    assert made.edit.layers == (0, 1, 3, 5)
    assert made.component is None


def test_the_control_is_exact_where_some_of_its_draft_stands(arena: Arena) -> None:
    def run(seed: int) -> Run:
        prompt = prompt_of(seed)
        made = arena.run("qwen2", f"{CONTROL},mode=sync", 2, prompt, N_PREDICT)
        arena.assert_exact("qwen2", prompt, made)
        return made

    first((run(seed) for seed in range(24)), lambda made: 0 < made.accepted < made.proposed)


@pytest.mark.parametrize("component", ["recurrent", "recurrent-blocks", "attention"])
def test_a_model_without_components_is_refused_a_component_draft(tiny: Path, component: str) -> None:
    spec = DrafterSpec(name="layer-skip", options={"component": component})
    with pytest.raises(ModelFileError, match=r"no recurrent part|no parallel blocks"):
        check_target(spec, tiny / "qwen2.gguf")


def test_the_control_is_compared_with_its_target_as_the_study_does(mlsd: Mlsd, tiny: Path, tmp_path: Path) -> None:
    draft = tmp_path / "control.gguf"
    written = mlsd("models", "make", "subset", tiny / "qwen2.gguf", "--fraction", 0.33, "-o", draft)
    assert written.code == 0, written.err
    compared = mlsd(
        "models", "distance", tiny / "qwen2.gguf", "--draft", draft, "--n-threads", 1, "--n-tokens", 100, "--json"
    )
    answer = json.loads(compared.out)
    assert 0 < answer["total_variation"] < 1
    assert answer["ratio"] > 0
