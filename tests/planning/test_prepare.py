"""What people ask for becomes a plan: benches in interleaved order, and what they get wrong is refused."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from mlsd.analysis.frames import TRIALS
from mlsd.errors import EngineError, InputError, SuiteError
from mlsd.folders import asset_path
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.models.library import resolve_model
from mlsd.planning.job import ModelFile
from mlsd.planning.plan import plan_bench, prepare_study
from mlsd.planning.request import bench_request, default_arms, study_request


@pytest.mark.parametrize(("given", "gammas"), [(None, [0, 15]), ((3, 1), [0, 1, 3])])
def test_a_preset_brings_its_gamma_and_given_ones_win(given: tuple[int, ...] | None, gammas: list[int]) -> None:
    plan = plan_bench(bench_request("tiny-moe", drafters=("pld:preset=smollm2",), gammas=given))
    assert sorted(case.gamma for case in plan.cases().values()) == gammas
    assert plan.study_trials == {"bench": 3 * (len(gammas) - 1)} and plan.paired_baselines == 3


def test_a_suites_names_change_at_most_once_on_their_way_to_a_case(tmp_path: Path) -> None:
    """`targets` = [...] is a case's `target` and the column `target` of its row, and so on."""
    path = tmp_path / "x.toml"
    path.write_text(
        'name = "X"\ntitle = "x"\nn_predict = 8\nrepeats = 1\n[[parts]]\ntargets = ["moe-q4"]\n'
        'drafters = [{ name = "pld", options = { ngram = 2 } }]\ngammas = [4]\nprompts = ["code"]\n'
    )
    plan = prepare_study(study_request((str(path),), profile="tiny"))
    case = next(case for case in plan.cases().values() if case.gamma)
    assert (case.suite, case.n_predict, case.gamma, case.prompt.key) == ("X", 8, 4, "code")
    assert (case.target.id, case.drafter.name, case.drafter.options["ngram"]) == ("tiny-moe-q4_0", "pld", 2)
    row = {"suite", "target", "drafter", "gamma", "prompt", "n_predict", "repeat"}
    assert row <= {column.name for column in TRIALS}


@pytest.fixture
def relative(tmp_path: Path) -> Path:
    """A model of the embedded family's vocabulary that no manifest knows."""
    perturb(asset_path("tiny/tiny-dense.gguf"), tmp_path / "relative.gguf", noise=0.1)
    return tmp_path / "relative.gguf"


def test_a_model_of_ones_own_takes_a_role_by_path_or_by_id(relative: Path) -> None:
    models = {"dense-m": str(relative), "draft-small": "tiny-dense"}
    plan = prepare_study(study_request("D", profile="tiny", models=models), make=True)
    assert plan.models()["relative"].path == str(relative)
    loads = {tuple(ref.id for ref in load.refs) for load in plan.loads}
    assert loads == {("relative", "tiny-dense")}, "the other target would draft for itself"
    assert all(case.target.sha256 == plan.models()["relative"].ref.sha256 for case in plan.cases().values())


def test_a_draft_of_another_vocabulary_is_refused_before_anything_loads(tiny: Path) -> None:
    request = study_request("D", profile="tiny", models={"dense-m": str(tiny / "llama.gguf")})
    with pytest.raises(EngineError, match="the target has 512 tokens, the draft 1536"):
        prepare_study(request, make=True)


def test_a_file_called_as_a_known_model_stays_another_one(relative: Path, tmp_path: Path) -> None:
    path = relative.rename(tmp_path / "tiny-dense.gguf")
    plan = prepare_study(study_request("D", profile="tiny", models={"dense-m": str(path)}), make=True)
    assert set(plan.models()) == {"tiny-dense", "tiny-dense-file", "tiny-draft"}
    assert plan.models()["tiny-dense-file"].path == str(path)


def test_a_profile_may_stand_in_a_file_of_ones_own(relative: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").symlink_to(relative)
    file = tmp_path / "my-profile.toml"
    file.write_text('[mine]\ntitle = "x"\n[mine.roles]\ndense-l = "./mine.gguf"\ndraft-small = "tiny-draft"\n')
    request = study_request("D", profile=str(file))
    assert request.profile.name == "mine"
    assert set(prepare_study(request, make=True).models()) == {"mine", "tiny-draft"}
    file.write_text('[a]\ntitle = "x"\nroles = {}\n[b]\ntitle = "x"\nroles = {}\n')
    with pytest.raises(SuiteError, match="holds 2 profiles"):
        study_request("D", profile=str(file))


@pytest.mark.parametrize(
    ("profile", "models", "reason"),
    [
        ("tiny", {"boss": "tiny-dense"}, "no role 'boss'"),
        ("tiny", {"dense-m": "no/such.gguf"}, "does not exist"),
        ("tiny", {"dense-m": "nothing"}, "is not in the model manifest"),
        ("huge", {}, r"no profile called 'huge'.*tiny, smollm2, synth, mac-16gb"),
    ],
)
def test_an_unknown_profile_role_or_model_is_refused(profile: str, models: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        prepare_study(study_request("D", profile=profile, models=models))


def test_models_come_so_that_one_target_and_one_pair_are_measured_first() -> None:
    plan = prepare_study(study_request("ABCD", profile="mac-16gb"))
    here, brought = set[str](), []

    def placed(file: ModelFile) -> ModelFile:
        return replace(file, path="x" if file.ref.id in here else "")

    while True:
        loads = [replace(a, target=placed(a.target), models=tuple(map(placed, a.models))) for a in plan.loads]
        if (load := replace(plan, loads=tuple(loads)).next_to_bring()) is None:
            break
        brought.append([ref.id.removeprefix("qwen3.5-") for ref in load.missing])
        here |= {ref.id for ref in load.refs}
    assert brought == [["0.8b-q8_0"], ["4b-q8_0", "0.8b-q4_k_m"], ["2b-q8_0"], ["9b-q4_k_m"]]


# --- what is tried when nobody chose ------------------------------------------------------------------------------


def test_the_embedded_family_has_its_draft_and_none_is_that_of_itself_nor_of_another_vocabulary(tiny: Path) -> None:
    found = default_arms(resolve_model("tiny-moe"))
    assert (found.drafters, found.drafts) == (("pld", "ngram-cache"), ("tiny-draft",))
    assert default_arms(resolve_model("tiny-draft")).drafts == ()
    assert bench_request("tiny-moe", until="decided").arms == bench_request("tiny-moe", drafters=None).arms
    assert bench_request("tiny-moe", repeats=1).arms == ()
    assert "tiny-draft" not in default_arms(resolve_model(str(tiny / "llama.gguf"))).drafts


def test_drafts_of_the_family_that_are_not_here_are_named(smollm2: Path) -> None:
    found = default_arms(resolve_model("smollm2-135m"))
    assert not set(found.drafts) & set(found.to_get)
    assert all(id_.startswith("smollm2") for id_ in (*found.drafts, *found.to_get))
