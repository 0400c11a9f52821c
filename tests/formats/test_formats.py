import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from mlsd.errors import InputError
from mlsd.formats import exports, llama_bench
from mlsd.records import DrafterSpec, QualityWarning, Status
from mlsd.store.rows import TrialFilter
from mlsd.store.store import ALL, Store
from tests.measure.examples import ENVIRONMENT, MODEL, ROUNDS, case, failed, trial

FORMULA = '=HYPERLINK("http://x")'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A plain and a speculative arm in two repeats, an invalid, a failed and a superseded trial."""
    with Store.open(tmp_path / "study.sqlite") as store:
        run_id = store.begin_run(ENVIRONMENT, {"suites": ["B"]}, seed=7)
        store.add_models([msgspec.structs.replace(MODEL, weight_bytes=900, n_parameters=500)])
        store.add_cases(run_id, [case(0), case(4), case(8), case(16)])
        for repeat, decode_ns in enumerate((7_000, 3_500)):
            plain = trial(case(0), repeat=repeat, decode_ns=decode_ns, losslessness=None)
            store.add(run_id, [plain, trial(case(4), repeat=repeat, decode_ns=2_800)])
        store.add(run_id, [trial(case(8), block=2, repeat=0, status=Status.INVALID, reason="diverged")])
        store.add(run_id, [failed(case(16), reason="first")])
        store.add(run_id, [failed(case(16), reason=FORMULA)])
        store.add_warnings(run_id, [QualityWarning(code="on_battery", message="On battery.", advice="Plug in.")])
        store.end_run(run_id)
        yield store


def exported(store: Store, kind: str, chosen: TrialFilter = ALL) -> bytes:
    out = io.BytesIO()
    exports.export(store, kind, out, chosen)
    return out.getvalue()


def lines(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


# --- our tables -------------------------------------------------------------------------------------------------


def test_csv_has_one_line_a_trial_with_its_sums_and_rates(store: Store) -> None:
    rows = lines(exported(store, "csv"))
    assert [row["status"] for row in rows] == ["hot"] * 4 + ["invalid", "failed"]
    plain, speculative = rows[0], rows[1]
    assert (plain["arm"], plain["rounds"], plain["mgl"]) == ("ar", "7", "1.0")
    assert float(plain["decode_tok_s"]) == 7 / 7_000e-9
    assert int(speculative["accepted"]) == sum(r.accepted for r in ROUNDS)
    assert float(speculative["acceptance_rate"]) == 5 / 7
    assert float(speculative["accepted_of_output"]) == 5 / 7
    assert 0.0 < float(speculative["acceptance_by_position"]) <= 1.0
    assert float(speculative["mgl"]) == 7 / 2
    assert [speculative[name] for name in ("chip", "target_sha256", "workload")] == ["Apple M2 Ultra", "a" * 64, "code"]
    assert len({row["comparability_key"] for row in rows}) == 1


def test_no_text_cell_starts_a_formula(store: Store) -> None:
    assert lines(exported(store, "csv"))[-1]["reason"] == "'" + FORMULA
    for text in ("=1", "+1", "-1", "@x", "\tx", "\rx"):
        assert exports.guarded(text) == "'" + text
        assert exports.guarded("a" + text) == "a" + text
    assert (exports.guarded(None), exports.guarded(-1)) == (None, -1)


def test_json_holds_the_whole_study(store: Store) -> None:
    document = json.loads(exported(store, "json"))
    assert len(document["runs"]) == 1
    assert set(document["cases"]) == {case(g).id for g in (0, 4, 8, 16)}
    assert [len(t["rounds"]) for t in document["trials"]] == [7, 2, 7, 2, 2, 0]
    assert document["trials"][1]["tokens"] == [5, 6, 7, 8, 9, 10, 11, 12]
    assert document["models"]["a" * 64]["architecture"] == "qwen35moe"
    assert [w["code"] for w in document["warnings"]] == ["on_battery"]


def test_a_filter_narrows_every_format(store: Store) -> None:
    speculative = TrialFilter(arm="sd", failed=False)
    assert len(lines(exported(store, "csv", speculative))) == 3
    assert len(json.loads(exported(store, "json", speculative))["trials"]) == 3
    assert json.loads(exported(store, "llama-bench", speculative)) == []
    with pytest.raises(InputError, match="no export format 'xlsx'"):
        exported(store, "xlsx", speculative)


def test_a_file_appears_whole_or_not_at_all(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path) -> int:
        return exports.write_file(path, lambda out: exports.export(store, "csv", out))

    def broken(store: Store, out: BinaryIO, *_: object) -> int:
        out.write(b"half a")
        raise RuntimeError

    where = tmp_path / "out"
    where.mkdir()
    assert write(where / "x.csv") == 6
    assert [p.name for p in where.iterdir()] == ["x.csv"]
    before = (where / "x.csv").read_bytes()
    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setitem(exports.EXPORTS, "csv", broken)
        write(where / "x.csv")
    assert (where / "x.csv").read_bytes() == before
    with pytest.raises(InputError, match="cannot be written"):
        write(tmp_path / "nowhere" / "x.csv")
    assert [p.name for p in where.iterdir()] == ["x.csv"]


def test_a_control_is_one_in_every_export(tmp_path: Path) -> None:
    with Store.open(tmp_path / "x.sqlite") as store:
        bound = case(4, drafter=DrafterSpec(name="oracle"))
        run_id = store.begin_run(ENVIRONMENT, {}, seed=1)
        store.add_cases(run_id, [case(0), bound])
        for each in (case(0), bound):
            store.add(run_id, [trial(each)], supersede=False)
        assert [row["control"] for row in lines(exported(store, "csv"))] == ["False", "True"]
        assert [each["control"] for each in json.loads(exported(store, "json"))["trials"]] == [False, True]
        assert len(json.loads(exported(store, "llama-bench"))) == 2  # a prefill and a generation, of plain decoding


# --- llama-bench ------------------------------------------------------------------------------------------------


def test_llama_bench_gets_the_plain_arm_with_its_repeats_as_samples(store: Store) -> None:
    prefill, decode = json.loads(exported(store, "llama-bench"))
    assert list(prefill) == list(llama_bench.FIELDS)
    assert (prefill["n_prompt"], prefill["n_gen"], prefill["samples_ns"]) == (64, 0, [10_000, 10_000])
    assert (decode["n_prompt"], decode["n_gen"], decode["n_depth"]) == (0, 7, 64)
    assert decode["samples_ns"] == [7_000, 3_500]
    assert decode["samples_ts"] == pytest.approx([1e6, 2e6])
    assert (decode["avg_ts"], decode["avg_ns"]) == (pytest.approx(1.5e6), 5_250)
    assert (decode["model_size"], decode["model_n_params"], decode["n_threads"]) == (900, 500, 1)
    assert decode["build_number"] is None
