"""Databases of one study become one, whatever of them comes first, twice, or halfway."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.records import Environment, Status
from mlsd.store.merge import merge
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from tests.measure.examples import ENVIRONMENT, case, failed, trial

GOOD = {"status": Status.VALID, "reason": None, "failed_native_calls": 0}
CASES = (case(0), case(4))


def machine(host: str) -> Environment:
    return msgspec.structs.replace(ENVIRONMENT, host=host * 16)


def states(folder: Path, host: str, n_blocks: int) -> list[Store]:
    """The database of a machine before its first block, and after each, as a coordinator may see it."""
    seen = []
    for n_seen in range(n_blocks + 1):
        store = Store.open(folder / f"{host}{n_seen}.sqlite")
        run_id = store.begin_run(machine(host), {}, seed=1)
        started_at = next(run.started_at for run in (seen[0] if seen else store).runs())
        store._connection.execute("UPDATE run SET started_at = ?", (started_at,))  # one run, seen several times
        store.add_cases(run_id, CASES)
        for block in range(n_seen):
            store.add(run_id, [trial(one, block=block, position=i, **GOOD) for i, one in enumerate(CASES)])
        if n_seen == n_blocks:
            store.end_run(run_id)
        seen.append(store)
    return seen


@pytest.mark.slow
@given(order=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=6))
def test_states_of_databases_merged_in_any_order_give_every_trial_once(order: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as name, ExitStack() as stack:
        of = {host: states(Path(name), host, 3) for host in "ab"}
        for store in (*of["a"], *of["b"]):
            stack.enter_context(store)
        whole = stack.enter_context(Store.open(Path(name) / "whole.sqlite"))
        n_new = sum(len(merge(whole, of[host][n]).new) for host, n in [*order, ("a", 3), ("b", 3)])
        assert n_new == len(list(whole.trials(TrialFilter(superseded=True)))) == 12
        assert whole.check() == [] and [run.status for run in whole.runs()] == ["finished"] * 2
        assert merge(whole, of["a"][3]).new == merge(whole, of["b"][1]).new == ()


def test_the_later_measurement_of_a_block_counts_unless_it_alone_failed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "ours.sqlite") as ours, Store.open(tmp_path / "theirs.sqlite") as theirs:
        for store, second in ((ours, 1), (theirs, 2)):
            run_id = store.begin_run(ENVIRONMENT, {}, seed=second)
            store.add_cases(run_id, CASES)
            at = f"2026-01-01T00:00:0{second}.000+00:00"
            store.add(run_id, [trial(CASES[0], block=0, started_at=at, **GOOD)])
            store.add(run_id, [trial(CASES[1], block=1, started_at=at, **GOOD) if second == 1 else failed(CASES[1])])
        assert [one.trial.case_id for one in merge(ours, theirs).new] == [CASES[0].id]
        assert merge(ours, theirs).new == ()
        assert all(one.trial.valid for one in ours.trials())


def test_one_machine_of_a_database_is_merged_by_its_key(tmp_path: Path) -> None:
    with Store.open(tmp_path / "all.sqlite") as every, Store.open(tmp_path / "own.sqlite") as own:
        (*_, a), (*_, b) = states(tmp_path, "a", 1), states(tmp_path, "b", 1)
        merge(every, a), merge(every, b)
        key = next(b.trials()).environment_key
        merge(own, every, key=key)
        assert {one.environment_key for one in own.trials()} == {key} and len(own.runs()) == 1
