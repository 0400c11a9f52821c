"""The self-test that decides how a model is rolled back: on this file, this build and this device.

Each strategy rolls back to every depth; the logits that follow are compared with those of a memory that never saw the
rejected tokens, for positions that came in one batch (a target's) and one by one (a draft's). Exact strategies of a
recurrent memory are then timed, and `choose_strategy` takes the cheapest. What it takes is checked again in the context
that an arm opens: at its gamma, with its trees, and once in a text as long as its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import starmap
from typing import Literal

import msgspec
import numpy as np

from mlsd.clock import Clock, MonotonicClock
from mlsd.engine.context import Context, ContextOptions, Logits, check_finite
from mlsd.engine.rollback import Rollback, make_rollback, rollback_options
from mlsd.engine.tree import ROOT, Tree, merge
from mlsd.engine.verify import accept_tree
from mlsd.errors import EngineError
from mlsd.records import Record

History = Literal["batch", "single"]
Role = Literal["target", "draft"]
OpenContext = Callable[[ContextOptions], Context]
Turn = Callable[[], None]  # plays a round

PROBE_TEXT = (
    "Measure twice, then cut once. A number that nobody can check is worth less than no number at all, and a clock "
    "that stops early makes every runner fast. 1 + 2 = 3; def area(r): return 3.14159 * r * r. The quick brown fox "
    "jumps over the lazy dog while forty-two engineers write down what they saw, and how often it happened again."
)
_N_PREFIX = 24
_GAMMA = 8  # of what is tried before any arm is known
_N_CONTINUATION = 4
NOISE_WIDTHS = (2, 3, 5, 7, 9, 17, 20, 33, 65)  # on both sides of the widths at which any build changes kernels
_TREE_DEPTH = 4  # of the trees that are tried
_LONG_FROM = 512  # positions of a context that is filled once
# Beyond a longer window nothing is tried: its positions are kept by the same code, and reaching them takes minutes.
_LONGEST_WINDOW = 2048
# In float32 alone, equal arithmetic in another order moves a logit by about this share of the logits' own spread.
_ROUNDING_SHARE = 1e-3
# Each before those that it is preferred to unless they are clearly cheaper. Snapshots after single tokens are tried to
# be shown: they are no choice.
_CANDIDATES: dict[History, tuple[str, ...]] = {
    "batch": ("trim", "snapshots", "checkpoint"),
    "single": ("trim", "ladder", "device-ladder", "checkpoint", "snapshots"),
}
_TIMED_GAMMAS = (2, 8)
_CLEARLY = 0.95
_MOST_ROUNDS = 16
_ENOUGH_NS = 500_000_000  # of timed rounds, for one history and gamma


class StrategyResult(Record, frozen=True, kw_only=True):
    """One strategy after one kind of history."""

    name: str
    history: History
    exact: bool
    max_logit_diff: float | None = None  # None: the engine refused
    reason: str | None = None  # why it is not exact
    # Time by gamma of a round that half of its proposals survive: a target's pass, or all of a draft's; with
    # marking, rewinding and what is decoded again. Only of exact strategies of recurrent memory.
    round_ns: dict[int, int] | None = None

    def cost_ns(self, gamma: int) -> float:
        """A round's time, on the line through those that were timed; 0 where none was."""
        if self.round_ns is None:
            return 0.0
        (low, at_low), (high, at_high) = sorted(self.round_ns.items())
        return at_low + (at_high - at_low) * (gamma - low) / (high - low)


