"""``mlsd run E --tasks``: Spec-Bench's protocol on the tiny family and on SmolLM2."""

import json
from pathlib import Path

import pytest

from mlsd.planning.prompts import KINDS
from mlsd.records import Trial
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd

SUITE = """
name = "X"
title = "One method"
repeats = 2

[[parts]]
targets = ["moe-q4"]
together = true
prompts = ["qa-1"]
drafters = [{ name = "pld", gammas = [4], options = { ngram = 2 } }]
"""
QUESTIONS = (
    {"question_id": 81, "category": "writing", "turns": ["Name a colour.", "Name another one."], "reference": []},
    {"question_id": 321, "category": "qa", "turns": ["How many legs has a spider?"]},
)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(SUITE, encoding="utf-8")
    return path


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS), encoding="utf-8")
    return path


@pytest.mark.heavy
def test_smollm2_answers_in_turn_and_every_arm_answers_the_same(
    mlsd: Mlsd, suite: Path, questions: Path, tmp_path: Path
) -> None:
    database = tmp_path / "e.sqlite"
    arguments = ("--tasks", questions, "--n-predict", 12, "--repeats", 1, "--n-threads", 1, "--db", database)
    done = mlsd("run", suite, "--profile", "smollm2", *arguments, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["outcome"]["n_ok"] == 3 * 2  # prompts, arms
    texts: dict[str, set[str | None]] = {}
    with Store.open(database, create=False) as store:
        cases = store.cases()
        for stored in store.trials():
            texts.setdefault(cases[stored.trial.case_id].prompt.key, set()).add(stored.trial.text)
    assert len(texts) == 3
    assert all(len(said) == 1 for said in texts.values())
    assert not any("<|im_end|>" in str(text) for said in texts.values() for text in said)


def test_the_second_turn_holds_what_the_plain_arm_said_in_that_repeat_also_with_a_temperature(
    mlsd: Mlsd, suite: Path, questions: Path, tmp_path: Path
) -> None:
    database = tmp_path / "t.sqlite"
    arguments = ("--tasks", questions, "--n-predict", 12, "--temperature", 0.9, "--seed", 5, "--n-threads", 1)
    done = mlsd("run", suite, "--profile", "tiny", *arguments, "--per-kind", 1, "--db", database)
    assert done.code == 0, done.err
    with Store.open(database, create=False) as store:
        cases = store.cases()
        trials = [stored.trial for stored in store.trials(rounds=False)]
    assert all(trial.valid for trial in trials)
    assert not any(case.ignore_eog for case in cases.values())
    assert {case.prompt.workload for case in cases.values()} <= set(KINDS)
    by_key: dict[tuple[str, str, int], Trial] = {(cases[t.case_id].prompt.key, t.arm, t.repeat): t for t in trials}
    for repeat in (0, 1):
        first = by_key["task-81-turn-1", "ar", repeat]
        plain, drafted = (by_key["task-81-turn-2", arm, repeat] for arm in ("ar", "sd"))
        assert plain.earlier == drafted.earlier == (first.text,), "one history for both arms, as it was sampled"
        assert first.text and first.n_prompt is not None and plain.n_prompt is not None
        # The tiny family has no template: the turns and the answer stand there as plain text.
        assert plain.n_prompt == drafted.n_prompt > first.n_prompt + len(first.tokens) - 2
        assert by_key["task-81-turn-1", "sd", repeat].earlier == ()
    assert by_key["task-81-turn-2", "ar", 0].earlier != by_key["task-81-turn-2", "ar", 1].earlier


def test_suite_e_runs_every_method_that_the_tiny_family_can_serve(mlsd: Mlsd, tmp_path: Path) -> None:
    database = tmp_path / "e.sqlite"
    quick = ("--n-predict", 6, "--repeats", 1, "--prompt", "qa-1", "--n-threads", 1, "--distances")
    done = mlsd("run", "E", "--profile", "tiny", "--db", database, *quick)
    assert done.code == 0, done.err
    assert "Left out of suite E: lookahead" in done.err
    assert "has recurrent layers" in done.err
    with Store.open(database, create=False) as store:
        cases = store.cases()
        trials = [stored.trial for stored in store.trials(rounds=False)]
    assert all(trial.valid for trial in trials), [trial.reason for trial in trials]
    methods = {cases[trial.case_id].drafter.name for trial in trials}
    assert methods >= {"none", "draft-model", "pld", "rest", "layer-skip"}
    # What was measured reaches the claims: those below have all their population in this suite and profile.
    claims = mlsd("results", "claims", "--db", database, "--json")
    decided = {c["claim"]["id"] for c in json.loads(claims.out) if c["decision"] != "not measured"}
    assert decided >= {"acceptance-low", "moe-speedup", "smaller-draft", "retrieval-steady", "perplexity-predicts"}
    with Store.open(database, create=False) as store:
        drafts = {(d.target_key, d.drafting_key) for d in store.distances()}
        assert len(drafts) == len(list(store.distances())) == 9  # 5 models that draft for one target, 4 for the other
