"""No command lets llama.cpp try a context that cannot be."""

import pytest

from tests.cli.conftest import Mlsd


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "tiny-moe", "--draft", "tiny-draft", "--gamma", "2"),
        ("calibrate", "tiny-moe"),
        ("doctor", "tiny-moe"),
        ("models", "distance", "tiny-moe", "--draft", "tiny-draft"),
        ("bench", "tiny-moe", "--drafter", "pld", "--search", "5"),
        ("run", "B", "--profile", "tiny"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_context_of_billions_is_refused_before_anything_is_loaded(mlsd: Mlsd, arguments: tuple[str, ...]) -> None:
    ran = mlsd(*arguments, "--n-ctx", "2000000000")
    assert ran.code == 2
    assert "2,000,000,000 positions is beyond the 4,096" in ran.err
    assert "--n-ctx 4096" in ran.err
