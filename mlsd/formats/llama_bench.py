"""Plain decoding in the fields of llama-bench's JSON.

llama-bench knows no speculative decoding, so only the AR arm is written: for each case a prefill test (n_prompt > 0)
and a generation test (n_gen > 0 at depth n_prompt) with every valid repeat as a sample. Fields that mlsd does not
record are null.
"""

import statistics
from typing import Any, BinaryIO

import msgspec

from mlsd.records import Case, Environment, ModelFacts
from mlsd.stats import grouped
from mlsd.store.rows import TrialFilter
from mlsd.store.sessions import sessions
from mlsd.store.store import Store
from mlsd.trials.rates import speed
from mlsd.units import NS_PER_S

FIELDS = (
    "build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_filename", "model_type", "model_size",
    "model_n_params", "n_batch", "n_ubatch", "n_threads", "cpu_mask", "cpu_strict", "poll", "type_k", "type_v",
    "n_gpu_layers", "n_cpu_moe", "split_mode", "main_gpu", "no_kv_offload", "flash_attn", "devices", "tensor_split",
    "tensor_buft_overrides", "load_mode", "lazy_mode", "embeddings", "no_op_offload", "no_host", "repack",
    "fit_target", "fit_min_ctx", "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts",
    "stddev_ts", "samples_ns", "samples_ts",
)  # fmt: skip
_FLASH_ATTENTION = {"auto": -1, "on": 1, "off": 0}


def write(store: Store, out: BinaryIO, chosen: TrialFilter) -> int:
    """Write the array of tests; returns how many. The repeats of a session make one test."""
    models, tests = store.models(), list[dict[str, Any]]()
    environments = {run.id: run.environment for run in store.runs()}
    for session in sessions(store, chosen):
        plain = [m for arm in session.results() if arm.is_plain for m in arm.trials if m.trial.valid]
        for repeats in grouped(plain, lambda m: m.trial.case_id).values():
            case, first = repeats[0].case, repeats[0].trial
            setup = _setup(case, environments[session.run_ids[-1]], models.get(case.target.key))
            setup["test_time"], n_prompt = first.started_at, first.n_prompt or 0
            if n_prompt and (prefills := [m.trial.prefill_ns for m in repeats if m.trial.prefill_ns]):
                tests.append(_test(setup, prefills, n_prompt=n_prompt, n_gen=0, n_depth=0))
            lengths = grouped((m.trial for m in repeats if speed(m.trial)), lambda trial: trial.n_tokens - 1)
            for n_gen, trials in sorted(lengths.items()):
                spans = [trial.decode_ns for trial in trials if trial.decode_ns]
                tests.append(_test(setup, spans, n_prompt=0, n_gen=n_gen, n_depth=n_prompt))
    out.write(msgspec.json.format(msgspec.json.encode(tests), indent=2) + b"\n")
    return len(tests)


def _setup(case: Case, environment: Environment, facts: ModelFacts | None) -> dict[str, Any]:
    engine, on_gpu = case.engine, environment.backend not in (None, "CPU")
    return {
        "build_commit": environment.llama_cpp_build, "cpu_info": environment.chip, "backends": environment.backend,
        "gpu_info": environment.device if on_gpu else "", "model_filename": case.target.id,
        "model_type": facts and facts.architecture, "model_size": facts and facts.weight_bytes,
        "model_n_params": facts and facts.n_parameters, "n_batch": engine.n_batch, "n_ubatch": engine.n_ubatch,
        "n_threads": engine.n_threads, "n_gpu_layers": engine.n_gpu_layers,
        "flash_attn": _FLASH_ATTENTION[engine.flash_attention],
    }  # fmt: skip


def _test(setup: dict[str, Any], spans_ns: list[int], **counts: int) -> dict[str, Any]:
    """One test of so many tokens: `n_prompt`, `n_gen`, `n_depth`."""
    rates = [(counts["n_prompt"] + counts["n_gen"]) * NS_PER_S / span for span in spans_ns]
    several = len(spans_ns) > 1
    values = setup | counts | {
        "avg_ns": round(statistics.fmean(spans_ns)), "stddev_ns": round(statistics.stdev(spans_ns)) if several else 0,
        "avg_ts": statistics.fmean(rates), "stddev_ts": statistics.stdev(rates) if several else 0.0,
        "samples_ns": spans_ns, "samples_ts": rates,
    }  # fmt: skip
    return {field: values.get(field) for field in FIELDS}
