"""`mlsd record`, its check, and importing what another machine recorded."""

import gzip
import json
import re
import tomllib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd.formats.record import n_superseded, opened_record
from mlsd.measure.parent.race import Race
from mlsd.planning import plan
from mlsd.planning.block_order import block_number
from mlsd.planning.job import Block
from mlsd.records import N_TOKENS
from mlsd.store.rows import CalibrationPoint, environment_key
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd
from tests.formats.records import altered, database_in, pack, record_of, small_study, trial_with
from tests.measure.examples import ENVIRONMENT, MODEL, case, failed, trial

PUBLISHED = sorted((Path(__file__).parents[2] / "studies").glob("*.record*.gz"))
_SD = "case_id IN (SELECT id FROM \"case\" WHERE arm = 'sd')"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_study(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def record(study: Path, tmp_path: Path) -> Path:
    return record_of(study, tmp_path / "small.record.gz")


def test_a_study_is_recorded_checked_and_imported_as_it_was(mlsd: Mlsd, study: Path, tmp_path: Path) -> None:
    file, db = tmp_path / "a.record.gz", tmp_path / "imported.sqlite"
    assert mlsd("record", "write", study, "-o", file).code == 0
    checked = mlsd("record", "check", file)
    assert checked.code == 0, checked.out
    assert "decoded again: 8 outputs" in checked.out
    assert mlsd("record", "import", file, "--into", db).code == 0
    again = mlsd("record", "import", file, "--into", db)
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


def test_a_database_alone_becomes_a_record_beside_it_equal_ones_equal_files_and_none_is_replaced_unasked(
    mlsd: Mlsd, study: Path, tmp_path: Path
) -> None:
    db, record = tmp_path / "mine.sqlite", tmp_path / "mine.record.gz"
    db.write_bytes(study.read_bytes())
    written = mlsd("record", "write", db)
    assert written.code == 0 and "studies/ of a pull request" in written.err
    assert mlsd("record", "check", record).code == 0
    again = mlsd("record", "write", db)
    assert again.code == 2 and "mine.record.gz exists" in again.err and "--force" in again.err
    data = record.read_bytes()
    assert mlsd("record", "write", study, "-o", record).code == 2
    assert mlsd("record", "write", study, "-o", record, "--force").code == 0
    assert record.read_bytes() == data


def test_acceptances_of_a_study_serve_advice_on_another_machine(
    mlsd: Mlsd, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("MLSD_HOME", str(home))
    file = home / "acceptance.toml"
    assert mlsd("record", "acceptances", study, "-o", file).code == 0
    with Store.open(study, read_only=True) as store:
        counts = [
            (sum(r.accepted >= n for r in t.rounds), sum(r.proposed >= n and r.accepted >= n - 1 for r in t.rounds))
            for t in (one.trial for one in store.trials() if one.trial.arm == "sd" and one.case.prompt.key == "code")
            for n in (1, 2)
        ]
    firsts, seconds = ([sum(column) for column in zip(*counts[place::2], strict=True)] for place in (0, 1))
    (entry,) = (one for one in tomllib.loads(file.read_text())["measured"] if one["text"] == "code")
    assert (entry["accepted"], entry["reached"]) == tuple(map(list, zip(firsts, seconds, strict=True)))
    advised = mlsd("advise", "tiny-dense", "--chip", "M2", "--draft", "tiny-draft", "--workload", "code")
    assert advised.code == 0 and "measured by mlsd into study.sqlite" in advised.out
    assert mlsd("record", "acceptances", study, "-o", file).code == 2, "nothing is replaced"
    file.write_text("[[measured]]\nsource = 7\n")
    broken = mlsd("advise", "tiny-dense", "--chip", "M2", "--draft", "tiny-draft")
    assert broken.code == 2 and "source = 7" in broken.err


@pytest.mark.native
def test_a_race_that_dropped_an_arm_passes_its_own_check(
    mlsd: Mlsd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MOST_BLOCKS", 4)

    def without_gamma_2(race: Race, blocks: Sequence[Block]) -> list[Block]:
        left = (tuple(s for s in block.slots if s.case.gamma != 2 or race._repeat < 1) for block in blocks)
        return [Block(slots=slots) for slots in left]

    monkeypatch.setattr(Race, "_still_racing", without_gamma_2)
    db, file = tmp_path / "race.sqlite", tmp_path / "race.record.gz"
    methods = ("--drafter", "pld", "--drafter", "oracle", "--gamma", "1,2", "--prompt", "code", "--prompt", "copy")
    asked = ("bench", "tiny-dense", *methods, "--n-predict", 8, "--n-threads", 1, "--until", "decided", "--db", db)
    assert mlsd(*asked).code == 0
    with Store.open(db, read_only=True) as store:
        assert sorted({s.trial.repeat for s in store.trials(rounds=False) if s.trial.gamma == 2}) == [0, 1]
        assert max(stored.trial.repeat for stored in store.trials(rounds=False)) == 3
    assert mlsd("record", "write", db, "-o", file).code == 0
    checked = mlsd("record", "check", file)
    assert checked.code == 0, checked.out
    assert mlsd("record", "import", file, "--into", tmp_path / "theirs.sqlite").code == 0


@pytest.mark.heavy
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_every_published_record_can_be_as_it_says_and_makes_its_page(mlsd: Mlsd, path: Path, tmp_path: Path) -> None:
    checked = mlsd("record", "check", path, "--sample", 2)
    assert checked.code == 0, checked.out
    assert mlsd("record", "import", path, "--into", tmp_path / "s.sqlite").code == 0
    assert mlsd("report", "--db", tmp_path / "s.sqlite", "-o", tmp_path / "page").code == 0
    assert (tmp_path / "page" / "report.html").stat().st_size > 100_000


def test_a_record_names_no_folder_no_host_and_no_user(
    mlsd: Mlsd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "janes-mac")
    monkeypatch.setattr("getpass.getuser", lambda: "jane")
    db, file = tmp_path / "named.sqlite", tmp_path / "named.record.gz"
    with Store.open(db) as store:
        options = {"suites": ["/home/jane/b.toml"], "options": {"db": "/home/jane/x"}, "who": "jane"}
        run_id = store.begin_run(ENVIRONMENT, options, 0)
        store.add_models([MODEL])
        store.add_cases(run_id, [case(4)])
        store.add(run_id, [failed(case(4), reason="jane saw this first")])
        store.add(run_id, [failed(case(4), reason="File /home/jane/mlsd/x.py on janes-mac: jane may not")])
    assert mlsd("record", "write", db, "-o", file).code == 0
    data = gzip.decompress(file.read_bytes())
    assert b"jane" not in data and b"/home" not in data
    assert b'"suites":["b"]' in data


def elsewhere(record: Path, *more: str, **card: str) -> Path:
    """The record as another machine would have made it."""
    with opened_record(record) as file:
        environment = msgspec.structs.replace(file.store.runs()[0].environment, **card)
    key, text = environment_key(environment), msgspec.json.encode(environment).decode()
    of_run = (f"UPDATE run SET environment_key = '{key}', environment = '{text}'",)
    return altered(record, *of_run, f"UPDATE block SET environment_key = '{key}'", *more)


def test_machines_stay_apart_and_another_ones_trials_never_count_as_done_here(
    mlsd: Mlsd, record: Path, tmp_path: Path
) -> None:
    db = tmp_path / "both.sqlite"
    for file in (record, elsewhere(record, host="f" * 16)):
        assert mlsd("record", "import", file, "--into", db).code == 0
    with Store.open(db, read_only=True) as store:
        keys = {stored.environment_key for stored in store.trials(rounds=False)}
        counts = [sum(map(len, store.blocks(run.environment).values())) for run in store.runs()]
    assert len(keys) == 2
    assert counts == [8, 8]


def test_an_output_that_the_models_do_not_give_is_found_by_decoding_it_again(mlsd: Mlsd, record: Path) -> None:
    with opened_record(record) as file:
        tokens = next(file.store.trials()).trial.tokens
    invented = [*tokens[:7], (tokens[7] + 1) % 200, *tokens[8:]]
    path = altered(
        record,
        trial_with("tokens", f"json('{json.dumps(invented)}')", f"json(tokens) = json('{json.dumps(tokens)}')"),
    )
    assert mlsd("record", "check", path, "--sample", 0).code == 0  # without a model nothing speaks against it
    checked = mlsd("record", "check", path)
    assert checked.code == 1
    assert "token 7 of its output" in checked.out


@pytest.mark.parametrize("card", [{}, {"backend": "Metal", "machine": "arm64"}])
def test_sevens_behind_a_near_tie_that_nobody_measured_are_found_by_feeding_them_to_the_model(
    mlsd: Mlsd, record: Path, card: dict[str, str]
) -> None:
    with opened_record(record) as file:
        firsts = {stored.id: stored.trial.tokens for stored in file.store.trials() if stored.trial.arm == "sd"}
    claimed = {"verdict": "near_tie", "first_difference": 1, "top2_gap": 1e-5, "worst_gap": 1e-5, "tolerance": 1e-3,
            "n_different": 1, "n_compared": 24}  # fmt: skip
    sevens = []
    for trial_id, tokens in firsts.items():
        output = f"json('{json.dumps([tokens[0], *(7 for _ in tokens[1:])])}')"
        verdict = f"json_patch(losslessness, '{json.dumps(claimed)}')"
        sevens.append(
            f"UPDATE trial SET record = json_set(record, '$.tokens', {output}, '$.losslessness', json({verdict})) "
            f"WHERE id = {trial_id}"
        )
    checked = mlsd("record", "check", elsewhere(record, *sevens, **card))
    assert checked.code == 1, checked.out
    assert {int(number) for number in re.findall(r"trial (\d+): token 1 of its output is 7", checked.out)} == set(
        firsts
    )
    assert "are not the model's choice" in checked.out


def test_a_calibrated_study_is_recorded_and_agrees_with_itself(mlsd: Mlsd, tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "notebooks" / "data" / "tiny.sqlite"
    file = tmp_path / "calibrated.record.gz"
    assert mlsd("record", "write", shipped, "-o", file).code == 0
    with opened_record(file) as opened:
        assert any(point.kind == "checkpoint" for _, point in opened.store.figures(CalibrationPoint))
    checked = mlsd("record", "check", file, "--sample", 2)
    assert checked.code == 0, checked.out


def test_what_could_not_be_checked_is_said_and_a_named_file_serves(mlsd: Mlsd, record: Path, tmp_path: Path) -> None:
    from mlsd.folders import asset_path
    from mlsd.store import rowcodec

    mine = tmp_path / "mine.record.gz"
    with opened_record(record) as file, closing(database_in(record)) as db:
        mapped: dict[str, Any] = {}
        for case_id, case_ in file.store.cases().items():
            renamed = msgspec.structs.replace(case_, target=msgspec.structs.replace(case_.target, id="a-model-of-mine"))
            mapped[case_id] = renamed.id
            row = rowcodec.case_row(renamed.id, 1, renamed)
            db.execute(rowcodec.insert("case", rowcodec.CASE), row)
            db.execute(trial_with("case_id", "?", "case_id = ?"), (renamed.id, case_id))
            db.execute("UPDATE trial SET case_id = ? WHERE case_id = ?", (renamed.id, case_id))
            db.execute("UPDATE warning SET case_id = ? WHERE case_id = ?", (renamed.id, case_id))
            db.execute('DELETE FROM "case" WHERE id = ?', (case_id,))
        blocks: dict[int, tuple[int, set[str]]] = {}
        for measured in file.store.trials():
            blocks.setdefault(measured.block_id, (measured.trial.repeat, set()))[1].add(mapped[measured.trial.case_id])
        for block_id, (repeat, ids) in blocks.items():
            number = block_number(repeat, ids)
            db.execute("UPDATE block SET number = ? WHERE id = ?", (number, block_id))
            db.execute(trial_with("block", "?", "block_id = ?"), (number, block_id))
        db.execute("UPDATE model SET id = 'a-model-of-mine', facts = replace(facts, 'tiny-dense', 'a-model-of-mine') "
                   "WHERE id = 'tiny-dense'")  # fmt: skip
        pack(db, mine)
    checked = mlsd("record", "check", mine)
    assert checked.code == 0, checked.out
    assert "not decoded again: 8 trials, the model a-model-of-mine is not here" in checked.out
    named = mlsd("record", "check", mine, "--model", asset_path("tiny/tiny-dense.gguf"), "--sample", 3)
    assert "decoded again: 3 outputs" in named.out


def test_a_record_that_contradicts_itself_is_not_imported(mlsd: Mlsd, record: Path, tmp_path: Path) -> None:
    refused = mlsd("record", "import", altered(record, trial_with("decode_ns", "7")), "--into", tmp_path / "x.sqlite")
    assert refused.code == 2
    assert "contradicts itself" in refused.err
    assert not (tmp_path / "x.sqlite").exists()


def test_a_failed_and_a_superseded_trial_keep_their_places(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        run_id = store.begin_run(ENVIRONMENT, {}, 0)
        store.add_models([MODEL])
        store.add_cases(run_id, [case(0), case(4)])
        store.add(run_id, [trial(case(4))])
        store.add(run_id, [trial(case(4)), failed(case(0))])
    with opened_record(record_of(tmp_path / "s.sqlite", tmp_path / "s.record.gz")) as file:
        assert [one.trial.status for one in file.store.trials()] == ["hot", "failed"]
        assert n_superseded(file.store) == 1


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
    refused = mlsd("record", "write", database, "-o", tmp_path / "server.record.gz")
    assert refused.code == 2 and "only trials of servers" in refused.err


# --- what is no record ------------------------------------------------------------------------------------------


def _zip(data: bytes) -> bytes:
    """Compressed without the time, so that a test keeps its name."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b", _zip(b""), _zip(b"{}"), _zip(b'{"format":1}'), b"plain text", _zip(b"SQLite format 3\0"),
     _zip(b"SQLite format 3\0" + bytes(5000)),],
)  # fmt: skip
def test_what_is_no_record_is_one_clear_message(mlsd: Mlsd, tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.record.gz"
    file.write_bytes(data)
    for line in (("record", "check", file), ("record", "import", file, "--into", tmp_path / "x.sqlite")):
        ran = mlsd(*line)
        assert ran.code == 2
        assert "Error:" in ran.err


def test_a_small_file_that_unpacks_to_much_is_refused_before_anything_is_built(mlsd: Mlsd, tmp_path: Path) -> None:
    path = tmp_path / "bomb.record.gz"
    path.write_bytes(gzip.compress(b" " * (130 << 20)))
    ran = mlsd("record", "check", path)
    assert ran.code == 2 and "unpacks to more than 134,217,728 bytes" in ran.err
