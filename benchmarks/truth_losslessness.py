"""Can judging be fooled? Faults of llama.cpp itself, which run and judge share, beside honest runs of many widths.

Drafts are made from the target's own plain text with a share of wrong tokens, so acceptance is what each case wants.
Prompts are read as a session reads them: once for each kind of context, and runs and judge go on from copies. So whole
sessions are run as well in which some of these readings are wrong, which all arms, or the judge, then share.
Cases alternate between two halves, each reported: a limit that was set on one must hold on the other. What a half would
have set is told as well: the largest distance of an honest memory in noises, and the smallest of a broken one that only
this distance gave away.
"""

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness import Result, gemma3, smollm2
from mlsd.clock import MonotonicClock
from mlsd.engine.context import Context, ContextOptions
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.quantize import quantize
from mlsd.engine.losslessness import MEMORY_LIMIT_NOISES, Judge
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.engine.rollback_choice import Prefix, RollbackUse, check_rollback, uses
from mlsd.engine.tree import merge
from mlsd.engine.verify import Proposal, Verification
from mlsd.errors import EngineError
from mlsd.folders import asset_path
from mlsd.gguf_tools.shape import TINY_ATTENTION
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.measure.messages import BlockMeasured, Event, Turn
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.saved_prompts import SavedPrompts, reading_options
from mlsd.measure.worker.serve import measure_slots
from mlsd.planning.job import Job
from mlsd.planning.plan import plan_bench
from mlsd.planning.prompts import load_prompt
from mlsd.planning.request import bench_request
from mlsd.records import EngineOptions, Losslessness, Trial
from tests.engine.native_faults import CELL_FAULTS, READING_FAULTS, STATE_FAULTS, TREE_FAULTS, native_fault

PROMPTS = ("factual", "code", "reasoning", "chinese", "length-128")
RATES = (1.0, 0.25, 0.05)  # of the calls that a fault can spoil
READ_PROMPTS = ("code", "reasoning", "chinese")
# Readings of a prompt that go wrong: what all arms go on from, what a judge takes, both, all of a session. Of a model
# with a window only the first: its judge reads anew for each feeding, so what goes wrong there is no shared reading.
READINGS = {"first": (0,), "second": (1,), "first and second": (0, 1), "all": range(99)}
TREES = ("keep", "redecode")
WINDOWED = "gemma3-270m"  # a real model with a window, which its prompts leave
BROKEN = (
    "qwen35",
    "qwen35moe",
    "falcon-h1",
    "mamba2",
    "llama",
    "gemma3",
    "tiny-moe",
    "tiny-dense",
    "smollm2",
    WINDOWED,
)
_LARGE = ("smollm2", WINDOWED)
CAUGHT = ("diverged", "not_judged")
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 63, 96)
_MANY = 0.05  # of an output's tokens
_MOST_PROMPT_TOKENS = 200
_SHARED_TOKENS = 600  # of a prompt that another context has read, most of the text that fills one
_CHECKED_GAMMA = 4
_WINDOW_TOKENS = 560  # of the prompt of a model with a window of 512
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
        true = self._truth[self._at : self._at + k]
        kept = self._rng.random(len(true)) >= self._wrong
        return (*(t if keep else x for t, x, keep in zip(true, tokens, kept, strict=False)), *tokens[len(true) :])

    def observe(self, verification: Verification) -> None:
        """Count on."""
        self._at += len(verification.committed)


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a trial is run."""

    gamma: int
    wrong: float = 0.3  # share of wrong tokens in a draft
    seed: int = 0
    strategy: str = ""  # "": the first that the target knows
    tree: str = "off"
    device_sampling: bool = False  # a judge takes no reading of another context where the device samples


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its verdict."""

    tokens: tuple[int, ...]
    verdict: Losslessness
    differs: float  # share of its tokens that are not those of plain decoding


