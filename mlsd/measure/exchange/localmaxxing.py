"""The fields that LocalMaxxing asks of a submission, an object for each case and machine; nothing is sent anywhere.

Names are those of its public API description (August 2026). What it does not ask for but a reader needs to check the
figure stands in `engineFlags`, as others do there: the engine's commit, every sample's time, hashes of prompt and
output, drafted and accepted tokens. A field that mlsd does not know is null: `hfId` is the submitter's to fill in.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from mlsd.measure.exchange.record import output_key
from mlsd.measure.store.rows import TrialFilter, model_key
from mlsd.measure.store.store import Store
from mlsd.records import Case, Environment, ModelFacts, Trial
from mlsd.trials.sums import counts_of, prefill_tok_s, speed
from mlsd.units import GIB, NS_PER_MS

if TYPE_CHECKING:
    from mlsd.measure.exchange import Content


def write(store: Store, out: BinaryIO, chosen: TrialFilter, content: Content) -> int:
    """Write the array of submissions; returns how many. Only valid, timed trials stand in them."""
    cases, models = store.cases(), store.models()
    environments = {run.id: run.environment for run in store.runs()}
    groups: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    places: dict[tuple[str, str], Environment] = {}
    for stored in store.trials(chosen):
        if stored.trial.valid and stored.trial.decode_ns:
            key = stored.environment_key, stored.trial.case_id
            groups[key].append(stored.trial)
            places[key] = environments[stored.run_id]
    made = []
    for key, trials in groups.items():
        case = cases[key[1]]
        facts = models.get(model_key(case.target.sha256, case.target.id))
        made.append(_submission(case, trials, places[key], facts))
    out.write(msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")
    return len(made)


def _submission(
    case: Case, trials: Sequence[Trial], environment: Environment, facts: ModelFacts | None
) -> dict[str, Any]:
    prefills = [(rate, t.prefill_ns) for t in trials if (rate := prefill_tok_s(t)) is not None and t.prefill_ns]
    speeds = [own for t in trials if (own := speed(t)) is not None]
    return {
        "hfId": None,
        "hardware": {
            "hwClass": "apple_silicon" if environment.backend == "Metal" else environment.backend,
            "chip": environment.chip,
            "gpuName": environment.device,
            "gpuCores": environment.gpu_cores,
            "memoryGb": None if environment.memory_bytes is None else environment.memory_bytes / GIB,
        },
        "engineName": case.server or "llama.cpp",
        "engineVersion": environment.llama_cpp_build if case.server is None else None,
        "quantization": _quantization(facts),
        "tokSOut": statistics.fmean(speeds) if speeds else None,
        "tokSPrefill": statistics.fmean(rate for rate, _ in prefills) if prefills else None,
        "ttftMs": statistics.fmean(ns for _, ns in prefills) / NS_PER_MS if prefills else None,
        "promptTokens": trials[0].n_prompt,
        "outputTokens": max(t.n_tokens for t in trials),
        "batchSize": 1,
        "engineFlags": {
            "backend": environment.backend,
            "program": f"mlsd {environment.mlsd_version}",
            "modelFile": case.target.id,
            "modelSha256": case.target.sha256,
            "specDecoding": None if case.arm == "ar" else case.drafter.name,
            "draftModel": case.drafter.draft.id if case.drafter.draft else None,
            "draftModelSha256": case.drafter.draft.sha256 if case.drafter.draft else None,
            "draftMax": case.gamma or None,
            "sampling": msgspec.to_builtins(case.sampling),
            "promptName": case.prompt.key,
            "promptSha256": case.prompt.sha256,
            "samples": [_sample(trial) for trial in trials],
        },
    }


def _sample(trial: Trial) -> dict[str, Any]:
    counted = counts_of(trial) if trial.arm == "sd" else None
    return {
        "startedAt": trial.started_at,
        "promptNs": trial.prefill_ns,
        "decodeNs": trial.decode_ns,
        "outputTokens": trial.n_tokens,
        "outputSha256": output_key(trial.tokens) if trial.tokens else None,
        "verificationSteps": len(trial.rounds) or None,
        "draftTokens": None if counted is None else counted.proposed,
        "acceptedTokens": None if counted is None else counted.accepted,
        "lossless": trial.losslessness.verdict if trial.losslessness else None,
    }


def _quantization(facts: ModelFacts | None) -> str | None:
    """The type of most quantized tensors."""
    types = {} if facts is None else {k: n for k, n in facts.tensor_types.items() if k not in ("F32", "F16")}
    return max(types, key=lambda kind: types[kind], default=None)
