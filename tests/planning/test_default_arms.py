"""What is tried when nobody chose: look-ups, and drafts of the target's vocabulary that are here and small enough."""

from pathlib import Path

from mlsd.models.library import resolve_model
from mlsd.planning.request import default_arms


def test_the_embedded_family_has_its_draft() -> None:
    found = default_arms(resolve_model("tiny-moe"))
    assert found.drafters == ("pld", "ngram-cache")
    assert found.drafts == ("tiny-draft",)


def test_a_draft_is_no_draft_of_itself_nor_of_another_vocabulary(tiny: Path) -> None:
    assert default_arms(resolve_model("tiny-draft")).drafts == ()
    assert "tiny-draft" not in default_arms(resolve_model(str(tiny / "llama.gguf"))).drafts


def test_drafts_of_the_family_that_are_not_here_are_named(smollm2: Path) -> None:
    found = default_arms(resolve_model("smollm2-135m"))
    assert not set(found.drafts) & set(found.to_get)
    assert all(id_.startswith("smollm2") for id_ in (*found.drafts, *found.to_get))