class ProbeReport(Record, frozen=True, kw_only=True):
    """What was found."""

    strategies: tuple[StrategyResult, ...]
    kernel_noise: float  # largest logit difference between batched and one-by-one decoding of the same tokens
    tolerance: float  # differences up to this are the kernels' own
    control_diff: float  # the same difference without any rollback; a test that cannot see this proves nothing
    # The shortest plain round with the token picked in the graph, on the device, and from the logits on the host.
    device_round_ns: int = 0
    host_round_ns: int = 0

    @property
    def samples_on_device(self) -> bool:
        return self.device_round_ns <= self.host_round_ns

    def exact(self, role: Role, gamma: int) -> list[str]:
        """The exact strategies, the cheapest first; one of two that are about equal is always the same."""
        history, best = "batch" if role == "target" else "single", list[StrategyResult]()
        for result in self.strategies:
            if not result.exact or result.history != history or (history, result.name) == ("single", "snapshots"):
                continue
            is_cheaper = not best or result.cost_ns(gamma) < _CLEARLY * best[0].cost_ns(gamma)
            best.insert(0 if is_cheaper else len(best), result)
        return [result.name for result in best]

    def best(self, role: Role, gamma: int) -> str | None:
        return next(iter(self.exact(role, gamma)), None)

    @property
    def target(self) -> str | None:
        return self.best("target", 4)

    @property
    def draft(self) -> str | None:
        return self.best("draft", 4)

    def result(self, name: str, history: History) -> StrategyResult:
        return next(r for r in self.strategies if r.name == name and r.history == history)


def probe(open_context: OpenContext, options: ContextOptions, clock: Clock | None = None) -> ProbeReport:
    """Test every strategy and time the exact ones. Raises: EngineError when not even plain decoding works."""
    clock = clock or MonotonicClock()
    with closing(_TestBench(open_context, options, _GAMMA)) as bench:
        noise, tolerance = max(bench.noise(max(NOISE_WIDTHS)).values()), bench.tolerance()
        control, results = bench.control(), list[StrategyResult]()
        for history, (first, *others) in _CANDIDATES.items():
            found = [bench.test(first, history, tolerance)]
            if not found[0].exact:  # a cut is free, so no other way is worth trying
                found = bench.timed([*found, *(bench.test(name, history, tolerance) for name in others)], clock)
            results += found
        on_device, on_host = bench.plain_ns(clock)
        return ProbeReport(
            strategies=tuple(results),
            kernel_noise=noise,
            tolerance=tolerance,
            control_diff=control,
            device_round_ns=on_device,
            host_round_ns=on_host,
        )


def kernel_noise(open_context: OpenContext, options: ContextOptions) -> dict[int, float]:
    """By width of a pass, the largest logit difference from passes over single tokens."""
    with closing(_TestBench(open_context, options, _GAMMA)) as bench:
        return bench.noise(max(NOISE_WIDTHS))


class Question(Record, frozen=True, kw_only=True):
    """What is asked of a strategy before an arm goes by it."""

    strategy: str
    role: Role
    gamma: int = _GAMMA
    where: Literal["every depth", "long text", "tree"] = "every depth"


def check(open_context: OpenContext, options: ContextOptions, question: Question) -> StrategyResult:
    """Whether a strategy is exact in contexts with all the `options` of an arm's.

    At gamma and every depth below; at one depth behind a text that fills the context; for every path of a tree.
    """
    history: History = "batch" if question.role == "target" else "single"
    with closing(_TestBench(open_context, options, question.gamma)) as bench:
        if question.where == "tree":
            return bench.test_tree()
        if question.where == "long text":
            return bench.test_long(question.strategy, history)
        bench.control()
        return bench.test(question.strategy, history, bench.tolerance())


def questions(options: ContextOptions, strategy: str, role: Role, gamma: int) -> Iterator[Question]:
    """What to ask before an arm opens contexts with these `options`; of long texts once for every gamma."""
    yield Question(strategy=strategy, role=role, gamma=gamma)
    if options.n_ctx > _LONG_FROM:
        yield Question(strategy=strategy, role=role, where="long text")
    if options.tree != "off":
        yield Question(strategy=strategy, role=role, gamma=gamma, where="tree")


