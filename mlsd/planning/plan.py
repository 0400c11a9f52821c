"""From suites and a profile to an ordered plan: which cases, in which blocks, on which loads of models.

A block holds the arms that are measured together, in random order, plain decoding among them. Repeats are the outermost
loop, so that slow drift of the machine spreads over all cases.
"""

import hashlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mlsd.drafters import check_target, resolve_spec
from mlsd.errors import InputError, ModelFileError, SuiteError, UnsupportedError, choose
from mlsd.limits import PLAN_TRIALS
from mlsd.models.library import Library, LocalModel
from mlsd.planning.job import Job, ModelFile, Slot, TrialRole, file_of, prompt_key
from mlsd.planning.prompts import LoadPrompt, load_prompt
from mlsd.planning.request import AS_WRITTEN, MOST_BLOCKS, BenchRequest, Overrides, Setting, StudyRequest
from mlsd.planning.suite import DrafterChoice, Part, Profile, Suite
from mlsd.records import (
    DRAFT_MODEL,
    Case,
    DrafterSpec,
    ModelRef,
    PromptRef,
    Record,
    Sampling,
)
from mlsd.stats import grouped

Refuse = Callable[[DrafterSpec, str], str | None]  # (method, id of the target) -> why it cannot work there


class LeftOut(Record, frozen=True, kw_only=True):
    """A part of a suite that the profile cannot measure, and why."""

    suite: str
    role: str
    model: str | None  # the other model of the pair, where the role is a draft
    n_trials: int  # study trials missing because of it
    reason: str

    @property
    def words(self) -> str:
        pair = f" for {self.model}" if self.model else ""
        return f"Left out of suite {self.suite}: {self.role}{pair} ({self.n_trials} trials): {self.reason}"


class Plan(Record, frozen=True, kw_only=True):
    """Everything to be measured, in order."""

    profile: str | None  # None: a bench
    title: str = ""  # of the profile: whose models, and what they answer
    suites: tuple[str, ...]
    seed: int
    loads: tuple[Job, ...]  # one for each target and the drafts beside it
    left_out: tuple[LeftOut, ...] = ()

    def slots(self) -> Iterator[Slot]:
        return itertools.chain.from_iterable(load.slots for load in self.loads)

    def cases(self) -> dict[str, Case]:
        return {slot.case_id: slot.case for slot in self.slots()}

    def models(self) -> dict[str, ModelRef]:
        return {ref.id: ref for load in self.loads for ref in load.refs}

    @property
    def study_trials(self) -> dict[str, int]:
        """Trials of the study by suite; a suite that is left out counts 0."""
        counts = Counter(slot.case.suite for slot in self.slots() if slot.role == "study")
        return {suite: counts[suite] for suite in self.suites}

    @property
    def paired_baselines(self) -> int:
        return sum(slot.role == "baseline" for slot in self.slots())


def expand(
    suites: Sequence[Suite],
    profile: Profile,
    models: Mapping[str, ModelFile],
    overrides: Overrides = AS_WRITTEN,
    *,
    load: LoadPrompt = load_prompt,
    refuse: Refuse | None = None,
) -> Plan:
    """Bind roles to models, build every case, pair and order them.

    `models` gives the model of each id: the manifest's idea of it to plan, the real file to run. `load` gives the
    prompt of each name; `refuse` says why a method cannot work on the target of an id, or None when it can.

    Raises: SuiteError for a role or model that does not exist or a plan with too many trials; PromptError.
    """
    grids = _Grids(profile, models, overrides, load, refuse)
    for suite in suites:
        for part in suite.parts:
            grids.add(suite, part)
    loads = grids.loads()
    return Plan(
        profile=profile.name,
        title=profile.title,
        suites=tuple(suite.name for suite in suites),
        seed=overrides.seed,
        loads=loads if overrides.limit is None else _limited(loads, overrides.limit),
        left_out=grids.left_out,
    )


