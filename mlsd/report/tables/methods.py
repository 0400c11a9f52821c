"""The tables that compare drafting methods on tasks: speedup and MGL for each kind, and the time of a round."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter

from mlsd.analysis.results.distances import predictions
from mlsd.analysis.results.methods_table import MethodRow, TimingRow, methods_by_kind, timing
from mlsd.analysis.study.study import Study
from mlsd.planning.prompts import KINDS
from mlsd.report.render.table import Cell, Column, Table, interval, number, numbers, percent, table, text, words
from mlsd.report.tables.columns import ARM, EFFECT_TONES, like, of_their_arms
from mlsd.report.tables.passes import pass_table, share_cell
from mlsd.stats import Interval
from mlsd.store.rows import DraftDistance
from mlsd.trials.results import ArmResult
from mlsd.trials.sums import PART_NAMES


def kind_table(study: Study, label: str) -> Table:
    """Speedup, MGL or acceptance (a label) of each method on each kind of task."""
    rows = methods_by_kind(study.results, study.pooled)
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
        *map(of_kind, _kinds(rows)),
        id=f"methods-{label.lower()}",
        interactive=True,
    )


def _kinds(rows: list[MethodRow]) -> tuple[str, ...]:
    """The six kinds; those that were measured, where they are of another set."""
    found = tuple(dict.fromkeys(kind for row in rows for kind in row.by_kind))
    return KINDS if set(found) <= set(KINDS) else found


def _method_cell(arm: ArmResult) -> Cell:
    """The method, with what its trials really measured where that is something else."""
    if not arm.timed:
        return text(
            f"{arm.arm.name}, not timed", "doubt", "it drafted inside the target: its times are not the method's"
        )
    if arm.fell_back is not None:
        return text(f"{arm.arm.name}, not sync", "doubt", f"the draft kept its own memory: {arm.fell_back}")
    return text(arm.arm.name)


def _speedup_cell(arm: ArmResult) -> Cell:
    if not arm.timed:
        return text("not timed", "quiet")
    if arm.ratio is None:
        return text(None, note=arm.why_not or "no valid pair")
    return interval(arm.ratio, tone=EFFECT_TONES[arm.effect])


def timing_table(study: Study) -> Table:
    """Mean time of a round by part, and what is known inside the parts."""
    return table(
        "Where the time of a round goes",
        timing(study.pooled),
        *of_their_arms(attrgetter("arm"), "target"),
        words("method", lambda row: _method_cell(row.arm)),
        *of_their_arms(attrgetter("arm"), "gamma"),
        like("rounds", lambda row: row.split.rounds),
        like("ms/round", lambda row: number(sum(row.split.ms_per_round.values()))),
        *map(_part_column, PART_NAMES),
        *of_their_arms(attrgetter("arm"), "MGL", "break-even MGL"),
        words(
            "of it, ms a round",
            lambda row: (
                ", ".join(f"{name} {ms:.2f}" for inside in row.split.inside_ms.values() for name, ms in inside.items())
                or None
            ),
            "Trial.stats, and what is left of rollback",
        ),
        numbers(
            "LM head of a draft step",
            lambda row: share_cell(study.machine.draft_step(row.arm.case), "head"),
            "mlsd calibrate --parts: its share of a profiled pass, no speed",
        ),
        id="methods-timing",
        interactive=True,
    )


def _part_column(part: str) -> Column[TimingRow]:
    return like(part, lambda row: number(row.split.ms_per_round[part]))


def distance_table(study: Study) -> Table:
    """What predicts acceptance without drafting, beside what was accepted."""
    return table(
        "What predicts acceptance: the drafting model against its target",
        predictions(study.pooled, study.distances),
        *of_their_arms(attrgetter("arm"), "target", "arm", "gamma", "text"),
        numbers("perplexity ratio", lambda row: interval(_ratio(row.distance)), "draft / target on one text"),
        numbers(
            "total variation",
            lambda row: number(
                row.distance.total_variation, 3, note=f"standard error {row.distance.total_variation_error:.3f}"
            ),
            "mean over positions of half the sum of |p - q|",
        ),
        numbers("same likeliest token", lambda row: percent(row.distance.agreement)),
        *of_their_arms(attrgetter("arm"), "acceptance"),
        id="methods-distance",
    )


def _ratio(found: DraftDistance) -> Interval:
    return Interval(value=found.ratio, low=found.ratio_low, high=found.ratio_high, n=found.n_tokens)


METHOD_TABLES: list[Callable[[Study], Table]] = [
    *(partial(kind_table, label=label) for label in ("speedup", "MGL", "acceptance")),
    *(distance_table, timing_table, pass_table),
]
