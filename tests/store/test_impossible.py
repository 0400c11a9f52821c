"""One trial that cannot be makes neither an answer wrong nor the others unreadable: it is left out, and named."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlsd.analysis import frames
from mlsd.analysis.predict.evidence import read_evidence
from mlsd.analysis.study.study import read_study
from mlsd.audits.check import audit
from mlsd.audits.trials import database_context, refuted
from mlsd.cli.main import cli
from mlsd.formats.record import write_record
from mlsd.formats.tables import trial_rows
from mlsd.records import Round
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from mlsd.trials.rates import PARTS
from tests.analysis.studies import MOE, blocks, whole_study, write
from tests.formats.records import field, trial_with
from tests.measure.examples import ENVIRONMENT, case, failed, trial
from tests.store.test_damage import edit

_WIDE = 'case_id IN (SELECT id FROM "case" WHERE gamma = 8)'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "study.sqlite"
    with Store.open(path) as store:
        run_id = store.begin_run(ENVIRONMENT, {}, seed=1)
        store.add_cases(run_id, [case(), case(0)])
        store.add(run_id, [trial(), trial(case(0))])
        store.add(run_id, [failed(case(0), repeat=9)])
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (field("decode_ns", "decode_ns / 10"), "parts of its rounds"),
        (field("decode_ns", "-1"), "decode_ns"),
        (field("decode_ns", "'soon'"), "decode_ns"),
        (field("decode_ns", "1.5"), "decode_ns"),
        (field("prefill_ns", "-1"), "prefill_ns"),
        (field("tokens", "json('[-1,6,7,8,9,10,11,12]')"), "tokens"),
        (field("tokens", "json('[4294967296,6,7,8,9,10,11,12]')"), "token"),
        (field("tokens", "json('[1]')"), "tokens"),
        (field("losslessness", 'json(\'{"verdict":"maybe"}\')'), "verdict"),
        (field("status", "'good'"), "status"),
        (field("stats", "json('{\"lookup_ns\":-1}')"), "stats"),
        (field("stats", "json('[]')"), "stats"),
        (field("position", "1000000000000"), "position"),
        (field("peak_rss_bytes", "-1"), "peak_rss_bytes"),
        (field("conditions", "json('{\"generation_ns\":-1}')"), "generation_ns"),
        (field("repeat", "8"), "of another case or block"),
        (field("case_id", "'0'"), "of another case or block"),
        ("record = json_remove(record, '$.status')", "status"),
        ("record = '[1, '", "trial 1"),
        ("record = CAST(x'7b22ff227d' AS TEXT)", "trial 1"),
        ("block_id = 77", "block"),
    ],
)
def test_a_trial_that_cannot_be_is_left_out_and_named(path: Path, change: str, said: str) -> None:
    edit(path, f"UPDATE trial SET {change} WHERE id = 1")
    with Store.open(path, read_only=True) as store:
        assert said in store.impossible[1].sentence and set(store.impossible) == {1}
        assert [stored.id for stored in store.trials(TrialFilter(superseded=True))] == [2, 3]
        assert {row["trial_id"] for row in trial_rows(store)} == {2, 3}
        assert sum(one.n_trials for one in store.measured_cases()) == 2
        assert len(frames.trials(list(store.trials(rounds=False)), store.runs())) == 2
        assert len(frames.outcomes(store, {2, 3})) == 1
        assert write_record(store, path.with_name("x.record.gz")) == 2
        assert any("trial 1: " in problem for problem in store.check())


@pytest.mark.parametrize(
    "where", ["sums = json_set(sums, '$.{0}', {2})", "each_round = json_set(each_round, '$[0][{1}]', {2})"]
)
@pytest.mark.parametrize(
    ("name", "value"), [("accepted", 9), ("committed", 0), ("rows", 1), ("verify_ns", -7), ("verify_ns", "'x'")]
)
def test_a_trial_whose_rounds_are_not_what_they_sum_to_is_left_out_wherever_the_changed_part_is_read(
    path: Path, where: str, name: str, value: object
) -> None:
    edit(path, f"UPDATE trial SET {where.format(name, Round.__struct_fields__.index(name), value)} WHERE id = 1")
    for rounds in (True, False) if where.startswith("sums") else (True,):
        with Store.open(path, read_only=True) as store:
            assert [stored.id for stored in store.trials(rounds=rounds)] == [2, 3]
            assert set(store.impossible) == {1}
            assert [row["trial_id"] for row in trial_rows(store)] == [2, 3]
    with Store.open(path, read_only=True) as store:
        assert any("trial 1" in problem for problem in store.check())


def test_a_study_reads_its_trials_once_and_one_trial_alone(path: Path) -> None:
    with Store.open(path, read_only=True) as store:
        sql: list[str] = []
        store._connection.set_trace_callback(sql.append)
        assert [one.id for one in store.trials(TrialFilter(trial_id=2))] == [2]
        assert sum("trial.record" in query for query in sql) == sum("trial.id = 2" in query for query in sql) == 1
        sql.clear()
        study = read_study(store)
        assert study.results and study.answers and study.audit.rows
    assert sum("trial.record" in query for query in sql) == 1


def test_what_was_read_is_read_again_once_somebody_has_written(path: Path) -> None:
    with Store.open(path, read_only=True) as reader:
        before = len(list(reader.trials(rounds=False)))
        with Store.open(path) as writer:
            run_id = writer.begin_run(ENVIRONMENT, {}, seed=1)
            writer.add_cases(run_id, [case(8)])
            writer.add(run_id, [trial(case(8), repeat=5)])
            assert len(list(writer.trials(rounds=False))) == before + 1
        assert len(list(reader.trials(rounds=False))) == before + 1 and len(reader.runs()) == 2


def test_a_whole_study_loses_no_trial(tmp_path: Path) -> None:
    whole_study(tmp_path / "s.sqlite")
    with Store.open(tmp_path / "s.sqlite", read_only=True) as store:
        assert store.impossible == {}


@pytest.mark.slow
def test_no_answer_is_made_of_what_the_audit_calls_impossible(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE, alpha=0.8, gammas=(4, 8), prompts=("code", "chinese")))
    edit(path, trial_with("decode_ns", "decode_ns / 10", _WIDE))
    with Store.open(path, read_only=True) as store:
        study, audited = read_study(store), audit("s", database_context(store))
        n = len(store.impossible)
    assert n > 1
    speculative = [one for one in study.results if one.name is not None]
    assert {one.case.gamma for one in speculative if one.ratio is not None} == {4}
    assert any(f"{n} trials are left out: they cannot be true (mlsd audit study --db" in told for told in study.notes)
    assert audited.counts()["impossible"] == study.audit.counts()["impossible"] == n
    told = CliRunner().invoke(cli, ["report", "--db", str(path), "-o", str(tmp_path / "report")])
    assert told.exit_code == 0 and f"{n} trials are left out" in told.output
    listed = CliRunner().invoke(cli, ["results", "trials", "--db", str(path)])
    assert listed.exit_code == 0 and f"{n} trials are left out" in listed.output
    advised = CliRunner().invoke(cli, ["advise", "tiny-moe", "--chip", "M1", "--db", str(path)])
    assert f"{n} trials are left out" in advised.output


@pytest.mark.slow
def test_a_trial_whose_parts_agree_but_that_no_machine_can_have_measured_counts_in_no_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE, alpha=0.8, gammas=(4, 8), prompts=("code", "chinese")))
    at = [(part, Round.__struct_fields__.index(part)) for part in PARTS]
    parts = ", ".join(f"'$[{place}]', json_extract(value, '$[{place}]') / 64" for _, place in at)
    faster = f"(SELECT json_group_array(json_set(value, {parts})) FROM json_each(each_round))"
    edit(path, f"UPDATE trial SET each_round = {faster} WHERE {_WIDE}")
    each = ", ".join(f"'$.{part}', (SELECT sum({part}) FROM round WHERE trial_id = trial.id)" for part in PARTS)
    edit(path, f"UPDATE trial SET sums = json_set(sums, {each}) WHERE {_WIDE}")
    spent = f"(SELECT sum({' + '.join(PARTS)}) FROM round WHERE trial_id = trial.id)"
    edit(path, trial_with("decode_ns", spent, _WIDE))
    with Store.open(path, read_only=True) as store:
        study, n = read_study(store), len(store.impossible)
    assert n == 0 and study.audit.counts()["impossible"] == 6
    by_gamma = {one.case.gamma: one for one in study.results if one.name is not None}
    assert (
        by_gamma[4].standing is not None and by_gamma[8].standing is None
    )  # it is shown as invalid, and decides nothing
    assert not any(one.trial.valid for one in by_gamma[8].trials)
    words = "6 trials stand in no speedup, fit, claim or advice: on this machine"
    assert any(words in told for told in study.notes)
    with Store.open(path, read_only=True) as store:
        known = read_evidence([store], refuted)
    (measured,) = known.arms.values()
    assert {one.case.gamma for one in measured} == {0, 4}
    advised = CliRunner().invoke(cli, ["advise", "tiny-moe", "--chip", "M1", "--db", str(path), "--json"])
    assert any(words in told for told in json.loads(advised.stdout)["notes"])
