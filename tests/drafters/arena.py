"""Where drafters meet real targets: a method by name, built as `mlsd bench` builds it, against plain decoding."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from mlsd.clock import MonotonicClock
from mlsd.drafters import open_drafter, recipe, second_file
from mlsd.drafters.method import DrafterSetup
from mlsd.drafters.recipe import opening_of
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import Drafter, NoDrafter, WrappedDrafter
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.losslessness import Judge
from mlsd.engine.rollback import make_rollback
from mlsd.engine.rollback_choice import Role, first_exact, kernel_noise
from mlsd.engine.tree import ROOT, merge
from mlsd.engine.verify import Proposal, Verification
from mlsd.planning.question import parse_drafter
from mlsd.records import Case, Losslessness, ModelRef, PromptRef, Sampling, Status, Trial
from mlsd.trials.identities import broken

CLOCK = MonotonicClock()
WIDEST = 33  # rows of a pass whose counts are compared; from 64 on the CPU's attention rounds otherwise
N_RECORDED = 64  # tokens of plain output that a control may replay


@dataclass(frozen=True)
class Run:
    """One generation and what the method counted."""

    generation: Generation
    stats: dict[str, float]
    options: ContextOptions  # of the target
    verdict: Losslessness | None = None  # None: sampled
    fell_back: str | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.generation.tokens

    @property
    def proposed(self) -> int:
        return sum(r.proposed for r in self.generation.rounds)

    @property
    def counts(self) -> list[tuple[int, int]]:
        return [(r.proposed, r.accepted) for r in self.generation.rounds]

    @property
    def accepted(self) -> int:
        return sum(r.accepted for r in self.generation.rounds)


class Watched(WrappedDrafter):
    """A drafter of which is checked, in every round, that as much of its draft stands as the output goes on with.

    How much that is depends on weights and, where they are random, on the processor's rounding; this does not.
    """

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self._draft = Proposal()

    def propose(self, k: int) -> Proposal:
        self._draft = self.inner.propose(k)
        return self._draft

    def observe(self, verification: Verification) -> None:
        self.inner.observe(verification)
        tree = self._draft.tree or merge([self._draft.tokens], len(self._draft.tokens), len(self._draft.tokens))
        node, n_same = ROOT, 0
        for token in verification.committed:
            child = tree.child(node, token)
            if child is None:
                break
            node, n_same = child, n_same + 1
        assert n_same == verification.accepted == len(verification.committed) - 1
        self._draft = Proposal()


class Arena:
    """Loaded models, their probes and plain outputs; close it at the end."""

    load: ClassVar[dict[str, bool]] = {}  # how models are loaded

    def __init__(self, files: dict[str, Path], n_ctx: int = 256) -> None:
        self._files, self._stack = files, ExitStack()
        self._models: dict[tuple[Path, int | None], LlamaModel] = {}
        self._strategies: dict[tuple[Path, Role], str] = {}
        self._noise: dict[str, float] = {}
        self._plain: dict[Any, Generation] = {}
        self._judges: dict[str, Judge] = {}
        self._clear: dict[tuple[str, int, int], tuple[int, ...]] = {}
        self.options = ContextOptions(n_ctx=n_ctx, n_threads=1)

    def path(self, name: str) -> Path:
        return self._files[name]

    def open(self, path: Path, n_experts: int | None = None) -> LlamaModel:
        if (path, n_experts) not in self._models:
            model = LlamaModel(path, n_experts_used=n_experts, **self.load)
            self._models[path, n_experts] = self._stack.enter_context(model)
        return self._models[path, n_experts]

    def model(self, name: str) -> LlamaModel:
        return self.open(self._files[name])

    def context(self, path: Path, n_experts: int | None = None) -> LlamaContext:
        """A context of its own that gives logits."""
        return open_context(self.open(path, n_experts), msgspec.structs.replace(self.options, device_sampling=False))

    def strategy(self, path: Path, role: Role) -> str:
        """The first that is exact for a model, at a gamma above those of most tests."""
        if (path, role) not in self._strategies:
            model = self.open(path)
            found = first_exact(partial(open_context, model), self.options, role, 8, recurrent=model.is_recurrent)
            self._strategies[path, role] = found or ""
        return self._strategies[path, role]

    def noise(self, name: str) -> float:
        """The largest difference of logits between passes of up to `WIDEST` rows and single tokens."""
        if name not in self._noise:
            by_width = kernel_noise(partial(open_context, self.model(name)), self.options)
            self._noise[name] = max(noise for width, noise in by_width.items() if width <= WIDEST)
        return self._noise[name]

    def plain(self, name: str, prompt: Sequence[int], n_predict: int) -> tuple[int, ...]:
        key = (name, tuple(prompt), n_predict)
        if key not in self._plain:
            with open_context(self.model(name), self.options) as context:
                limits = GenerationLimits(n_predict=n_predict)
                self._plain[key] = generate(context, NoDrafter(), make_rollback("trim", context), prompt, limits, CLOCK)
        return self._plain[key].tokens

    def clear_prompt(self, name: str, seed: int, n_predict: int) -> tuple[int, ...]:
        """Of twelve prompts the one whose plain output hangs least on rounding.

        Counts of accepted tokens are compared on such texts only: along its output the best token leads the next by
        more than at any closest call of the other prompts, and by far more than kernels differ.
        """
        key = (name, seed, n_predict)
        if key not in self._clear:
            options = msgspec.structs.replace(self.options, device_sampling=False)
            with open_context(self.model(name), options) as context:
                prompts = (prompt_of(1000 * seed + i) for i in range(12))
                gaps = {prompt: _least_gap(context, prompt, n_predict) for prompt in prompts}
            self._clear[key] = max(gaps, key=gaps.__getitem__)
            assert gaps[self._clear[key]] > 2 * self.noise(name)
        return self._clear[key]

    def run(
        self,
        name: str,
        method: str,
        gamma: int,
        prompt: Sequence[int],
        n_predict: int,
        *,
        wrap: Callable[[Drafter], Drafter] = Watched,
        rng: np.random.Generator | None = None,
        **opening: Any,
    ) -> Run:
        """Generate with the method `method` (as after --drafter); `opening` as `opened` takes it."""
        draft, sampling = opening.get("draft"), opening.get("sampling")
        with self.opened(name, method, gamma, **opening) as (context, made):
            limits = GenerationLimits(n_predict=n_predict, gamma=gamma)
            rollback = make_rollback(self.strategy(self._files[name], "target"), context)
            result = generate(context, wrap(made), rollback, prompt, limits, CLOCK, sampling=sampling, rng=rng)
            verdict = None
            if sampling is None or sampling.greedy:
                reference = self.plain(name, prompt, len(result.tokens))
                judge = self._judge(name)
                verdict = judge.judge(result, reference, prompt, context, strategy=rollback.name)
                judge.close()  # a context is up to 20 MB, and an arena has fifty models
            run = Run(result, made.stats(), context.options, verdict, made.fell_back)
            _assert_could_be_stored(run, _case(method, gamma, draft, n_predict=n_predict), rollback.name)
            return run

    @contextmanager
    def opened(
        self,
        name: str,
        method: str,
        gamma: int,
        *,
        draft: str | None = None,
        sampling: Sampling | None = None,
        drafter: Drafter | None = None,
        draft_rollback: str | None = None,
    ) -> Iterator[tuple[LlamaContext, Drafter]]:
        """The target's context and the drafter, or `drafter` in its place, as a worker would open them."""
        case = _case(method, gamma, draft, sampling=sampling or Sampling())
        path, given = self._files[name], None if draft is None else self._files[draft]
        second = second_file(case.drafter, path, given)
        strategy = self.strategy(path, "target")
        opening = opening_of(
            case, self.options, strategy, lambda: draft_rollback or self.strategy(second or path, "draft")
        )
        contexts = recipe(opening)
        context = open_context(self.open(path), contexts[0].options)
        with closing(context):
            setup = DrafterSetup(
                opening=opening,
                contexts=contexts,
                clock=CLOCK,
                target=context,
                target_path=path,
                second_path=second if len(contexts) > 1 else None,
                open_model=self.open,
                plain=lambda prompt: self.plain(name, prompt, N_RECORDED),
            )
            with closing(drafter or open_drafter(setup)) as made:
                yield context, made

    def _judge(self, name: str) -> Judge:
        if name not in self._judges:
            self._judges[name] = Judge(partial(open_context, self.model(name)), self.options)
            self._stack.callback(self._judges[name].close)
        return self._judges[name]

    def assert_forgery_is_found_out(self, name: str, prompt: Sequence[int], run: Run) -> None:
        """The negative control: one token of the output that the model does not like at all is seen."""
        reference = self.plain(name, prompt, len(run.tokens))
        forged = (*run.tokens[:20], (run.tokens[20] + 1) % 256, *run.tokens[21:])
        forged_run = msgspec.structs.replace(run.generation, tokens=forged)
        verdict = self._judge(name).judge_tokens(forged_run, reference, prompt, tree=run.options.tree)
        assert verdict.verdict == "diverged"

    def assert_exact(self, name: str, prompt: Sequence[int], run: Run) -> None:
        """Equal to plain decoding, or a tie that kernel noise explains; and the counts add up."""
        assert run.verdict is not None and run.verdict.verdict in ("lossless", "near_tie"), run.verdict
        assert len(run.tokens) - 1 == len(run.generation.rounds) + run.accepted

    def assert_same_counts(self, name: str, run: Run, other: Run) -> None:
        """Both proposed and had accepted the same, round by round.

        Asked only of processors whose kernels give the same logits at any width: elsewhere one draft may take the other
        of two tokens that are as good.
        """
        assert run.proposed > 0 and other.proposed > 0
        if self.noise(name) == 0:
            assert run.counts == other.counts

    def close(self) -> None:
        self._stack.close()


