"""A prompt is read once: every arm and repeat goes on from a copy of the memory it left, and writes the same."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd.clock import MonotonicClock
from mlsd.engine.context import Context, ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.measure.messages import BlockMeasured, Turn
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.saved_prompts import CopyProofs, SavedPrompts
from mlsd.measure.worker.serve import measure_slots
from mlsd.planning.job import Job
from mlsd.planning.plan import plan_bench
from mlsd.records import ModelRef, Trial
from tests.engine.sabotage import run_ahead
from tests.measure.examples import quick_bench

DEPTH = 512
TEXT = tuple(range(11, 75))


def job_of(
    tiny: Path, target: str, *drafts: str, methods: tuple[str, ...], depths: tuple[int, ...] = (0, DEPTH)
) -> Job:
    settings = {"gammas": (3,), "depths": depths, "n_predict": 12, "repeats": 2}
    files = [tiny / f"{name}.gguf" for name in (target, *drafts)]
    (job,) = plan_bench(quick_bench(*files, drafters=methods, **settings)).loads
    return job


def measured(job: Job) -> list[Trial]:
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        # Each plain output first, as what the others are judged by; no worker asks that of its order.
        return [arms.run(slot) for slot in sorted(job.slots, key=lambda slot: slot.case.arm != "ar")]


def measured_in_blocks(job: Job, arms: Arms) -> list[Trial]:
    """As a worker measures, which judges behind each block."""
    events = list[Any]()
    turns = [Turn(slots=block.slots) for block in job.blocks]
    measure_slots(job, events.append, turns, arms, MonotonicClock())
    return [trial for event in events if isinstance(event, BlockMeasured) for trial in event.trials]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Widths of all passes of whole prompts."""
    found, decode = list[int](), LlamaContext.decode

    def counted(context: LlamaContext, tokens: tuple[int, ...], *, n_outputs: int = 1) -> None:
        if len(tokens) > 32:
            found.append(len(tokens))
        decode(context, tokens, n_outputs=n_outputs)

    monkeypatch.setattr(LlamaContext, "decode", counted)
    yield found


@pytest.mark.parametrize("name", ["llama", "qwen35", "falcon-h1"])
def test_the_prefill_of_each_arm_is_timed_once_and_every_trial_writes_what_plain_decoding_does(
    tiny: Path, name: str
) -> None:
    job = job_of(tiny, name, f"{name}-noise003", methods=("draft-model", "pld", "layer-skip:mode=sync,skip=2"))
    done = measured(job)
    assert all(trial.valid for trial in done), [trial.reason for trial in done]
    timed = [trial.case_id for trial in done if trial.prefill_ns is not None]
    assert sorted(timed) == sorted(job.cases), "one trial of each arm and text"
    assert all(trial.draft_prefill_ns is not None for trial in done if trial.prefill_ns and trial.arm == "sd")
    again = measured(msgspec.structs.replace(job, timed_prefills=tuple(job.cases)))
    assert all(trial.valid and trial.prefill_ns is None for trial in again), "an earlier session has timed them"


@pytest.mark.parametrize(("name", "n_kinds"), [("llama", 1), ("qwen35", 2)])
def test_a_session_reads_a_prompt_once_for_each_kind_of_context_and_once_to_judge(
    tiny: Path, reads: list[int], name: str, n_kinds: int
) -> None:
    """Snapshots make another kind of context of a recurrent target; a look-up leaves a plain one as it is."""
    job = job_of(tiny, name, methods=("pld",))
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        for case in job.cases.values():
            arms.check(case)
        reads.clear()
        done = list[Trial]()
        for slot in job.slots:
            arms.warm_up(slot.case)
            done.append(arms.run(slot))
    counts = [reads.count(n_prompt) for n_prompt in {trial.n_prompt or 0 for trial in done}]
    assert min(counts) == 2 and sum(counts) <= 2 * n_kinds + 2, "the judge reads each text of two once"
    by_text = {(trial.n_prompt, trial.prefill_ns) for trial in done if trial.prefill_ns}
    assert len(by_text) == 2 * n_kinds, "arms of one kind state the one time"


def test_of_two_kinds_of_contexts_no_check_reads_a_long_prompt_a_third_time(
    tiny: Path, tmp_path: Path, reads: list[int]
) -> None:
    job = job_of(tiny, "qwen35", "qwen35-noise003", methods=("draft-model",), depths=(DEPTH,))
    with Arms(job, MonotonicClock(), ProbeCache(tmp_path)) as arms:
        done = measured_in_blocks(job, arms)
    assert all(trial.valid for trial in done), [trial.reason for trial in done]
    of_draft = 2  # a long text to check its rollback behind, and the prompt for its time
    assert sum(n_tokens >= DEPTH for n_tokens in reads) == 2 + of_draft


