"""Tables of one target's arms: as a bench just measured them, as a search tried them, as advice predicts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mlsd.columns import Column, column, inside
from mlsd.records import Status
from mlsd.report.render.table import Table, formatted, table
from mlsd.report.tables.columns import RESULT, SHOWN_OF_QUESTION, TERMINAL, measured_columns, of_arms
from mlsd.trials.results import prefill_speed
from mlsd.units import counted

if TYPE_CHECKING:
    from mlsd.analysis.advise.prospects import Prospect
    from mlsd.measure.parent.tune import TuneResult
    from mlsd.records import ModelFacts
    from mlsd.servers.measure import ServerResult
    from mlsd.store.rows import Run
    from mlsd.trials.results import ArmResult


def head_line(arms: Sequence[ArmResult], run: Run, facts: Mapping[str, ModelFacts]) -> str:
    """What was measured of one target, where and how, from stored facts; what is not known is left out."""
    case, environment, plan = arms[0].case, run.environment, run.decides
    types = list(facts[case.target.key].tensor_types) if case.target.key in facts else []
    n_threads = case.engine.n_threads or (None if plan is None else plan.n_threads)
    build = environment.llama_cpp_build
    where = (
        " ".join((case.target.id, "/".join([kind for kind in types if kind != "F32"] or types))).strip(),
        " ".join(filter(None, (environment.backend, environment.device and f"({environment.device})"))),
        None if n_threads is None else counted(n_threads, "thread"),
        None if build is None else f"llama.cpp {build}",
    )
    rows = [measured for arm in arms for measured in arm.trials if measured.trial.status is not Status.FAILED]
    n_prompt = {row.case.prompt.key: row.trial.n_prompt for row in rows if row.trial.n_prompt}
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
    several = len({measured.case.prompt.key for arm in arms for measured in arm.trials}) > 1
    return table(head, arms, *of_arms("text arm" if several else "arm", text="prompt"), *measured_columns(arms))


def server_table(result: ServerResult) -> Table:
    """Arms of a server, and of the engine beside it; or two servers."""
    from mlsd.analysis.results import server_arms

    case, rivals = result.trials[0].case, bool(result.base)
    prompts = list(dict.fromkeys(measured.case.prompt.key for measured in result.trials))
    shown = ", ".join(prompts) if len(prompts) < 5 else f"{len(prompts)} prompts"

    def name(arm: ArmResult) -> str:
        engine = "engine " if arm.question.source == "engine" else ""
        return engine + server_arms.row_name(arm)

    def at_once(arm: ArmResult) -> str:
        count = arm.question.suite.rpartition("-")[2]
        return count if count.isdigit() else "1"

    def interval(arm: ArmResult) -> str | None:
        ends = formatted(arm.ratio, "2..")
        return None if ends.sort is None else f"{ends.text} ({arm.effect})"

    def verdict(arm: ArmResult) -> str:
        return server_arms.verdict_words(arm, deterministic=result.deterministic)

    return table(
        f"{'Two servers' if rivals else case.target.id}, {shown}, {case.n_predict} output tokens",
        result.results,
        column("server" if rivals else "arm", "", "the target and its server program" if rivals else "", name),
        *of_arms("gamma"),
        column("at once", "n", "requests in flight at the same time", at_once, detail=True),
        *of_arms("tok_s plain_tok_s client_tok_s"),
        *_spreads(),
        _RATIO if rivals else of_arms("times")[0],
        column("95 % CI", "n", "interval of the ratio, corrected for the number of arms", interval),
        *of_arms("acceptance_rate accepted_of_output mgl rounds"),
        *(() if rivals else (column("verdict", of=verdict),)),
    )


_RATIO = column(
    "ratio", "2x", "tok/s over the first server's in the same block; geometric mean over blocks", "ratio.value"
)


def _spreads() -> Iterator[Column]:
    """Percentiles of times over the answers of an arm."""
    from mlsd.analysis.results import server_arms

    first, each = server_arms.first_token_ms, server_arms.token_ms
    for label, meaning, of in (
        ("first token", "time from request to first output", first),
        ("token", "mean time per token after the first, per answer", each),
    ):
        for share, rank in (("p50", "median"), ("p90", "90th percentile"), ("p99", "99th percentile")):
            (shown,) = inside(of, [column(f"{label} {share}", "1 ms", f"{meaning}; {rank}", share, detail=True)])
            yield shown


def category_table(arms: Sequence[ArmResult]) -> Table:
    """Acceptance of every arm by kind of text."""
    from mlsd.analysis.results.server_arms import by_category, row_name

    def name(arm: ArmResult) -> str:
        return f"{row_name(arm)}, gamma {arm.case.gamma}" if arm.case.gamma else row_name(arm)

    drafting = [{"arm": name(arm), **rates} for arm in arms if (rates := by_category(arm))]
    kinds = dict.fromkeys(kind for row in drafting for kind in row if kind != "arm")
    by_kind = (column(kind, "1%", label=kind) for kind in kinds)
    return table("Acceptance by kind of text", drafting, column("arm"), *by_kind)


def settings_table(result: TuneResult, head: str = "") -> Table:
    """Every setting of a search, the fastest first; `head` of `head_line`."""
    failed = "; ".join(f"{name}: {why}" for name, why in result.failed.items())
    return table(
        f"{result.setting.arms[0][0].name} on {head or result.setting.target.called}",
        result.results,
        *of_arms("options n_blocks"),
        *measured_columns(result.results),
        note=f"Failed: {failed}." if failed else "",
    )


def _needed(p: Prospect) -> float | str | None:
    if p.gamma == 0:
        return None
    least = p.break_even_acceptance
    return "loses at 100 %" if least is None else "any" if least <= 0 else least


def _accepted(p: Prospect) -> str | None:
    if p.acceptances is None:
        return None
    low, high = (f"{100 * end:.0f}" for end in p.acceptances)
    return f"{low} %" if low == high else f"{low} to {high} %"


PROSPECT = (  # of a `Prospect`
    column("method", "", "plain decoding, or a method with its draft",
           lambda p: f"{p.name} (measured)" if p.effect else p.name),
    column("gamma", "n", "the most tokens proposed in a round"),
    column("tok/s", "1", "predicted", "tok_s.value"),
    column("predicted", "1..", "range of tok/s from own costs and acceptance, with the error of earlier predictions; "
           "or range that holds this share of the public rows of such a machine", "tok_s", detail=True),
    column("speedup", "2x", "of the same predictions", "speedup.value"),
    column("speedup range", "2..", "range of predicted speedup; narrower, since errors common to plain decoding cancel",
           "speedup"),
)  # fmt: skip
REQUEST = (  # of a `WholeRequest`
    column("first token s", "2", "reading the prompt", "ttft_s"),
    column("request s", "1", "the whole request", "whole_s.value"),
    column("pays from token", "n", "output tokens from which the whole request is faster", "pays_from"),
)
NEEDED = (  # of a `Prospect`
    column("accepted", "n", "of proposed tokens", _accepted),
    column("MGL", "2", "tokens a round adds", lambda p: "?" if p.acceptance_assumed else p.mgl, detail=True),
    column("needed MGL", "2", "MGL at which it would equal plain decoding", "break_even_mgl", detail=True),
    column("needed to pay", "0%", "acceptance of proposed tokens that gives this MGL", _needed),
    column("decided_by", "n", "the biggest cost: without it the speedup would rise most", detail=True),
    column("without", "2x", "that speedup", lambda p: p.without_it if p.gamma else None, detail=True),
)


def prospect_table(prospects: Sequence[Prospect], level: float, *, modelled: bool) -> Table:
    """Every way to decode, the fastest first; `level` of the intervals, which are of public rows where `modelled`."""
    interval = f"{100 * level:.0f} % {'of public rows' if modelled else 'predicted'}"
    first = (each._replace(label=interval) if each.label == "predicted" else each for each in PROSPECT)
    of_request = inside("request", REQUEST) if any(p.request is not None for p in prospects) else ()
    return table("Predicted decoding", prospects, *first, *of_request, *NEEDED)


def meanings() -> dict[str, str]:
    """What the columns mean that terminals show, by label, for the documentation."""
    of_servers = (
        column("at once", "n", "requests in flight at the same time"),
        column("server", "", "the target and its server program"),
        *_spreads(),
        _RATIO,
    )
    by_label: dict[str, str] = {}
    for shown in (*of_arms(f"{SHOWN_OF_QUESTION} {RESULT} {TERMINAL}"), *PROSPECT, *NEEDED, *of_servers):
        by_label.setdefault(shown.label, shown.meaning)
    return by_label