def _case(method: str, gamma: int, draft: str | None, n_predict: int = 1, **changes: Any) -> Case:
    return Case(
        suite="B", target=ModelRef(id="target"), prompt=PromptRef(key="arena", sha256="0" * 64), n_predict=n_predict,
        drafter=parse_drafter(method, None if draft is None else ModelRef(id=draft)), gamma=gamma, **changes,
    )  # fmt: skip


def _assert_could_be_stored(run: Run, case: Case, rollback: str) -> None:
    """What the method counted breaks nothing that the store's gate and the audit ask of every trial."""
    finished = run.generation
    passes = run.verdict is not None and run.verdict.verdict in ("lossless", "near_tie")
    verdict = run.verdict if passes else None
    trial = Trial(
        case_id=case.id, arm=case.arm, gamma=case.gamma, block=0, repeat=0, position=0, status=Status.VALID,
        started_at="2026-01-01",
        tokens=finished.tokens, rounds=finished.rounds, prefill_ns=finished.prefill_ns,
        draft_prefill_ns=finished.draft_prefill_ns,
        decode_ns=finished.decode_ns, rollback_target=rollback, stats=run.stats,
        losslessness=verdict,
    )  # fmt: skip
    assert not [*broken(case, trial)]


def _least_gap(context: LlamaContext, prompt: Sequence[int], n_predict: int) -> float:
    """The smallest lead of the best token over the second best along the greedy output."""
    context.clear()
    context.decode(prompt)
    least = np.inf
    for _ in range(n_predict):
        row = context.logits()[0]
        second, best = np.partition(row, -2)[-2:]
        least = min(least, float(best - second))
        context.decode((int(row.argmax()),))
    return least


def first(runs: Iterable[Run], wanted: Callable[[Run], bool]) -> Run:
    """The first run in which something happens that one random text may lack, and dozens do not.

    The runs are made one after another, so most often one is enough.
    """
    match = next((run for run in runs if wanted(run)), None)
    assert match is not None, "it never happened"
    return match


def prompt_of(seed: int, n: int = 24, n_vocab: int = 256) -> tuple[int, ...]:
    """Random tokens; their second half repeats the first, so that looking back finds something."""
    half = np.random.default_rng(seed).integers(0, n_vocab, n // 2).tolist()
    return (*half, *half)