def plan_bench(request: BenchRequest, *, first: int = 0, side: str = "") -> Plan:
    """One target, plain and with every method at each of its gammas, in a block of every prompt.

    Every method and every prompt stand in one interleaved order, all models in memory at once. Repeats count from
    `first`; of a `side` blocks are its own, though another side may have the same cases. Raises: SuiteError.
    """
    repeats, prompts = request.repeats if request.goal is None else MOST_BLOCKS, {p.key: p for p in request.prompts}
    _check_size(request.suite, repeats * len(prompts) * (1 + sum(len(gammas) for _, gammas in request.arms)))
    plains = [_plain(request.suite, request.target.ref, p.ref, request.n_predict, request) for p in request.prompts]
    cases = [_cases(plain, "baseline" if request.arms else "study", request.rollback, request.arms) for plain in plains]
    drafts, blocks = tuple(map(file_of, request.models)), dict.fromkeys(range(first, first + repeats), cases)
    load = _job(file_of(request.target), drafts, blocks, request.seed, prompts.__getitem__, side)
    return Plan(profile=None, suites=(request.suite,), seed=request.seed, loads=(load,))


def used_models(suites: Iterable[Suite], profile: Profile, overrides: Overrides = AS_WRITTEN) -> tuple[str, ...]:
    """The models that a plan of these suites can use, by id; `expand` may still leave some of them out."""
    found: list[str | None] = []
    for part in (part for suite in suites for part in suite.parts):
        targets = [profile.roles.get(role, role) for role in part.targets if role not in profile.left_out]
        found += targets
        drafts = [choice.draft for choice in _drafters(part, overrides.drafts) if targets]
        found += [profile.roles.get(draft, draft) for draft in drafts if draft and draft not in profile.left_out]
    return tuple(dict.fromkeys(id_ for id_ in found if id_ is not None))


_Models = tuple[str, tuple[ModelRef, ...]]  # name of a target, and the drafts loaded beside it
_Cases = list[tuple[Case, str, TrialRole]]  # of one block, the plain one first, each with its id


