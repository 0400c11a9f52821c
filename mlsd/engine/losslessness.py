"""Whether speculative output is what the target alone would have written, and if not, whether a tie explains it.

Two independent tests, both after the timed part:

* The live state: the memory's answers to a few fixed tokens, against memories that never held a rejected token. One was
  fed single tokens; another full passes of about the run's width; a third the run's own passes, filled up with tokens
  that were cut off again. A sound memory equals one of them to the bit where arithmetic is deterministic.
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
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import Logits, Session, SessionOptions, TreeSession, check_finite
from mlsd.engine.tree import merge
from mlsd.errors import EngineError
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
# Of the spread of likely logits: two x86 machines whose cards read alike differed where the best led by 0.02 of it.
_OTHER_KERNELS = 0.05


class FedPasses(Record, frozen=True, kw_only=True):
    """How a text came into a memory: the prompt, then passes of which the first tokens stayed."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    kept: tuple[int, ...]  # tokens of each pass that stayed
    widths: tuple[int, ...]  # positions of each pass
    strategy: str = "trim"  # how what did not stay was taken back; "redecode" of a tree whose path is decoded again


def first_difference(tokens: Sequence[object], reference: Sequence[object]) -> int | None:
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

    def narrow(self) -> Gaps:
        same = Gaps(())
        same._tokens, same._pairs, same._alone = self._tokens, self._pairs, self._alone
        return same

    def verdict(self, reference: Sequence[int], margin: float = 1.0, floor: float = 0.0) -> Losslessness:
        """Compare the tokens with the plain greedy `reference`, as if the memory were sound.

        noise_i is by how much wide passes change the lead of the best token over the second, or over the emitted one
        where that is another, times `margin`, and at least `floor`. A token is explained up to the largest noise seen.
        With the noise exchangeable over positions E = sum over i of P(noise > lead_i) / 2 tokens should differ; up to
        E + 4 sqrt(E + 1) of them are explained.
        """
        best, second, emitted = np.concatenate(self._alone).T
        lead = _lead(best, second, emitted)
        change = np.abs(np.concatenate(self._wide).reshape(-1, len(lead)) - lead).max(axis=0)
        noise = np.maximum(change * margin, floor)
        return explain(self._tokens.tolist(), reference, best, second, emitted, noise)


def _lead(best: Floats, second: Floats, emitted: Floats) -> Floats:
    """By how much the best token leads the emitted one, or the second best where that was emitted itself."""
    return np.where(best > emitted, best - emitted, best - second)


def explain(
    tokens: Sequence[int], reference: Sequence[int], best: Floats, second: Floats, emitted: Floats, noise: Floats
) -> Losslessness:
    """Whether noise explains the output, by the rule of `Gaps.verdict`; `noise` may be known of some positions only."""
    gaps, lead = best - emitted, _lead(best, second, emitted)
    worst, tolerance, n_different = float(gaps.max()), float(noise.max(initial=0.0)), int((gaps > 0).sum())
    expected = float((noise[None, :] > lead[:, None]).mean(axis=1).sum()) / 2 if len(noise) else 0.0
    explained = (
        len(tokens) == len(reference) and worst <= tolerance and n_different <= expected + 4 * math.sqrt(expected + 1)
    )
    index = first_difference(tokens, reference)
    return Losslessness(
        verdict="near_tie" if explained else "diverged",
        first_difference=index,
        top2_gap=float(best[index] - second[index]) if index is not None and index < len(best) else None,
        worst_gap=worst,
        tolerance=tolerance,
        n_different=n_different,
        n_compared=len(gaps),
    )


def of_recorded(tokens: Sequence[int], reference: Sequence[int], alone: Logits, wide: Logits) -> Losslessness:
    """Whether noise explains an output that was written elsewhere, by the rule of `Gaps.verdict`.

    Rows of logits before each token (column 0: the token itself, then the likeliest) from passes of one token and of
    the run's width. Kernels may differ there, so the noise is at least a share of the logits' spread.
    """
    return _of_columns(tokens, reference, alone, wide, floor=_OTHER_KERNELS * Answers(alone).spread)


