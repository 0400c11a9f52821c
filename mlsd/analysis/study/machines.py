"""Machines of one database side by side: each figure is one machine's own, and none is pooled over machines."""

from __future__ import annotations

from collections.abc import Sequence

from mlsd.analysis.claims.claims import ClaimVerdict
from mlsd.analysis.study.study import Study, attempt
from mlsd.errors import AnalysisError
from mlsd.records import Environment, Record
from mlsd.trials.answers import Answer, answers
from mlsd.trials.results import ArmResult

WIDE = 5  # rows of a pass that verifies four drafted tokens
WINDOW = 8  # consecutive tokens whose experts are counted


class MachineRow(Record, frozen=True, kw_only=True):
    """One target on one machine. None: not measured there."""

    machine: str
    target: str
    parameters_active: int | None
    plain_tok_s: float | None  # geometric mean
    spread: float | None  # half the range over the median
    peak_gb_s: float | None  # as published of the chip
    read_gb_s: float | None  # bytes that a token reads x plain tok/s
    wide_pass: float | None  # T(5) / T(1): 1 is free, 5 saves nothing
    experts: float | None  # N(8): mean distinct experts of a layer
    best: Answer | None


class MachineClaim(Record, frozen=True, kw_only=True):
    """What became of one published claim, machine by machine."""

    claim: str
    text: str
    decisions: tuple[str, ...]  # in the order of `machine_names`


def compared(study: Study) -> tuple[Study, ...]:
    """The studies of every machine of the database. Raises: AnalysisError where there is only one."""
    if not study.other_machines:
        raise AnalysisError(
            "Only one machine measured here.",
            hint="Measure on others and bring their trials: mlsd run --lab, or mlsd import RECORD.",
        )
    return (study, *study.other_machines)


def machine_names(studies: Sequence[Study]) -> list[str]:
    """The machines for people; those that look alike carry their key."""
    names = [machine_name(study.environment) for study in studies]
    return [
        name if names.count(name) == 1 else f"{name} {study.machine.key[:6]}"
        for name, study in zip(names, studies, strict=True)
    ]


def machine_rows(study: Study) -> list[MachineRow]:
    """Every target of every machine, machine by machine. Raises: AnalysisError where there is only one machine."""
    studies = compared(study)
    return [
        machine_row(name, one, target)
        for name, one in zip(machine_names(studies), studies, strict=True)
        for target in dict.fromkeys(one.trials["target"])
    ]


def machine_claims(study: Study) -> list[MachineClaim]:
    """Every claim that some machine's trials say something of. Raises: AnalysisError where there is only one."""
    decided = [{v.claim.id: v for v in _claims(one)} for one in compared(study)]
    known = {key: verdict.claim for verdicts in decided for key, verdict in verdicts.items()}
    rows = [
        MachineClaim(
            claim=key,
            text=claim.text,
            decisions=tuple(v[key].decision if key in v else "not measured" for v in decided),
        )
        for key, claim in known.items()
    ]
    return [row for row in rows if set(row.decisions) != {"not measured"}]


def _claims(study: Study) -> Sequence[ClaimVerdict]:
    return attempt(lambda: study.claims)[0] or ()


def machine_name(place: Environment) -> str:
    """The machine for people."""
    return f"{place.chip or place.machine}{f' ({place.backend})' if place.backend else ''}"


def machine_row(name: str, study: Study, target: str) -> MachineRow:
    """What a study says of one target on its machine."""
    facts, plain = study.facts.get(target), _plain(study, target)
    curve = (attempt(lambda: study.machine.curves)[0] or {}).get(target)
    mixture = next((m for m in attempt(lambda: study.machine.mixtures)[0] or () if m.name == target), None)
    tok_s = None if plain is None else plain.tok_s
    efficiency = None if curve is None else curve.efficiency.get(WIDE)
    n_bytes = None if facts is None else facts.active_bytes
    return MachineRow(
        machine=name,
        target=target,
        parameters_active=None if facts is None else facts.n_parameters_active,
        plain_tok_s=tok_s,
        spread=None if plain is None else plain.spread,
        peak_gb_s=study.environment.peak_bandwidth_gb_s,
        read_gb_s=None if tok_s is None or n_bytes is None else tok_s * n_bytes / 1e9,
        wide_pass=None if not efficiency else 1 / efficiency,
        experts=next((row.text for row in mixture.coverage.rows if row.window == WINDOW), None) if mixture else None,
        best=_best(study, target),
    )


def _best(study: Study, target: str) -> Answer | None:
    """The answer over all texts that has the most settings; of equals one that switches speculation on."""
    own = [one for one in answers(study.pooled) if one.target == target]
    return max(own, key=lambda one: (len(one.arms), one.use == "on"), default=None)


def _plain(study: Study, target: str) -> ArmResult | None:
    own = [one for one in study.pooled if one.is_plain and one.case.target.id == target and one.tok_s is not None]
    return max(own, key=lambda one: one.n_valid, default=None)