class Target:
    """A model, what it writes alone after each prompt, and a judge."""

    def __init__(self, name: str, model: LlamaModel, n_predict: int, n_threads: int = 1) -> None:
        self.name, self.model, self._n_predict, self.n_threads = name, model, n_predict, n_threads
        self.options = ContextOptions(n_ctx=1024, n_threads=n_threads)
        self._plain: dict[str, tuple[tuple[int, ...], Generation]] = {}
        self._honest: dict[Way, tuple[int, ...]] = {}
        self.saved, self._read_kinds = SavedPrompts(), set[ContextOptions]()
        self.judge = Judge(partial(open_context, model), self.options)
        with open_context(model, msgspec.structs.replace(self.options, n_ctx=256, n_snapshots=2)) as context:
            recurrent = ("snapshots", "checkpoint") if context.n_snapshots else ("checkpoint",)
        self.strategies = recurrent if model.is_recurrent else ("trim",)
        self._n_prompt = _WINDOW_TOKENS if name == WINDOWED else _MOST_PROMPT_TOKENS

    def plain(self, prompt: str) -> tuple[tuple[int, ...], Generation]:
        """The prompt's tokens and the plain text after it."""
        if prompt not in self._plain:
            self.close()
            self.saved, self._read_kinds = SavedPrompts(), set()
            self.judge = Judge(partial(open_context, self.model), self.options, self.saved.second_reading)
            text = self.model.tokenize(load_prompt(prompt).text)[: self._n_prompt]
            with open_context(self.model, msgspec.structs.replace(self.options, device_sampling=False)) as context:
                self._time_prefill(context, text)
                run = self._plain_run(context, text, self._n_predict)
            self._honest.clear()
            self._plain = {prompt: (text, run)}  # the judge of one prompt is dropped with it: what it keeps is large
        return self._plain[prompt]

    def _plain_run(self, context: Context, text: tuple[int, ...], n_predict: int) -> Generation:
        rollback, limits = make_rollback("trim", context), GenerationLimits(n_predict=n_predict)
        return generate(context, NoDrafter(), rollback, text, limits, _CLOCK, prefill=self.saved.target)

    def _time_prefill(self, context: Context, text: tuple[int, ...]) -> None:
        """Read a prompt anew in the first context of its kind, as arms do; a judge goes on from a second reading."""
        if reading_options(context) not in self._read_kinds:
            self._read_kinds.add(reading_options(context))
            with self.saved.anew(target=True):
                self._plain_run(context, text, 1)
            self.saved.keep(context, text)

    def read_prefix(self) -> Prefix | None:
        """A long prompt as another context shares it with the check of a rollback."""
        saved = SavedPrompts()
        text = self.model.tokenize(load_prompt("length-1024").text)[:_SHARED_TOKENS]
        with open_context(self.model, msgspec.structs.replace(self.options, device_sampling=False)) as context:
            with saved.anew(target=True):
                saved.target(context, text)
            saved.keep(context, text)
            return saved.prefix(context, text)

    def close(self) -> None:
        """Free what the judge holds."""
        self.judge.close()

    def honest(self, prompt: str, way: Way) -> tuple[int, ...]:
        """What a run without a fault writes."""
        self.plain(prompt)
        if way not in self._honest:
            self._honest[way] = self.trial(prompt, way).tokens
        return self._honest[way]

    def trial(self, prompt: str, way: Way) -> Tried:
        """Run and judge."""
        text, plain = self.plain(prompt)
        strategy, gamma = way.strategy or self.strategies[0], way.gamma
        options = msgspec.structs.replace(
            rollback_options(strategy, self.options, gamma),
            n_ctx=self.options.n_ctx + self._n_predict,
            max_outputs=gamma + 1,
            device_sampling=way.device_sampling and way.tree == "off",
        )
        if way.tree != "off":
            options = msgspec.structs.replace(
                options, tree=way.tree, n_sequences=max(2, gamma), n_ubatch=max(512, gamma + 1)
            )
        limits = GenerationLimits(n_predict=self._n_predict, gamma=gamma)
        depth = 0 if way.tree == "off" else 3
        script = Script(plain.tokens, way.wrong, self.model.vocabulary.n_tokens, depth=depth)
        with open_context(self.model, options) as context:
            rollback, rng = make_rollback(strategy, context), np.random.default_rng([way.seed, gamma])
            self._time_prefill(context, text)
            run = generate(context, script, rollback, text, limits, _CLOCK, rng=rng, prefill=self.saved.target)
            verdict = self.judge.judge(run, plain.tokens, text, context, strategy=strategy)
        differs = float(np.mean([a != b for a, b in zip(run.tokens, plain.tokens, strict=True)]))
        return Tried(tokens=run.tokens, verdict=verdict, differs=differs)


