"""Methods out of files of one's own, named ``./mine.py:Freq``: loaded, checked, and called what they are.

Such a method is the file's content: its name holds the file's base name, the class, and the content's hash, and so do
its trials. Whatever goes wrong inside it is said to be its own fault, with the line.
"""

import dataclasses
import functools
import hashlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mlsd.drafters import method as methods
from mlsd.drafters.method import DrafterSetup, Method, MethodOptions
from mlsd.engine.drafter import Drafter
from mlsd.engine.verify import Proposal
from mlsd.errors import EngineError, InputError, MlsdError, choose, in_one_line
from mlsd.outside import read_given
from mlsd.records import OptionValue

_TYPED = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)", re.DOTALL)
_NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)@[0-9a-f]{12}", re.DOTALL)
_HOOKS = ("contexts", "check_target", "check_second", "fill_in", "made", "drafting_part", "head")

_loaded: dict[str, str] = {}  # name of a method -> its file and class, as a worker finds them

Guard = Callable[[Callable[..., Any]], Callable[..., Any]]


def loaded() -> dict[str, str]:
    """Every method that this process took from a file, and where it lies."""
    return dict(_loaded)


def is_typed(name: str) -> bool:
    """Whether this is a file and a class in it."""
    return _TYPED.fullmatch(name) is not None


def as_typed(name: str) -> str:
    """A method as somebody types it: one of a file by its path where it is known, else as if it lay here."""
    named = _NAMED.fullmatch(name)
    return _loaded.get(name, f"./{named['file']}:{named['name']}" if named else name)


def load(text: str) -> Method:
    """The method of a class in a file; its name says the content. Raises: InputError for what is none."""
    typed = _TYPED.fullmatch(text)
    assert typed is not None
    path = Path(typed["path"]).expanduser().absolute()
    data = read_given(path, InputError, "Give the path of a Python file and a class in it: ./mine.py:Freq.")
    name = f"{path.name}:{typed['name']}@{hashlib.sha256(data).hexdigest()[:12]}"
    if name not in _loaded:
        before = dict(methods.KNOWN)  # what the file registers has its own name here, and replaces nothing
        try:
            method = _read(data, path, typed["name"], name)
        finally:
            methods.KNOWN.clear()
            methods.KNOWN.update(before)
        methods.KNOWN[name] = method
    _loaded[name] = f"{path}:{typed['name']}"
    return methods.KNOWN[name]


def load_again(known: Mapping[str, str]) -> None:
    """In a worker: the methods that its parent took from files. Raises: InputError where one has changed since."""
    for name, text in known.items():
        if load(text).name != name:
            raise InputError(f"{Path(text).name} has changed since it was read.", hint="Give the command again.")


def _read(data: bytes, path: Path, wanted: str, name: str) -> Method:
    module = types.ModuleType(f"mlsd_own_{hashlib.sha256(data).hexdigest()[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where annotations are looked up
    try:
        exec(compile(data, str(path), "exec"), module.__dict__)
        kinds = {
            key: one
            for key, one in vars(module).items()
            if isinstance(one, type) and issubclass(one, MethodOptions | Drafter) and one.__module__ == module.__name__
        }
        if wanted in kinds:
            facts = next((one for one in methods.KNOWN.values() if one.options is kinds[wanted]), None)
            return _method(kinds[wanted], facts, path, name)
    except MlsdError:
        raise
    except Exception as error:
        raise InputError(f"{path} cannot be loaded: {in_one_line(error, path)}.", hint="Mend the file.") from error
    has = choose(wanted, kinds) if kinds else "A method is a class that derives from mlsd.Drafter."
    raise InputError(f"{path} has no drafting method {wanted!r}.", hint=has)


def _method(kind: type[Any], facts: Method | None, path: Path, name: str) -> Method:
    called = f"{kind.__name__} of {path.name}"
    options = kind if issubclass(kind, MethodOptions) else _options_of(kind)
    guard = _guard(called, path)
    summary = inspect.cleandoc(kind.__doc__ or "A method of one's own.").splitlines()[0]
    facts = facts or Method(name=name, summary=summary, source=path.name, options=options)
    own = {hook: guard(getattr(options, hook)) for hook in _HOOKS if facts.has(hook)}
    own["open"] = guard(lambda self, setup: _Guarded(options.open(self, setup), called, guard, setup))
    guarded: Any = msgspec.defstruct(kind.__name__, [], bases=(options,), namespace=own, frozen=True, kw_only=True)
    msgspec.json.schema(guarded)  # options that nobody can type are told now
    return dataclasses.replace(facts, name=name, options=guarded)


def _options_of(kind: type[Drafter]) -> type[MethodOptions]:
    """What can be set of a drafter: what its class is called with."""
    hints, fields = typing.get_type_hints(kind.__init__), list[Any]()
    for one in inspect.signature(kind).parameters.values():
        own = (one.name, hints.get(one.name, OptionValue))
        fields.append(own if one.default is one.empty else (*own, one.default))

    def open_(self: MethodOptions, setup: DrafterSetup) -> Drafter:
        return kind(**{name: getattr(self, name) for name in self.__struct_fields__})

    made: Any = msgspec.defstruct(
        kind.__name__, fields, bases=(MethodOptions,), namespace={"open": open_}, frozen=True, kw_only=True
    )
    return made  # type: ignore[no-any-return]


def _guard(called: str, path: Path) -> Guard:
    """What makes of any failure of a function the method's own."""

    def guard(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*given: Any, **more: Any) -> Any:
            try:
                return function(*given, **more)
            except MlsdError:
                raise
            except Exception as error:
                raise EngineError(f"{called} raised {in_one_line(error, path)}.") from error

        return guarded

    return guard


class _Guarded(Drafter):
    """A drafter whose faults are called its own, and that proposes nothing which cannot be verified."""

    def __init__(self, own: Drafter, called: str, guard: Guard, setup: DrafterSetup) -> None:
        self._own, self._called, self._n_vocab = own, called, setup.target.tokenizer.vocabulary.n_tokens
        self.rollback_name, self.fell_back = own.rollback_name, own.fell_back
        self.begin, self.observe = guard(own.begin), guard(own.observe)  # type: ignore[method-assign]
        self.stats, self.close = guard(own.stats), guard(own.close)  # type: ignore[method-assign]
        self._propose = guard(own.propose)

    def propose(self, k: int) -> Proposal:
        found = self._propose(k)
        if not isinstance(found, Proposal):
            raise EngineError(f"{self._called} proposed {type(found).__name__!r}, and no mlsd.Proposal.")
        if found.tree is not None:
            return found
        if len(found.tokens) > k:
            raise EngineError(f"{self._called} proposed {len(found.tokens)} tokens where at most {k} may be.")
        try:
            tokens = tuple(token.__index__() for token in found.tokens)  # a number of numpy is one, too
        except AttributeError:
            tokens = (-1,)
        if not all(0 <= token < self._n_vocab for token in tokens):
            raise EngineError(f"{self._called} proposed what is no token of the target: {str(found.tokens)[:60]}.")
        return msgspec.structs.replace(found, tokens=tokens)

    @property
    def failed_native_calls(self) -> int:
        return self._own.failed_native_calls
