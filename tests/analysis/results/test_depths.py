"""What is said of a setting at each depth."""

from __future__ import annotations

from types import SimpleNamespace as Made
from typing import get_args

import pytest

from mlsd.analysis.results import depths
from mlsd.analysis.results.depths import DeepArm, depth_sentences
from mlsd.trials.decisions import Effect


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ([(0, "faster"), (2048, "faster"), (8192, "slower")], "faster behind 0, 2048; slower behind 8192"),
        ([(0, "slower"), (2048, "slower")], "slower behind 0, 2048"),
        ([(0, "faster"), (1024, "not decided yet")], "faster behind 0; not decided yet behind 1024"),
        (
            [(0, "faster"), (512, "not decided yet"), (1024, "faster"), (2048, "no difference")],
            "faster behind 0; not decided yet behind 512; faster behind 1024; no difference behind 2048",
        ),
        ([(0, "faster"), (1024, "nothing was proposed")], "faster behind 0; nothing was proposed behind 1024"),
        ([(0, "faster"), (0, "slower")], None),
    ],
)
def test_of_each_depth_is_said_what_was_decided_there(
    effects: list[tuple[int, str]], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def standing(word: str) -> Made:
        return Made(effect=word, out=None) if word in get_args(Effect) else Made(effect="not decided yet", out=word)

    rows = [
        DeepArm(
            Made(case=Made(target=Made(id="t")), setting="pld, gamma 2", standing=standing(word)),  # type: ignore[arg-type]
            "code",
            depth,
            1.0,
            1.0,
        )
        for depth, word in effects
    ]
    monkeypatch.setattr(depths, "deep_arms", lambda _: rows)
    said = [] if words is None else [f"t, pld, gamma 2, code: {words} tokens of other text."]
    assert depth_sentences([]) == said
