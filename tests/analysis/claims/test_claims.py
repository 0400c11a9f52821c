import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from mlsd.analysis import frames
from mlsd.analysis.claims.claim_tests import COMPONENT_AWARE, OWN_MEMORY, RETRIEVAL, SELF_DRAFTING, TESTS, TREES
from mlsd.analysis.claims.claims import ClaimVerdict, claims, decide, decide_all
from mlsd.analysis.pairs import PairedTrials
from mlsd.audits import published_tables as published
from mlsd.audits.check import audit
from mlsd.audits.rows import count_verdicts
from mlsd.drafters import drafting_key, resolve_spec
from mlsd.methods import METHODS
from mlsd.models.manifest import load_manifest
from mlsd.records import NO_DRAFTER, Case, DrafterSpec, ModelRef, OptionValue
from mlsd.store.rows import DraftDistance
from mlsd.store.store import Store
from mlsd.trials.arms import options_text
from tests.analysis.pair_studies import Arm, Study, read_study, write_study

BY_ID = {claim.id: claim for claim in claims()}


def verdict(tmp_path: Path, claim: str, study: Study) -> ClaimVerdict:
    return decide(BY_ID[claim], read_study(write_study(tmp_path / "s.sqlite", study)))


def test_every_claim_has_a_test_of_its_own_and_a_source() -> None:
    assert sorted(claim.test for claim in claims()) == sorted(TESTS)
    assert all(claim.source and claim.population and claim.printed for claim in claims())
    assert len(BY_ID) == 19


def test_an_empty_study_measures_no_claim() -> None:
    assert {
        found.decision for found in decide_all(PairedTrials(pairs=frames.pairs((), {}), plain=frames.pairs((), {})))
    } == {"not measured"}


COMPONENT: dict[str, OptionValue] = {"mode": "sync", "component": "recurrent"}
FAST_VERIFY = Arm(target="moe", per_row=0.01, draft_ms=0.2, alpha=0.9)
SLOW_VERIFY = Arm(target="moe", per_row=0.3, draft_ms=2.0, alpha=0.3)
FREE = Arm(alpha=0.99, draft_ms=0.1)
DEAR = Arm(alpha=0.2, draft_ms=2.0)
LOW, MIDDLE = Arm(target="dense", alpha=0.2), Arm(target="moe", alpha=0.6, per_row=0.01)
HIGH = Arm(target="dense-big", alpha=0.95, per_row=0.001, draft_ms=0.1)
FALCON = Arm(target="falcon", drafter="layer-skip", draft=None, alpha=0.8, options=COMPONENT)
QWEN = Arm(target="qwen", drafter="layer-skip", draft=None, alpha=0.05, options=COMPONENT)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("claim", "arms", "decision"),
    [
        ("acceptance-low", [Arm()], "does not hold here"),
        ("acceptance-low", [Arm(alpha=0.0)], "holds here"),
        ("moe-speedup", [FAST_VERIFY], "holds here"),
        ("moe-speedup", [SLOW_VERIFY], "does not hold here"),
        ("moe-speedup", [Arm()], "not measured"),
        ("gamma-rises", [FREE], "holds here"),
        ("gamma-rises", [DEAR], "does not hold here"),
        ("smaller-draft", [Arm(draft_ms=0.5), Arm(draft="large", draft_ms=4.0)], "holds here"),
        ("smaller-draft", [Arm(alpha=0.1), Arm(draft="large", alpha=0.95)], "does not hold here"),
        ("more-bits-gain-more", [FAST_VERIFY, Arm(target="moe-q4", per_row=0.3)], "holds here"),
        # 1 ms a draft token and T(k) rising by 2 % a row: without acceptance a round takes longer than a plain pass.
        ("without-acceptance", [FAST_VERIFY], "does not hold here"),
        ("loads-all-weights", [FAST_VERIFY], "not decided yet"),  # what memory gives was not measured
        ("loads-all-weights", [Arm()], "not measured"),
        ("moe-slower-than-dense", [Arm(target="moe", t_one_ms=15.0), Arm(target="dense-big")], "holds here"),
        ("moe-slower-than-dense", [Arm(target="moe", t_one_ms=5.0), Arm(target="dense-big")], "does not hold here"),
        ("moe-slower-than-dense", [Arm(target="moe"), Arm(target="dense")], "not measured"),
        ("gamma-monotone", [FREE], "holds here"),
        ("gamma-monotone", [DEAR], "does not hold here"),
        ("gamma-32", [replace(FREE, gammas=(16, 32))], "holds here"),
        ("gamma-32", [Arm()], "not measured"),
        ("prompt-types", [Arm(alpha=1.0, gammas=(4,))], "holds here"),
        ("moe-between-dense", [LOW, MIDDLE, HIGH], "holds here"),
        ("moe-between-dense", [LOW, MIDDLE], "not measured"),
        ("overhead-decides", [Arm(draft_ms=12.0, alpha=0.8)], "holds here"),
        ("overhead-decides", [Arm(draft_ms=0.2, alpha=0.9)], "does not hold here"),
        ("overhead-decides", [Arm(per_row=2.0, alpha=0.3)], "does not hold here"),
        ("retrieval-steady", [Arm(drafter="pld", draft=None, draft_ms=0.01)], "holds here"),
        ("retrieval-steady", [Arm(drafter="pld", draft=None, per_row=0.5)], "does not hold here"),
        ("parallel-hybrids", [FALCON, QWEN], "holds here"),
        ("parallel-hybrids", [replace(FALCON, options={"fraction": 0.33}), QWEN], "not measured"),
        ("tree-helps", [Arm(drafter="draft-tree", gammas=(12,))], "not measured"),
        ("acceptance-low", [Arm(drafter="draft-tree", alpha=0.9)], "not measured"),
        ("gamma-rises", [Arm(gammas=(4,)), Arm(drafter="draft-tree", gammas=(12,))], "not measured"),
        ("total-parameters", [replace(MIDDLE, alpha=0.9), replace(LOW, alpha=0.3), Arm(target="dense-big", alpha=0.35)],
         "holds here"),
    ],
)  # fmt: skip
def test_a_claim_is_decided_by_what_was_measured(tmp_path: Path, claim: str, arms: list[Arm], decision: str) -> None:
    found = verdict(tmp_path, claim, Study(arms=tuple(arms), n_predict=257 if claim == "gamma-32" else 65))
    assert found.decision == decision, found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("n_prompts", [1, 2, 4, 8])
