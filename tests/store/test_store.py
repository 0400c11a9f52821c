import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mlsd.errors import StoreError
from mlsd.formats.tables import trial_rows
from mlsd.planning.job import BlockKey
from mlsd.records import Losslessness, QualityWarning, Sampling, Status, Trial
from mlsd.store import schema
from mlsd.store.database import WRITER_WAIT_S, is_study
from mlsd.store.rowcodec import without_folders
from mlsd.store.rows import (
    CalibrationPoint,
    Coverage,
    ExpertLoad,
    PassShares,
    StreamRead,
    TimedPass,
    TrialFilter,
    comparability_key,
    environment_key,
)
from mlsd.store.store import Store
from tests.measure.examples import ENVIRONMENT, MODEL, ROUNDS, case, failed, trial

OTHER_HOST = msgspec.structs.replace(ENVIRONMENT, host="f" * 16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "study.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def run_id(store: Store) -> int:
    run_id = store.begin_run(ENVIRONMENT, {"suites": ["B"], "profile": "tiny"}, seed=7)
    store.add_cases(run_id, [case(gamma) for gamma in (0, 4, 8)])
    return run_id


# --- what goes in comes out -------------------------------------------------------------------------------------


def test_the_example_trial_leaves_no_field_at_its_default() -> None:
    example = trial(timed=False)
    bare = Trial(case_id="", arm="ar", gamma=0, block=0, repeat=0, position=0, status=Status.FAILED, started_at="")
    same = [f for f in Trial.__struct_fields__ if getattr(example, f) == getattr(bare, f)]
    assert same == []


def test_a_trial_comes_back_as_it_was_written_with_its_rounds_or_without(store: Store, run_id: int) -> None:
    one, other = trial(timed=False, decode_ns=None), failed(case(8))
    ids = [one.id for one in store.add(run_id, [one, other])]
    key = environment_key(ENVIRONMENT)
    assert [s.trial for s in store.trials()] == [one, other]
    assert [(s.id, s.run_id, s.environment_key) for s in store.trials()] == [(id_, run_id, key) for id_ in ids]
    assert next(store.trials(rounds=False)).trial == msgspec.structs.replace(one, rounds=())


def test_a_figure_that_is_not_finite_was_not_measured_and_a_memory_may_have_lost_tokens(
    store: Store, run_id: int
) -> None:
    lost = Losslessness(verdict="diverged", n_positions_off=-3)
    store.add(run_id, [trial(stats={"lookup_ns": float("nan"), "hits": 3.0}, losslessness=lost)])
    (stored,) = store.trials()
    assert (stored.trial.stats, stored.trial.losslessness) == ({"hits": 3.0}, lost)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("llama.cpp cannot load /home/jane/models/m.gguf: no reason.", "llama.cpp cannot load m.gguf: no reason."),
        ("'/opt/a/b.gguf' and ~/c/d.sqlite", "'b.gguf' and d.sqlite"),
        ('File "/usr/lib/python3/mlsd/rig.py", line 3', 'File "rig.py", line 3'),
        *((text, text) for text in ("8.1 tok/s at 1/2 of gamma; see https://example.org/a/b", "results/tiny.sqlite")),
        (f"{Path.home()}/My Models/x.gguf", "My Models/x.gguf"),
    ],
)
def test_absolute_paths_are_cut_and_nothing_else_is(text: str, told: str) -> None:
    assert without_folders(text) == told


def test_plans_and_failed_trials_are_stored_without_folders(store: Store, tmp_path: Path) -> None:
    place = str(tmp_path / "s.sqlite")
    run_id = store.begin_run(ENVIRONMENT, {"options": {"db": place, "files": [str(tmp_path)]}}, 0)
    store.add_cases(run_id, [case()])
    store.add(run_id, [failed(reason=f"Cannot load {tmp_path}/m.gguf.")])
    assert store.runs()[0].plan["options"] == {"db": "s.sqlite", "files": [tmp_path.name]}
    assert [one.trial.reason for one in store.trials()] == ["Cannot load m.gguf."]
    store.close()
    assert str(tmp_path).encode() not in store.path.read_bytes()


def test_cases_models_runs_and_warnings_come_back(store: Store, run_id: int) -> None:
    warning = QualityWarning(code="on_battery", message="On battery.", advice="Plug in.", case_id=case().id)
    store.add_models([MODEL])
    store.add_warnings(run_id, [warning, warning])
    store.add_warnings(run_id, [warning])
    store.end_run(run_id)
    (run,) = store.runs()
    assert store.cases() == {c.id: c for c in (case(0), case(4), case(8))}
    assert store.models() == {"a" * 64: MODEL}
    assert [(w.code, w.case_id) for w in store.warnings()] == [("on_battery", case().id)]
    assert (run.status, run.seed, run.environment) == ("finished", 7, ENVIRONMENT)
    assert run.plan == {"suites": ["B"], "profile": "tiny"}
    assert run.ended_at is not None


