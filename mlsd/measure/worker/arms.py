"""The arms of one target: opened when they are first needed, warmed, and measured trial by trial."""

from __future__ import annotations

import itertools
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mlsd.clock import Clock
from mlsd.drafters import check_target, find_method, open_drafter, recipe, second_file
from mlsd.drafters.method import DrafterSetup
from mlsd.drafters.recipe import opening_of
from mlsd.engine.context import Context, ContextOptions, context_options
from mlsd.engine.decode import Generation, GenerationLimits, check_capacity, generate
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.open import open_context
from mlsd.engine.losslessness import Judge
from mlsd.engine.rollback import Rollback, make_rollback
from mlsd.engine.rollback_choice import Prefix, Role, RollbackCheck, candidates, choose_strategy, uses
from mlsd.engine.verify import Outputs
from mlsd.errors import EngineError, MlsdError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import refuse_unloadable
from mlsd.hardware import machine_ns
from mlsd.measure.messages import now, trial_of
from mlsd.measure.probe_cache import ProbeCache, check_weights, open_reporting
from mlsd.measure.stage_clock import StageClock
from mlsd.measure.worker.conversation import Prompts, answer_text, trial_rng
from mlsd.measure.worker.saved_prompts import CopyProofs, Reading, SavedPrompts, reading_options
from mlsd.measure.worker.timing import MOST_UNTIMED, is_steady
from mlsd.planning.job import Job, Slot
from mlsd.records import Anchors, BackendInfo, Case, Conditions, DrafterSpec, Losslessness, ModelRef, Status, Trial
from mlsd.trials.validity import invalid_reason


class Models:
    """The target and whatever is loaded beside it; all are freed with the stack."""

    def __init__(self, job: Job, stack: ExitStack) -> None:
        self.path = Path(job.target.path)
        self._stack = stack
        self._engine = job.engine
        self._open: dict[tuple[Path, int | None], LlamaModel] = {}
        self._drafts = {model.ref.id: Path(model.path) for model in job.models}
        self._refs = {Path(model.path): model.ref for model in job.files}
        self._load_mtp = any(find_method(case.drafter.name).loads_next_token_block for case in job.cases.values())
        self.target = self.open(self.path)

    @property
    def backend(self) -> BackendInfo:
        return backend_info(self._engine.n_gpu_layers)

    def ref(self, path: Path) -> ModelRef:
        return self._refs.get(path, ModelRef(id=path.name))

    def second(self, case: Case) -> Path | None:
        """The file of what drafts beside the target, made of it if need be."""
        draft = case.drafter.draft
        return second_file(case.drafter, self.path, None if draft is None else self._drafts[draft.id])

    def open(self, path: Path, n_experts: int | None = None) -> LlamaModel:
        """The model of a file, loaded once; `n_experts` in place of what it says of its router."""
        if (path, n_experts) not in self._open:
            refuse_unloadable(Source(path))
            check_weights(path, self.ref(path))
            load_mtp = self._load_mtp and path == self.path and n_experts is None
            layers = self._engine.n_gpu_layers
            model = LlamaModel(path, n_gpu_layers=layers, load_mtp=load_mtp, n_experts_used=n_experts)
            self._open[path, n_experts] = self._stack.enter_context(model)
        return self._open[path, n_experts]


class Strategies:
    """The rollback strategy of each arm: the first candidate that is exact in contexts such as it opens."""

    def __init__(
        self,
        models: Models,
        options: ContextOptions,
        cache: ProbeCache,
        read_prefix: Callable[[Path], Prefix | None],
    ) -> None:
        """`read_prefix` gives a long text that a model has read, and the memory behind it."""
        self._models, self._options, self._cache, self._read_prefix = models, options, cache, read_prefix

    def choose(self, path: Path, wanted: str, role: Role, gamma: int) -> str:
        """Raises: EngineError where none is exact, or not the one that is wanted."""
        model = self._models.open(path)
        names = candidates(role, recurrent=model.is_recurrent, backend=self._models.backend.backend)
        check = partial(self._check, path, self._options, role=role, gamma=gamma)
        return choose_strategy(self._models.ref(path).id, role, gamma, wanted, names, check)

    def check_tree(self, options: ContextOptions, gamma: int) -> None:
        """Try the trees of a target's context. Raises: EngineError where a path that is kept is not exact."""
        check = self._check(self._models.path, options, "trim", role="target", gamma=gamma)
        if not check.exact:
            raise EngineError(
                f"Trees are not exact for {self._models.path.name} on this backend: {check.reason}.",
                hint="Draft single chains, or give the option commit=redecode.",
            )

    def _check(self, path: Path, options: ContextOptions, strategy: str, *, role: Role, gamma: int) -> RollbackCheck:
        ref, model, read_prefix = self._models.ref(path), self._models.open(path), partial(self._read_prefix, path)
        return check_uses(self._cache, ref, options, model, strategy, role, gamma, read_prefix)