def choose_strategy(
    model: str,
    role: Role,
    gamma: int,
    wanted: str,
    report: Callable[[], ProbeReport],
    try_: Callable[[str], StrategyResult] | None = None,
) -> str:
    """The rollback strategy of a model: `wanted` if the probe found it exact (or it is unchecked), else the cheapest.

    `try_` checks it as it will be used. A wanted strategy that a draft cannot use is replaced. Raises: EngineError
    where none is exact.
    """
    if wanted == "unchecked":
        return wanted
    found, history = report(), "batch" if role == "target" else "single"
    names = found.exact(role, gamma)
    failed = list[StrategyResult]()
    while try_ is not None and names:
        result = try_(wanted if wanted in names else names[0])
        if result.exact:
            names = [result.name]
            break
        failed.append(result)
        names.remove(result.name)
    if wanted in names:
        return wanted
    if wanted != "auto" and role == "target":
        results = (r for r in (*failed, *found.strategies) if (r.name, r.history) == (wanted, history))
        reason = next((result.reason for result in results), "it was not tried")
        raise EngineError(
            f"Rollback {wanted!r} is not exact for {model} as a target: {reason}.",
            hint=f"Use --rollback auto (here: {', '.join(names[:1]) or 'none'}), or `mlsd doctor {model}` to see all.",
        )
    if not names:
        raise EngineError(
            f"No rollback strategy is exact for {model} as a {role} on this backend.",
            hint=f"`mlsd doctor {model}` shows what was tried.",
        )
    return names[0]


def assumed_strategy(role: Role, *, recurrent: bool, snapshots: bool = True) -> str:
    """What a probe usually chooses, for a model that was not probed; `snapshots`: its architecture keeps them."""
    if not recurrent:
        return "trim"
    return "ladder" if role == "draft" else "snapshots" if snapshots else "checkpoint"


def check_model(open_context: OpenContext, options: ContextOptions) -> None:
    """Decode a few tokens. Raises: EngineError when the model's logits are not finite."""
    options = msgspec.structs.replace(options, n_ctx=256, n_snapshots=0, max_outputs=1, device_sampling=False)
    with closing(open_context(options)) as context:
        context.decode(context.tokenizer.tokenize(PROBE_TEXT)[:_N_CONTINUATION])
        check_finite(context.logits())


def _wide(options: ContextOptions, gamma: int, n_beyond: int = 0) -> ContextOptions:
    """A context from which nothing is taken back; `n_beyond`: of a text that leaves the window of its layers."""
    n_rows = max(gamma + 1, *NOISE_WIDTHS)
    return msgspec.structs.replace(
        options, n_ctx=256 + 2 * n_rows + n_beyond, max_outputs=n_rows, device_sampling=False,
        checked=True, n_snapshots=0, n_saved_states=0, saved_on_device=False, tree="off", n_sequences=1,
    )  # fmt: skip


def probe_contexts(options: ContextOptions, strategy: str, gamma: int) -> tuple[ContextOptions, ContextOptions]:
    """What is open at once, at most, while a strategy is tried for an arm with these options.

    A context from which nothing is taken back, and one as long as the arm's, of whose memory there is a copy.
    """
    wide, gamma = _wide(options, max(gamma, _GAMMA)), max(gamma, _GAMMA)
    tried = msgspec.structs.replace(wide, n_ctx=max(wide.n_ctx, options.n_ctx if options.n_ctx > _LONG_FROM else 0))
    return wide, rollback_options(strategy, tried, gamma)


