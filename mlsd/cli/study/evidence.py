"""Reading the evidence of a study database, for the commands that judge it."""

from __future__ import annotations

from pathlib import Path

from mlsd.analysis.results.distances import perplexity_ratios
from mlsd.analysis.results.pairs import Evidence, evidence
from mlsd.cli.output import note
from mlsd.measure.store.study import Store


def read_evidence(db: Path) -> Evidence:
    """The pairs of a study; says on standard error what was left out. Raises StoreError or AnalysisError."""
    with Store.open(db, create=False, read_only=True) as store:
        table = store.summary()
        found = evidence(table.columns, table.rows, store.models(), perplexity_ratios(store), store.cases())
    for count, what in (
        (found.n_invalid, "invalid trials"),
        (found.n_other_settings, "trials with another file, sampling or engine setting than most of their target"),
        (found.n_unpaired, "SD trials without an AR trial in their block"),
    ):
        if count:
            note(f"Left out: {count} {what}.")
    return found
