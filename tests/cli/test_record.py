"""`mlsd record`, its check, and importing what another machine recorded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd.errors import TableError
from mlsd.formats.record import output_key, read_record
from mlsd.measure.run.race import Race
from mlsd.planning import plan
from mlsd.planning.plan import block_number
from mlsd.records import N_TOKENS
from mlsd.store.rows import environment_key
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd
from tests.measure.examples import ENVIRONMENT, MODEL, case, failed, trial
from tests.measure.records import body, record_of, small_study, write_body

PUBLISHED = sorted((Path(__file__).parents[2] / "studies").glob("*.record.json.gz"))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_study(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def record(study: Path, tmp_path: Path) -> Path:
    return record_of(study, tmp_path / "small.record.json.gz")


def test_a_study_is_recorded_checked_and_imported_as_it_was(mlsd: Mlsd, study: Path, tmp_path: Path) -> None:
    file, db = tmp_path / "a.record.json.gz", tmp_path / "imported.sqlite"
    assert mlsd("record", study, "-o", file).code == 0
    checked = mlsd("record", "verify", file)
    assert checked.code == 0, checked.out
    assert "decoded again: 8 outputs" in checked.out
    assert mlsd("import", file, "--db", db).code == 0
    again = mlsd("import", file, "--db", db)
    assert "0 trials" in again.err and "8 known already" in again.err
    with Store.open(study, read_only=True) as ours, Store.open(db, read_only=True) as theirs:
        plain = [msgspec.structs.replace(stored.trial, text=None) for stored in ours.trials()]
        assert plain == [stored.trial for stored in theirs.trials()]
        assert ours.cases() == theirs.cases()
        assert ours.models() == theirs.models()
        assert [run.environment for run in ours.runs()] == [run.environment for run in theirs.runs()]
        assert len(ours.warnings()) == len(theirs.warnings())
        assert theirs.check() == []
    assert mlsd("report", "--db", db, "-o", tmp_path / "report").code == 0


@pytest.mark.native
def test_a_race_that_dropped_an_arm_passes_its_own_check(
    mlsd: Mlsd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MOST_BLOCKS", 4)
    monkeypatch.setattr(Race, "_goes_on", lambda race, case, new: case.gamma != 2 or race._repeat < 1)
    db, file = tmp_path / "race.sqlite", tmp_path / "race.record.json.gz"
    methods = ("--drafter", "pld", "--drafter", "oracle", "--gamma", "1,2", "--prompt", "code", "--prompt", "copy")
    asked = ("bench", "tiny-dense", *methods, "--n-predict", 8, "--n-threads", 1, "--until", "decided", "--db", db)
    assert mlsd(*asked).code == 0
    with Store.open(db, read_only=True) as store:
        assert sorted({s.trial.repeat for s in store.trials(rounds=False) if s.trial.gamma == 2}) == [0, 1]
        assert max(stored.trial.repeat for stored in store.trials(rounds=False)) == 3
    assert mlsd("record", db, "-o", file).code == 0
    checked = mlsd("record", "verify", file)
    assert checked.code == 0, checked.out
    assert mlsd("import", file, "--db", tmp_path / "theirs.sqlite").code == 0


@pytest.mark.heavy
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_every_published_record_can_be_as_it_says_and_makes_its_page(mlsd: Mlsd, path: Path, tmp_path: Path) -> None:
    checked = mlsd("record", "verify", path, "--sample", 2)
    assert checked.code == 0, checked.out
    assert mlsd("import", path, "--db", tmp_path / "s.sqlite").code == 0
    assert mlsd("report", "--db", tmp_path / "s.sqlite", "-o", tmp_path / "page").code == 0
    assert (tmp_path / "page" / "report.html").stat().st_size > 100_000


def test_equal_studies_give_equal_files_and_none_is_replaced_unasked(mlsd: Mlsd, study: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "1.record.json.gz", tmp_path / "2.record.json.gz"
    mlsd("record", "write", study, "-o", one)
    mlsd("record", study, "-o", other)
    assert one.read_bytes() == other.read_bytes()
    assert mlsd("record", study, "-o", one).code == 2
    assert mlsd("record", study, "-o", one, "--force").code == 0


def test_a_record_names_no_folder_no_host_and_no_user(
    mlsd: Mlsd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "janes-mac")
    monkeypatch.setattr("getpass.getuser", lambda: "jane")
    db, file = tmp_path / "named.sqlite", tmp_path / "named.record.json.gz"
    with Store.open(db) as store:
        run_id = store.begin_run(ENVIRONMENT, {"suites": ["/home/jane/b.toml"], "options": {"db": "/home/jane/x"}}, 0)
        store.add_models([MODEL])
        store.add_cases(run_id, [case(4)])
        store.add(run_id, [failed(case(4), reason="File /home/jane/mlsd/x.py on janes-mac: jane may not")])
    assert mlsd("record", db, "-o", file).code == 0
    text = gzip.decompress(file.read_bytes()).decode()
    assert "jane" not in text and "/home" not in text
    assert '"suites":["b"]' in text


def test_machines_stay_apart_and_another_ones_trials_never_count_as_done_here(
    mlsd: Mlsd, study: Path, record: Path, tmp_path: Path
) -> None:
    other = body(record)
    for run in other["runs"]:
        run["environment"]["host"] = "f" * 16
        run["environment_key"] = environment_key(msgspec.convert(run["environment"], type(ENVIRONMENT)))
    theirs = tmp_path / "theirs.record.json.gz"
    write_body(theirs, other)
    db = tmp_path / "both.sqlite"
    for file in (record, theirs):
        assert mlsd("import", file, "--db", db).code == 0
    with Store.open(db, read_only=True) as store:
        keys = {stored.environment_key for stored in store.trials(rounds=False)}
        counts = [sum(len(one.statuses) for one in store.blocks(run.environment).values()) for run in store.runs()]
    assert len(keys) == 2
    assert counts == [8, 8]


def test_an_output_that_the_models_do_not_give_is_found_by_decoding_it_again(
    mlsd: Mlsd, record: Path, tmp_path: Path
) -> None:
    study = body(record)
    key = study["trials"][0]["output"]
    tokens = list(study["outputs"].pop(key))
    tokens[7] = (tokens[7] + 1) % 200
    study["outputs"][output_key(tokens)] = tokens
    for one in study["trials"]:
        one["output"] = output_key(tokens) if one["output"] == key else one["output"]
    invented = tmp_path / "invented.record.json.gz"
    write_body(invented, study)
    assert mlsd("record", "verify", invented, "--sample", 0).code == 0  # without a model nothing speaks against it
    found = mlsd("record", "verify", invented)
    assert found.code == 1
    assert "token 7 of its output" in found.out


@pytest.mark.parametrize("elsewhere", [False, True])
def test_sevens_behind_a_near_tie_that_nobody_measured_are_found_by_feeding_them_to_the_model(
    mlsd: Mlsd, record: Path, tmp_path: Path, elsewhere: bool
) -> None:
    study = body(record)
    for one in study["trials"]:
        if one["trial"]["arm"] == "ar":
            continue
        tokens = study["outputs"][one["output"]]
        invented = [tokens[0], *(7 for _ in tokens[1:])]
        one["output"] = output_key(invented)
        study["outputs"][one["output"]] = invented
        gaps = {"top2_gap": 1e-5, "worst_gap": 1e-5, "tolerance": 1e-3, "n_different": 1, "n_compared": len(tokens)}
        one["trial"]["losslessness"] |= {"verdict": "near_tie", "first_difference": 1, **gaps}
    used = {one["output"] for one in study["trials"]}
    study["outputs"] = {key: tokens for key, tokens in study["outputs"].items() if key in used}
    for run in study["runs"] if elsewhere else ():
        run["environment"] |= {"backend": "Metal", "machine": "arm64"}
        run["environment_key"] = environment_key(msgspec.convert(run["environment"], type(ENVIRONMENT)))
    path = tmp_path / "sevens.record.json.gz"
    write_body(path, study)
    found = mlsd("record", "verify", path)
    assert found.code == 1, found.out
    assert "token 1 of its output is 7" in found.out and "are not the model's choice" in found.out


def test_a_calibrated_study_is_recorded_and_agrees_with_itself(mlsd: Mlsd, tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "notebooks" / "data" / "tiny.sqlite"
    file = tmp_path / "calibrated.record.json.gz"
    assert mlsd("record", shipped, "-o", file).code == 0
    assert any(point.kind == "checkpoint" for _, point in read_record(file).study.machine.calibration)
    checked = mlsd("record", "verify", file, "--sample", 2)
    assert checked.code == 0, checked.out


def test_what_could_not_be_checked_is_said_and_a_named_file_serves(mlsd: Mlsd, record: Path, tmp_path: Path) -> None:
    from mlsd.folders import asset_path

    study = json.loads(json.dumps(body(record)).replace('"tiny-dense"', '"a-model-of-mine"'))
    from mlsd.records import Case

    ids = {key: msgspec.convert(value, Case).id for key, value in study["cases"].items()}
    study["cases"] = {ids[key]: value for key, value in study["cases"].items()}
    for one in study["trials"]:
        one["trial"]["case_id"] = ids[one["trial"]["case_id"]]
    for one in study["warnings"]:
        one["warning"]["case_id"] = ids.get(one["warning"]["case_id"])
    blocks: dict[int, list[dict[str, Any]]] = {}
    for one in study["trials"]:
        blocks.setdefault(one["trial"]["block"], []).append(one["trial"])
    for own in blocks.values():
        number = block_number(own[0]["repeat"], [inner["case_id"] for inner in own])
        for inner in own:
            inner["block"] = number
    mine = tmp_path / "mine.record.json.gz"
    write_body(mine, study)
    found = mlsd("record", "verify", mine)
    assert found.code == 0, found.out
    assert "not decoded again: 8 trials, the model a-model-of-mine is not here" in found.out
    named = mlsd("record", "verify", mine, "--model", asset_path("tiny/tiny-dense.gguf"), "--sample", 3)
    assert "decoded again: 3 outputs" in named.out


def test_a_record_that_contradicts_itself_is_not_imported(mlsd: Mlsd, record: Path, tmp_path: Path) -> None:
    study = body(record)
    study["rounds"]["verify_ns"][0][3] += 1
    write_body(record, study)
    refused = mlsd("import", record, "--db", tmp_path / "x.sqlite")
    assert refused.code == 2
    assert "contradicts itself" in refused.err
    assert not (tmp_path / "x.sqlite").exists()


def _zip(data: bytes) -> bytes:
    """Compressed without the time, so that a test keeps its name."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b", _zip(b""), _zip(b"{}"), _zip(b'{"format":1}'), b"plain text",
     _zip(b'{"format":"other","schema":1,"digest":"","study":{}}'),
     _zip(b'{"format":"mlsd record","schema":1,"digest":"","study":{}}'),
     _zip(b'{"format":"mlsd record","schema":99,"digest":"","study":{}}'),
     _zip(b"[" * 100_000)],
)  # fmt: skip
def test_what_is_no_record_is_one_clear_message(mlsd: Mlsd, tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.record.json.gz"
    file.write_bytes(data)
    for line in (("record", "verify", file), ("import", file)):
        ran = mlsd(*line)
        assert ran.code == 2
        assert "Error:" in ran.err


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 10**4_000], ids=["64", "-64", "long"])
def test_a_number_beyond_64_bits_is_refused_before_anything_is_built(mlsd: Mlsd, record: Path, number: int) -> None:
    study = body(record)
    study["trials"][0]["trial"]["decode_ns"] = number
    with pytest.raises(TableError, match="beyond 64 bits"):
        write_body(record, study)
    for command in (("record", "verify", record), ("import", record, "--db", record.with_suffix(".sqlite"))):
        ran = mlsd(*command)
        assert ran.code == 2 and "beyond 64 bits" in ran.err and "Traceback" not in ran.err


