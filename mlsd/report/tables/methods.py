"""The tables that compare drafting methods on tasks, and of where time goes: of a round, inside a pass."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mlsd.analysis.results.round_split import RoundSplit, round_split
from mlsd.analysis.study.machine_findings import part_key
from mlsd.analysis.study.study import Study
from mlsd.columns import Column, column, columns
from mlsd.engine.parts import PARTS, Part
from mlsd.errors import AnalysisError
from mlsd.planning.prompts import KINDS, TASK_KEY
from mlsd.records import Case
from mlsd.report.render.table import Cell, Table, table
from mlsd.report.tables.columns import of_arms, of_their_arms
from mlsd.stats import Interval, grouped
from mlsd.store.rows import PassShares
from mlsd.trials.arms import arm_named, arm_of
from mlsd.trials.rates import PART_NAMES
from mlsd.trials.results import ArmResult
from mlsd.units import quoted

_LABELS: dict[str, str] = {"head": "LM head", "ffn": "FFN"}


def share_cell(shares: PassShares | None, part: Part) -> Cell | float | None:
    """One part's share of a network that has it; marked where the pass was changed too much by the looking."""
    share = None if shares is None else shares.shares[part]
    if shares is None or share is None or not shares.in_doubt:
        return share
    return Cell(text=f"{100 * share:.1f} % ?", sort=100 * share, tone="caution")


def pass_table(study: Study) -> Table:
    """Shares of every profiled pass. Raises AnalysisError when none was."""
    profiled = [(_network(study, *key), shares) for key, passes in study.machine.shares.items() for shares in passes]
    if not profiled:
        raise AnalysisError(
            "No pass was profiled, so shares of LM head, attention and experts are not known.",
            hint=f"Profile some: mlsd calibrate parts TARGET --drafter NAME --db {quoted(study.source)}.",
        )
    return shares_table(profiled)


def shares_table(profiled: Sequence[tuple[str, PassShares]]) -> Table:
    """Shares of profiled passes, each of a network by name."""

    def share(part: Part) -> Column:
        meaning = "parts_ns / sum of parts_ns of profiled passes"
        return column(part, "1%", meaning, lambda row: share_cell(row[1], part), _LABELS.get(part, part))

    return table(
        "Where the time of a pass goes (profiled, no speeds)",
        profiled,
        *columns("network=0; rows:n=1.rows; depth:n=1.depth"),
        column("T ms", "ms", "the fastest plain pass", "1.plain_ns"),
        *(share(part) for part in PARTS if any(part in shares.parts_ns for _, shares in profiled)),
        column("no outputs", "1%", "(T(k) - T(k without outputs)) / T(k): LM head and sampling a second way",
               "1.head_by_difference"),
        column("parts / T", "2", "sum of the profiled parts over a plain pass", "1.agreement"),
        column("profiled / T", "2", "profiled over plain pass", "1.inflation"),
        id="pass-shares",
    )  # fmt: skip


def _network(study: Study, key: str, part: str | None) -> str:
    name = study.machine.name_of(key)
    if part is None:
        return name
    cases = (case for case in study.cases.values() if case.drafter.draft is None and case.source == "engine")
    drafter = next((case.drafter.name for case in cases if part_key(case.drafter) == part), None)
    return f"{name}, draft [{part[:12]}]" if drafter is None else f"{name}, draft of {arm_named(drafter).name}"


def round_table(case: Case, split: RoundSplit) -> Table:
    """The parts of a method's rounds and what is known inside them, over all rounds and by what a look-up gave."""
    kinds = {"with a proposal": split.with_proposal, "without": split.without_proposal}
    of_kinds = {label: {"rounds": kind.rounds, **kind.ms} for label, kind in kinds.items() if kind is not None}
    ms = {"rounds": split.rounds, "round": sum(split.ms_per_round.values())}
    for part, part_ms in split.ms_per_round.items():
        ms |= {part: part_ms, **split.inside_ms.get(part, {})}
    names = dict.fromkeys([*ms, *(name for kind in of_kinds.values() for name in kind)])
    return table(
        f"{arm_of(case).setting}: a round",
        names,
        column("part, ms", of=lambda name: name),
        column("all", "3", "", ms.get),
        column("share", "1%", "", lambda name: ms[name] / ms["round"] if name in ms and name != "rounds" else None),
        *(column(label, "3", "", kind.get) for label, kind in of_kinds.items()),
    )


# --- methods by task: the tables of the small-model study (seed 004, tables 4, 6 and 7) for any models ---------------


class MethodRow(NamedTuple):
    """One method on one target, over all tasks and on each kind."""

    overall: ArmResult
    by_kind: dict[str, ArmResult]  # kinds that were measured


def tasks(results: Iterable[ArmResult]) -> list[ArmResult]:
    """The arms whose prompts are all tasks, shipped or of a file. Raises: AnalysisError when there is none."""
    arms = [arm for arm in results if set(arm.workloads) <= set(KINDS) or arm.prompts[0].startswith(TASK_KEY)]
    if not arms:
        raise AnalysisError("No tasks were measured.", hint="Measure them: mlsd run E.")
    return arms


