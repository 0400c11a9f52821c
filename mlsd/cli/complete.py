"""What the Tab key offers: ids of models, methods, profiles, suites and prompts, and files where a path is begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _offer(names: Callable[[], Iterable[str]], *, files: bool = True) -> Complete:
    """Those of `names` that begin with the word; files where none does."""

    def complete(ctx: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(word)]
        return found or ([CompletionItem(word, type="file")] if files else [])

    return complete


def _models() -> Iterable[str]:
    from mlsd.models.manifest import load_manifest

    return load_manifest().models


def _methods() -> Iterable[str]:
    from mlsd.drafters import METHODS

    return METHODS


def _profiles() -> Iterable[str]:
    from mlsd.planning.suite import load_profiles

    return load_profiles()


def _suites() -> Iterable[str]:
    from mlsd.planning.suite import suite_names

    return suite_names()


def _prompts() -> Iterable[str]:
    from mlsd.planning.prompts import prompt_names

    return prompt_names()


models, profiles, suites, prompts = map(_offer, (_models, _profiles, _suites, _prompts))
methods = _offer(_methods, files=False)