def test_more_texts_never_decide_less(tmp_path: Path, n_prompts: int) -> None:
    """Four texts, one of them copied whole, and one alone: both say that more than 4 % are accepted."""
    study = Study(arms=(Arm(alpha=0.6, gammas=(4, 8)),), prompts=tuple(f"text {i}" for i in range(n_prompts)))
    paired = read_study(write_study(tmp_path / "s.sqlite", study))
    whole = paired.pairs["prompt"] == "text 0"
    copied = paired.pairs.assign(accepted=paired.pairs["accepted"].mask(whole, paired.pairs["proposed"]))
    for pairs in (paired.pairs, copied):
        found = decide(BY_ID["acceptance-low"], replace(paired, pairs=pairs))
        assert found.decision == "does not hold here", found.sentence
        assert found.n_texts == n_prompts and found.effect is not None and (found.effect.low or 0) > 0.04


def test_texts_that_each_say_the_same_decide_where_their_mean_does_not(tmp_path: Path) -> None:
    """Two texts of very different acceptance, both slower than plain decoding in every block."""
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(SLOW_VERIFY,), prompts=("code", "chinese"))))
    speedups = paired.pairs["prompt"].map({"code": 0.15, "chinese": 0.9}) + 0.001 * paired.pairs["repeat"]
    found = decide(BY_ID["moe-speedup"], replace(paired, pairs=paired.pairs.assign(speedup=speedups)))
    assert found.decision == "does not hold here" and "Every text says so by itself" in found.sentence
    assert found.effect is not None and found.effect.high is not None, "the figure is that of the text that decides"
    assert found.effect.value == pytest.approx(0.901) and found.effect.high < 1 and "that of chinese" in found.sentence


def test_plain_decoding_alone_decides_what_is_claimed_of_it(tmp_path: Path) -> None:
    study = Study(arms=(Arm(target="moe", t_one_ms=15.0), Arm(target="dense-big")))
    paired = read_study(write_study(tmp_path / "s.sqlite", study))
    found = {one.claim.id: one for one in decide_all(replace(paired, pairs=paired.pairs.iloc[:0]))}
    assert found["moe-slower-than-dense"].decision == "holds here"
    assert found["loads-all-weights"].decision == "not decided yet"
    assert "on moe, dense-big, x86_64" in found["moe-slower-than-dense"].sentence
    assert {one.decision for one in found.values()} == {"holds here", "not decided yet", "not measured"}


