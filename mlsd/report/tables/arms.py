"""Tables of one target's arms: as a bench just measured them, as a search tried them, as advice predicts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from mlsd.report.render.table import Cell, Column, Table, number, numbers, percent, table, text, words
from mlsd.report.tables.catalogue import yes_or_no
from mlsd.stats import Interval, Percentiles
from mlsd.trials.acceptance import of_output
from mlsd.trials.sums import PART_NAMES
from mlsd.units import format_bytes

if TYPE_CHECKING:
    from mlsd.analysis.advise.answer import QuantFile
    from mlsd.analysis.advise.prospects import Prospect
    from mlsd.analysis.results.bench_arms import BenchArm
    from mlsd.analysis.results.server_arms import Row
    from mlsd.measure.run.tune import Setting, TuneRequest, TuneResult
    from mlsd.servers.measure import ServerResult

_OF = {"p50": "the median", "p90": "nine of ten take no longer", "p99": "99 of 100 take no longer"}
MEANINGS = {  # of the columns below; the documentation shows them
    "prompt": "a shipped prompt or a text file",
    "arm": "plain decoding, or a method with its draft and options",
    "method": "plain decoding, or a method with its draft",
    "gamma": "the most tokens proposed in a round",
    "at once": "requests in flight at the same time",
    "tok/s": "tokens after the first, over the time from the first to the last; the median over blocks",
    "client tok/s": "the same by the client's clock, where a server has one of its own",
    "server": "the target and the program that serves it",
    **{
        f"first token {share}": f"from sending the request to the first piece of output; {of}"
        for share, of in _OF.items()
    },
    **{f"token {share}": f"mean time of a token after the first, of each answer; {of}" for share, of in _OF.items()},
    "ratio": "tok/s over those of the first server in the same block, geometric mean over blocks",
    "of output": "accepted over output tokens, as mlx_lm counts",
    "spread": "of tok/s over blocks: half the range over the median",
    "speedup": "over plain decoding of the same block, same prompt, same length: geometric mean over blocks",
    "CI": "interval of the speedup; one that holds 1 decides nothing",
    "interval": "range of the tok/s that are predicted",
    "speedup range": "range of the speedup; narrower, since what is not known of plain decoding cancels",
    "decision": "faster, slower, no difference, undecided, or why the arm left the race",
    "acceptance": "accepted over proposed tokens",
    "MGL": "tokens that a round adds to the output, the target's own one included",
    "rounds": "rounds as the server counts them",
    "ms/round": "mean time of a round, the sum of the five columns that follow",
    "draft": "ms a round: proposing",
    "verify": "ms a round: the pass of the target over the proposed tokens and one more",
    "rollback": "ms a round: forgetting what was rejected",
    "sample": "ms a round: reading the target's tokens and accepting",
    "other": "ms a round: everything else",
    "verdict": "lossless, near_tie or diverged, against plain decoding; INVALID where a trial must not be used",
    "options": "what was set of the method",
    "blocks": "blocks that the arm was measured in",
    "needs": "MGL at which it would be as fast as plain decoding",
    "or accept": "acceptance of each token that gives this MGL",
    "decided by": "what costs most: without it the speedup would rise furthest",
    "without": "that speedup",
}


def _explained(made: Table) -> Table:
    """The table with the meaning of every column."""
    heads = [structs.replace(head, trace=MEANINGS[head.label.rpartition("% ")[2]]) for head in made.heads]
    return structs.replace(made, heads=tuple(heads))


def bounds(low: float | None, high: float | None, digits: int = 2, *, predicted: bool = False) -> Cell:
    """An interval without its middle; no repeats narrow a predicted one."""
    if low is not None and high is not None and Interval(value=low, low=low, high=high).says_little and not predicted:
        return text("too few repeats", "doubt")
    return text(None if low is None or high is None else f"{low:.{digits}f} .. {high:.{digits}f}")


def times(ratio: float | None) -> Cell:
    """A speedup."""
    return text(None if ratio is None else f"{ratio:.2f}x")


def bench_table(arms: Sequence[BenchArm]) -> Table:
    """Plain decoding and every method measured beside it."""
    first = arms[0].trials[0].case
    n_prompt = {row.case.prompt.key: row.trial.n_prompt for a in arms for row in a.trials if row.trial.status == "ok"}
    prompt: Column[BenchArm] = words("prompt", lambda a: a.prompt)
    prompts = ", ".join(f"{key} ({count} tokens)" for key, count in n_prompt.items())
    made = table(
        f"{first.target.id}, prompt {prompts}, {first.n_predict} output tokens",
        arms,
        *((prompt,) if len(n_prompt) > 1 else ()),
        words("arm", lambda a: a.arm.name),
        numbers("gamma", lambda a: a.summary.gamma or None),
        numbers("tok/s", lambda a: number(a.summary.decode_tok_s, 1)),
        numbers("spread", lambda a: percent(a.summary.spread), detail=True),
        numbers("speedup", lambda a: times(a.summary.speedup)),
        numbers("95 % CI", lambda a: bounds(a.summary.ci_low, a.summary.ci_high)),
        *((words("decision", _decision, detail=True),) if any(a.standing for a in arms) else ()),
        numbers("acceptance", lambda a: percent(a.summary.acceptance_rate)),
        numbers("of output", lambda a: percent(of_output(a.summary.mgl) if a.case.arm == "sd" else None), detail=True),
        numbers("MGL", lambda a: number(a.summary.mgl), detail=True),
        numbers(
            "ms/round",
            lambda a: number(sum(a.summary.ms_per_round.values()) if a.summary.ms_per_round else None),
            detail=True,
        ),
        *map(_part_column, PART_NAMES),
        words("verdict", lambda a: "INVALID" if a.summary.wrong else a.summary.verdict),
    )
    return _explained(made)


def _decision(arm: BenchArm) -> str | None:
    return None if arm.standing is None else arm.standing.out or arm.standing.words


def _part_column(part: str) -> Column[BenchArm]:
    return numbers(part, lambda a: number(a.summary.ms_per_round.get(part)), detail=True)


def server_table(result: ServerResult, rows: Sequence[Row]) -> Table:
    """Arms of a server, and of the engine beside it; or two servers."""
    case = result.trials[0].case
    prompts = list(dict.fromkeys(one.case.prompt.key for one in result.trials))
    shown = ", ".join(prompts) if len(prompts) < 5 else f"{len(prompts)} prompts"

    def at_once(row: Row) -> Cell:
        count = row.suite.rpartition("-")[2]
        return text(count if count.isdigit() else "1")

    def interval(row: Row) -> Cell:
        known = None if row.speedup is None else bounds(row.speedup.low, row.speedup.high)
        return text(known.text + f" ({row.effect})" if known is not None and known.sort is not None else None)

    def spread(name: str, of: Callable[[Row], Percentiles | None]) -> Iterator[Column[Row]]:
        for share in ("p50", "p90", "p99"):
            yield numbers(
                f"{name} {share}",
                lambda row, share=share: number(getattr(of(row), share, None), 1, " ms"),  # type: ignore[misc]
                detail=True,
            )

    first = case.target.id if not result.base else "Two servers"
    made = table(
        f"{first}, {shown}, {case.n_predict} output tokens",
        rows,
        words("server" if result.base else "arm", lambda row: f"{'engine ' * (row.source == 'engine')}{row.name}"),
        numbers("gamma", lambda row: row.gamma or None),
        numbers("at once", at_once, detail=True),
        numbers("tok/s", lambda row: number(row.tok_s, 1)),
        numbers("client tok/s", lambda row: number(row.client_tok_s, 1), detail=True),
        *spread("first token", lambda row: row.first_token_ms),
        *spread("token", lambda row: row.token_ms),
        numbers("ratio" if result.base else "speedup", lambda row: times(row.speedup.value if row.speedup else None)),
        numbers("95 % CI", interval),
        numbers("acceptance", lambda row: percent(row.acceptance_rate)),
        numbers("of output", lambda row: percent(row.accepted_of_output), detail=True),
        numbers("MGL", lambda row: number(row.mgl), detail=True),
        numbers("rounds", lambda row: row.rounds, detail=True),
        numbers("verdict", lambda row: text(row.verdict)),
    )
    return _explained(made)


def category_table(rows: Sequence[Row]) -> Table:
    """Acceptance of every arm by kind of text."""
    kinds = dict.fromkeys(kind for row in rows for kind in row.by_category)
    drafting = [row for row in rows if row.by_category]

    def column(kind: str) -> Column[Row]:
        return numbers(kind, lambda row: percent(row.by_category.get(kind)))

    return table("Acceptance by kind of text", drafting, words("arm", lambda row: row.name), *map(column, kinds))


def settings_table(request: TuneRequest, result: TuneResult) -> Table:
    """Every setting of a search, the fastest first."""
    asked = request.setting
    made = table(
        f"{request.drafter.name} on {asked.target}, {', '.join(asked.prompts)}",
        result.settings,
        numbers("gamma", lambda s: s.gamma),
        words("options", lambda s: setting_options(s).strip() or None),
        numbers("speedup", lambda s: times(s.speedup)),
        numbers("95 % CI", lambda s: bounds(s.low, s.high)),
        numbers("blocks", lambda s: s.n_blocks, detail=True),
        numbers("acceptance", lambda s: percent(s.acceptance_rate)),
        numbers("MGL", lambda s: number(s.mgl), detail=True),
        words("decision", lambda s: s.decision),
    )
    return _explained(made)


def setting_options(setting: Setting) -> str:
    """What was set of the method."""
    return "".join(f" {name}={value}" for name, value in setting.options.items())


def prospect_table(prospects: Sequence[Prospect], level: float) -> Table:
    """Every way to decode, the fastest first; `level` of the intervals."""
    interval = f"{100 * level:.0f} % interval"

    def needed(p: Prospect) -> Cell:
        if p.gamma == 0:
            return text(None)
        return text("never") if p.break_even_alpha is None else percent(p.break_even_alpha, 0)

    made = table(
        "Predicted decoding",
        prospects,
        words("method", lambda p: f"{p.name} (measured)" if p.measured else p.name),
        numbers("gamma", lambda p: p.gamma),
        numbers("tok/s", lambda p: number(p.tok_s.value, 1)),
        numbers(interval, lambda p: bounds(p.tok_s.low, p.tok_s.high, 1, predicted=True), detail=True),
        numbers("speedup", lambda p: times(p.speedup.value)),
        numbers("speedup range", lambda p: bounds(p.speedup.low, p.speedup.high, predicted=True)),
        numbers("MGL", lambda p: text("?") if p.acceptance_assumed else number(p.mgl), detail=True),
        numbers("needs", lambda p: number(p.break_even_mgl), detail=True),
        numbers("or accept", needed, detail=True),
        numbers("decided by", lambda p: text(p.decided_by), detail=True),
        numbers("without", lambda p: times(p.without_it if p.gamma else None), detail=True),
        note="needs: the MGL at which it is as fast as plain decoding; or accept: the acceptance that gives it.",
    )
    return _explained(made)


def files_table(quants: Sequence[QuantFile]) -> Table:
    """Files of the target that could be fetched."""

    def speed(found: Interval | None) -> Cell:
        return number(None if found is None else found.value, 1)

    return table(
        "Files to fetch",
        quants,
        words("id", lambda q: q.id),
        numbers("size", lambda q: text(format_bytes(q.file_bytes))),
        numbers("fits here", lambda q: text(yes_or_no(q.fits))),
        numbers("plain, tok/s", lambda q: speed(q.off_tok_s), detail=True),
        numbers("best, tok/s", lambda q: speed(q.best.tok_s if q.best else None)),
        numbers("with", lambda q: text(q.best and f"{q.best.draft}, gamma {q.best.gamma}"), detail=True),
    )
