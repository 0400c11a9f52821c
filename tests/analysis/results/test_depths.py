"""What is said of a setting at each depth."""

from types import SimpleNamespace as Made
from typing import Any, get_args

import pytest

from mlsd.analysis.results import depths
from mlsd.analysis.results.depths import DeepArm, depth_sentences
from mlsd.stats import Interval
from mlsd.trials.decisions import Effect


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        (
            [(0, "faster"), (2048, "faster"), (8192, "slower")],
            "faster behind 0, 2048; slower behind 8192 tokens of other text: it pays up to about 5100 tokens of "
            "context",
        ),
        ([(0, "slower"), (2048, "slower")], "slower behind 0, 2048 tokens of other text"),
        (
            [(0, "faster"), (1024, "not decided yet")],
            "faster behind 0; not decided yet behind 1024 tokens of other text",
        ),
        (
            [(0, "faster"), (512, "not decided yet"), (1024, "faster"), (2048, "no difference")],
            "faster behind 0; not decided yet behind 512; faster behind 1024; no difference behind 2048 tokens of "
            "other text",
        ),
        (
            [(0, "faster"), (512, "faster"), (1024, "nothing was proposed")],
            "faster behind 0, 512; nothing was proposed behind 1024 tokens of other text: it pays up to 512 tokens of "
            "context at least",
        ),
        (
            [(0, "faster"), (8192, "INVALID")],
            "faster behind 0; INVALID behind 8192 tokens of other text",
        ),
        ([(0, "faster"), (0, "slower")], None),
    ],
)
def test_of_each_depth_is_said_what_was_decided_there_and_up_to_where_it_pays(
    effects: list[tuple[int, str]], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(word: str) -> Any:
        effect = word if word in get_args(Effect) else "not decided yet"
        standing = None if word == "INVALID" else Made(effect=effect, out=None if word == effect else word)
        ratio = Interval(value={"faster": 2.0, "slower": 0.5}.get(effect, 1.0))
        about = {"case": Made(target=Made(id="t")), "setting": "pld, gamma 2", "n_invalid": int(standing is None)}
        return Made(standing=standing, effect=effect, ratio=ratio, **about)

    rows = [DeepArm(made(word), "code", depth, 1.0, 1.0) for depth, word in effects]
    monkeypatch.setattr(depths, "deep_arms", lambda _: rows)
    assert depth_sentences([]) == ([] if words is None else [f"t, pld, gamma 2, code: {words}."])