def check_uses(
    cache: ProbeCache,
    ref: ModelRef,
    options: ContextOptions,
    model: LlamaModel,
    strategy: str,
    role: Role,
    gamma: int,
    read_prefix: Callable[[], Prefix | None] = lambda: None,
) -> RollbackCheck:
    """The first use that an arm makes of a strategy and that is not exact, or else the one that is off by most."""
    checks = list[RollbackCheck]()
    for use in uses(options, model.window, strategy, role, gamma):
        checks.append(cache.check(ref, options, model, use, read_prefix))
        if not checks[-1].exact:
            return msgspec.structs.replace(checks[-1], gamma=gamma)
    return msgspec.structs.replace(max(checks, key=lambda check: check.max_logit_diff or 0.0), gamma=gamma)


_LEAST_WIDTH = 5  # of the wide passes that show heat
_ANCHOR_TOKENS, _ANCHOR_PASSES = 32, 8  # of one reading of the anchors: too few to heat, enough for a median
_WARM_UP_ROUNDS = 3  # or more, unless a draft is right
_FIRST_PASS = 32  # tokens of a pass that touches all weights, before a prompt is read for its time


@dataclass(frozen=True)
class _Arm:
    """One way of decoding, ready to run: contexts stay open from block to block."""

    context: LlamaContext
    drafter: Drafter
    rollback: Rollback
    target_strategy: str | None
    opened: ExitStack  # what is closed with it

    @property
    def failed_native_calls(self) -> int:
        """Failures that target and drafter ignored since they were opened."""
        return self.context.failed_native_calls + self.drafter.failed_native_calls


class _Prefill(NamedTuple):
    """What reading a prompt anew took, up to the first token."""

    target_ns: int | None
    draft_ns: int | None