def _of_columns(
    tokens: Sequence[int], reference: Sequence[int], alone: Logits, wide: Logits, floor: float = 0.0
) -> Losslessness:
    """The rule of `Gaps.verdict` for rows that have the emitted token in column 0."""
    gaps = Gaps([0] * len(tokens))
    gaps.alone(alone)
    gaps.wide(wide)
    found = gaps.verdict([0] * (len(tokens) + (len(tokens) != len(reference))), floor=floor)
    return msgspec.structs.replace(found, first_difference=first_difference(tokens, reference))


def of_other_build(emitted: Sequence[int], reference: Sequence[int], own: Logits, other: Logits) -> Losslessness:
    """How the plain output of another build compares with the `reference` of this one.

    Rows as `of_recorded` takes them, of this build and of the other. Rounding explains differences up to the distance
    of leads where both chose alike; and both builds must say nearly the same everywhere.
    """
    found = _of_columns(emitted, reference, own, other)
    known = Answers(own)
    off, limit = distance(known.read(other), known.fresh), _ANCHOR_FLOOR * known.spread
    agreed = own[:, 0] >= own.max(axis=1)
    leads = [
        rows[:, 0] - np.take_along_axis(rows, own[:, 1:].argmax(axis=1)[:, None] + 1, axis=1)[:, 0]
        for rows in (own, other)
    ]
    calm = float(np.abs(leads[0] - leads[1])[agreed].max(initial=0.0))
    explained = found.verdict == "near_tie" and off <= limit and (found.worst_gap or 0.0) <= calm
    return msgspec.structs.replace(
        found,
        verdict="near_tie" if explained else "diverged",
        tolerance=calm,
        live_distance=off,
        live_limit=limit,
    )


# --- the live state ---------------------------------------------------------------------------------------------------


class Answers:
    """What sound memories of one text say: of each row the `_TOP` best logits, centred (constants change nothing)."""

    def __init__(self, fresh: Logits) -> None:
        self._columns = np.argpartition(fresh, -min(_TOP, fresh.shape[1]), axis=1)[:, -_TOP:]
        self.fresh = self.read(fresh)
        self.whole = [self.fresh]  # of memories from which nothing was ever cut
        self.fed: dict[object, Floats] = {}  # of all that were fed again
        self.floor = FLOOR * self.spread

    def read(self, rows: Logits) -> Floats:
        best = np.take_along_axis(rows, self._columns, axis=1).astype(np.float64)
        return cast(Floats, best - best.mean(axis=1, keepdims=True))

    @property
    def spread(self) -> float:
        return distance(self.fresh, np.zeros_like(self.fresh))


def distance(answer: Floats, *others: Floats) -> float:
    """Root mean square of what differs between an answer and the nearest of others."""
    return min(float(np.sqrt(((answer - other) ** 2).mean())) for other in others)


def _passes(run: Generation, prompt: Sequence[int], options: SessionOptions, strategy: str) -> FedPasses:
    """The passes that left their mark on the memory of a session opened with `options`."""
    kept = [1 + r.accepted for r in run.rounds]
    if kept:
        kept[-1] = len(run.past) - sum(kept[:-1])  # more than counted, where an end-of-generation token cut the output
    rows = [r.rows for r in run.rounds]
    if options.tree == "redecode":
        strategy, rows = "redecode", [r.rows - (n - 1) for n, r in zip(kept, run.rounds, strict=True)]
    elif strategy == "checkpoint":
        rows = [1 + r.proposed for r in run.rounds]
    elif strategy == "unchecked":  # failed cuts are not to be repeated
        rows = kept
    return FedPasses(
        prompt=tuple(prompt), tokens=run.past, kept=tuple(kept), widths=tuple(map(max, kept, rows)), strategy=strategy
    )


