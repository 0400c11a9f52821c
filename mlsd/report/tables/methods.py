"""The tables that compare drafting methods on tasks, and of where time goes: of a round, inside a pass."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from mlsd.analysis.results.round_split import RoundKind, RoundSplit, round_split
from mlsd.analysis.study.machine_findings import part_key
from mlsd.analysis.study.study import Study
from mlsd.engine.parts import PARTS, Part
from mlsd.errors import AnalysisError
from mlsd.planning.prompts import KINDS, TASK_KEY
from mlsd.records import Case
from mlsd.report.render.table import Cell, Column, Table, interval, number, numbers, percent, table, text, words
from mlsd.report.tables.columns import ARM, EFFECT_TONES, like, of_their_arms
from mlsd.stats import Interval, grouped
from mlsd.store.rows import DraftDistance, PassShares
from mlsd.trials.arms import arm_named, arm_of
from mlsd.trials.results import ArmResult
from mlsd.trials.sums import PART_NAMES
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

    def share(part: Part) -> Column[tuple[str, PassShares]]:
        trace = "parts_ns / sum of parts_ns of profiled passes"
        return numbers(_LABELS.get(part, part), lambda row: share_cell(row[1], part), trace)

    return table(
        "Where the time of a pass goes (profiled, no speeds)",
        profiled,
        words("network", lambda row: row[0]),
        numbers("rows", lambda row: row[1].rows, "positions of the pass, each with an output"),
        numbers("depth", lambda row: row[1].depth, "positions in the context before it"),
        numbers("T", lambda row: number(row[1].plain_ns / 1e6, 3), "the fastest plain pass", unit="ms"),
        *(share(part) for part in PARTS if any(part in one.parts_ns for _, one in profiled)),
        numbers(
            "no outputs",
            lambda row: percent(row[1].head_by_difference),
            "(T(k) - T(k without outputs)) / T(k): LM head and sampling a second way",
        ),
        numbers("parts / T", lambda row: number(row[1].agreement), "sum of the profiled parts over a plain pass"),
        numbers("profiled / T", lambda row: number(row[1].inflation), "profiled over plain pass"),
        id="pass-shares",
    )


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
        words("part of a round", lambda row: row[0]),
        numbers("ms a round", lambda row: number(row[1], 3)),
        numbers("share", lambda row: percent(row[1] / total if total else None)),
    )


def kinds_table(split: RoundSplit) -> Table:
    """Rounds with a proposal beside rounds without."""
    kinds = [kind for kind in (split.found, split.not_found) if kind is not None]

    def column(label: str, kind: RoundKind | None) -> Column[str]:
        ms = {} if kind is None else kind.ms
        n_rounds = 0 if kind is None else kind.rounds
        return numbers(label, lambda name: n_rounds if name == "rounds" else number(ms.get(name), 3))

    return table(
        "Rounds, ms",
        dict.fromkeys(["rounds", *(name for kind in kinds for name in kind.ms)]),
        words("", lambda name: name),
        column("with a proposal", split.found),
        column("without", split.not_found),
    )


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


def kind_table(study: Study, label: str) -> Table:
    """Speedup, MGL or acceptance (a label) of each method on each kind of task."""
    rows = methods_by_kind(study)
    head, cell = (ARM["speedup [95 % CI]"][0], _speedup_cell) if label == "speedup" else ARM[label]

    def of_kind(kind: str) -> Column[MethodRow]:
        shown = kind.replace("_", " ")
        return numbers(shown, lambda row: cell(row.by_kind[kind]) if kind in row.by_kind else None, head.trace)

    return table(
        f"{label[0].upper()}{label[1:]} of each method by task",
        rows,
        words("target", lambda row: row.overall.case.target.id),
        words("method", lambda row: _method_cell(row.overall)),
        numbers("gamma", lambda row: row.overall.case.gamma),
        numbers("all tasks", lambda row: cell(row.overall), head.trace),
        *map(of_kind, kinds_of(rows)),
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


def _speedup_cell(arm: ArmResult) -> Cell:
    if not arm.timed:
        return text("not timed", "quiet")
    if arm.ratio is None:
        return text(None, note=arm.why_not or "no valid pair")
    return interval(arm.ratio, tone=EFFECT_TONES[arm.effect])


def timing_table(study: Study) -> Table:
    """Mean time of a round by part, and what is known inside the parts; of trials whose times are the method's."""

    def part(name: str) -> Column[tuple[ArmResult, RoundSplit]]:
        return like(name, lambda row: number(row[1].ms_per_round[name]))

    def inside(row: tuple[ArmResult, RoundSplit]) -> str | None:
        return ", ".join(f"{name} {ms:.2f}" for own in row[1].inside_ms.values() for name, ms in own.items()) or None

    drafting = [arm for arm in tasks(study.pooled) if not arm.is_plain]
    timed = [
        (arm, [one for one in arm.trials if one.trial.valid and one.trial.decode_ns and one.whole.rounds])
        for arm in drafting
    ]
    return table(
        "Where the time of a round goes",
        [(arm, round_split(trials)) for arm, trials in timed if trials],
        *of_their_arms(itemgetter(0), "target"),
        words("method", lambda row: _method_cell(row[0])),
        *of_their_arms(itemgetter(0), "gamma"),
        like("rounds", lambda row: row[1].rounds),
        like("ms/round", lambda row: number(sum(row[1].ms_per_round.values()))),
        *map(part, PART_NAMES),
        *of_their_arms(itemgetter(0), "MGL", "break-even MGL"),
        words("of it, ms a round", inside, "Trial.stats, and what is left of rollback"),
        numbers(
            "LM head of a draft step",
            lambda row: share_cell(study.machine.draft_step(row[0].case), "head"),
            "mlsd calibrate parts: its share of a profiled pass, no speed",
        ),
        id="methods-timing",
        interactive=True,
    )


def distance_table(study: Study) -> Table:
    """What predicts acceptance without drafting, beside what was accepted; the nearest to its target first.

    Raises: AnalysisError when no method with a drafting model of its own was compared.
    """
    compared = [
        (arm, found)
        for arm in study.pooled
        if arm.n_valid and not arm.is_plain and (found := study.distances.get(arm.trials[0].trial.case_id))
    ]
    if not compared:
        raise AnalysisError(
            "No model that drafts was compared with its target.", hint="Compare them: mlsd run E --distances."
        )

    def ratio(row: tuple[ArmResult, DraftDistance]) -> Cell:
        found = row[1]
        return interval(Interval(value=found.ratio, low=found.ratio_low, high=found.ratio_high, n=found.n_tokens))

    def variation(row: tuple[ArmResult, DraftDistance]) -> Cell:
        return number(row[1].total_variation, 3, note=f"standard error {row[1].total_variation_error:.3f}")

    return table(
        "What predicts acceptance: the drafting model against its target",
        sorted(compared, key=lambda row: (row[0].case.target.id, row[1].ratio)),
        *of_their_arms(itemgetter(0), "target", "arm", "gamma", "text"),
        numbers("perplexity ratio", ratio, "draft / target on one text"),
        numbers("total variation", variation, "mean over positions of half the sum of |p - q|"),
        numbers("same likeliest token", lambda row: percent(row[1].agreement)),
        *of_their_arms(itemgetter(0), "acceptance"),
        id="methods-distance",
    )


METHOD_TABLES: list[Callable[[Study], Table]] = [
    *(partial(kind_table, label=label) for label in ("speedup", "MGL", "acceptance")),
    *(distance_table, timing_table, pass_table),
]
