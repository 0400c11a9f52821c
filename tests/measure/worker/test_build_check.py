"""A build is known by its structures, a stored pass and the arms that it opens; and it can be asked about a text."""

import numpy as np
import pytest

from mlsd.engine.losslessness import of_other_build
from mlsd.errors import NativeError
from mlsd.folders import asset_path
from mlsd.measure.worker import build_check
from mlsd.planning.job import Job, ModelFile, Slot, prompt_key
from mlsd.planning.prompts import Prompt
from mlsd.records import Case, EngineOptions, ModelRef, PromptRef


def job(n_predict: int = 8) -> Job:
    target = ModelRef(id="tiny-dense")
    prompt = PromptRef(key="text", sha256="a" * 64)
    case = Case(suite="test", target=target, prompt=prompt, n_predict=n_predict, engine=EngineOptions(n_threads=1))
    return Job(
        target=ModelFile(ref=target, path=str(asset_path("tiny/tiny-dense.gguf"))),
        prompts={prompt_key(prompt): Prompt(key="p", sha256="", workload="code", text="Measure twice, then cut once.")},
        slots=(Slot(case=case, case_id=case.id, block=0, repeat=0, position=0),),
    )


def test_the_known_pass_gives_the_stored_logits_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_check.check_build(job()).known_distance < 0.1
    monkeypatch.setattr(build_check, "_LOGITS", tuple(-value for value in build_check._LOGITS))
    with pytest.raises(NativeError, match="computes something else"):
        build_check.check_build(job())


def test_logits_of_a_text_are_read_for_the_tokens_that_are_asked_for() -> None:
    tokens = (5, 6, 7)
    likeliest = build_check.read_logits(job(), tokens)
    assert [ids[0] for ids in likeliest.ids] == list(tokens)
    assert len({len(ids) for ids in likeliest.ids}) == 1
    assert all(list(row[1:]) == sorted(row[1:], reverse=True) for row in likeliest.logits)
    again = build_check.read_logits(job(), tokens, likeliest.ids)
    assert again.logits == likeliest.logits


def rows(seed: int, noise: float = 0.0) -> np.ndarray:
    """Logits of 40 places; column 0 is the emitted token, which leads by 0.1 or more."""
    rng = np.random.default_rng(seed)
    made = np.sort(rng.normal(0, 3, (40, 50)), axis=1)[:, ::-1].copy()
    made[:, 0] += 0.1
    return (made + np.random.default_rng(seed + 1).normal(0, noise, made.shape)).astype(np.float32)


def test_a_tie_that_rounding_turned_is_near_and_a_changed_model_is_not() -> None:
    emitted = list(range(40))
    own, other = rows(0), rows(0, noise=0.01)
    own[20, 1] = own[20, 0] + 0.005  # this build would have chosen another token there, by less than rounding
    reference = [*emitted[:20], 999, *emitted[21:]]
    near = of_other_build(emitted, reference, own, other)
    assert (near.verdict, near.first_difference, near.n_different) == ("near_tie", 20, 1)
    changed = of_other_build(emitted, reference, own, rows(0, noise=2.0))
    assert changed.verdict == "diverged"
    assert changed.live_distance is not None and changed.live_limit is not None
    assert changed.live_distance > changed.live_limit
    far = own.copy()
    far[20, 1] += 5.0  # one token that nothing explains
    assert of_other_build(emitted, reference, far, other).verdict == "diverged"
