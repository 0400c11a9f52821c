"""What a plan counts for an arm is what a worker opens for it, context by context, for every method there is."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mlsd.clock import MonotonicClock
from mlsd.drafters import second_file
from mlsd.drafters.lookup.suffix_store import SEPARATOR, write_store
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.heads import RowContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.vocabulary import vocabulary_sha256
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.measure.parent import memory
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms, Strategies
from mlsd.methods import METHODS
from mlsd.models.library import Library
from mlsd.planning.plan import plan_bench
from mlsd.planning.question import parse_drafter
from mlsd.planning.request import BenchRequest, bench_request
from mlsd.records import ModelRef
from tests.gguf_tools.adapters import write_adapter
from tests.gguf_tools.random_heads import write_random_dflash, write_random_eagle3
from tests.measure.examples import quick_bench

# Method, as it is asked for, and the targets it is tried on; a hybrid keeps snapshots, and its draft a ladder.
ASKED = {
    "draft-model": ("llama", "qwen35"),
    "draft-model:p_min=0.5": ("qwen35",),
    "draft-tree:top_k=3,depth=2": ("llama",),
    "eagle3": ("llama",),
    "eagle3-tree:top_k=3": ("llama",),
    "dflash": ("llama",),
    "mtp": ("qwen35-mtp",),
    "kangaroo:adapter={adapter},exit=2": ("llama",),
    "layer-skip:skip=2,mode=own": ("llama", "qwen35"),
    "layer-skip:skip=2,mode=sync": ("llama", "qwen35"),
    "expert-skip:mode=own": ("qwen35moe",),
    "expert-skip:mode=sync,skip=2": ("qwen35moe",),
    "lookahead:window=4,ngram=3,guesses=3": ("llama",),
    "ngram-cache": ("qwen35",),
    "oracle": ("llama",),
    "pld": ("qwen35",),
    "random": ("llama",),
    "rest:store={store}": ("llama", "qwen35"),
}
Opened = Counter[tuple[str, Path, ContextOptions]]


def test_every_method_is_asked() -> None:
    assert {asked.partition(":")[0] for asked in ASKED} == set(METHODS)


def counted(request: BenchRequest) -> Opened:
    """What the memory plan counts: whose context, over which file, opened how."""
    plan = plan_bench(request)
    models = memory.size_models(plan.models(), Library(), plan.models())
    (load,) = plan.loads
    contexts, _ = memory._contexts(load, models)
    found: Opened = Counter()
    arms = (sets[0] for name, sets in contexts if name != memory.JUDGING)
    for of, options, _ in (context for own in arms for context in own):
        path, is_head = Path(str(of.path)), of.method is not None and options.kind != "plain"
        if of.method is not None and not is_head:
            path = second_file(of.method, path) or path
        found["head" if is_head else "context", path, _plain(options)] += 1
    return found


def opened(request: BenchRequest, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """What a worker opens for the same arms, once strategies of rollback are settled as the plan assumes."""
    found: Opened = Counter()
    make_context, make_head = LlamaContext.__init__, RowContext.__init__

    def context(self: LlamaContext, model: LlamaModel, options: ContextOptions, adjust: Any = None) -> None:
        if adjust is None:  # else it is a head's
            found["context", model.path, _plain(options)] += 1
        make_context(self, model, options, adjust)

    def head(self: RowContext, model: LlamaModel, target: LlamaContext, **asked: Any) -> None:
        found["head", target.model.path, _plain(target.options)] += 1
        make_head(self, model, target, **asked)

    def strategy(self: Strategies, path: Path, wanted: str, role: str, gamma: int) -> str:
        recurrent = Source(path).architecture != "llama"
        return ("snapshots" if role == "target" else "ladder") if recurrent else "trim"

    monkeypatch.setattr(Strategies, "choose", strategy)
    monkeypatch.setattr(Strategies, "check_tree", lambda *asked: None)
    monkeypatch.setattr(Arms, "_samples_on_device", True)
    (load,) = plan_bench(request).loads
    with Arms(load, MonotonicClock(), ProbeCache(cache)) as arms:
        monkeypatch.setattr(LlamaContext, "__init__", context)
        monkeypatch.setattr(RowContext, "__init__", head)
        for case in load.cases.values():
            arms.check(case)
        monkeypatch.undo()
    return found


def _plain(options: ContextOptions) -> ContextOptions:
    """A plan counts a context that keeps rows or has taps as one that has not."""
    return msgspec.structs.replace(options, kind="plain")


def prepare(target: Path, drafts: Sequence[Path], *drafters: str) -> BenchRequest:
    settings = {"gammas": (2, 5), "prompts": ("length-64",), "n_predict": 32, "repeats": 1}
    return quick_bench(target, *drafts, drafters=drafters, **settings)


@pytest.mark.parametrize(("asked", "name"), [(asked, name) for asked, names in ASKED.items() for name in names])
def test_contexts_counted_are_contexts_opened(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, name: str
) -> None:
    target, drafts = tiny / f"{name}.gguf", []
    method = METHODS[asked.partition(":")[0]].module
    if name == "qwen35-mtp":
        target = tmp_path / "mtp.gguf"
        write_random(target, msgspec.structs.replace(TINY["qwen35"], n_mtp_blocks=1), seed=4)
    elif asked.startswith(("eagle3", "dflash")):
        drafts = [tmp_path / "head.gguf"]
        write = write_random_dflash if method == "heads.dflash" else write_random_eagle3
        write(drafts[0], Source(target), (1, 3, 5))
    elif asked.startswith(("draft", "text")):
        drafts = [tiny / f"{name}-noise01.gguf"]
    elif "{adapter}" in asked:
        asked = asked.format(adapter=write_adapter(tmp_path / "adapter", TINY["llama"], seed=1))
    elif "{store}" in asked:
        asked = asked.format(store=a_store(tmp_path / "a.rest", target))
    request = prepare(target, drafts, asked)
    found = counted(request)
    assert found == opened(request, tmp_path / "cache", monkeypatch)
    assert found.total() >= 2


def test_two_drafts_and_a_third_method_are_counted_as_they_are_opened(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = [tiny / "qwen35-noise01.gguf", tiny / "qwen35-noise003.gguf"]
    request = prepare(tiny / "qwen35.gguf", drafts, "draft-model", "pld", "layer-skip:skip=2,mode=own")
    found = counted(request)
    assert found == opened(request, tmp_path, monkeypatch)
    assert found.total() == 1 + 2 * 2 * 2 + 2 + 2 * 2  # plain; drafts, lookup, and a cut draft at two gammas


def a_store(path: Path, target: Path) -> Path:
    with LlamaModel(target) as model:
        ids = np.array([*range(1, 200), SEPARATOR], dtype=np.int32)
        sha256, n_vocab = vocabulary_sha256(model), model.vocabulary.n_tokens
    write_store(path, ids, n_vocab=n_vocab, vocabulary_sha256=sha256, model=ModelRef(id=target.stem))
    return path


def test_a_strategy_that_is_asked_for_is_the_one_that_is_counted(tiny: Path) -> None:
    draft = parse_drafter("pld")
    request = bench_request(target=str(tiny / "qwen35.gguf"), drafters=(draft,), gammas=(4,), rollback="checkpoint")
    assert not any(options.n_snapshots for _, _, options in counted(request))
