"""What a person may ask of a measurement: each option is declared once, and commands and functions are made of it."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, Self, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec.structs import force_setattr

from mlsd.errors import InputError, SuiteError
from mlsd.planning.suite import MOST_GAMMA, MOST_REPEATS, MOST_TOKENS
from mlsd.records import ADAPTIVE, DrafterSpec, EngineOptions, Option, Record, Sampling, Seed, Strategy

BUDGET_S = 600.0  # of a session that measures until it knows enough

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
Until = float | Literal["decided"] | None  # until the best is known to such a share, or each arm is decided


class Declared(NamedTuple):
    """One option of a record of options."""

    name: str  # of its field
    owner: str  # the field whose record holds it; "": the record of options itself
    kind: Any  # of its values, None left out
    default: Any
    option: Option

    @property
    def several(self) -> Any:
        """What each of several values is; None: it is one value."""
        return get_args(self.kind)[0] if get_origin(self.kind) is Sequence else None

    @property
    def flag(self) -> str:
        name = self.name[:-1] if self.several is not None or get_origin(self.kind) is Mapping else self.name
        return self.option.flag or f"--{name.replace('_', '-')}"

    def with_default(self, default: Any) -> Self:
        """The same where it is something else that is not given."""
        meaning = re.sub(r" \[default: [^]]*\]", "", self.option.meaning)
        return self._replace(default=default, option=self.option._replace(meaning=meaning))

    def of(self, asked: Any) -> Any:
        """The value that a record of options has of it."""
        return getattr(getattr(asked, self.owner) if self.owner else asked, self.name)


@functools.cache
def declared(kind: Any) -> tuple[Declared, ...]:
    """The options of a record, those of its class before those of its bases; one name is one option."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    names = dict.fromkeys(name for base in kind.__mro__ for name in inspect.get_annotations(base))
    options = dict[str, Declared]()
    for field in (fields[name] for name in names if name in fields):
        if field.type in (Sampling, EngineOptions):
            for inner in declared(field.type):
                options.setdefault(inner.name, inner._replace(owner=field.name))
        elif get_origin(field.type) is Annotated:
            annotated, *more = get_args(field.type)
            for stated in (extra for extra in more if isinstance(extra, Option)):
                options[field.name] = Declared(field.name, "", _without_none(annotated), field.default, stated)
    return tuple(options.values())


def option(kind: Any, name: str) -> Declared:
    """One option of a record."""
    return next(declaration for declaration in declared(kind) if declaration.name == name)


def _without_none(kind: Any) -> Any:
    """A type without None; bool stays as it is, since of three values it is no flag."""
    if get_origin(kind) not in (Union, UnionType) or kind == bool | None:
        return kind
    return Union[tuple(part for part in get_args(kind) if part is not type(None))]  # noqa: UP007 - made of a list


class CommandOptions(Record, frozen=True, kw_only=True):
    """Base of all records of options. Raises: SuiteError for a value out of range, or that stands twice."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            force_setattr(self, name, _plain(getattr(self, name)))
        for declaration in declared(cast(Any, type(self))):
            value = declaration.of(self)
            given = value if isinstance(value, tuple) else (value,)
            for number in given:
                if isinstance(number, int | float) and not isinstance(number, bool):
                    _check_range(declaration, number)
            if len(given) != len(set(map(str, given))):
                raise SuiteError(f"{declaration.flag} holds a value twice: {', '.join(map(str, given))}.")


def _plain(value: Any) -> Any:
    """Paths as text, and what holds several values unchanging."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_plain, value))
    return str(value) if isinstance(value, Path) else value


def _check_range(declaration: Declared, number: float) -> None:
    least, most, above = declaration.option.least, declaration.option.most, declaration.option.above
    if (least is None or number >= least) and (most is None or number <= most) and (above is None or number > above):
        return  # which not-a-number never is
    low = None if least is None and above is None else f"above {above:,}" if least is None else f"from {least:,}"
    bounds = " ".join(filter(None, (low, None if most is None else f"to {most:,}")))
    raise SuiteError(f"{declaration.flag} {'holds' if declaration.several else 'is'} {number}, but must be {bounds}.")


def typed(asked: Any) -> dict[str, tuple[str, ...]]:
    """What of a record is not as by default, as a command takes it: by flag, and a flag alone with an empty text."""
    flags = dict[str, tuple[str, ...]]()
    for declaration in declared(cast(Any, type(asked))):
        value = declaration.of(asked)
        if value == declaration.default or value is None or value == ():
            continue
        if isinstance(value, Mapping):
            flags[declaration.flag] = tuple(f"{key}={as_typed(file)}" for key, file in value.items())
        elif isinstance(value, tuple):
            listed = all(isinstance(each, int) or each == ADAPTIVE for each in value)
            flags[declaration.flag] = (",".join(map(str, value)),) if listed else tuple(map(as_typed, value))
        elif isinstance(value, bool):
            flags[declaration.flag] = ("",) if declaration.kind is bool else ("on" if value else "off",)
        else:
            share = declaration.option.form == "goal" and isinstance(value, float)
            flags[declaration.flag] = (f"{100 * value:g}%" if share else as_typed(value),)
    return flags


