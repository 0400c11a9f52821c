"""From suites and a profile to a plan with the files it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mlsd.drafters import check_target, resolve_spec
from mlsd.errors import InputError, ModelFileError, SuiteError, UnsupportedError
from mlsd.gguf_tools.source import Source
from mlsd.models.library import Library, LocalModel
from mlsd.models.manifest import Manifest, ModelEntry, PathEntry
from mlsd.planning.job import Job, ModelFile, file_of
from mlsd.planning.plan import Plan, Refuse, expand, used_models
from mlsd.planning.prompts import LoadPrompt, find_prompt, load_prompt, task_prompts
from mlsd.planning.request import Overrides, StudyRequest, each_once
from mlsd.planning.suite import (
    DrafterChoice,
    Part,
    Profile,
    Suite,
    default_profile,
    find_profile,
    is_file_name,
    load_profiles,
    load_suites,
)
from mlsd.records import DrafterSpec, EngineOptions, ModelRef

_TASK_TOKENS = 1_024  # Spec-Bench's most new tokens of a turn


@dataclass(frozen=True)
class Prepared:
    """A plan, and the files of its models that are on this machine."""

    plan: Plan
    engine: EngineOptions
    models: Mapping[str, LocalModel] = field(repr=False)  # by id
    library: Library = field(repr=False)
    profile: Profile
    nobody_chose: bool  # the profile is the default one

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
    library, profile, nobody_chose = bind_models(request)
    suites = read_suites(request.suites)
    overrides, load = _prompts(request)
    known = known_models(library)
    wanted = [id_ for id_ in used_models(suites, profile, overrides) if id_ in known and id_ not in (elsewhere or {})]
    models = resolve_all(library, wanted) if make else _local(library, wanted)
    known |= {id_: ModelFile(ref=ref) for id_, ref in (elsewhere or {}).items()} | {
        id_: file_of(model) for id_, model in models.items()
    }
    plan = expand(suites, profile, known, overrides, load=load, refuse=refusals(models))
    if make and not plan.loads:
        reasons = "; ".join(dict.fromkeys(left.reason for left in plan.left_out))
        raise InputError(
            f"Profile {profile.name} has no models for suite {', '.join(request.suites)}: {reasons}.",
            hint="See `mlsd plan`.",
        )
    return Prepared(
        plan=plan,
        engine=overrides.engine,
        models=models,
        library=library,
        profile=profile,
        nobody_chose=nobody_chose,
    )


def bind_models(request: StudyRequest) -> tuple[Library, Profile, bool]:
    """The profile with the models that were given roles, and a library that knows those; the flag: nobody chose it.

    Raises: SuiteError for a role or a profile that is none, ModelFileError for a file that is no model.
    """
    library, profiles = Library(), load_profiles()
    if request.profile:
        profile = find_profile(request.profile, profiles)
    else:
        profile = default_profile(profiles, lambda id_: library.locate(library.manifest.find(id_)) is not None)
    known = [*profile.roles, *profile.left_out]
    for role in request.models:
        if role not in known:
            raise SuiteError(f"There is no role {role!r}.", hint=f"Roles of {profile.name}: {', '.join(known)}.")
    roles, entries = {**profile.roles, **request.models}, dict(library.manifest.models)
    for role, model in roles.items():
        if is_file_name(model):
            entry = _file_entry(Path(model).expanduser().absolute(), entries)
            roles[role], entries[entry.id] = entry.id, entry
    left_out = {role: why for role, why in profile.left_out.items() if role not in roles}
    profile = msgspec.structs.replace(profile, roles=roles, left_out=left_out)
    return Library(Manifest(models=entries, files=library.manifest.files)), profile, not request.profile


def _file_entry(path: Path, known: Mapping[str, ModelEntry]) -> ModelEntry:
    """A file as a model of its own, called as it is."""
    if not path.is_file():
        raise ModelFileError(f"{path} does not exist.", hint="Give a GGUF file, or an id of `mlsd models list`.")
    id_ = re.sub("[^a-z0-9._-]", "-", path.stem.lower())
    while id_ in known and getattr(known[id_], "file", None) != str(path):
        id_ = f"{id_}-file"
    architecture = Source(path).architecture
    return PathEntry(id=id_, name=path.stem, architecture=architecture, quantization="of a file", file=str(path))


def read_suites(names: Iterable[str]) -> tuple[Suite, ...]:
    """The suites of those names, the presets of their drafters written out: equal settings are then equal cases.

    Raises: SuiteError, and UnsupportedError or InputError for a drafter that cannot be.
    """

    def plain(choice: DrafterChoice) -> DrafterChoice:
        options = resolve_spec(choice.spec).options
        return msgspec.structs.replace(choice, options=options)

    def settle(part: Part) -> Part:
        return msgspec.structs.replace(part, drafters=tuple(map(plain, part.drafters)))

    return tuple(msgspec.structs.replace(suite, parts=tuple(map(settle, suite.parts))) for suite in load_suites(names))


def _prompts(request: StudyRequest) -> tuple[Overrides, LoadPrompt]:
    """What changes of the suites, and the prompts; tasks follow Spec-Bench's protocol of chat turns."""
    overrides = request.overrides
    if request.tasks and overrides.prompts is not None:
        raise InputError("--tasks and --prompt exclude each other.", hint="Give one of them.")
    if overrides.prompts is not None:
        given = each_once("prompts", [(prompt.key, prompt) for prompt in map(find_prompt, overrides.prompts)])
        return msgspec.structs.replace(overrides, prompts=tuple(given)), given.__getitem__
    if not request.tasks:
        return overrides, load_prompt
    prompts = task_prompts(request.tasks)
    n_predict = _TASK_TOKENS if overrides.n_predict is None else overrides.n_predict
    changed = msgspec.structs.replace(overrides, prompts=tuple(prompts), n_predict=n_predict, ignore_eog=False)
    return changed, prompts.__getitem__


def known_models(library: Library) -> dict[str, ModelFile]:
    """Every model of the manifest, as the manifest alone knows it."""
    return {
        entry.id: ModelFile(ref=ModelRef(id=entry.id, sha256=getattr(entry, "sha256", None), n_bytes=entry.n_bytes))
        for entry in library.manifest
    }


def _local(library: Library, ids: Iterable[str]) -> dict[str, LocalModel]:
    return {id_: library.resolve(id_) for id_ in ids if library.locate(library.manifest.find(id_)) is not None}


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
