"""The arms of one target: opened when they are first needed, warmed, and measured trial by trial.

It lives inside a worker process, but holds nothing of it: tests and notebooks use it directly.
"""

from __future__ import annotations

import datetime
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from mlsd.clock import Clock
from mlsd.drafters import find_method, open_drafter, target_options
from mlsd.drafters.method import DrafterSetup
from mlsd.engine.decode import GenerationLimits, check_capacity, generate
from mlsd.engine.drafter import Drafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_session
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.losslessness import judge, text_noise
from mlsd.engine.probe import ProbeReport, probe
from mlsd.engine.rollback import Rollback, make_rollback
from mlsd.engine.session import SessionOptions
from mlsd.engine.threads import default_threads
from mlsd.engine.tree_noise import tree_noise
from mlsd.errors import RollbackError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import refuse_unloadable
from mlsd.measure.messages import Job, Slot
from mlsd.measure.worker.conversation import PlainAnswers, Prompts, answer_text, trial_rng
from mlsd.measure.worker.probe_cache import ProbeCache
from mlsd.records import Case, Conditions, EngineOptions, Losslessness, ModelRef, Trial

_WARM_UP_ROUNDS = 3
_CONTEXT_STEP = 256  # contexts are rounded up, as llama.cpp does


@dataclass(frozen=True)
class _Arm:
    """One way of decoding, ready to run: contexts stay open from block to block."""

    session: LlamaSession
    drafter: Drafter
    rollback: Rollback
    target_strategy: str | None

    @property
    def failed_native_calls(self) -> int:
        """Failures that target and drafter ignored since they were opened."""
        return self.session.failed_native_calls + self.drafter.failed_native_calls


