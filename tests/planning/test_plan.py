from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mlsd.errors import SuiteError, UnsupportedError
from mlsd.models.library import LocalModel
from mlsd.models.manifest import load_manifest
from mlsd.planning.job import ModelFile, Slot
from mlsd.planning.options import Overrides
from mlsd.planning.plan import Plan, expand, used_models
from mlsd.planning.prompts import KINDS
from mlsd.planning.suite import DrafterChoice, Part, Profile, Suite, find_profile, load_profiles, load_suites
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, DrafterSpec, ModelRef, Sampling

STUDY = ["A", "B", "C", "D", "F"]


def manifest_models() -> dict[str, ModelFile]:
    return {entry.id: ModelFile(ref=ModelRef(id=entry.id, n_bytes=entry.n_bytes)) for entry in load_manifest()}


def study_plan(names=STUDY, profile="study", **overrides) -> Plan:
    return expand(load_suites(names), find_profile(profile), manifest_models(), Overrides(**overrides))


def small_suite(**changes) -> Suite:
    part = Part(
        targets=("moe-q4",), drafters=(DrafterChoice(draft="draft-small"),), gammas=(4, 8), prompts=("code", "factual")
    )
    return Suite(name="S", title="small", repeats=2, parts=(replace(part, **changes),))


MODELS = {name: ModelFile(ref=ModelRef(id=name, sha256=name * 8, n_bytes=10)) for name in ("t", "u", "d", "e")}
PROFILE = Profile(name="p", title="", roles={"moe-q4": "t", "moe-q8": "u", "draft-small": "d", "draft-cross": "t"})


def blocks_of(plan: Plan) -> list[tuple[Slot, ...]]:
    return [block.slots for load in plan.loads for block in load.blocks]


def orders(plan: Plan) -> list[list[tuple[str, int]]]:
    return [[(trial.case.prompt.key, trial.case.gamma) for trial in block] for block in blocks_of(plan)]


# --- the study ----------------------------------------------------------------------------------------------------


def test_the_study_profile_plans_the_papers_306_trials_with_paired_baselines_apart():
    plan = study_plan()
    assert plan.study_trials == {"A": 18, "B": 144, "C": 36, "D": 72, "F": 36}
    # 2 targets x 2 drafts x 4 prompts x 3 repeats of B, 2 x 1 x 4 x 3 of D
    assert plan.paired_baselines == 48 + 24
    assert sum(1 for _ in plan.slots()) == 306 + 72
    assert not plan.left_out


def test_every_block_with_drafts_holds_exactly_one_plain_arm_of_the_same_target_and_prompt():
    for block in blocks_of(study_plan([*STUDY, "E"])):
        plain = [trial.case for trial in block if trial.case.arm == "ar"]
        assert len(plain) == 1
        for trial in block:
            assert (trial.case.target, trial.case.prompt) == (plain[0].target, plain[0].prompt)
            assert trial.case.n_predict == plain[0].n_predict
            assert trial.case.suite == plain[0].suite


def test_each_pair_loads_once_and_loads_of_one_target_follow_each_other():
    loads = study_plan([*STUDY, "E"]).loads
    pairs = [(load.target.ref.id, load.models) for load in loads]
    assert len(set(pairs)) == len(pairs)
    targets = [target for target, _ in pairs]
    assert targets == sorted(targets, key=targets.index)
    for load in loads:
        assert {slot.case.drafter.draft for slot in load.slots} <= {None, *load.refs[1:]}


def test_repeats_are_outermost_so_that_drift_spreads_over_all_cases():
    for load in study_plan().loads:
        repeats = [slot.repeat for slot in load.slots]
        assert repeats == sorted(repeats)
        first, last = (
            {frozenset(slot.case_id for slot in block.slots) for block in load.blocks if block.repeat == repeat}
            for repeat in (0, 2)
        )
        assert first == last