_COVERAGE = Coverage(model_key="m", source="text", layer=2, window=2, distinct={2: 1, 3: 4, 4: 5})
FIGURES = (
    CalibrationPoint(model_key="m", kind="target_pass", rows=5, depth=64, repeat=0, span_ns=1_000),
    _COVERAGE,
    ExpertLoad(model_key="m", source="text", layer=2, chosen=(7, 0, 3, 10)),
    StreamRead(n_threads=2, repeat=0, gb_s=10.5),
    TimedPass(quant="Q8_0", n_bytes=20_000_000, block=0, ms=2.5),
    PassShares(model_key="m", drafting_key="cut", rows=5, depth=64, n_passes=10, plain_ns=1_000, profiled_ns=1_200,
               headless_ns=900, parts_ns={"attention": 600, "head": 300}),
)  # fmt: skip


def test_figures_of_the_machine_come_back_by_their_kind(store: Store, run_id: int) -> None:
    store.add_figures(run_id, FIGURES)
    assert [list(store.figures(type(one))) for one in FIGURES] == [[(run_id, one)] for one in FIGURES]
    assert (_COVERAGE.n_windows, _COVERAGE.distinct_mean) == (10, 3.4)


def test_times_that_are_not_the_methods_are_not_there(store: Store, run_id: int) -> None:
    store.add(run_id, [trial(decode_ns=None, timed=False)], supersede=False)
    (row,) = trial_rows(store)
    assert [row[f"{part}_ns"] for part in ("decode", "draft", "verify", "rollback", "sample", "other")] == [None] * 6
    assert row["accepted"] == sum(r.accepted for r in ROUNDS)


# --- once and only once -----------------------------------------------------------------------------------------


def is_final(store: Store) -> bool:
    return all(status.is_final for status in store.blocks(ENVIRONMENT)[BlockKey(1, 2)].values())


def test_a_block_is_what_one_process_measured_and_supersedes_what_was_measured_of_it_before(
    store: Store, run_id: int
) -> None:
    lost = [trial(case(0)), failed(case(4))]
    first = store.add(run_id, lost)
    assert [s.block_id for s in store.trials()] == [first[0].block_id] * 2
    assert not is_final(store)
    second = store.add(store.begin_run(ENVIRONMENT, {}, seed=8), [trial(case(0)), trial(case(4))])
    assert [(s.block_id, s.run_id, s.trial.status) for s in store.trials()] == [(second[0].block_id, 2, Status.HOT)] * 2
    assert is_final(store)
    assert [s.id for s in store.trials(TrialFilter(superseded=True))] == [1, 2, 3, 4]
    assert len(list(trial_rows(store))) == 2
    store.add(store.begin_run(OTHER_HOST, {}, seed=7), lost)
    assert len(list(store.trials())) == 4, "another machine supersedes nothing"


def test_a_block_that_was_disturbed_counts_its_tries_over_all_runs(store: Store, run_id: int) -> None:
    waited = {"status": Status.DISTURBED, "reason": "it waited"}
    store.add(run_id, [trial(case(0), **waited), trial(case(4), **waited)])
    store.add(store.begin_run(ENVIRONMENT, {}, seed=8), [trial(case(0), **waited), trial(case(4))])
    assert store.tries(ENVIRONMENT) == {(1, 2): 2} and store.tries(OTHER_HOST) == {}
    assert not is_final(store)


def test_what_is_superseded_on_purpose_are_whole_blocks_of_the_named_cases_here(store: Store, run_id: int) -> None:
    store.add(run_id, [trial(case(0)), trial(case(4))])
    store.add(run_id, [trial(case(0), block=2), trial(case(8), block=2)])
    store.supersede(OTHER_HOST, [case(0).id, case(4).id])
    assert len(list(store.trials())) == 4
    store.supersede(ENVIRONMENT, [case(0).id, case(4).id])
    assert [s.trial.gamma for s in store.trials()] == [0, 8]
    assert [s.id for s in store.trials(TrialFilter(superseded=True))] == [1, 2, 3, 4]


