"""What 0.1.0 said of old databases is what is said today, but where a commit changed a number on purpose.

`tiny_study_v6.sql.gz` is a study of the tiny profile with calibrations, as 0.1.0 wrote it; `golden.json` holds its
values and those of the databases of every schema version. Changed since: by workload and over all, intervals hold for
all settings together and at every look, and a setting with a trial that is not valid has none.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlsd.analysis.results.speedups import Speedup, baselines
from mlsd.analysis.study.study import Study, attempt, read_study
from mlsd.measure.store.store import Store
from mlsd.report.render.table import Table
from mlsd.report.tables import paper as paper_tables
from mlsd.stats import Interval

DATA = Path(__file__).parent / "data"
SCHEMAS = Path(__file__).parent.parent / "measure" / "databases"
GOLDEN = json.loads((DATA / "golden.json").read_text(encoding="utf-8"))
TABLES = {"4": paper_tables.table_4, "5": paper_tables.table_5, "6": paper_tables.table_6, "F": paper_tables.table_f}


def study_of(sql: str, path: Path) -> Study:
    database = sqlite3.connect(path)
    database.executescript(sql)
    database.close()
    with Store.open(path):  # migrates
        pass
    with Store.open(path, read_only=True) as store:
        return read_study(store)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Study:
    sql = gzip.decompress((DATA / "tiny_study_v6.sql.gz").read_bytes()).decode()
    return study_of(sql, tmp_path_factory.mktemp("golden") / "tiny.sqlite")


PARTS = ("speedups", "baselines", "tables", "pair_fits", "curve_fits", "claims", "audit")


@pytest.mark.parametrize("part", PARTS)
def test_a_study_of_the_tiny_profile_says_what_it_said(tiny: Study, part: str) -> None:
    same(VALUES[part](tiny), GOLDEN["tiny_study_v6"][part], part)


@pytest.mark.parametrize("version", range(1, 7))
def test_old_databases_say_what_they_said(tmp_path: Path, version: int) -> None:
    study = study_of((SCHEMAS / f"v{version}.sql").read_text(encoding="utf-8"), tmp_path / "s.sqlite")
    for part, values in GOLDEN[f"v{min(version, 2)}"].items():
        same(VALUES[part](study), values, part)


def same(found: Any, wanted: Any, place: str) -> None:
    """Equal, but for the last digits of numbers, which depend on the processor."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted), place
        for key, value in wanted.items():
            same(found[key], value, f"{place}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), place
        for i, value in enumerate(wanted):
            same(found[i], value, f"{place}[{i}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=2e-4, abs=1e-6), place
    else:
        assert found == wanted, place


def _speedups(study: Study) -> dict[str, Any]:
    return {name: [_speedup(s) for s in getattr(study, name)] for name in ("by_suite", "by_workload", "by_arm")}


def _speedup(s: Speedup) -> dict[str, Any]:
    return {
        "arm": [s.target, s.drafter, s.draft, s.gamma, s.options, s.suite, s.prompt, s.workload],
        "ratio": _interval(s.ratio),
        "blocks": s.n_blocks,
        "trials": s.n_trials,
        "valid": s.n_valid,
        "tok_s": s.decode_tok_s,
        "ar_tok_s": s.baseline_tok_s,
        "acceptance": s.acceptance_rate,
        "mgl": s.mgl,
        "effect": s.effect,
    }


def _baselines(study: Study) -> list[Any]:
    found = baselines(study.trials, ("suite",))
    return [[b.target, b.suite, b.mean_tok_s, b.sd_tok_s, b.n] for b in found]


def _tables(study: Study) -> dict[str, Any]:
    return {key: _cells(make(study)) for key, make in TABLES.items()}


def _cells(table: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def _pair_fits(study: Study) -> list[Any]:
    return [
        {
            "pair": [p.target, p.drafter, p.draft, p.options],
            "n": p.n_trials,
            "chosen": p.chosen,
            "fits": {f.model: {name: _interval(e) for name, e in f.estimates.items()} for f in p.fits},
            "aicc": {f.model: f.aicc for f in p.fits},
            "gamma_error": {e.model: e.median_error for e in p.held_out_gamma},
            "prompt_error": {e.model: e.median_error for e in p.held_out_prompt},
            "gammas": [
                [
                    *(g.gamma, _interval(g.speedup), _interval(g.mgl), _interval(g.break_even_mgl)),
                    *(g.break_even_alpha, g.draft_share, g.verify_share),
                ]
                for g in p.gammas
            ],
            "best": [p.best.gamma, p.best.low, p.best.high, p.best.share, _interval(p.best.speedup)],
        }
        for p in study.pair_fits
    ]


def _curve_fits(study: Study) -> list[Any]:
    return [
        {
            "target": c.target,
            "source": c.source,
            "chosen": c.chosen,
            "fits": {f.model: {name: _interval(e) for name, e in f.estimates.items()} for f in c.fits},
            "error": {e.model: e.median_error for e in c.held_out},
            "gb_s": c.bandwidth_gb_s,
        }
        for c in study.curve_fits
    ]


def _claims(study: Study) -> list[Any]:
    return [
        {
            "id": v.claim.id,
            "decision": v.decision,
            "effect": _interval(v.effect),
            "trials": len(v.trials),
            "printed": v.published_audit,
        }
        for v in study.claims
    ]


def _or_missing(read: Callable[[Study], Any]) -> Callable[[Study], Any]:
    def read_or_say(study: Study) -> Any:
        value, why = attempt(lambda: read(study))
        return {"missing": why} if value is None else value

    return read_or_say


VALUES: dict[str, Callable[[Study], Any]] = {
    "speedups": _speedups,
    "baselines": _or_missing(_baselines),
    "tables": _or_missing(_tables),
    "pair_fits": _or_missing(_pair_fits),
    "curve_fits": _or_missing(_curve_fits),
    "claims": _or_missing(_claims),
    "audit": _or_missing(lambda study: study.audit.counts()),
    "notes": lambda study: list(study.notes),
}


def _interval(found: Interval | None) -> list[Any] | None:
    return None if found is None else [found.value, found.low, found.high, found.n]
