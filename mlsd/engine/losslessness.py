"""Whether speculative output is what the target alone would have written, and if not, whether a tie explains it.

Two tests that know nothing of each other, both after the timed part:

* The live state: what the memory says to a few fixed tokens, against memories that never held a rejected token. One saw
  the text token by token. Where kernels round by the width of a pass, that one differs from a sound memory by as much
  as a small fault; so another saw the text in passes as wide as the run's own, filled up with tokens that were cut off
  again. A sound memory equals it to the bit where arithmetic is deterministic; the same once more with other filling
  says how far it may be off where it is not.
* The tokens: where the output is not what single tokens choose, the noise of the difference between the two best logits
  must explain it, in size and in number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.engine.decode import Generation
from mlsd.engine.probe import PROBE_TEXT
from mlsd.engine.session import Logits, Session, SessionOptions, TreeSession, check_finite
from mlsd.engine.tree import merge
from mlsd.records import Losslessness, Record

Floats = npt.NDArray[np.float64]

_N_FIXED = 8  # tokens that every memory is asked about, in one pass
_TOP = 50  # logits of each row that count; the rest of a vocabulary is never chosen
_ROOM = 256  # positions beyond the text, for the fixed tokens and for filling a pass
# How far a sound memory may be from a fresh one: set on one half of the cases of benchmarks/truth_losslessness.py and
# checked on the other. The floor is a share of the spread of the top logits.
FACTOR, FLOOR = 1.3, 1e-3
# In which cells a tree's tokens lay, so in which order attention adds them up, is not known afterwards.
_TREE_MARGIN = 2.0
# Snapshots are judged by passes that use them, too; so their answer must also be near one without any rollback.
_ANCHOR_FACTOR, _ANCHOR_FLOOR = 3.0, 0.1


class Passes(Record, frozen=True, kw_only=True):
    """How a text came into a memory: the prompt, then passes of which the first tokens stayed."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    kept: tuple[int, ...]  # tokens of each pass that stayed
    widths: tuple[int, ...]  # positions of each pass


class LiveState(Record, frozen=True, kw_only=True):
    """What is left of a generation, against what its tokens alone make; distances as in `answer_distance`."""

    distance: float  # to the nearest sound memory
    limit: float
    noise: float | None = None  # of sound memories among each other; None: nothing had to be explained

    @property
    def sound(self) -> bool:
        """Whether the memory is what it should be."""
        return self.distance <= self.limit


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token that differs (a missing token differs), or None when the outputs are equal."""
    for i, (token, other) in enumerate(zip(tokens, reference, strict=False)):
        if token != other:
            return i
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


# --- the tokens -------------------------------------------------------------------------------------------------------


class Gaps:
    """What is compared of each position, gathered while a text is fed: rows are wide, and a text may be long."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.asarray(tokens)
        self._pairs: list[npt.NDArray[np.int64]] = []  # the best token, and the emitted one or else the second best
        self._alone: list[npt.NDArray[np.float64]] = []  # logits of best, second and emitted token
        self._wide: list[Floats] = []  # how far the best one leads the other of its pair

    def alone(self, rows: Logits) -> None:
        """Logits before the next tokens, from passes of one token."""
        at = sum(map(len, self._alone))
        tokens = self._tokens[at : at + len(rows)]
        rows, each = rows[: len(tokens)], np.arange(len(tokens))
        two = np.argpartition(rows, -2, axis=1)[:, -2:]
        two = np.take_along_axis(two, np.argsort(-np.take_along_axis(rows, two, axis=1), axis=1), axis=1)
        best, second = two.T
        self._pairs.append(np.stack([best, np.where(tokens == best, second, tokens)], axis=1))
        self._alone.append(np.stack([rows[each, i] for i in (best, second, tokens)], axis=1).astype(np.float64))

    def wide(self, rows: Logits) -> None:
        """The same from passes of the run's own widths; all positions were gathered alone before. May come again."""
        at = sum(map(len, self._wide)) % sum(map(len, self._alone))
        pairs = np.concatenate(self._pairs)[at : at + len(rows)]
        logits = np.take_along_axis(rows[: len(pairs)], pairs, axis=1).astype(np.float64)
        self._wide.append(logits[:, 0] - logits[:, 1])

    def verdict(self, reference: Sequence[int], margin: float = 1.0) -> Losslessness:
        """Compare the tokens with the plain greedy `reference`, as if the memory were sound.

        noise_i is by how much wide passes change the lead of the best token over the second, or over the emitted one
        where that is another, times `margin`. A token is explained up to the largest noise seen. With the noise
        exchangeable over positions E = sum over i of P(noise > lead_i) / 2 tokens should differ; up to
        E + 4 sqrt(E + 1) of them are explained.
        """
        best, second, emitted = np.concatenate(self._alone).T
        gaps = best - emitted
        lead = np.where(gaps > 0, gaps, best - second)
        noise = np.abs(np.concatenate(self._wide).reshape(-1, len(lead)) - lead).max(axis=0) * margin
        worst, tolerance, n_different = float(gaps.max()), float(noise.max()), int((gaps > 0).sum())
        expected = float((noise[None, :] > lead[:, None]).mean(axis=1).sum()) / 2
        explained = (
            len(self._tokens) == len(reference)
            and worst <= tolerance
            and n_different <= expected + 4 * math.sqrt(expected + 1)
        )
        index = first_difference(self._tokens.tolist(), reference)
        return Losslessness(
            verdict="near_tie" if explained else "diverged",
            first_difference=index,
            top2_gap=float(best[index] - second[index]) if index is not None and index < len(best) else None,
            worst_gap=worst,
            tolerance=tolerance,
            n_different=n_different,
            n_compared=len(gaps),
        )