class _Grids:
    """Collects the cells of every load, and what had to be left out."""

    def __init__(
        self,
        profile: Profile,
        models: Mapping[str, ModelFile],
        overrides: Overrides,
        load: LoadPrompt,
        refuse: Refuse | None,
    ) -> None:
        self._profile, self._models, self._overrides = profile, models, overrides
        self._load, self._refuse = load, refuse
        self._n_trials = 0
        self._prompts: dict[str, PromptRef] = {}
        self._measured: dict[bytes, str] = {}  # what a suite measures already -> the target's role
        # Of each load the blocks of each repeat.
        self._blocks: dict[_Models, dict[int, list[_Cases]]] = defaultdict(lambda: defaultdict(list))
        self._left_out: dict[tuple[str, str, str | None, str], int] = {}

    def add(self, suite: Suite, part: Part) -> None:
        """All cells of one part."""
        prompts = self._overrides.prompts or part.prompts
        repeats = self._overrides.repeats or suite.repeats
        choices = self._choices(part)
        self._n_trials += len(part.targets) * len(prompts) * repeats * sum(len(gammas) + 1 for _, gammas in choices)
        _check_size(suite.name, self._n_trials)
        n_predict = self._overrides.n_predict or suite.n_predict
        rollback = self._overrides.rollback if part.rollback == "auto" else part.rollback
        plain_is: TrialRole = "baseline" if part.drafters and part.baseline == "paired" else "study"
        for role in part.targets:
            arms: list[tuple[_Models, int, DrafterSpec, tuple[int, ...]]] = []
            for number, (choice, gammas) in enumerate(choices):
                own_plain = choice is None or part.baseline == "study"
                n_trials = (len(gammas) + own_plain) * len(prompts) * repeats
                arm = self._arm(suite, role, choice, gammas, prompts, n_trials)
                if arm is not None:
                    target, spec = arm
                    drafts = (spec.draft,) if spec.draft else ()
                    arms.append(((target, drafts), 0 if part.together or part.one_load else number, spec, gammas))
            if part.one_load:
                together = tuple(dict.fromkeys(draft for (_, drafts), *_ in arms for draft in drafts))
                arms = [((models[0], together), number, spec, gammas) for models, number, spec, gammas in arms]
            for (models, _), sharing in grouped(arms, lambda arm: arm[:2]).items():
                target_ref, specs = self._models[models[0]].ref, [arm[2:] for arm in sharing]
                for prompt in prompts:
                    plain = _plain(suite.name, target_ref, self._prompt(prompt), n_predict, self._overrides)
                    cases = _cases(plain, plain_is, rollback, specs)
                    for repeat in range(repeats):
                        self._blocks[models][repeat].append(cases)

    def loads(self) -> tuple[Job, ...]:
        """Loads in order of first use, those of one target together: its file then still lies in the page cache."""
        targets = dict.fromkeys(target for target, _ in self._blocks)
        return tuple(self._load_of(*models) for target in targets for models in self._blocks if models[0] == target)

    def _load_of(self, target: str, drafts: tuple[ModelRef, ...]) -> Job:
        files = {file.ref: file for file in self._models.values()}
        blocks, models = self._blocks[target, drafts], tuple(files[draft] for draft in drafts)
        return _job(self._models[target], models, blocks, self._overrides.seed, self._load)

    def _choices(self, part: Part) -> list[tuple[DrafterChoice | None, tuple[int, ...]]]:
        """The drafters of a part, each with its gammas; None is plain decoding."""
        drafters = _drafters(part, self._overrides.drafts)
        if not drafters:
            return [(None, ())]
        return [(choice, self._overrides.gammas or choice.gammas or part.gammas) for choice in drafters]

    def _arm(
        self,
        suite: Suite,
        role: str,
        choice: DrafterChoice | None,
        gammas: tuple[int, ...],
        prompts: tuple[str, ...],
        n_trials: int,
    ) -> tuple[str, DrafterSpec] | None:
        """The target of a role and a drafter on it, or None when they are left out, which is noted."""
        target, reason = self._bound(role)
        if target is None:
            self._leave_out(suite, role, None, n_trials, reason)
            return None
        spec = self._drafter(suite, choice, target, n_trials)
        if spec is None:
            return None
        measured = msgspec.json.encode((suite.name, target, spec, gammas, prompts), order="sorted")
        if measured in self._measured:
            reason = f"{self._measured[measured]} is the same model in this profile"
            self._leave_out(suite, role, None, n_trials, reason)
            return None
        refusal = self._refuse(spec, target) if self._refuse is not None else None
        if refusal is not None:
            self._leave_out(suite, spec.name, target, n_trials, refusal)
            return None
        self._measured[measured] = role
        return target, spec

    def _bound(self, role: str) -> tuple[str | None, str]:
        """The model id of a role, or None with the reason why there is none."""
        is_id = role in self._models and role not in self._profile.left_out
        model = self._profile.roles.get(role, role if is_id else None)
        if model is None:
            default = f"profile {self._profile.name} binds no model to {role}"
            return None, self._profile.left_out.get(role, default)
        if model not in self._models:
            raise SuiteError(
                f"Profile {self._profile.name} binds {role} to {model!r}, which is not in the model manifest.",
                hint="`mlsd models list` shows all; correct the profile.",
            )
        return model, ""

    def _drafter(self, suite: Suite, choice: DrafterChoice | None, target: str, n_trials: int) -> DrafterSpec | None:
        """The drafter of a choice on a target, or None when it is left out; no choice is plain decoding."""
        if choice is None:
            return DrafterSpec()
        if choice.draft is None:
            return choice.spec
        known = choice.draft in self._profile.roles or choice.draft in self._profile.left_out
        if not known and choice.draft in self._models:  # named by its id on the command line
            model: str | None = choice.draft
            reason = ""
        elif not known and self._overrides.drafts is not None:
            roles = [role for role in self._profile.roles if role.startswith("draft")]
            raise SuiteError(
                f"There is no draft called {choice.draft!r} in profile {self._profile.name}.",
                hint=choose(choice.draft, roles or ["no role"], ", or give a model id of `mlsd models list`"),
            )
        else:
            model, reason = self._bound(choice.draft)
        if model == target:
            model, reason = None, "the draft is the target itself in this profile"
        if model is None:
            self._leave_out(suite, choice.draft, target, n_trials, reason)
            return None
        return msgspec.structs.replace(choice.spec, draft=self._models[model].ref)

    def _leave_out(self, suite: Suite, role: str, model: str | None, n_trials: int, reason: str) -> None:
        """Note what is missing; what is missing for one reason is one entry."""
        key = (suite.name, role, model, reason)
        self._left_out[key] = self._left_out.get(key, 0) + n_trials

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What had to be left out, in the order it was noted."""
        return tuple(
            LeftOut(suite=suite, role=role, model=model, n_trials=n_trials, reason=reason)
            for (suite, role, model, reason), n_trials in self._left_out.items()
        )

    def _prompt(self, name: str) -> PromptRef:
        if name not in self._prompts:
            self._prompts[name] = self._load(name).ref
        return self._prompts[name]


def _plain(suite: str, target: ModelRef, prompt: PromptRef, n_predict: int, setting: Setting) -> Case:
    """The AR arm. Greedy decoding ignores the seed, so the seed must not make another case of it."""
    return Case(
        suite=suite,
        target=target,
        prompt=prompt,
        n_predict=n_predict,
        sampling=Sampling() if setting.sampling.greedy else setting.sampling,
        engine=setting.engine,
        ignore_eog=setting.ignore_eog,
    )


def _cases(plain: Case, role: TrialRole, rollback: str, arms: Iterable[tuple[DrafterSpec, tuple[int, ...]]]) -> _Cases:
    """The AR arm, then each drafter at each of its gammas."""
    cases: _Cases = [(plain, plain.id, role)]
    for spec, gammas in arms:
        drafted = msgspec.structs.replace(plain, drafter=spec, rollback=rollback)
        own = (msgspec.structs.replace(drafted, gamma=gamma) for gamma in gammas)
        cases += [(case, case.id, "study") for case in own]
    return cases


def _job(
    target: ModelFile,
    drafts: tuple[ModelFile, ...],
    repeats: Mapping[int, list[_Cases]],
    seed: int,
    load: LoadPrompt,
    side: str = "",
) -> Job:
    slots = in_order(repeats, seed, side)
    prompts = {prompt_key(slot.case.prompt): slot.case.prompt for slot in slots}
    texts = {key: load(prompt.key) for key, prompt in prompts.items()}
    return Job(target=target, models=drafts, prompts=texts, slots=slots)


def _drafters(part: Part, drafts: tuple[str, ...] | None) -> tuple[DrafterChoice, ...]:
    """The drafters of a part, its draft models replaced by `drafts` where those are given."""
    models = [choice for choice in part.drafters if choice.name == DRAFT_MODEL]
    if drafts is None or not models:
        return part.drafters
    others = [choice for choice in part.drafters if choice.name != DRAFT_MODEL]
    return (*(msgspec.structs.replace(models[0], draft=draft) for draft in dict.fromkeys(drafts)), *others)


def in_order(
    repeats: Mapping[int, Iterable[Sequence[tuple[Case, str, TrialRole]]]],
    seed: int,
    side: str = "",
    turn: Callable[[str], object] = str,
) -> tuple[Slot, ...]:
    """Repeats outermost; within a repeat the blocks, and within a block the turns, in random order from the seed.

    `turn` says by a case's id which of its block it belongs to; by itself each case is a turn of its own.
    """
    slots: list[Slot] = []
    for repeat, blocks in repeats.items():
        once = [_block(cases, repeat, seed, side, turn) for cases in blocks]
        random.Random(f"{seed} {repeat}").shuffle(once)
        slots += itertools.chain.from_iterable(once)
    return tuple(slots)


def block_number(repeat: int, case_ids: Iterable[str], side: str = "") -> int:
    """The number of the block that measures these cases in a repeat, on a side where there are several."""
    content = " ".join([str(repeat), *sorted(case_ids), *filter(None, (side,))])
    return int(hashlib.sha256(content.encode()).hexdigest()[:12], 16)


def _block(
    cases: Sequence[tuple[Case, str, TrialRole]], repeat: int, seed: int, side: str, turn: Callable[[str], object]
) -> list[Slot]:
    """One repeat of a block; its number and its order depend on nothing but its own content and the seed."""
    number = block_number(repeat, (case_id for _, case_id, _ in cases), side)
    order = list(grouped(cases, lambda one: turn(one[1])).values())
    random.Random(f"{seed} {number}").shuffle(order)
    return [
        Slot(case=case, case_id=case_id, block=number, repeat=repeat, position=position, role=role)
        for position, (case, case_id, role) in enumerate(itertools.chain.from_iterable(order))
    ]


def _limited(loads: Iterable[Job], limit: int) -> tuple[Job, ...]:
    """Whole blocks in order until `limit` study trials are reached."""
    kept, count = [], 0
    for load in loads:
        slots: list[Slot] = []
        for block in load.blocks:
            if count >= limit:
                break
            slots += block.slots
            count += sum(slot.role == "study" for slot in block.slots)
        if slots:
            prompts = {key: load.prompts[key] for key in (prompt_key(slot.case.prompt) for slot in slots)}
            kept.append(msgspec.structs.replace(load, slots=tuple(slots), prompts=prompts))
    return tuple(kept)


def _check_size(suite: str, n_trials: int) -> None:
    if n_trials > PLAN_TRIALS.most:
        raise SuiteError(f"Suite {suite} asks for more than {PLAN_TRIALS.words}.", hint=PLAN_TRIALS.hint)


@dataclass(frozen=True)
class Prepared:
    """A plan, and the files of its models that are on this machine."""

    plan: Plan
    models: Mapping[str, LocalModel] = field(repr=False)  # by id

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(model for model in self.plan.models() if model not in self.models)

    def missing_of(self, load: Job) -> tuple[ModelRef, ...]:
        return tuple(ref for ref in load.refs if ref.id not in self.models)

    def next_to_bring(self) -> Job | None:
        """The load whose models to bring next: the one that misses the fewest bytes; None: nothing is missing.

        Plain decoding of one target and one pair come before all others, for an answer within minutes.
        """
        waiting = [load for load in self.plan.loads if self.missing_of(load)]
        ready = [load for load in self.plan.loads if not self.missing_of(load)]
        for has_draft in (False, True):
            first = [load for load in waiting if bool(load.models) is has_draft]
            if first and not any(bool(load.models) is has_draft for load in ready):
                waiting = first
                break
        unknown = float("inf")
        return min(
            waiting, key=lambda load: sum(ref.n_bytes or unknown for ref in self.missing_of(load)), default=None
        )  # fmt: skip


def prepare_study(
    request: StudyRequest, *, make: bool = False, elsewhere: Mapping[str, ModelRef] | None = None
) -> Prepared:
    """Plan suites on the models of a profile; with `make` every file is here afterwards, made where it can be.

    `elsewhere` are models on the machines that will measure: these need not be here.

    Raises: SuiteError, PromptError, InputError; with `make` also InputError for a plan without any trial, and
    ModelFileError that lists every missing model.
    """
    library, profile, elsewhere = request.library, request.profile, elsewhere or {}
    known = known_models(library)
    used = used_models(request.suites, profile, request.overrides)
    wanted = [id_ for id_ in used if id_ in known and id_ not in elsewhere]
    here = [id_ for id_ in wanted if make or library.locate(library.manifest.find(id_)) is not None]
    models = resolve_all(library, here) if make else {id_: library.resolve(id_) for id_ in here}
    known |= {id_: ModelFile(ref=ref) for id_, ref in elsewhere.items()}
    known |= {id_: file_of(model) for id_, model in models.items()}
    load = request.prompts.__getitem__ if request.prompts else load_prompt
    plan = expand(request.suites, profile, known, request.overrides, load=load, refuse=refusals(models))
    if make and not plan.loads:
        reasons = "; ".join(dict.fromkeys(left.reason for left in plan.left_out))
        raise InputError(
            f"Profile {profile.name} has no models for suite {', '.join(plan.suites)}: {reasons}.",
            hint="See `mlsd run --dry-run`.",
        )
    return Prepared(plan=plan, models=models)


def known_models(library: Library) -> dict[str, ModelFile]:
    """Every model of the manifest, as the manifest alone knows it."""
    return {
        entry.id: ModelFile(ref=ModelRef(id=entry.id, sha256=getattr(entry, "sha256", None), n_bytes=entry.n_bytes))
        for entry in library.manifest
    }


def resolve_all(library: Library, ids: Iterable[str]) -> dict[str, LocalModel]:
    """The files of all models, those that are made locally made now.

    Raises: ModelFileError that lists every model that is missing, and the one command that brings them.
    """
    local, missing = {}, []
    for model_id in ids:
        try:
            local[model_id] = library.resolve(model_id, make=True)
        except ModelFileError:
            missing.append(model_id)
    if missing:
        raise ModelFileError(
            f"Not on this machine: {', '.join(missing)}.",
            hint=f"Bring them with `mlsd models pull {' '.join(missing)}`.",
        )
    return local


def refusals(models: Mapping[str, LocalModel]) -> Refuse:
    """Asks a method whether it can work on a target, from the target's file; what is not here is not asked."""

    def refuse(spec: DrafterSpec, target: str) -> str | None:
        resolve_spec(spec)  # options that cannot be are the suite's mistake, not a property of the target
        if target not in models:
            return None
        draft = models.get(spec.draft.id) if spec.draft else None
        try:
            check_target(spec, models[target].path, None if draft is None else draft.path)
        except (UnsupportedError, InputError) as error:
            return error.message.rstrip(".")
        return None

    return refuse
