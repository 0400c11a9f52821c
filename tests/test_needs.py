"""What a machine lacks is skipped by name, or fails where it is required."""

import pytest

from tests import needs


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(needs.NEEDS, "a tool", needs.Need(lambda: None, "install it"))
    monkeypatch.delenv(needs.VARIABLE, raising=False)
    return "a tool"


def test_a_test_is_skipped_with_the_name_of_what_is_lacking_and_the_way_to_get_it(absent: str) -> None:
    with pytest.raises(pytest.skip.Exception, match="NOT TESTED for want of a tool: install it"):
        needs.needed(absent)


@pytest.mark.parametrize("required", ["a tool", "chromium,a tool"])
def test_a_test_fails_where_the_variable_requires_what_is_lacking(
    absent: str, monkeypatch: pytest.MonkeyPatch, required: str
) -> None:
    monkeypatch.setenv(needs.VARIABLE, required)
    with pytest.raises(pytest.fail.Exception, match="for want of a tool"):
        needs.needed(absent)


def test_programs_are_looked_for_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    program = tmp_path / "zsh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert needs.needed("zsh") == str(program)
    program.unlink()
    assert needs.NEEDS["zsh"].find() is None


def test_the_last_lines_count_the_skipped_tests_of_each_thing() -> None:
    reasons = ["Skipped: NOT TESTED for want of x: get x", "Skipped: only on Linux", "NOT TESTED for want of x: get x"]
    assert needs.summary(reasons) == ["NOT TESTED for want of x: get x (2 skipped)"]