class Arms:
    """One target and its drafts; every native handle is freed on `close`."""

    def __init__(self, job: Job, clock: Clock, cache: ProbeCache) -> None:
        self._stack = ExitStack()
        self._models: dict[Path, LlamaModel] = {}
        self._path = Path(job.target.path)
        self._drafts = {model.ref.id: Path(model.path) for model in job.models}
        self._refs = {Path(model.path): model.ref for model in (job.target, *job.models)}
        self._clock, self._cache, self._engine = clock, cache, job.slots[0].case.engine
        self._arms: dict[bytes, _Arm] = {}
        self._references: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        self._reports: dict[Path, ProbeReport] = {}
        self._load_mtp = any(find_method(slot.case.drafter.name).loads_next_token_block for slot in job.slots)
        self._tree_noise: dict[SessionOptions, float] = {}
        self._verdicts: dict[object, Losslessness] = {}  # by prompt, tokens, gamma and options
        started_ns = clock.now_ns()
        try:
            self.target = self._open_model(self._path)
            self.load_ns = clock.now_ns() - started_ns
            answers = PlainAnswers(self.target, self._engine, max(slot.case.n_predict for slot in job.slots), clock)
            self._prompts = Prompts(self.target, job.prompts, job.slots, answers)
        except BaseException:
            self._stack.close()
            raise
        n_ctx = self._prompts.longest + max(slot.case.n_predict for slot in job.slots)
        if self.target.n_ctx_train:
            n_ctx = min(n_ctx, self.target.n_ctx_train)  # beyond it a model writes nonsense; such trials are refused
        self._options = session_options(self._engine, -(-n_ctx // _CONTEXT_STEP) * _CONTEXT_STEP)
        for known in job.references:
            prompt = self._prompts.greedy(known.prompt)
            if prompt is not None:
                self._references[prompt, known.n_predict] = known.tokens

    # --- models and arms ------------------------------------------------------------------------------------------

    def _open_model(self, path: Path) -> LlamaModel:
        if path not in self._models:
            refuse_unloadable(Source(path))
            load_mtp = self._load_mtp and path == self._path
            model = LlamaModel(path, n_gpu_layers=self._engine.n_gpu_layers, load_mtp=load_mtp)
            self._models[path] = self._stack.enter_context(model)
        return self._models[path]

    def report(self, path: Path) -> ProbeReport:
        """The probe's findings for a model of this job, from the cache or made now."""
        if path not in self._reports:
            ref = self._refs.get(path, ModelRef(id=path.name))
            model = self._open_model(path)
            self._reports[path] = self._cache.get(
                ref, self._options, lambda: probe(partial(open_session, model), self._options)
            )
        return self._reports[path]

    def _strategy(self, path: Path, wanted: str, role: str) -> str:
        """The strategy to use for a model as `target` or `draft`; a wanted one must have passed the probe."""
        if wanted == "unchecked":
            return wanted
        report = self.report(path)
        chosen = report.target if role == "target" else report.draft
        history = "batch" if role == "target" else "single"
        if wanted != "auto":
            result = next((r for r in report.strategies if (r.name, r.history) == (wanted, history)), None)
            if result is not None and result.exact:
                return wanted
            if role == "target":
                reason = result.reason if result is not None else "there is no such strategy"
                raise RollbackError(
                    f"Rollback {wanted!r} is not exact for {path.name} as a target: {reason}.",
                    hint=f"Use --rollback auto (here: {chosen}), or `mlsd probe {path.name}` to see every strategy.",
                )
        if chosen is None:
            raise RollbackError(
                f"No rollback strategy is exact for {path.name} as a {role} on this backend.",
                hint=f"`mlsd probe {path.name}` shows what was tried.",
            )
        return chosen

    def _arm(self, case: Case) -> _Arm:
        key = arm_key(case)
        if key not in self._arms:
            with ExitStack() as opened:  # what is open when a later step fails is closed at once
                self._arms[key] = self._open_arm(case, opened)
                self._stack.enter_context(opened.pop_all())
        return self._arms[key]

    def _open_arm(self, case: Case, opened: ExitStack) -> _Arm:
        is_sd = case.arm == "sd"
        strategy = self._strategy(self._path, case.rollback, "target") if is_sd else "trim"
        options = msgspec.structs.replace(
            self._options,
            max_outputs=case.gamma + 1,
            n_snapshots=case.gamma if strategy == "snapshots" else 0,
            device_sampling=case.sampling.greedy,
            checked=strategy != "unchecked",
        )
        session = open_session(self.target, target_options(options, case.drafter, case.gamma, strategy))
        opened.callback(session.close)
        draft = case.drafter.draft
        drafter = open_drafter(
            DrafterSetup(
                spec=case.drafter,
                gamma=case.gamma,
                sampling=case.sampling,
                clock=self._clock,
                target=session,
                target_path=self._path,
                target_rollback=strategy,
                second_path=None if draft is None else self._drafts[draft.id],
                options=msgspec.structs.replace(options, n_snapshots=0),
                open_model=self._open_model,
                draft_rollback=lambda path: self._strategy(path, case.rollback, "draft"),
            )
        )
        opened.callback(drafter.close)
        return _Arm(
            session=session,
            drafter=drafter,
            rollback=make_rollback(strategy, session),
            target_strategy=strategy if is_sd else None,
        )

    # --- trials ---------------------------------------------------------------------------------------------------

    def check(self, case: Case) -> None:
        """Open what a case needs and see that it fits. Raises what is wrong, before anything is measured."""
        prompt = self._prompts.of_any_repeat(case)
        check_capacity(self._options.n_ctx, len(prompt), _limits(case))
        self._arm(case)

    def warm_up(self, case: Case) -> None:
        """Run an arm for a few rounds at full shape and discard the result."""
        prompt = self._prompts.of_any_repeat(case)
        n_predict = min(case.n_predict, _WARM_UP_ROUNDS * (case.gamma + 1) + 1)
        arm = self._arm(case)
        limits = GenerationLimits(n_predict=n_predict, gamma=case.gamma)
        generate(arm.session, arm.drafter, arm.rollback, prompt, limits, self._clock, sampling=case.sampling)

    def run(
        self,
        slot: Slot,
        *,
        conditions: Conditions | None = None,
        keep_text: bool = True,
        on_round: Callable[[int], None] | None = None,
    ) -> Trial:
        """Measure one trial. Raises what the engine raises; nothing is measured then."""
        case = slot.case
        given = self._prompts.of(case, slot.repeat)
        arm = self._arm(case)
        started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        failures_before = arm.failed_native_calls
        result = generate(
            arm.session,
            arm.drafter,
            arm.rollback,
            given.tokens,
            _limits(case),
            self._clock,
            sampling=case.sampling,
            rng=trial_rng(case.sampling, slot.repeat),
            on_round=on_round,
        )
        failed = arm.failed_native_calls - failures_before
        verdict = self._judge(case, arm, given.tokens, result.tokens)
        reason = invalid_reason(case, arm.target_strategy, failed, verdict)
        return Trial(
            case_id=slot.case_id,
            arm=case.arm,
            gamma=case.gamma,
            block=slot.block,
            repeat=slot.repeat,
            position=slot.position,
            status="ok",
            started_at=started_at,
            n_prompt=len(given.tokens),
            tokens=result.tokens,
            text=self._text(case, result.tokens) if keep_text else None,
            prefill_ns=result.prefill_ns,
            draft_prefill_ns=result.draft_prefill_ns if case.arm == "sd" else None,
            decode_ns=result.decode_ns if arm.drafter.timed else None,
            rounds=result.rounds,
            rollback_target=arm.target_strategy,
            rollback_draft=arm.drafter.rollback_name,
            timed=arm.drafter.timed,
            fell_back=arm.drafter.fell_back,
            failed_native_calls=failed,
            losslessness=verdict,
            valid=reason is None,
            invalid_reason=reason,
            peak_rss_bytes=peak_rss_bytes(),
            stats=arm.drafter.stats(),
            earlier=given.earlier if keep_text else (),
            conditions=conditions,
        )

    def _text(self, case: Case, tokens: Sequence[int]) -> str:
        return self.target.detokenize(tokens) if case.ignore_eog else answer_text(self.target, tokens)

    def _judge(self, case: Case, arm: _Arm, prompt: Sequence[int], tokens: tuple[int, ...]) -> Losslessness | None:
        if not case.sampling.greedy:
            return None
        key = (tuple(prompt), case.n_predict)
        if case.arm == "ar":
            self._references.setdefault(key, tokens)
        reference = self._references.get(key)
        if reference is None:
            return None
        if reference == tokens:
            return Losslessness(verdict="lossless")
        # Repeats of a greedy case differ from plain decoding in the same place; judging takes as long as decoding.
        question = (key, tokens, case.gamma, arm.session.options)
        if question not in self._verdicts:
            self._verdicts[question] = self._compare(tokens, reference, prompt, case.gamma, arm.session.options)
        return self._verdicts[question]

    def _compare(
        self,
        tokens: tuple[int, ...],
        reference: tuple[int, ...],
        prompt: Sequence[int],
        gamma: int,
        options: SessionOptions,
    ) -> Losslessness:
        plain = msgspec.structs.replace(self._options, device_sampling=False)
        here = text_noise(tokens, prompt, partial(open_session, self.target), plain, (max(2, gamma + 1),))
        with closing(open_session(self.target, plain)) as session:
            return judge(tokens, reference, prompt, session, max(here, self._noise(options)))

    def _noise(self, options: SessionOptions) -> float:
        """How far arithmetic alone moves the target's logits; trees whose cells stay in place move them further."""
        noise = self.report(self._path).kernel_noise
        if options.tree == "off":
            return noise
        if options not in self._tree_noise:
            self._tree_noise[options] = tree_noise(partial(open_session, self.target), options)
        return max(noise, self._tree_noise[options])

    def close(self) -> None:
        """Free every context, then every model; calling it twice is harmless."""
        self._stack.close()

    def __enter__(self) -> Arms:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def arm_key(case: Case) -> bytes:
    """What decides which contexts and drafter a case needs; cases that differ only in the prompt share them."""
    return msgspec.json.encode((case.drafter, case.gamma, case.rollback, case.sampling))


def _limits(case: Case) -> GenerationLimits:
    return GenerationLimits(n_predict=case.n_predict, gamma=case.gamma, ignore_eog=case.ignore_eog)


def invalid_reason(
    case: Case, strategy: str | None, failed_native_calls: int, losslessness: Losslessness | None
) -> str | None:
    """Why a trial's numbers must not be reported as true, or None when they may be (design: valid trials)."""
    if strategy == "unchecked":
        return f"unchecked rollback: {failed_native_calls} native calls failed and were ignored"
    if failed_native_calls:
        return f"{failed_native_calls} native calls failed"
    if not case.sampling.greedy:
        return None
    if losslessness is None:
        return "no plain decoding of the same prompt to compare with"
    if losslessness.verdict == "diverged":
        return f"output differs from plain decoding at token {losslessness.first_difference}"
    return None


def session_options(engine: EngineOptions, n_ctx: int) -> SessionOptions:
    """What all contexts of a job share."""
    return SessionOptions(
        n_ctx=engine.n_ctx or n_ctx,
        n_batch=engine.n_batch,
        n_ubatch=engine.n_ubatch,
        n_threads=engine.n_threads or default_threads(),
        n_gpu_layers=engine.n_gpu_layers,
        flash_attention=engine.flash_attention,
    )


def peak_rss_bytes() -> int:
    """Largest resident size of this process so far (kernel units: bytes on macOS, KiB elsewhere)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
