"""Profiling passes of real models: what is profiled, how it is checked, and where it is stored."""

from pathlib import Path

import msgspec
import pytest

from mlsd.drafters import drafting_key, resolve_spec
from mlsd.errors import ModelFileError
from mlsd.gguf_tools.source import Source
from mlsd.measure.messages import BreakdownJob
from mlsd.measure.parent.calibration import Breakdown, profile_and_store
from mlsd.measure.process import run_info
from mlsd.measure.worker.breakdown import break_down
from mlsd.planning.job import ModelFile
from mlsd.planning.prompts import load_prompt
from mlsd.records import DrafterSpec, EngineOptions
from mlsd.store.rows import PassShares
from mlsd.store.store import Store
from tests.gguf_tools.random_heads import write_random_dflash
from tests.measure.worker.test_calibrate import model_file

SKIP = resolve_spec(DrafterSpec(name="layer-skip", options={"exit": 3}))


def job(target: Path, **changes: object) -> BreakdownJob:
    made = BreakdownJob(
        target=model_file(target),
        engine=EngineOptions(n_threads=1),
        text=load_prompt("length-256").text,
        rows=(1, 5),
        depth=24,
        repeats=2,
    )
    return msgspec.structs.replace(made, **changes)


def key(path: Path) -> str:
    return model_file(path).ref.key


@pytest.mark.parametrize("name", ["llama", "qwen35", "qwen35moe", "falcon-h1"])
def test_every_width_of_a_target_is_profiled_beside_plain_passes(tiny: Path, name: str) -> None:
    found = break_down(job(tiny / f"{name}.gguf"))
    assert [(s.model_key, s.drafting_key, s.rows, s.depth) for s in found] == [
        (key(tiny / f"{name}.gguf"), None, rows, 24) for rows in (1, 5)
    ]
    for shares in found:
        assert shares.n_passes == 4
        assert 0 < sum(shares.parts_ns.values()) <= shares.profiled_ns
        assert sum(share for share in shares.shares.values() if share) == pytest.approx(1)
        assert (shares.shares["recurrent"] is None) == (name == "llama")
        assert (shares.shares["experts"] is None) == (name != "qwen35moe")
        assert shares.headless_ns is not None and shares.headless_ns > 0


def test_a_draft_gives_a_step_under_its_own_key_or_that_of_the_target_it_is_cut_of(tiny: Path, tmp_path: Path) -> None:
    target, draft, head = tiny / "llama.gguf", tiny / "llama-noise01.gguf", tmp_path / "dflash.gguf"
    write_random_dflash(head, Source(target), (1, 5))
    dflash = DrafterSpec(name="dflash", draft=model_file(head).ref)
    for changes, steps in (
        ({"draft": model_file(draft)}, [(key(draft), None, 1)]),
        ({"drafter": SKIP}, [(key(target), drafting_key(SKIP), 1)]),
        ({"draft": model_file(head), "drafter": dflash}, []),  # a head is left out
        ({"drafter": DrafterSpec(name="pld")}, []),  # no network
    ):
        plain, *found = break_down(job(target, rows=(1,), **changes))
        assert plain.rows == 1 and [(step.model_key, step.drafting_key, step.rows) for step in found] == steps


def test_shares_lie_in_the_store_in_a_run_of_their_own(tiny: Path, tmp_path: Path) -> None:
    work = job(tiny / "llama.gguf", rows=(2,))
    backend = run_info(work.engine)
    shares = profile_and_store(work, tmp_path / "s.sqlite", (), backend)
    with Store.open(tmp_path / "s.sqlite") as store:
        (run,) = store.runs()
        assert list(store.figures(PassShares)) == [(run.id, one) for one in shares]
    assert (run.status, run.plan["command"]) == ("finished", "breakdown")
    assert str(tiny) not in msgspec.json.encode(run.plan).decode()
    broken = msgspec.structs.replace(work, target=ModelFile(ref=work.target.ref, path=str(tiny / "none.gguf")))
    with pytest.raises(ModelFileError):  # the worker's own error comes through
        profile_and_store(broken, tmp_path / "s.sqlite", (), backend)
    with Store.open(tmp_path / "s.sqlite") as store:
        assert [run.status for run in store.runs()] == ["finished", "interrupted"]


def made(**changes: object) -> PassShares:
    spans = {"plain_ns": 1_000, "profiled_ns": 1_500, "headless_ns": 800}
    parts = {"attention": 300, "ffn": 450, "head": 250}
    return PassShares(model_key="m", rows=1, depth=8, n_passes=4, parts_ns=parts, **{**spans, **changes})  # type: ignore[arg-type]


def test_shares_and_checks_are_what_their_formulas_say() -> None:
    shares = made()
    assert shares.shares["attention"] == 0.3
    assert shares.shares["recurrent"] is None  # not 0: the network has none
    assert (shares.inflation, shares.agreement) == (1.5, 1.0)
    assert shares.head_by_difference == pytest.approx(0.2)
    assert not shares.in_doubt


@pytest.mark.parametrize("changes", [{"profiled_ns": 2_100}, {"plain_ns": 1_300}, {"plain_ns": 790}])
def test_shares_are_in_doubt_where_looking_changed_the_pass(tiny: Path, changes: dict[str, int]) -> None:
    assert made(**changes).in_doubt
    found = {"job": job(tiny / "llama.gguf"), "database": "", "case": None, "trials": ()}
    metal, cpu, sure = (
        Breakdown(**found, shares=(made(**own),), backend=backend).why_in_doubt  # type: ignore[arg-type]
        for own, backend in ((changes, "Metal"), (changes, "CPU"), ({}, "Metal"))
    )
    assert "waits for the GPU" in (metal or "") and "other programs" in (cpu or "") and sure is None