@pytest.mark.parametrize("profile", load_profiles())
def test_what_a_profile_measures_and_what_it_leaves_out_add_up_to_the_study(profile):
    plan = study_plan(profile=profile)
    missing = {suite: sum(left.n_trials for left in plan.left_out if left.suite == suite) for suite in STUDY}
    whole = {"A": 18, "B": 144, "C": 36, "D": 72, "F": 36}
    assert {suite: plan.study_trials[suite] + missing[suite] for suite in STUDY} == whole
    assert all(left.reason for left in plan.left_out)


# --- order --------------------------------------------------------------------------------------------------------


def test_random_weights_answer_how_fast_a_target_decodes_and_say_that_they_answer_no_more() -> None:
    plan = study_plan(profile="synth")
    assert plan.study_trials == {"A": 9, "B": 0, "C": 36, "D": 0, "F": 0} and "random weights" in plan.title
    assert all(case.target.id.startswith("synth-") and case.gamma == 0 for case in plan.cases().values())
    reasons = {left.reason for left in plan.left_out if left.suite in "BDF" and "moe-q8" not in left.role}
    assert reasons == {"random weights agree by chance only: acceptance and speedup need real ones"}


@pytest.mark.parametrize("profile", load_profiles())
def test_only_suite_g_ignores_failed_rollbacks_with_a_pair_of_random_weights_at_the_studys_gammas(profile: str) -> None:
    for names, rollback in ((STUDY, "auto"), (["G"], "unchecked")):
        drafted = [case for case in study_plan(names, profile).cases().values() if case.gamma]
        assert {case.rollback for case in drafted} <= {rollback}
    own = {
        (case.gamma, case.drafter.draft.id) for case in drafted if case.target.id == "random-moe" and case.drafter.draft
    }
    assert own == {(gamma, "random-draft") for gamma in (4, 8, 16)}
    assert {case.gamma for case in drafted} == {4, 8, 16}


def test_order_depends_on_the_seed_and_numbers_on_the_content_alone():
    one, other, whole = study_plan(["B"]), study_plan(["B"], seed=1), study_plan([*STUDY, "E"])
    assert one == study_plan(["B"]) and orders(one) != orders(other)
    assert set(one.cases()) == set(other.cases())
    assert {slot.block for slot in one.slots()} == {slot.block for slot in other.slots()}
    numbers = [block[0].block for block in blocks_of(whole)]
    assert len(set(numbers)) == len(numbers) and max(numbers) < 2**53, "a double holds it"
    first = [block for block in blocks_of(study_plan()) if block[0].repeat == 0 and len(block) == 4]
    assert len(first) >= 12 and {block[0].case.gamma for block in first} == {0, 4, 8, 16}, "no arm is favoured"


def test_a_block_keeps_its_number_and_order_in_any_plan_that_holds_it():
    def by_number(plan: Plan) -> dict[int, tuple[Slot, ...]]:
        return {block[0].block: block for block in blocks_of(plan)}

    alone, together = by_number(study_plan(["F"])), by_number(study_plan())
    assert all(together[number] == block for number, block in alone.items())
    shorter = by_number(study_plan(["F"], repeats=1))
    assert all(alone[number] == block for number, block in shorter.items())


WARM = [Sampling(temperature=1.0, seed=seed) for seed in (0, 5)]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({}, {"n_predict": 32}, False),
        ({}, {"sampling": Sampling(temperature=0.8)}, False),
        ({"sampling": WARM[0]}, {"sampling": WARM[1]}, False),
        ({}, {"seed": 5}, True),  # greedy decoding ignores it
    ],
)
def test_what_can_change_a_number_gives_other_cases_and_blocks(one, other, is_same):
    plans = [study_plan(["B"], **asked) for asked in (one, other)]
    assert (plans[0].cases().keys() == plans[1].cases().keys()) is is_same
    assert bool(set(plans[0].cases()) & set(plans[1].cases())) is is_same
    assert bool({s.block for s in plans[0].slots()} & {s.block for s in plans[1].slots()}) is is_same


def test_more_gammas_make_new_blocks_of_known_cases():
    few, many = study_plan(["B"], gammas=(4,)), study_plan(["B"], gammas=(4, 8))
    assert set(few.cases()) < set(many.cases())
    assert not {s.block for s in few.slots()} & {s.block for s in many.slots()}