def test_a_small_file_that_unpacks_to_much_is_refused_before_anything_is_built(mlsd: Mlsd, tmp_path: Path) -> None:
    for data, limit in ((b"[" + b"0," * (5 << 20), "VALUES"), (b" " * (130 << 20), "BYTES")):
        path = tmp_path / "bomb.record.json.gz"
        path.write_bytes(gzip.compress(data))
        ran = mlsd("record", "verify", path)
        assert ran.code == 2 and f"MLSD_MOST_RECORD_{limit}" in ran.err


def test_a_failed_and_a_superseded_trial_keep_their_places(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        run_id = store.begin_run(ENVIRONMENT, {}, 0)
        store.add_models([MODEL])
        store.add_cases(run_id, [case(0), case(4)])
        store.add(run_id, [trial(case(4))])
        store.add(run_id, [trial(case(4)), failed(case(0))])
    made = read_record(record_of(tmp_path / "s.sqlite", tmp_path / "s.record.json.gz")).study
    assert [one.trial.status for one in made.trials] == ["hot", "failed"]
    assert made.n_superseded == 1
    assert [one.output is None for one in made.trials] == [False, True]


def test_what_a_server_says_stands_in_no_record(mlsd: Mlsd, tmp_path: Path) -> None:
    """A server that gives no token ids and no rounds: its own counts are all there is."""
    cases = [msgspec.structs.replace(one, server="Ollama 0.9") for one in (case(0), case(4))]
    database = tmp_path / "server.sqlite"
    with Store.open(database) as store:
        run_id = store.begin_run(ENVIRONMENT, {"suites": ["server"]}, seed=1)
        store.add_cases(run_id, cases)
        stats = {N_TOKENS: 8.0, "draft_n": 4.0, "draft_n_accepted": 3.0}
        spoken = {"tokens": (), "rounds": (), "stats": stats, "losslessness": None}
        store.add(run_id, [trial(one, decode_ns=7_000_000, position=i, **spoken) for i, one in enumerate(cases)])
    refused = mlsd("record", database, "-o", tmp_path / "server.record.json.gz")
    assert refused.code == 2 and "only trials of servers" in refused.err
