"""A lab's coordinator loses nothing and doubles nothing, whatever its machines do."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mlsd.errors import InputError, LabError, ModelFileError
from mlsd.lab.cluster import _decoded
from mlsd.lab.coordinator import MOST_DEATHS, LabOutcome, run_lab
from mlsd.lab.machine import Card, Ended
from mlsd.lab.suites import check_same_files
from mlsd.measure.messages import BlockMeasured
from mlsd.measure.parent.blocks import Experiment, RunSettings, Watcher
from mlsd.records import Status, Trial
from mlsd.store.rows import environment_key
from mlsd.store.store import Store
from tests.lab.fake import ORIGIN, FakeLab, Said, Storm, card, measured, plan
from tests.measure.examples import MODEL

Trials = Counter[tuple[str, int, int, int, tuple[int, ...]]]


def run(lab: FakeLab, wanted: Experiment, database: Path, watcher: Watcher | None = None) -> LabOutcome:
    with Store.open(database) as store:
        return run_lab(wanted, ORIGIN, lab, store, RunSettings(), watcher, patience_s=60.0)


def stored(database: Path, host: str = "a") -> Trials:
    key = environment_key(card(host).environment)
    with Store.open(database) as store:
        assert store.check() == []
        trials = [s.trial for s in store.trials() if s.environment_key == key]
    return Counter((t.case_id, t.block, t.repeat, t.position, t.tokens) for t in trials)


def whole(wanted: Experiment) -> Trials:
    slots = [slot for load in wanted.loads for slot in load.slots]
    return Counter((s.case_id, s.block, s.repeat, s.position, measured(s).tokens) for s in slots)


@pytest.mark.parametrize("hosts", ["a", "ab", "aab"])
def test_every_machine_measures_the_whole_plan_and_loads_each_model_once(tmp_path: Path, hosts: str) -> None:
    wanted = plan()
    lab = FakeLab({f"m{i}": card(host) for i, host in enumerate(hosts)})
    outcome = run(lab, wanted, tmp_path / "s.sqlite")
    kinds = set(hosts)
    assert all(stored(tmp_path / "s.sqlite", host) == whole(wanted) for host in kinds)
    assert [p.outcome.n_ok for p in outcome.places] == [24] * len(kinds)
    n_all = 24 * len(kinds)
    assert lab.posted == f"{n_all} trials measured, 0 left, on {len(kinds)} kinds of machine, ended"
    assert len(lab.submitted) == len(wanted.loads) * len(kinds), "a model is loaded once"


@pytest.mark.parametrize("seed", range(15))
def test_nothing_is_lost_and_nothing_doubled_in_a_storm(tmp_path: Path, seed: int) -> None:
    wanted = plan(n_loads=3, n_blocks=5)
    cards = {"m1": card(), "m2": card(), "m3": card("b")}
    storm = Storm(seed, cards)
    run(FakeLab(cards, storm), wanted, tmp_path / "s.sqlite")
    for host in ("a", "b"):
        found = stored(tmp_path / "s.sqlite", host)
        assert {key[:4] for key in found} == {key[:4] for key in whole(wanted)}
        assert max(found.values()) == 1
    assert storm.n_deaths


def test_a_part_in_which_machines_die_again_and_again_loses_one_block_and_goes_on(tmp_path: Path) -> None:
    wanted = plan(n_loads=1)
    poison = wanted.loads[0].blocks[1]

    def dies(lab: FakeLab) -> None:
        lab.cards.setdefault("m1", card())
        for address, job, n in list(lab.jobs.values()):
            if n < len(job.blocks) and job.blocks[n] == poison:
                lab.cards.pop(address, None)

    lab = FakeLab({"m1": card()}, dies)
    outcome = run(lab, wanted, tmp_path / "s.sqlite").places[0].outcome
    assert (outcome.n_ok, outcome.n_failed, outcome.n_left) == (9, 3, 0)
    with Store.open(tmp_path / "s.sqlite") as store:
        failed = [s.trial for s in store.trials() if s.trial.status == "failed"]
    assert [t.case_id for t in failed] == [slot.case_id for slot in poison.slots]
    assert f"lost {MOST_DEATHS} times" in (failed[0].reason or "")


def test_a_machine_whose_card_cannot_be_is_no_machine() -> None:
    own = card()
    assert _decoded(msgspec.json.encode(own), Card) == own
    for broken in (
        msgspec.structs.replace(own, environment=msgspec.structs.replace(own.environment, gpu_cores=-1)),
        msgspec.structs.replace(own, models=(msgspec.structs.replace(MODEL, n_layers=-3),)),
    ):
        assert _decoded(msgspec.json.encode(broken), Card) is None


def test_a_machine_that_comes_late_measures_the_plan_too(tmp_path: Path) -> None:
    wanted = plan(n_loads=4)

    def later(lab: FakeLab) -> None:
        if len(lab.submitted) == 2:
            lab.cards["late"] = card("b")

    run(FakeLab({"m1": card()}, later), wanted, tmp_path / "s.sqlite")
    assert stored(tmp_path / "s.sqlite") == stored(tmp_path / "s.sqlite", "b") == whole(wanted)


def test_a_run_goes_on_where_the_last_one_stopped_and_frees_its_machines(tmp_path: Path) -> None:
    class Impatient(Watcher):
        n = 0

        def trial(self, slot: object, trial: Trial) -> None:
            self.n += 1
            if self.n == 7:
                raise KeyboardInterrupt

    wanted = plan()
    lab = FakeLab({"m1": card(), "m2": card()})
    first = run(lab, wanted, tmp_path / "s.sqlite", Impatient()).places[0].outcome
    assert (first.interrupted, first.n_ok) == (True, 9), "the seventh trial is of the third block, stored whole"
    assert len(lab.cancelled) == 1
    second = run(FakeLab({"m1": card()}), wanted, tmp_path / "s.sqlite").places[0].outcome
    assert (second.n_ok, second.n_skipped) == (15, 9)
    assert stored(tmp_path / "s.sqlite") == whole(wanted)
    with Store.open(tmp_path / "s.sqlite") as store:
        assert [r.status for r in store.runs()] == ["interrupted", "finished"]


@pytest.mark.parametrize("n_machines", [1, 2])
def test_a_machine_that_is_unfit_steps_aside_and_costs_no_trial(tmp_path: Path, n_machines: int) -> None:
    def locked(ticket: str, what: BlockMeasured | Ended) -> Iterator[Said]:
        busy = lab.jobs[ticket][0] == "m0"
        yield ticket, Ended(error="another run measures here", unfit=True) if busy else what

    lab = FakeLab({f"m{i}": card() for i in range(n_machines)}, alter=locked)
    outcome = run(lab, plan(), tmp_path / "s.sqlite")
    assert ["another run measures here" in refused for refused in outcome.refused] == [True]
    assert [a for a, _ in lab.submitted].count("m0") == 1
    found = outcome.places[0].outcome
    assert (found.n_ok, found.n_failed, found.n_left) == ((24, 0, 0) if n_machines == 2 else (0, 0, 24))


WANTED = plan(n_loads=1)
FORGED = ({"decode_ns": -5}, {"tokens": (-1,) * 8}, {"decode_ns": 1 << 70})


def full(ticket: str, what: BlockMeasured | Ended) -> Iterator[Said]:
    """A part that cannot be measured is failed trials with the machine's reason."""
    yield ticket, Ended(error="its disk is full")