class Judge:
    """Judges the generations of one target; what repeats is computed once. One context stays open until `close`."""

    def __init__(
        self,
        open_session: Callable[[SessionOptions], Session],
        options: SessionOptions,
        read: Callable[[Session, Sequence[int]], object] = lambda session, prompt: session.decode(prompt),
    ) -> None:
        """`options` give what all contexts share; the rest is set here. `read` is how the runs read their prompt."""
        self._open, self._read = open_session, read
        self._options = asking_options(options)
        self._asked: Session | None = None
        self._texts: dict[object, Answers] = {}
        self._gaps: dict[object, Gaps] = {}
        self._verdicts: dict[object, Losslessness] = {}

    def close(self) -> None:
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    def check_finite(self, session: Session) -> None:
        self._ask(session)

    def remember_plain_memory(self, session: Session, prompt: Sequence[int], past: Sequence[int]) -> None:
        """Keep the memory that plain decoding left as the one to compare with. Raises: EngineError."""
        if (text := (tuple(prompt), tuple(past))) not in self._texts:
            self._texts[text] = Answers(self._ask(session))

    def judge(
        self, run: Generation, reference: Sequence[int], prompt: Sequence[int], session: Session, *, strategy: str
    ) -> Losslessness:
        """Judge a greedy run whose memory is in `session` by the plain greedy `reference`. Raises: EngineError."""
        verdict = self.judge_tokens(run, reference, prompt, session.options, strategy=strategy)
        if strategy == "unchecked":
            return verdict  # its memory is what the failed calls left
        n_off = session.n_past - len(prompt) - len(run.past)
        if n_off:
            return msgspec.structs.replace(verdict, verdict="diverged", n_positions_off=n_off)
        off, limit, noise = self._live(_passes(run, prompt, session.options, strategy), session)
        return msgspec.structs.replace(
            verdict,
            verdict=verdict.verdict if off <= limit else "diverged",
            live_distance=off,
            live_limit=limit,
            live_noise=noise,
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
            self._verdicts[key] = self._compare(passes, run.tokens, reference, options)
        return self._verdicts[key]

    def _compare(
        self, passes: FedPasses, tokens: tuple[int, ...], reference: Sequence[int], options: SessionOptions
    ) -> Losslessness:
        if (text := (passes.prompt, passes.tokens, tokens)) not in self._gaps:
            gaps = Gaps(tokens)
            self._feed(_chunks(passes, 1), self._options, 0, gaps.alone)
            self._gaps[text] = gaps
        gaps = self._gaps[text].narrow()
        if options.tree != "off":
            self._feed(passes, options, 0, gaps.wide)
            self._feed(passes, options, 1, gaps.wide)
            return gaps.verdict(reference, _TREE_MARGIN)
        # Few passes, and nearly always the noise of all of them.
        self._feed(_chunks(passes, max(passes.widths, default=1)), self._options, 0, gaps.wide)
        verdict = gaps.verdict(reference)
        if verdict.verdict == "diverged":
            self._feed(passes, options, 0, gaps.wide)
            verdict = gaps.verdict(reference)
        return verdict

    def _live(self, passes: FedPasses, session: Session) -> tuple[float, float, float | None]:
        """How far the memory in `session` is from the nearest sound one, and may be; and sound ones among each other.

        Asked as far as needed: without the last (None) where nothing had to be explained.
        """
        if (text := (passes.prompt, passes.tokens)) not in self._texts:
            self._feed(_chunks(passes, 1), self._options, 0)
        known = self._texts[text]
        live, floor, options = known.read(self._ask(session)), known.floor, session.options
        if (nearest := distance(live, *known.whole)) > floor and options.tree == "off":
            self._feed(_chunks(passes, max(passes.widths)), self._options, 0)  # few passes, and mostly equal to the bit
            nearest = distance(live, *known.whole)
        if nearest <= floor:
            return nearest, floor, None
        same = self._feed(passes, options, 0)
        nearest, noise, limit = min(nearest, distance(live, same)), None, floor
        if nearest > floor:
            other = self._feed(passes, options, 1)
            nearest, noise = min(nearest, distance(live, other)), distance(other, same)
            limit = floor + (_TREE_MARGIN if options.tree != "off" else FACTOR) * noise
        alone = distance(live, known.fresh)
        if options.n_snapshots and alone > _ANCHOR_FLOOR * known.spread:
            anchor = distance(self._feed(_chunks(passes, max(passes.widths)), self._options, 0), known.fresh)
            most = _ANCHOR_FACTOR * anchor + _ANCHOR_FLOOR * known.spread
            if alone > most:
                return alone, most, anchor
        return nearest, limit, noise

    def _ask(self, session: Session) -> Logits:
        """The logits after each fixed token behind a copy of the memory in `session`, which stays as it is."""
        if self._asked is None:
            self._asked = self._open(self._options)
        try:
            self._asked.take_memory(session)
            fixed = self._asked.tokenizer.tokenize(PROBE_TEXT)[:_N_FIXED]
            self._asked.decode(fixed, n_outputs=len(fixed))
            return check_finite(self._asked.logits())
        except EngineError:
            self.close()  # nobody knows what it holds
            raise

    def _feed(
        self,
        passes: FedPasses,
        options: SessionOptions,
        filling: int,
        use: Callable[[Logits], None] | None = None,
    ) -> Floats:
        """The answer of a memory filled by `passes`; `use` receives the logits before each token and behind the last.

        `filling` chooses what fills a pass; of trees 1 also puts the path behind other branches. The first must be
        narrow.
        """
        key, known = (passes, options, filling), self._texts.get((passes.prompt, passes.tokens))
        if known is not None and key in known.fed and use is None:
            return known.fed[key]
        widest = max(passes.widths, default=1)
        own = feeding_options(self._options, options, widest, as_tree=filling > 0 and options.tree != "off")
        with closing(self._open(own)) as session:
            self._read(session, passes.prompt)
            rows, at = session.logits(), 0
            for n_kept, width in zip(passes.kept, passes.widths, strict=True):
                if use is not None:
                    use(check_finite(rows))
                part = passes.tokens[at : at + n_kept]
                rows = _fill(session, part, width, filling, passes.strategy)
                at += n_kept
            if use is not None:
                use(check_finite(rows))
            answer = self._ask(session)
        if known is None:
            known = self._texts[passes.prompt, passes.tokens] = Answers(answer)
        known.fed[key] = known.read(answer)
        if passes.kept == passes.widths:
            known.whole.append(known.fed[key])
        return known.fed[key]


def asking_options(options: SessionOptions) -> SessionOptions:
    """The context in which a memory made with `options` is asked about the fixed tokens."""
    return msgspec.structs.replace(
        options, n_ctx=options.n_ctx + _ROOM, max_outputs=_N_FIXED, n_snapshots=0, device_sampling=False
    )


def feeding_options(
    asking: SessionOptions, options: SessionOptions, widest: int, *, as_tree: bool = False
) -> SessionOptions:
    """The context that is fed as a run with `options` was; it and that of `asking` are open at once."""
    return msgspec.structs.replace(
        options, n_ctx=asking.n_ctx + widest, max_outputs=widest, device_sampling=False, checked=True, kind="plain",
        **({} if as_tree else {"tree": "off", "n_sequences": 1}),
    )  # fmt: skip


def _chunks(passes: FedPasses, width: int) -> FedPasses:
    """The same text in as few passes of at most `width` tokens as it needs, about equally wide, that all stay."""
    n = len(passes.tokens)
    n_passes = -(-n // width)
    kept = tuple(n // n_passes + (i < n % n_passes) for i in range(n_passes))  # none of no text
    return FedPasses(prompt=passes.prompt, tokens=passes.tokens, kept=kept, widths=kept)


def _fill(session: Session, part: Sequence[int], width: int, filling: int, strategy: str) -> Logits:
    """One pass: `part`, which stays, and as many other tokens as its width needs; the logits after each of `part`."""
    n_vocab, path = session.tokenizer.vocabulary.n_tokens, part[1:]
    others = [token % n_vocab for token in range(11, 12 + width) if token % n_vocab not in path[:1]]
    filler = ([part[-1]] * width if filling == 0 else others)[: width - len(part)]
    if session.options.tree != "off":
        return _fill_tree(cast(TreeSession, session), part, filler)
    n_past, redecodes = session.n_past, strategy == "redecode" and len(path) > 0
    rollback = make_rollback("trim" if strategy == "redecode" else strategy, session)
    rollback.mark()
    session.decode((*part, *filler), n_outputs=width)
    rows = session.logits()[: len(part)]
    rollback.rewind(n_past + (1 if redecodes else len(part)), part)
    if redecodes:
        session.decode(path, n_outputs=0)
    return rows


def _fill_tree(session: TreeSession, part: Sequence[int], filler: Sequence[int]) -> Logits:
    """The same as a tree whose last branch is kept, so that later tokens take the cells that others leave free."""
    root, *path = part
    room = session.options.n_sequences - 1
    wrong = [filler[i::room] for i in range(min(room, len(filler)))]
    n_nodes = len(filler) + len(path)
    tree = merge([*wrong, path], n_nodes, n_nodes)
    session.decode_tree(root, tree)
    kept = range(len(tree.tokens) - len(path), len(tree.tokens))
    rows = np.stack([session.row(node) for node in (-1, *kept)])
    session.keep_path(kept)
    return rows
