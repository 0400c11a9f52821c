from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest

from mlsd.errors import InputError, TableError
from mlsd.measure import exchange
from mlsd.measure.exchange import delimited, llama_bench, study_csv
from mlsd.measure.store.rows import TrialFilter
from mlsd.measure.store.store import ALL, Store
from mlsd.records import DrafterSpec, QualityWarning
from tests.measure.examples import ENVIRONMENT, MODEL, ROUNDS, case, failed, trial

FORMULA = '=HYPERLINK("http://x")'
STUDY_HEADER = ",".join(study_csv.COLUMNS)
STUDY_ROWS = """\
A_1,2026-03-01T10:00:00,studio,Apple M2 Ultra,moe-q4,none,0,512,256,1,factual,55.28,300.5,18.09,,,a.log,ok
B_1,2026-03-01T10:00:00,studio,Apple M2 Ultra,moe-q4,0.8B,16,,256,2,code,69.7,,14.3,0.0024,1.26,b.log,ok
B_2,2026-03-01T10:00:00,studio,Apple M2 Ultra,moe-q4,0.8B,16,,256,3,code,,,,,,b.log,failed
"""
LLAMA_BENCH = [
    {"build_commit": "8cf427ff", "cpu_info": "CPU", "gpu_info": "Apple M2 Ultra", "model_filename": "models/q.Q4.gguf",
     "n_prompt": 512, "n_gen": 0, "n_depth": 0, "test_time": "2026-03-01T10:00:00Z", "avg_ns": 100_000_000,
     "samples_ns": [99_000_000, 101_000_000]},
    {"build_commit": "8cf427ff", "cpu_info": "CPU", "gpu_info": "Apple M2 Ultra", "model_filename": "models/q.Q4.gguf",
     "n_prompt": 0, "n_gen": 128, "n_depth": 512, "test_time": "2026-03-01T10:00:00Z", "avg_ns": 2_000_000_000},
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A plain and a speculative arm in two repeats, an invalid, a failed and a superseded trial."""
    with Store.open(tmp_path / "study.sqlite") as store:
        run_id = store.begin_run(ENVIRONMENT, {"suites": ["B"]}, seed=7)
        store.add_models([msgspec.structs.replace(MODEL, weight_bytes=900, n_parameters=500)])
        store.add_cases(run_id, [case(0), case(4), case(8), case(16)])
        for repeat, decode_ns in enumerate((7_000, 3_500)):
            plain = trial(case(0), repeat=repeat, decode_ns=decode_ns, losslessness=None)
            store.add_trial(run_id, plain)
            store.add_trial(run_id, trial(case(4), repeat=repeat, decode_ns=2_800))
        store.add_trial(run_id, trial(case(8), repeat=0, valid=False, invalid_reason="diverged"))
        store.add_trial(run_id, failed(case(16), error="first"))
        store.add_trial(run_id, failed(case(16), error=FORMULA))
        store.add_warnings(run_id, [QualityWarning(code="on_battery", message="On battery.", advice="Plug in.")])
        store.end_run(run_id)
        yield store


def exported(store: Store, kind: str, chosen: TrialFilter = ALL, **options: Any) -> bytes:
    out = io.BytesIO()
    exchange.export(store, kind, out, chosen, **options)  # type: ignore[arg-type]
    return out.getvalue()


def lines(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


# --- our tables -------------------------------------------------------------------------------------------------


def test_csv_has_one_line_a_trial_with_its_sums_and_rates(store: Store) -> None:
    rows = lines(exported(store, "csv"))
    assert [row["status"] for row in rows] == ["ok"] * 5 + ["failed"]
    plain, speculative = rows[0], rows[1]
    assert (plain["arm"], plain["rounds"], plain["mgl"]) == ("ar", "7", "1.0")
    assert float(plain["decode_tok_s"]) == 7 / 7_000e-9
    assert int(speculative["accepted"]) == sum(r.accepted for r in ROUNDS)
    assert float(speculative["acceptance_rate"]) == 5 / 7
    assert float(speculative["mgl"]) == 7 / 2
    assert (speculative["chip"], speculative["target_sha256"], speculative["workload"]) == (
        "Apple M2 Ultra",
        "a" * 64,
        "code",
    )
    assert len({row["comparability_key"] for row in rows}) == 1


def test_csv_of_rounds_has_one_line_a_round(store: Store) -> None:
    rows = lines(exported(store, "csv", content="rounds"))
    assert [(row["trial_id"], row["number"], row["accepted"]) for row in rows[:2]] == [("1", "0", "0"), ("1", "1", "0")]
    assert len(rows) == 3 * 2 + 2 * 7


def test_no_text_cell_starts_a_formula(store: Store) -> None:
    for kind in ("csv", "study-csv"):
        text = exported(store, kind).decode()
        for row in csv.reader(io.StringIO(text, newline="")):
            assert not any(cell.startswith(("=", "+", "@")) for cell in row)
    assert lines(exported(store, "csv"))[-1]["error"] == "'" + FORMULA


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", "\tx", "\rx"])
def test_every_formula_start_is_guarded(text: str) -> None:
    assert delimited.guarded(text) == "'" + text
    assert delimited.guarded("a" + text) == "a" + text
    assert delimited.guarded(None) is None


def test_json_holds_the_whole_study(store: Store) -> None:
    store.add_imported(study_csv.read(f"{STUDY_HEADER}\n{STUDY_ROWS}".encode(), "runs.csv", "d" * 64))
    document = json.loads(exported(store, "json"))
    assert len(document["runs"]) == 1
    assert set(document["cases"]) == {case(g).id for g in (0, 4, 8, 16)}
    assert [len(t["rounds"]) for t in document["trials"]] == [7, 2, 7, 2, 2, 0]
    assert document["trials"][1]["tokens"] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert document["models"]["a" * 64]["architecture"] == "qwen35moe"
    assert [w["code"] for w in document["warnings"]] == ["on_battery"]
    assert len(document["imported"]) == 3


def test_a_filter_narrows_every_format(store: Store) -> None:
    speculative = TrialFilter(arm="sd", status="ok")
    assert len(lines(exported(store, "csv", speculative))) == 3
    assert len(lines(exported(store, "study-csv", speculative))) == 3
    assert len(json.loads(exported(store, "json", speculative))["trials"]) == 3
    assert json.loads(exported(store, "llama-bench", speculative)) == []


def test_unknown_formats_and_impossible_contents_are_refused(store: Store) -> None:
    with pytest.raises(InputError, match="no export format 'xlsx'"):
        exported(store, "xlsx")
    with pytest.raises(InputError, match="holds no table of rounds"):
        exported(store, "study-csv", content="rounds")


def _break(store: Store, out: BinaryIO, *_: object) -> int:
    out.write(b"half a")
    raise RuntimeError


def test_a_file_appears_whole_or_not_at_all(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path) -> int:
        return exchange.write_file(path, lambda out: exchange.export(store, "csv", out))

    place = tmp_path / "out"
    place.mkdir()
    assert write(place / "x.csv") == 6
    assert [p.name for p in place.iterdir()] == ["x.csv"]
    before = (place / "x.csv").read_bytes()
    with monkeypatch.context() as broken, pytest.raises(RuntimeError):
        broken.setattr(delimited, "write", _break)
        write(place / "x.csv")
    assert (place / "x.csv").read_bytes() == before
    with pytest.raises(InputError, match="cannot be written"):
        write(tmp_path / "nowhere" / "x.csv")
    assert [p.name for p in place.iterdir()] == ["x.csv"]


# --- the study's layout -----------------------------------------------------------------------------------------


def test_study_csv_pairs_each_arm_with_the_plain_one_of_its_block_and_repeat(store: Store) -> None:
    rows = lines(exported(store, "study-csv"))
    assert list(rows[0]) == list(study_csv.COLUMNS)
    speedups = [row["speedup_vs_baseline"] for row in rows if row["draft_model"] == "tiny" and row["draft_len"] == "4"]
    assert [float(speedup) for speedup in speedups] == pytest.approx([7_000 / 2_800, 3_500 / 2_800])
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "ok", "invalid", "failed"]
    assert (rows[0]["draft_model"], rows[0]["draft_acceptance_rate"]) == ("none", "")
    assert float(rows[1]["draft_acceptance_rate"]) == 5 / 7


def test_a_control_is_one_in_every_export(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.sqlite") as store:
        bound = case(4, drafter=DrafterSpec(name="oracle"))
        run_id = store.begin_run(ENVIRONMENT, {}, seed=1)
        store.add_cases(run_id, [case(0), bound])
        for one in (case(0), bound):
            store.add_trial(run_id, trial(one))
        assert [row["status"] for row in lines(exported(store, "study-csv"))] == ["ok", "control"]
        assert [row["control"] for row in lines(exported(store, "csv"))] == ["False", "True"]
        assert [one["control"] for one in json.loads(exported(store, "json"))["trials"]] == [False, True]
        assert len(json.loads(exported(store, "llama-bench"))) == 2  # a prefill and a generation, of plain decoding


def test_an_invalid_baseline_gives_no_speedup(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.sqlite") as store:
        run_id = store.begin_run(ENVIRONMENT, {}, seed=1)
        store.add_cases(run_id, [case(0), case(4)])
        store.add_trial(run_id, trial(case(0), valid=False))
        store.add_trial(run_id, trial(case(4)))
        assert [row["speedup_vs_baseline"] for row in lines(exported(store, "study-csv"))] == ["", ""]


def test_an_exported_table_states_what_its_rates_divide_by_and_the_tokens_a_round(store: Store) -> None:
    plain, speculative = lines(exported(store, "study-csv"))[:2]
    assert (plain["acceptance_of"], plain["mgl"], plain["rounds"]) == ("", "", "")
    assert speculative["acceptance_of"] == "proposed"
    assert float(speculative["mgl"]) >= 1.0 and int(speculative["rounds"]) >= 1
    row = lines(exported(store, "csv"))[1]
    accepted, committed = float(row["accepted"]), float(row["committed"])
    assert float(row["accepted_of_output"]) == accepted / committed
    assert 0.0 < float(row["acceptance_by_position"]) <= 1.0


def test_what_is_written_in_the_studys_layout_can_be_read_back(store: Store) -> None:
    rows = study_csv.read(exported(store, "study-csv"), "own.csv", "0" * 64)
    written = lines(exported(store, "study-csv"))
    assert [row.job_id for row in rows] == [line["job_id"] for line in written]
    assert [row.decode_tok_s for row in rows[:2]] == [float(line["tokens_per_sec"]) for line in written[:2]]
    assert [row.arm for row in rows] == ["ar", "sd", "ar", "sd", "sd", "sd"]
    assert rows[0].prefill_ns == 10_000


def test_the_studys_rows_are_read_with_units_and_none_for_empty_cells() -> None:
    plain, speculative, broken = study_csv.read(f"{STUDY_HEADER}\n{STUDY_ROWS}".encode(), "runs.csv", "0" * 64)
    assert (plain.arm, plain.draft_model, plain.gamma, plain.acceptance_rate) == ("ar", None, 0, None)
    assert (plain.decode_tok_s, plain.prefill_ns, plain.n_prompt, plain.repeat) == (55.28, 300_500_000, 512, 1)
    assert plain.decode_ns_per_token == pytest.approx(18.09e6)
    assert (speculative.arm, speculative.draft_model, speculative.gamma) == ("sd", "0.8B", 16)
    assert (speculative.acceptance_rate, speculative.speedup, speculative.n_prompt) == (0.0024, 1.26, None)
    assert (broken.status, broken.decode_tok_s) == ("failed", None)
    assert broken.raw["raw_log"] == "b.log"


def test_a_byte_order_mark_and_columns_of_ones_own_are_no_obstacle() -> None:
    data = "\ufefftarget_model,draft_model,tokens_per_sec,mood\nm,none,5,good\n".encode()
    (row,) = study_csv.read(data, "x.csv", "0" * 64)
    assert (row.status, row.raw["mood"], row.decode_tok_s) == ("ok", "good", 5.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("55.28", "fast"), "line 2, column tokens_per_sec: 'fast' is not a number"),
        (("55.28", "nan"), "line 2, column tokens_per_sec: 'nan' is not a finite number"),
        (("55.28", "-3"), "line 2, column tokens_per_sec: '-3' is not above 0"),
        (("55.28", "1e400"), "line 2, column tokens_per_sec: '1e400' is not a finite number"),
        (("300.5", "1e305"), "line 2, column prompt_eval_ms: cannot convert float infinity"),
        (("0.0024", "171 %"), "line 3, column draft_acceptance_rate: '171 %' is not a fraction"),
        (("16,", "4.5,"), "line 3, column draft_len: '4.5' is not a count"),
        (("none", ""), "line 2, column draft_model: the cell is empty"),
        ((",ok", ",ok,,,,more"), "line 2: 1 more cells than columns"),
    ],
)
def test_a_row_that_is_not_understood_says_so_by_line_and_column_and_the_others_are_read(
    changed: tuple[str, str], message: str
) -> None:
    text = f"{STUDY_HEADER}\n{STUDY_ROWS}".replace(changed[0], changed[1], 1)
    rows = study_csv.read(text.encode(), "runs.csv", "0" * 64)
    (lost,) = [row for row in rows if row.status.startswith(study_csv.NOT_UNDERSTOOD)]
    assert message in lost.status
    assert len(rows) == 3 and lost.decode_tok_s is None


def test_cells_are_read_as_people_write_them() -> None:
    header = "target_model,draft_model,draft_len,tokens_per_sec,draft_acceptance_rate,speedup_vs_baseline\n"
    text = (
        header
        + 'm,none,-,~30 tok/s,n/a,-\nm,d,auto,"1,045.5",55.1,1.5x\nm,d,4,**33.0 ± 0.4**,55.1 %,1.1\nm,d,4,30,-,\n'
    )
    plain, auto, bold, without = study_csv.read(text.encode(), "own.csv", "0" * 64)
    assert (plain.decode_tok_s, plain.gamma, plain.acceptance_rate, plain.speedup) == (30.0, 0, None, None)
    assert (auto.decode_tok_s, auto.gamma, auto.acceptance_rate, auto.speedup) == (1045.5, None, 0.551, 1.5)
    assert (bold.decode_tok_s, bold.gamma, bold.acceptance_rate) == (33.0, 4, 0.551)
    assert without.acceptance_rate is None


def test_rates_of_a_table_are_fractions_or_per_cent_and_one_that_fits_neither_is_not_understood() -> None:
    header = "target_model,draft_model,tokens_per_sec,draft_acceptance_rate\n"
    ok, lost = study_csv.read(f"{header}m,d,30,0.551\nm,d,30,71\n".encode(), "own.csv", "0" * 64)
    assert ok.acceptance_rate == 0.551
    assert "'71' is not a fraction" in lost.status


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("target_model", "model"), "line 1: column target_model is missing"),
        (("machine", "chip"), "line 1: column chip appears twice"),
        (("a.log", '"a.log'), "not readable as CSV"),
        (("a.log", "\0"), "holds NUL bytes"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_its_place(changed: tuple[str, str], message: str) -> None:
    text = f"{STUDY_HEADER}\n{STUDY_ROWS}".replace(changed[0], changed[1], 1)
    with pytest.raises(TableError, match=rf"runs\.csv.*{message}"):
        study_csv.read(text.encode(), "runs.csv", "0" * 64)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (STUDY_HEADER.encode(), "holds no row"),
        (f"{STUDY_HEADER}\nM\xfcnchen".encode("latin-1"), "line 2: not UTF-8"),
        (b"PK\x03\x04\x00\x00", "holds NUL bytes"),
        (STUDY_HEADER.encode("utf-16"), "not UTF-8"),
    ],
)
def test_files_that_are_no_such_table_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(TableError, match=message):
        study_csv.read(data, "runs.csv", "0" * 64)


# --- llama-bench ------------------------------------------------------------------------------------------------


def test_llama_bench_gets_the_plain_arm_with_its_repeats_as_samples_and_is_read_again(store: Store) -> None:
    prefill, decode = json.loads(exported(store, "llama-bench"))
    assert list(prefill) == list(llama_bench.FIELDS)
    assert (prefill["n_prompt"], prefill["n_gen"], prefill["samples_ns"]) == (64, 0, [10_000, 10_000])
    assert (decode["n_prompt"], decode["n_gen"], decode["n_depth"]) == (0, 7, 64)
    assert decode["samples_ns"] == [7_000, 3_500]
    assert decode["samples_ts"] == pytest.approx([1e6, 2e6])
    assert (decode["avg_ts"], decode["avg_ns"]) == (pytest.approx(1.5e6), 5_250)
    assert (decode["model_size"], decode["model_n_params"], decode["n_threads"]) == (900, 500, 1)
    assert decode["build_number"] is None
    rows = llama_bench.read(exported(store, "llama-bench"), "own.json", "0" * 64)
    assert [row.prefill_ns for row in rows] == [10_000, 10_000, None, None]
    assert [row.decode_tok_s for row in rows][2:] == pytest.approx([1e6, 2e6])


def test_llama_benchs_own_output_is_read_as_one_row_a_sample() -> None:
    data = json.dumps(LLAMA_BENCH).encode()
    rows = llama_bench.read(data, "bench.json", "0" * 64)
    assert [row.row for row in rows] == [1, 2, 3]
    assert [row.prefill_ns for row in rows] == [99_000_000, 101_000_000, None]
    assert [row.decode_tok_s for row in rows] == [None, None, 64.0]
    assert {(row.target_model, row.chip, row.n_prompt, row.arm) for row in rows} == {
        ("q.Q4", "Apple M2 Ultra", 512, "ar")
    }
    json_lines = "\n".join(json.dumps(test) for test in LLAMA_BENCH).encode()
    assert [r.decode_tok_s for r in llama_bench.read(json_lines, "x", "0")] == [r.decode_tok_s for r in rows]


def test_a_test_of_prompt_and_output_together_gives_no_rate() -> None:
    mixed = LLAMA_BENCH[1] | {"n_prompt": 512}
    (row,) = llama_bench.read(json.dumps([mixed]).encode(), "x", "0")
    assert (row.decode_tok_s, row.prefill_ns) == (None, None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no test"),
        (b"[]", "holds no test"),
        (b"[{", "not a JSON array"),
        (b"hello", "line 1: not a JSON object"),
        (b"[1]", "not a JSON array of tests"),
        (b'[{"n_gen": 1}]', "test 1: Object missing required field"),
        (b'[{"n_gen": 1, "n_prompt": 0, "avg_ns": 0, "model_filename": "m"}]', "test 1: a time of 0 ns"),
        (b"\xff\xfe", "not a JSON object"),
    ],
)
def test_broken_llama_bench_output_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(TableError, match=message):
        llama_bench.read(data, "bench.json", "0" * 64)


def test_a_table_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{STUDY_HEADER}\n{STUDY_ROWS}")
    first = exchange.read_table(path, "study-csv")
    path.write_text(f"{STUDY_HEADER}\n{STUDY_ROWS}".replace("55.28", "55.29"))
    second = exchange.read_table(path, "study-csv")
    assert first[0].source == second[0].source == "runs.csv"
    assert first[0].source_sha256 != second[0].source_sha256
    with pytest.raises(TableError, match="cannot be read"):
        exchange.read_table(tmp_path / "none.csv", "study-csv")
