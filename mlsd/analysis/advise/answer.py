"""One question about a target, answered: which draft, method and gamma, how fast, how sure, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mlsd.analysis.advise.cost_sources import Key, costs_by_chip, costs_by_shape, own_costs
from mlsd.analysis.advise.known_model import KnownModel, named
from mlsd.analysis.advise.next_steps import Gap, timing_commands
from mlsd.analysis.advise.prospects import (
    CostRange,
    Prospect,
    Recommendation,
    acceptance_of,
    as_measured,
    key_matches,
    measured_outcomes,
    prospects,
    recommend,
)
from mlsd.analysis.advise.reference_acceptance import (
    Acceptance,
    Stated,
    any_acceptance,
    assumed_acceptance,
    is_method,
    reference_acceptance,
    stated_acceptance,
)
from mlsd.analysis.predict.arms import Known
from mlsd.analysis.predict.prediction_error import Validation, validate
from mlsd.analysis.predict.shape_costs import shape_costs
from mlsd.errors import AnalysisError, InputError
from mlsd.models.library import resolve_model
from mlsd.models.manifest import ModelEntry, load_manifest
from mlsd.planning.known_shapes import shape_of
from mlsd.planning.passes import AppleChip, constants
from mlsd.records import DRAFT_MODEL, Record
from mlsd.trials.answers import Answer
from mlsd.units import quoted

_HIGH = 0.9  # acceptance of a token that no draft model of this family was seen to reach


class AdviceQuestion(Record, frozen=True, kw_only=True):
    """What is asked."""

    target: str  # path, id or shape
    drafts: tuple[str, ...] | None = None  # only these drafts or methods
    workload: str | None = None
    stated: Stated | None = None  # of the one draft or method; None: what is known
    gammas: tuple[int, ...] = (1, 2, 4, 8, 16)
    quant: str | None = None  # of a target that is only a shape
    chip: AppleChip | None = None  # of another machine; None: this one
    runtime: str = "llama.cpp"  # whose passes to model on a chip: this, mlx, or a program on MLX with rows of its own
    depth: int = 0  # tokens of context before the output, on a chip
    build: int = 0  # of llama.cpp; 0: the one that is loaded, for another machine the one that ships with mlsd


class Place(Record, frozen=True, kw_only=True):
    """The machine that the answer is for, where it is this one."""

    environment_key: str
    chip: AppleChip | None
    safe_bytes: int | None  # for weights
    build: int = 0  # of llama.cpp that is loaded here; 0: the one that ships, or not known


class TargetAdvice(Record, frozen=True, kw_only=True):
    """The answer."""

    recommendation: Recommendation
    target: KnownModel
    drafts: tuple[KnownModel, ...]
    draft_file: str | None  # of the best setting's draft, where it is here
    validation: Validation | None
    modelled: bool  # costs are those of a chip by public rows
    untimed: tuple[str, ...]  # drafts that nothing is known of but their acceptance
    draft_sources: Mapping[str, str]  # where the costs of a draft come from, by its id
    notes: tuple[str, ...]  # which rows of the databases do not count
    measured: tuple[Answer, ...] = ()  # what trials of the target on this machine say, of each text by itself


def answer(question: AdviceQuestion, known: Known, place: Place | None) -> TargetAdvice:
    """Answer from what databases, references and models say. `place` is None for another machine.

    Raises: InputError or ModelFileError for a target that nobody knows, AnalysisError where nothing tells its costs.
    """
    elsewhere = question.chip is not None
    target = named(question.target, question.quant, known.models.values(), elsewhere=elsewhere)
    key = target.facts.ref.sha256 or target.facts.ref.id
    texts = {group.workload for group in known.groups if key_matches(group, key)}
    if question.workload is None and len(texts) == 1:  # what was measured on one text speaks of that text
        question = msgspec.structs.replace(question, workload=texts.pop())
    chosen, own = _acceptances(target, known, question)
    drafts = {
        (a.drafter, a.draft): None
        if a.draft is None
        else named(a.draft, stored=known.models.values(), elsewhere=elsewhere)
        for a in chosen
    }
    plain, costs = _costs(target, drafts, known, place, question)
    # What trials of this machine's models showed says nothing of another machine's costs.
    validation = None if plain.basis == "bandwidth" else validate(known)
    outcomes = {
        (a.drafter, a.draft): measured_outcomes(known.groups, key, a.drafter, a.draft, question.workload) for a in own
    }
    found = prospects(costs, plain, chosen, question.gammas, measured=outcomes, validation=validation)
    if place is not None:
        found = as_measured(found, known.measured_on(place.environment_key, target.facts.ref.id, question.workload))
    untimed = {key: draft for key, draft in drafts.items() if key not in costs}
    file = None if target.here or place is None else _file_of(target)
    room = None if place is None else place.safe_bytes
    too_large = file is not None and room is not None and (file.n_bytes or 0) > room
    gaps: dict[Gap, bool] = {
        "acceptance": not own,
        "memory": too_large,
        "target": not target.here,
    }
    recommendation = recommend(
        target.facts.ref.id,
        question.workload,
        found,
        plain,
        [gap for gap, is_open in gaps.items() if is_open],
        tuple(_to_time(target, plain, untimed if _can_pay(found) else {}, known, place)),
        _fetch(file, found) if file is not None and plain.basis == "shape" else (),
        question.target if Path(question.target).is_file() else "",
    )
    best = drafts.get((recommendation.best.drafter, recommendation.best.draft))
    return TargetAdvice(
        recommendation=recommendation,
        target=target,
        drafts=tuple(draft for draft in drafts.values() if draft is not None),
        draft_file=str(resolve_model(best.facts.ref.id).path) if best is not None and best.here else None,
        validation=validation,
        modelled=plain.basis == "bandwidth",
        untimed=tuple(key[1] or key[0] for key in untimed),
        draft_sources={key[1]: c.draft_source for key, c in costs.items() if key[1] is not None and c.draft_source},
        notes=known.notes,
        measured=() if place is None else known.answers_on(place.environment_key, target.facts.ref.id),
    )


def _acceptances(
    target: KnownModel, known: Known, question: AdviceQuestion
) -> tuple[list[Acceptance], list[Acceptance]]:
    """What is known of drafters: own measurements, then references, then ranges, for drafts not yet named."""
    name, workload = target.facts.ref.id, question.workload
    key = target.facts.ref.sha256 or name
    own = acceptance_of(known.groups, key, workload)
    elsewhere = [any_acceptance(a.drafter, a.draft, workload) for a in acceptance_of(known.groups, key, None)]
    # Qwen3.5 has a prediction block, Gemma 4 an assistant to load; other heads and look-ups are asked for by name.
    predicts = target.shape is not None and target.shape.name.startswith(("qwen3.5", "gemma-4"))
    named_ones = (*(("mtp",) if predicts else ()), *(question.drafts or ()))
    asked = [
        any_acceptance(one, None, workload) if is_method(one) else any_acceptance(DRAFT_MODEL, one, workload)
        for one in dict.fromkeys(named_ones)
    ]
    published = [a for a in reference_acceptance(name) if None in (workload, a.workload) or a.workload == workload]
    everything: list[Acceptance] = []
    for source in (own, published, assumed_acceptance(name), elsewhere, asked):
        have = {(a.drafter, a.draft) for a in everything}
        everything += [a for a in source if (a.drafter, a.draft) not in have]
    if question.drafts is not None:
        everything = [a for a in everything if a.draft in question.drafts or a.drafter in question.drafts]
    if question.stated is not None:
        if len(everything) != 1:
            raise InputError(
                "An acceptance is that of one draft or method.", hint="Name it: --draft MODEL, or --drafter METHOD."
            )
        return [stated_acceptance(everything[0].drafter, everything[0].draft, question.stated)], []
    return everything, [a for a in own if a in everything]


def _costs(
    target: KnownModel,
    drafts: Mapping[Key, KnownModel | None],
    known: Known,
    place: Place | None,
    question: AdviceQuestion,
) -> tuple[CostRange, dict[Key, CostRange]]:
    if question.chip is not None:
        return costs_by_chip(
            target, drafts, question.chip, question.gammas, question.runtime, question.build, question.depth
        )
    assert place is not None
    for source in (own_costs, costs_by_shape):
        found = source(target, drafts, known, place.environment_key)
        if found is not None:
            return found
    if place.chip is not None:
        return costs_by_chip(target, drafts, place.chip, question.gammas, build=question.build or place.build)
    name = target.facts.ref.id
    if target.shape is None or target.here:
        hint = f"Run `mlsd calibrate {quoted(name)}`, or name a machine with --chip."
    else:
        commands = "\n  ".join(timing_commands([target, *drafts.values()]))
        hint = f"Name a machine with --chip, or time this one on synthetic weights, without a download:\n  {commands}"
    raise AnalysisError(
        f"No pass of {name} was timed on this machine, and its chip is not a known Apple chip.", hint=hint
    )


# --- what to do next ----------------------------------------------------------------------------------------------


def _to_time(
    target: KnownModel,
    plain: CostRange,
    untimed: Mapping[Key, KnownModel | None],
    known: Known,
    place: Place | None,
) -> list[str]:
    """Shapes to time: a target of which one depth was timed or none, and untimed drafts."""
    if target.here or target.shape is None or plain.measured:
        return []
    if plain.basis == "bandwidth":
        return timing_commands([target])
    assert place is not None and target.quant is not None
    timed = shape_costs(known, place.environment_key, target.shape, target.quant)
    found: list[str] = []
    if timed is not None and len(timed.depths) == 1 and timed.depths[0] < timed.n_layers:
        found = timing_commands([target], timed.depths)
    return found + timing_commands(untimed.values())


def _can_pay(found: Sequence[Prospect]) -> bool:
    """Whether some draft that was timed could break even; where the smallest cannot, no larger one will."""
    speculative = [p for p in found if p.gamma]
    return not speculative or any(
        p.break_even_acceptance is not None and p.break_even_acceptance < _HIGH for p in speculative
    )


def _file_of(target: KnownModel) -> ModelEntry | None:
    """The manifest's file of that id, else of the target's shape in its quantization."""
    if target.shape is None:
        return None
    known, wanted = load_manifest(), (target.shape.name, target.quant)
    same_shape = (e for e in known if shape_of(e.id) == wanted and e.architecture == target.shape.architecture)
    return known.models.get(target.facts.ref.id) or next(same_shape, None)


def _fetch(file: ModelEntry, found: Sequence[Prospect]) -> tuple[str, ...]:
    """The target's file and one of the best draft's; empty where no draft was timed."""
    best = next((p.draft for p in found if p.gamma and p.draft is not None), None)
    if best is None:
        return ()
    of_draft = [e.id for e in load_manifest() if e.id.startswith(f"{best}-")]
    q8 = [name for name in of_draft if name.endswith("-q8_0")]
    return (file.id, *(q8 or of_draft)[:1])


def check_question(question: AdviceQuestion) -> None:
    """Raises: InputError for gammas or an acceptance that mean nothing."""
    if not question.gammas or min(question.gammas) < 1:
        raise InputError("--gamma must hold numbers of at least 1.")
    programs = ("llama.cpp", "mlx", *constants().programs)
    if question.runtime not in programs:
        raise InputError(
            f"--runtime {question.runtime} is not known.",
            hint=f"Known are {', '.join(programs)}; mlx is any other program on MLX.",
        )
    if question.stated is not None:
        _ = question.stated.tokens
