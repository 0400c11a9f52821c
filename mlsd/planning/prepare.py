"""From suites and a profile to a plan with the files it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mlsd.drafters import check_target, resolve_spec
from mlsd.errors import InputError, ModelFileError, UnsupportedError
from mlsd.models.library import Library, LocalModel
from mlsd.planning.job import Job, ModelFile, file_of
from mlsd.planning.plan import Plan, Refuse, expand, used_models
from mlsd.planning.prompts import load_prompt
from mlsd.planning.request import StudyRequest
from mlsd.records import DrafterSpec, ModelRef


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
