"""The tables that compare drafting methods on tasks, and of where time goes: of a round, inside a pass."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mlsd.analysis.results.round_split import RoundSplit, round_split
from mlsd.analysis.study.machine_findings import part_key
from mlsd.analysis.study.study import Study
from mlsd.columns import Column, column, inside
from mlsd.engine.parts import PARTS, Part
from mlsd.errors import AnalysisError
from mlsd.planning.prompts import KINDS, TASK_KEY
from mlsd.records import Case
from mlsd.report.render.table import Cell, Table, number, table, text
from mlsd.report.tables.columns import of_arms, of_their_arms
from mlsd.stats import Interval, grouped
from mlsd.store.rows import PassShares
from mlsd.trials.arms import arm_named, arm_of
from mlsd.trials.rates import PART_NAMES
from mlsd.trials.results import ArmResult
from mlsd.units import quoted

_LABELS: dict[str, str] = {"head": "LM head", "ffn": "FFN"}
_DOUBT = "in doubt: looking, or other programs, changed the pass too much"


def share_cell(shares: PassShares | None, part: Part) -> Cell:
    """One part's share; marked where the pass was changed too much by the looking."""
    if shares is None:
        return text(None, note="not profiled: mlsd calibrate parts")
    share = shares.shares[part]
    if share is None:
        return text(None, note="the network has no such part")
    value = 100 * share
    if shares.in_doubt:
        return Cell(text=f"{value:.1f} % ?", sort=value, tone="caution", note=_DOUBT)
    return Cell(text=f"{value:.1f} %", sort=value)


def pass_table(study: Study) -> Table:
    """Shares of every profiled pass. Raises AnalysisError when none was."""
    profiled = [(*network, one) for network, found in study.machine.shares.items() for one in found]
    if not profiled:
        raise AnalysisError(
            "No pass was profiled, so shares of LM head, attention and experts are not known.",
            hint=f"Profile some: mlsd calibrate parts TARGET --drafter NAME --db {quoted(study.source)}.",
        )
    return shares_table([(_network(study, key, part), one) for key, part, one in profiled])


def shares_table(profiled: Sequence[tuple[str, PassShares]]) -> Table:
    """Shares of profiled passes, each of a network by name."""

    def share(part: Part) -> Column:
        trace = "parts_ns / sum of parts_ns of profiled passes"
        return column(part, "1%", trace, lambda row: share_cell(row[1], part), _LABELS.get(part, part))

    return table(
        "Where the time of a pass goes (profiled, no speeds)",
        profiled,
        column("network", of="0"),
        column("rows", "n", "positions of the pass, each with an output", "1.rows"),
        column("depth", "n", "positions in the context before it", "1.depth"),
        column("T ms", "3", "the fastest plain pass", lambda row: row[1].plain_ns / 1e6),
        *(share(part) for part in PARTS if any(part in one.parts_ns for _, one in profiled)),
        column("no outputs", "1%", "(T(k) - T(k without outputs)) / T(k): LM head and sampling a second way",
               "1.head_by_difference"),
        column("parts / T", "2", "sum of the profiled parts over a plain pass", "1.agreement"),
        column("profiled / T", "2", "profiled over plain pass", "1.inflation"),
        id="pass-shares",
    )  # fmt: skip


def _network(study: Study, key: str, part: str | None) -> str:
    own = study.machine.name_of(key)
    if part is None:
        return own
    for case in study.cases.values():
        itself = case.drafter.draft is None and case.source == "engine"
        if itself and part_key(case.drafter) == part:
            return f"{own}, draft of {arm_named(case.drafter.name).name}"
    return f"{own}, draft [{part[:12]}]"


def round_table(case: Case, split: RoundSplit) -> Table:
    """The parts of a method's rounds, and what is known inside them."""
    total = sum(split.ms_per_round.values())
    rows: list[tuple[str, float]] = []
    for part, ms in split.ms_per_round.items():
        rows.append((part, ms))
        rows += [(f"  {inside}", own_ms) for inside, own_ms in split.inside_ms.get(part, {}).items()]
    return table(
        arm_of(case).setting,
        rows,
        column("part of a round", of="0"),
        column("ms a round", "3", "", "1"),
        column("share", "1%", "", lambda row: row[1] / total if total else None),
    )


def kinds_table(split: RoundSplit) -> Table:
    """Rounds with a proposal beside rounds without."""
    kinds = {"with a proposal": split.found, "without": split.not_found}
    names = dict.fromkeys(["rounds", *(name for kind in kinds.values() if kind is not None for name in kind.ms)])

    def of_kind(label: str) -> Column:
        kind = kinds[label]
        ms = {} if kind is None else kind.ms
        n_rounds = 0 if kind is None else kind.rounds
        return column(label, "3", "", lambda name: number(n_rounds, 0) if name == "rounds" else ms.get(name))

    return table("Rounds, ms", names, column("name", "", "", lambda name: name, ""), *map(of_kind, kinds))


# --- methods by task: the tables of the small-model study (seed 004, tables 4, 6 and 7) for any models ---------------


class MethodRow(NamedTuple):
    """One method on one target, over all tasks and on each kind."""

    overall: ArmResult
    by_kind: dict[str, ArmResult]  # kinds that were measured


def tasks(results: Iterable[ArmResult]) -> list[ArmResult]:
    """The arms whose prompts are all tasks, shipped or of a file. Raises: AnalysisError when there is none."""
    own = [one for one in results if set(one.workloads) <= set(KINDS) or one.prompts[0].startswith(TASK_KEY)]
    if not own:
        raise AnalysisError("No tasks were measured.", hint="Measure them: mlsd run E.")
    return own


