"""Tables of one target's arms: as a bench just measured them, as a search tried them, as advice predicts them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from mlsd.measure.store import sessions
from mlsd.report.render.table import Cell, Column, Table, number, numbers, percent, table, text, words
from mlsd.report.tables.catalogue import yes_or_no
from mlsd.stats import Interval, Percentiles
from mlsd.trials.sums import PART_NAMES, prefill_tok_s
from mlsd.units import counted, format_bytes

if TYPE_CHECKING:
    from mlsd.analysis.advise.answer import QuantFile
    from mlsd.analysis.advise.prospects import Prospect
    from mlsd.measure.run.tune import TuneRequest, TuneResult
    from mlsd.measure.store.rows import Run
    from mlsd.records import ModelFacts
    from mlsd.servers.measure import ServerResult
    from mlsd.trials.results import ArmResult

_OF = {"p50": "median", "p90": "90th percentile", "p99": "99th percentile"}
MEANINGS = {  # of the columns below; the documentation shows them
    "prompt": "a shipped prompt or a text file",
    "arm": "plain decoding, or a method with its draft and options",
    "method": "plain decoding, or a method with its draft",
    "gamma": "the most tokens proposed in a round",
    "at once": "requests in flight at the same time",
    "tok/s": "tokens after the first, over the time from first to last; geometric mean over blocks",
    "client tok/s": "tok/s by the client's clock, where a server has its own",
    "server": "the target and its server program",
    **{f"first token {share}": f"time from request to first output; {of}" for share, of in _OF.items()},
    **{f"token {share}": f"mean time per token after the first, per answer; {of}" for share, of in _OF.items()},
    "ratio": "tok/s over the first server's in the same block; geometric mean over blocks",
    "of output": "accepted over output tokens, as mlx_lm counts",
    "spread": "of tok/s over blocks: half the range, over the median",
    "speedup": "tok/s over plain decoding's in the same block, same prompt and length; geometric mean over blocks",
    "CI": "interval of the speedup; one containing 1 is inconclusive",
    "interval": "range of predicted tok/s",
    "speedup range": "range of predicted speedup; narrower, since errors common to plain decoding cancel",
    "decision": "faster, slower, no difference, undecided, or why the arm left the race",
    "acceptance": "accepted over proposed tokens",
    "MGL": "tokens added to the output per round, including the target's own",
    "rounds": "rounds by the server's count",
    "ms/round": "mean time of a round; the next five columns add up to it",
    "plain tok/s": "tok/s of plain decoding in the same blocks; speedup is tok/s over this",
    "break-even MGL": "MGL at which it would equal plain decoding: MGL over speedup",
    "draft": "ms per round: proposing",
    "verify": "ms per round: the target's pass over the proposed tokens plus one",
    "rollback": "ms per round: rolling back rejected tokens",
    "sample": "ms per round: reading the target's tokens and accepting",
    "other": "ms per round: everything else",
    "verdict": "lossless, near_tie or diverged, compared with plain decoding; INVALID if a trial must not be used",
    "options": "options of the method",
    "blocks": "blocks in which the arm was measured",
    "needs": "MGL at which it would equal plain decoding",
    "or accept": "acceptance that gives this MGL",
    "decided by": "the biggest cost: without it the speedup would rise most",
    "without": "that speedup",
}


def _explained(made: Table) -> Table:
    """The table with the meaning of every column."""
    heads = [structs.replace(head, trace=MEANINGS[head.label.rpartition("% ")[2]]) for head in made.heads]
    return structs.replace(made, heads=tuple(heads))


def bounds(low: float | None, high: float | None, digits: int = 2, *, predicted: bool = False) -> Cell:
    """An interval without its middle; no repeats narrow a predicted one."""
    if low is not None and high is not None and Interval(value=low, low=low, high=high).too_wide and not predicted:
        return text("too few repeats", "doubt")
    return text(None if low is None or high is None else f"{low:.{digits}f} .. {high:.{digits}f}")


def times(ratio: float | None) -> Cell:
    """A speedup."""
    return text(None if ratio is None else f"{ratio:.2f}x")


def head_line(arms: Sequence[ArmResult], run: Run, facts: Mapping[str, ModelFacts]) -> str:
    """What was measured of one target, where and how, from stored facts; what is not known is left out."""
    case, place, plan = arms[0].case, run.environment, sessions.stored(run)
    types = list(facts[case.target.key].tensor_types) if case.target.key in facts else []
    n_threads = case.engine.n_threads or (None if plan is None else plan.n_threads)
    build = place.llama_cpp_build
    where = (
        " ".join((case.target.id, "/".join([kind for kind in types if kind != "F32"] or types))).strip(),
        " ".join(filter(None, (place.backend, place.device and f"({place.device})"))),
        None if n_threads is None else counted(n_threads, "thread"),
        None if build is None else f"llama.cpp {build}",
    )
    rows = [one for arm in arms for one in arm.trials if one.trial.status == "ok"]
    n_prompt = {one.case.prompt.key: one.trial.n_prompt for one in rows if one.trial.n_prompt}
    few, many = min(n_prompt.values(), default=0), max(n_prompt.values(), default=0)
    key = next(iter(n_prompt)) if len(n_prompt) == 1 else ""
    prompts = f"prompt {key}" if key else counted(len(n_prompt), "prompt")
    fills = [rate for one in rows if one.trial.valid and (rate := prefill_tok_s(one.trial)) is not None]
    what = (
        f"{prompts} ({few if few == many else f'{few} to {many}'} tokens)" if n_prompt else None,
        f"{' or '.join(dict.fromkeys(str(arm.question.n_predict) for arm in arms))} output tokens",
        f"prefill {statistics.median(fills):.0f} tok/s" if fills else None,
    )
    return f"{', '.join(filter(None, where))}: {', '.join(filter(None, what))}"


def bench_table(arms: Sequence[ArmResult], head: str = "") -> Table:
    """Plain decoding and every method measured beside it; `head` of `head_line`."""
    several = len({one.case.prompt.key for arm in arms for one in arm.trials}) > 1
    prompt: Column[ArmResult] = words("prompt", lambda a: a.text)
    columns = (*((prompt,) if several else ()), words("arm", lambda a: a.arm.name), *arm_columns(arms))
    return _explained(table(head, arms, *columns))


def arm_columns(arms: Sequence[ArmResult]) -> tuple[Column[ArmResult], ...]:
    """What every table of arms says of one, beside its name."""
    decision: Column[ArmResult] = words("decision", lambda a: a.decision)
    return (
        numbers("gamma", lambda a: a.case.gamma or None),
        numbers("tok/s", lambda a: number(a.tok_s, 1)),
        numbers("plain tok/s", lambda a: number(a.plain_tok_s, 1), detail=True),
        numbers("spread", lambda a: percent(a.spread), detail=True),
        numbers("speedup", lambda a: times(a.ratio.value if a.ratio else None)),
        numbers("95 % CI", lambda a: bounds(a.ratio.low, a.ratio.high) if a.ratio else None),
        *((decision,) if any(a.decision for a in arms) else ()),
        numbers("acceptance", lambda a: percent(a.acceptance_rate)),
        numbers("of output", lambda a: percent(a.accepted_of_output), detail=True),
        numbers("MGL", lambda a: number(a.mgl), detail=True),
        numbers("break-even MGL", lambda a: number(a.break_even_mgl), detail=True),
        numbers("ms/round", lambda a: number(sum(a.ms_per_round.values()) or None), detail=True),
        *map(_part_column, PART_NAMES),
        words("verdict", lambda a: "INVALID" if a.wrong else a.verdict),
    )


def _part_column(part: str) -> Column[ArmResult]:
    return numbers(part, lambda a: number(a.ms_per_round.get(part)), detail=True)


def server_table(result: ServerResult) -> Table:
    """Arms of a server, and of the engine beside it; or two servers."""
    from mlsd.analysis.results import server_arms

    case, rivals = result.trials[0].case, bool(result.base)
    prompts = list(dict.fromkeys(one.case.prompt.key for one in result.trials))
    shown = ", ".join(prompts) if len(prompts) < 5 else f"{len(prompts)} prompts"

    def at_once(arm: ArmResult) -> Cell:
        count = arm.question.suite.rpartition("-")[2]
        return text(count if count.isdigit() else "1")

    def interval(arm: ArmResult) -> Cell:
        known = None if arm.ratio is None else bounds(arm.ratio.low, arm.ratio.high)
        return text(known.text + f" ({arm.effect})" if known is not None and known.sort is not None else None)

    def spread(name: str, of: Callable[[ArmResult], Percentiles | None]) -> Iterator[Column[ArmResult]]:
        for share in ("p50", "p90", "p99"):
            yield numbers(
                f"{name} {share}",
                lambda arm, share=share: number(getattr(of(arm), share, None), 1, " ms"),  # type: ignore[misc]
                detail=True,
            )

    made = table(
        f"{'Two servers' if rivals else case.target.id}, {shown}, {case.n_predict} output tokens",
        result.results,
        words(
            "server" if rivals else "arm",
            lambda a: f"{'engine ' * (a.question.source == 'engine')}{server_arms.row_name(a)}",
        ),
        numbers("gamma", lambda a: a.case.gamma or None),
        numbers("at once", at_once, detail=True),
        numbers("tok/s", lambda a: number(a.tok_s, 1)),
        numbers("plain tok/s", lambda a: number(a.plain_tok_s, 1), detail=True),
        numbers("client tok/s", lambda a: number(a.client_tok_s, 1), detail=True),
        *spread("first token", server_arms.first_token_ms),
        *spread("token", server_arms.token_ms),
        numbers("ratio" if rivals else "speedup", lambda a: times(a.ratio.value if a.ratio else None)),
        numbers("95 % CI", interval),
        numbers("acceptance", lambda a: percent(a.acceptance_rate)),
        numbers("of output", lambda a: percent(a.accepted_of_output), detail=True),
        numbers("MGL", lambda a: number(a.mgl), detail=True),
        numbers("rounds", lambda a: a.whole.rounds or None, detail=True),
        words(
            "verdict",
            lambda a: server_arms.verdict_words(a, deterministic=result.deterministic, rivals=rivals),
        ),
    )
    return _explained(made)


def category_table(arms: Sequence[ArmResult]) -> Table:
    """Acceptance of every arm by kind of text."""
    from mlsd.analysis.results.server_arms import by_category, row_name

    drafting = [(arm, rates) for arm in arms if (rates := by_category(arm))]

    def column(kind: str) -> Column[tuple[ArmResult, dict[str, float]]]:
        return numbers(kind, lambda row: percent(row[1].get(kind)))

    kinds = dict.fromkeys(kind for _, rates in drafting for kind in rates)
    return table(
        "Acceptance by kind of text", drafting, words("arm", lambda row: row_name(row[0])), *map(column, kinds)
    )


def settings_table(request: TuneRequest, result: TuneResult, head: str = "") -> Table:
    """Every setting of a search, the fastest first; `head` of `head_line`."""
    failed = "; ".join(f"{name}: {why}" for name, why in result.failed.items())
    made = table(
        f"{request.drafter.name} on {head or request.setting.target}",
        result.results,
        words("options", lambda a: setting_options(a) or None),
        numbers("blocks", lambda a: a.n_blocks, detail=True),
        *arm_columns(result.results),
    )
    return structs.replace(_explained(made), note=f"Failed: {failed}." if failed else "")


def setting_options(arm: ArmResult) -> str:
    """What was set of the method."""
    return " ".join(f"{name}={value}" for name, value in arm.case.drafter.options.items())


def prospect_table(prospects: Sequence[Prospect], level: float) -> Table:
    """Every way to decode, the fastest first; `level` of the intervals."""
    interval = f"{100 * level:.0f} % interval"

    def needed(p: Prospect) -> Cell:
        if p.gamma == 0:
            return text(None)
        return text("never") if p.break_even_acceptance is None else percent(p.break_even_acceptance, 0)

    made = table(
        "Predicted decoding",
        prospects,
        words("method", lambda p: f"{p.name} (measured)" if p.effect else p.name),
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
