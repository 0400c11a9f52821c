"""``mlsd compare`` with real workers: a build against itself, against ones with a fault put in, settings."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlsd.engine.llama.build.loaded import plain_name
from mlsd.measure.parent import compare
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd
from tests.native_shim import ABORTS, LONGER, OTHER_MODEL, SLOWER, UNKNOWN, copy_of_installed, faulty_build, library
from tests.needs import needed

QUICK = ("--n-threads", 1, "--n-predict", 16, "--rows", "1,5", "--drafter", "pld")
KEPT = Path("results/compare.sqlite")


def compared(mlsd: Mlsd, *arguments: object) -> dict[str, Any]:
    result = mlsd("compare", *arguments, "--json")
    assert result.code == 0, result.err
    answer: dict[str, Any] = json.loads(result.out)
    return answer


def by_name(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["measure"]["name"]: finding for finding in answer["findings"]}


@pytest.mark.heavy
def test_a_build_against_itself_is_the_same_or_undecided_and_an_interrupted_session_keeps_its_whole_blocks(
    mlsd: Mlsd, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = compared(mlsd, ".", ".", "tiny-dense", *QUICK, "--repeats", 4)
    findings = by_name(answer)
    assert {"plain", "prefill", "pld, gamma 4", "pld, gamma 4: acceptance", "T(1)", "T(5)", "memory"} <= set(findings)
    assert {"rollback", "checkpoint", "pld, gamma 4: speedup", "pld, gamma 4: MGL"} <= set(findings)
    assert all(finding["verdict"] in ("same", "not decided yet") for finding in findings.values())
    assert findings["pld, gamma 4: acceptance"]["sentence"] == "same within 0 %"
    assert answer["outputs"] == [] and answer["answer"].startswith("B against A: ")
    assert all(finding["n"] == 4 and finding["control"] is not None for finding in findings.values())

    whole = compare._block

    def stop(sides: Any, repeat: int, *rest: Any) -> None:
        if repeat == 5:  # the second of this session
            raise KeyboardInterrupt
        whole(sides, repeat, *rest)

    monkeypatch.setattr(compare, "_block", stop)
    stopped = mlsd("compare", ".", ".", "tiny-dense", *QUICK, "--json")
    assert stopped.code == 130
    assert by_name(json.loads(stopped.out))["plain"]["n"] == 1
    with Store.open(KEPT, read_only=True) as store:
        trials = list(store.trials(rounds=False))
        runs = store.runs()
    assert len(trials) == (4 + 1) * 3 * 2, "every turn is a trial"
    assert all(stored.trial.valid for stored in trials)
    assert sorted({stored.trial.repeat for stored in trials}) == [0, 1, 2, 3, 4]
    assert sorted(run.plan["role"] for run in runs) == ["0", "0", "1", "1", "control", "control"]
    assert len({run.plan["session"] for run in runs}) == 2
    assert sorted(run.status for run in runs) == ["finished"] * 3 + ["interrupted"] * 3


@pytest.mark.heavy
def test_a_slower_library_is_slower_and_fails_the_check(mlsd: Mlsd, tmp_path: Path) -> None:
    # Ten times as slow: decided in few blocks on any machine, however busy.
    slow = faulty_build(tmp_path / "slow", SLOWER % 9.0)
    comment = tmp_path / "comment.md"
    result = mlsd(
        "compare", ".", slow, "tiny-dense", *QUICK[:-2], "--repeats", 6, "--fail-on", "slower:3%", "--markdown", comment
    )
    assert result.code == 1, result.out
    assert "T(1) is slower by" in result.err
    assert "is slower by" in comment.read_text()
    assert mlsd("report", "--db", KEPT, "-o", tmp_path / "report").code == 0
    assert "Builds and settings side by side" in (tmp_path / "report" / "report.html").read_text()


@pytest.mark.heavy
def test_another_output_is_judged_by_both_builds(mlsd: Mlsd, tmp_path: Path) -> None:
    other = faulty_build(tmp_path / "other", OTHER_MODEL % 20)
    arguments = (".", other, "tiny-dense", "--n-threads", 1, "--n-predict", 24, "--repeats", 1, "--no-control")
    result = mlsd("compare", *arguments, "--fail-on", "different", "--json")
    assert result.code == 1
    answer = json.loads(result.out)
    assert answer["changed_model"] is True
    assert "a changed model" in answer["outputs"][0]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (LONGER, "llama_context_params has 176 bytes in the library"),
        (ABORTS, "died while checking the build: killed by SIGABRT"),
        (OTHER_MODEL % 3, "computes something else"),
        (UNKNOWN, "cannot load"),
    ],
)
def test_a_build_that_cannot_be_measured_is_told_before_anything_runs(
    mlsd: Mlsd, tmp_path: Path, code: str, reason: str
) -> None:
    from mlsd.folders import asset_path

    model = tmp_path / "new-architecture.gguf"
    shutil.copy(asset_path("tiny/tiny-dense.gguf"), model)
    build = faulty_build(tmp_path / "faulty", code)
    result = mlsd("compare", ".", build, model, *QUICK)
    assert result.code == 2
    assert f"Build {build} cannot be measured." in result.err
    assert reason in result.err
    assert not KEPT.exists()


def test_the_same_files_under_two_names_and_libraries_that_lack_a_function_are_refused(
    mlsd: Mlsd, tmp_path: Path
) -> None:
    folder = copy_of_installed(tmp_path / "lib")
    result = mlsd("compare", ".", folder, "tiny-dense")
    assert result.code == 2
    assert "are the same build" in result.err and "mlsd compare . . TARGET" in result.err
    (folder / plain_name("llama")).unlink()
    shutil.copyfile(library(folder, "ggml-base"), folder / plain_name("llama"))
    result = mlsd("compare", ".", folder, "tiny-dense", *QUICK)
    assert result.code == 2
    assert "llama.cpp cannot be loaded" in result.err and "undefined symbol: llama_" in result.err


@pytest.mark.heavy
def test_two_settings_of_one_build_are_two_sides(mlsd: Mlsd) -> None:
    options = ("--n-threads", 1, "--n-predict", 16, "--rows", "1,5", "--repeats", 1, "--no-control")
    sides = ("--flash-attention", "on/off", "--kv-type", "q8_0/f16")
    answer = compared(mlsd, ".", ".", "tiny-dense", *options, *sides, "-o", "passes.svg")
    drawn = Path("passes.svg").read_text()
    assert "T(k) of B / of A" in drawn and "B: ." in drawn
    assert "flash attention on" in answer["a"]["settings"]
    assert "flash attention off" in answer["b"]["settings"]
    assert "kv type q8_0" in answer["a"]["settings"]
    assert by_name(answer)["plain"]["n"] == 1


@pytest.mark.builds
@pytest.mark.heavy
def test_another_build_is_measured_through_its_own_bindings(mlsd: Mlsd) -> None:
    other = needed("other-build")
    answer = compared(mlsd, ".", other, "tiny-dense", *QUICK, "--repeats", 4)
    builds = [answer[side]["environment"]["llama_cpp_build"] for side in ("a", "b")]
    assert builds[0] != builds[1]
    assert by_name(answer)["pld, gamma 4: acceptance"]["n"] == 4


@pytest.mark.builds
@pytest.mark.heavy
def test_the_same_source_without_vectors_is_slower(mlsd: Mlsd) -> None:
    other = needed("build-without-vectors")
    answer = compared(mlsd, ".", other, "tiny-dense", *QUICK, "--repeats", 10)
    assert "slower" in {found["verdict"] for found in by_name(answer).values()}
    assert "faster" not in {found["verdict"] for found in by_name(answer).values()}
