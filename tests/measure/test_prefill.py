"""A long prompt is read once: every arm and repeat goes on from the memory it left, and writes the same."""

from contextlib import closing
from pathlib import Path

import pytest

from mlsd.clock import MonotonicClock
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.conversation import SavedPrompts
from mlsd.planning.plan import plan_bench
from mlsd.records import Trial
from tests.measure.examples import quick_bench

DEPTH = 512


def trials(tiny: Path, target: str, draft: str, *methods: str) -> list[Trial]:
    settings = {"gammas": (3,), "depths": (0, DEPTH), "n_predict": 12, "repeats": 2}
    models = tiny / f"{target}.gguf", tiny / f"{draft}.gguf"
    request = quick_bench(*models, drafters=("draft-model", *methods), **settings)
    (job,) = plan_bench(request).loads
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        # Each plain output first, as what the others are judged by; no worker asks that of its order.
        return [arms.run(slot) for slot in sorted(job.slots, key=lambda slot: slot.case.arm != "ar")]


@pytest.mark.parametrize("name", ["llama", "qwen35", "falcon-h1"])
def test_every_arm_goes_on_from_the_memory_of_one_prefill(tiny: Path, name: str) -> None:
    done = trials(tiny, name, f"{name}-noise003", "pld", "layer-skip:mode=sync,skip=2")
    assert all(trial.valid for trial in done), [trial.reason for trial in done]
    lengths = sorted({trial.n_prompt or 0 for trial in done})
    assert lengths[1] == lengths[0] + DEPTH
    deep = [trial for trial in done if trial.n_prompt == lengths[1]]
    assert deep[0].arm == "ar" and deep[0].prefill_ns
    assert all(trial.prefill_ns is None for trial in deep[1:]), "it was read again"
    assert all(trial.prefill_ns for trial in done if trial.n_prompt == lengths[0])


def test_a_saved_memory_answers_as_the_one_it_was_saved_of(tiny: Path) -> None:
    options = ContextOptions(n_ctx=256, n_threads=1, device_sampling=False)
    text, saved = tuple(range(11, 75)), SavedPrompts({"long"})
    with saved.reading("long"), LlamaModel(tiny / "qwen35.gguf") as model, closing(open_context(model, options)) as one:
        assert not saved.target(one, text)
        rows = one.logits()
        with closing(open_context(model, options)) as other:
            assert saved.target(other, text)
            assert other.n_past == len(text) and (other.logits() == rows).all()


def test_a_reference_and_a_warm_up_leave_the_first_trial_a_prefill_to_time(tiny: Path) -> None:
    settings = {"gammas": (3,), "depths": (DEPTH,), "n_predict": 12, "repeats": 2}
    request = quick_bench(tiny / "qwen35.gguf", drafters=("pld", "oracle"), **settings)
    (job,) = plan_bench(request).loads
    read = []
    with pytest.MonkeyPatch.context() as patch, Arms(job, MonotonicClock(), ProbeCache()) as arms:
        for case in {slot.case_id: slot.case for slot in job.slots}.values():
            arms.check(case)
        decode = LlamaContext.decode
        patch.setattr(
            LlamaContext, "decode", lambda own, tokens, **how: (read.append(len(tokens)), decode(own, tokens, **how))[1]
        )
        done = []
        for slot in job.slots:  # as a worker does
            arms.refer(slot)
            arms.warm_up(slot.case)
            done.append(arms.run(slot))
    assert all(trial.valid for trial in done), [trial.reason for trial in done]
    assert [trial.prefill_ns is not None for trial in done] == [True, *(False,) * (len(done) - 1)]
    assert sum(width > DEPTH for width in read) == 3, (
        "once for all that is not timed, once timed, and once to judge them by"
    )
