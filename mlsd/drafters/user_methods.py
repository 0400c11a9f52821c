"""Methods out of files of one's own, named ``./mine.py:Freq``: loaded, checked, and called what they are.

Such a method is the file's content: its name holds the file's base name, the class, and the content's hash, and so do
its trials. Whatever goes wrong inside it is said to be its own fault, with the line.
"""

import dataclasses
import hashlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mlsd.drafters import method as methods
from mlsd.drafters.method import DrafterSetup, Method, MethodOptions
from mlsd.engine.drafter import Drafter, WrappedDrafter
from mlsd.engine.verify import Proposal
from mlsd.errors import EngineError, InputError, MlsdError, choose, in_one_line
from mlsd.outside import read_given
from mlsd.records import OptionValue

_TYPED = re.compile(r"(?P<path>.+\.py):(?P<name>\w+)", re.DOTALL)
_NAMED = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)@[0-9a-f]{12}", re.DOTALL)
_HOOKS = ("contexts", "check_target", "check_second", "fill_in", "made_draft", "drafting_part", "head")

_loaded: dict[str, str] = {}  # name of a method -> its file and class, as a worker finds them


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
        before = dict(methods.REGISTERED)  # what the file registers has its own name here, and replaces nothing
        try:
            method = _read(data, path, typed["name"], name)
        finally:
            methods.REGISTERED.clear()
            methods.REGISTERED.update(before)
        methods.REGISTERED[name] = method
    _loaded[name] = f"{path}:{typed['name']}"
    return methods.REGISTERED[name]


def load_again(methods_of_files: Mapping[str, str]) -> None:
    """In a worker: the methods that its parent took from files. Raises: InputError where one has changed since."""
    for name, text in methods_of_files.items():
        if load(text).name != name:
            raise InputError(f"{Path(text).name} has changed since it was read.", hint="Give the command again.")


def _read(data: bytes, path: Path, wanted: str, name: str) -> Method:
    module = types.ModuleType(f"mlsd_user_{hashlib.sha256(data).hexdigest()[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where annotations are looked up
    try:
        exec(compile(data, str(path), "exec"), module.__dict__)
        kinds = {
            key: kind
            for key, kind in vars(module).items()
            if isinstance(kind, type)
            and issubclass(kind, MethodOptions | Drafter)
            and kind.__module__ == module.__name__
        }
        if wanted in kinds:
            facts = next((method for method in methods.REGISTERED.values() if method.options is kinds[wanted]), None)
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
    summary = inspect.cleandoc(kind.__doc__ or "A method of one's own.").splitlines()[0]
    facts = facts or Method(name=name, summary=summary, source=path.name, options=options)
    hooks = {hook: _blame(called, path)(getattr(options, hook)) for hook in _HOOKS if facts.has(hook)}

    def open_(self: MethodOptions, setup: DrafterSetup) -> Drafter:
        with _blame(called, path):
            return _UserDrafter(options.open(self, setup), called, path, setup)

    hooks["open"] = open_
    guarded: Any = msgspec.defstruct(kind.__name__, [], bases=(options,), namespace=hooks, frozen=True, kw_only=True)
    msgspec.json.schema(guarded)  # options that cannot be typed are refused now
    return dataclasses.replace(facts, name=name, options=guarded)


def _options_of(kind: type[Drafter]) -> type[MethodOptions]:
    """What can be set of a drafter: what its class is called with."""
    hints, fields = typing.get_type_hints(kind.__init__), list[Any]()
    for parameter in inspect.signature(kind).parameters.values():
        field = (parameter.name, hints.get(parameter.name, OptionValue))
        fields.append(field if parameter.default is parameter.empty else (*field, parameter.default))

    def open_(self: MethodOptions, setup: DrafterSetup) -> Drafter:
        return kind(**{name: getattr(self, name) for name in self.__struct_fields__})

    return msgspec.defstruct(  # type: ignore[return-value]
        kind.__name__, fields, bases=(MethodOptions,), namespace={"open": open_}, frozen=True, kw_only=True
    )


@contextmanager
def _blame(called: str, path: Path) -> Iterator[None]:
    """Make any failure inside the method's own."""
    try:
        yield
    except MlsdError:
        raise
    except Exception as error:
        raise EngineError(f"{called} raised {in_one_line(error, path)}.") from error


class _UserDrafter(WrappedDrafter):
    """A drafter whose faults are called its own, and that proposes nothing which cannot be verified."""

    def __init__(self, drafter: Drafter, called: str, path: Path, setup: DrafterSetup) -> None:
        super().__init__(drafter)
        self._called, self._n_vocab = called, setup.target.tokenizer.vocabulary.n_tokens
        for name in ("begin", "observe", "stats", "close"):
            setattr(self, name, _blame(called, path)(getattr(drafter, name)))
        self._propose = _blame(called, path)(drafter.propose)

    def propose(self, k: int) -> Proposal:
        proposal = self._propose(k)
        if not isinstance(proposal, Proposal):
            raise EngineError(f"{self._called} proposed {type(proposal).__name__!r}, and no mlsd.Proposal.")
        if proposal.tree is not None:
            return proposal
        if len(proposal.tokens) > k:
            raise EngineError(f"{self._called} proposed {len(proposal.tokens)} tokens where at most {k} may be.")
        try:
            tokens = tuple(token.__index__() for token in proposal.tokens)  # a number of numpy is one, too
        except AttributeError:
            tokens = (-1,)
        if not all(0 <= token < self._n_vocab for token in tokens):
            raise EngineError(f"{self._called} proposed what is no token of the target: {str(proposal.tokens)[:60]}.")
        return msgspec.structs.replace(proposal, tokens=tokens)
