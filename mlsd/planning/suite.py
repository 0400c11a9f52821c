"""Suites and profiles as data: `suites/{a..f}.toml` name roles, `suites/profiles.toml` binds roles to models."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from mlsd.errors import SuiteError, choose
from mlsd.folders import data_path
from mlsd.outside import convert, read_toml
from mlsd.records import DRAFT_MODEL, DrafterSpec, OptionValue, Record
from mlsd.units import GIB

PROFILES_FILE = "profiles.toml"
EMBEDDED_PROFILE = "tiny"

# A plan is built whole before anything runs: beyond these it fills the memory, and no study needs as much.
MOST_REPEATS = 10_000
MOST_TOKENS = 1_000_000
MOST_GAMMA = 1_024

Count = Literal["study", "paired"]
Gamma = Annotated[int, Meta(ge=1, le=MOST_GAMMA)]
Names = Annotated[tuple[str, ...], Meta(min_length=1)]
T = TypeVar("T")


class DrafterChoice(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One drafting method of a part; `draft` is the role of its second model, where it needs one."""

    name: str = DRAFT_MODEL
    draft: str | None = None
    options: dict[str, OptionValue] = msgspec.field(default_factory=dict)
    gammas: tuple[Gamma, ...] = ()  # its own, in place of the part's

    @property
    def spec(self) -> DrafterSpec:
        return DrafterSpec(name=self.name, options=self.options)