def test_a_plain_trial_is_judged_by_what_it_left_though_its_arm_then_reads_a_longer_prompt_for_a_check(
    tiny: Path, tmp_path: Path
) -> None:
    job = job_of(tiny, "qwen35", "qwen35-noise003", methods=("draft-model",))
    events = list[Any]()
    with Arms(job, MonotonicClock(), ProbeCache(tmp_path)) as arms:
        shorter = min(job.blocks, key=lambda block: len(arms.prompt(block.slots[0].case)))
        slots = tuple(sorted(shorter.slots, key=lambda slot: slot.case.arm != "ar"))
        measure_slots(job, events.append, [Turn(slots=slots)], arms, MonotonicClock())
    (trials,) = (event.trials for event in events if isinstance(event, BlockMeasured))
    assert [trial.reason for trial in trials] == [None] * len(slots)


def test_the_judge_goes_on_from_a_reading_from_which_no_run_goes_on(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run goes on from the first reading, here a wrong one; so outputs are equal, and wrong, and no one is valid.

    The prompt is then read again. A session in which copies are proved sees a wrong one itself: the second reading does
    not go on as the first one's copy.
    """
    job, keep, n_kept = job_of(tiny, "qwen35", methods=("pld",), depths=(DEPTH,)), SavedPrompts._keep, list[int]()

    def keep_wrong(saved: SavedPrompts, context: Context, *read: Any) -> bool:
        if not n_kept:
            run_ahead(context, 7)
        n_kept.append(context.n_past)
        return keep(saved, context, *read)

    monkeypatch.setattr(SavedPrompts, "_keep", keep_wrong)
    monkeypatch.setattr(CopyProofs, "get", lambda *_: True)
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        trials = measured_in_blocks(job, arms)
    assert [trial.tokens == trials[0].tokens for trial in trials] == [True, True, False, False]
    verdicts = [trial.losslessness.verdict for trial in trials if trial.losslessness is not None]
    assert verdicts == ["diverged", "diverged", "lossless", "lossless"]
    assert [trial.valid for trial in trials] == [False, False, True, True]
    assert "two readings of the prompt differ" in (trials[0].reason or "") and trials[0].reason == trials[1].reason


@pytest.mark.parametrize("name", ["llama", "qwen35", "falcon-h1", "gemma3"])
def test_a_saved_memory_answers_as_the_one_it_was_saved_of(tiny: Path, name: str) -> None:
    options, saved = ContextOptions(n_ctx=256, n_threads=1, device_sampling=False), SavedPrompts()
    with LlamaModel(tiny / f"{name}.gguf") as model, closing(open_context(model, options)) as context:
        context.decode(TEXT)
        rows = context.logits()
        context.clear()
        first = saved.target(context, TEXT)
        assert first is not context and (first.logits() == rows).all() and first.greedy() == [int(rows.argmax())]
        context.decode((7,))
        expected = context.logits()
        with closing(open_context(model, options)) as other:
            assert (saved.target(other, TEXT).logits() == rows).all() and other.n_past == len(TEXT)
            other.decode((7,))
            assert (other.logits() == expected).all()


def test_a_context_in_which_a_copy_goes_on_otherwise_reads_every_prompt_anew(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ContextOptions(n_ctx=256, n_threads=1, device_sampling=False)
    set_memory = LlamaContext.set_memory

    def broken(context: LlamaContext, data: object, n_past: int) -> None:
        set_memory(context, data, n_past)
        context.truncate(n_past - 1)  # the last position is lost
        context.n_past = n_past

    with LlamaModel(tiny / "llama.gguf") as model, closing(open_context(model, options)) as context:
        context.decode(TEXT)
        rows = context.logits()
        context.clear()
        monkeypatch.setattr(LlamaContext, "set_memory", broken)
        saved = SavedPrompts()
        for _ in range(2):
            context.clear()
            assert saved.target(context, TEXT) is context and (context.logits() == rows).all()


def test_what_proved_right_is_remembered_for_a_file_and_the_options_of_a_context(tiny: Path) -> None:
    options = ContextOptions(n_ctx=256, n_threads=1)

    def proofs(sha256: str | None) -> CopyProofs:
        return CopyProofs(lambda _: ModelRef(id="llama", sha256=sha256))

    def known(sha256: str | None, context: Context) -> bool | None:
        return proofs(sha256).get(context)

    with LlamaModel(tiny / "llama.gguf") as model, closing(open_context(model, options)) as context:
        for sha256 in ("a" * 64, None):
            SavedPrompts(proofs(sha256)).target(context, TEXT)
            context.clear()
        assert known("a" * 64, context) is True
        assert known("b" * 64, context) is None and known(None, context) is None
        with closing(open_context(model, msgspec.structs.replace(options, kv_type="q8_0"))) as other:
            assert known("a" * 64, other) is None
