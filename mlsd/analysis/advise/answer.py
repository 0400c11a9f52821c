"""One question about a target, answered: which draft, method and gamma, how fast, how sure, and what to do next."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from mlsd.analysis.advise.acceptance import (
    Acceptance,
    Stated,
    any_acceptance,
    assumed_acceptance,
    is_method,
    own_acceptances,
    reference_acceptance,
    stated_acceptance,
    way_of,
)
from mlsd.analysis.advise.cost_sources import Costed, costs_by_chip, costs_by_shape, own_costs
from mlsd.analysis.advise.known_model import KnownModel, named
from mlsd.analysis.advise.next_steps import Gap, timing_commands
from mlsd.analysis.advise.prospects import (
    CostRange,
    Prospect,
    Recommendation,
    as_measured,
    prospects,
    recommend,
    with_request,
)
from mlsd.analysis.advise.request import Request
from mlsd.analysis.predict.known import Known, predictable, same_model
from mlsd.analysis.predict.prediction_error import Validation, validate
from mlsd.errors import AnalysisError, InputError, MlsdError, ModelFileError
from mlsd.hardware.apple_passes import AppleChip, constants
from mlsd.models.library import resolve_model
from mlsd.models.manifest import ModelEntry, load_manifest
from mlsd.planning.known_shapes import shape_of
from mlsd.records import DRAFT_MODEL, DrafterSpec, Record
from mlsd.trials.answers import Answer, answers
from mlsd.trials.arms import Arm, arm_named, options_text
from mlsd.trials.results import ArmResult
from mlsd.units import quoted

GAMMAS = (1, 2, 4, 8, 16)
_HIGH = 0.9  # acceptance of a token that no draft model of this family was seen to reach
_SE_OF_MEDIAN_ERROR = 1.4826  # median absolute deviation -> standard deviation of a normal error


class AdviceQuestion(Record, frozen=True, kw_only=True):
    """What is asked."""

    target: str  # path, id or shape
    drafts: tuple[str, ...] | None = None  # only these drafts or methods, with options as --drafter takes them
    workload: str | None = None
    stated: Stated | None = None  # of the one draft or method; None: what is known
    gammas: tuple[int, ...] = GAMMAS
    quant: str | None = None  # of a target that is only a shape
    chip: AppleChip | None = None  # of another machine; None: this one
    runtime: str = "llama.cpp"  # whose passes to model on a chip: this, mlx, or a program on MLX with rows of its own
    depth: int = 0  # tokens of context before the output, on a chip
    build: int = 0  # of llama.cpp; 0: the one that is loaded, for another machine the one that ships with mlsd
    request: Request | None = None  # whose whole time is asked for
    options: str = ""  # engine and database as they were typed, for the commands that go on from here


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
    notes: tuple[str, ...]  # which rows of the databases do not count, and what a method needs
    measured: tuple[Answer, ...] = ()  # what trials of the target on this machine say, of each text by itself
    weight_bytes: int | None = None  # of the target and the best setting's draft
    limit_bytes: int | None = None  # what models may take of this machine


def answer(question: AdviceQuestion, known: Known, place: Place | None) -> TargetAdvice:
    """Answer from what databases, references and models say. `place` is None for another machine.

    Raises: InputError or ModelFileError for a target that nobody knows, AnalysisError where nothing tells its costs.
    """
    elsewhere = question.chip is not None
    target = named(question.target, question.quant, known.models.values(), elsewhere=elsewhere)
    arms = known.of(target.facts.ref)
    own = predictable(arms)
    texts = {text for arm in own if not arm.is_plain for text in arm.workloads}
    if question.workload is None and len(texts) == 1:  # what was measured on one text speaks of that text
        question = msgspec.structs.replace(question, workload=texts.pop())
    ways = _asked_ways(question, own)
    chosen, is_own = _acceptances(target, own, question, ways)
    drafts = dict[Arm, KnownModel | None]()
    for one in chosen:  # a database may name drafts that it does not describe and that are not here
        with suppress(*(() if ways else (InputError, ModelFileError))):
            draft = one.way.draft
            stored = known.models.values()
            drafts[one.way] = None if draft is None else named(draft.id, stored=stored, elsewhere=elsewhere)
    chosen = [one for one in chosen if one.way in drafts]
    plain, costs = _costs(target, drafts, known, place, question)
    # What trials of this machine's models showed says nothing of another machine's costs.
    validation = None if plain.basis == "bandwidth" else validate(known)
    error = validation.median_error * _SE_OF_MEDIAN_ERROR if validation else 0.0
    found = prospects(costs, plain, chosen, question.gammas, model_error=error)
    here = [] if place is None else known.of(target.facts.ref, place.environment_key)
    if question.gammas != GAMMAS:
        found = [p for p in found if p.gamma in (0, *question.gammas)]
    found = as_measured(found, [arm for arm in here if _comparable(arm, question.workload)])
    if question.request is not None:
        found = with_request(found, question.request, costs, plain)
    untimed = {way: draft for way, draft in drafts.items() if way not in costs}
    file = None if target.here or place is None else _file_of(target)
    room = None if place is None else place.safe_bytes
    gaps: dict[Gap, bool] = {
        "acceptance": not is_own,
        "memory": file is not None and room is not None and (file.n_bytes or 0) > room,
        "target": not target.here,
    }
    asked_texts = (question.workload,) if question.workload else tuple(sorted(texts))
    recommendation = recommend(
        target.facts.ref.id,
        question.workload,
        found,
        plain,
        [gap for gap, is_open in gaps.items() if is_open],
        tuple(_to_time(target, plain, untimed if _can_pay(found) else {}, known, place)),
        _fetch(file, found) if file is not None and plain.basis == "shape" else (),
        question.target if Path(question.target).is_file() else _with_block(target, drafts),
        asked_texts,
        question.options,
    )
    best = drafts.get(recommendation.best.way)
    weights = [model.facts.weight_bytes for model in (target, best) if model is not None]
    return TargetAdvice(
        recommendation=recommendation,
        target=target,
        drafts=tuple(draft for draft in drafts.values() if draft is not None),
        draft_file=str(best.path) if best is not None and best.here else None,
        validation=validation,
        modelled=plain.basis == "bandwidth",
        untimed=tuple(way.name for way in untimed),
        draft_sources={way.draft.id: c.draft_source for way, c in costs.items() if way.draft and c.draft_source},
        notes=(*known.notes, *_other_files(target, known), *_needs(target, recommendation)),
        measured=tuple(answers(here)),
        weight_bytes=None if None in weights else sum(n for n in weights if n is not None),
        limit_bytes=room,
    )


def _comparable(arm: ArmResult, workload: str | None) -> bool:
    """Whether what was measured of an arm answers the question: our engine's, on this workload or on any."""
    if arm.is_plain or arm.control or arm.case.source != "engine":
        return False
    return workload is None or workload == arm.text or {*arm.workloads} == {workload}


