"""Names of methods in tables."""

from __future__ import annotations

from mlsd.analysis.results.trials import arm_name, method_name, spec_name
from mlsd.records import DrafterSpec, ModelRef


def test_a_method_is_named_by_its_draft_and_its_options() -> None:
    assert method_name("pld", None, "") == "pld"
    assert method_name("draft-model", "small", '{"top_k":4}') == "draft-model small (top_k 4)"


def test_an_arm_of_a_draft_model_goes_by_the_drafts_name() -> None:
    assert arm_name("draft-model", "small", "") == "small"
    assert arm_name("draft-model", "small", '{"p_min":0.5}') == "small (p_min 0.5)"
    assert arm_name("draft-tree", "small", '{"depth":3}') == "draft-tree small (depth 3)"
    assert arm_name("pld", None, '{"ngram":3}') == "pld (ngram 3)"


def test_a_drafter_of_a_case_is_named_the_same() -> None:
    assert spec_name(DrafterSpec(name="none")) == "none"
    assert spec_name(DrafterSpec(name="draft-model", draft=ModelRef(id="small"))) == "small"
    cut = DrafterSpec(name="layer-skip", options={"mode": "own", "exit": 3})
    assert spec_name(cut) == "layer-skip (exit 3, mode own)"
