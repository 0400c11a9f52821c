"""One question about a target, answered: which draft, method and gamma, how fast, how sure, and what to do next."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from mlsd.analysis.advise.acceptance import (
    HEADS,
    PLAIN_ARM,
    Acceptance,
    Stated,
    any_acceptance,
    arm_of,
    is_method,
    known_acceptances,
    own_acceptances,
)
from mlsd.analysis.advise.cost_sources import Drafts, costs_by_chip, costs_by_shape, own_costs
from mlsd.analysis.advise.known_model import KnownModel, named
from mlsd.analysis.advise.next_steps import next_steps, timing_commands
from mlsd.analysis.advise.prospects import (
    Recommendation,
    RequestSize,
    as_measured,
    prospects,
    recommend,
    with_request,
)
from mlsd.analysis.predict.costs import CostRange
from mlsd.analysis.predict.evidence import Evidence, predictable, same_model
from mlsd.analysis.predict.prediction_error import Validation, validate
from mlsd.analysis.results.widths import widths_words
from mlsd.engine.vocabulary import MAX_SIZE_DIFFERENCE
from mlsd.errors import AnalysisError, InputError, MlsdError, ModelFileError, choose
from mlsd.hardware.apple_passes import Runtime
from mlsd.methods import METHODS
from mlsd.models.library import resolve_model
from mlsd.planning.prompts import load_prompt, prompt_names
from mlsd.planning.question import options_of, parse_drafter
from mlsd.records import DRAFT_MODEL, DrafterSpec, EngineOptions, Record
from mlsd.trials.arms import Arm, arm_named, options_text
from mlsd.trials.on_or_off import Answer, answers
from mlsd.trials.results import ArmResult
from mlsd.units import quoted

GAMMAS = (1, 2, 4, 8, 16)
_SE_OF_MEDIAN_ERROR = 1.4826  # median absolute deviation -> standard deviation of a normal error


class AdviceQuestion(Record, frozen=True, kw_only=True):
    """What is to be answered. Raises: InputError for gammas that mean nothing."""

    target: str  # path, id or shape
    drafts: tuple[str, ...] | None = None  # only these drafts or methods, with options as --drafter takes them
    drafters: tuple[str, ...] = ()  # of them what can be no draft model
    workload: str | None = None
    stated: Stated | None = None  # of the one draft or method; None: what is known
    gammas: tuple[int, ...] = GAMMAS
    quant: str | None = None  # of a target that is only a shape
    request: RequestSize | None = None  # whose whole time is to be answered
    engine: EngineOptions = EngineOptions()  # what was measured otherwise is no evidence
    options: str = ""  # engine and database as they were typed, for the commands that go on from here

    def __post_init__(self) -> None:
        if not self.gammas or min(self.gammas) < 1:
            raise InputError("--gamma must hold numbers of at least 1.")


class AdvisedMachine(Record, frozen=True, kw_only=True):
    """The machine that the answer is for."""

    environment_key: str | None = None  # of this one; None: another one, of which only its chip is known
    runtime: Runtime | None = None  # whose passes public rows tell; None: on no known Apple chip
    build_assumed: bool = False  # the build that runs there was not given
    depth: int = 0  # tokens of context before the output, of such passes
    limit_bytes: int | None = None  # what models may take
    memories_gib: tuple[int, ...] = ()  # of Macs that were sold with another machine's chip


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
    widths: str = ""  # what passes as wide as those of the best setting, or of the first to measure, were shown to give
    measured: tuple[Answer, ...] = ()  # what trials of the target on this machine say, of each text by itself
    weight_bytes: int | None = None  # of the target and the draft of the best setting, or of the first to measure
    weight_draft: str | None = None  # the id of that draft
    limit_bytes: int | None = None  # what models may take of this machine
    memories_gib: tuple[int, ...] = ()  # of Macs that were sold with another machine's chip


def _prompts(measured: Iterable[ArmResult], workload: str | None) -> tuple[str, ...]:
    """Names of the prompts that were measured of a kind of text, by default of all; else of a shipped one of it."""
    drafted = [one.case.prompt for arm in measured if not arm.is_plain for one in arm.trials]
    prompts = {prompt.key for prompt in drafted if workload in (None, prompt.workload, prompt.key)}
    if prompts or workload is None or workload in prompt_names():
        return tuple(sorted(prompts)) or ((workload,) if workload else ())
    return next(((name,) for name in prompt_names() if load_prompt(name).workload == workload), (workload,))


def answer(question: AdviceQuestion, evidence: Evidence, machine: AdvisedMachine) -> TargetAdvice:
    """Answer from what databases, references and models say.

    Raises: InputError or ModelFileError for a target that nobody knows, AnalysisError where nothing tells its costs.
    """
    key, models = machine.environment_key, evidence.models.values()
    target = named(question.target, question.quant, models, elsewhere=key is None)
    ref = target.facts.ref
    usable = predictable(evidence.of(ref))
    texts = {text for arm in usable if not arm.is_plain for text in arm.workloads}
    if question.workload is None and len(texts) == 1:  # what was measured on one text speaks of that text
        question = replace(question, workload=texts.pop())
    ways = _chosen_ways(question, usable)
    acceptances = _acceptances(target, usable, question, ways)
    drafts = dict[Arm, KnownModel | None]()
    for acceptance in acceptances:  # a database may name drafts that it does not describe and that are not here
        with suppress(*(() if ways else (InputError, ModelFileError))):
            draft = acceptance.arm.draft
            drafts[acceptance.arm] = None if draft is None else named(draft.id, stored=models, elsewhere=key is None)
    for model in drafts.values():
        _check_vocabularies(target, model)
    lengths = sorted({*question.gammas, *(gamma for acceptance in acceptances for gamma in acceptance.measured)})
    costs = _costs(target, drafts, evidence, machine, question, lengths)
    plain = costs[PLAIN_ARM]
    # What trials of this machine's models showed says nothing of another machine's costs.
    modelled = plain.basis == "bandwidth"
    validation = None if modelled else validate(evidence)
    error = validation.median_error * _SE_OF_MEDIAN_ERROR if validation else 0.0
    predicted = prospects(
        costs, [acceptance for acceptance in acceptances if acceptance.arm in drafts], question.gammas, error
    )
    if question.gammas != GAMMAS:
        predicted = [p for p in predicted if p.gamma in (0, *question.gammas)]
    asked = _settings(question.engine)
    here = [] if key is None else [arm for arm in evidence.of(ref, key) if asked <= _settings(arm.case.engine)]
    predicted = as_measured(predicted, [arm for arm in here if _comparable(arm, question.workload)])
    if question.request is not None:
        predicted = with_request(predicted, question.request, costs)
    served = modelled and machine.runtime is not None and machine.runtime.engine != "llama.cpp"
    recommendation = recommend(ref.id, question.workload, predicted, plain, served=served)
    steps = next_steps(question, machine, recommendation, target, drafts, costs, _prompts(usable, question.workload))
    recommendation = replace(recommendation, next_steps=tuple(steps))
    best = drafts.get(recommendation.best.arm)
    tell = [recommendation.best] if recommendation.best.gamma else recommendation.to_measure
    shown = recommendation.to_measure or (recommendation.prospects if question.drafts else ())
    if best is None:  # what is to be measured is loaded, too, and so is what was asked about
        best = next((model for p in shown if (model := drafts.get(p.arm)) is not None), None)
    weights = [model.facts.weight_bytes for model in (target, best) if model is not None]
    return TargetAdvice(
        recommendation=recommendation,
        target=target,
        drafts=tuple(draft for draft in drafts.values() if draft is not None),
        draft_file=str(best.path) if best is not None and best.here else None,
        validation=validation,
        modelled=modelled,
        untimed=tuple(arm.name for arm in drafts if arm not in costs),
        draft_sources={arm.draft.id: c.draft_source for arm, c in costs.items() if arm.draft and c.draft_source},
        notes=(*evidence.notes, *_notes(target, evidence, recommendation)),
        widths=widths_words(evidence.widths.get((key or "", ref.key), {}), 1 + (tell[0].gamma if tell else 0)),
        measured=tuple(answers(here)),
        weight_draft=None if best is None else best.facts.ref.id,
        weight_bytes=None if None in weights else sum(n for n in weights if n is not None),
        limit_bytes=machine.limit_bytes,
        memories_gib=machine.memories_gib,
    )


def _check_vocabularies(target: KnownModel, draft: KnownModel | None) -> None:
    """Raises: InputError for two models whose vocabularies, as files or shapes, differ by more than their padding."""
    sizes = [m.facts.n_vocab for m in (target, draft) if m is not None and (m.here or m.shape is not None)]
    if draft is not None and len(sizes) == 2 and abs((sizes[0] or 0) - (sizes[1] or 0)) > MAX_SIZE_DIFFERENCE:
        raise InputError(
            f"{draft.facts.ref.id} has {sizes[1]} tokens, {target.facts.ref.id} {sizes[0]}: they share no vocabulary.",
            hint="Name a draft of the target's family.",
        )


def _settings(engine: EngineOptions) -> set[tuple[str, str]]:
    """What of an engine is not as by default, by the name of the option."""
    options = options_of(engine)
    return set(zip(options[::2], options[1::2], strict=True))


def _comparable(arm: ArmResult, workload: str | None) -> bool:
    """Whether what was measured of an arm answers the question: our engine's, on this workload or on any."""
    if arm.is_plain or arm.control or arm.case.source != "engine":
        return False
    return workload is None or workload == arm.text or {*arm.workloads} == {workload}


