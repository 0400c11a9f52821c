"""Tables of what there is to measure: models, drafting methods, and what suites would measure of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlsd.columns import column, columns
from mlsd.report.render.table import Table, table

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
        *columns("id; roles*; size:bytes=n_bytes; here:flag; fits:flag=fits_memory"),
        column("parameters", "n", "", lambda m: _count(m.parameters), detail=True),
        column("active", "n", "", lambda m: _count(m.parameters_active), detail=True),
        column("source", detail=True),
    )


def _count(n: int | None) -> str | None:
    return None if n is None else f"{n / 1e9:.2f} B" if n >= 1e8 else f"{n / 1e6:.1f} M"


def methods_table(methods: Sequence[MethodInfo]) -> Table:
    """Drafting methods."""
    return table(
        "Drafting methods",
        methods,
        *columns("method=name; what it does=summary"),
        column("presets", of=lambda m: ", ".join(preset.name for preset in m.presets) or None),
    )


def options_table(method: MethodInfo) -> Table:
    """What can be set of a method."""
    return table(
        "Options",
        method.options,
        column("option", of="name"),
        column("default", of=lambda o: "must be given" if o.required else option_text(o.default)),
        *columns("values; meaning"),
    )


def presets_table(method: MethodInfo) -> Table:
    """The values that papers found best."""
    return table(
        "Presets",
        method.presets,
        *columns("preset=name; gamma"),
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
        *columns("suite=0; study trials:n=1; paired baselines:n=2"),
        note=plan.title and f"{plan.title[0].upper()}{plan.title[1:]}.",
    )


def load_table(forecast: Forecast) -> Table:
    """Models that are loaded together, and what they need."""
    return table(
        "loads",
        zip(forecast.memory, forecast.times, strict=True),
        column("load", of=lambda row: " + ".join(row[0].models)),
        *columns("trials:n=1.n_trials; memory:n=0.verdict; time:n=1.text"),
        *columns("from=1.sources*"),
    )


def memory_table(loads: Sequence[LoadMemory], *, arms: bool = True) -> Table:
    """What every load takes, and with `arms` each of its arms."""
    rows: list[tuple[str, str, ArmMemory | LoadMemory, LoadMemory | None]] = []  # load, arm or all, sizes, of all
    for load in loads:
        models = " + ".join(load.models)
        rows += [(models, arm.arm, arm, None) for arm in load.arms if arms]
        rows.append((models, "all together", load, load))
    return table(
        "memory",
        rows,
        *columns("load=0; arm=1; weights:bytes=3.weights_bytes; KV:bytes=2.kv_bytes*; states:bytes=2.states_bytes*"),
        *columns("compute:bytes=2.compute_bytes*; output:bytes=2.output_bytes*; total:bytes=2.total_bytes"),
        *columns("limit:bytes=3.limit_bytes; verdict:n=3.verdict"),
    )
