"""The arms of a target: what is judged and refused, and that the same thing is judged once."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd.clock import MonotonicClock
from mlsd.engine.context import Context, ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import library
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import Rollback, make_rollback
from mlsd.errors import EngineError, NativeError
from mlsd.measure.messages import Turn
from mlsd.measure.parent.disturbance import disturbed
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.serve import measure_slots
from mlsd.planning.job import Job, Reference, Slot
from mlsd.records import Trial
from tests.engine.broken_files import write_nan_norm
from tests.engine.llama.test_context import fail_device_at
from tests.engine.sabotage import RunsAhead
from tests.measure.kill_script import make_jobs


def pair(job: Job) -> tuple[Slot, Slot]:
    """The first slots of plain and of drafted decoding; a job has one prompt."""
    return tuple(next(slot for slot in job.slots if slot.case.arm == arm) for arm in ("ar", "sd"))  # type: ignore[return-value]


def test_repeats_of_an_output_that_differs_are_judged_alike_and_fed_once(tiny: Path) -> None:
    job = make_jobs(tiny, repeats=2)[1]
    plain, drafted = pair(job)
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        reference = arms.run(plain)
        # A forged reference: from here on every output of this prompt differs from it.
        for key, tokens in arms._references.items():
            arms._references[key] = ((tokens[0] + 1) % 256, *tokens[1:])
        verdicts = [arms.run(msgspec.structs.replace(drafted, repeat=repeat)).losslessness for repeat in range(2)]
        fed = [len(feedings) for _, feedings in arms._judge._fed.values()]
        verdicts.append(arms.run(msgspec.structs.replace(drafted, repeat=2)).losslessness)
        assert [len(feedings) for _, feedings in arms._judge._fed.values()] == fed
    assert reference.losslessness is not None and reference.losslessness.verdict == "lossless"
    assert reference.conditions is not None and reference.conditions.generation_ns is not None
    assert verdicts[0] is not None and verdicts[0].first_difference == 0
    assert verdicts[1] == verdicts[2] == verdicts[0]


def test_the_memory_behind_equal_tokens_is_compared_in_an_arms_first_trial_alone(tiny: Path) -> None:
    job = make_jobs(tiny, repeats=2)[1]
    plain, drafted = pair(job)
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        verdicts = [arms.run(slot).losslessness for slot in (plain, drafted, drafted)]
        fed = {key: len(feedings) for key, (_, feedings) in arms._judge._fed.items()}
        for key, tokens in arms._references.items():
            arms._references[key] = (*tokens[:-1], (tokens[-1] + 1) % 256)
        verdicts.append(arms.run(drafted).losslessness)
    assert all(verdict is not None for verdict in verdicts) and len(fed) == 1
    assert [verdict.live_distance is not None for verdict in verdicts if verdict] == [False, True, False, True]


def test_a_generation_that_really_waited_is_disturbed(tiny: Path) -> None:
    job = make_jobs(tiny, repeats=1)[1]
    slot, _ = pair(job)
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        arms.warm_up(slot.case)
        trials = [
            arms.run(slot, on_round=lambda _, left=pending: time.sleep(left.pop() if left else 0))
            for pending in ([0.0], [2.0], [0.0])
        ]
    assert 1 in disturbed(trials), [trial.conditions for trial in trials]


def test_a_drafted_trial_that_comes_before_any_plain_one_is_judged_all_the_same(tiny: Path) -> None:
    job = make_jobs(tiny)[0]
    plain, drafted = pair(job)
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        assert arms.run(drafted).reason == "no plain decoding of the same prompt to compare with"
        arms.refer(plain)
        assert arms.run(drafted).losslessness is None, "a plain trial is its own reference"
        arms.refer(drafted)
        trials = [arms.run(drafted), arms.run(plain)]
        written = dict(arms._references)
        arms.refer(drafted)
        assert arms._references == written, "once is enough"
    assert all(trial.valid for trial in trials)
    assert list(written.values()) == [trials[1].tokens]


def test_the_plain_trial_of_a_block_is_the_reference_of_what_ran_before_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_jobs(tiny)[0]
    plain, drafted = pair(job)
    job, decoded, decode = msgspec.structs.replace(job, slots=(drafted, plain)), list[str](), Arms._decode

    def counted(arms: Arms, arm: Any, prompt: Any, limits: Any, **how: Any) -> Any:
        if limits.n_predict == plain.case.n_predict:
            decoded.append("ar" if arm.target_strategy is None else "sd")
        return decode(arms, arm, prompt, limits, **how)

    def run(job: Job, *slots: Slot, one_arm: bool = False) -> list[Trial]:
        events = list[Any]()
        with Arms(job, MonotonicClock(), ProbeCache()) as arms:
            measure_slots(job, events.append, [Turn(slots=slots, one_arm=one_arm)], arms, MonotonicClock())
        return [trial for event in events for trial in getattr(event, "trials", ())]

    monkeypatch.setattr(Arms, "_decode", counted)
    whole = run(job, drafted, plain)
    assert decoded == ["sd", "ar"] and all(trial.valid for trial in whole)
    decoded.clear()
    assert all(trial.valid for trial in run(job, drafted)), "without a plain trial in its block it is written first"
    assert decoded == ["sd", "ar"]
    decoded.clear()
    assert all(trial.valid for trial in run(job, drafted, plain, one_arm=True))
    assert decoded == ["ar", "sd", "ar"], "where memory holds one arm at a time nothing waits for another's output"


def test_a_session_that_goes_on_compares_no_memory_again_unless_tokens_differ(tiny: Path) -> None:
    job = make_jobs(tiny)[0]
    plain, drafted = pair(job)
    compared = []
    for _ in range(2):
        with Arms(job, MonotonicClock(), ProbeCache()) as arms:
            written = arms.run(plain)
            trial = arms.run(drafted)
            assert trial.valid and trial.losslessness is not None
            compared.append(trial.losslessness.live_distance is not None)
            for key, tokens in arms._references.items():
                arms._references[key] = ((tokens[0] + 1) % 256, *tokens[1:])
            other = arms.run(drafted)
            assert other.losslessness is not None and other.losslessness.live_distance is not None
        reference = Reference(
            prompt_sha256=written.prompt_sha256 or "", n_predict=plain.case.n_predict, tokens=written.tokens
        )
        job = msgspec.structs.replace(job, compared_memories=(drafted.case_id,), references=(reference,))
    assert compared == [True, False]


def test_anchors_are_passes_of_one_token_and_of_a_whole_draft(tiny: Path) -> None:
    for job in make_jobs(tiny):
        widest = max(job.cases.values(), key=lambda case: case.gamma)
        slot = next(slot for slot in job.slots if slot.case == widest)
        with Arms(job, MonotonicClock(), ProbeCache()) as arms:
            arms.refer(slot)
            anchors = arms.read_anchors(widest)
            assert anchors.width == widest.gamma + 1 and anchors.one_ns > 0 and anchors.wide_ns > 0
            assert arms.run(slot).valid, "what is measured next does not see it"


def test_without_layers_on_a_device_nothing_else_goes_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native, offloads = library(), list[bool]()
    init = native.llama_init_from_model

    def seen(model: object, params: Any) -> object:
        offloads.append(params.op_offload)
        return init(model, params)

    monkeypatch.setattr(native, "llama_init_from_model", seen)
    with LlamaModel(tiny / "llama.gguf", n_gpu_layers=0) as model:
        for layers in (0, -1):
            open_context(model, ContextOptions(n_ctx=64, n_gpu_layers=layers)).close()
    assert offloads == [False, True]


def test_a_broken_rollback_is_found_out_in_every_trial(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_jobs(tiny)[0]
    plain, drafted = pair(job)

    def broken(name: str, context: Context) -> Rollback:
        return RunsAhead(make_rollback(name, context), context)

    with monkeypatch.context() as patched, Arms(job, MonotonicClock(), ProbeCache()) as arms:
        arms.run(plain)
        patched.setattr("mlsd.measure.worker.arms.make_rollback", broken)
        trial = arms.run(drafted)
    assert not trial.valid
    assert trial.losslessness is not None and trial.losslessness.verdict == "diverged"


def test_a_model_whose_logits_overflow_is_refused_at_warm_up(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "nan.gguf"
    write_nan_norm(tiny / "llama.gguf", path, 3e38)  # finite themselves
    job = make_jobs(tiny)[1]
    job = msgspec.structs.replace(job, target=msgspec.structs.replace(job.target, path=str(path)))
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        for case in {slot.case_id: slot.case for slot in job.slots}.values():
            with pytest.raises(EngineError, match="logits are not finite"):
                arms.warm_up(case)


def n_waits(arms: Arms, slot: Slot, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the device is waited for in a trial: by target and draft, and for judging."""
    count = 0
    synchronize = library().llama_synchronize

    def wait(handle: object) -> None:
        nonlocal count
        count += 1
        synchronize(handle)

    with monkeypatch.context() as patched:
        patched.setattr(library(), "llama_synchronize", wait)
        arms.run(slot)
    return count


