"""A lab's coordinator loses nothing and doubles nothing, whatever its machines do."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from mlsd.errors import InputError, LabError, ModelFileError
from mlsd.lab.cluster import _decoded
from mlsd.lab.coordinator import MOST_DEATHS, Ended, LabOutcome, LabPlan, MeasuredPart, run_lab
from mlsd.lab.machine import Card
from mlsd.lab.suites import check_same_files
from mlsd.measure.parent.blocks import RunSettings, Watcher
from mlsd.records import Status, Trial
from mlsd.store.rows import environment_key
from mlsd.store.store import Store
from tests.lab.fake import ORIGIN, FakeLab, Storm, card, measured, plan
from tests.measure.examples import MODEL

Trials = Counter[tuple[str, int, int, int, tuple[int, ...]]]


def run(lab: FakeLab, wanted: LabPlan, database: Path, watcher: Watcher | None = None) -> LabOutcome:
    with Store.open(database) as store:
        return run_lab(wanted, lab, store, RunSettings(), watcher)


def stored(database: Path, host: str = "a") -> Trials:
    key = environment_key(card(host).environment)
    with Store.open(database) as store:
        assert store.check() == []
        trials = [s.trial for s in store.trials() if s.environment_key == key]
    return Counter((t.case_id, t.block, t.repeat, t.position, t.tokens) for t in trials)


def whole(wanted: LabPlan) -> Trials:
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
    wanted = plan(n_loads=3, n_blocks=5, patience_s=60.0)
    cards = {"m1": card(), "m2": card(), "m3": card("b")}
    storm = Storm(seed, cards)
    run(FakeLab(cards, storm), wanted, tmp_path / "s.sqlite")
    for host in ("a", "b"):
        found = stored(tmp_path / "s.sqlite", host)
        assert {key[:4] for key in found} == {key[:4] for key in whole(wanted)}
        assert max(found.values()) == 1
    assert storm.n_deaths


def test_a_part_in_which_machines_die_again_and_again_loses_one_block_and_goes_on(tmp_path: Path) -> None:
    wanted = plan(n_loads=1, patience_s=60.0)
    poison = wanted.loads[0].blocks[1]

    def dies(lab: FakeLab) -> None:
        lab.cards.setdefault("m1", card())
        for address, job, n in list(lab.jobs.values()):
            if n < len(job.blocks) and job.blocks[n] == poison:
                lab.lose(address)

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


def test_a_part_that_cannot_be_measured_is_failed_trials_with_the_machines_reason(tmp_path: Path) -> None:
    class Refusing(FakeLab):
        def receive(self, timeout_s: float):  # type: ignore[no-untyped-def]
            for ticket in list(self.jobs):
                del self.jobs[ticket]
                yield Ended(ticket=ticket, error="its disk is full")

    outcome = run(Refusing({"m1": card()}), plan(), tmp_path / "s.sqlite").places[0].outcome
    assert (outcome.n_ok, outcome.n_failed, outcome.n_left) == (0, 24, 0)
    with Store.open(tmp_path / "s.sqlite") as store:
        assert {s.trial.reason for s in store.trials()} == {"its disk is full"}


@pytest.mark.parametrize("n_machines", [1, 2])
def test_a_machine_that_is_unfit_steps_aside_and_costs_no_trial(tmp_path: Path, n_machines: int) -> None:
    class Locked(FakeLab):
        def receive(self, timeout_s: float):  # type: ignore[no-untyped-def]
            for ticket in [t for t, (address, _, _) in self.jobs.items() if address == "m0"]:
                del self.jobs[ticket]
                yield Ended(ticket=ticket, error="another run measures here", unfit=True)
            yield from super().receive(timeout_s)

    lab = Locked({f"m{i}": card() for i in range(n_machines)})
    outcome = run(lab, plan(patience_s=60.0), tmp_path / "s.sqlite")
    assert ["another run measures here" in refused for refused in outcome.refused] == [True]
    assert [a for a, _ in lab.submitted].count("m0") == 1
    found = outcome.places[0].outcome
    assert (found.n_ok, found.n_failed, found.n_left) == ((24, 0, 0) if n_machines == 2 else (0, 0, 24))


def test_a_block_with_a_trial_that_is_not_of_its_slot_is_not_stored(tmp_path: Path) -> None:
    wanted = plan(n_loads=1, patience_s=60.0)
    second = wanted.loads[0].slots[1]

    class Confused(FakeLab):
        def receive(self, timeout_s: float):  # type: ignore[no-untyped-def]
            for sent in super().receive(timeout_s):
                swapped = isinstance(sent, MeasuredPart) and sent.trials[0].block == 0
                wrong = (measured(second), *sent.trials[1:]) if swapped else ()
                yield msgspec.structs.replace(sent, trials=wrong) if swapped else sent

    run(Confused({"m1": card()}), wanted, tmp_path / "s.sqlite")
    with Store.open(tmp_path / "s.sqlite") as store:
        assert {s.trial.block for s in store.trials() if s.trial.valid} == {1, 2, 3}
        assert {s.trial.status for s in store.trials() if s.trial.block == 0} == {Status.FAILED}


def test_a_forged_trial_is_a_failed_one_with_the_reason_and_every_other_one_can_be_read(tmp_path: Path) -> None:
    wanted = plan(n_loads=1, patience_s=60.0)
    forged = ({"decode_ns": -5}, {"tokens": (-1,) * 8}, {"decode_ns": 1 << 70}, {"decode_ns": 17})

    class Forger(FakeLab):
        def receive(self, timeout_s: float):  # type: ignore[no-untyped-def]
            for sent in super().receive(timeout_s):
                if isinstance(sent, MeasuredPart) and sent.trials[0].block == 1:
                    own = zip(sent.trials, forged, strict=False)
                    sent = msgspec.structs.replace(sent, trials=tuple(msgspec.structs.replace(t, **f) for t, f in own))
                yield sent

    run(Forger({"m1": card()}), wanted, tmp_path / "s.sqlite")
    with Store.open(tmp_path / "s.sqlite") as store:
        assert store.check() == []
        trials = [s.trial for s in store.trials()]
    assert {t.block for t in trials if t.status != "failed"} == {0, 2, 3}
    assert all("cannot be" in (t.reason or "") for t in trials if t.status == "failed")


def test_a_block_that_a_part_does_not_have_is_not_stored_and_the_run_goes_on(tmp_path: Path) -> None:
    wanted = plan(n_loads=1, patience_s=60.0)

    class Astray(FakeLab):
        def receive(self, timeout_s: float):  # type: ignore[no-untyped-def]
            for sent in super().receive(timeout_s):
                if isinstance(sent, MeasuredPart):
                    yield msgspec.structs.replace(sent, trials=sent.trials[:2])
                    yield msgspec.structs.replace(sent, trials=())
                    yield msgspec.structs.replace(sent, ticket="another")
                yield sent

    run(Astray({"m1": card()}), wanted, tmp_path / "s.sqlite")
    assert stored(tmp_path / "s.sqlite") == whole(wanted)


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