def test_a_plain_token_would_need_more_than_memory_gives(tmp_path: Path) -> None:
    """Of two mixtures that read as large a share the first is named, whatever the order of sets is."""
    arms = (FAST_VERIFY, replace(FAST_VERIFY, target="moe-q4"))
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=arms)))
    for gave, decision in ((0.5, "does not hold here"), (0.9, "not decided yet")):
        found = decide(BY_ID["loads-all-weights"], replace(paired, memory_gb_s=gave))
        assert (found.decision, found.against) == (decision, gave), "25 GB/s where memory gives 33 refutes nothing"
        assert found.effect is not None and found.effect.value == pytest.approx(0.8, rel=0.02)
        assert "a plain token of moe needs 25 % of its weights" in found.sentence


def test_speedup_that_does_not_change_with_the_prompt_is_stable(tmp_path: Path) -> None:
    lengths = {f"length-{n}": n for n in (32, 64, 128, 256, 512, 1024)}
    study = Study(arms=(Arm(gammas=(4,), alpha=1.0),), prompts=tuple(lengths), lengths=lengths)
    found = verdict(tmp_path, "prompt-length", study)
    assert found.decision == "holds here"
    assert found.effect is not None and found.effect.value == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "decision"), [("sync", "holds here"), ("own", "not measured")])
def test_perplexity_predicts_where_it_was_measured_and_drafts_have_the_targets_memory(
    tmp_path: Path, mode: str, decision: str
) -> None:
    targets, options = ("dense", "dense-big", "falcon", "qwen", "moe", "moe-q4"), {**COMPONENT, "mode": mode}
    arms = tuple(
        Arm(target=t, drafter="layer-skip", draft=None, alpha=0.9 - 0.15 * i, gammas=(4,), options=options)
        for i, t in enumerate(targets)
    )
    path = write_study(tmp_path / "s.sqlite", Study(arms=arms))
    assert decide(BY_ID["perplexity-predicts"], read_study(path)).decision == "not measured"
    with Store.open(path) as store:
        cases = {case.target.id: case for case in store.cases().values() if case.drafter.options}
        for i, target in enumerate(targets):
            store.add_distance(distance(cases[target], ratio=2.0**i))
        store.add_distance(distance(cases["dense"], ratio=99.0, text_sha256="another text"))
        store.add_distance(distance(cases["qwen"], ratio=77.0, drafting_key="another draft"))
    assert set(read_study(path).pairs["perplexity_ratio"].dropna()) == {1, 2, 4, 8, 16, 32}
    found = decide(BY_ID["perplexity-predicts"], read_study(path))
    assert found.decision == decision
    assert found.effect is None if mode == "own" else found.effect.value == pytest.approx(-1.0, abs=0.1)


def distance(case: Case, **changes: object) -> DraftDistance:
    """A comparison of the model that drafts in a case with its target."""
    made = DraftDistance(
        target_key=case.target.key,
        drafting_key=drafting_key(case.drafter) or "",
        text_sha256="text",
        n_tokens=511,
        perplexity=4.0,
        draft_perplexity=8.0,
        ratio=2.0,
        ratio_low=1.9,
        ratio_high=2.1,
        total_variation=0.3,
        total_variation_error=0.01,
        agreement=0.6,
    )
    return msgspec.structs.replace(made, **changes)


def test_a_tree_is_compared_with_the_chain_of_the_same_draft_whatever_their_gammas(tmp_path: Path) -> None:
    tree = Arm(drafter="draft-tree", gammas=(12,), alpha=0.9, draft_ms=0.1)
    found = verdict(tmp_path, "tree-helps", Study(arms=(tree, Arm(alpha=0.3, gammas=(2, 4)))))
    assert found.decision == "holds here"
    assert len(found.trials) == 2 * 2 * 4 * 3  # of the chain only its better gamma; each with its baseline