def of_other_build(emitted: Sequence[int], reference: Sequence[int], own: Logits, other: Logits) -> Losslessness:
    """How the plain output of another build compares with the `reference` of this one.

    Rows of logits before each emitted token, column 0 the token itself and then what this build finds likeliest: `own`
    of this build, `other` of the one that emitted it. As of passes of other widths, rounding explains differences in
    size and number: the size by how far leads lie apart where both chose alike, or any difference would explain itself.
    And both builds must say nearly the same everywhere.
    """
    gaps = Gaps([0] * len(emitted))
    gaps.alone(own)
    gaps.wide(other)
    index = first_difference(emitted, reference)
    same_length = [0] * len(emitted) if len(emitted) == len(reference) else [0] * (len(emitted) + 1)
    found = gaps.verdict(same_length)
    distance, limit = answer_distance(other, own), _ANCHOR_FLOOR * spread(own)
    agreed = own[:, 0] >= own.max(axis=1)
    leads = [
        rows[:, 0] - np.take_along_axis(rows, own[:, 1:].argmax(axis=1)[:, None] + 1, axis=1)[:, 0]
        for rows in (own, other)
    ]
    calm = float(np.abs(leads[0] - leads[1])[agreed].max(initial=0.0))
    explained = found.verdict == "near_tie" and distance <= limit and (found.worst_gap or 0.0) <= calm
    return msgspec.structs.replace(
        found,
        verdict="near_tie" if explained else "diverged",
        first_difference=index,
        tolerance=calm,
        live_distance=distance,
        live_limit=limit,
    )


# --- the live state ---------------------------------------------------------------------------------------------------


def answer_distance(answer: Logits, fresh: Logits) -> float:
    """Root mean square of what differs between two answers over the `_TOP` best logits of `fresh`, rows centred.

    Centred, as a constant added to all logits chooses the same tokens.
    """
    difference = _top(answer, fresh) - _top(fresh, fresh)
    difference -= difference.mean(axis=1, keepdims=True)
    return float(np.sqrt((difference**2).mean()))


def spread(fresh: Logits) -> float:
    """Root mean square of the same logits about the mean of each row."""
    best = _top(fresh, fresh)
    return float(np.sqrt(((best - best.mean(axis=1, keepdims=True)) ** 2).mean()))


def _top(rows: Logits, fresh: Logits) -> npt.NDArray[np.float64]:
    best = np.argpartition(fresh, -min(_TOP, fresh.shape[1]), axis=1)[:, -_TOP:]
    return np.take_along_axis(rows, best, axis=1).astype(np.float64)