# --- which drafters, and how often they are right -------------------------------------------------------------------


def _asked_ways(question: AdviceQuestion, own: Sequence[ArmResult]) -> list[Arm] | None:
    """The drafters that were asked for; a draft's file is the model that was measured where its content is the same."""
    if question.drafts is None:
        return None
    measured = [draft for arm in own if (draft := arm.case.drafter.draft) is not None]
    found = []
    for text in question.drafts:
        if is_method(text):
            found.append(arm_named(text))
            continue
        if is_method(text.partition(":")[0]):
            from mlsd.drafters.options import parse_drafter  # which loads every method

            spec = parse_drafter(text)
            found.append(arm_named(spec.name, None, options_text(spec)))
            continue
        try:
            ref = resolve_model(text).ref if measured else None
        except MlsdError:
            ref = None
        same = [draft.id for draft in measured if draft.id == text or (ref is not None and same_model(draft, ref))]
        found.append(arm_named(DRAFT_MODEL, same[0] if same else text))
    return found


def _is_asked(way: Arm, asked: Iterable[Arm]) -> bool:
    """Whether a drafter was asked for: a method without options is asked with any, a draft with any method."""
    return any(
        way == one
        or (one.draft is None and not one.options and way.method == one.method)
        or (one.draft is not None and way.draft == one.draft)
        for one in asked
    )