def test_another_file_under_the_same_id_makes_other_cases():
    changed = {**MODELS, "d": ModelFile(ref=ModelRef(id="d", sha256="0" * 64))}
    one, other = (expand([small_suite()], PROFILE, models) for models in (MODELS, changed))
    sd = [{case.id for case in plan.cases().values() if case.arm == "sd"} for plan in (one, other)]
    assert not sd[0] & sd[1]


@settings(max_examples=40)
@given(
    gammas=st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True),
    repeats=st.integers(1, 4),
    n_prompts=st.integers(1, 4),
    counted=st.booleans(),
)
def test_a_grid_holds_every_combination_exactly_once_a_repeat(gammas, repeats, n_prompts, counted):
    prompts = ("factual", "code", "reasoning", "chinese")[:n_prompts]
    suite = small_suite(gammas=tuple(gammas), prompts=prompts, baseline="study" if counted else "paired")
    plan = expand([suite], PROFILE, MODELS, Overrides(repeats=repeats))
    arms = [0, *gammas]
    wanted = sorted((prompt, gamma, repeat) for prompt in prompts for gamma in arms for repeat in range(repeats))
    found = sorted((s.case.prompt.key, s.case.gamma, s.repeat) for s in plan.slots())
    assert found == wanted
    n_plain = n_prompts * repeats
    assert plan.paired_baselines == (0 if counted else n_plain)
    assert plan.study_trials == {"S": len(wanted) - plan.paired_baselines}


@pytest.mark.parametrize("names", [["B"], [*STUDY, "E"]])
def test_what_may_be_used_is_known_before_anything_is_expanded(names):
    suites, profile = load_suites(names), find_profile("study")
    assert set(used_models(suites, profile)) >= set(study_plan(names).models())
    assert set(used_models(load_suites(["D"]), profile)) == set(study_plan(["D"]).models())
    given = Overrides(drafts=("e", "draft-small"))
    assert used_models([small_suite()], PROFILE, given) == ("t", "e", "d")


# --- roles, overrides, bad input ----------------------------------------------------------------------------------


def test_what_a_profile_cannot_measure_is_left_out_with_the_reason():
    suite = small_suite(targets=("moe-q4", "dense-l"))
    plan = expand([suite], replace(PROFILE, left_out={"dense-l": "too large"}), MODELS)
    (left,) = plan.left_out
    assert (left.role, left.n_trials, left.reason) == ("dense-l", 8, "too large")
    (left,) = expand([suite], PROFILE, MODELS).left_out
    assert left.reason == "profile p binds no model to dense-l"
    own = expand([small_suite(drafters=(DrafterChoice(draft="draft-cross"),))], PROFILE, MODELS)
    assert not own.loads and own.left_out[0].reason == "the draft is the target itself in this profile"


def test_two_roles_played_by_one_model_are_measured_once():
    twins = replace(PROFILE, roles={**PROFILE.roles, "moe-q8": "t"})
    plan = expand([small_suite(targets=("moe-q4", "moe-q8"))], twins, MODELS)
    assert plan.study_trials == {"S": 8}
    assert [(left.role, left.reason) for left in plan.left_out] == [
        ("moe-q8", "moe-q4 is the same model in this profile")
    ]


def test_drafts_may_be_roles_or_model_ids_and_replace_only_draft_models():
    suite = small_suite(drafters=(DrafterChoice(draft="draft-small"), DrafterChoice(name="pld")))
    plan = expand([suite], PROFILE, MODELS, Overrides(drafts=("e", "draft-small")))
    used = {(c.drafter.name, c.drafter.draft.id if c.drafter.draft else None) for c in plan.cases().values()}
    assert used == {(NO_DRAFTER, None), (DRAFT_MODEL, "e"), (DRAFT_MODEL, "d"), ("pld", None)}
    plain = small_suite(drafters=(), gammas=())
    assert expand([plain], PROFILE, MODELS, Overrides(gammas=(2,), drafts=("e",))) == expand([plain], PROFILE, MODELS)


