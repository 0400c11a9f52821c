"""Whether speculative output is what the target alone would have written, and if not, whether a tie explains it.

Two tests, both after the timed part. Both compare with memories into which the text was fed so that all of it stayed,
in passes of several widths: nothing is ever taken back here, so a rollback that is broken cannot excuse itself.

* The tokens: where the output is not what single tokens choose, the noise of the difference between the two best logits
  must explain it, in size and in number. Noise is what other widths change.
* The live state: the logits that follow a few fixed tokens behind a copy of the run's memory, against those behind the
  memories that were fed. Only the run's memory is copied, so a faulty copy can but make it worse.

Where noise is so large that it would explain anything, or copies change a memory that was fed, nothing is judged.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.engine.context import Context, ContextOptions, Logits, TreeKind, check_finite
from mlsd.engine.decode import Generation
from mlsd.engine.rollback_choice import PROBE_TEXT, OpenContext
from mlsd.errors import EngineError
from mlsd.records import VERDICTS, Losslessness, Record, Verdict

Floats = npt.NDArray[np.float64]
Widths = tuple[int, ...]  # of the passes that a text is fed in
ReadPrompt = Callable[[tuple[int, ...]], tuple[Any, Logits] | None]  # the memory behind a prompt and its last row

_N_FIXED_TOKENS = 8  # that every memory is continued with, in one pass
_N_TOP_LOGITS = 50  # of each row that count; the rest of a vocabulary is never chosen
_N_EXTRA_POSITIONS = 256  # beyond the text, for the fixed tokens
_LONG_PROMPT = 64  # tokens; a longer one is read once, and its memory copied where copies prove right
# How far a live memory may be from the nearest fed one: in noises (the largest distance of fed ones among each other),
# and at least, as a share of the spread of logits. Between the worst honest case (1.78) and the nearest broken one
# (1.85) of the trees on which it was set (benchmarks/truth_losslessness.py); chains lie far from both.
MEMORY_LIMIT_NOISES, MEMORY_LIMIT_SHARE = 1.8, 1e-3
# The noise of another order of cells is not measured, but guessed from that of another attention kernel. So of a tree
# whose cells stay, a memory off by less than so many noises is not judged: neither valid, nor shown to be broken.
TREE_BROKEN_NOISES = 3.0
# Noise above this share of the spread is no rounding: it would explain any token and any memory.
_NOISE_LIMIT_SHARE = 0.4
# The least noise of an output that was written elsewhere, as a share of the spread of likely logits: two x86 machines
# whose cards read alike differed where the best led by 0.02 of it.
_ELSEWHERE_NOISE_SHARE = 0.05
_BUILD_LIMIT_SHARE = 0.1  # how far all likely logits of two builds may be apart, as a share of their spread


class Feeding(Record, frozen=True, kw_only=True):
    """In which passes a text is fed."""

    widths: Widths  # of the passes behind the prompt
    n_from_prompt: int = 0  # last tokens of the prompt that fill up the first pass of a short text
    flash_attention: str | None = None  # None: as runs have it


class FedText(Record, frozen=True, kw_only=True):
    """What a run left in its memory, and the passes that it came in."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]  # behind the prompt
    accepted: Widths  # tokens of each pass that stayed
    widest: int  # positions of the widest pass, rejected ones included

    tree: TreeKind = "off"  # where a path's cells stay, they may lie in another order than the text

    @property
    def token_by_token(self) -> Feeding:
        return Feeding(widths=(1,) * len(self.tokens))

    def feedings(self) -> Iterator[Feeding]:
        """How the text is fed, those of the fewest passes first.

        Passes as wide as the run's widest, since kernels change with the width; the run's own without what was
        rejected; wide ones that begin elsewhere, so that each token meets the full width once; single tokens. In which
        order attention adds up the cells of a tree is not known afterwards: its noise is that of another kernel.
        """
        n = len(self.tokens)
        widest = self.widest if self.widest > 1 else _N_FIXED_TOKENS  # of a plain run anything wide
        n_from_prompt = max(min(widest - n, len(self.prompt) - 1), 0) if n else 0
        in_full_passes = Feeding(widths=full(n, widest), n_from_prompt=n_from_prompt)
        as_accepted = msgspec.structs.replace(in_full_passes, widths=self.accepted)
        n_first = min(n % widest or widest // 2, n)
        shifted = Feeding(widths=(*full(n_first, max(n_first, 1)), *full(n - n_first, widest)))
        yield from dict.fromkeys((in_full_passes, as_accepted, shifted, self.token_by_token))
        if self.tree != "off":
            for feeding, kernel in itertools.product((in_full_passes, self.token_by_token), ("on", "off")):
                yield msgspec.structs.replace(feeding, flash_attention=kernel)


def full(n: int, width: int) -> Widths:
    """As few passes of at most `width` tokens as `n` need, all but the last one full."""
    n_full, rest = divmod(n, width)
    return (width,) * n_full + (rest,) * (rest > 0)


def fed_text(run: Generation, prompt: Sequence[int], *, tree: TreeKind = "off") -> FedText:
    """What the memory of a run should hold."""
    accepted = [1 + r.accepted for r in run.rounds]
    if accepted:  # more than counted, where an end-of-generation token cut the output
        accepted[-1] = len(run.past) - sum(accepted[:-1])
    widest = max((max(1 + r.proposed, n) for r, n in zip(run.rounds, accepted, strict=True)), default=1)
    return FedText(prompt=tuple(prompt), tokens=run.past, accepted=tuple(accepted), widest=widest, tree=tree)


def first_difference(tokens: Sequence[object], reference: Sequence[object]) -> int | None:
    """Index of the first token that differs (a missing token differs), or None when the outputs are equal."""
    for i, (token, other) in enumerate(zip(tokens, reference, strict=False)):
        if token != other:
            return i
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


# --- the tokens -------------------------------------------------------------------------------------------------------


class Leads:
    """The leads of the best tokens, gathered while a text is fed: rows are wide, and a text may be long.

    Rows are logits before the tokens of an output, a few at a time; those behind its last token are left out.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.asarray(tokens)
        self._pairs: list[npt.NDArray[np.int64]] = []  # the best token, and the emitted one or else the second best
        self._alone: list[Floats] = []  # logits of best, second and emitted token, from single tokens
        self._in_passes: list[list[Floats]] = []  # by feeding, how far the best one leads the other of its pair

    def take_single(self, rows: Logits) -> None:
        """Rows from passes of one token; all of them before any wider ones."""
        start = sum(map(len, self._alone))
        tokens = self._tokens[start : start + len(rows)]
        rows, each = rows[: len(tokens)], np.arange(len(tokens))
        two = np.argpartition(rows, -2, axis=1)[:, -2:]
        two = np.take_along_axis(two, np.argsort(-np.take_along_axis(rows, two, axis=1), axis=1), axis=1)
        best, second = two.T
        self._pairs.append(np.stack([best, np.where(tokens == best, second, tokens)], axis=1))
        self._alone.append(np.stack([rows[each, i] for i in (best, second, tokens)], axis=1).astype(np.float64))

    def next_feeding(self) -> Callable[[Logits], None]:
        """Takes the rows of another feeding, whose passes are wider, from the first token on."""
        pairs, leads = np.concatenate(self._pairs), list[Floats]()
        self._in_passes.append(leads)

        def take(rows: Logits) -> None:
            start = sum(map(len, leads))
            chosen = pairs[start : start + len(rows)]
            logits = np.take_along_axis(rows[: len(chosen)], chosen, axis=1).astype(np.float64)
            leads.append(logits[:, 0] - logits[:, 1])

        return take

    def verdict(self, reference: Sequence[int], least_noise: float = 0.0) -> Losslessness:
        """Compare the tokens with the plain greedy `reference`, as if the memory were right.

        noise_i is by how much wide passes change the lead of the best token over the second, or over the emitted one
        where that is another, and at least `least_noise`. A token is explained up to the largest noise seen.
        With the noise exchangeable over positions E = sum over i of P(noise > lead_i) / 2 tokens should differ; up to
        E + 4 sqrt(E + 1) of them are explained.
        """
        best, second, emitted = np.concatenate(self._alone).T
        lead = _lead(best, second, emitted)
        in_passes = np.stack([*(np.concatenate(leads) for leads in self._in_passes if leads), lead])
        noise = np.maximum(np.abs(in_passes - lead).max(axis=0), least_noise)
        return explain(self._tokens.tolist(), reference, best, second, emitted, noise)


def _lead(best: Floats, second: Floats, emitted: Floats) -> Floats:
    """By how much the best token leads the emitted one, or the second best where that was emitted itself."""
    return np.where(best > emitted, best - emitted, best - second)


def explain(
    tokens: Sequence[int], reference: Sequence[int], best: Floats, second: Floats, emitted: Floats, noise: Floats
) -> Losslessness:
    """Whether noise explains the output, by the rule of `Leads.verdict`; `noise` may be that of some positions only."""
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


def of_recorded(tokens: Sequence[int], reference: Sequence[int], single: Logits, wide: Logits) -> Losslessness:
    """Whether noise explains an output that was written elsewhere, by the rule of `Leads.verdict`.

    Rows of logits before each token (column 0: the token itself, then the likeliest) from passes of one token and of
    the run's width. Kernels may differ there, so the noise is at least a share of the logits' spread.
    """
    return _of_columns(tokens, reference, single, wide, least_noise=_ELSEWHERE_NOISE_SHARE * TopLogits(single).spread)


def _of_columns(
    tokens: Sequence[int], reference: Sequence[int], single: Logits, wide: Logits, least_noise: float = 0.0
) -> Losslessness:
    """The rule of `Leads.verdict` for rows that have the emitted token in column 0."""
    leads = Leads([0] * len(tokens))
    leads.take_single(single)
    leads.next_feeding()(wide)
    verdict = leads.verdict([0] * (len(tokens) + (len(tokens) != len(reference))), least_noise)
    return msgspec.structs.replace(verdict, first_difference=first_difference(tokens, reference))


def of_other_build(emitted: Sequence[int], reference: Sequence[int], here: Logits, elsewhere: Logits) -> Losslessness:
    """How the plain output of another build compares with the `reference` of this one.

    Rows as `of_recorded` takes them, of this build and of the other. Rounding explains differences up to the distance
    of leads where both chose alike; and both builds must say nearly the same everywhere.
    """
    verdict = _of_columns(emitted, reference, here, elsewhere)
    top = TopLogits(here)
    apart, limit = distance(top.of(here), top.of(elsewhere)), _BUILD_LIMIT_SHARE * top.spread
    agreed = here[:, 0] >= here.max(axis=1)
    leads = [
        rows[:, 0] - np.take_along_axis(rows, here[:, 1:].argmax(axis=1)[:, None] + 1, axis=1)[:, 0]
        for rows in (here, elsewhere)
    ]
    tolerance = float(np.abs(leads[0] - leads[1])[agreed].max(initial=0.0))
    is_tie = verdict.verdict == "near_tie" and (verdict.worst_gap or 0.0) <= tolerance
    return msgspec.structs.replace(
        verdict,
        verdict="near_tie" if is_tie and apart <= limit else "diverged",
        tolerance=tolerance,
        live_distance=apart,
        live_limit=limit,
    )


# --- the live state ---------------------------------------------------------------------------------------------------


class TopLogits:
    """The best logits of each row that was seen first, centred (constants change nothing)."""

    def __init__(self, rows: Logits) -> None:
        self._columns = np.argpartition(rows, -min(_N_TOP_LOGITS, rows.shape[1]), axis=1)[:, -_N_TOP_LOGITS:]
        first = self.of(rows)
        self.spread = distance(first, np.zeros_like(first))

    def of(self, rows: Logits) -> Floats:
        best = np.take_along_axis(rows, self._columns, axis=1).astype(np.float64)
        centred: Floats = best - best.mean(axis=1, keepdims=True)
        return centred


def distance(rows: Floats, other: Floats) -> float:
    """Root mean square of what differs between two."""
    return float(np.sqrt(((rows - other) ** 2).mean()))


class FedContext:
    """The judge's own context, into which texts are fed whole; it takes nothing back. It stays open until `close`.

    `read_prompt` gives a reading from which no run went on.
    """

    def __init__(self, open_context: OpenContext, options: ContextOptions, read_prompt: ReadPrompt) -> None:
        self._open, self._options, self._read_prompt = open_context, options, read_prompt
        self._inner: Context | None = None
        # The long prompt that was read last, the memory behind it and its last row of logits; None where no copy holds.
        self._prompt: tuple[tuple[int, ...], tuple[Any, Logits] | None] = ((), None)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
            self._inner = None

    def forget(self) -> None:
        """Read the next prompt anew."""
        self._prompt = (), None

    def feed(self, text: FedText, feeding: Feeding, take: Callable[[Logits], None] | None = None) -> Context | None:
        """Hold a text, fed in those passes; None where the build has no such kernel.

        `take` receives the logits before each token and behind the last.
        """
        n_from_prompt, kernel = feeding.n_from_prompt, feeding.flash_attention
        try:
            context = self._empty(1 if take is None else 1 + max(feeding.widths, default=0), kernel)
        except EngineError:
            if kernel is None:
                raise
            return None
        rows = self._read(context, text.prompt, feeding)
        if take is not None and not n_from_prompt:
            take(check_finite(rows))
        n_fed = 0
        for width in feeding.widths:
            of_prompt = text.prompt[len(text.prompt) - n_from_prompt :] if n_fed == 0 else ()
            n_outputs = 0 if take is None else width + (len(of_prompt) > 0)
            context.decode((*of_prompt, *text.tokens[n_fed : n_fed + width]), n_outputs=n_outputs)
            if take is not None:
                take(check_finite(context.logits()))
            n_fed += width
        return context

    def follow(self, context: Context) -> Logits:
        """The logits after each fixed token behind what a context holds. Raises: EngineError."""
        fixed = context.tokenizer.tokenize(PROBE_TEXT)[:_N_FIXED_TOKENS]
        context.decode(fixed, n_outputs=len(fixed))
        return check_finite(context.logits())

    def follow_copy(self, memory: Any, n_past: int) -> Logits:
        """The same behind a copied memory; nothing of what the context held before may help it."""
        try:
            context = self._empty()
            context.decode(context.tokenizer.tokenize(PROBE_TEXT)[-_N_FIXED_TOKENS:], n_outputs=0)
            context.set_memory(memory, n_past)
            return self.follow(context)
        except EngineError:
            self.close()  # what it holds is not known
            raise

    def copies_are_right(self, context: Context) -> bool:
        """Whether a copy of what the context holds continues as that does; it then holds something else."""
        memory, n_past = context.copy_memory(), context.n_past
        rows = self.follow(context)
        top = TopLogits(rows)
        return distance(top.of(rows), top.of(self.follow_copy(memory, n_past))) <= MEMORY_LIMIT_SHARE * top.spread

    def _read(self, context: Context, prompt: tuple[int, ...], feeding: Feeding) -> Logits:
        """Bring a prompt into the empty context; the logits behind it."""
        # A copy leaves out cells that no window sees any more, and attention adds up the others in another order then.
        is_copied = len(prompt) >= _LONG_PROMPT and not context.window and feeding.flash_attention is None
        if not is_copied or feeding.n_from_prompt:
            context.decode(prompt[: len(prompt) - feeding.n_from_prompt])
            return context.logits()
        if self._prompt[0] != prompt:
            self._take_reading(context, prompt)
        held, copied = self._prompt
        if held == prompt and copied is not None:
            context.set_memory(copied[0], len(prompt))
            return copied[1]
        context.decode(prompt)
        row = context.logits()
        if held != prompt:
            memory = context.copy_memory()
            self._prompt = prompt, (memory, row) if self.copies_are_right(context) else None
            context.clear()
            return self._read(context, prompt, feeding)
        return row

    def _take_reading(self, context: Context, prompt: tuple[int, ...]) -> None:
        """Spare reading a prompt that another context has read, where the memory behind it fits into this kind."""
        reading = self._read_prompt(prompt)
        if reading is not None:
            with contextlib.suppress(EngineError):
                context.set_memory(reading[0], len(prompt))
                self._prompt = prompt, reading
            context.clear()

    def _empty(self, n_outputs: int = 1, flash_attention: str | None = None) -> Context:
        """The context, holding nothing, for at least so many rows of logits in a pass."""
        wanted = judge_options(self._options, n_outputs, flash_attention)
        if self._inner is not None:
            options = self._inner.options
            if options.flash_attention != wanted.flash_attention or options.max_outputs < wanted.max_outputs:
                self.close()
        if self._inner is None:
            self._inner = self._open(wanted)
        self._inner.clear()
        return self._inner


def judge_options(options: ContextOptions, n_outputs: int = 1, flash_attention: str | None = None) -> ContextOptions:
    """The judge's context beside runs whose contexts share `options`: it takes nothing back and holds no tree."""
    return msgspec.structs.replace(
        options,
        n_ctx=options.n_ctx + _N_EXTRA_POSITIONS,
        max_outputs=max(_N_FIXED_TOKENS, n_outputs),
        device_sampling=False,
        flash_attention=flash_attention or options.flash_attention,
    )


# --- both -------------------------------------------------------------------------------------------------------------


class Judge:
    """Judges the generations of one target; what repeats is computed once."""

    def __init__(
        self, open_context: OpenContext, options: ContextOptions, read_prompt: ReadPrompt = lambda _: None
    ) -> None:
        """`options` give what all contexts share; the rest is set here."""
        self._context = FedContext(open_context, options, read_prompt)
        # What follows the fixed tokens behind memories of one text, by how it was fed.
        self._fed: dict[object, tuple[TopLogits, dict[Feeding, Floats]]] = {}
        self._verdicts: dict[object, Losslessness] = {}

    def close(self) -> None:
        """Close the context; it opens again when it is needed."""
        self._context.close()

    def check_finite(self, context: Context) -> None:
        """Raises: EngineError where the logits behind the memory of a context are not finite."""
        self._context.follow_copy(context.copy_memory(), context.n_past)

    def judge(
        self,
        run: Generation,
        reference: Sequence[int],
        prompt: Sequence[int],
        context: Context,
        *,
        strategy: str,
        compares_memory: bool = True,
    ) -> Losslessness:
        """Judge a greedy run whose memory is in `context` by the plain greedy `reference`.

        Equal tokens are lossless; the memory that they left is compared where that is asked for, and always where
        tokens differ. Raises: EngineError.
        """
        tree = context.options.tree
        verdict = self.judge_tokens(run, reference, prompt, tree=tree)
        if strategy == "unchecked":
            return verdict  # its memory is what the failed calls left
        n_off = context.n_past - len(prompt) - len(run.past)
        if n_off:
            return msgspec.structs.replace(verdict, verdict="diverged", n_positions_off=n_off)
        if verdict.verdict == "lossless" and not compares_memory:
            return verdict
        # A path that was decoded again left the memory of a chain.
        memory = self._judge_memory(fed_text(run, prompt, tree="off" if tree == "redecode" else tree), context)
        return msgspec.structs.replace(
            verdict,
            verdict=max(verdict.verdict, memory.verdict, key=VERDICTS.index),
            live_distance=memory.live_distance,
            live_limit=memory.live_limit,
            live_noise=memory.live_noise,
        )

    def judge_reading(self, prompt: tuple[int, ...], memory: Any) -> Losslessness:
        """Whether a memory behind a prompt goes on as the judge's own reading of it does, both copied.

        Nothing rounds otherwise in one than in the other. Raises: EngineError.
        """
        reading = self._context.feed(FedText(prompt=prompt, tokens=(), accepted=(), widest=1), Feeding(widths=()))
        assert reading is not None  # the kernel is that of runs
        expected = self._context.follow_copy(reading.copy_memory(), reading.n_past)
        top = TopLogits(expected)
        apart = distance(top.of(expected), top.of(self._context.follow_copy(memory, len(prompt))))
        limit = MEMORY_LIMIT_SHARE * top.spread
        verdict: Verdict = "lossless" if apart <= limit else "diverged"
        return Losslessness(verdict=verdict, live_distance=apart, live_limit=limit)

    def forget(self) -> None:
        """Read and feed everything anew: of two readings that differ either may be wrong."""
        self._fed.clear()
        self._verdicts.clear()
        self._context.forget()

    def judge_tokens(
        self, run: Generation, reference: Sequence[int], prompt: Sequence[int], *, tree: TreeKind = "off"
    ) -> Losslessness:
        """Judge the output alone, as if the memory it came from were right; nothing is fed for equal tokens."""
        if tuple(run.tokens) == tuple(reference):
            return Losslessness(verdict="lossless")
        text = fed_text(run, prompt, tree=tree)
        key = (text, run.tokens, tuple(reference))
        if key not in self._verdicts:
            self._verdicts[key] = self._judge_differences(text, run.tokens, reference)
        return self._verdicts[key]

    def _judge_differences(self, text: FedText, tokens: tuple[int, ...], reference: Sequence[int]) -> Losslessness:
        leads = Leads(tokens)
        self._feed(text, text.token_by_token, leads.take_single)
        verdict = leads.verdict(reference)
        for feeding in text.feedings():  # few passes first, and nearly always the noise of all of them
            if verdict.verdict != "diverged" or feeding == text.token_by_token:
                continue
            if self._feed(text, feeding, leads.next_feeding()) is not None:
                verdict = leads.verdict(reference)
        most = _NOISE_LIMIT_SHARE * self._fed[text.prompt, text.tokens][0].spread
        gap, tolerance = verdict.worst_gap or 0.0, verdict.tolerance or 0.0
        if (
            gap > most
            if verdict.verdict == "near_tie"
            else text.tree == "keep" and gap <= TREE_BROKEN_NOISES * tolerance
        ):
            return msgspec.structs.replace(verdict, verdict="not_judged")
        return verdict

    def _judge_memory(self, text: FedText, context: Context) -> Losslessness:
        """How far the memory in `context` is from the nearest that was fed, and may be; fed as often as needed."""
        rows = self._context.follow_copy(context.copy_memory(), context.n_past)
        nearest, noise, limit, most, spread = math.inf, 0.0, 0.0, 0.0, 0.0
        fed: list[Feeding] = []
        _, fed_before = self._fed.get((text.prompt, text.tokens), (None, dict[Feeding, Floats]()))
        earlier = [feeding for feeding in fed_before if feeding.flash_attention is None]
        for feeding in dict.fromkeys((*earlier, *text.feedings())):  # first those that an earlier run of it was fed in
            behind = self._feed(text, feeding)
            if behind is None:
                continue
            fed.append(feeding)
            top, behind_feedings = self._fed[text.prompt, text.tokens]
            nearest, spread = min(nearest, distance(top.of(rows), behind)), top.spread
            pairs = itertools.combinations((behind_feedings[feeding] for feeding in fed), 2)
            noise = max(itertools.starmap(distance, pairs), default=0.0)
            limit = spread * MEMORY_LIMIT_SHARE + MEMORY_LIMIT_NOISES * noise
            most = spread * (MEMORY_LIMIT_SHARE + _NOISE_LIMIT_SHARE)
            if nearest <= min(limit, most):
                break
        verdict: Verdict = "lossless" if nearest <= min(limit, most) else "not_judged"
        clear = limit if text.tree == "off" else spread * MEMORY_LIMIT_SHARE + TREE_BROKEN_NOISES * noise
        if nearest > clear:
            again = self._context.feed(text, fed[0])
            if again is not None and self._context.copies_are_right(again):
                verdict = "diverged"
        return Losslessness(verdict=verdict, live_distance=nearest, live_limit=limit, live_noise=noise)

    def _feed(self, text: FedText, feeding: Feeding, take: Callable[[Logits], None] | None = None) -> Floats | None:
        """What follows the text, fed in those passes; None where the build has no such kernel."""
        key = text.prompt, text.tokens
        if take is None and key in self._fed and feeding in self._fed[key][1]:
            return self._fed[key][1][feeding]
        context = self._context.feed(text, feeding, take)
        if context is None:
            return None
        rows = self._context.follow(context)
        top, behind_feedings = self._fed.setdefault(key, (TopLogits(rows), {}))
        behind_feedings[feeding] = top.of(rows)
        return behind_feedings[feeding]
