import pytest

from mlsd.audits import published_tables as published
from mlsd.audits.published_tables import PublishedTable
from mlsd.audits.rows import AuditRow
from mlsd.errors import TableError


def test_ten_public_tables_and_more_ship_with_address_date_and_verdict() -> None:
    assert len(published.names()) >= 10
    for name in published.names():
        study = published.load(name)
        assert study.name == name
        assert study.address.startswith("https://"), name
        assert study.date, name
        assert study.verdict.strip() in published.context(study).notes
        assert all(table.source for table in study.tables)


def test_an_unknown_study_or_table_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(TableError, match="small-models"):
        published.load("nope")
    with pytest.raises(TableError, match="table 5"):
        published.load("study").table("table 99")


def test_small_model_tables_hold_every_cell_of_the_study() -> None:
    context = published.context(published.load("small-models"))
    of_table_1 = [row for row in context.rows if row.table == "table 1"]
    four = [row for row in context.rows if row.table == "table 4"]
    assert len(of_table_1) == 7 * 4 - 1  # the smallest family has no draft model
    assert len(four) == 6 * len(of_table_1)
    assert {row.drafter for row in four} == {row.drafter for row in of_table_1}
    assert all(row.speedup and row.mgl for row in of_table_1 + four)


def test_printed_means_over_tasks_agree_with_the_means_of_the_task_table() -> None:
    context = published.context(published.load("small-models"))
    for row in (row for row in context.rows if row.table == "table 1"):
        tasks = [r for r in context.rows if r.table == "table 4" and (r.target, r.drafter) == (row.target, row.drafter)]
        assert row.mgl is not None
        mean = sum(task.mgl.value for task in tasks if task.mgl) / len(tasks)
        assert mean == pytest.approx(row.mgl.value, rel=0.12)  # pooled over rounds, so tasks weigh unequally


def rows_of(columns: str, *rows: str) -> list[AuditRow]:
    cells = tuple(tuple(row.split(",")) for row in rows)
    return published.table_rows(
        PublishedTable(name="t", title="", source="", columns=tuple(columns.split(",")), rows=cells)
    )


def test_a_table_keeps_printed_digits_and_standard_deviations() -> None:
    first, second = rows_of("target,tok_s", "a,70.0 ± 0.7", "b,N/A")
    assert first.tok_s is not None and (first.tok_s.low, first.tok_s.high) == (69.95, 70.05)
    assert first.relative_sd == pytest.approx(0.01)
    assert second.tok_s is None


def test_a_column_of_baselines_gives_each_row_its_own() -> None:
    plain, drafted = rows_of("target,drafter,baseline_tok_s,tok_s,gamma,acceptance", "a,mtp,20,30,2,0.5-0.9")
    assert not plain.speculative and plain.tok_s is not None and plain.tok_s.value == 20
    assert drafted.acceptance is not None and drafted.acceptance.high == pytest.approx(0.95)


@pytest.mark.parametrize("cells", ["a", "a,fast"])
def test_a_broken_table_names_its_row(cells: str) -> None:
    with pytest.raises(TableError, match="t: a row"):
        rows_of("target,tok_s", cells)


def test_a_draft_token_is_timed_by_its_model_and_scaled_by_its_bytes() -> None:
    context = published.context(published.load("study"))
    assert context.draft_token_ms["draft_2b"] == pytest.approx(1e3 / 110.45)
    assert context.draft_token_ms["draft_0.8b"] == pytest.approx(1e3 / 138.05 * 17 / 32, rel=1e-6)
