"""What a person asks to be measured, its names resolved: a request is made once, and never edited on its way."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from mlsd.drafters import check_target, find_method, preset_gamma, resolve_spec
from mlsd.drafters.adaptive import LEAST, MOST
from mlsd.engine.context import on_threads
from mlsd.engine.vocabulary import MAX_SIZE_DIFFERENCE
from mlsd.errors import InputError, MlsdError, ModelFileError, PromptError, SuiteError, choose
from mlsd.gguf_tools.source import Source
from mlsd.methods import tried_unasked
from mlsd.models.library import Library, LocalModel, check_model, resolve_model
from mlsd.models.manifest import LocalFile, Manifest, ModelEntry
from mlsd.planning.options import BenchOptions, Overrides, RunOptions, Setting, Timed, called_by, part
from mlsd.planning.prompts import Prompt, Task, find_prompt, task_prompts
from mlsd.planning.question import parse_drafter, study_asked
from mlsd.planning.suite import (
    Profile,
    Suite,
    default_profile,
    find_profile,
    is_file_name,
    load_profiles,
    load_suites,
)
from mlsd.records import ADAPTIVE, DRAFT_MODEL, GAMMAS, NO_DRAFTER, DrafterSpec, Record

_DRAFT = "draft"  # the role of the manifest
_MOST_SHARE = 0.6  # of the target's bytes: a draft as large as its target costs what it saves
_MOST_DRAFTS = 3


class DefaultArms(Record, frozen=True, kw_only=True):
    """Methods and drafts to try."""

    drafts: tuple[str, ...]  # ids that are here, the smallest first
    to_get: tuple[str, ...]  # ids of the same family that are not, the smallest first
    drafters: tuple[str, ...] = tried_unasked()


def default_arms(model: LocalModel) -> DefaultArms:
    """What to try on a target."""
    library = Library()
    listed = library.manifest.models.get(model.ref.id)
    family, most = listed and listed.name.split()[0], _MOST_SHARE * (model.ref.n_bytes or 0)
    here, elsewhere = list[tuple[int, str]](), list[tuple[int, str]]()
    for entry in library.manifest:
        if _DRAFT not in entry.roles or entry.id == model.ref.id:
            continue
        if paths := library.locate(entry):
            size = sum(path.stat().st_size for path in paths)
            if size <= most and _same_tokenizer(model.path, paths[0]):
                here.append((size, entry.id))
        elif entry.name.split()[0] == family and (entry.n_bytes or most + 1) <= most:
            elsewhere.append((entry.n_bytes or 0, entry.id))
    smallest = [tuple(id_ for _, id_ in sorted(sized)[:_MOST_DRAFTS]) for sized in (here, elsewhere)]
    return DefaultArms(drafts=smallest[0], to_get=smallest[1])


def _same_tokenizer(*files: Path) -> bool:
    """Whether two files cut text in one way, as far as their headers say; the worker compares token by token."""
    kinds, sizes = set[tuple[str, ...]](), list[int]()
    try:
        for source in map(Source, files):
            kinds.add(tuple(source.text(f"tokenizer.ggml.{key}", "", prefixed=False) for key in ("model", "pre")))
            sizes.append(source.length("tokenizer.ggml.tokens") or 0)
    except MlsdError:  # a file that cannot be read is not here
        return False
    return len(kinds) == 1 and max(sizes) - min(sizes) <= MAX_SIZE_DIFFERENCE


MOST_BLOCKS = 100  # of a session that nothing decides
_TASK_TOKENS = 1_024  # Spec-Bench's most new tokens of a turn

T = TypeVar("T", LocalModel, Prompt)
AS_WRITTEN = Overrides()


class StudyRequest(Record, frozen=True, kw_only=True):
    """Suites to plan or to run; `study_request` makes one from names."""

    suites: tuple[Suite, ...]
    profile: Profile  # with the models that were given roles
    profile_assumed: bool  # the profile is the largest that is downloaded, else the embedded one
    library: Library  # which knows those models
    overrides: Overrides
    prompts: dict[str, Prompt]  # in place of the suites'; empty: none
    models: dict[str, str]  # role -> id or path, as they were given
    asked: dict[str, tuple[str, ...]]  # what made it, as options of `mlsd run`: `study_asked`


class BenchRequest(Timed, frozen=True, kw_only=True):
    """One target to measure with every method beside plain decoding; `bench_request` makes one from names."""

    target: LocalModel
    arms: tuple[tuple[DrafterSpec, tuple[int, ...]], ...] = ()  # methods with presets written out, each at its gammas
    models: tuple[LocalModel, ...] = ()  # the second files of `arms`
    prompts: tuple[Prompt, ...]
    suite: str = "bench"  # what its cases are filed under
    default_arms: DefaultArms | None = None  # where no method was given

    def __post_init__(self) -> None:
        """Refuse methods that cannot work on this target. Raises: UnsupportedError, InputError, ModelFileError."""
        super().__post_init__()
        paths, specs = {model.ref: model.path for model in self.models}, list[DrafterSpec]()
        for spec, _ in self.arms:
            check_target(spec, self.target.path, None if spec.draft is None else paths[spec.draft])
            if spec in specs:
                raise InputError(f"{spec.name} is asked for twice with the same options.", hint="Name it once.")
            specs.append(spec)

    @property
    def files(self) -> tuple[LocalModel, ...]:
        return (self.target, *self.models)


def study_request(
    suites: Iterable[str],
    *,
    profile: str | None = None,
    overrides: Overrides = AS_WRITTEN,
    models: Mapping[str, str] | None = None,
    tasks: Iterable[Task] = (),
    here: bool = True,
) -> StudyRequest:
    """A request from names: suites A to G, a profile and models by name or by file; `models` are by role.

    `tasks` stand in place of prompts and follow Spec-Bench's protocol of chat turns. With `here` this machine measures,
    so that the number of threads is known.

    Raises: SuiteError, PromptError, ManifestError, ModelFileError, InputError, UnsupportedError.
    """
    named, texts = tuple(suites), dict[str, Prompt]()
    if here:
        overrides = replace(overrides, engine=on_threads(overrides.engine))
    given_overrides = overrides
    load_suites(named)  # a wrong name is answered before models are looked for
    if prompts := task_prompts(tasks):
        if overrides.prompts is not None:
            raise InputError("--tasks and --prompt exclude each other.", hint="Give one of them.")
        refuse_stop(overrides)
        n_predict = _TASK_TOKENS if overrides.n_predict is None else overrides.n_predict
        texts, overrides = prompts, replace(overrides, n_predict=n_predict, stop_at_eog=True)
    elif overrides.prompts is not None:
        texts = _each_once("prompts", [(prompt.key, prompt) for prompt in map(find_prompt, overrides.prompts)])
    if texts:
        overrides = replace(overrides, prompts=tuple(texts))
    library, profiles, given = Library(), load_profiles(), dict(models or {})
    if profile:
        bound = find_profile(profile, profiles)
    else:
        bound = default_profile(profiles, lambda id_: library.locate(library.manifest.find(id_)) is not None)
    chosen = tuple(_presets_written_out(suite) for suite in load_suites(named, bound))
    allowed = [*bound.roles, *bound.left_out]
    for role in given:
        if role not in allowed:
            raise SuiteError(f"Profile {bound.name} has no role {role!r}.", hint=choose(role, allowed))
    roles, entries = {**bound.roles, **given}, dict(library.manifest.models)
    for role, model in roles.items():
        if is_file_name(model):
            entry = _file_entry(Path(model).expanduser().absolute(), entries)
            roles[role], entries[entry.id] = entry.id, entry
    left_out = {role: why for role, why in bound.left_out.items() if role not in roles}
    return StudyRequest(
        suites=chosen,
        profile=replace(bound, roles=roles, left_out=left_out),
        profile_assumed=not profile,
        library=Library(Manifest(models=entries, files=library.manifest.files)),
        overrides=overrides,
        prompts=texts,
        models=given,
        asked=study_asked(named, profile or bound.name, given, given_overrides),
    )


def refuse_stop(asked: Setting) -> None:
    """Raises: InputError for tasks that are asked to stop where they do."""
    if asked.stop_at_eog:
        raise InputError("--tasks stop at an end-of-generation token by themselves.", hint="Leave out --stop-at-eog.")


def resolve_study(asked: RunOptions, tasks: Iterable[Task] = (), *, here: bool = True) -> StudyRequest:
    """A request from what `mlsd run` was asked; see `study_request`."""
    suites = (asked.suites,) if isinstance(asked.suites, str) and is_file_name(asked.suites) else asked.suites
    overrides = part(Overrides, asked)
    return study_request(
        suites, profile=asked.profile, overrides=overrides, models=asked.models, tasks=tasks, here=here
    )


def _presets_written_out(suite: Suite) -> Suite:
    """Equal settings are then equal cases."""
    parts = (
        replace(
            part, drafters=tuple(replace(choice, options=resolve_spec(choice.spec).options) for choice in part.drafters)
        )
        for part in suite.parts
    )
    return replace(suite, parts=tuple(parts))


def _file_entry(path: Path, entries: Mapping[str, ModelEntry]) -> LocalFile:
    """A file as a model of its own, called as it is."""
    if not path.is_file():
        raise ModelFileError(f"{path} does not exist.", hint="Give a GGUF file, or an id of `mlsd models list`.")
    id_ = re.sub("[^a-z0-9._-]", "-", path.stem.lower())
    while id_ in entries and getattr(entries[id_], "file", None) != str(path):
        id_ = f"{id_}-file"
    architecture = Source(path).architecture
    return LocalFile(id=id_, name=path.stem, architecture=architecture, quantization="of a file", file=str(path))


def resolve_bench(asked: BenchOptions) -> BenchRequest:
    """A request from names: models are GGUF paths or ids, those that are made locally made now.

    `drafts` are draft models, or second files of the `drafters` that take one; a drafter may name its own with the
    option `draft`; where they are None, or none is given `until` something is decided, they are what `default_arms`
    finds. With `chat`, or a value of `think`, prompts stand in the target's chat template.

    Raises: UnsupportedError, InputError, PromptError, ManifestError, ModelFileError; what names alone show comes before
    a hash or a file to make.
    """
    think, target, drafts = asked.think, str(asked.target), asked.drafts
    mark = "" if not asked.chat and think is None else "+chat" if think is None else "+think" if think else "+no-think"
    named = [f"{name}{mark}@{depth}" if depth else f"{name}{mark}" for name in asked.prompts for depth in asked.depths]
    texts = _each_once("prompts", [(prompt.key, prompt) for prompt in map(find_prompt, named)])
    chosen = [
        own_draft(parse_drafter(method) if isinstance(method, str) else method) for method in asked.drafters or ()
    ]
    for spec, _ in chosen:
        resolve_spec(spec)
    for name in (target, *drafts, *(own for _, own in chosen if own is not None)):
        check_model(name)
    model, default = resolve_model(target, make=True), None
    for prompt in texts.values():
        _check_chat(prompt, model.path)
    if asked.drafters is None or not (chosen or drafts or asked.until is None):  # plain decoding alone decides nothing
        default = default_arms(model)
        drafts, chosen = default.drafts, [(DrafterSpec(name=name), None) for name in default.drafters]
    specs, files = _with_drafts(chosen, [resolve_model(name, make=True) for name in drafts])
    _each_once("models", [(file.ref.id, file) for file in (model, *files)])
    return part(
        BenchRequest,
        asked,
        target=model,
        arms=tuple(_arms(specs, asked.gammas or ())),
        models=tuple({file.ref: file for file in files}.values()),
        prompts=tuple(texts.values()),
        default_arms=default,
        engine=on_threads(asked.engine),
    )


bench_request = called_by(BenchOptions)(resolve_bench)


def _check_chat(prompt: Prompt, target: Path) -> None:
    """Raises: PromptError where the target's chat template cannot write what was asked for in it."""
    if not prompt.messages and "+" not in prompt.key:  # turns of tasks are plain text without a template
        return
    from mlsd.engine.llama.chat import in_turn, render  # plain prompts need no template engine

    template = Source(target).text("tokenizer.chat_template", "", prefixed=False)
    if not template:
        raise PromptError(f"{target.name} has no chat template.", hint="Leave --chat and --think out; give a text.")
    render(
        template,
        [(message.role, message.content) for message in prompt.messages] or in_turn([prompt.text]),
        prompt.think,
    )