# --- which drafters, and how often they are right -------------------------------------------------------------------


def _chosen_ways(question: AdviceQuestion, usable: Sequence[ArmResult]) -> list[Arm] | None:
    """The drafters that were named; a draft's file is the model that was measured where its content is the same."""
    if question.drafts is None:
        return None
    measured = [draft for arm in usable if (draft := arm.case.drafter.draft) is not None]
    chosen = []
    for text in question.drafts:
        name = text.partition(":")[0]
        if is_method(name) or (name == DRAFT_MODEL and "draft=" in text):
            spec = parse_drafter(text)
            own_draft = str(spec.options["draft"]) if name == DRAFT_MODEL else None
            rest = {key: value for key, value in spec.options.items() if key != "draft" or own_draft is None}
            chosen.append(arm_named(name, own_draft, options_text(replace(spec, options=rest))))
            continue
        from mlsd.drafters import UNAVAILABLE, find_method  # which loads numpy

        if name in METHODS or name in UNAVAILABLE or ".py:" in text:
            find_method(name)  # which says why there is none
            raise InputError(
                f"What {name} drafts is not predicted.",
                hint=f"Measure it: mlsd bench {quoted(question.target)} --drafter {quoted(text)}.",
            )
        if text in question.drafters:
            names = sorted({*METHODS, *HEADS})
            raise InputError(f"There is no drafting method {text!r}.", hint=choose(name, names))
        try:
            ref = resolve_model(text).ref if measured else None
        except MlsdError:
            ref = None
        same = [draft.id for draft in measured if draft.id == text or (ref is not None and same_model(draft, ref))]
        chosen.append(arm_named(DRAFT_MODEL, same[0] if same else text))
    return chosen