@pytest.mark.parametrize("arm", ["ar", "sd"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_a_device_that_fails_costs_a_trial_and_nothing_after_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, arm: str, where: str
) -> None:
    job, total = make_jobs(tiny)[0], 0
    plain, drafted = pair(job)
    chosen = plain if arm == "ar" else drafted
    for is_counted in (True, False):
        with Arms(job, MonotonicClock(), ProbeCache()) as arms:
            arms.check(chosen.case)  # the probe's own passes are not counted
            if arm == "sd":
                arms.run(plain)
            if is_counted:
                total = n_waits(arms, chosen, monkeypatch)
                continue
            with monkeypatch.context() as patched:
                fail_device_at(patched, 1 if where == "first" else total)
                with pytest.raises(NativeError):
                    arms.run(chosen)
            # A plain trial whose judging failed is no reference; one whose prompt could not be compared was judged, and
            # the next trial compares it, in contexts of its own.
            assert (arm, where) != ("ar", "first") or not arms._references
            for trial in map(arms.run, (chosen, plain, drafted)):
                assert trial.valid, trial.reason


def test_the_memory_of_whoever_starts_a_worker_is_not_the_workers() -> None:
    held = bytearray(b"x") * 500_000_000
    script = "from mlsd.measure.worker.arms import peak_rss_bytes; print(peak_rss_bytes())"
    answer = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    assert 10_000_000 < int(answer.stdout) < len(held)
