"""Tables of what there is to measure: models, drafting methods, and what suites would measure of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlsd.report.render.table import Column, Table, numbers, table, text, words
from mlsd.units import format_bytes

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
        words("id", lambda m: m.id),
        words("roles", lambda m: ", ".join(m.roles), detail=True),
        numbers("size", lambda m: text(format_bytes(m.n_bytes))),
        words("here", lambda m: yes_or_no(m.here)),
        words("fits", lambda m: yes_or_no(m.fits_memory)),
        numbers("parameters", lambda m: text(_count(m.parameters)), detail=True),
        numbers("active", lambda m: text(_count(m.parameters_active)), detail=True),
        words("source", lambda m: m.source, detail=True),
    )


def _count(n: int | None) -> str | None:
    if n is None:
        return None
    return f"{n / 1e9:.2f} B" if n >= 1e8 else f"{n / 1e6:.1f} M"


def yes_or_no(value: bool | None) -> str | None:
    """A yes, a no, or nothing."""
    return None if value is None else "yes" if value else "no"


def methods_table(methods: Sequence[MethodInfo]) -> Table:
    """Drafting methods."""
    return table(
        "Drafting methods",
        methods,
        words("method", lambda m: m.name),
        words("what it does", lambda m: m.summary),
        words("presets", lambda m: ", ".join(preset.name for preset in m.presets) or None),
    )


def options_table(method: MethodInfo) -> Table:
    """What can be set of a method."""
    return table(
        "Options",
        method.options,
        words("option", lambda o: o.name),
        words("default", lambda o: "must be given" if o.required else option_text(o.default)),
        words("values", lambda o: o.values),
        words("meaning", lambda o: o.meaning),
    )


def presets_table(method: MethodInfo) -> Table:
    """The values that papers found best."""
    return table(
        "Presets",
        method.presets,
        words("preset", lambda p: p.name),
        words("gamma", lambda p: str(p.gamma)),
        words("options", lambda p: ", ".join(f"{key}={option_text(v)}" for key, v in p.options.items()) or None),
        words("source", lambda p: p.source, detail=True),
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
        words("suite", lambda row: row[0]),
        numbers("study trials", lambda row: row[1]),
        numbers("paired baselines", lambda row: row[2]),
        note=plan.title and f"{plan.title[0].upper()}{plan.title[1:]}.",
    )


def load_table(found: Forecast) -> Table:
    """Models that are loaded together, and what they need."""
    return table(
        "loads",
        zip(found.memory, found.times, strict=True),
        words("load", lambda row: " + ".join(row[0].models)),
        numbers("trials", lambda row: row[1].n_trials),
        numbers("memory", lambda row: text(row[0].verdict)),
        numbers("time", lambda row: text(row[1].words)),
        words("from", lambda row: ", ".join(row[1].sources) or None, detail=True),
    )


def memory_table(loads: Sequence[LoadMemory], *, arms: bool = True) -> Table:
    """What every load takes, and with `arms` each of its arms."""
    rows: list[tuple[LoadMemory, str, ArmMemory | LoadMemory]] = []
    for load in loads:
        rows += [(load, arm.arm, arm) for arm in load.arms if arms]
        rows.append((load, "all together", load))

    def term(name: str) -> Column[tuple[LoadMemory, str, ArmMemory | LoadMemory]]:
        label = "KV" if name == "kv" else name
        part = name != "total"
        return numbers(label, lambda row: text(format_bytes(getattr(row[2], f"{name}_bytes"))), detail=part)

    def whole(name: str) -> Column[tuple[LoadMemory, str, ArmMemory | LoadMemory]]:
        field = f"{name}_bytes"
        return numbers(name, lambda row: text(format_bytes(getattr(row[0], field)) if row[2] is row[0] else None))

    return table(
        "memory",
        rows,
        words("load", lambda row: " + ".join(row[0].models)),
        words("arm", lambda row: row[1]),
        whole("weights"),
        *map(term, ("kv", "states", "compute", "output")),
        term("total"),
        whole("limit"),
        numbers("verdict", lambda row: text(row[0].verdict if row[2] is row[0] else "")),
    )