def _means(chosen: Arm, arm: Arm) -> bool:
    """Whether who names the one means the other: a method without options has any, a draft any method."""
    if chosen.draft is not None:
        return arm.draft == chosen.draft
    return arm == chosen or (not chosen.options and arm.method == chosen.method)


def _acceptances(
    target: KnownModel, usable: Sequence[ArmResult], question: AdviceQuestion, chosen: Sequence[Arm] | None
) -> list[Acceptance]:
    """What is known of drafters: own measurements, then references, then ranges, for drafts not yet named."""
    name, workload = target.facts.ref.id, question.workload
    drafting = [arm for arm in usable if not arm.is_plain]
    measured = own_acceptances(arm for arm in drafting if _comparable(arm, workload))
    ran = dict.fromkeys(map(arm_of, drafting))
    # Qwen3.5 has a prediction block, Gemma 4 an assistant to load; other heads and look-ups are asked for by name.
    predicts = target.shape is not None and target.shape.name.startswith(("qwen3.5", "gemma-4"))
    mtp = [arm_named("mtp")] if predicts and _why_not_mtp(target) is None else []
    published = known_acceptances(name, workload)
    ranges = [any_acceptance(arm, workload) for arm in dict.fromkeys((*ran, *mtp, *(chosen or ())))]
    everything: dict[Arm, Acceptance] = {}
    for a in (*measured, *published, *ranges):
        everything.setdefault(a.arm, a)
    if chosen is not None:
        if "mtp" in {arm.method for arm in chosen} and (why := _why_not_mtp(target)) is not None:
            raise InputError(why, hint="Use a GGUF converted with the model's MTP layers.")
        # A method that ran with options alone is not predicted without them, too.
        bare = {arm for arm in chosen if arm not in ran and any(_means(arm, one) for one in ran)}
        everything = {w: a for w, a in everything.items() if w not in bare and any(_means(one, w) for one in chosen)}
    if question.stated is not None:
        if len(everything) != 1:
            raise InputError(
                "An acceptance is that of one draft or method.", hint="Name it: --draft MODEL, or --drafter METHOD."
            )
        return [question.stated.of(arm) for arm in everything]
    return list(everything.values())


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