def test_the_tests_name_methods_and_options_that_exist() -> None:
    named = {*RETRIEVAL, *TREES, *TREES.values(), *SELF_DRAFTING, COMPONENT_AWARE}
    assert named <= METHODS.keys()
    assert {name for name in METHODS if name.endswith("-tree")} == TREES.keys(), "a tree beside its chain"
    resolve_spec(DrafterSpec(name=COMPONENT_AWARE, options=COMPONENT))
    spec = DrafterSpec(name="layer-skip", options={**json.loads(f"{{{OWN_MEMORY}}}"), "fraction": 0.3})
    assert spec.name in SELF_DRAFTING and drafting_key(spec) is not None and OWN_MEMORY in options_text(spec)


def test_a_verdict_names_its_trials_its_interval_and_what_the_audit_says_of_the_print(tmp_path: Path) -> None:
    found = verdict(tmp_path, "moe-speedup", Study(arms=(SLOW_VERIFY,)))
    assert len(found.trials) == 2 * 4 * 3  # the best gamma and its baselines, over prompts and repeats
    assert found.effect is not None and found.effect.low is not None and found.effect.high is not None
    assert found.effect.low < found.effect.value < found.effect.high < 1.0
    assert found.visible is not None and found.visible.up > 0 > found.visible.down
    assert found.published_audit == {"possible": 0, "suspicious": 0, "impossible": 12}


def test_a_verdict_says_of_which_models_machine_and_profile_it_speaks(tmp_path: Path) -> None:
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(SLOW_VERIFY,))))
    here = decide(BY_ID["moe-speedup"], replace(paired, profile="tiny"))
    assert here.decision == "does not hold here"
    assert "4 texts, 3 repeats; on moe with small, x86_64, profile tiny." in here.sentence
    assert here.print_refuted and not decide(BY_ID["tree-helps"], paired).print_refuted


def test_only_the_studys_own_files_refute_it_whatever_the_profile_is_called(tmp_path: Path) -> None:
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(SLOW_VERIFY,))))
    manifest = load_manifest()
    moe, draft = (manifest.models[model] for model in ("qwen3.5-35b-a3b-q4_k_m", "qwen3.5-0.8b-q8_0"))

    def decided(**files: str | None) -> str:
        """With files of these hashes in the places of target and draft, of the study's sizes."""
        sizes = {"moe": moe.parameters, "small": draft.parameters}
        models = {
            name: msgspec.structs.replace(
                facts, ref=ModelRef(id=name, sha256=files.get(name, "0" * 64)), n_parameters=sizes.get(name)
            )
            for name, facts in paired.models.items()
        }
        return decide(BY_ID["moe-speedup"], replace(paired, profile="study", models=models)).decision

    assert decided() == decided(moe=moe.sha256) == "does not hold here"
    assert decided(moe=moe.sha256, small=draft.sha256) == "refuted"


def test_models_that_never_shared_a_repeat_are_not_compared_whatever_their_texts_say(tmp_path: Path) -> None:
    """The mixture was measured an hour before, on a machine that was slower then: 1.6 to 1 in each of four texts."""
    study = Study(arms=(Arm(target="moe", t_one_ms=16.0), Arm(target="dense-big")))
    paired = read_study(write_study(tmp_path / "s.sqlite", study))
    assert decide(BY_ID["moe-slower-than-dense"], paired).decision == "holds here", "each repeat held both"
    before = paired.plain["started_s"] - 3600 * (paired.plain["target"] == "moe")
    found = decide(BY_ID["moe-slower-than-dense"], replace(paired, plain=paired.plain.assign(started_s=before)))
    assert found.decision == "not decided yet" and found.effect is not None and found.effect.low is None
    assert (
        "one after the other, up to " in found.sentence and "while plain decoding of one text changed" in found.sentence
    )
    once = paired.plain[paired.plain["repeat"] == 0]
    alone = decide(BY_ID["moe-slower-than-dense"], replace(paired, plain=once))
    assert alone.decision == "not decided yet" and "nobody knows how the machine drifted" in alone.sentence


def test_blocks_of_several_targets_on_one_text_are_one_unit_and_two_decide_nothing(tmp_path: Path) -> None:
    study = Study(arms=(DEAR, replace(DEAR, target="dense-big"), replace(DEAR, target="moe")), prompts=("code",))
    paired = read_study(write_study(tmp_path / "s.sqlite", study))
    found = decide(BY_ID["gamma-rises"], paired)
    assert found.effect is not None and found.effect.n == 3 and found.scope == "1 text, 3 repeats"
    twice = decide(BY_ID["gamma-rises"], replace(paired, pairs=paired.pairs[paired.pairs["repeat"] < 2]))
    assert (found.decision, twice.decision) == ("does not hold here", "not decided yet")


