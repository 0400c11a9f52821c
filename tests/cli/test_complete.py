"""What the Tab key offers, and what a mistyped name is answered with."""

import pytest
from click.shell_completion import ShellComplete

from mlsd.cli.main import cli
from tests.cli.conftest import Mlsd


def offered(*words: str) -> set[str]:
    *before, last = words
    return {item.value for item in ShellComplete(cli, {}, "mlsd", "_MLSD_COMPLETE").get_completions(before, last)}


def test_tab_offers_ids_methods_profiles_suites_and_prompts() -> None:
    assert {"tiny-dense", "tiny-moe", "tiny-draft"} <= offered("bench", "tiny")
    assert "smollm2-135m" in offered("bench", "tiny-moe", "--draft", "smol")
    assert offered("bench", "tiny-moe", "--drafter", "pl") == {"pld"}
    assert offered("run", "--dry-run", "A", "--profile", "ti") == {"tiny"}
    assert "A" in offered("run", "") and "code" in offered("bench", "tiny-moe", "--prompt", "co")
    assert offered("bench", "./mod") == {"./mod"}  # a path: the shell goes on


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("bench", "tiny-dence"), "tiny-dense"),
        (("bench", "tiny-dense", "--drafter", "pldd"), "pld"),
        (("bench", "tiny-dense", "--drafter", "pld:ngrm=3"), "ngram"),
        (("run", "--dry-run", "A", "--profile", "smolm2"), "smollm2"),
        (("bench", "tiny-dense", "--prompt", "cod"), "code"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_was_meant(mlsd: Mlsd, words: tuple[str, ...], meant: str) -> None:
    refused = mlsd(*words)
    assert refused.code == 2 and f"Did you mean {meant}" in refused.err
