"""Up to which depth a setting is said to pay."""

from __future__ import annotations

from types import SimpleNamespace as Made

import pytest

from mlsd.analysis.results import depths
from mlsd.analysis.results.depths import DeepArm, depth_sentences


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ({0: "faster", 2048: "faster", 8192: "slower"}, "pays up to 2,048 tokens of other text: slower at 8,192."),
        ({0: "slower", 2048: "slower"}, "does not pay: slower at 0."),
        ({0: "faster", 1024: "not decided yet"}, "pays at every depth that was decided, the deepest 0 tokens."),
        ({0: "no difference", 1024: "faster"}, "no difference at 0, faster at 1,024."),
        ({0: "not decided yet", 1024: "not decided yet"}, "not decided yet at any depth."),
    ],
)
def test_a_setting_pays_as_far_as_was_decided(
    effects: dict[int, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = [
        Made(case=Made(target=Made(id="t")), setting="pld, gamma 2", standing=Made(effect=effect))
        for effect in effects.values()
    ]
    rows = [DeepArm(arm, "code", depth, 1.0, 1.0) for arm, depth in zip(arms, effects, strict=True)]  # type: ignore[arg-type]
    monkeypatch.setattr(depths, "deep_arms", lambda _: rows)
    assert depth_sentences([]) == [f"t, pld, gamma 2, code: {words}"]


def test_one_depth_says_nothing_of_depths() -> None:
    assert depth_sentences([]) == []