def _notes(target: KnownModel, evidence: Evidence, advice: Recommendation) -> Iterator[str]:
    """That trials of another file under the target's name do not count, and what MTP needs of a file not here."""
    ref, name = target.facts.ref, target.facts.ref.id.lower()
    named_so = any(arm.case.target.id == ref.id for arms in evidence.arms.values() for arm in arms)
    if named_so and not evidence.of(ref):
        yield f"What was measured of {ref.id} was another file of that name: its content differs, so it does not count."
    if target.here or "mtp" in name or not any(p.drafter == "mtp" for p in advice.prospects):
        return
    needs = "needs a GGUF with the model's next-token block (-mtp in `mlsd models list`); many files leave it out."
    if name.startswith("gemma-4"):
        needs = "drafts with Gemma 4's assistant, a file of its own."
    yield f"mtp {needs}"


def _costs(
    target: KnownModel,
    drafts: Drafts,
    evidence: Evidence,
    machine: AdvisedMachine,
    question: AdviceQuestion,
    gammas: Sequence[int],
) -> Mapping[Arm, CostRange]:
    """Those of this machine, of the shape here, or of the chip."""
    if (key := machine.environment_key) is not None:
        n_prompt = None if question.request is None else question.request.prompt_tokens
        if costs := own_costs(target, drafts, evidence, key, n_prompt) or costs_by_shape(target, drafts, evidence, key):
            return costs
    if machine.runtime is not None:
        return costs_by_chip(target, drafts, machine.runtime, gammas, machine.depth)
    name = target.facts.ref.id
    if target.shape is None or target.here:
        called = quoted(question.target if Path(question.target).is_file() else name)
        drafted = "".join(f" --draft {quoted(one)}" for one in question.drafts or () if one not in question.drafters)
        again = drafted + (f" {question.options}" if question.options else "")
        hint = f"Run `mlsd calibrate {called}{again}`, or name a machine with --chip."
    else:
        commands = "\n  ".join(timing_commands([target, *drafts.values()]))
        hint = f"Name a machine with --chip, or time this one on synthetic weights, without a download:\n  {commands}"
    raise AnalysisError(
        f"No pass of {name} was timed on this machine, and its chip is not a known Apple chip.", hint=hint
    )
