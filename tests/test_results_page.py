"""The published records hold what they say, and the page of results is written from them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mlsd.analysis.audit.verification import verify
from tools.results_page import PAGE, STUDIES, page

RECORDS = sorted(STUDIES.glob("*.record.json.gz"))


def test_the_page_of_results_is_what_the_records_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tools.results_page"


@pytest.mark.heavy
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_every_published_record_can_be_as_it_says(path: Path) -> None:
    found = verify(path, sample=2)
    assert found.sound, found.problems
    assert len(json.loads(gzip.decompress(path.read_bytes()))["study"]["trials"]) == found.n_trials


def test_every_published_record_has_a_section() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert RECORDS
    assert all(f"({path.name.removesuffix('.record.json.gz')})" in text for path in RECORDS)