def test_a_block_of_which_anything_cannot_be_stored_leaves_nothing_behind(store: Store, run_id: int) -> None:
    store.add(run_id, [trial(case(0))])
    with pytest.raises(StoreError, match="not there"):
        store.add(run_id, [trial(case(0)), trial(case(16))])
    with pytest.raises(StoreError, match="not one block"):
        store.add(run_id, [trial(case(0)), trial(case(4), repeat=7)])
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.add(99, [trial()], supersede=False)
    assert [s.id for s in store.trials()] == [1]


def test_a_run_that_never_ended_is_interrupted_when_its_host_starts_the_next(store: Store, run_id: int) -> None:
    other = store.begin_run(OTHER_HOST, {}, seed=7)
    assert [r.status for r in store.runs()] == ["started", "started"]
    store.begin_run(ENVIRONMENT, {}, seed=7)
    assert [(r.id, r.status) for r in store.runs()] == [(run_id, "interrupted"), (other, "started"), (3, "started")]


def test_a_case_stays_with_the_run_that_planned_it_first(store: Store, run_id: int) -> None:
    second = store.begin_run(ENVIRONMENT, {}, seed=7)
    store.add_cases(second, [case(4), case(16), case(16)])
    store.add_cases(second, {case(16).id: case(16), case(32).id: case(32)})
    assert list(store.cases()) == [case(g).id for g in (0, 4, 8, 16, 32)]


