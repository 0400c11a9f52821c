"""The self-test that decides how a model is rolled back: on this file, this build and this device.

Each strategy rolls back a few positions; the logits that follow are compared with those of a session that never saw the
rejected tokens, for positions that came in one batch (a target's) and one by one (a draft's). Exact strategies of a
recurrent memory are then timed, and `choose_strategy` takes the cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.clock import Clock, MonotonicClock
from mlsd.engine.rollback import Rollback, make_rollback, rollback_options
from mlsd.engine.session import Session, SessionOptions, check_finite
from mlsd.errors import EngineError, RollbackError
from mlsd.records import Record

History = Literal["batch", "single"]
Role = Literal["target", "draft"]
OpenSession = Callable[[SessionOptions], Session]

PROBE_TEXT = (
    "Measure twice, then cut once. A number that nobody can check is worth less than no number at all, and a clock "
    "that stops early makes every runner fast. 1 + 2 = 3; def area(r): return 3.14159 * r * r. The quick brown fox "
    "jumps over the lazy dog while forty-two engineers write down what they saw, and how often it happened again."
)
_N_PREFIX = 24
_N_HISTORY = 8
_N_CONTINUATION = 4
NOISE_WIDTHS = (2, 3, 5, 9, 17, 33)
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

    def best(self, role: Role, gamma: int) -> str | None:
        """The cheapest exact strategy (None: none is exact); one of two that are about equal is always the same."""
        best, history = None, "batch" if role == "target" else "single"
        for result in self.strategies:
            if not result.exact or result.history != history or (history, result.name) == ("single", "snapshots"):
                continue
            if best is None or result.cost_ns(gamma) < _CLEARLY * best.cost_ns(gamma):
                best = result
        return None if best is None else best.name

    @property
    def target(self) -> str | None:
        return self.best("target", 4)

    @property
    def draft(self) -> str | None:
        return self.best("draft", 4)

    def result(self, name: str, history: History) -> StrategyResult:
        return next(r for r in self.strategies if r.name == name and r.history == history)


def probe(open_session: OpenSession, options: SessionOptions, clock: Clock | None = None) -> ProbeReport:
    """Test every strategy and time the exact ones. Raises: EngineError when not even plain decoding works."""
    lab = _TestBench(open_session, options)
    noise, spread = lab.kernel_noise()
    tolerance = max(2 * noise, _ROUNDING_SHARE * spread)
    control = max(lab.difference("none", history) for history in ("batch", "single"))
    if control <= tolerance:
        raise EngineError(
            f"The probe cannot tell right from wrong on this model: ignoring rejected tokens moves its logits by "
            f"{control:.3g}, kernel noise by {noise:.3g}.",
            hint="Name a strategy with --rollback; losslessness is still checked after every trial.",
        )
    results: list[StrategyResult] = []
    for history, names in _CANDIDATES.items():
        cut = lab.test(names[0], history, tolerance)
        if cut.exact:  # it is free, so no other way is worth trying
            results.append(cut)
            continue
        found = [cut, *(lab.test(name, history, tolerance) for name in names[1:])]
        results += lab.timed(found, clock or MonotonicClock())
    on_device, on_host = lab.plain_ns(clock or MonotonicClock())
    return ProbeReport(
        strategies=tuple(results),
        kernel_noise=noise,
        tolerance=tolerance,
        control_diff=control,
        device_round_ns=on_device,
        host_round_ns=on_host,
    )


def choose_strategy(model: str, role: Role, gamma: int, wanted: str, report: Callable[[], ProbeReport]) -> str:
    """The rollback strategy of a model: `wanted` if the probe found it exact (or it is unchecked), else the cheapest.

    A wanted strategy that a draft cannot use is replaced. Raises: RollbackError where none is exact.
    """
    if wanted == "unchecked":
        return wanted
    found, history = report(), "batch" if role == "target" else "single"
    chosen = found.best(role, gamma)
    if wanted != "auto":
        result = next((r for r in found.strategies if (r.name, r.history) == (wanted, history)), None)
        if result is not None and result.exact:
            return wanted
        if role == "target":
            reason = result.reason if result is not None else "it was not tried"
            raise RollbackError(
                f"Rollback {wanted!r} is not exact for {model} as a target: {reason}.",
                hint=f"Use --rollback auto (here: {chosen}), or `mlsd probe {model}` to see every strategy.",
            )
    if chosen is None:
        raise RollbackError(
            f"No rollback strategy is exact for {model} as a {role} on this backend.",
            hint=f"`mlsd probe {model}` shows what was tried.",
        )
    return chosen


def assumed_strategy(role: Role, *, recurrent: bool, snapshots: bool = True) -> str:
    """What a probe usually chooses, for a model that was not probed; `snapshots`: its architecture keeps them."""
    if not recurrent:
        return "trim"
    return "ladder" if role == "draft" else "snapshots" if snapshots else "checkpoint"


def check_model(open_session: OpenSession, options: SessionOptions) -> None:
    """Decode a few tokens. Raises: EngineError when the model's logits are not finite."""
    options = msgspec.structs.replace(options, n_ctx=256, n_snapshots=0, max_outputs=1, device_sampling=False)
    with closing(open_session(options)) as session:
        session.decode(session.tokenizer.tokenize(PROBE_TEXT)[:_N_CONTINUATION])
        check_finite(session.logits())