def _acceptances(
    target: KnownModel, own: Sequence[ArmResult], question: AdviceQuestion, asked: Sequence[Arm] | None
) -> tuple[list[Acceptance], bool]:
    """What is known of drafters: own measurements, then references, then ranges, for drafts not yet named.

    And whether any of it was measured here.
    """
    name, workload = target.facts.ref.id, question.workload
    drafting = [arm for arm in own if not arm.is_plain]
    measured = own_acceptances(arm for arm in drafting if _comparable(arm, workload))
    elsewhere = [any_acceptance(way, workload) for way in dict.fromkeys(map(way_of, drafting))]
    # Qwen3.5 has a prediction block, Gemma 4 an assistant to load; other heads and look-ups are asked for by name.
    predicts = target.shape is not None and target.shape.name.startswith(("qwen3.5", "gemma-4"))
    mtp = [arm_named("mtp")] if predicts and _why_not_mtp(target) is None else []
    more = [any_acceptance(way, workload) for way in dict.fromkeys((*mtp, *(asked or ())))]
    published = [a for a in reference_acceptance(name) if None in (workload, a.workload) or a.workload == workload]
    everything: dict[Arm, Acceptance] = {}
    for a in (*measured, *published, *assumed_acceptance(name), *elsewhere, *more):
        everything.setdefault(a.way, a)
    if asked is not None:
        for way in asked:
            if way.method == "mtp" and (why := _why_not_mtp(target)) is not None:
                raise InputError(why, hint="Use a GGUF converted with the model's MTP layers.")
        known_ways = {a.way for a in (*measured, *elsewhere)}
        bare = {way for way in asked if any(one != way and _is_asked(one, [way]) for one in known_ways)}
        everything = {way: a for way, a in everything.items() if _is_asked(way, asked) and way not in bare - known_ways}
    if question.stated is not None:
        if len(everything) != 1:
            raise InputError(
                "An acceptance is that of one draft or method.", hint="Name it: --draft MODEL, or --drafter METHOD."
            )
        return [stated_acceptance(way, question.stated) for way in everything], False
    return list(everything.values()), any(a.way in everything for a in measured)


def _why_not_mtp(target: KnownModel) -> str | None:
    """Why MTP cannot draft for the target's file; None where it can, or its file is not here."""
    if target.path is None:
        return None
    from mlsd.drafters import check_target

    try:
        check_target(DrafterSpec(name="mtp"), target.path)
    except MlsdError as error:
        return str(error)
    return None


def _with_block(target: KnownModel, drafts: Iterable[Arm]) -> str:
    """The manifest's file with the next-token block of a target that is not here, where MTP alone is asked for."""
    if target.here or target.shape is None or {way.method for way in drafts} != {"mtp"}:
        return ""
    same = (target.shape.name, target.quant)
    return next((e.id for e in load_manifest() if "-mtp-" in e.id and shape_of(e.id) == same), "")


def _other_files(target: KnownModel, known: Known) -> list[str]:
    """That trials of another file under the target's name do not count."""
    ref = target.facts.ref
    named_so = [arm for arms in known.arms.values() for arm in arms if arm.case.target.id == ref.id]
    if not named_so or known.of(ref):
        return []
    return [f"What was measured of {ref.id} was another file of that name: its content differs, so it does not count."]


def _needs(target: KnownModel, found: Recommendation) -> list[str]:
    """What must be there for MTP, where it is answered for a file that nobody has seen."""
    name = target.facts.ref.id.lower()
    if target.here or "mtp" in name or not any(p.drafter == "mtp" for p in found.prospects):
        return []
    if name.startswith("gemma-4"):
        return ["mtp drafts with Gemma 4's assistant, a file of its own."]
    return ["mtp needs a GGUF with the model's next-token block (-mtp in `mlsd models list`); many files leave it out."]


def _costs(
    target: KnownModel,
    drafts: Mapping[Arm, KnownModel | None],
    known: Known,
    place: Place | None,
    question: AdviceQuestion,
) -> Costed:
    if question.chip is not None:
        return costs_by_chip(
            target, drafts, question.chip, question.gammas, question.runtime, question.build, question.depth
        )
    assert place is not None
    n_prompt = None if question.request is None else question.request.prompt_tokens
    found = own_costs(target, drafts, known, place.environment_key, n_prompt)
    if found := found or costs_by_shape(target, drafts, known, place.environment_key):
        return found
    if place.chip is not None:
        return costs_by_chip(target, drafts, place.chip, question.gammas, build=question.build or place.build)
    name = target.facts.ref.id
    if target.shape is None or target.here:
        called = quoted(question.target if Path(question.target).is_file() else name)
        again = f" {question.options}" if question.options else ""
        hint = f"Run `mlsd calibrate {called}{again}`, or name a machine with --chip."
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
    untimed: Mapping[Arm, KnownModel | None],
    known: Known,
    place: Place | None,
) -> list[str]:
    """Shapes to time: a target of which one depth was timed or none, and untimed drafts."""
    if target.here or target.shape is None or plain.measured:
        return []
    if plain.basis == "bandwidth":
        return timing_commands([target])
    from mlsd.analysis.predict.shapes import shape_costs

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
