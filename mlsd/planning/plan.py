"""The one planner: grids of arms and prompts in, jobs of ordered blocks out. A bench is one grid, a suite several."""

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from mlsd.drafters import check_target, resolve_spec
from mlsd.errors import InputError, ModelFileError, SuiteError, UnsupportedError, choose, did_you_mean
from mlsd.models.library import Library, LocalModel
from mlsd.planning.block_order import PlannedCase, order_blocks
from mlsd.planning.job import Job, ModelFile, Slot, TrialRole, file_of, prompt_key
from mlsd.planning.options import Overrides, Setting
from mlsd.planning.prompts import LoadPrompt, Prompt, load_prompt
from mlsd.planning.request import AS_WRITTEN, MOST_BLOCKS, BenchRequest, StudyRequest
from mlsd.planning.suite import DrafterChoice, Profile, Suite, drafters_of, used_roles
from mlsd.records import Case, DrafterSpec, ModelRef, Record, Sampling
from mlsd.stats import grouped

Unmeasured = tuple[str, str | None, str]  # a role, the other model of its pair, and why both are left out


class LeftOut(Record, frozen=True, kw_only=True):
    """A part of a suite that the profile cannot measure, and why."""

    suite: str
    role: str
    model: str | None  # the other model of the pair, where the role is a draft
    n_trials: int  # study trials missing because of it
    reason: str

    @property
    def sentence(self) -> str:
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

    def models(self) -> dict[str, ModelFile]:
        return {file.ref.id: file for load in self.loads for file in load.files}

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of models that are not on this machine."""
        return tuple(id_ for id_, file in self.models().items() if not file.path)

    def next_to_bring(self) -> Job | None:
        """The load whose models to bring next: the one that misses the fewest bytes; None: nothing is missing.

        Plain decoding of one target and one pair come before all others, for an answer within minutes.
        """
        waiting = [load for load in self.loads if load.missing]
        ready = [load for load in self.loads if not load.missing]
        for has_draft in (False, True):
            first = [load for load in waiting if bool(load.models) is has_draft]
            if first and not any(bool(load.models) is has_draft for load in ready):
                waiting = first
                break
        unknown = float("inf")
        return min(waiting, key=lambda load: sum(ref.n_bytes or unknown for ref in load.missing), default=None)

    @property
    def study_trials(self) -> dict[str, int]:
        """Trials of the study by suite; a suite that is left out counts 0."""
        counts = Counter(slot.case.suite for slot in self.slots() if slot.role == "study")
        return {suite: counts[suite] for suite in self.suites}

    @property
    def paired_baselines(self) -> int:
        return sum(slot.role == "baseline" for slot in self.slots())


# --- grids to jobs ------------------------------------------------------------------------------------------------


class Grid(NamedTuple):
    """Arms that share a block, plain decoding first, on one target: a block for every prompt and repeat."""

    suite: str
    target: ModelFile
    drafts: tuple[ModelFile, ...]  # loaded beside it
    arms: Sequence[tuple[DrafterSpec, tuple[int, ...]]]  # methods, each at its gammas
    prompts: Sequence[Prompt]
    n_predict: int
    repeats: range
    plain_is: TrialRole
    rollback: str

    def cases(self, prompt: Prompt, setting: Setting) -> list[PlannedCase]:
        """The AR arm, then each drafter at each of its gammas."""
        plain = Case(
            suite=self.suite,
            target=self.target.ref,
            prompt=prompt.ref,
            n_predict=self.n_predict,
            # Greedy decoding ignores the seed, so the seed must not make another case of it.
            sampling=Sampling() if setting.sampling.greedy else setting.sampling,
            engine=setting.engine,
            ignore_eog=setting.ignore_eog,
        )
        drafted = (
            replace(plain, drafter=spec, rollback=self.rollback, gamma=gamma)
            for spec, gammas in self.arms
            for gamma in gammas
        )
        return [(plain, plain.id, self.plain_is), *((case, case.id, "study") for case in drafted)]


def plan_grids(grids: Iterable[Grid], setting: Setting, side: str = "") -> tuple[Job, ...]:
    """A job for each load of models, its blocks in order.

    Loads come in order of first use, those of one target together: its file then still lies in the page cache. Of a
    `side` blocks are its own, though another side may have the same cases.
    """
    targets = dict[ModelFile, dict[tuple[ModelFile, ...], list[Grid]]]()
    for grid in grids:
        targets.setdefault(grid.target, {}).setdefault(grid.drafts, []).append(grid)
    jobs = list[Job]()
    for target, loads in targets.items():
        for drafts, shared in loads.items():
            repeats, prompts = dict[int, list[list[PlannedCase]]](), dict[str, Prompt]()
            for grid in shared:
                for prompt in grid.prompts:
                    prompts[prompt_key(prompt.ref)] = prompt
                    cases = grid.cases(prompt, setting)
                    for repeat in grid.repeats:
                        repeats.setdefault(repeat, []).append(cases)
            jobs.append(
                Job(target=target, models=drafts, prompts=prompts, slots=order_blocks(repeats, setting.seed, side))
            )
    return tuple(jobs)


_MOST_TRIALS = 500_000  # of a plan


def _check_size(suite: str, n_trials: int) -> None:
    if n_trials > _MOST_TRIALS:
        raise SuiteError(
            f"Suite {suite} asks for {n_trials:,} trials; a plan holds at most {_MOST_TRIALS:,}.",
            hint="Ask for fewer repeats, prompts or gammas.",
        )


# --- benches and suites to grids ----------------------------------------------------------------------------------


def plan_bench(request: BenchRequest, *, first: int = 0, side: str = "") -> Plan:
    """One target, plain and with every method at each of its gammas, in a block of every prompt.

    Every method and every prompt stand in one interleaved order, all models in memory at once. Repeats count from
    `first`; for `side` see `plan_grids`. Raises: SuiteError.
    """
    repeats = request.repeats if request.goal is None else MOST_BLOCKS
    _check_size(request.suite, repeats * len(request.prompts) * (1 + sum(len(gammas) for _, gammas in request.arms)))
    grid = Grid(
        suite=request.suite,
        target=file_of(request.target),
        drafts=tuple(map(file_of, request.models)),
        arms=request.arms,
        prompts=request.prompts,
        n_predict=request.n_predict,
        repeats=range(first, first + repeats),
        plain_is="baseline" if request.arms else "study",
        rollback=request.rollback,
    )
    loads = plan_grids([grid], request, side)
    return Plan(profile=None, suites=(request.suite,), seed=request.seed, loads=loads)


def expand(
    suites: Sequence[Suite],
    profile: Profile,
    models: Mapping[str, ModelFile],
    overrides: Overrides = AS_WRITTEN,
    *,
    load: LoadPrompt = load_prompt,
    files: Mapping[str, LocalModel] = MappingProxyType({}),
) -> Plan:
    """Bind roles to models, build every case, pair and order them.

    `models` gives the model of each id: the manifest's idea of it to plan, the real file to run. `load` gives the
    prompt of each name; `files` are what is here, by id: methods are asked whether they can work on these targets.

    Raises: SuiteError for a role or model that does not exist or a plan with too many trials; PromptError.
    """
    for draft in overrides.drafts or ():
        if draft not in {*profile.roles, *profile.left_out, *models}:
            roles = [role for role in profile.roles if role.startswith("draft")]
            raise SuiteError(
                f"There is no draft called {draft!r} in profile {profile.name}.",
                hint=did_you_mean(draft, models)
                + choose(draft, roles or ["no role"], ", or give a model id of `mlsd models list`"),
            )
    load, grids, n_trials = functools.cache(load), list[Grid](), 0
    missing = Counter[tuple[str, str, str | None, str]]()  # study trials; what is missing for one reason is one entry
    measured = dict[bytes, str]()  # what a suite measures already -> the target's role
    for suite, part in [(planned, part) for planned in suites for part in planned.parts]:
        prompts, repeats = overrides.prompts or part.prompts, overrides.repeats or suite.repeats
        choices: list[tuple[DrafterChoice | None, tuple[int, ...]]] = [
            (choice, tuple(overrides.gammas or choice.gammas or part.gammas))
            for choice in drafters_of(part, overrides.drafts)
        ] or [(None, ())]
        n_trials += len(part.targets) * len(prompts) * repeats * sum(len(gammas) + 1 for _, gammas in choices)
        _check_size(suite.name, n_trials)
        for role in part.targets:
            target = profile.roles.get(role, role)
            arms = list[tuple[object, DrafterSpec, tuple[int, ...]]]()  # what those share that stand in one block
            for number, (choice, gammas) in enumerate(choices):
                method = _method(role, choice, profile, models, files)
                content = msgspec.json.encode((suite.name, target, method, gammas, prompts), order="sorted")
                if content in measured:
                    method = (role, None, f"{measured[content]} is the same model in this profile")
                if isinstance(method, DrafterSpec):
                    measured[content] = role
                    block = None if part.one_load else (0 if part.together else number, method.draft)
                    arms.append((block, method, gammas))
                else:
                    own_plain = choice is None or part.baseline == "study"
                    missing[suite.name, *method] += (len(gammas) + own_plain) * len(prompts) * repeats
            for block_arms in grouped(arms, lambda arm: arm[0]).values():
                drafts = dict.fromkeys(spec.draft.id for _, spec, _ in block_arms if spec.draft)
                grids.append(
                    Grid(
                        suite=suite.name,
                        target=models[target],
                        drafts=tuple(models[draft] for draft in drafts),
                        arms=[(spec, gammas) for _, spec, gammas in block_arms],
                        prompts=[load(name) for name in prompts],
                        n_predict=overrides.n_predict or suite.n_predict,
                        repeats=range(repeats),
                        plain_is="baseline" if part.drafters and part.baseline == "paired" else "study",
                        rollback=overrides.rollback if part.rollback == "auto" else part.rollback,
                    )
                )
    loads = plan_grids(grids, overrides)
    left = [LeftOut(suite=s, role=role, model=m, reason=why, n_trials=n) for (s, role, m, why), n in missing.items()]
    return Plan(
        profile=profile.name,
        title=profile.title,
        suites=tuple(suite.name for suite in suites),
        seed=overrides.seed,
        loads=loads if overrides.limit is None else _limited(loads, overrides.limit),
        left_out=tuple(left),
    )


def _method(
    role: str,
    choice: DrafterChoice | None,
    profile: Profile,
    models: Mapping[str, ModelFile],
    files: Mapping[str, LocalModel],
) -> DrafterSpec | Unmeasured:
    """A method on the target that plays a role, no choice being plain decoding."""
    target, reason = _model_of(role, profile, models)
    if target is None:
        return role, None, reason
    spec = DrafterSpec() if choice is None else choice.spec
    if choice is not None and choice.draft is not None:
        draft, reason = _model_of(choice.draft, profile, models)
        if draft is None or draft == target:
            return choice.draft, target, reason or "the draft is the target itself in this profile"
        spec = replace(spec, draft=models[draft].ref)
    resolve_spec(spec)  # options that cannot be are the suite's mistake, not a property of the target
    if target in files:
        second = files.get(spec.draft.id) if spec.draft else None
        try:
            check_target(spec, files[target].path, None if second is None else second.path)
        except (UnsupportedError, InputError) as error:
            return spec.name, target, error.message.rstrip(".")
    return spec


def _model_of(role: str, profile: Profile, models: Mapping[str, ModelFile]) -> tuple[str | None, str]:
    """The id of the model that plays a role, or is called so; None with the reason why there is none."""
    model = profile.roles.get(role)
    if model is None and (role in profile.left_out or role not in models):
        return None, profile.left_out.get(role, f"profile {profile.name} binds no model to {role}")
    if model is not None and model not in models:
        raise SuiteError(
            f"Profile {profile.name} binds {role} to {model!r}, which is not in the model manifest.",
            hint=f"{did_you_mean(model, models)}`mlsd models list` shows all.",
        )
    return model or role, ""


def used_models(suites: Iterable[Suite], profile: Profile, overrides: Overrides = AS_WRITTEN) -> tuple[str, ...]:
    """The models that a plan of these suites can use, by id; `expand` may still leave some of them out."""
    roles = [role for role in used_roles(suites, overrides.drafts, profile.left_out) if role not in profile.left_out]
    return tuple(dict.fromkeys(profile.roles.get(role, role) for role in roles))


def _limited(loads: Iterable[Job], limit: int) -> tuple[Job, ...]:
    """Whole blocks in order until `limit` study trials are reached."""
    limited, count = list[Job](), 0
    for load in loads:
        slots: list[Slot] = []
        for block in load.blocks:
            if count >= limit:
                break
            slots += block.slots
            count += sum(slot.role == "study" for slot in block.slots)
        if slots:
            prompts = {key: load.prompts[key] for key in (prompt_key(slot.case.prompt) for slot in slots)}
            limited.append(replace(load, slots=tuple(slots), prompts=prompts))
    return tuple(limited)


def prepare_study(request: StudyRequest, *, make: bool = False) -> Plan:
    """Plan suites on the models of a profile; with `make` every file is here afterwards, made where it can be.

    Raises: SuiteError, also for a model that is given to a role which no suite uses, PromptError, InputError; with
    `make` also InputError for a plan without any trial, and
    ModelFileError that lists every missing model.
    """
    library, profile = request.library, request.profile
    files = known_models(library)
    roles = dict.fromkeys(used_roles(request.suites, request.overrides.drafts))
    for role in request.models.keys() - roles.keys():
        raise SuiteError(f"--model {role}=... changes nothing here.", hint=f"Used are {', '.join(roles)}.")
    used = used_models(request.suites, profile, request.overrides)
    wanted = [id_ for id_ in used if id_ in files]
    here = [id_ for id_ in wanted if make or library.locate(library.manifest.find(id_)) is not None]
    models = resolve_all(library, here) if make else {id_: library.resolve(id_) for id_ in here}
    files |= {id_: file_of(model) for id_, model in models.items()}
    load = request.prompts.__getitem__ if request.prompts else load_prompt
    plan = expand(request.suites, profile, files, request.overrides, load=load, files=models)
    if make and not plan.loads:
        reasons = "; ".join(dict.fromkeys(left.reason for left in plan.left_out))
        raise InputError(
            f"Profile {profile.name} has no models for suite {', '.join(plan.suites)}: {reasons}.",
            hint="See `mlsd run --dry-run`.",
        )
    return plan


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
