"""The kind of a drafting method decides what is said of it: a new one needs its declaration and no further list."""

import pytest

from mlsd.drafters import find_method
from mlsd.methods import METHODS, is_control, of_kind


@pytest.mark.parametrize("name", METHODS)
def test_a_kind_agrees_with_what_a_method_needs(name: str) -> None:
    method, kind = find_method(name), METHODS[name].kind
    if method.needs is not None:
        assert method.needs == ("head" if kind == "head" else "draft")
    assert (kind == "head") == (method.target_kind == "layer-rows" and method.needs != "draft") or kind == "own layers"
    assert method.needs is None or not METHODS[name].tried, "what is tried unasked needs nothing but the target"
    assert is_control(name) == method.summary.startswith("A control")


def test_every_kind_has_a_method() -> None:
    for kind in ("draft model", "head", "look-up", "n-grams", "own layers", "control"):
        assert of_kind(kind)
