"""What the Tab key offers: ids of models, methods, profiles, suites and prompts, and files where a path is begun."""

from collections.abc import Callable, Iterable
from importlib import import_module

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _offer(names: Callable[[], Iterable[str]]) -> Complete:
    """Those of `names` that begin with the word; files where none does."""

    def complete(ctx: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(word)]
        return found or [CompletionItem(word, type="file")]

    return complete


models = _offer(lambda: import_module("mlsd.models.manifest").load_manifest().models)
methods = _offer(lambda: import_module("mlsd.drafters").METHODS)
profiles = _offer(lambda: import_module("mlsd.planning.suite").load_profiles())
suites = _offer(lambda: import_module("mlsd.planning.suite").suite_names())
prompts = _offer(lambda: import_module("mlsd.planning.prompts").prompt_names())
