import getpass
import platform
from pathlib import Path

import msgspec
import pytest

from mlsd.errors import InputError
from mlsd.hardware.budget import MemoryBudget
from mlsd.measure.parent.doctor import (
    ProfileFit,
    SelfCheck,
    check_machine,
    condition_checks,
    expected_backend,
    profile_fits,
    read_self_check,
    write_self_check,
)
from mlsd.measure.parent.memory import estimated_bytes, weight_bytes
from mlsd.models.hub import Hub
from mlsd.models.library import Library
from mlsd.models.manifest import LocalFile, Manifest, ModelEntry, Quantized, Repository, load_manifest
from mlsd.planning.suite import DrafterChoice, Part, Profile, Suite
from mlsd.records import Conditions

GB = 1_000_000_000
SUITE = Suite(
    name="B",
    title="",
    parts=(
        Part(targets=("big", "small"), prompts=("code",), drafters=(DrafterChoice(draft="draft"),), gammas=(4,)),
        Part(targets=("big",), prompts=("code",)),
    ),
)
PROFILE = Profile(title="two targets", roles={"big": "big", "small": "small", "draft": "draft"}, name="two")
BUDGET = MemoryBudget(limit_bytes=12 * GB, most_bytes=16 * GB, basis="")


def entry(model_id: str, n_bytes: int | None) -> ModelEntry:
    return Repository(
        id=model_id,
        name=model_id,
        architecture="llama",
        quantization="Q8_0",
        repo="a/b",
        file="x",
        n_bytes=n_bytes,
    )


def library(tmp_path: Path, *entries: ModelEntry) -> Library:
    return Library(Manifest(models={e.id: e for e in entries}), Hub(cache_dir=tmp_path / "hub"))


def profile_fit(models: Library, budget: MemoryBudget | None, free_bytes: int = 100 * GB) -> ProfileFit:
    return profile_fits([PROFILE], [SUITE], models, budget, free_bytes)[0]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("big_gb", "verdict"), [(9, "fits"), (11, "fits"), (12, "tight"), (15, "tight"), (16, "does not fit")]
)
def test_the_heaviest_pair_decides(tmp_path: Path, big_gb: int, verdict: str) -> None:
    models = library(tmp_path, entry("big", big_gb * GB), entry("small", 2 * GB), entry("draft", 1 * GB))
    fit = profile_fit(models, BUDGET)
    assert fit.memory is not None
    weighed = (fit.memory.models, fit.memory.weights_bytes)
    assert (fit.verdict, *weighed) == (verdict, ("big", "draft"), (big_gb + 1) * GB)
    assert (fit.n_models, fit.n_downloaded, fit.missing_bytes) == (3, 0, (big_gb + 3) * GB)


def test_a_model_that_no_suite_loads_is_not_downloaded(tmp_path: Path) -> None:
    sizes = {"big": 9, "small": 2, "draft": 1, "spare": 5}
    models = library(tmp_path, *(entry(id_, n * GB) for id_, n in sizes.items()))
    spare = msgspec.structs.replace(PROFILE, roles={**PROFILE.roles, "draft-medium": "spare"})
    (fit,) = profile_fits([spare], [SUITE], models, BUDGET, 100 * GB)
    assert (fit.n_models, fit.missing_bytes) == (3, 12 * GB)


def test_a_model_that_a_suite_names_by_id_is_no_reason_against_a_profile(tmp_path: Path) -> None:
    part = Part(targets=("control",), prompts=("code",), drafters=(DrafterChoice(name="pld"),), gammas=(4,))
    by_id = Suite(name="G", title="", parts=(part,))
    models = library(tmp_path, entry("big", 9 * GB), entry("small", GB), entry("draft", GB), entry("control", 99 * GB))
    (fit,) = profile_fits([PROFILE], [SUITE, by_id], models, BUDGET, 100 * GB)
    assert fit.verdict == "fits" and fit.memory is not None and fit.memory.models == ("big", "draft")


def test_the_suite_with_all_drafts_at_once_is_judged_apart(tmp_path: Path) -> None:
    every = tuple(DrafterChoice(draft=draft) for draft in ("draft", "small"))
    part = Part(targets=("big",), prompts=("code",), drafters=every, gammas=(4,), one_load=True)
    models = library(tmp_path, entry("big", 9 * GB), entry("small", 8 * GB), entry("draft", 1 * GB))
    fit = profile_fits([PROFILE], [SUITE, Suite(name="E", title="", parts=(part,))], models, BUDGET, 100 * GB)[0]
    assert fit.verdict == "fits" and fit.memory is not None and fit.memory.models == ("big", "draft")
    assert "; suite E, all drafts at once, does not fit: big + " in fit.why


@pytest.mark.heavy
def test_a_model_size_or_memory_that_nobody_knows_leaves_the_verdict_open(tmp_path: Path) -> None:
    small, draft = entry("small", 2 * GB), entry("draft", 1 * GB)
    fit = profile_fit(library(tmp_path, entry("big", None), small, draft), BUDGET)
    assert (fit.verdict, fit.missing_bytes) == ("unknown", None) and "the size of big is not known" in fit.why
    unknown = profile_fit(library(tmp_path, entry("big", GB)), BUDGET)
    assert unknown.verdict == "unknown" and "small" in unknown.why
    whole = library(tmp_path, entry("big", 9 * GB), small, draft)
    assert profile_fit(whole, None).verdict == "unknown"
    on_disk = profile_fit(whole, BUDGET, 11 * GB)
    assert on_disk.verdict == "does not fit"
    assert "12.00 GB to download or make, 11.00 GB of disk free" in on_disk.why


def test_an_unstated_size_is_estimated_and_marked_so(tmp_path: Path) -> None:
    big = msgspec.structs.replace(entry("big", None), parameters=8 * GB)
    models = library(tmp_path, big, entry("small", 2 * GB), entry("draft", 1 * GB))
    fit = profile_fit(models, BUDGET)
    assert fit.memory is not None and fit.memory.weights_bytes == pytest.approx(8 * GB * 8.5 / 8 * 1.05 + GB, rel=1e-3)
    assert (fit.verdict, fit.estimated) == ("fits", ("big",))
    assert "big + draft: about 9.9" in fit.why


def test_estimates_are_near_the_sizes_that_are_stated() -> None:
    """Against every entry of the shipped manifest that states both."""
    entries = [e for e in load_manifest() if e.n_bytes and estimated_bytes(e) and e.n_bytes > GB]
    ratios = {e.id: (estimated_bytes(e) or 0) / (e.n_bytes or 1) for e in entries}
    assert len(ratios) >= 5
    assert {model: ratio for model, ratio in ratios.items() if not 0.9 < ratio < 1.15} == {}


def test_a_model_is_weighed_by_its_entry_its_files_or_its_base(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"12345")
    here = LocalFile(id="here", name="x", architecture="llama", quantization="F16", file=str(path))
    made = Quantized(id="made", name="x", architecture="llama", quantization="Q4_0", base="stated", type="Q4_0")
    models = library(tmp_path, here, made, entry("stated", 7 * GB), entry("nobody", None))
    sizes = {e.id: weight_bytes(e, models) for e in models.manifest}
    assert sizes == {"here": 5, "made": 7 * GB, "stated": 7 * GB, "nobody": None}


# --- the self-check -----------------------------------------------------------------------------------------------

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
