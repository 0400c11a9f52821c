"""The tables that compare drafting methods on tasks, and of where time goes: of a round, inside a pass."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from mlsd.analysis.results.distances import predictions
from mlsd.analysis.results.methods_table import MethodRow, TimingRow, methods_by_kind, timing
from mlsd.analysis.results.round_split import RoundKind, RoundSplit
from mlsd.analysis.study.machine_findings import part_key
from mlsd.analysis.study.study import Study
from mlsd.engine.parts import PARTS, Part
from mlsd.errors import AnalysisError
from mlsd.planning.prompts import KINDS
from mlsd.records import Case
from mlsd.report.render.table import Cell, Column, Table, interval, number, numbers, percent, table, text, words
from mlsd.report.tables.columns import ARM, EFFECT_TONES, like, of_their_arms
from mlsd.stats import Interval
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
        return text(None, note="not profiled: mlsd calibrate --parts")
    share = shares.shares[part]
    if share is None:
        return text(None, note="the network has no such part")
    value = 100 * share
    if shares.in_doubt:
        return Cell(text=f"{value:.1f} % ?", sort=value, tone="doubt", note=_DOUBT)
    return Cell(text=f"{value:.1f} %", sort=value)


def pass_table(study: Study) -> Table:
    """Shares of every profiled pass. Raises AnalysisError when none was."""
    profiled = [(*network, one) for network, found in study.machine.shares.items() for one in found]
    if not profiled:
        raise AnalysisError(
            "No pass was profiled, so shares of LM head, attention and experts are not known.",
            hint=f"Profile some: mlsd calibrate TARGET --parts --drafter NAME --db {quoted(study.source)}.",
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


# --- methods by task ------------------------------------------------------------------------------------------------


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
