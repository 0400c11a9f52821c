import getpass
import platform
from pathlib import Path

import msgspec
import pytest

from mlsd.errors import InputError
from mlsd.measure.parent.doctor import (
    SelfCheck,
    check_machine,
    condition_checks,
    expected_backend,
    read_self_check,
    write_self_check,
)
from mlsd.records import Conditions

GOOD = Conditions(on_battery=False, low_power_mode=False, thermal_state="nominal", swap_used_bytes=0)


@pytest.fixture(scope="module")
def checked() -> SelfCheck:
    return check_machine()


@pytest.mark.heavy
def test_what_holds_on_every_device_holds_here(checked: SelfCheck) -> None:
    by_name = {(check.name, check.subject): check.ok for check in checked.checks}
    for model in ("tiny-dense", "tiny-moe", "tiny-draft", "two blocks of qwen3.5-0.8b"):
        for name in ("operations", "rollback", "memory"):
            assert by_name[name, model]
    assert by_name["memory", "a vocabulary of 248,320"]
    assert by_name["products", "smollm2-135m"], "a model at hand, of which only the header is read"
    assert {check.name for check in checked.checks} >= {"device", "sampling", "kernel noise", "repeats", "synchronised"}


@pytest.mark.heavy
def test_the_report_names_nobody_and_no_place(checked: SelfCheck, tmp_path: Path) -> None:
    path = tmp_path / "self-check.json"
    write_self_check(path, checked)
    assert read_self_check(path) == checked
    text = path.read_text()
    assert checked.environment.host == ""
    for private in (str(Path.home()), str(Path.cwd()), platform.node()):
        assert private not in text
    assert f"/{getpass.getuser()}" not in text


def test_only_apple_silicon_must_have_metal() -> None:
    assert expected_backend("darwin", "arm64") == "Metal"
    assert expected_backend("darwin", "x86_64") is None
    assert expected_backend("linux", "aarch64") is None


def test_power_heat_and_swap_are_judged_and_what_is_not_known_is_not() -> None:
    assert all(check.ok for check in condition_checks(GOOD, GOOD))
    bad = msgspec.structs.replace(
        GOOD, on_battery=True, low_power_mode=True, thermal_state="heavy", swap_used_bytes=1 << 30
    )
    assert not any(check.ok for check in condition_checks(GOOD, bad))
    assert {check.ok for check in condition_checks(Conditions(), Conditions())} == {None}


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="is not a self-check"):
        read_self_check(tmp_path / "x.json")