@contextmanager
def opened(name: str, path: Path, n_predict: int, n_threads: int = 1) -> Iterator[Target]:
    """A target, its model open."""
    with closing(LlamaModel(path)) as model, closing(Target(name, model, n_predict, n_threads)) as target:
        yield target


def spoilable(target: Target) -> Iterator[tuple[Way, str]]:
    """Every way to go back that the target has, with each fault that can spoil it."""
    if target.model.is_recurrent:
        ways = ((Way(gamma=1, strategy=strategy), STATE_FAULTS) for strategy in target.strategies)
        return ((way, fault) for way, faults in ways for fault in faults)
    trees = ((Way(gamma=1, tree=tree), fault) for tree in TREES for fault in TREE_FAULTS)
    return itertools.chain(((Way(gamma=1), fault) for fault in CELL_FAULTS), trees)


def broken(target: Target, gammas: Sequence[int], prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every fault of every way to go back, at every rate; what was not injected is left out."""
    for prompt in prompts:
        target.plain(prompt)
        kinds = itertools.product(spoilable(target), gammas, RATES)
        for seed, ((base, fault), gamma, rate) in enumerate(kinds):
            way = msgspec.structs.replace(base, gamma=gamma)
            expected = target.honest(prompt, way)  # before the fault, which no proof of a copy may meet
            try:
                with native_fault(fault, rate, seed) as injected:
                    tried = target.trial(prompt, way)
            except EngineError:  # llama.cpp itself refused to go on
                continue
            # An honest run of trees may differ by a tie; then it is no fault that changed its tokens.
            is_changed = tried.differs > 0 and tried.tokens != expected
            if injected.n_faults:
                yield _case(target, prompt, way, tried, fault=fault, rate=rate, changed=is_changed)


def misread(
    name: str, path: Path, prompts: Sequence[str], readings: Sequence[str] = tuple(READINGS)
) -> Iterator[dict[str, Any]]:
    """A whole session, and others in which readings of prompts go wrong, by what the first one writes.

    Checks of rollbacks and of copies were made before, without the fault. Plain decoding goes on from the same reading
    as what is drafted, so their tokens may be equal and both wrong; neither may then be valid.
    """
    request = bench_request(
        str(path), drafters=("oracle:accept=0.7",), gammas=(4,), prompts=tuple(prompts), n_predict=32, repeats=2,
        engine=EngineOptions(n_threads=1),
    )  # fmt: skip
    (job,) = plan_bench(request).loads
    cache = ProbeCache()
    with closing(LlamaModel(path)) as model:
        faults = READING_FAULTS[:2] if model.is_recurrent else READING_FAULTS  # cells that move are attention's
        with open_context(model, ContextOptions(n_ctx=256)) as context:
            readings = readings[:1] if context.window else readings
    honest_trials = session(job, cache)
    yield from (_session_case(name, job, trial) for trial in honest_trials)
    expected = {(trial.case_id, trial.repeat): trial.tokens for trial in honest_trials}
    for seed, (fault, which) in enumerate(itertools.product(faults, readings)):
        with native_fault(fault, seed=seed, readings=READINGS[which]) as injected:
            trials = session(job, cache)
        for trial in trials:
            if trial.losslessness is not None and injected.n_faults:
                tokens = expected[trial.case_id, trial.repeat]
                differs = float(np.mean([a != b for a, b in zip(trial.tokens, tokens, strict=True)]))
                fault_of = {"fault": fault, "rate": which, "differs": differs, "changed": differs > 0}
                yield {**_session_case(name, job, trial), **fault_of}


def _session_case(name: str, job: Job, trial: Trial) -> dict[str, Any]:
    prompt, verdict = job.cases[trial.case_id].prompt.key, msgspec.to_builtins(trial.losslessness)
    about = {"target": name, "prompt": prompt, "repeat": trial.repeat, "arm": trial.arm}
    return {**about, "strategy": "session", "tree": "off", **verdict}


def session(job: Job, cache: ProbeCache) -> list[Trial]:
    """The trials of a worker that measures a job, block by block."""
    events = list[Event]()
    with Arms(job, _CLOCK, cache) as arms:
        measure_slots(job, events.append, (Turn(slots=block.slots) for block in job.blocks), arms, _CLOCK)
    return [trial for event in events if isinstance(event, BlockMeasured) for trial in event.trials]


def honest(target: Target, prompts: Sequence[str], widths: Sequence[int], seed: int) -> Iterator[dict[str, Any]]:
    """Honest runs: chains everywhere, trees of both kinds where the memory can hold one."""
    for i, (prompt, gamma) in enumerate(itertools.product(prompts, widths)):
        strategy = target.strategies[(i + seed) % len(target.strategies)]
        trees = TREES if strategy == "trim" and gamma > 2 else ()
        for tree in ("off", *trees):
            way = Way(
                gamma=gamma, wrong=(0.1, 0.3, 0.6)[(i + seed) % 3], seed=seed, strategy=strategy, tree=tree,
                device_sampling=(i + seed) % 2 == 0,
            )  # fmt: skip
            yield _case(target, prompt, way, target.trial(prompt, way), n_threads=target.n_threads)


def _case(target: Target, prompt: str, way: Way, tried: Tried, **more: Any) -> dict[str, Any]:
    about = {"target": target.name, "prompt": prompt, **msgspec.to_builtins(way), **more}
    return {**about, "differs": tried.differs, **msgspec.to_builtins(tried.verdict)}


def files(folder: Path) -> dict[str, Path]:
    """Models of many architectures and quantizations: trained and random ones."""
    paths = {name: asset_path(f"tiny/{name}.gguf") for name in ("tiny-moe", "tiny-dense")}
    paths["smollm2"], paths[WINDOWED] = smollm2(), gemma3(folder)
    for name, shape in {**TINY_SET, **TINY_ATTENTION}.items():
        paths[name] = folder / f"{name}.gguf"
        write_random(paths[name], shape, seed=1)
    for kind in ("Q8_0", "Q4_0", "Q5_1"):
        paths[f"llama-{kind}"] = folder / f"llama-{kind}.gguf"
        quantize(paths["llama"], paths[f"llama-{kind}"], kind)
    return paths


def refused(target: Target, widths: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Whether the check before an arm lets every strategy pass that the target has, in contexts such as its runs'."""
    prefix = target.read_prefix()
    for strategy, gamma in itertools.product(target.strategies, widths):
        for use in uses(target.options, target.model.window, strategy, "target", gamma):
            check = check_rollback(partial(open_context, target.model), target.options, use, prefix)
            yield {"target": target.name, "gamma": gamma, "refused": not check.exact, "reason": check.reason}


def broken_checks(target: Target) -> Iterator[dict[str, Any]]:
    """Whether that check lets a broken rollback pass, behind a prompt that was read rightly, and one that was not."""
    right = target.read_prefix()
    with native_fault("text"):
        wrong = target.read_prefix()
    for (way, fault), prefix in itertools.product(spoilable(target), (right, wrong)):
        if way.tree == "off":
            strategy = way.strategy or target.strategies[0]
            use = RollbackUse(strategy=strategy, role="target", gamma=_CHECKED_GAMMA, behind="long text")
            with native_fault(fault):
                check = check_rollback(partial(open_context, target.model), target.options, use, prefix)
            yield {"target": target.name, "gamma": use.gamma, "fault": fault, "accepted": check.exact}


def broken_cases(name: str, path: Path) -> Iterator[dict[str, Any]]:
    """Faults of rollbacks, then of readings."""
    is_large, is_windowed = name in _LARGE, name == WINDOWED
    prompts = ("length-1024",) if is_windowed else PROMPTS[: 3 if is_large else 2]
    with opened(name, path, 32 if is_large else 64) as target:
        yield from broken(target, (4,) if is_large else (3, 8), prompts)
        yield from broken_checks(target)
    prompts = ("length-600",) if is_windowed else READ_PROMPTS[: 3 if is_large else 2]
    yield from misread(name, path, prompts, ("first", "all") if is_large else tuple(READINGS))


def honest_cases(name: str, path: Path, seed: int, turn: int) -> Iterator[dict[str, Any]]:
    """Honest checks and runs; prompts and widths take turns."""
    prompts, widths = PROMPTS[seed::3], WIDTHS[turn % 3 :: 3]
    if name == WINDOWED:
        prompts, widths = ("length-1024",), (1, 4, 8, 16)
    with opened(name, path, 32 if name in _LARGE else 64, n_threads=2 if turn % 4 == 3 else 1) as target:
        yield from refused(target, widths[:2])
        yield from honest(target, prompts, widths, seed)


def cases() -> Iterator[dict[str, Any]]:
    """Break every rollback, then run honestly: half an hour of an idle machine, on one thread but for a quarter."""
    with tempfile.TemporaryDirectory() as folder:
        paths = files(Path(folder))
        for name in BROKEN:
            yield from broken_cases(name, paths[name])
        for seed, (i, (name, path)) in itertools.product(range(2), enumerate(paths.items())):
            yield from honest_cases(name, path, seed, i + seed)


def noises(case: dict[str, Any]) -> float | None:
    """How far the live memory was from the nearest fed one, in distances of these among each other."""
    noise = case.get("live_noise")
    return (case["live_distance"] - case["live_limit"]) / noise + MEMORY_LIMIT_NOISES if noise else None


def table(cases: Sequence[dict[str, Any]]) -> list[Result]:
    """Caught of the broken outputs that differ, by target, fault and half; diverged of the honest."""
    results = []
    groups: dict[str, list[bool]] = {}
    missed = 0
    for i, case in enumerate(cases):
        if not case.get("changed"):
            continue
        caught = case["verdict"] in CAUGHT
        missed += not caught and case["differs"] > _MANY
        ways = f"{case['target']}, {case['strategy'] if case['tree'] == 'off' else 'tree ' + case['tree']}"
        for name in (f"{ways}, {case['fault']}", f"rate {case['rate']}", f"broken, half {1 + i % 2}", "broken, all"):
            groups.setdefault(name, []).append(caught)
    for name, hits in groups.items():
        share = 100 * sum(hits) / len(hits)
        results.append(Result(f"{name} ({len(hits)})", share, share, share, "% caught", ">= 99", share >= 99))
    results.append(Result("broken, over 5 % of tokens differ, valid", missed, missed, missed, "count", "0", not missed))
    checks = [case for case in cases if "refused" in case]
    n_refused = sum(case["refused"] for case in checks)
    name = f"honest rollbacks refused before an arm ({len(checks)})"
    results.append(Result(name, n_refused, n_refused, n_refused, "count", "0", not n_refused))
    broken_checks = [case for case in cases if "accepted" in case]
    n_accepted = sum(case["accepted"] for case in broken_checks)
    name = f"broken rollbacks accepted before an arm ({len(broken_checks)})"
    results.append(Result(name, n_accepted, n_accepted, n_accepted, "count", "0", not n_accepted))
    fair = [case for case in cases if "fault" not in case and "refused" not in case]
    for half, tree in itertools.product((0, 1), ("off", "keep", "redecode")):
        mine = [
            (case, far) for case in cases[half::2] if case.get("tree") == tree and (far := noises(case)) is not None
        ]
        title = f"live memory, half {1 + half}, {'chains' if tree == 'off' else f'trees, {tree}'}"
        if calm := [far for case, far in mine if "fault" not in case]:
            results.append(Result(f"{title}: honest ({len(calm)})", max(calm), min(calm), max(calm), "noises"))
        if bad := [far for case, far in mine if case.get("changed") and case.get("verdict") != "lossless"]:
            results.append(Result(f"{title}: broken ({len(bad)})", min(bad), min(bad), max(bad), "noises"))
    for name in sorted({case["target"] for case in fair}):
        own = [case for case in fair if case["target"] == name]
        n = sum(case.get("verdict") == "diverged" for case in own)
        results.append(Result(f"honest {name} ({len(own)})", n, n, n, "diverged"))
    for verdict, most in (("diverged", 0.5), ("not_judged", None), ("near_tie", None)):
        share = 100 * sum(case.get("verdict") == verdict for case in fair) / max(1, len(fair))
        bar = "" if most is None else f"<= {most}"
        passed = None if most is None else share <= most
        results.append(Result(f"honest, all ({len(fair)})", share, share, share, f"% {verdict}", bar, passed))
    return results


def run() -> Iterator[Result]:
    """The whole table."""
    yield from table([*cases()])