def test_outputs_that_repeat_themselves_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(Arm(alpha=0.0),))))
    copied = paired.pairs["prompt"] == "code"
    pairs = paired.pairs.assign(loops=copied, accepted=paired.pairs["accepted"].mask(copied, paired.pairs["proposed"]))
    found = decide(BY_ID["acceptance-low"], replace(paired, pairs=pairs))
    assert found.decision == "holds here" and found.n_texts == 3
    assert found.sentence.endswith("9 trials left out, whose output repeats itself to its end.")
    nothing = decide(BY_ID["acceptance-low"], replace(paired, pairs=pairs.assign(loops=True)))
    assert nothing.decision == "not measured" and "does not repeat itself" in nothing.sentence


@pytest.mark.slow
def test_the_figure_printed_is_the_one_that_decides_or_leaves_open(tmp_path: Path) -> None:
    """Targets, gammas and texts unlike each other, some sure of themselves and some noisy."""
    arms = (LOW, HIGH, replace(MIDDLE, alpha=0.05), replace(MIDDLE, target="moe-q4"))
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=arms, prompts=("code", "factual"))))
    random, decisions = np.random.default_rng(7), set[tuple[str, str]]()
    for _ in range(12):
        factor = pd.Series(1.0, paired.pairs.index)
        for by in (["target"], ["target", "gamma"], ["prompt"], ["target", "gamma", "prompt"], ["trial_id"]):
            groups = paired.pairs.groupby(by).ngroup()
            factor *= np.exp(random.normal(0, random.choice([0.01, 0.1, 0.3]), groups.max() + 1))[groups]
        pairs = paired.pairs.assign(speedup=paired.pairs["speedup"] * factor)
        for found in decide_all(replace(paired, pairs=pairs)):
            decisions.add((found.claim.id, found.decision))
            if found.effect is not None and found.against is not None:
                assert found.effect.decided(found.against) is (found.decision != "not decided yet"), found.sentence
    assert len(decisions) > 20


def test_two_texts_that_decide_nothing_are_told_in_place_of_an_interval(tmp_path: Path) -> None:
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(FAST_VERIFY,), prompts=("code", "factual"))))
    speedups = paired.pairs["prompt"].map({"code": 0.9, "factual": 1.3}) + 0.001 * paired.pairs["repeat"]
    found = decide(BY_ID["moe-speedup"], replace(paired, pairs=paired.pairs.assign(speedup=speedups)))
    assert found.decision == "not decided yet" and "1.083 (of 2 values), against 1;" in found.sentence
    assert "By text: code 0.901, factual 1.301." in found.sentence


def test_an_end_beside_the_limit_is_not_rounded_onto_it(tmp_path: Path) -> None:
    paired = read_study(write_study(tmp_path / "s.sqlite", Study(arms=(SLOW_VERIFY,))))
    speedups = 0.99990 + 0.00001 * paired.pairs["repeat"]
    found = decide(BY_ID["moe-speedup"], replace(paired, pairs=paired.pairs.assign(speedup=speedups)))
    assert found.decision == "does not hold here" and "1.0000" not in found.sentence and "0.9999" in found.sentence


def test_noise_leaves_a_claim_undecided(tmp_path: Path) -> None:
    found = verdict(tmp_path, "moe-speedup", Study(arms=(Arm(target="moe", alpha=0.5, draft_ms=1.9),), noise=0.5))
    assert found.decision == "not decided yet"


@pytest.mark.slow
def test_the_audit_beside_each_claim_is_what_mlsd_says_of_the_printed_rows() -> None:
    behind = [claim.audit for claim in claims() if claim.audit is not None]
    audits = {name: audit(name, published.context(published.load(name))).rows for name in {one.study for one in behind}}
    for printed in behind:
        rows = [
            row for row in audits[printed.study]
            if row.identity["table"] in printed.tables and row.identity["drafter"] != NO_DRAFTER
            and (not printed.targets or row.identity["target"] in printed.targets)
            and (not printed.drafters or row.identity["drafter"] in printed.drafters)
        ]  # fmt: skip
        assert rows and printed.rows == count_verdicts(rows), printed