class Part(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A full grid: every target with every drafter, gamma and prompt. Without drafters only plain decoding."""

    targets: Names  # roles
    prompts: Names  # names that `mlsd.planning.prompts` knows
    drafters: tuple[DrafterChoice, ...] = ()
    gammas: tuple[Gamma, ...] = ()  # may be empty when every drafter has its own; always is without drafters
    together: bool = False  # drafters that need the same models share a block, and so one AR arm
    one_load: bool = False  # all drafters share a block; every model of the part lies in memory at once
    rollback: Literal["auto", "unchecked"] = "auto"  # of SD arms; unchecked ignores failures, and is never valid
    baseline: Count = "paired"  # whether the AR arm beside SD arms is one of the study's trials


class Suite(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to measure, in roles."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*\Z")]  # "B"
    title: str  # one line for people
    n_predict: Annotated[int, Meta(ge=2, le=MOST_TOKENS)] = 256
    repeats: Annotated[int, Meta(ge=1, le=MOST_REPEATS)] = 3
    parts: Annotated[tuple[Part, ...], Meta(min_length=1)]


class Profile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model plays which role."""

    title: str  # one line for people: whose models, for which machine
    roles: dict[str, str]  # role -> id in the manifest
    left_out: dict[str, str] = msgspec.field(default_factory=dict)  # role -> why no model is bound to it
    n_predict: int = 2  # the least output of a trial, where its models are so fast that a suite's would be too short
    prompts: dict[str, str] = msgspec.field(default_factory=dict)  # a suite's prompt -> what stands in its place
    memory_gib: int | None = None  # of the Mac that it is for
    automatic: bool = False  # may be chosen unasked once all of its models are downloaded
    name: str = ""  # the key of its table; set when the file is read


def load_suites(names: Iterable[str], profile: Profile | None = None) -> tuple[Suite, ...]:
    """The suites called `names` (A to G, either case, or paths of TOML files), each once, in the order asked for.

    Those that ship are as `profile` has them; a file is taken as it stands.

    Raises: SuiteError for an unknown name (it lists what exists) and for a file that is not a valid suite.
    """
    shipped = suite_names()
    chosen: dict[str, Suite] = {}
    for name in names:
        if name.endswith(".toml"):
            suite = read_suite(Path(name))
        elif name.upper() in shipped:
            suite = _in_profile(read_suite(data_path("suites") / f"{name.lower()}.toml"), profile)
        else:
            hint = choose(name, shipped, ", or give the path of a TOML file")
            raise SuiteError(f"There is no suite called {name!r}.", hint=hint)
        if chosen.setdefault(suite.name, suite) != suite:
            raise SuiteError(f"Two different suites are called {suite.name!r}.", hint="Rename one of them.")
    if not chosen:
        raise SuiteError("No suite was named.", hint=f"Choose from {', '.join(shipped)}.")
    return tuple(chosen.values())


def _in_profile(suite: Suite, profile: Profile | None) -> Suite:
    """The suite with the profile's least output, and with its prompts in place of those that it replaces."""
    if profile is None:
        return suite
    parts = tuple(
        replace(part, prompts=tuple(profile.prompts.get(name, name) for name in part.prompts)) for part in suite.parts
    )
    return replace(suite, parts=parts, n_predict=max(suite.n_predict, profile.n_predict))


def drafters_of(part: Part, drafts: Sequence[str] | None) -> tuple[DrafterChoice, ...]:
    """The drafters of a part, its draft models replaced by `drafts` where those are given."""
    models = [choice for choice in part.drafters if choice.name == DRAFT_MODEL]
    if drafts is None or not models:
        return part.drafters
    others = [choice for choice in part.drafters if choice.name != DRAFT_MODEL]
    return (*(replace(models[0], draft=draft) for draft in dict.fromkeys(drafts)), *others)


def used_roles(
    suites: Iterable[Suite], drafts: Sequence[str] | None = None, left_out: Container[str] = ()
) -> Iterator[str]:
    """The roles, or ids in their place, that suites name: targets, and drafts where not every target is left out."""
    for part in (part for suite in suites for part in suite.parts):
        yield from part.targets
        if not all(role in left_out for role in part.targets):
            yield from (choice.draft for choice in drafters_of(part, drafts) if choice.draft)


def suite_names() -> tuple[str, ...]:
    """The names of the suites that ship with mlsd, in order."""
    files = data_path("suites").glob("*.toml")
    return tuple(sorted(file.stem.upper() for file in files if file.name != PROFILES_FILE))


def read_suite(path: Path) -> Suite:
    """Read and check one suite. Raises: SuiteError that names the file, the key and the value."""
    suite = convert(read_toml(path, SuiteError), Suite, str(path), SuiteError)
    for number, part in enumerate(suite.parts):
        for key, value, needed in _faults(part):
            raise _fault(path, f"parts[{number}].{key}", value, needed)
    return suite


def _faults(part: Part) -> Iterator[tuple[str, Sequence[object], str]]:
    """What the types do not show to be wrong: the key, its value, and what it must be."""
    lists = {field: getattr(part, field) for field in ("targets", "prompts", "gammas")}
    lists |= {f"drafters[{number}].gammas": choice.gammas for number, choice in enumerate(part.drafters)}
    for key, values in lists.items():
        if len(set(values)) < len(values):
            yield key, list(values), "each value once"
    if not part.drafters and part.gammas:
        yield "gammas", list(part.gammas), "absent, because there are no drafters"
    if not part.gammas and not all(choice.gammas for choice in part.drafters):
        yield "gammas", [], "at least one gamma, because there are drafters"
    for number, choice in enumerate(part.drafters):
        if choice.name == DRAFT_MODEL and not choice.draft:
            yield f"drafters[{number}].draft", "", "a role: this method needs a draft"


def _fault(path: Path, key: str, value: object, needed: str) -> SuiteError:
    said = f"{path}: {key} = {value!r:.200}, but must be {needed}."
    return SuiteError(said, hint="Correct the file and try again.")


def load_profiles(path: Path | None = None) -> dict[str, Profile]:
    """Every profile by name, smallest models first. Raises: SuiteError that names the file, the key and the value."""
    file = path or data_path("suites") / PROFILES_FILE
    profiles = {}
    for name, table in read_toml(file, SuiteError).items():
        profile = convert(table, Profile, str(file), SuiteError, key=name)
        if both := sorted(set(profile.roles) & set(profile.left_out)):
            raise _fault(file, f"{name}.left_out", both, "only roles that are not bound to a model")
        if profile.name:
            raise _fault(file, f"{name}.name", profile.name, "absent: the table's own name is the name")
        profiles[name] = replace(profile, name=name)
    return profiles


def find_profile(name: str, profiles: Mapping[str, Profile] | None = None) -> Profile:
    """The profile called `name`, or the one in a TOML file, whose paths are relative to it.

    Raises: SuiteError that lists what exists, or names file, key and value.
    """
    if name.endswith(".toml"):
        path = Path(name)
        loaded = load_profiles(path)
        if len(loaded) != 1:
            raise SuiteError(f"{path} holds {len(loaded)} profiles.", hint="Give a file with one table.")
        (profile,) = loaded.values()
        folder = path.absolute().parent
        files = {role: str(folder / Path(m).expanduser()) for role, m in profile.roles.items() if is_file_name(m)}
        return replace(profile, roles=profile.roles | files)
    offered = load_profiles() if profiles is None else profiles
    if name not in offered:
        raise SuiteError(f"There is no profile called {name!r}.", hint=choose(name, offered, ", or give a TOML file"))
    return offered[name]


def is_file_name(model: str) -> bool:
    """Whether a role is given a file in place of an id."""
    return model.endswith(".gguf") or "/" in model


def default_profile(profiles: Mapping[str, Profile], is_downloaded: Callable[[str], bool]) -> Profile:
    """The last automatic profile (from small to large) whose models are all downloaded, else the embedded one."""
    ready = [
        profile
        for profile in profiles.values()
        if profile.automatic and all(map(is_downloaded, profile.roles.values()))
    ]
    return ready[-1] if ready else find_profile(EMBEDDED_PROFILE, profiles)


def largest_profile(profiles: Mapping[str, Profile], memory_bytes: int) -> Profile | None:
    """Of those for Macs of a size the largest that such a memory holds; None for a smaller machine."""
    fitting = [
        profile for profile in profiles.values() if profile.memory_gib and profile.memory_gib * GIB <= memory_bytes
    ]
    return max(fitting, key=lambda profile: profile.memory_gib or 0, default=None)
