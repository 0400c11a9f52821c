"""The flat table of trials that frames, CSV and --json share."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from mlsd.columns import Column, column
from mlsd.methods import is_control
from mlsd.store.rows import Run, TrialFilter, comparability_key
from mlsd.store.store import ALL, Store
from mlsd.trials.arms import options_text
from mlsd.trials.rates import PARTS, share, speed
from mlsd.trials.results import Measured

_SUMMED = ("rounds", "proposed", "accepted", "committed", "rows")


def _column(name: str, format: str, meaning: str, label: str | None = None, *, detail: bool = False) -> Column:
    return column(name, format, meaning, itemgetter(name), label=label, detail=detail)


TRIALS: tuple[Column, ...] = (  # of rows by name
    _column("trial_id", "n", "row in the table trial", "trial", detail=True),
    _column("run_id", "n", "invocation that measured it"),
    _column("environment_key", "", "host, backend, device and llama.cpp build"),
    _column("case_id", "", "content hash of the configuration"),
    _column("suite", "", "suite it was planned by", detail=True),
    _column("arm", "", "ar or sd"),
    _column("target", "", "id of the target"),
    _column("drafter", "", "drafting method"),
    _column("draft", "", "id of the draft model, where the method has one"),
    _column("gamma", "n", "most tokens proposed a round"),
    _column("prompt", "", "name of the prompt", detail=True),
    _column("n_predict", "n", "output tokens asked for"),
    _column("block_id", "n", "the block: what one process measured together; its trials are compared, no others"),
    _column("block", "n", "number of the planned block"),
    _column("repeat", "n", "repeat of the block", detail=True),
    _column("position", "n", "place within the block"),
    _column("status", "", "valid, hot (valid, and marked), disturbed (its time is not used), invalid or failed"),
    _column("valid", "flag", "valid or hot: every call succeeded, rollback is exact, output is lossless"),
    _column("reason", "", "why it is not simply valid"),
    _column("started_at", "", "ISO 8601, UTC"),
    _column("n_prompt", "n", "prompt tokens", "prompt tokens", detail=True),
    _column("n_tokens", "n", "output tokens, the first included", "tokens", detail=True),
    _column(
        "prefill_ns", "n", "target prefill, up to the first output token: timed once for arms whose contexts read alike"
    ),
    _column("draft_prefill_ns", "n", "what reading the prompt takes the draft"),
    _column("decode_ns", "n", "from the first output token to the last"),
    _column("load_ns", "n", "loading of the models, in the first trial of a process"),
    _column("rollback_target", "", "how the target forgets"),
    _column("rollback_draft", "", "how the draft forgets"),
    _column("fell_back", "", "why the draft worked in another way than was asked for"),
    _column("failed_native_calls", "n", "llama.cpp calls that returned failure"),
    _column("verdict", "", "lossless, near_tie, not_judged or diverged"),
    _column("tolerance", "3", "gap up to which noise explains a token that differs"),
    _column("worst_gap", "3", "largest gap between the best and the emitted token, when single tokens are decoded"),
    _column("differences_per_1000", "1", "output tokens in a thousand that single tokens would not have chosen"),
    _column("peak_rss_bytes", "bytes", "peak resident memory of the worker; what only the GPU maps is not in it"),
    _column("timed", "flag", "whether its times are the method's"),
    _column("rounds", "n", "rounds", detail=True),
    _column("proposed", "n", "drafted tokens sent to verification"),
    _column("accepted", "n", "proposed tokens that matched"),
    _column("committed", "n", "tokens the rounds added to the output"),
    _column("rows", "n", "positions that the target decoded"),
    _column("draft_ns", "n", "sum over rounds: drafting"),
    _column("verify_ns", "n", "sum over rounds: target passes"),
    _column("rollback_ns", "n", "sum over rounds: forgetting rejected tokens"),
    _column("sample_ns", "n", "sum over rounds: reading tokens, acceptance rule"),
    _column("other_ns", "n", "sum over rounds: bookkeeping"),
    _column("parts_ns", "n", "draft + verify + rollback + sample + other"),
    _column("prompt_key", "", "content and exact length of the prompt"),
    _column("workload", "", "kind of text: factual, code, ..."),
    _column("options", "", "options of the drafter, as JSON"),
    _column("source", "", "engine: mlsd's own; server: another program, over HTTP"),
    _column("target_sha256", "", "of the target's file"),
    _column("temperature", "2", "of sampling; 0 is greedy"),
    _column("control", "flag", "a bound, no method that can be used"),
    _column("decode_tok_s", "1", "(n_tokens - 1) / decode_ns", "tok/s"),
    _column("acceptance_rate", "1%", "accepted / proposed", "acceptance"),
    _column("accepted_of_output", "1%", "accepted / committed, as mlx_lm counts", "of output", detail=True),
    _column("acceptance_by_position", "3", "accepted / reached: sum accepted / sum min(proposed, accepted + 1)"),
    _column("mgl", "2", "committed / rounds", "MGL", detail=True),
    _column("host", "", "key of the machine"),
    _column("chip", "", "of the machine"),
    _column("backend", "", "CPU, Metal, CUDA, ..."),
    _column("llama_cpp_build", "", "of llama.cpp"),
    _column("comparability_key", "", "rows with different keys must not be averaged or compared"),
)


def trial_rows(store: Store, chosen: TrialFilter = ALL) -> Iterator[dict[str, Any]]:
    """One row a trial, by column: its summary, the rates derived from it, and what it may be compared with."""
    return rows_of(store.trials(chosen, rounds=False), store.runs())


def rows_of(trials: Iterable[Measured], runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    """The same of some trials."""
    environments = {run.id: run.environment for run in runs}
    names = [of.name for of in TRIALS]
    keys: dict[tuple[str, str], str] = {}
    for stored in trials:
        trial, case, environment = stored.trial, stored.case, environments[stored.run_id]
        whole, judged, draft, method = stored.sums, trial.losslessness, case.drafter.draft, case.drafter
        measured = (trial.case_id, stored.environment_key)
        if measured not in keys:
            keys[measured] = comparability_key(case, stored.environment_key)
        parts: list[Any] = [whole and getattr(whole, part) if trial.decode_ns is not None else None for part in PARTS]
        values = (
            stored.id, stored.run_id, stored.environment_key, trial.case_id, case.suite, trial.arm, case.target.id,
            method.name, draft and draft.id, case.gamma, case.prompt.key, case.n_predict, stored.block_id,
            trial.block, trial.repeat, trial.position, trial.status.value, trial.valid, trial.reason, trial.started_at,
            trial.n_prompt, trial.n_tokens, trial.prefill_ns, trial.draft_prefill_ns, trial.decode_ns, trial.load_ns,
            trial.rollback_target, trial.rollback_draft, trial.fell_back, trial.failed_native_calls,
            judged and judged.verdict, judged and judged.tolerance, judged and judged.worst_gap,
            judged and judged.differences_per_1000, trial.peak_rss_bytes, trial.timed,
            *(whole and getattr(whole, name) for name in _SUMMED), *parts,
            None if None in parts else sum(parts), f"{case.prompt.sha256}:{case.prompt.n_tokens}",
            case.prompt.workload or case.prompt.key, options_text(method), case.source, case.target.sha256,
            case.sampling.temperature, is_control(method.name), speed(trial), whole and whole.acceptance_rate,
            share(whole.accepted, whole.committed) if whole and case.arm == "sd" else None,
            whole and whole.acceptance_by_position, whole and whole.mgl, environment.host, environment.chip,
            environment.backend, environment.llama_cpp_build, keys[measured],
        )  # fmt: skip
        yield dict(zip(names, values, strict=True))