class Arms:
    """One target and its drafts; every native handle is freed on `close`."""

    def __init__(self, job: Job, clock: Clock, cache: ProbeCache, stages: StageClock | None = None) -> None:
        """`stages` accounts for the time of the whole process, where it is not only that of these arms."""
        self._stack = ExitStack()
        self.stages = stages or StageClock(clock, "load")
        self._clock, self.one_arm = clock, job.one_arm
        self._plain_cases = [case for case in job.cases.values() if case.arm == "ar"]
        self._arms: dict[bytes, _Arm] = {}
        self._references: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        # Arms whose memory was compared once, though their tokens were equal.
        self._compared = {arm_key(job.cases[id_]) for id_ in job.compared_memories if id_ in job.cases}
        started_ns = clock.now_ns()
        self._n_predict = max(case.n_predict for case in job.cases.values())
        try:
            self._models = Models(job, self._stack)
            self.target, self.load_ns = self._models.target, clock.now_ns() - started_ns
            self._prompts = Prompts(self.target, job, self._n_predict, clock)
        except BaseException:
            self._stack.close()
            raise
        self._saved = SavedPrompts(CopyProofs(self._models.ref))
        self._timed_prefills = set(job.timed_prefills)
        self._prefills: dict[tuple[str, tuple[int, ...]], _Prefill] = {}  # of trials to come
        self._target_prefills: dict[tuple[ContextOptions, tuple[int, ...]], int | None] = {}
        self._finite = set[ContextOptions]()  # kinds of contexts whose logits were seen to be finite
        n_ctx = self._prompts.longest + self._n_predict
        if self.target.n_ctx_train:
            n_ctx = min(n_ctx, self.target.n_ctx_train)  # beyond it a model writes nonsense; such trials are refused
        self._options = context_options(job.engine, n_ctx)
        self._warmer: LlamaContext | None = None
        self._first = self.target.tokenize("a")[:1]
        self.strategies = Strategies(self._models, self._options, cache, self._read_prefix)
        opening = partial(open_reporting, "judging", self.target)
        self._judge = Judge(opening, self._options, self._saved.second_reading)
        self._stack.callback(self._judge.close)
        for reference in job.references:
            if (prompt := self._prompts.greedy(reference.prompt_sha256)) is not None:
                self._references[prompt, reference.n_predict] = reference.tokens
        # The readings that trials went on from whose judging is not over, by case and repeat.
        self._readings: dict[tuple[str, int], Reading] = {}
        # Prompts behind which an earlier run wrote plainly what a valid trial must write again, or be compared.
        self._written_before = {prompt for prompt, _ in self._references}

    @property
    def backend(self) -> BackendInfo:
        return self._models.backend

    @property
    def _samples_on_device(self) -> bool:
        """Where the device is the host itself, a row of logits is there already."""
        return self.backend.backend != "CPU"

    # --- arms -----------------------------------------------------------------------------------------------------

    def _arm(self, case: Case) -> _Arm:
        key = arm_key(case)
        if key not in self._arms:
            for other in tuple(self._arms) if self.one_arm else ():
                self._arms.pop(other).opened.close()
            # What is open when a later step fails is closed at once.
            with self.stages.of("load"), ExitStack() as opened:
                self._arms[key] = self._open_arm(case, opened)
        return self._arms[key]

    @contextmanager
    def _using(self, case: Case) -> Iterator[_Arm]:
        """The arm of a case. One in which the engine failed is thrown away, for nobody knows what its contexts hold."""
        arm = self._arm(case)
        try:
            yield arm
        except EngineError:
            del self._arms[arm_key(case)]
            arm.opened.close()
            raise

    def is_open(self, case: Case) -> bool:
        """Whether the arm of a case stands ready; memory that is tight holds one at a time."""
        return arm_key(case) in self._arms

    def _open_arm(self, case: Case, opened: ExitStack) -> _Arm:
        is_sd = case.arm == "sd"
        path, choose = self._models.path, self.strategies.choose
        self.stages.switch("choose rollback")
        check_target(case.drafter, path, self._models.second(case))  # a lab plans with files that it has not seen
        strategy = choose(path, case.rollback, "target", case.gamma) if is_sd else "trim"
        opening = opening_of(
            case,
            self._options,
            strategy,
            lambda: choose(self._models.second(case) or path, case.rollback, "draft", case.gamma),
            device_sampling=self._samples_on_device,
        )
        contexts = recipe(opening)
        if contexts[0].options.tree != "off":
            self.strategies.check_tree(contexts[0].options, case.gamma)
        self.stages.switch("load")
        context = open_context(self.target, contexts[0].options)
        opened.callback(context.close)
        drafter = open_drafter(
            DrafterSetup(
                opening=opening,
                contexts=contexts,
                clock=self._clock,
                target=context,
                target_path=path,
                second_path=self._models.second(case) if len(contexts) > 1 else None,
                open_model=self._models.open,
                plain=lambda prompt: self._plain(prompt, case),
                read=self._read_draft,
            )
        )
        opened.callback(drafter.close)
        return _Arm(
            context=context,
            drafter=drafter,
            rollback=make_rollback(strategy, context),
            target_strategy=strategy if is_sd else None,
            opened=self._stack.enter_context(opened.pop_all()),
        )

    def _plain(self, prompt: Sequence[int], case: Case) -> tuple[int, ...]:
        """The target's plain greedy output, from a trial of plain decoding or written now in a context of its own."""
        limits = msgspec.structs.replace(_limits(case), n_predict=self._n_predict)
        if (tuple(prompt), limits.n_predict) not in self._references:
            options = msgspec.structs.replace(self._options, device_sampling=self._samples_on_device)
            with (
                self.stages.of("reference"),
                open_context(self.target, options) as context,
                ExitStack() as opened,
                self._saved.anew(target=False, draft=False),  # it goes on from the reading that all arms share
            ):
                arm = _Arm(context, NoDrafter(), make_rollback("trim", context), None, opened)
                self._references[tuple(prompt), limits.n_predict] = self._decode(arm, prompt, limits).tokens
        return self._references[tuple(prompt), limits.n_predict]

    def _decode(self, arm: _Arm, prompt: Sequence[int], limits: GenerationLimits, **how: Any) -> Generation:
        read = self._read_target
        return generate(arm.context, arm.drafter, arm.rollback, prompt, limits, self._clock, prefill=read, **how)

    def _read_target(self, context: Context, prompt: Sequence[int]) -> Outputs:
        with self.stages.of("prefill"):
            return self._saved.target(context, prompt)

    def _read_draft(self, context: Context, tokens: Sequence[int]) -> None:
        with self.stages.of("prefill"):
            self._saved.draft(context, tokens)

    def _time_prefill(self, case: Case, arm: _Arm, prompt: tuple[int, ...]) -> None:
        """Read a prompt anew for its time, once for each arm and text; generations go on from copies.

        Targets whose contexts are of one kind read it alike, so the first of these arms reads it for all.
        """
        if arm.context.options.kind != "plain" or case.id in self._timed_prefills:
            return  # what is read for its rows is read and timed each time
        key, is_first = (reading_options(arm.context), prompt), self._is_read_anew(case, arm, prompt)
        with self._saved.anew(target=is_first):
            run = self._decode(arm, prompt, GenerationLimits(n_predict=1, gamma=case.gamma), sampling=case.sampling)
        self._saved.keep_draft()
        if is_first:
            self._target_prefills[key] = run.prefill_ns
            self._saved.keep(arm.context, prompt)
        self._timed_prefills.add(case.id)
        self._prefills[case.id, prompt] = _Prefill(self._target_prefills[key], run.draft_prefill_ns)

    def _read_prefix(self, path: Path) -> Prefix | None:
        """The longest prompt as plain decoding reads it for its time, which is then done; of the target alone."""
        if path != self._models.path or self.one_arm or not self._plain_cases:
            return None
        longest = max(self._plain_cases, key=lambda case: len(self.prompt(case)))
        try:
            self.warm_up(longest)
            return self._saved.prefix(self._arm(longest).context, self.prompt(longest))
        except MlsdError:
            return None  # its own trial says why

    def _is_read_anew(self, case: Case, arm: _Arm, prompt: tuple[int, ...]) -> bool:
        """Whether an arm reads a prompt for the time that it takes the target."""
        key = reading_options(arm.context), prompt
        return case.id not in self._timed_prefills and key not in self._target_prefills

    # --- trials ---------------------------------------------------------------------------------------------------

    def prompt(self, case: Case) -> tuple[int, ...]:
        return self._prompts.of_any_repeat(case)

    def check(self, case: Case) -> None:
        """Open what a case needs and see that it fits. Raises what is wrong, before anything is measured."""
        check_capacity(self._options.n_ctx, len(self.prompt(case)), _limits(case))
        self._arm(case)

    def warm_up(self, case: Case, *, whole: bool = False, on_round: Callable[[int], None] | None = None) -> None:
        """Run an arm for a few rounds at full shape, or a `whole` trial, and discard the result."""
        n_predict = case.n_predict if whole else min(case.n_predict, case.gamma + 1 + _WARM_UP_ROUNDS)
        limits = GenerationLimits(n_predict=n_predict, gamma=case.gamma)
        with self._using(case) as arm, self.stages.of("warm-up"):
            prompt = self.prompt(case)
            if whole or self._is_read_anew(case, arm, prompt):
                arm.context.clear()
                arm.context.decode(prompt if whole else prompt[:_FIRST_PASS])
            with self.stages.of("prefill"):
                self._time_prefill(case, arm, prompt)
            self._decode(arm, prompt, limits, sampling=case.sampling, on_round=on_round)
            if arm.context.options.checked and reading_options(arm.context) not in self._finite:
                self._judge.check_finite(arm.context)
                self._finite.add(reading_options(arm.context))

    def read_anchors(self, case: Case, *, both: bool = True) -> Anchors:
        """Time passes over the same 32 tokens as wide as the case verifies, which heat slows first, and over one."""
        width, n_outputs = max(case.gamma + 1, _LEAST_WIDTH), case.gamma + 1
        with self._using(case) as arm:
            length = min(_ANCHOR_TOKENS, arm.context.n_ctx)
            tokens = tuple(itertools.islice(itertools.cycle(self.prompt(case)), length))
            one_ns = self._anchor_ns(arm.context, tokens, 1, 1) if both else None
            wide_ns = self._anchor_ns(arm.context, tokens, min(width, length), min(n_outputs, length))
        return Anchors(target=self._models.ref(self._models.path).id, width=width, one_ns=one_ns, wide_ns=wide_ns)

    def _begin_rounds(self, *, warm: bool) -> None:
        if warm:
            with self.stages.of("warm-up"):
                self._warm()
        self.stages.switch("timed rounds")

    def _warm(self) -> None:
        """Passes in a context of their own until three agree: a GPU is slow after any pause, and arms start alike."""
        if self._warmer is None:
            self._warmer = self._stack.enter_context(open_context(self.target, warm_options(self._options)))
        spans = list[int]()
        self._warmer.clear()
        while len(spans) < MOST_UNTIMED and not is_steady(spans):
            spans.append(self._pass_ns(self._warmer, self._first))

    def _anchor_ns(self, context: Context, tokens: Sequence[int], width: int, n_outputs: int) -> int:
        """The median of passes of a width from the first token on, without the first pass."""
        spans: list[int] = []
        for index in range(1 + max(_ANCHOR_PASSES, len(tokens) // width)):
            begin = index % (len(tokens) // width) * width
            if begin == 0:
                context.clear()
            spans.append(self._pass_ns(context, tokens[begin : begin + width], n_outputs))
        return round(statistics.median(spans[1:]))

    def _pass_ns(self, context: Context, tokens: Sequence[int], n_outputs: int = 1) -> int:
        started_ns = self._clock.now_ns()
        context.decode(tokens, n_outputs=n_outputs)
        context.greedy()
        return self._clock.now_ns() - started_ns

    def refer(self, slot: Slot, on_round: Callable[[int], None] | None = None) -> Case | None:
        """Write the plain output that drafted ones are judged by, untimed; the case that ran and is warm now."""
        case, prompt = slot.case, tuple(self._prompts.of(slot.case, slot.repeat).tokens)
        if case.arm == "ar" or not case.sampling.greedy or (prompt, case.n_predict) in self._references:
            return None
        plain = msgspec.structs.replace(case, drafter=DrafterSpec(), gamma=0, rollback="auto")
        with self._using(plain) as arm, self.stages.of("reference"):
            run = self._decode(arm, prompt, _limits(plain), on_round=on_round)
            self._references[prompt, case.n_predict] = run.tokens
        return plain

    def run(self, slot: Slot, **how: Any) -> Trial:
        """Measure one trial and judge it at once."""
        return self.confirm(slot, self.measure(slot, **how)())

    def confirm(self, slot: Slot, trial: Trial) -> Trial:
        """A judged trial, which is not valid where its prompt was read wrongly; all arms went on from that reading.

        So equal tokens prove nothing of it. It is compared once, behind the arms of a block: one of another kind has by
        then read the prompt for the judge. A wrong one is dropped, and the prompt is read again. Raises: EngineError.
        """
        reading = self._readings.pop((slot.case_id, slot.repeat), None)
        prompt = tuple(self._prompts.of(slot.case, slot.repeat).tokens) if reading is not None else ()
        if reading is None or trial.losslessness is None or (trial.valid and prompt in self._written_before):
            return trial
        if reading.verdict is None:
            with self.stages.of("judging"):
                reading.verdict = self._judge.judge_reading(prompt, reading.memory)
            if reading.verdict.verdict != "lossless":
                self._saved.drop(prompt)
                self._judge.forget()
                if prompt not in self._written_before:
                    self._references = {key: text for key, text in self._references.items() if key[0] != prompt}
        verdict = reading.verdict
        if verdict.verdict == "lossless":
            return trial
        reason = (
            "two readings of the prompt differ, one of which all arms went on from: their logits are off by "
            f"{verdict.live_distance:.3g}, arithmetic explains {verdict.live_limit:.3g}"
        )
        return msgspec.structs.replace(trial, status=Status.INVALID, reason=reason, losslessness=verdict)

    def measure(
        self,
        slot: Slot,
        *,
        conditions: Conditions | None = None,
        on_round: Callable[[int], None] | None = None,
        warm: bool = False,
    ) -> Callable[[], Trial]:
        """Measure one trial, on a device that is warm; what is returned judges it, before the arm runs again.

        Raises, as judging does, what the engine raises; the next trial of the arm starts anew then.
        """
        case = slot.case
        with self._using(case) as arm:
            given = self._prompts.of(case, slot.repeat)
            started_at = now()
            failures_before = arm.failed_native_calls
            with self.stages.of("prefill"):
                self._time_prefill(case, arm, given.tokens)
                busy_ns, began_ns, processor_ns = machine_ns(), self._clock.now_ns(), time.process_time_ns()
                run = self._decode(
                    arm,
                    given.tokens,
                    _limits(case),
                    sampling=case.sampling,
                    rng=trial_rng(case.sampling, slot.repeat),
                    on_round=on_round,
                    warm=partial(self._begin_rounds, warm=warm),
                )
            conditions = msgspec.structs.replace(
                conditions or Conditions(),
                generation_ns=self._clock.now_ns() - began_ns,
                processor_ns=time.process_time_ns() - processor_ns,
                machine_ns=machine_ns() - busy_ns,
            )
            prefill = _Prefill(run.prefill_ns, None if run.prefill_ns is None else run.draft_prefill_ns)
            prefill = self._prefills.pop((case.id, given.tokens), prefill)
            failed = arm.failed_native_calls - failures_before
            reading = self._saved.reading(arm.context, given.tokens) if run.prefill_ns is None else None
            if reading is not None:
                self._readings[slot.case_id, slot.repeat] = reading
            measured = {
                "started_at": started_at,
                "n_prompt": len(given.tokens),
                "prompt_sha256": given.sha256,
                "tokens": run.tokens,
                "text": self._text(case, run.tokens),
                "prefill_ns": prefill.target_ns,
                "draft_prefill_ns": prefill.draft_ns if case.arm == "sd" else None,
                "decode_ns": run.decode_ns,
                "rounds": run.rounds,
                "rollback_target": arm.rollback.name if case.arm == "sd" else None,
                "rollback_draft": arm.drafter.rollback_name,
                "fell_back": arm.drafter.fell_back,
                "failed_native_calls": failed,
                "stats": arm.drafter.stats(),
                "earlier": given.earlier,
                "conditions": conditions,
            }

        def judge() -> Trial:
            with self._using(case) as judged, self.stages.of("judging"):
                verdict = self._verdict(case, judged, given.tokens, run)
            reason = invalid_reason(case, arm.target_strategy, failed, verdict)
            status = Status.VALID if reason is None else Status.INVALID
            verdict_of = {"status": status, "reason": reason, "losslessness": verdict}
            return trial_of(slot, **measured, **verdict_of, peak_rss_bytes=peak_rss_bytes())

        return judge

    def _text(self, case: Case, tokens: Sequence[int]) -> str:
        return self.target.detokenize(tokens) if case.ignore_eog else answer_text(self.target, tokens)

    def _verdict(self, case: Case, arm: _Arm, prompt: Sequence[int], run: Generation) -> Losslessness | None:
        """How a greedy output compares with plain decoding; None when it cannot."""
        if not case.sampling.greedy:
            return None
        key = (tuple(prompt), case.n_predict)
        reference = self._references.get(key, run.tokens if case.arm == "ar" else None)
        if reference is None:
            return None
        is_due = case.arm == "sd" and arm_key(case) not in self._compared  # plain decoding takes nothing back
        strategy = arm.target_strategy or "trim"
        verdict = self._judge.judge(run, reference, prompt, arm.context, strategy=strategy, compares_memory=is_due)
        if is_due and verdict.verdict in ("lossless", "near_tie"):
            self._compared.add(arm_key(case))
        if case.arm == "ar":  # only now: one whose judging failed is no reference
            self._references.setdefault(key, run.tokens)
        return verdict

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Arms:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def arm_key(case: Case) -> bytes:
    """What decides which contexts and drafter a case needs; cases that differ only in the prompt share them."""
    return msgspec.json.encode((case.drafter, case.gamma, case.rollback, case.sampling))


def warm_options(options: ContextOptions) -> ContextOptions:
    """A small context for passes over one position."""
    small = {"n_ctx": 256, "n_batch": 8, "n_ubatch": 8, "max_outputs": 1, "checked": False}
    return msgspec.structs.replace(options, **small, device_sampling=False)


def _limits(case: Case) -> GenerationLimits:
    return GenerationLimits(n_predict=case.n_predict, gamma=case.gamma, ignore_eog=case.ignore_eog)


def peak_rss_bytes() -> int:
    """Largest resident size of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux's getrusage starts from the peak of whoever started the process
        return 1024 * int(re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