def own_draft(spec: DrafterSpec) -> tuple[DrafterSpec, str | None]:
    """A method by its own name; one that takes a second file without its option `draft`, and what that names."""
    method = find_method(spec.name)
    spec = replace(spec, name=method.name)
    if not (method.needs or method.takes_draft) or "draft" not in spec.options:
        return spec, None
    options = {name: value for name, value in spec.options.items() if name != "draft"}
    return replace(spec, options=options), str(spec.options["draft"])


def _with_drafts(
    chosen: Iterable[tuple[DrafterSpec, str | None]], drafts: Sequence[LocalModel]
) -> tuple[list[DrafterSpec], list[LocalModel]]:
    """Every method with each draft that it takes, and all these; drafts that no method takes are draft models."""
    specs, files = list[DrafterSpec](), list[LocalModel]()
    chosen = [(spec, named) for spec, named in chosen if spec.name != NO_DRAFTER]
    if drafts and not any(find_method(spec.name).needs and named is None for spec, named in chosen):
        chosen.insert(0, (DrafterSpec(name=DRAFT_MODEL), None))
    for spec, named in chosen:
        needed = find_method(spec.name).needs
        if needed is None and named is None:
            specs.append(spec)
            continue
        taken = drafts if named is None else [resolve_model(named, make=True)]
        if not taken:
            raise InputError(f"The {spec.name} method needs a {needed}.", hint="Name one with --draft.")
        specs += [replace(spec, draft=draft.ref) for draft in taken]
        files += taken
    return specs, files


def _arms(specs: Sequence[DrafterSpec], gammas: Sequence[int | str]) -> Iterator[tuple[DrafterSpec, tuple[int, ...]]]:
    """Every method at its gammas, and apart from these with a length that adapts."""
    numbers = tuple(gamma for gamma in gammas if isinstance(gamma, int))
    if other := set(gammas) - {*numbers, ADAPTIVE}:
        raise InputError(f"There is no gamma {other.pop()!r}.", hint=f"Give numbers, or {ADAPTIVE}.")
    for given in specs:
        preset = preset_gamma(given)
        if numbers or not gammas:
            yield resolve_spec(given), numbers or (GAMMAS if preset is None else (preset,))
        if ADAPTIVE in gammas:
            options = {ADAPTIVE: LEAST, **given.options}
            yield resolve_spec(replace(given, options=options)), (MOST,)


def _each_once(what: str, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """By name, each once. Raises: InputError for two different ones of one name."""
    values: dict[str, T] = {}
    for name, value in named:
        if values.setdefault(name, value).ref != value.ref:
            raise InputError(f"Two different {what} are called {name!r}.", hint="Rename one of the files.")
    return values