def as_typed(value: object) -> str:
    """A value as somebody types it in any folder: a file from the root."""
    text = str(value)
    return str(Path(text).absolute()) if Path(text).suffix and Path(text).is_file() else text


def called_by(kind: Callable[P, A]) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """A function of a record of options as one that takes what the record holds, each option by its name."""

    def decorate(function: Callable[[A], R]) -> Callable[P, R]:
        signature = _signature(kind, function)

        @functools.wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            bound = signature.bind(*arguments, **options)
            return function(kind(*bound.args, **bound.kwargs))

        call.__signature__ = signature  # type: ignore[attr-defined]
        meanings = [
            f"    {declaration.name}: {declaration.option.meaning}"
            for declaration in declared(kind)
            if not declaration.owner
        ]
        call.__doc__ = "\n".join((inspect.getdoc(function) or "", "", *meanings))
        return call

    return decorate


def _signature(kind: Any, function: Callable[..., Any]) -> inspect.Signature:
    """What the record is made of, by its types alone; what has a default is given by name."""
    parameters = [
        parameter.replace(
            annotation=get_args(parameter.annotation)[0]
            if get_origin(parameter.annotation) is Annotated
            else parameter.annotation,
            kind=parameter.POSITIONAL_OR_KEYWORD if parameter.default is parameter.empty else parameter.KEYWORD_ONLY,
        )
        for parameter in inspect.signature(kind).parameters.values()
    ]
    parameters.sort(key=lambda parameter: parameter.kind)
    return inspect.Signature(parameters, return_annotation=inspect.signature(function).return_annotation)


def part(kind: type[A], asked: Any, **others: Any) -> A:
    """The fields that a record shares with another, and `others`."""
    shared = {name: getattr(asked, name) for name in kind.__struct_fields__ if hasattr(asked, name)}  # type: ignore[attr-defined]
    return kind(**shared | others)


# --- what the commands share --------------------------------------------------------------------------------------

METHOD = Option("Method: NAME or NAME:option=value,..., or a class in a file: ./mine.py:Freq.", offer="methods")
METHODS = METHOD._replace(meaning=f"{METHOD.meaning[:-1]}; may be repeated.")
_PROMPTS = Option(
    "A shipped prompt, a text file, or a chat as JSON of role and content; may be repeated.", offer="prompts"
)
_GAMMA = Option("Draft length: most tokens proposed per round", least=1, most=MOST_GAMMA)
N_PREDICT = Option("Output tokens.", least=2, most=MOST_TOKENS)
REPEATS = Option("Blocks; each holds every arm once.", least=1, most=MOST_REPEATS)

Drafts = Annotated[
    Sequence[str],
    Option("Draft model, or drafting head: a path or an id; may be repeated.", offer="models"),
]
Prompts = Annotated[Sequence[str], _PROMPTS]
Chat = Annotated[bool, Option("Give prompts in the target's chat template.")]
Think = Annotated[bool | None, Option("Set the template's switch for thinking; a chat.")]
NPredict = Annotated[int, N_PREDICT]


def gamma(default: str) -> Option:
    """``--gamma``, with what it is where it is not given."""
    return _GAMMA._replace(meaning=_GAMMA.meaning + default)


def study(default: str) -> Option:
    """Where trials are kept."""
    return Option(f"Study database [default: {default}].", flag="--db", form="file")


class Setting(CommandOptions, frozen=True, kw_only=True):
    """What a request asks of every arm; None leaves the value of the suite."""

    n_predict: Annotated[int | None, N_PREDICT] = None
    repeats: Annotated[int | None, REPEATS] = None
    sampling: Sampling = Sampling()
    rollback: Annotated[
        Strategy, Option("How rejected tokens are removed; auto: the usual one of its memory, if exact.")
    ] = "auto"  # fmt: skip
    stop_at_eog: Annotated[
        bool, Option("Stop at an end-of-generation token; arms may then differ in length.")
    ] = False  # fmt: skip
    seed: Seed = 0
    engine: EngineOptions = EngineOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling.greedy and (self.sampling.top_k, self.sampling.top_p) != (0, 1.0):
            raise InputError("--top-k and --top-p need --temperature.", hint="Without one decoding is greedy.")

    @property
    def ignore_eog(self) -> bool:
        return not self.stop_at_eog


class Goal(Record, frozen=True, kw_only=True):
    """When a session has measured enough."""

    within: float | None = None  # the best known to this share, too; None: each arm decided or out
    budget_s: float | None = None  # no block begins that would end after it