def test_a_killed_writer_leaves_whole_trials_only(path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from mlsd.store.store import Store
        from tests.measure.examples import ENVIRONMENT, ROUNDS, case, trial
        long = case(n_predict=351)
        made = dict(rounds=ROUNDS * 50, tokens=tuple(range(351)), decode_ns=134_100)
        store = Store.open(Path(sys.argv[1]))
        run_id = store.begin_run(ENVIRONMENT, {}, seed=7)
        store.add_cases(run_id, [long])
        for repeat in range(1_000_000):
            store.add(run_id, [trial(long, repeat=repeat, **made)], supersede=False)
            print(repeat, flush=True)
        """
    )
    root = Path(__file__).parents[3]
    writer = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=root, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    written = [int(writer.stdout.readline()) for _ in range(20)]
    writer.kill()
    writer.wait()
    written += [int(line) for line in writer.stdout]
    writer.stdout.close()
    with Store.open(path) as store:
        stored = list(store.trials())
        assert store.check() == []
        assert all(s.trial.rounds == ROUNDS * 50 for s in stored)
        assert len(stored) in (len(written), len(written) + 1)  # at most one was committed but not yet printed


# --- reading by choice ------------------------------------------------------------------------------------------


def test_filters_narrow_the_choice(store: Store, run_id: int) -> None:
    store.add_cases(run_id, [case(4, suite="D")])
    for of in (case(0), case(4), case(8), case(4, suite="D")):
        store.add(run_id, [trial(of, status=Status.INVALID if of.gamma == 8 else Status.HOT)], supersede=False)
    store.add(run_id, [failed(case(0), repeat=9)], supersede=False)

    def gammas(**fields: object) -> list[int]:
        return [s.trial.gamma for s in store.trials(TrialFilter(**fields), rounds=False)]  # type: ignore[arg-type]

    assert gammas(suite="B") == [0, 4, 8, 0]
    assert gammas(arm="sd", suite="B") == [4, 8]
    assert gammas(failed=True) == [0]
    assert gammas(valid=True) == [0, 4, 4]
    assert gammas(case_id=case(8).id[:6]) == [8]
    assert gammas(trial_id=2) == [4]
    assert gammas(run_id=99) == []


def test_the_summary_sums_the_rounds_of_each_trial(store: Store, run_id: int) -> None:
    store.add(run_id, [trial()], supersede=False)
    store.add(run_id, [failed(case(8))], supersede=False)
    speculative, broken = trial_rows(store)
    for name in ("proposed", "accepted", "committed", "rows", "draft_ns", "verify_ns", "sample_ns", "other_ns"):
        assert speculative[name] == sum(getattr(r, name) for r in ROUNDS), name
    assert (speculative["rounds"], speculative["n_tokens"], speculative["verdict"]) == (2, 8, "near_tie")
    assert (speculative["suite"], speculative["target"], speculative["draft"]) == ("B", "tiny-moe", "tiny")
    assert (broken["status"], broken["rounds"], broken["verify_ns"]) == ("failed", None, None)


# --- what may be averaged ---------------------------------------------------------------------------------------


def test_another_host_or_build_is_another_environment_and_passing_conditions_are_not() -> None:
    other = {"host": "e" * 16, "llama_cpp_build": "b9999", "backend": "CPU", "llama_cpp_python_version": "0.4.0"}
    for name, value in other.items():
        assert environment_key(msgspec.structs.replace(ENVIRONMENT, **{name: value})) != environment_key(ENVIRONMENT)
    later = msgspec.structs.replace(ENVIRONMENT, power_source="battery", thermal_state="heavy", os="macOS 26.6")
    assert environment_key(later) == environment_key(ENVIRONMENT)


def test_trials_compare_across_drafters_and_prompts_but_not_across_targets_or_sampling() -> None:
    key = comparability_key(case(4), "machine")
    assert comparability_key(case(0), "machine") == comparability_key(case(8, n_predict=16), "machine") == key
    assert comparability_key(case(4), "another machine") != key
    assert comparability_key(case(4, sampling=Sampling(temperature=0.7)), "machine") != key
    other = msgspec.structs.replace(case().target, sha256="9" * 64)
    assert comparability_key(case(4, target=other), "machine") != key


# --- versions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("version", [1, schema.VERSION - 1, schema.VERSION + 1])
def test_a_database_of_another_version_is_refused_untouched(path: Path, version: int, read_only: bool) -> None:
    Store.open(path).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {version}")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"another version of mlsd: its tables are version {version},") as caught:
        Store.open(path, read_only=read_only)
    assert "the mlsd that wrote it" in caught.value.hint
    assert path.read_bytes() == before
    assert not is_study(path)


# --- files that cannot be used ----------------------------------------------------------------------------------


def test_a_missing_database_is_not_made_when_only_reading(path: Path) -> None:
    with pytest.raises(StoreError, match="no results database"):
        Store.open(path, read_only=True)
    with pytest.raises(StoreError, match="no results database"):
        Store.open(path, create=False)
    assert not path.parent.exists()


def test_a_folder_or_another_kind_of_file_is_refused_untouched(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        Store.open(tmp_path)
    text = tmp_path / "notes.txt"
    text.write_text("not a database, and longer than the header of one " * 40)
    with pytest.raises(StoreError, match="is not a results database"):
        Store.open(text)
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(StoreError, match="is an empty file"):
        Store.open(empty, read_only=True)


def test_somebody_elses_database_is_refused_untouched(path: Path) -> None:
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE trial (a)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="that mlsd did not write"):
        Store.open(path)
    assert path.read_bytes() == before


def test_a_locked_database_is_waited_for_longer_than_sqlites_five_seconds_and_then_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(path) as store:
        assert store._connection.execute("PRAGMA busy_timeout").fetchone() == (1000 * WRITER_WAIT_S,)
        assert WRITER_WAIT_S > 5
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("mlsd.store.database.WRITER_WAIT_S", 1)
    with Store.open(path) as store, pytest.raises(StoreError, match="locked by another program, for longer than 1 s"):
        store.begin_run(ENVIRONMENT, {}, seed=1)
    other.close()


def test_a_reader_does_not_wait_for_a_writer(path: Path) -> None:
    with Store.open(path) as writer:
        run_id = writer.begin_run(ENVIRONMENT, {}, seed=1)
        writer.add_cases(run_id, [case()])
        writer.add(run_id, [trial()])
        with Store.open(path, read_only=True) as reader:
            assert len(list(reader.trials())) == 1
            with pytest.raises(StoreError, match="cannot be opened for writing"):
                reader.begin_run(ENVIRONMENT, {}, seed=1)


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    """A folder with a database that an ordinary user may read but not write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with Store.open(folder / "study.sqlite") as store:
            store.begin_run(ENVIRONMENT, {}, seed=1)
        (folder / "study.sqlite").chmod(0o444)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """File permissions do not count for root: be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_a_read_only_folder_can_be_read_and_refuses_writing(locked_folder: Path, ordinary_user: None) -> None:
    with Store.open(locked_folder / "study.sqlite", read_only=True) as store:
        assert len(store.runs()) == 1
    for name in ("study.sqlite", "new.sqlite", "below/new.sqlite"):
        with pytest.raises(StoreError, match="cannot be") as caught:
            Store.open(locked_folder / name)
        assert "writable place" in caught.value.hint
    assert [p.name for p in locked_folder.iterdir()] == ["study.sqlite"]


def test_what_is_done_is_looked_up_by_its_block(store: Store, run_id: int) -> None:
    queries: list[str] = []
    store._connection.set_trace_callback(queries.append)
    store.blocks(ENVIRONMENT)
    steps = [row[3] for row in store._rows(f"EXPLAIN QUERY PLAN {queries[0]}")]
    assert any(step.startswith("SEARCH trial USING INDEX trial_block") for step in steps)
