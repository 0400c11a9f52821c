"""Tables of what there is to measure: models, drafting methods, and what suites would measure of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mlsd.columns import column
from mlsd.report.render.table import Cell, Table, table, text

if TYPE_CHECKING:
    from mlsd.drafters.method import MethodInfo
    from mlsd.measure.parent.forecast import Forecast
    from mlsd.measure.parent.memory import ArmMemory, LoadMemory
    from mlsd.models.library import Listing
    from mlsd.planning.plan import Plan
    from mlsd.records import OptionValue


def model_table(models: Sequence[Listing]) -> Table:
    """Models that an id can name."""
    return table(
        "models",
        models,
        column("id"),
        column("roles", of=lambda m: ", ".join(m.roles), detail=True),
        column("size", "bytes", "", "n_bytes"),
        column("here", "flag"),
        column("fits", "flag", "", "fits_memory"),
        column("parameters", "n", "", lambda m: _count(m.parameters), detail=True),
        column("active", "n", "", lambda m: _count(m.parameters_active), detail=True),
        column("source", detail=True),
    )


def _count(n: int | None) -> Cell:
    return text(None if n is None else f"{n / 1e9:.2f} B" if n >= 1e8 else f"{n / 1e6:.1f} M")


def methods_table(methods: Sequence[MethodInfo]) -> Table:
    """Drafting methods."""
    return table(
        "Drafting methods",
        methods,
        column("method", of="name"),
        column("what it does", of="summary"),
        column("presets", of=lambda m: ", ".join(preset.name for preset in m.presets) or None),
    )


def options_table(method: MethodInfo) -> Table:
    """What can be set of a method."""
    return table(
        "Options",
        method.options,
        column("option", of="name"),
        column("default", of=lambda o: "must be given" if o.required else option_text(o.default)),
        column("values"),
        column("meaning"),
    )


def presets_table(method: MethodInfo) -> Table:
    """The values that papers found best."""
    return table(
        "Presets",
        method.presets,
        column("preset", of="name"),
        column("gamma"),
        column("options", of=lambda p: ", ".join(f"{key}={option_text(v)}" for key, v in p.options.items()) or None),
        column("source", detail=True),
    )


def option_text(value: OptionValue | None) -> str | None:
    """An option's value as it is written after --drafter."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def plan_table(plan: Plan) -> Table:
    """Trials of each suite, and of all."""
    paired = Counter(slot.case.suite for slot in plan.slots() if slot.role == "baseline")
    suites = [(suite, count, paired[suite]) for suite, count in plan.study_trials.items()]
    return table(
        f"plan of profile {plan.profile}",
        [*suites, ("all", sum(plan.study_trials.values()), plan.paired_baselines)],
        column("suite", of="0"),
        column("study trials", "n", "", "1"),
        column("paired baselines", "n", "", "2"),
        note=plan.title and f"{plan.title[0].upper()}{plan.title[1:]}.",
    )


def load_table(found: Forecast) -> Table:
    """Models that are loaded together, and what they need."""
    return table(
        "loads",
        zip(found.memory, found.times, strict=True),
        column("load", of=lambda row: " + ".join(row[0].models)),
        column("trials", "n", "", "1.n_trials"),
        column("memory", "n", "", lambda row: text(row[0].verdict)),
        column("time", "n", "", lambda row: text(row[1].words)),
        column("from", of=lambda row: ", ".join(row[1].sources) or None, detail=True),
    )


class _Held(NamedTuple):
    """What an arm takes, or all arms of a load together."""

    load: LoadMemory
    arm: str
    part: ArmMemory | LoadMemory
    whole: LoadMemory | None = None  # the load, in the row of all together


def memory_table(loads: Sequence[LoadMemory], *, arms: bool = True) -> Table:
    """What every load takes, and with `arms` each of its arms."""
    rows = list[_Held]()
    for load in loads:
        rows += [_Held(load, arm.arm, arm) for arm in load.arms if arms]
        rows.append(_Held(load, "all together", load, load))
    return table(
        "memory",
        rows,
        column("load", of=lambda row: " + ".join(row.load.models)),
        column("arm"),
        column("weights", "bytes", "", "whole.weights_bytes"),
        column("KV", "bytes", "", "part.kv_bytes", detail=True),
        column("states", "bytes", "", "part.states_bytes", detail=True),
        column("compute", "bytes", "", "part.compute_bytes", detail=True),
        column("output", "bytes", "", "part.output_bytes", detail=True),
        column("total", "bytes", "", "part.total_bytes"),
        column("limit", "bytes", "", "whole.limit_bytes"),
        column("verdict", "n", "", lambda row: text("" if row.whole is None else row.whole.verdict)),
    )