class Timed(Setting, frozen=True, kw_only=True):
    """What is asked of a session of so many blocks, or of as many as it takes."""

    n_predict: NPredict = 256
    repeats: Annotated[int, REPEATS] = 3
    until: Annotated[
        Until,
        Option(
            "Measure as many blocks as needed. decided: until each arm is faster, slower, no different (within 3 %) or "
            "can no longer win. 2%: until the best speedup is also known to 2 %.",
            above=0,
            most=1,
            form="goal",
        ),
    ] = None
    budget_s: Annotated[
        float | None,
        Option(
            "Start no block that would end after this many seconds of measuring [default: 600 with --until].", above=0
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.until is None and self.budget_s is not None:
            raise InputError("--budget-s needs --until.")

    @property
    def goal(self) -> Goal | None:
        """As many blocks as it takes, in place of `repeats`; arms drop out that cannot win."""
        if self.until is None:
            return None
        return Goal(within=None if self.until == "decided" else self.until, budget_s=self.budget_s or BUDGET_S)


# --- one command each ---------------------------------------------------------------------------------------------


class BenchOptions(Timed, frozen=True):
    """What `mlsd bench` is asked."""

    target: str | Path
    drafts: Drafts = ()
    drafters: Annotated[Sequence[str | DrafterSpec] | None, METHODS] = ()  # None: what `default_arms` finds
    gammas: Annotated[
        Sequence[int | str] | None,
        gamma(
            " [default: the preset's, else 1,2,4,8,16]. adaptive: 3 to 12, as was accepted of late; NAME:adaptive=N "
            "has another least."
        ),
    ] = None
    prompts: Prompts = ("code",)
    depths: Annotated[Sequence[int], Option("Tokens of unrelated text before each prompt.", least=0)] = (0,)
    chat: Chat = False
    think: Think = None
    db: Annotated[str | Path | None, study("results/bench.sqlite")] = None
    fresh: Annotated[bool, Option("Start anew: earlier blocks of this question count no more.")] = False


class _Raced(Setting, frozen=True, kw_only=True):
    n_predict: NPredict = 64
    repeats: Annotated[int, REPEATS._replace(meaning="Blocks in which the same settings race, at most.", least=3)] = 4


class SearchOptions(_Raced, frozen=True):
    """What `mlsd search` is asked."""

    target: str | Path
    drafter: Annotated[str | DrafterSpec, METHOD]
    settings: Annotated[int, Option("Settings to try, those of earlier calls included.", least=1)] = 20
    drafts: Drafts = ()
    prompts: Prompts = ("code",)
    chat: Chat = False
    think: Think = None
    budget_s: Annotated[float | None, Option("Start no block after this many seconds of measuring.", above=0)] = None
    db: Annotated[str | Path | None, study("results/bench.sqlite")] = None


class Overrides(Setting, frozen=True, kw_only=True):
    """What the command line changes of a suite."""

    n_predict: Annotated[int | None, N_PREDICT._replace(meaning="Output tokens [default: the suite's].")] = None
    repeats: Annotated[int | None, REPEATS._replace(meaning="Repeats of every block [default: the suite's].")] = None
    gammas: Annotated[Sequence[int] | None, gamma(", instead of the suite's.")] = None
    drafts: Annotated[
        Sequence[str] | None, Option("Draft instead of the suite's; may be repeated.", offer="models")
    ] = None  # fmt: skip
    prompts: Annotated[
        Sequence[str] | None, Option("Prompt instead of the suite's; may be repeated.", offer="prompts")
    ] = None  # fmt: skip
    limit: Annotated[int | None, Option("Stop after the block that reaches this many study trials.", least=1)] = None


class RunOptions(Overrides, frozen=True):
    """What `mlsd run` is asked: suites A to G, and files of others."""

    suites: Sequence[str]
    profile: Annotated[
        str | None,
        Option(
            "Profile of models: a name or a TOML file [default: the largest that is downloaded, else tiny].",
            offer="profiles",
        ),
    ] = None
    models: Annotated[
        Mapping[str, str] | None,
        Option("Use your own model in a role of the profile; may be repeated.", metavar="ROLE=MODEL"),
    ] = None
    db: Annotated[str | Path | None, study("results/PROFILE.sqlite")] = None
    fresh: Annotated[bool, Option("Measure everything again.")] = False


class CalibrateOptions(CommandOptions, frozen=True):
    """What `mlsd calibrate` is asked."""

    target: str | Path
    draft: Annotated[
        str | Path | None,
        Option("Also time a draft, and count the experts that its proposals choose.", offer="models"),
    ] = None
    depths: Annotated[Sequence[int], Option("Positions in the context.", least=1)] = (128,)
    rows: Annotated[
        Sequence[int], Option("k of T(k), 1 among them [default: 1 to 33, 48, 64].", least=1, flag="--rows")
    ] = (*range(1, 34), 48, 64)
    budget_s: Annotated[
        float, Option("Seconds of timing; loading and filling contexts come on top.", above=0)
    ] = 120.0  # fmt: skip
    precision: Annotated[float, Option("Stop when all intervals are narrower.", above=0)] = 0.02
    text: Annotated[str | Path | None, Option("Real text to use [default: a shipped one].", form="file")] = None
    seed: Annotated[int, Option("Seed of the order of passes.", least=0)] = 0
    db: Annotated[str | Path | None, study("the newest study database under results/")] = None
    engine: EngineOptions = EngineOptions()