class _TestBench:
    """The test bench: one text, split into prefix, kept and rejected tokens, and a continuation."""

    def __init__(self, open_session: OpenSession, options: SessionOptions) -> None:
        self._open = open_session
        self._options = options
        self._beyond: Sequence[int] = ()
        self._fresh: dict[tuple[History, int, int], npt.NDArray[np.float32]] = {}
        with closing(self._session()) as session:
            ids, window = session.tokenizer.tokenize(PROBE_TEXT, add_special=True), session.window
        if len(ids) < _N_PREFIX + 2 * _N_HISTORY + _N_CONTINUATION + max(NOISE_WIDTHS):
            raise EngineError(f"The probe's text has only {len(ids)} tokens in this vocabulary.")
        self._prefix = ids[:_N_PREFIX]
        self._true = ids[_N_PREFIX : _N_PREFIX + _N_HISTORY]
        self._wrong = ids[-_N_HISTORY:]
        # A text that leaves the window where layers have one: what goes back must find the oldest positions again.
        n_beyond = window + _N_PREFIX if 0 < window <= _LONGEST_WINDOW else 0
        self._beyond = (ids * (n_beyond // len(ids) + 1))[:n_beyond]
        self._continuation = ids[_N_PREFIX + _N_HISTORY : _N_PREFIX + _N_HISTORY + _N_CONTINUATION]
        self._long = ids[_N_PREFIX : _N_PREFIX + max(NOISE_WIDTHS)]

    def _session(self, strategy: str | None = None, gamma: int = _N_HISTORY, **others: bool | int) -> Session:
        options = msgspec.structs.replace(
            self._options,
            n_ctx=256 + len(self._beyond),
            max_outputs=max(NOISE_WIDTHS),
            device_sampling=False,
            checked=True,
        )
        return self._open(msgspec.structs.replace(rollback_options(strategy, options, gamma), **others))

    def kernel_noise(self) -> tuple[float, float]:
        """Largest logit difference between wide and single decoding, and the standard deviation of the logits."""
        with closing(self._session()) as session:
            session.decode(self._prefix)
            rows = []
            for token in self._long:
                session.decode((token,))
                rows.append(check_finite(session.logits())[0])
            singles = np.stack(rows)
            worst = 0.0
            for width in NOISE_WIDTHS:
                session.clear()
                session.decode(self._prefix)
                session.decode(self._long[:width], n_outputs=width)
                worst = max(worst, float(np.abs(session.logits() - singles[:width]).max()))
        return worst, float(singles.std())

    def test(self, name: str, history: History, tolerance: float) -> StrategyResult:
        try:
            difference = self.difference(name, history)
            if self._beyond and difference <= tolerance:
                difference = self._difference(name, history, _N_HISTORY // 2, self._beyond)
        except EngineError as error:
            reason = error.message.splitlines()[0].rstrip(".")
            return StrategyResult(name=name, history=history, exact=False, reason=f"refused: {reason}")
        exact = difference <= tolerance
        return StrategyResult(
            name=name,
            history=history,
            exact=exact,
            max_logit_diff=difference,
            reason=None if exact else f"accepted by the engine, but logits are off by {difference:.3g}",
        )

    def difference(self, name: str, history: History) -> float:
        """Largest logit difference over several depths of rollback; `none` leaves the rejected tokens in."""
        keeps = (1, 4, 7) if history == "batch" else (1, 5)
        return max(self._difference(name, history, keep, self._prefix) for keep in keeps)

    def _difference(self, name: str, history: History, n_keep: int, prefix: Sequence[int]) -> float:
        kept = self._true[:n_keep]
        past = (*kept, *self._wrong[: _N_HISTORY - n_keep])
        n_past = len(prefix) + n_keep
        if (text := (history, n_keep, len(prefix))) not in self._fresh:
            with closing(self._session()) as fresh:
                fresh.decode(prefix)
                self._feed(fresh, kept, history)
                self._fresh[text] = self._continue(fresh)
        with closing(self._session(name)) as session:
            session.decode(prefix)
            if name == "none":
                self._feed(session, past, history)
            else:
                strategy = make_rollback(name, session)
                strategy.mark()
                self._feed(session, past, history, strategy)
                if name == "snapshots":
                    if not session.n_snapshots:
                        raise RollbackError("the engine keeps no snapshots for this architecture")
                    session.truncate(n_past)  # past our own guard: the probe must see what the engine really does
                else:
                    strategy.rewind(n_past, ())
                self._feed(session, (*prefix, *kept)[session.n_past :], history)
            return float(np.abs(self._continue(session) - self._fresh[text]).max())

    def _feed(
        self, session: Session, tokens: Sequence[int], history: History, strategy: Rollback | None = None
    ) -> None:
        parts = [tokens] if history == "batch" else [(token,) for token in tokens]
        for part in parts:
            if strategy is not None and history == "single":
                strategy.step()
            if part:
                session.decode(part)

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
        turn = self._verify if history == "batch" else self._draft
        with ExitStack() as stack:
            rounds = []
            for name in names:
                session = stack.enter_context(closing(self._session(name, gamma)))
                session.decode(self._prefix)
                rounds.append(partial(turn, session, make_rollback(name, session), list(self._prefix), gamma))
            return dict(zip(names, _shortest_ns(rounds, clock), strict=True))

    def plain_ns(self, clock: Clock) -> list[int]:
        """The shortest round of plain decoding with the token picked on the device, and on the host."""

        def turn(session: Session) -> None:
            session.decode(session.greedy()[-1:])

        with ExitStack() as stack:
            rounds = []
            for on_device in (True, False):
                session = stack.enter_context(closing(self._session(max_outputs=1, device_sampling=on_device)))
                session.decode(self._prefix)
                rounds.append(partial(turn, session))
            return _shortest_ns(rounds, clock)

    def _verify(self, session: Session, strategy: Rollback, text: list[int], gamma: int) -> None:
        """A target's part of a round that keeps half of its proposals."""
        n_keep = 1 + gamma // 2
        kept = self._true[:n_keep]
        strategy.mark()
        session.decode((*kept, *self._wrong[: gamma + 1 - n_keep]), n_outputs=gamma + 1)
        text += kept
        strategy.rewind(len(text), kept)

    def _draft(self, session: Session, strategy: Rollback, text: list[int], gamma: int) -> None:
        """A draft's part: it takes in what is new, proposes, and forgets half of what it decoded of that."""
        text.append(self._true[-1])
        session.decode(text[session.n_past :])
        strategy.mark()
        for token in self._wrong[: gamma - 1]:
            strategy.step()
            session.decode((token,))
        n_keep = gamma // 2
        text += self._wrong[:n_keep]
        strategy.rewind(len(text), ())

    def _continue(self, session: Session) -> npt.NDArray[np.float32]:
        rows = []
        for token in self._continuation:
            session.decode((token,))
            rows.append(session.logits()[0])
        return np.stack(rows)


def _shortest_ns(rounds: Sequence[Callable[[], None]], clock: Clock) -> list[int]:
    """The least that each took. They take turns, so that a busy machine is busy for all."""
    spans: list[list[int]] = [[] for _ in rounds]
    for i in range(_MOST_ROUNDS):
        if i > 1 and sum(map(sum, spans)) > _ENOUGH_NS:
            break
        for play, found in zip(rounds, spans, strict=True):
            began_ns = clock.now_ns()
            play()
            if i:  # the first builds graphs
                found.append(clock.now_ns() - began_ns)
    return [min(found) for found in spans]
