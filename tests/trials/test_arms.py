"""What arms are called."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mlsd.records import Case, DrafterSpec, ModelRef, PromptRef, Sampling
from mlsd.trials.arms import Arm, arm_named, arm_of

USUAL = Case(suite="s", target=ModelRef(id="t"), prompt=PromptRef(key="p", sha256="0" * 64), n_predict=8)
SPECS = st.builds(
    DrafterSpec,
    name=st.sampled_from(["none", "pld", "draft-model", "draft-tree"]),
    draft=st.none() | st.builds(ModelRef, id=st.sampled_from(["small", "large"])),
    options=st.dictionaries(st.sampled_from(["ngram", "exit", "mode"]), st.integers(1, 3) | st.just("own")),
)


def _case(spec: DrafterSpec, gamma: int = 0) -> Case:
    return msgspec.structs.replace(USUAL, drafter=spec, gamma=gamma)


def test_plain_decoding_has_one_name() -> None:
    assert Arm().name == Arm().setting == arm_of(_case(DrafterSpec())).name == "plain"


def test_a_draft_model_goes_by_its_own_name_and_other_methods_by_theirs() -> None:
    assert arm_named("draft-model", "small").name == "small"
    assert arm_named("draft-tree", "small", '{"depth":3}').name == "draft-tree small (depth 3)"
    assert arm_named("pld").name == "pld"


def test_options_stand_in_brackets_and_a_gamma_behind() -> None:
    assert arm_named("draft-model", "small", '{"p_min":0.5}', 4).setting == "small (p_min 0.5), gamma 4"
    cut = DrafterSpec(name="layer-skip", options={"mode": "own", "exit": 3})
    assert arm_of(_case(cut, 2)).setting == "layer-skip (exit 3, mode own), gamma 2"


@given(SPECS, SPECS, st.integers(1, 3), st.integers(1, 3))
def test_arms_are_equal_where_nothing_chosen_differs(a: DrafterSpec, b: DrafterSpec, first: int, second: int) -> None:
    one, other = arm_of(_case(a, first)), arm_of(_case(b, second))
    assert (one == other) == ((a, first) == (b, second)) and (one == other) <= (hash(one) == hash(other))
    assert one != msgspec.structs.replace(one, sampling=Sampling(temperature=0.5))


def test_two_drafts_of_one_name_are_two_arms() -> None:
    files = [DrafterSpec(name="draft-model", draft=ModelRef(id="small", sha256=digit * 64)) for digit in "ab"]
    assert len({arm_of(_case(spec, 4)) for spec in files}) == 2