def _passes(run: Generation, prompt: Sequence[int], options: SessionOptions, strategy: str) -> Passes:
    """The passes that left their mark on the memory of a session opened with `options`."""
    # After a rejection these decode what is kept once more, alone; and failed cuts are not to be repeated.
    replays = strategy in ("checkpoint", "unchecked") or options.tree == "redecode"
    kept = [1 + r.accepted for r in run.rounds]
    if kept:
        kept[-1] = len(run.past) - sum(kept[:-1])  # more than counted, where an end-of-generation token cut the output
    widths = [n if replays else max(n, r.rows) for n, r in zip(kept, run.rounds, strict=True)]
    return Passes(prompt=tuple(prompt), tokens=run.past, kept=tuple(kept), widths=tuple(widths))


class Judge:
    """Judges the generations of one target. Contexts are open only while it judges; what repeats is computed once."""

    def __init__(self, open_session: Callable[[SessionOptions], Session], options: SessionOptions) -> None:
        """`options` give what all contexts share; the rest is set here."""
        self._open = open_session
        self._options = msgspec.structs.replace(
            options, n_ctx=options.n_ctx + _ROOM, max_outputs=_N_FIXED, n_snapshots=0, device_sampling=False
        )
        self._plain: dict[tuple[tuple[int, ...], tuple[int, ...]], Logits] = {}
        self._fed: dict[object, Logits] = {}  # answers of fresh memories
        self._verdicts: dict[object, Losslessness] = {}

    def check_finite(self, session: Session) -> None:
        """Ask the memory in `session`. Raises: EngineError when its logits are not finite."""
        self._ask(session)

    def hear_plain(self, session: Session, prompt: Sequence[int], past: Sequence[int]) -> None:
        """Take the memory that plain decoding left behind as the one to compare with.

        Raises: EngineError, also for logits that are not finite.
        """
        if (key := (tuple(prompt), tuple(past))) not in self._plain:
            self._plain[key] = self._ask(session)

    def judge(
        self, run: Generation, reference: Sequence[int], prompt: Sequence[int], session: Session, *, strategy: str
    ) -> Losslessness:
        """Judge a greedy run whose memory is still in `session`; `reference` is the plain greedy output.

        Equal tokens over a sound memory are `lossless`. Raises: EngineError when decoding fails.
        """
        verdict = self.judge_tokens(run, reference, prompt, session.options, strategy=strategy)
        if strategy == "unchecked":
            return verdict  # its memory is what the failed calls left
        n_off = session.n_past - len(prompt) - len(run.past)
        if n_off:
            return msgspec.structs.replace(verdict, verdict="diverged", n_positions_off=n_off)
        state = self._live(_passes(run, prompt, session.options, strategy), session)
        return msgspec.structs.replace(
            verdict,
            verdict=verdict.verdict if state.sound else "diverged",
            live_distance=state.distance,
            live_limit=state.limit,
            live_noise=state.noise,
        )

    def judge_tokens(
        self,
        run: Generation,
        reference: Sequence[int],
        prompt: Sequence[int],
        options: SessionOptions,
        *,
        strategy: str,
    ) -> Losslessness:
        """Judge the output alone, as if the memory it came from, opened with `options`, were sound."""
        if tuple(run.tokens) == tuple(reference):
            return Losslessness(verdict="lossless")
        passes = _passes(run, prompt, options, strategy)
        key = (passes, options, run.tokens, tuple(reference))
        if key not in self._verdicts:
            gaps = Gaps(run.tokens)
            self._feed(_chunks(passes, 1), self._options, 0, gaps.alone)
            self._feed(passes, options, 0, gaps.wide)
            if is_tree := options.tree != "off":
                self._feed(passes, options, 1, gaps.wide)
            self._verdicts[key] = gaps.verdict(reference, _TREE_MARGIN if is_tree else 1.0)
        return self._verdicts[key]

    def _live(self, passes: Passes, session: Session) -> LiveState:
        """How far the memory in `session` is from sound ones, asked as far as needed."""
        live, fresh = self._ask(session), self._fresh(passes)
        floor = FLOOR * spread(fresh)
        alone = nearest = answer_distance(live, fresh)
        if alone <= floor:
            return LiveState(distance=alone, limit=floor)
        options = session.options
        same = self._feed(passes, options, 0)
        nearest, noise, limit = min(alone, answer_distance(live, same)), None, floor
        if nearest > floor:
            other = self._feed(passes, options, 1)
            nearest = min(nearest, answer_distance(live, other))
            noise = answer_distance(other, same)
            limit = floor + (_TREE_MARGIN if options.tree != "off" else FACTOR) * noise
        if options.n_snapshots and alone > _ANCHOR_FLOOR * spread(fresh):
            chunks = _chunks(passes, max(passes.widths))
            anchor = answer_distance(self._feed(chunks, self._options, 0), fresh)
            most = _ANCHOR_FACTOR * anchor + _ANCHOR_FLOOR * spread(fresh)
            if alone > most:
                return LiveState(distance=alone, limit=most, noise=anchor)
        return LiveState(distance=nearest, limit=limit, noise=noise)

    def _fresh(self, passes: Passes) -> Logits:
        plain = self._plain.get((passes.prompt, passes.tokens))
        return self._feed(_chunks(passes, 1), self._options, 0) if plain is None else plain

    def _ask(self, session: Session) -> Logits:
        """The logits after each fixed token behind a copy of the memory in `session`, which stays as it is."""
        with closing(self._open(self._options)) as own:
            own.take_memory(session)
            fixed = own.tokenize(PROBE_TEXT)[:_N_FIXED]
            own.decode(fixed, n_outputs=len(fixed))
            return check_finite(own.logits())

    def _feed(
        self, passes: Passes, options: SessionOptions, filling: int, see: Callable[[Logits], None] | None = None
    ) -> Logits:
        """The answer of a memory filled by `passes`; `see` hears the logits before each token and behind the last.

        `filling` chooses what fills a pass up to its width; of trees 1 also puts the path behind other branches.
        """
        key = (passes, options, filling)
        if key in self._fed and see is None:
            return self._fed[key]
        widest = max(passes.widths, default=1)
        options = msgspec.structs.replace(
            options, n_ctx=self._options.n_ctx + widest, max_outputs=widest, device_sampling=False, checked=True,
            kind="plain", **({} if filling and options.tree != "off" else {"tree": "off", "n_sequences": 1}),
        )  # fmt: skip
        with closing(self._open(options)) as session:
            session.decode(passes.prompt)
            rows, at = session.logits(), 0
            for n_kept, width in zip(passes.kept, passes.widths, strict=True):
                if see is not None:
                    see(check_finite(rows))
                rows = _fill(session, passes.tokens[at : at + n_kept], width, filling)
                at += n_kept
            if see is not None:
                see(check_finite(rows))
            self._fed[key] = self._ask(session)
        return self._fed[key]