def confused(ticket: str, what: BlockMeasured | Ended) -> Iterator[Said]:
    """A block with a trial that is not of its slot is not stored."""
    if isinstance(what, BlockMeasured) and what.trials[0].block == 0:
        what = msgspec.structs.replace(what, trials=(measured(WANTED.loads[0].slots[1]), *what.trials[1:]))
    yield ticket, what


def forged(ticket: str, what: BlockMeasured | Ended) -> Iterator[Said]:
    """A trial that cannot be is a failed one, and every other one can be read."""
    if isinstance(what, BlockMeasured) and what.trials[0].block == 1:
        altered = (msgspec.structs.replace(t, **change) for t, change in zip(what.trials, FORGED, strict=True))
        what = msgspec.structs.replace(what, trials=tuple(altered))
    yield ticket, what


def astray(ticket: str, what: BlockMeasured | Ended) -> Iterator[Said]:
    """A block that a part does not have is not stored, and the run goes on."""
    if isinstance(what, BlockMeasured):
        yield ticket, msgspec.structs.replace(what, trials=what.trials[:2])
        yield ticket, msgspec.structs.replace(what, trials=())
        yield "another", what
    yield ticket, what


@pytest.mark.parametrize(
    ("alter", "failed", "reason"),
    [(full, {0, 1, 2, 3}, "its disk is full"), (confused, {0}, "lost"), (forged, {1}, "cannot be"), (astray, {}, "")],
)
def test_of_what_a_machine_says_only_trials_that_can_be_of_their_slots_count(
    tmp_path: Path, alter: Callable[[str, BlockMeasured | Ended], Iterator[Said]], failed: set[int], reason: str
) -> None:
    run(FakeLab({"m1": card()}, alter=alter), WANTED, tmp_path / "s.sqlite")
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.check() == []
        trials = [s.trial for s in store.trials()]
    of_failed = [t for t in trials if t.status is Status.FAILED]
    assert {t.block for t in of_failed} == set(failed) and len(of_failed) == 3 * len(failed) and len(trials) == 12
    assert all(reason in (t.reason or "") for t in of_failed)
    assert {t.block for t in trials if t.valid} == {0, 1, 2, 3} - set(failed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mlsd_version": "2"}, "mlsd 2 instead of 1"),
        ({"llama_cpp_build": "b2"}, "llama.cpp b2 instead of b1"),
        ({"suites_sha256": "t"}, "suites and prompts t instead of s"),
    ],
)
def test_another_version_is_refused_with_what_differs_and_the_others_go_on(
    tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    other = card("b", origin=msgspec.structs.replace(ORIGIN, **changes))
    with pytest.raises(LabError, match=words):
        run(FakeLab({"m2": other}), plan(), tmp_path / "none.sqlite")
    with Store.open(tmp_path / "none.sqlite") as store:
        assert store.runs() == []
    outcome = run(FakeLab({"m1": card(), "m2": other}), plan(), tmp_path / "s.sqlite")
    assert [words in refused for refused in outcome.refused] == [True]
    assert len(outcome.places) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"models": ()},
        {"models": (), "may_pull": True, "free_disk_bytes": 10},
        {"models": (MODEL,)},
        {"environment": msgspec.structs.replace(card().environment, memory_bytes=10)},  # smaller than the model
    ],
)
def test_a_model_that_no_machine_has_or_has_room_for_is_named_before_anything_runs(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(ModelFileError, match=r"No machine of the lab has .*tiny"):
        run(FakeLab({"m1": card("a", **changes)}), plan(), tmp_path / "s.sqlite")
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.runs() == []


def test_parts_go_to_machines_that_have_the_models_or_may_bring_them(tmp_path: Path) -> None:
    cards = {"bare": card("a", models=()), "full": card("a")}
    lab = FakeLab(cards)
    run(lab, plan(), tmp_path / "s.sqlite")
    assert {address for address, _ in lab.submitted} == {"full"}
    lab = FakeLab({"bare": card("a", models=(), may_pull=True)})
    run(lab, plan(), tmp_path / "t.sqlite")
    assert stored(tmp_path / "t.sqlite") == whole(plan())


def test_different_files_of_one_model_are_refused_where_a_plan_uses_it() -> None:
    other = msgspec.structs.replace(MODEL, ref=msgspec.structs.replace(MODEL.ref, sha256="f" * 64))
    cards = [card("a", models=(MODEL,)), card("b", models=(other,))]
    check_same_files(cards, {"something else"})
    with pytest.raises(InputError, match=f"different files of {MODEL.ref.id}"):
        check_same_files(cards, {MODEL.ref.id})


def test_a_lab_without_a_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no machine has joined"):
        run(FakeLab({}), plan(), tmp_path / "s.sqlite")
