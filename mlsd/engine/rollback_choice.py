"""Which rollback strategy a model gets, and whether it is exact on this file, this build and this device.

A table by the kind of memory and by backend names the candidates. An arm takes the first that is exact in contexts with
its own options, where each is checked once: it goes back by 1, by half of gamma and by gamma positions, once behind a
text that fills the context, and along paths of trees. The logits that follow are compared with those of the same text
from which nothing was taken back. Fed in passes of other widths, behind the same text, they say how far rounding goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from mlsd.engine.context import Context, ContextOptions, Logits, check_finite
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.engine.tree import ROOT, merge
from mlsd.engine.verify import accept_tree
from mlsd.errors import EngineError
from mlsd.records import Record

Role = Literal["target", "draft"]
OpenContext = Callable[[ContextOptions], Context]

PROBE_TEXT = (
    "Measure twice, then cut once. A number that nobody can check is worth less than no number at all, and a clock "
    "that stops early makes every runner fast. 1 + 2 = 3; def area(r): return 3.14159 * r * r. The quick brown fox "
    "jumps over the lazy dog while forty-two engineers write down what they saw, and how often it happened again."
)
NOISE_WIDTHS = (2, 3, 5, 7, 9, 17, 20, 33, 65)  # on both sides of the widths at which any build changes kernels
_N_PREFIX = 24
_N_FOLLOWING = 4
_LONG_GAMMA = 8  # at which a text that fills the context is tried, for arms of every gamma
_LONG_FROM = 512  # positions of a context that is filled once
_TREE_DEPTH = 4
# In float32 alone, equal arithmetic in another order moves a logit by about this share of the logits' own spread.
_ROUNDING_SHARE = 1e-3


def candidates(role: Role, *, recurrent: bool, backend: str = "CPU") -> tuple[str, ...]:
    """The strategies that a model may get, the usual one first.

    A target's positions come in one batch, a draft's one by one, where snapshots are wrong. On a device a ladder that
    stays there copies nothing to the host. As far as they were timed, candidates of one kind of memory are within 30 %.
    """
    if not recurrent:
        return ("trim", "checkpoint")
    if role == "target":
        return ("snapshots", "checkpoint")
    ladders = ("ladder", "device-ladder") if backend == "CPU" else ("device-ladder", "ladder")
    return (*ladders, "checkpoint")


class RollbackUse(Record, frozen=True, kw_only=True):
    """What an arm does with a strategy, and is checked before it does."""

    strategy: str
    role: Role
    gamma: int
    behind: Literal["short text", "long text", "tree"] = "short text"


class Prefix(NamedTuple):
    """A text that another context of the model has read, and a copy of the memory behind it."""

    tokens: tuple[int, ...]
    memory: Any


class RollbackCheck(Record, frozen=True, kw_only=True):
    """What was found of a strategy in one use."""

    strategy: str
    role: Role
    gamma: int
    exact: bool
    max_logit_diff: float | None = None  # None: the engine refused
    tolerance: float | None = None  # differences up to this are rounding
    reason: str | None = None  # why it is not exact, or why that cannot be told


def uses(options: ContextOptions, window: int, strategy: str, role: Role, gamma: int) -> Iterator[RollbackUse]:
    """What to check before an arm opens contexts with these `options`, whose layers see `window` positions (0: all)."""
    yield RollbackUse(strategy=strategy, role=role, gamma=gamma)
    if options.n_ctx > _LONG_FROM or 0 < window < options.n_ctx:
        yield RollbackUse(strategy=strategy, role=role, gamma=_LONG_GAMMA, behind="long text")
    if options.tree != "off":
        yield RollbackUse(strategy=strategy, role=role, gamma=gamma, behind="tree")


def choose_strategy(
    model: str,
    role: Role,
    gamma: int,
    wanted: str,
    names: Sequence[str],
    check: Callable[[str], RollbackCheck],
) -> str:
    """The first of `names` that is exact, or `wanted` where that is asked for and is exact (or "unchecked").

    A wanted strategy that a draft cannot use is replaced. Raises: EngineError where none is exact.
    """
    if wanted == "unchecked":
        return wanted
    is_named = wanted != "auto" and role == "target"
    if is_named:
        names = (wanted,)
    elif wanted in names:
        names = (wanted, *(name for name in names if name != wanted))
    reasons = []
    for name in names:
        result = check(name)
        if result.exact:
            return name
        reasons.append(f"{name}: {result.reason}")
    subject = f"Rollback {wanted!r} is not exact" if is_named else "No rollback is exact"
    raise EngineError(
        f"{subject} for {model} as a {role} at gamma {gamma}: {'; '.join(reasons)}.",
        hint=f"`mlsd doctor model {model} --gamma {gamma}` tries every strategy; another gamma may do.",
    )


def checked_options(options: ContextOptions, strategy: str, gamma: int) -> ContextOptions:
    """The one context that is open while a strategy is checked for an arm with these options; it gives logits."""
    wide = msgspec.structs.replace(
        options, n_ctx=max(options.n_ctx, _N_PREFIX + gamma + 1 + _N_FOLLOWING), max_outputs=gamma + 1,
        device_sampling=False, checked=True, tree="off", n_sequences=1,
    )  # fmt: skip
    return rollback_options(strategy, wide, gamma)


def check_rollback(
    open_context: OpenContext, options: ContextOptions, use: RollbackUse, prefix: Prefix | None = None
) -> RollbackCheck:
    """Whether a strategy is exact in one use, in contexts with all the `options` of an arm's.

    A long text begins with `prefix`, which is not read again, where that is at least half of it.
    """
    difference, tolerance, reason = None, None, None
    try:
        if use.behind == "tree":
            difference, tolerance, control = _try_trees(open_context, options, use.gamma)
        else:
            with closing(open_context(checked_options(options, use.strategy, use.gamma))) as context:
                difference, tolerance, control = _Trial(context, use, prefix).differences()
    except EngineError as error:
        reason = f"refused: {error.message.splitlines()[0].rstrip('.')}"
    else:
        if difference > tolerance:
            reason = f"logits are off by {difference:.3g}, rounding explains {tolerance:.3g}"
        elif control <= tolerance:
            reason = f"cannot be told: rejected tokens that stay move logits by {control:.3g}, rounding as far"
    exact = difference is not None and tolerance is not None and difference <= tolerance
    return RollbackCheck(
        strategy=use.strategy, role=use.role, gamma=use.gamma, exact=exact, max_logit_diff=difference,
        tolerance=tolerance, reason=reason,
    )  # fmt: skip


def first_exact(
    open_context: OpenContext,
    options: ContextOptions,
    role: Role,
    gamma: int,
    *,
    recurrent: bool,
    backend: str = "CPU",
) -> str | None:
    """The first candidate that is exact behind a short text; None where none is."""
    for name in candidates(role, recurrent=recurrent, backend=backend):
        if check_rollback(open_context, options, RollbackUse(strategy=name, role=role, gamma=gamma)).exact:
            return name
    return None


def kernel_noise(open_context: OpenContext, options: ContextOptions) -> dict[int, float]:
    """By width of a pass, the largest logit difference from passes over single tokens."""
    widest = max(NOISE_WIDTHS)
    options = msgspec.structs.replace(checked_options(options, "trim", widest), n_ctx=256)
    with closing(open_context(options)) as context:
        text = _text(context, _N_PREFIX + widest)
        prefix, rest = text[:_N_PREFIX], text[_N_PREFIX:]
        singles, noise = _feed(context, prefix, rest, (1,) * len(rest)), dict[int, float]()
        for width in (width for width in NOISE_WIDTHS if width <= options.n_batch):
            noise[width] = float(np.abs(_feed(context, prefix, rest[:width], (width,)) - singles[:width]).max())
    return noise


def check_model(open_context: OpenContext, options: ContextOptions) -> None:
    """Decode a few tokens. Raises: EngineError when the model's logits are not finite."""
    options = msgspec.structs.replace(options, n_ctx=256, n_snapshots=0, max_outputs=1, device_sampling=False)
    with closing(open_context(options)) as context:
        context.decode(_text(context, _N_FOLLOWING))
        check_finite(context.logits())


