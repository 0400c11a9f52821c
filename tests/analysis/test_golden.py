"""What is said of a stored study is what was said before, but where a commit changed it on purpose.

The study is the notebooks' database: suites A to F of the tiny profile with calibrations, and the record that ships, of
the same family on another machine. `python -m tests.analysis.test_golden` writes the values anew; look at what changed.
"""

import gzip
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import mlsd
from mlsd.analysis.fits.fit import HeldOut
from mlsd.analysis.study.study import Study, attempt, read_study
from mlsd.formats.record import import_record, opened_record
from mlsd.report.render.table import Table
from mlsd.report.tables import paper as paper_tables
from mlsd.report.tables.claims import claim_table
from mlsd.report.tables.equations import equation_table, traffic_table
from mlsd.stats import Interval
from mlsd.store.store import Store
from mlsd.trials.results import ArmResult

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).parent / "data" / "golden.json.gz"
GOLDEN = json.loads(gzip.decompress(FILE.read_bytes())) if FILE.exists() else {}
STUDIES = ("notebooks", "record")
TABLES = {
    "4": paper_tables.table_4, "5": paper_tables.table_5, "F": paper_tables.table_f, "claims": claim_table,
    "traffic": traffic_table, "equations": lambda study: equation_table(study.predictions),
}  # fmt: skip


def study_of(name: str, folder: Path) -> Study:
    path = folder / f"{name}.sqlite"
    if name == "notebooks":
        shutil.copy(ROOT / "notebooks" / "data" / "tiny.sqlite", path)
        return mlsd.open_study(path)
    with opened_record(ROOT / "studies" / "tiny-epyc-cpu.record.gz") as file, Store.open(path) as store:
        import_record(store, file)
        return read_study(store)


@pytest.fixture(scope="module", params=STUDIES)
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Study]:
    return request.param, study_of(request.param, tmp_path_factory.mktemp("golden"))


PARTS = ("results", "tables", "pair_fits", "curve_fits", "claims", "equations", "audit", "notes", "answer")


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_stored_study_says_what_it_said(study: tuple[str, Study], part: str) -> None:
    name, stored = study
    same(VALUES[part](stored), GOLDEN[name][part], part)


def same(actual: Any, wanted: Any, path: str) -> None:
    """Equal, but for the last digits of numbers, which depend on the processor."""
    if isinstance(actual, Interval):
        *numbers, n = wanted
        assert actual.n == n, path
        for number, expected in zip((actual.value, actual.low, actual.high), numbers, strict=True):
            assert number == (expected and pytest.approx(expected, rel=2e-4, abs=1e-6)), path
    elif isinstance(wanted, dict):
        assert set(actual) == set(wanted), path
        for key, value in wanted.items():
            same(actual[key], value, f"{path}.{key}")
    elif isinstance(wanted, list):
        assert len(actual) == len(wanted), path
        for i, value in enumerate(wanted):
            same(actual[i], value, f"{path}[{i}]")
    elif isinstance(wanted, float):
        assert actual == pytest.approx(wanted, rel=2e-4, abs=1e-6), path
    else:
        assert actual == wanted, path


def _results(study: Study) -> dict[str, Any]:
    return {name: [_result(one) for one in getattr(study, name)] for name in ("results", "pooled")}


def _result(result: ArmResult) -> dict[str, Any]:
    draft = result.case.drafter.draft
    return {
        "arm": [
            *(result.case.target.id, result.case.drafter.name, draft.id if draft else None, result.case.gamma),
            *(result.arm.options, result.question.suite, result.text, result.question.n_predict),
        ],
        "ratio": result.ratio,
        "blocks": result.n_blocks,
        "trials": result.n_trials,
        "valid": result.n_valid,
        "tok_s": result.tok_s,
        "plain_tok_s": result.plain_tok_s,
        "spread": result.spread,
        "acceptance": result.acceptance_rate,
        "mgl": result.mgl,
        "effect": result.effect,
    }


def _tables(study: Study) -> dict[str, Any]:
    return {key: _cells(make(study)) for key, make in TABLES.items()}


def _cells(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def _pair_fits(study: Study) -> list[Any]:
    return [
        {
            "pair": [p.target, p.drafter, p.draft, p.options],
            "n": p.n_trials,
            "fitted": [f.model for f in p.fits],
            "chosen": p.chosen,
            "predicted": _predicted(p.chosen, p.held_out_gamma),
        }
        for p in study.pair_fits
    ]


def _curve_fits(study: Study) -> list[Any]:
    return [
        {
            "target": c.target,
            "fitted": [f.model for f in c.fits],
            "chosen": c.chosen,
            "predicted": _predicted(c.chosen, c.held_out),
            "gb_s": c.bandwidth_gb_s,
        }
        for c in study.curve_fits
    ]


def _predicted(chosen: str | None, errors: Sequence[HeldOut]) -> list[float]:
    """What the chosen model says of what it was not fitted to; estimates of a flat profile depend on the processor."""
    return sorted({round(ms, 9) for e in errors if e.model == chosen for ms in e.predicted})


def _claims(study: Study) -> list[Any]:
    return [
        {
            "id": v.claim.id,
            "decision": v.decision,
            "effect": v.effect,
            "sentence": v.sentence,
            "trials": len(v.trials),
            "printed": v.published_audit,
        }
        for v in study.verdicts
    ]


def _or_missing(read: Callable[[Study], Any]) -> Callable[[Study], Any]:
    def read_or_reason(study: Study) -> Any:
        value, why = attempt(lambda: read(study))
        return {"missing": why} if value is None else value

    return read_or_reason


VALUES: dict[str, Callable[[Study], Any]] = {
    "results": _results,
    "tables": _or_missing(_tables),
    "pair_fits": _or_missing(_pair_fits),
    "curve_fits": _or_missing(_curve_fits),
    "claims": _or_missing(_claims),
    "audit": _or_missing(lambda study: study.audit.counts()),
    "equations": lambda study: json.loads(study.equations.to_json(orient="records", double_precision=12)),
    "notes": lambda study: [note.replace(study.source, "DATABASE") for note in study.notes],
    "answer": lambda study: study.answer.splitlines(),
}


def _plain(value: Any) -> Any:
    """An interval as a list, as the file has it."""
    return [value.value, value.low, value.high, value.n] if isinstance(value, Interval) else value


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        values = {name: {part: VALUES[part](found) for part in PARTS} for name in STUDIES
                  for found in [study_of(name, Path(where))]}  # fmt: skip
    FILE.write_bytes(gzip.compress(json.dumps(values, default=_plain, ensure_ascii=False).encode(), mtime=0))
