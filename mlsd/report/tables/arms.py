"""Tables of one target's arms: as a bench just measured them, as a search tried them, as advice predicts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from mlsd.records import Status
from mlsd.report.render.table import Cell, Column, Table, number, numbers, percent, table, text, through, words
from mlsd.report.tables.columns import ARM, bounds, measured_columns, of_arms, times
from mlsd.stats import Percentiles
from mlsd.trials.results import prefill_speed
from mlsd.units import counted

if TYPE_CHECKING:
    from mlsd.analysis.advise.prospects import Prospect, WholeRequest
    from mlsd.measure.parent.tune import TuneRequest, TuneResult
    from mlsd.records import ModelFacts
    from mlsd.servers.measure import ServerResult
    from mlsd.store.rows import Run
    from mlsd.trials.results import ArmResult

_OF = {"p50": "median", "p90": "90th percentile", "p99": "99th percentile"}
MEANINGS = {  # of the columns that terminals show; the documentation has them
    **{label: head.trace for label, (head, _) in ARM.items()},
    "method": "plain decoding, or a method with its draft",
    "at once": "requests in flight at the same time",
    "server": "the target and its server program",
    **{f"first token {share}": f"time from request to first output; {of}" for share, of in _OF.items()},
    **{f"token {share}": f"mean time per token after the first, per answer; {of}" for share, of in _OF.items()},
    "ratio": "tok/s over the first server's in the same block; geometric mean over blocks",
    "predicted": "range of tok/s from own costs and acceptance, with the error of earlier predictions",
    "of public rows": "range that holds this share of the public rows of such a machine",
    "speedup range": "range of predicted speedup; narrower, since errors common to plain decoding cancel",
    "needed MGL": "MGL at which it would equal plain decoding",
    "needed acceptance": "acceptance that gives this MGL",
    "decided by": "the biggest cost: without it the speedup would rise most",
    "without": "that speedup",
}


def head_line(arms: Sequence[ArmResult], run: Run, facts: Mapping[str, ModelFacts]) -> str:
    """What was measured of one target, where and how, from stored facts; what is not known is left out."""
    case, place, plan = arms[0].case, run.environment, run.decides
    types = list(facts[case.target.key].tensor_types) if case.target.key in facts else []
    n_threads = case.engine.n_threads or (None if plan is None else plan.n_threads)
    build = place.llama_cpp_build
    where = (
        " ".join((case.target.id, "/".join([kind for kind in types if kind != "F32"] or types))).strip(),
        " ".join(filter(None, (place.backend, place.device and f"({place.device})"))),
        None if n_threads is None else counted(n_threads, "thread"),
        None if build is None else f"llama.cpp {build}",
    )
    rows = [one for arm in arms for one in arm.trials if one.trial.status is not Status.FAILED]
    n_prompt = {one.case.prompt.key: one.trial.n_prompt for one in rows if one.trial.n_prompt}
    few, many = min(n_prompt.values(), default=0), max(n_prompt.values(), default=0)
    key = next(iter(n_prompt)) if len(n_prompt) == 1 else ""
    prompts = f"prompt {key}" if key else counted(len(n_prompt), "prompt")
    prefill = prefill_speed(rows)
    what = (
        f"{prompts} ({few if few == many else f'{few} to {many}'} tokens)" if n_prompt else None,
        f"{' or '.join(dict.fromkeys(str(arm.question.n_predict) for arm in arms))} output tokens",
        None if prefill is None else f"prefill {prefill:.0f} tok/s",
    )
    return f"{', '.join(filter(None, where))}: {', '.join(filter(None, what))}"


def bench_table(arms: Sequence[ArmResult], head: str = "") -> Table:
    """Plain decoding and every method measured beside it; `head` of `head_line`."""
    several = len({one.case.prompt.key for arm in arms for one in arm.trials}) > 1
    return table(head, arms, *of_arms(*(("prompt",) if several else ()), "arm"), *measured_columns(arms))


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

    def spread(name: str, of: Callable[[ArmResult], Percentiles | None], share: str) -> Column[ArmResult]:
        return numbers(f"{name} {share}", lambda arm: number(getattr(of(arm), share, None), 1, " ms"), detail=True)

    def verdict(arm: ArmResult) -> str:
        return server_arms.verdict_words(arm, deterministic=result.deterministic)

    return table(
        f"{'Two servers' if rivals else case.target.id}, {shown}, {case.n_predict} output tokens",
        result.results,
        words(
            "server" if rivals else "arm",
            lambda a: f"{'engine ' * (a.question.source == 'engine')}{server_arms.row_name(a)}",
        ),
        *of_arms("gamma"),
        numbers("at once", at_once, detail=True),
        *of_arms("tok/s", "plain tok/s", "client tok/s"),
        *(spread("first token", server_arms.first_token_ms, share) for share in _OF),
        *(spread("token", server_arms.token_ms, share) for share in _OF),
        numbers("ratio" if rivals else "speedup", lambda a: times(a.ratio.value if a.ratio else None)),
        numbers("95 % CI", interval),
        *of_arms("acceptance", "of output", "MGL", "rounds"),
        *(() if rivals else (words("verdict", verdict),)),
    )


def category_table(arms: Sequence[ArmResult]) -> Table:
    """Acceptance of every arm by kind of text."""
    from mlsd.analysis.results.server_arms import by_category, row_name

    drafting = [(arm, rates) for arm in arms if (rates := by_category(arm))]

    def column(kind: str) -> Column[tuple[ArmResult, dict[str, float]]]:
        return numbers(kind, lambda row: percent(row[1].get(kind)))

    def name(row: tuple[ArmResult, dict[str, float]]) -> str:
        gamma = row[0].case.gamma
        return f"{row_name(row[0])}, gamma {gamma}" if gamma else row_name(row[0])

    kinds = dict.fromkeys(kind for _, rates in drafting for kind in rates)
    return table("Acceptance by kind of text", drafting, words("arm", name), *map(column, kinds))


def settings_table(request: TuneRequest, result: TuneResult, head: str = "") -> Table:
    """Every setting of a search, the fastest first; `head` of `head_line`."""
    failed = "; ".join(f"{name}: {why}" for name, why in result.failed.items())
    return table(
        f"{request.drafter.name} on {head or request.setting.target.called}",
        result.results,
        *of_arms("options", "blocks"),
        *measured_columns(result.results),
        note=f"Failed: {failed}." if failed else "",
    )


def prospect_table(prospects: Sequence[Prospect], level: float, *, modelled: bool) -> Table:
    """Every way to decode, the fastest first; `level` of the intervals, which are of public rows where `modelled`."""
    interval = f"{100 * level:.0f} % {'of public rows' if modelled else 'predicted'}"

    def needed(p: Prospect) -> Cell:
        if p.gamma == 0:
            return text(None)
        found = p.break_even_acceptance
        return text("loses at 100 %") if found is None else text("any") if found <= 0 else percent(found, 0)

    def accepted(p: Prospect) -> Cell:
        if p.acceptances is None:
            return text(None)
        low, high = (100 * end for end in p.acceptances)
        return text(f"{low:.0f} %" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f} %")

    of_request: tuple[Column[WholeRequest], ...] = (
        numbers("first token s", lambda r: number(r.ttft_s)),
        numbers("request s", lambda r: number(None if r.whole_s is None else r.whole_s.value, 1)),
        numbers("pays from token", lambda r: r.pays_from),
    )
    return table(
        "Predicted decoding",
        prospects,
        words("method", lambda p: f"{p.name} (measured)" if p.effect else p.name),
        numbers("gamma", lambda p: p.gamma),
        numbers("tok/s", lambda p: number(p.tok_s.value, 1)),
        numbers(interval, lambda p: bounds(p.tok_s.low, p.tok_s.high, 1), detail=True),
        numbers("speedup", lambda p: times(p.speedup.value)),
        numbers("speedup range", lambda p: bounds(p.speedup.low, p.speedup.high)),
        *(through(attrgetter("request"), of_request) if any(p.request is not None for p in prospects) else ()),
        numbers("accepted", accepted, "of proposed tokens"),
        numbers("MGL", lambda p: text("?") if p.acceptance_assumed else number(p.mgl), detail=True),
        numbers("needed MGL", lambda p: number(p.break_even_mgl), detail=True),
        numbers("needed to pay", needed, "accepted of proposed tokens"),
        numbers("decided by", lambda p: text(p.decided_by), detail=True),
        numbers("without", lambda p: times(p.without_it if p.gamma else None), detail=True),
    )