def _text(context: Context, n: int) -> tuple[int, ...]:
    tokens = context.tokenizer.tokenize(PROBE_TEXT, add_special=True)
    return (tokens * (n // len(tokens) + 1))[:n]


def _feed(context: Context, prefix: Sequence[int] | None, tokens: Sequence[int], widths: Sequence[int]) -> Logits:
    """The logits after each of the tokens, fed in passes of those widths; behind a prefix, or what is held (None)."""
    if prefix is not None:
        context.clear()
        context.decode(prefix)
    rows, n_fed = [], 0
    for width in widths:
        context.decode(tokens[n_fed : n_fed + width], n_outputs=width)
        rows.append(check_finite(context.logits()))
        n_fed += width
    return np.concatenate(rows)


def _cut_into(n: int, width: int, first: int = 0) -> tuple[int, ...]:
    """Widths of passes over `n` tokens: the first one, then as wide as given, then what is left."""
    n_full, rest = divmod(n - first, width)
    return tuple(filter(None, (first, *(width,) * n_full, rest)))


def _tolerance(feedings: Sequence[Logits]) -> float:
    """Twice the largest difference between logits of one text that was fed in several ways, or float32's rounding."""
    noise = max(float(np.abs(a - b).max()) for a, b in itertools.combinations(feedings, 2))
    return max(2 * noise, _ROUNDING_SHARE * float(feedings[0].std()))


def _nearest(rows: Logits, feedings: Sequence[Logits], start: int) -> float:
    """The largest difference from the nearest of the feedings, whose rows begin at `start`."""
    return min(float(np.abs(rows - feeding[start : start + len(rows)]).max()) for feeding in feedings)


class _Trial:
    """A strategy in its context: one text, whose first tokens are accepted, and others that are rejected."""

    def __init__(self, context: Context, use: RollbackUse, prefix: Prefix | None) -> None:
        self._context, self._use, gamma = context, use, use.gamma
        n_text = gamma + 1 + _N_FOLLOWING
        is_long = use.behind == "long text"
        n_prefix = context.n_ctx - n_text - gamma if is_long else _N_PREFIX
        shared = prefix if is_long and prefix is not None else Prefix((), None)
        self._shared = shared if n_prefix <= 2 * len(shared.tokens) < 2 * n_prefix else Prefix((), None)
        text = (*self._shared.tokens, *_text(context, n_prefix + n_text - len(self._shared.tokens)))
        self._prefix, self._true = text[:n_prefix], text[n_prefix:]
        self._rejected = _text(context, gamma + 1)[::-1]
        half = (gamma + 1) // 2
        self._depths = {half} if is_long else {1, half, gamma}
        self._memory: Any = None  # a copy of the memory behind the prefix, which is read once
        self._cuts = (_cut_into(n_text, 1), _cut_into(n_text, gamma + 1), _cut_into(n_text, gamma + 1, half))

    def differences(self) -> tuple[float, float, float]:
        """How far the worst rollback is off, up to where rounding goes, and how far rejected tokens that stay are off.

        Where the memories that are compared with grow from a copy of the one that is rolled back, a copy that lies
        makes a strategy look inexact, never exact.
        """
        if self._use.strategy == "snapshots" and not self._context.n_snapshots:
            raise EngineError("the engine keeps no snapshots for this architecture")
        rolled = [(depth, self._follow(depth, keeps_rejected=False)) for depth in sorted(self._depths, reverse=True)]
        ignored, feedings = self._follow(1, keeps_rejected=True), list[Logits]()
        n_kept = self._n_accepted
        for widths in self._cuts:
            feedings.append(self._fed(widths))
            if len(feedings) > 1:
                worst = max(_nearest(rows, feedings, n_kept(depth)) for depth, rows in rolled)
                tolerance, control = _tolerance(feedings), _nearest(ignored, feedings, n_kept(1))
                if worst <= tolerance < control:
                    break  # another feeding brings the nearest nearer, and rounding goes further
        return worst, tolerance, control

    def _fed(self, widths: Sequence[int]) -> Logits:
        """The logits after each token of the text, fed so that all of it stays."""
        self._begin()
        return _feed(self._context, None, self._true, widths)

    def _n_accepted(self, depth: int) -> int:
        """Tokens of a round that stay: a target's holds the newest committed token beside the gamma proposed."""
        return self._use.gamma + (self._use.role == "target") - depth

    def _begin(self) -> None:
        """Bring the prefix into the context, from a copy once it was read."""
        if self._memory is None:
            self._read_prefix()
            self._memory = self._context.copy_memory()
        else:
            self._context.set_memory(self._memory, len(self._prefix))

    def _read_prefix(self) -> None:
        """Go on from what is shared; where a context of this kind does not take such a copy, read all of it."""
        n_shared = len(self._shared.tokens)
        self._context.clear()
        if n_shared:
            try:
                self._context.set_memory(self._shared.memory, n_shared)
            except EngineError:
                self._context.clear()
                n_shared = 0
        self._context.decode(self._prefix[n_shared:])

    def _follow(self, depth: int, *, keeps_rejected: bool) -> Logits:
        """The logits after each token that follows a round of which so many positions were rejected."""
        context, n_accepted = self._context, self._n_accepted(depth)
        accepted, rejected = self._true[:n_accepted], self._rejected[:depth]
        self._begin()
        strategy = make_rollback(self._use.strategy, context)
        strategy.mark()
        if self._use.role == "target":
            context.decode((*accepted, *rejected))
        else:
            for token in (*accepted, *rejected):
                strategy.step()
                context.decode((token,))
        if not keeps_rejected:
            strategy.rewind(len(self._prefix) + n_accepted, accepted if self._use.role == "target" else ())
        replayed = accepted[max(0, context.n_past - len(self._prefix)) :]
        if replayed:  # where a draft's strategy stops at the mark
            context.decode(replayed)
        following = self._true[n_accepted : n_accepted + _N_FOLLOWING]
        return _feed(context, None, following, _cut_into(len(following), 1))


def _picking(tokens: Sequence[int]) -> Callable[[int], int]:
    """A target that picks these tokens, one after the other, whatever node it is asked after."""
    left = iter(tokens)
    return lambda _: next(left)


def _try_trees(open_context: OpenContext, options: ContextOptions, gamma: int) -> tuple[float, float, float]:
    """The same of paths of several lengths, behind branches that lose.

    Another attention kernel says what the order of cells may do, which is another in a tree than in its text.
    """
    depth = min(gamma, _TREE_DEPTH)
    plain, n_text = checked_options(options, "trim", gamma), depth + 1 + _N_FOLLOWING
    feedings = list[Logits]()
    for kernel in dict.fromkeys((options.flash_attention, "on", "off")):
        try:
            context = open_context(msgspec.structs.replace(plain, flash_attention=kernel))
        except EngineError:
            if kernel == options.flash_attention:
                raise
            continue  # the build has none for this model
        with closing(context):
            text = _text(context, _N_PREFIX + n_text)
            prefix, true, rejected = text[:_N_PREFIX], text[_N_PREFIX:], _text(context, gamma + 1)[::-1]
            for width in dict.fromkeys((1, min(n_text, gamma + 1))):
                feedings.append(_feed(context, prefix, true, _cut_into(n_text, width)))
    branching = msgspec.structs.replace(plain, tree=options.tree, n_sequences=max(options.n_sequences, 2))
    worst, control = 0.0, np.inf
    with closing(open_context(branching)) as context:
        for n_path in sorted({0, depth // 2, depth}):
            path, n_left, n_branches = true[1 : 1 + n_path], gamma - n_path, branching.n_sequences - 1
            # What loses stands behind the path, and fills the sequences; or before it, and is longer.
            behind = [rejected[i : i + 1] for i in range(min(n_left, n_branches))]
            before = [(*path[:i], *rejected[i : i + 2]) for i in range(min(max(1, n_left // 2), n_branches))]
            for paths in ([path, *behind], [*before, path]):
                tree = merge(paths, gamma, depth + 2)
                context.clear()
                context.decode(prefix)
                context.decode_tree(true[0], tree)
                nodes = accept_tree(tree, _picking((*path, -1))).path
                rows = np.stack([context.row(node).copy() for node in (ROOT, *nodes)])
                context.keep_path(nodes)
                n_kept = len(rows)
                following = _feed(context, None, true[n_kept : n_kept + _N_FOLLOWING], (1,) * _N_FOLLOWING)
                worst = max(worst, _nearest(np.concatenate([rows, following]), feedings, 0))
    return worst, _tolerance(feedings), control
