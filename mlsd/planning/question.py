"""What a command was asked, as far as every command that goes on from it must say it again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlsd.errors import InputError
from mlsd.planning.options import as_typed, typed
from mlsd.records import DRAFT_MODEL, DrafterSpec, EngineOptions, ModelRef, OptionValue, Record, Sampling

if TYPE_CHECKING:
    from mlsd.models.library import LocalModel
    from mlsd.planning.options import Overrides
    from mlsd.planning.prompts import Prompt
    from mlsd.trials.results import ArmResult

_BREAKING = ("unchecked", "sabotage")  # rollbacks after which no trial counts: asking again so would not help


class NextStep(Record, frozen=True, kw_only=True):
    """What goes on from an answer: a command as a shell takes it, and about how long it measures, where known."""

    command: str
    seconds: float | None = None


class Invocation(Record, frozen=True, kw_only=True):
    """What a command was asked, as far as the command that goes on from it must say it again."""

    database: str | None = None  # None: the default of `bench`
    models: Mapping[str, str] = {}  # id -> path, or id that a command knows
    prompts: Mapping[str, str] = {}  # key -> name, or path of its file

    @classmethod
    def of(cls, models: Iterable[LocalModel], prompts: Iterable[Prompt], database: str | Path | None) -> Invocation:
        """Of what was resolved for a command; a database that was not chosen is left out."""
        return cls(
            database=None if database is None else str(database),
            models={model.ref.id: model.called for model in models},
            prompts={prompt.key: prompt.called for prompt in prompts},
        )

    def bench(self, arms: Sequence[ArmResult], *more: str) -> str:
        """The command that measures these arms of one question beside plain decoding, as they were measured."""
        drafters = dict.fromkeys(word for arm in arms for word in self._drafter(arm))
        gammas = ",".join(map(str, sorted({arm.case.gamma for arm in arms})))
        options = [part for word in drafters for part in word]
        length = ("--n-predict", str(arms[0].question.n_predict))
        return self._command(arms[0], [*options, "--gamma", gammas], length, more)

    def _drafter(self, arm: ArmResult) -> Iterator[tuple[str, str]]:
        spec = arm.case.drafter
        draft = self._called(spec.draft) if spec.draft else ""
        if spec.name == DRAFT_MODEL and not spec.options:
            yield "--draft", draft
        else:
            yield "--drafter", drafter_text(spec.name, {**({"draft": draft} if draft else {}), **spec.options})

    def others(self, arm: ArmResult) -> str:
        """The command that measures what else fits this arm's target, on its text and in its settings."""
        return self._command(arm, (), (), ())

    def _command(self, arm: ArmResult, drafter: Sequence[str], length: Sequence[str], more: Sequence[str]) -> str:
        prompts = [word for key in arm.prompts for word in ("--prompt", self.prompts.get(key, key))]
        command = ["mlsd", "bench", self._called(arm.case.target), *drafter, *prompts, *length, *_settings(arm)]
        return shlex.join([*command, *(("--db", self.database) if self.database else ()), *more])

    def _called(self, model: ModelRef) -> str:
        return self.models.get(model.id, model.id)


Asked = Mapping[str, Sequence[str]]  # what `mlsd run` was asked: values by option, suites under no name


def study_asked(
    suites: Iterable[str], profile: str, models: Mapping[str, str], overrides: Overrides
) -> dict[str, tuple[str, ...]]:
    """What a run of suites is asked, as every command that goes on from it says it again; files from the root."""
    roles = {"--model": tuple(f"{role}={as_typed(model)}" for role, model in models.items())} if models else {}
    return {"": tuple(map(as_typed, suites)), "--profile": (profile,), **roles, **typed(overrides)}


def run_command(asked: Asked, **changes: Sequence[str]) -> str:
    """The command that asks this, with other suites or options (`n_predict` is --n-predict)."""
    named = {f"--{name.replace('_', '-')}": values for name, values in changes.items() if name != "suites"}
    changed = {**asked, **({"": changes["suites"]} if "suites" in changes else {}), **named}
    suites = changed.pop("", ())
    return shlex.join(["mlsd", "run", *suites, *_arguments(changed)])


def _arguments(options: Asked) -> list[str]:
    return [word for flag, values in options.items() for value in values for word in (flag, value) if word]


def _settings(arm: ArmResult) -> list[str]:
    """Options of everything that is not as by default."""
    case = arm.case
    options = [*options_of(case.sampling), *options_of(case.engine)]
    options += [] if case.ignore_eog else ["--stop-at-eog"]
    return options + ([] if case.rollback in ("auto", *_BREAKING) else ["--rollback", case.rollback])


def options_of(given: Sampling | EngineOptions) -> list[str]:
    """What of these is not as by default, as options of a command."""
    return _arguments(typed(given))


def drafter_text(name: str, options: Mapping[str, OptionValue]) -> str:
    """A method with its options as `--drafter` takes them."""
    values = ",".join(f"{key}={str(v).lower() if isinstance(v, bool) else v}" for key, v in options.items())
    if ".py:" in name:
        from mlsd.drafters import user_methods  # which loads every method

        name = user_methods.as_typed(name)
    return f"{name}:{values}" if values else name


def parse_drafter(text: str, draft: ModelRef | None = None) -> DrafterSpec:
    """``NAME`` or ``NAME:option=value,...``, NAME of a method or ``FILE.py:CLASS``; values become bool, int or float if
    they can. Raises: InputError.
    """
    match = re.fullmatch(r"([^=]+\.py:\w+|[^:]*)(?::(.*))?", text, re.DOTALL)
    name, rest = (match[1], match[2] or "") if match else (text, "")
    options: dict[str, OptionValue] = {}
    for part in filter(None, rest.split(",")):
        key, separator, value = part.partition("=")
        if not separator or not key:
            raise InputError(f"{part!r} in --drafter {text!r} is not option=value.", hint="Like pld:ngram=3,length=10.")
        options[key] = _option_value(value)
    return DrafterSpec(name=name, options=options, draft=draft)


def _option_value(text: str) -> OptionValue:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