def _chunks(passes: Passes, width: int) -> Passes:
    """The same text in passes of `width` tokens that all stay."""
    n = len(passes.tokens)
    kept = tuple(min(width, n - start) for start in range(0, n, width))
    return Passes(prompt=passes.prompt, tokens=passes.tokens, kept=kept, widths=kept)


def _fill(session: Session, part: Sequence[int], width: int, filling: int) -> Logits:
    """One pass: `part`, which stays, and as many other tokens as its width needs; the logits after each of `part`."""
    filler = [(part[-1] if filling == 0 else 11 + i) % session.vocabulary.n_tokens for i in range(width - len(part))]
    if session.options.tree != "off":
        return _fill_tree(cast(TreeSession, session), part, filler)
    n_past = session.n_past + len(part)
    session.decode((*part, *filler), n_outputs=width)
    rows = session.logits()[: len(part)]
    if filler:
        session.truncate(n_past)
    return rows


def _fill_tree(session: TreeSession, part: Sequence[int], filler: Sequence[int]) -> Logits:
    """The same as a tree whose last branch is kept, so that later tokens take the cells that others leave free."""
    root, *path = part
    room = session.options.n_sequences - 1
    wrong = [(token,) for token in dict.fromkeys(filler) if not path or token != path[0]][:room]
    tree = merge([*wrong, path], len(wrong) + len(path), max(1, len(path)))
    session.decode_tree(root, tree)
    kept = range(len(tree.tokens) - len(path), len(tree.tokens))
    rows = np.stack([session.row(node) for node in (-1, *kept)])
    session.keep_path(kept)
    return rows