def methods_by_kind(study: Study) -> list[MethodRow]:
    """Every method over all tasks, and on each kind of task. Raises: AnalysisError without tasks."""

    def method(one: ArmResult) -> tuple[Any, ...]:
        return one.question.suite, one.question.target, one.arm, one.question.n_predict, one.session

    by_kind = {key: {one.text: one for one in own} for key, own in grouped(tasks(study.results), method).items()}
    own = [one for one in tasks(study.pooled) if not one.is_plain]
    if not own:
        raise AnalysisError("No drafting method was measured on tasks.", hint="Measure them: mlsd run E.")
    return [MethodRow(one, by_kind.get(method(one), {})) for one in own]


def kind_table(study: Study, name: str) -> Table:
    """Speedup, MGL or acceptance (a column of an arm) of each method on each kind of task."""
    rows = methods_by_kind(study)
    (shown,) = of_arms(name)
    label = shown.label.removesuffix(" [95 % CI]")
    by_kind = (
        inside(lambda row, kind=kind: row.by_kind.get(kind), [shown._replace(label=kind.replace("_", " "))])  # type: ignore[misc]
        for kind in kinds_of(rows)
    )
    return table(
        f"{label[0].upper()}{label[1:]} of each method by task",
        rows,
        *of_their_arms("overall", "target"),
        column("method", of=lambda row: _method_cell(row.overall)),
        *of_their_arms("overall", "gamma"),
        *of_their_arms("overall", name, **{name: "all tasks"}),
        *(of_kind for (of_kind,) in by_kind),
        id=f"methods-{label.lower()}",
        interactive=True,
    )


def kinds_of(rows: Iterable[MethodRow]) -> tuple[str, ...]:
    """The six kinds; those that were measured, where they are of another set."""
    found = {kind for row in rows for kind in row.by_kind}
    of_others = tuple(sorted(found - set(KINDS)))
    return (*(kind for kind in KINDS if kind in found), *of_others) if of_others else KINDS


def _method_cell(arm: ArmResult) -> Cell:
    """The method, with what its trials really measured where that is something else."""
    if not arm.timed:
        why = "it drafted inside the target: its times are not the method's"
        return text(f"{arm.arm.name}, not timed", "caution", why)
    if arm.fell_back is not None:
        return text(f"{arm.arm.name}, not sync", "caution", f"the draft kept its own memory: {arm.fell_back}")
    return text(arm.arm.name)


class _Timed(NamedTuple):
    """A method over all tasks, and its rounds by part."""

    arm: ArmResult
    split: RoundSplit

    @property
    def inside(self) -> str | None:
        parts = (f"{name} {ms:.2f}" for inner in self.split.inside_ms.values() for name, ms in inner.items())
        return ", ".join(parts) or None


def timing_table(study: Study) -> Table:
    """Mean time of a round by part, and what is known inside the parts; of trials whose times are the method's."""
    timed = [
        (arm, [one for one in arm.trials if one.trial.valid and one.trial.decode_ns and one.whole.rounds])
        for arm in tasks(study.pooled)
        if not arm.is_plain
    ]
    parts = (column(name, "2", "ms per round", f"split.ms_per_round.{name}", detail=True) for name in PART_NAMES)
    return table(
        "Where the time of a round goes",
        [_Timed(arm, round_split(trials)) for arm, trials in timed if trials],
        *of_their_arms("arm", "target"),
        column("method", of=lambda row: _method_cell(row.arm)),
        *of_their_arms("arm", "gamma"),
        column("rounds", "n", "of all trials that count", "split.rounds", detail=True),
        column("ms/round", "2", "the sum of its parts", lambda row: sum(row.split.ms_per_round.values()), detail=True),
        *parts,
        *of_their_arms("arm", "mgl break_even_mgl"),
        column("of it, ms a round", "", "Trial.stats, and what is left of rollback", "inside"),
        column("LM head of a draft step", "1%", "mlsd calibrate parts: its share of a profiled pass, no speed",
               lambda row: share_cell(study.machine.draft_step(row.arm.case), "head")),
        id="methods-timing",
        interactive=True,
    )  # fmt: skip


def distance_table(study: Study) -> Table:
    """What predicts acceptance without drafting, beside what was accepted; the nearest to its target first.

    Raises: AnalysisError when no method with a drafting model of its own was compared.
    """
    compared = [
        (arm, distance)
        for arm in study.pooled
        if arm.n_valid and not arm.is_plain and (distance := study.distances.get(arm.trials[0].trial.case_id))
    ]
    if not compared:
        raise AnalysisError(
            "No model that drafts was compared with its target.", hint="Compare them: mlsd run E --distances."
        )

    def variation(row: Any) -> Cell:
        return number(row[1].total_variation, 3, note=f"standard error {row[1].total_variation_error:.3f}")

    def ratio(row: Any) -> Interval:
        far = row[1]
        return Interval(value=far.ratio, low=far.ratio_low, high=far.ratio_high, n=far.n_tokens)

    return table(
        "What predicts acceptance: the drafting model against its target",
        sorted(compared, key=lambda row: (row[0].case.target.id, row[1].ratio)),
        *of_their_arms("0", "target arm gamma text"),
        column("perplexity ratio", "[2]", "draft / target on one text", ratio),
        column("total variation", "3", "mean over positions of half the sum of |p - q|", variation),
        column("same likeliest token", "1%", "", "1.agreement"),
        *of_their_arms("0", "acceptance_rate"),
        id="methods-distance",
    )


METHOD_TABLES: list[Callable[[Study], Table]] = [
    *(partial(kind_table, name=name) for name in ("speedup", "mgl", "acceptance_rate")),
    *(distance_table, timing_table, pass_table),
]