class _TestBench:
    """The test bench: one text, split into prefix, accepted and rejected tokens, and a continuation."""

    def __init__(self, open_context: OpenContext, options: ContextOptions, gamma: int) -> None:
        self._open, self._options, self._gamma = open_context, options, gamma
        self._window, self._beyond = 0, tuple[int, ...]()
        self._contexts: dict[ContextOptions, Context] = {}
        self._clean: dict[tuple[int, History, int], Logits] = {}
        context = self._context(self._wide())
        ids, self._window = context.tokenizer.tokenize(PROBE_TEXT, add_special=True), context.window
        n_text = max(gamma + 1 + _N_CONTINUATION, *NOISE_WIDTHS)
        self._ids, self._prefix = ids, ids[:_N_PREFIX]
        self._true, self._rejected = self._text(_N_PREFIX + n_text)[_N_PREFIX:], self._text(gamma + 1)[::-1]
        # A text that leaves the window where layers have one: what goes back must find the oldest positions again.
        self._beyond = self._text(self._window + _N_PREFIX if 0 < self._window <= _LONGEST_WINDOW else 0)

    def _text(self, n: int) -> tuple[int, ...]:
        return (self._ids * (n // len(self._ids) + 1))[:n]

    def close(self) -> None:
        for context in self._contexts.values():
            context.close()
        self._contexts.clear()

    def _wide(self, **others: int | bool | str) -> ContextOptions:
        return msgspec.structs.replace(_wide(self._options, self._gamma, len(self._beyond)), **others)

    def _context(self, options: ContextOptions) -> Context:
        """One that holds nothing. Beside the one from which nothing is taken back, the last one stays open."""
        if options not in self._contexts:
            for other in [one for one in self._contexts if one != self._wide()]:
                self._contexts.pop(other).close()
            self._contexts[options] = self._open(options)
        self._contexts[options].clear()
        return self._contexts[options]

    # --- what nothing was taken back from -----------------------------------------------------------------------------

    def noise(self, widest: int) -> dict[int, float]:
        """Largest logit difference between passes of each width and single tokens."""
        singles, found = self._singles(), dict[int, float]()
        most = min(widest, self._options.n_batch)
        for width in sorted({width for width in (*NOISE_WIDTHS, self._gamma + 1) if width <= most}):
            context = self._context(self._wide())
            context.decode(self._prefix)
            context.decode(self._true[:width], n_outputs=width)
            found[width] = float(np.abs(context.logits() - singles[:width]).max())
        return found

    def _singles(self, **others: str) -> Logits:
        """The logits after each token of the text, fed one by one."""
        context = self._context(self._wide(**others))
        context.decode(self._prefix)
        return self._continue(context, self._true)

    def tolerance(self, noise: float = 0.0) -> float:
        """Up to which differences are the kernels' own, in passes as wide as those of a round."""
        noise = max(noise, *self.noise(max(2, self._gamma + 1)).values())
        return max(2 * noise, _ROUNDING_SHARE * float(self._singles().std()))

    def control(self) -> float:
        """What rejected tokens that stay change. Raises: EngineError where the test could not see that."""
        found = max(self._difference("none", history, 1, self._prefix) for history in ("batch", "single"))
        if found <= (tolerance := self.tolerance()):
            raise EngineError(
                f"The probe cannot tell right from wrong on this model: ignoring rejected tokens moves its logits by "
                f"{found:.3g}, kernel noise explains {tolerance:.3g}.",
                hint="Name a strategy with --rollback; losslessness is still checked after every trial.",
            )
        return found

    # --- strategies ---------------------------------------------------------------------------------------------------

    def test(self, name: str, history: History, tolerance: float) -> StrategyResult:
        """At every depth; where layers have a window, also at one behind a text that leaves it."""
        keeps = range(1, self._gamma + 1) if history == "batch" else range(self._gamma)
        cases = [(n_accepted, self._prefix) for n_accepted in reversed(keeps)]
        if self._beyond:
            cases.append((max(1, self._gamma // 2), self._beyond))
        return self._tried(name, history, starmap(partial(self._difference, name, history), cases), tolerance)

    def test_long(self, name: str, history: History) -> StrategyResult:
        """At one depth behind a text that fills the context."""
        n_ctx, n_room = self._options.n_ctx, 2 * (self._gamma + 1) + _N_CONTINUATION
        cases = [(1 + self._gamma // 2, self._text(n_ctx - n_room))]
        differences = starmap(partial(self._difference, name, history, n_ctx=n_ctx), cases)
        return self._tried(name, history, differences, self.tolerance())

    def _tried(self, name: str, history: History, differences: Iterable[float], tolerance: float) -> StrategyResult:
        worst = 0.0
        try:
            for difference in differences:
                worst = max(worst, difference)
                if worst > tolerance:
                    break
        except EngineError as error:
            reason = error.message.splitlines()[0].rstrip(".")
            return StrategyResult(name=name, history=history, exact=False, reason=f"refused: {reason}")
        exact = worst <= tolerance
        return StrategyResult(
            name=name,
            history=history,
            exact=exact,
            max_logit_diff=worst,
            reason=None if exact else f"accepted by the engine, but logits are off by {worst:.3g}",
        )

    def _difference(
        self, name: str, history: History, n_accepted: int, prefix: Sequence[int], n_ctx: int | None = None
    ) -> float:
        """Between what follows a rollback and what follows a memory that never saw the rejected tokens.

        In a context of `n_ctx` positions, whose text is read once, that memory grows from a copy of what was held
        before: a copy that lies makes the strategy look inexact, never exact.
        """
        accepted, following = self._true[:n_accepted], self._true[n_accepted : n_accepted + _N_CONTINUATION]
        rejected = self._rejected[: self._gamma + (history == "batch") - n_accepted]
        clean_key = len(prefix), history, n_accepted
        if n_ctx is None and clean_key not in self._clean:
            untouched = self._context(self._wide())
            untouched.decode(prefix)
            self._clean[clean_key] = self._follow(untouched, accepted, history, following)
        length = {} if n_ctx is None else {"n_ctx": n_ctx}
        context = self._context(rollback_options(name, self._wide(**length), self._gamma))
        context.decode(prefix)
        memory = None if n_ctx is None else context.copy_memory()
        self._roll_back(context, name, history, (*accepted, *rejected), len(prefix) + n_accepted)
        rows = self._follow(context, (*prefix, *accepted)[context.n_past :], history, following)
        if memory is None:
            return float(np.abs(rows - self._clean[clean_key]).max())
        context.set_memory(memory, len(prefix))
        return float(np.abs(rows - self._follow(context, accepted, history, following)).max())

    def _follow(self, context: Context, accepted: Sequence[int], history: History, following: Sequence[int]) -> Logits:
        """The logits after each of the tokens that follow what is kept."""
        self._feed(context, accepted, history)
        return self._continue(context, following)

    def _roll_back(self, context: Context, name: str, history: History, tokens: Sequence[int], n_past: int) -> None:
        """Decode tokens as a round does, and keep `n_past` positions; "none" leaves all."""
        n_before = context.n_past
        if name == "none":
            self._feed(context, tokens, history)
            return
        strategy = make_rollback(name, context)
        strategy.mark()
        self._feed(context, tokens, history, strategy)
        if name == "snapshots":
            if not context.n_snapshots:
                raise EngineError("the engine keeps no snapshots for this architecture")
            if n_past < context.n_past:
                context.truncate(n_past)  # past our own guard: the probe must see what the engine really does
        else:
            strategy.rewind(n_past, tokens[: n_past - n_before] if history == "batch" else ())

    def _feed(
        self, context: Context, tokens: Sequence[int], history: History, strategy: Rollback | None = None
    ) -> None:
        parts = [tokens] if history == "batch" else [(token,) for token in tokens]
        for part in parts:
            if strategy is not None and history == "single":
                strategy.step()
            if part:
                context.decode(part)

    def test_tree(self) -> StrategyResult:
        """Every length of path, behind branches that lose; another attention kernel says what cells' order may do."""
        singles = self._singles()
        kernels = [np.abs(self._singles(flash_attention=kernel) - singles).max() for kernel in self._kernels()]
        depth = min(self._gamma, _TREE_DEPTH)
        options = self._wide(tree=self._options.tree, n_sequences=max(self._options.n_sequences, 2))

        def difference(path: Sequence[int], tree: Tree) -> float:
            context = self._context(options)
            context.decode(self._prefix)
            context.decode_tree(self._true[0], tree)
            following = iter((*path, -1))
            nodes = accept_tree(tree, lambda _: next(following)).path
            in_tree = [context.row(node).copy() for node in (ROOT, *nodes)]
            context.keep_path(nodes)
            n_kept = len(in_tree)
            rows = [*in_tree, *self._continue(context, self._true[n_kept : n_kept + _N_CONTINUATION])]
            return float(np.abs(np.stack(rows) - singles[: len(rows)]).max())

        def differences() -> Iterator[float]:
            n_most, others = options.n_sequences - 1, self._rejected
            for n_path in range(depth + 1):
                path, n_left = self._true[1 : 1 + n_path], self._gamma - n_path
                # What loses stands behind the path, and fills the sequences; or before it, and is longer.
                behind = [others[i : i + 1] for i in range(min(n_left, n_most))]
                before = [(*path[:i], *others[i : i + 2]) for i in range(min(max(1, n_left // 2), n_most))]
                for paths in ([path, *behind], [*before, path]):
                    yield difference(path, merge(paths, self._gamma, depth + 2))

        return self._tried("trim", "batch", differences(), self.tolerance(float(max(kernels, default=0.0))))

    def _kernels(self) -> Iterator[str]:
        """Kinds of attention that the build has for this model."""
        for kernel in ("on", "off"):
            try:
                self._context(self._wide(flash_attention=kernel))
            except EngineError:
                continue
            yield kernel

    def timed(self, results: Sequence[StrategyResult], clock: Clock) -> list[StrategyResult]:
        """The same findings of one history, those that are exact with the times of their rounds."""
        exact = [result.name for result in results if result.exact]
        times = {gamma: self._round_ns(exact, results[0].history, gamma, clock) for gamma in _TIMED_GAMMAS}
        return [
            msgspec.structs.replace(result, round_ns={gamma: times[gamma][result.name] for gamma in times})
            if result.exact
            else result
            for result in results
        ]

    def _round_ns(self, names: Sequence[str], history: History, gamma: int, clock: Clock) -> dict[str, int]:
        """The shortest round of each strategy, in a context that keeps as much as one of this gamma does.

        Every pass copies each snapshot that is kept, of every recurrent layer (llama.cpp, delta-net-base.cpp).
        """
        play = self._verify if history == "batch" else self._draft

        def turn(name: str, context: Context) -> Turn:
            return partial(play, context, make_rollback(name, context), list(self._prefix), gamma)

        turns = [(rollback_options(name, self._wide(), gamma), partial(turn, name)) for name in names]
        return dict(zip(names, self._shortest_ns(turns, clock), strict=True))

    def plain_ns(self, clock: Clock) -> list[int]:
        """The shortest round of plain decoding with the token picked on the device, and on the host."""

        def turn(context: Context) -> Turn:
            return lambda: context.decode(context.greedy()[-1:])

        places = (self._wide(max_outputs=1, device_sampling=on_device) for on_device in (True, False))
        return self._shortest_ns([(options, turn) for options in places], clock)

    def _shortest_ns(
        self, turns: Sequence[tuple[ContextOptions, Callable[[Context], Turn]]], clock: Clock
    ) -> list[int]:
        """The least that each took, in a context of its own. They take turns: a busy machine is busy for all."""
        spans: list[list[int]] = [[] for _ in turns]
        with ExitStack() as stack:
            plays = []
            for options, make in turns:
                context = stack.enter_context(closing(self._open(options)))
                context.decode(self._prefix)
                plays.append(make(context))
            for i in range(_MOST_ROUNDS):
                if i > 1 and sum(map(sum, spans)) > _ENOUGH_NS:
                    break
                for play, found in zip(plays, spans, strict=True):
                    began_ns = clock.now_ns()
                    play()
                    if i:  # the first builds graphs
                        found.append(clock.now_ns() - began_ns)
        return [min(found) for found in spans]

    def _verify(self, context: Context, strategy: Rollback, text: list[int], gamma: int) -> None:
        """A target's part of a round that keeps half of its proposals."""
        n_accepted = 1 + gamma // 2
        accepted = self._true[:n_accepted]
        strategy.mark()
        context.decode((*accepted, *self._rejected[: gamma + 1 - n_accepted]), n_outputs=gamma + 1)
        text += accepted
        strategy.rewind(len(text), accepted)

    def _draft(self, context: Context, strategy: Rollback, text: list[int], gamma: int) -> None:
        """A draft's part: it takes in what is new, proposes, and forgets half of what it decoded of that."""
        text.append(self._true[-1])
        context.decode(text[context.n_past :])
        strategy.mark()
        for token in self._rejected[: gamma - 1]:
            strategy.step()
            context.decode((token,))
        n_accepted = gamma // 2
        text += self._rejected[:n_accepted]
        strategy.rewind(len(text), ())

    def _continue(self, context: Context, tokens: Sequence[int]) -> Logits:
        """The logits after each of the tokens, which come one by one."""
        rows = []
        for token in tokens:
            context.decode((token,))
            rows.append(check_finite(context.logits())[0])
        return np.stack(rows)
