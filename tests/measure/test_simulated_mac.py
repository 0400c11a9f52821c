"""`make study PROFILE=mac-16gb` on a Mac that becomes hot twice, sleeps, loses a worker and meets a busy hub."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from mlsd.cli import output, watch
from mlsd.cli.commands import run as command
from mlsd.measure.parent import requests
from mlsd.measure.parent.blocks import run_experiment
from mlsd.measure.parent.requests import StudyResult, run_study
from mlsd.models import hub as hubs
from mlsd.models import library
from mlsd.models.manifest import load_manifest
from mlsd.planning.options import Overrides
from mlsd.planning.request import study_request
from mlsd.records import EngineOptions, Status
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from mlsd.units import GIB
from tests.hub_server import HubServer, stand_ins_of, write_manifest
from tests.measure.examples import ENVIRONMENT
from tests.measure.simulated_mac import Mac

AIR = msgspec.structs.replace(
    ENVIRONMENT, chip="Apple M4", device="Apple M4", hardware_model="Mac16,12", memory_bytes=16 * GIB
)
OVERRIDES = Overrides(n_predict=16, engine=EngineOptions(n_threads=1))


@pytest.fixture
def hub(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with stand-ins for the models, and nothing of it on this machine yet."""
    with HubServer(stand_ins_of("mac-16gb", tiny)) as server:
        write_manifest(server, tmp_path / "manifest.toml")
        manifest = partial(load_manifest, shipped=tmp_path / "manifest.toml")
        monkeypatch.setattr(library, "load_manifest", manifest)
        there = hubs.Hub(endpoint=server.url, cache_dir=tmp_path / "hub")
        monkeypatch.setattr(library.Library, "hub", there)
        yield server


def study(mac: Mac, path: Path, said: list[tuple[float, str]], monkeypatch: pytest.MonkeyPatch) -> StudyResult:
    """The command, as far as it measures; what a person reads, and when by the Mac's clock."""
    clock = SimpleNamespace(monotonic=mac.now_s, sleep=mac.clock.sleep)
    for module in ("mlsd.cli.watch", "mlsd.cli.output", "huggingface_hub.utils._http"):
        monkeypatch.setattr(f"{module}.time", clock)
    monkeypatch.setitem(output._sign, "last_s", -math.inf)  # by that clock, too
    for module in (watch, command, output):
        monkeypatch.setattr(module, "note", lambda text: said.append((mac.now_s(), text)))
    monkeypatch.setattr(requests, "run_experiment", lambda plan, start, *rest: run_experiment(plan, mac.bench, *rest))
    monkeypatch.setattr("mlsd.measure.parent.memory.read_environment", lambda backend: AIR)
    request = study_request("ABCDF", profile="mac-16gb", overrides=OVERRIDES)
    models = None if path.exists() else command._agree(request, path, ask=False)
    with watch.TrialWatcher() as watcher:
        pull = None if models is None else partial(command._pull, models, watcher)
        return run_study(request, path, watcher=watcher, pull=pull)


@pytest.mark.heavy
def test_from_nothing_to_a_whole_study_nothing_is_lost_and_nothing_hot_counts_and_it_is_never_silent(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mac = Mac(episodes=[(7, 200.0), (70, 90.0)], dies_at=33, sleep_at=52, load_s=150.0, prompt_s=100.0)
    path, said = tmp_path / "study.sqlite", list[tuple[float, str]]()
    hub.limits = {"HEAD": [{"Retry-After": "45"}]}
    outcome = study(mac, path, said, monkeypatch).outcome
    assert (outcome.n_ok, outcome.n_failed, outcome.n_left) == (132, 0, 0)
    with Store.open(path) as store:
        rows = [row.trial for row in store.trials(rounds=False)]
        every = [row.trial for row in store.trials(TrialFilter(superseded=True), rounds=False)]
    assert sum(heat for _, _, heat in mac.measured) >= 3, "it was hot, and slept"
    assert {trial.status for trial in rows} == {Status.VALID}, "what was hot was measured again, whole, by this run"
    disturbed = [trial for trial in every if trial.status is Status.DISTURBED]
    assert disturbed and all("heat" in (trial.reason or "") for trial in disturbed)
    assert all(trial.conditions and trial.conditions.anchors for trial in rows)

    trials = [at for at, what in enumerate(mac.order) if what == "trial"]
    around = {tuple(mac.order[at - 1 : at + 2]) for at in trials if at + 1 < len(mac.order)}
    assert around - {("conditions", "trial", "conditions")} == {("conditions", "trial", "warm")}, "all start warm alike"

    words = [text for _, text in said]
    assert sum("Rate limited. Waiting 46" in text for text in words) == 1
    first_trial = next(i for i, text in enumerate(words) if text.startswith("[1/132]"))
    brought = [i for i, text in enumerate(words) if text.startswith("checking ")]
    assert brought[0] < first_trial < brought[1], "the first answer waits for one model only"
    for reason in ("Resting until it is cool", "Loading", "reading the prompt of", "is not used"):
        assert any(reason in text for text in words), reason
    at = [0.0, *(when for when, _ in said), mac.now_s()]
    assert max(later - earlier for earlier, later in itertools.pairwise(at)) <= 60

    again = study(Mac(), path, [], monkeypatch).outcome
    assert (again.n_ok, again.n_skipped) == (0, 132)