def methods_by_kind(study: Study) -> list[MethodRow]:
    """Every method over all tasks, and on each kind of task. Raises: AnalysisError without tasks."""

    def method(arm: ArmResult) -> tuple[Any, ...]:
        return arm.question.suite, arm.question.target, arm.arm, arm.question.n_predict, arm.session

    by_kind = {key: {arm.text: arm for arm in arms} for key, arms in grouped(tasks(study.results), method).items()}
    overall = [arm for arm in tasks(study.pooled) if not arm.is_plain]
    if not overall:
        raise AnalysisError("No drafting method was measured on tasks.", hint="Measure them: mlsd run E.")
    return [MethodRow(arm, by_kind.get(method(arm), {})) for arm in overall]


def kind_table(study: Study, name: str) -> Table:
    """Speedup, MGL or acceptance (a column of an arm) of each method on each kind of task."""
    rows = methods_by_kind(study)
    (shown,) = of_arms(name)
    label = shown.label.removesuffix(" [95 % CI]")
    by_kind = [
        shown._replace(label=kind.replace("_", " "), get=partial(_of_kind, shown, kind)) for kind in kinds_of(rows)
    ]
    return table(
        f"{label[0].upper()}{label[1:]} of each method by task",
        rows,
        *of_their_arms("overall", "target"),
        column("method", of=lambda row: _method(row.overall)),
        *of_their_arms("overall", f"gamma {name}", **{name: "all tasks"}),
        *by_kind,
        id=f"methods-{label.lower()}",
    )


def _of_kind(shown: Column, kind: str, row: MethodRow) -> Any:
    return shown.get(row.by_kind[kind]) if kind in row.by_kind else None


def kinds_of(rows: Iterable[MethodRow]) -> tuple[str, ...]:
    """The six kinds; those that were measured, where they are of another set."""
    measured = {kind for row in rows for kind in row.by_kind}
    others = sorted(measured - set(KINDS))
    return (*(kind for kind in KINDS if kind in measured), *others) if others else KINDS


def _method(arm: ArmResult) -> str:
    """The method, with what its trials really measured where that is something else."""
    return f"{arm.arm.name}{'' if arm.timed else ', not timed'}{'' if arm.fell_back is None else ', not sync'}"


def timing_table(study: Study) -> Table:
    """Mean time of a round by part, and what is known inside the parts; of trials whose times are the method's."""
    timed = [
        (arm, [row for row in arm.trials if row.trial.valid and row.trial.decode_ns and row.whole.rounds])
        for arm in tasks(study.pooled)
        if not arm.is_plain
    ]

    def parts_inside(row: tuple[ArmResult, RoundSplit]) -> str | None:
        return ", ".join(f"{name} {ms:.2f}" for part in row[1].inside_ms.values() for name, ms in part.items()) or None

    return table(
        "Where the time of a round goes",
        [(arm, round_split(trials)) for arm, trials in timed if trials],
        *of_their_arms("0", "target"),
        column("method", of=lambda row: _method(row[0])),
        *of_their_arms("0", "gamma"),
        *columns("rounds:n=1.rounds*"),
        column("ms/round", "2", "the sum of its parts", lambda row: sum(row[1].ms_per_round.values()), detail=True),
        *(column(name, "2", "ms per round", f"1.ms_per_round.{name}", detail=True) for name in PART_NAMES),
        *of_their_arms("0", "mgl break_even_mgl"),
        column("of it, ms a round", "", "Trial.stats, and what is left of rollback", parts_inside),
        column("LM head of a draft step", "1%", "mlsd calibrate parts: its share of a profiled pass, no speed",
               lambda row: share_cell(study.machine.draft_step(row[0].case), "head")),
        id="methods-timing",
    )  # fmt: skip


def distance_table(study: Study) -> Table:
    """What predicts acceptance without drafting, beside what was accepted; the nearest to its target first.

    Raises: AnalysisError when no method with a drafting model of its own was compared.
    """
    compared = [
        (
            arm,
            distance,
            Interval(value=distance.ratio, low=distance.ratio_low, high=distance.ratio_high, n=distance.n_tokens),
        )
        for arm in study.pooled
        if arm.n_valid and not arm.is_plain and (distance := study.distances.get(arm.trials[0].trial.case_id))
    ]
    if not compared:
        raise AnalysisError("No model that drafts was compared with its target.",
                            hint="Compare them: mlsd run E --distances.")  # fmt: skip
    return table(
        "What predicts acceptance: the drafting model against its target",
        sorted(compared, key=lambda row: (row[0].case.target.id, row[1].ratio)),
        *of_their_arms("0", "target arm gamma text"),
        column("perplexity ratio", "[2]", "draft / target on one text", "2"),
        column("total variation", "3", "mean over positions of half the sum of |p - q|", "1.total_variation"),
        *columns("same likeliest token:1%=1.agreement"),
        *of_their_arms("0", "acceptance_rate"),
        id="methods-distance",
    )


METHOD_TABLES: list[Callable[[Study], Table]] = [
    *(partial(kind_table, name=name) for name in ("speedup", "mgl", "acceptance_rate")),
    *(distance_table, timing_table, pass_table),
]