def test_a_limit_keeps_whole_blocks_from_the_front_of_the_plan():
    whole, some = study_plan(["B"]), study_plan(["B"], limit=7)
    kept = blocks_of(some)
    assert kept == blocks_of(whole)[: len(kept)]
    assert some.study_trials == {"B": 9}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"repeats": 0}, "--repeats is 0"),
        ({"n_predict": 1}, "--n-predict is 1"),
        ({"limit": 0}, "--limit is 0"),
        ({"sampling": Sampling(temperature=-0.5)}, r"--temperature is -0\.5"),
        ({"sampling": Sampling(temperature=float("nan"))}, "--temperature is nan"),
        ({"gammas": (4, 0)}, "--gamma holds 0"),
        ({"gammas": (4, 4)}, "--gamma holds a value twice"),
        ({"prompts": ("code", "code")}, "--prompt holds a value twice"),
        ({"drafts": ("nobody",)}, r"no draft called 'nobody'.*draft-small"),
    ],
)
def test_an_override_that_means_nothing_is_refused_by_name_and_value(overrides, message):
    with pytest.raises(SuiteError, match=message):
        expand([small_suite()], PROFILE, MODELS, Overrides(**overrides))


def test_a_profile_that_names_an_unknown_model_is_refused_with_role_and_id():
    with pytest.raises(SuiteError, match=r"Profile p binds moe-q4 to 'ghost'"):
        expand([small_suite()], replace(PROFILE, roles={"moe-q4": "ghost"}), MODELS)


# --- drafting methods side by side --------------------------------------------------------------------------------

METHODS = (
    DrafterChoice(draft="draft-small"),
    DrafterChoice(name="pld", gammas=(10,)),
    DrafterChoice(name="rest", options={"store": "shipped"}),
)


def test_drafters_of_the_same_models_share_a_block_and_its_plain_arm_where_a_part_says_so():
    plan = expand([small_suite(drafters=METHODS, together=True, prompts=("code",))], PROFILE, MODELS)
    arms = {tuple(sorted((t.case.drafter.name, t.case.gamma) for t in block)) for block in blocks_of(plan)}
    assert arms == {
        ((DRAFT_MODEL, 4), (DRAFT_MODEL, 8), (NO_DRAFTER, 0)),
        ((NO_DRAFTER, 0), ("pld", 10), ("rest", 4), ("rest", 8)),
    }
    plan = expand([small_suite(drafters=METHODS, prompts=("code",))], PROFILE, MODELS, Overrides(gammas=(2,)))
    assert len(blocks_of(plan)) == plan.paired_baselines == 2 * 3
    assert {trial.case.gamma for trial in plan.slots()} == {0, 2}, "before a drafter's own"


def test_a_method_that_a_target_refuses_is_left_out_with_the_reason(monkeypatch):
    def refuse(spec: DrafterSpec, target: Path, draft: Path | None) -> None:
        if spec.name == "rest":
            raise UnsupportedError(f"not on {target}.")

    monkeypatch.setattr("mlsd.planning.plan.check_target", refuse)
    files = {"t": LocalModel(ref=MODELS["t"].ref, path=Path("t"))}
    plan = expand([small_suite(drafters=METHODS, together=True)], PROFILE, MODELS, files=files)
    (left,) = plan.left_out
    assert (left.role, left.model, left.reason) == ("rest", "t", "not on t")
    assert left.n_trials == 2 * 2 * 2  # gammas, prompts, repeats
    assert {trial.case.drafter.name for trial in plan.slots()} == {NO_DRAFTER, DRAFT_MODEL, "pld"}


def test_suite_e_asks_one_task_of_each_kind():
    plan = study_plan(["E"], profile="tiny")
    kinds = {trial.case.prompt.workload for trial in plan.slots()}
    assert kinds == set(KINDS)
    methods = {trial.case.drafter.name for trial in plan.slots()}
    assert methods >= {DRAFT_MODEL, "draft-tree", "pld", "rest", "lookahead", "layer-skip", "mtp"}
