"""From the store to pandas frames with declared columns; sums over rounds are made in SQL, so a study fits in memory.

Owns the names, types and meanings of columns. `None` in the store is a missing value here, never 0.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from mlsd.errors import AnalysisError
from mlsd.formats.tables import rows_of
from mlsd.store.rows import Run
from mlsd.store.store import Store
from mlsd.trials.arms import options_text
from mlsd.trials.fields import Field, Kind
from mlsd.trials.results import Measured
from mlsd.trials.sums import PARTS

if TYPE_CHECKING:
    import pandas as pd


_TEXT: Kind = "string"
_COUNT: Kind = "Int64"
_NUMBER: Kind = "float64"
_FLAG: Kind = "boolean"


def _column(name: str, dtype: Kind, meaning: str) -> Field:
    """Of rows by name; units stand in the name."""
    return Field(name, dtype=dtype, meaning=meaning, get=itemgetter(name))


TRIALS: tuple[Field, ...] = (
    _column("trial_id", _COUNT, "row in the table trial"),
    _column("run_id", _COUNT, "invocation that measured it"),
    _column("environment_key", _TEXT, "host, backend, device and llama.cpp build"),
    _column("case_id", _TEXT, "content hash of the configuration"),
    _column("suite", _TEXT, "suite it was planned by"),
    _column("arm", _TEXT, "ar or sd"),
    _column("target", _TEXT, "id of the target"),
    _column("drafter", _TEXT, "drafting method"),
    _column("draft", _TEXT, "id of the draft model, where the method has one"),
    _column("gamma", _COUNT, "most tokens proposed a round"),
    _column("prompt", _TEXT, "name of the prompt"),
    _column("n_predict", _COUNT, "output tokens asked for"),
    _column("block_id", _COUNT, "the block: what one process measured together; its trials are compared, no others"),
    _column("block", _COUNT, "number of the planned block"),
    _column("repeat", _COUNT, "repeat of the block"),
    _column("position", _COUNT, "place within the block"),
    _column("status", _TEXT, "valid, hot (valid, and marked), disturbed (its time is not used), invalid or failed"),
    _column("valid", _FLAG, "valid or hot: every call succeeded, rollback is exact, output is lossless"),
    _column("reason", _TEXT, "why it is not simply valid"),
    _column("started_at", _TEXT, "ISO 8601, UTC"),
    _column("n_prompt", _COUNT, "prompt tokens"),
    _column("n_tokens", _COUNT, "output tokens, the first included"),
    _column("prefill_ns", _COUNT, "target prefill, up to the first output token"),
    _column("decode_ns", _COUNT, "from the first output token to the last"),
    _column("rollback_target", _TEXT, "how the target forgets"),
    _column("rollback_draft", _TEXT, "how the draft forgets"),
    _column("fell_back", _TEXT, "why the draft worked in another way than was asked for"),
    _column("failed_native_calls", _COUNT, "llama.cpp calls that returned failure"),
    _column("verdict", _TEXT, "lossless, near_tie, not_judged or diverged"),
    _column("tolerance", _NUMBER, "gap up to which noise explains a token that differs"),
    _column("worst_gap", _NUMBER, "largest gap between the best and the emitted token, when single tokens are decoded"),
    _column("differences_per_1000", _NUMBER, "output tokens in a thousand that single tokens would not have chosen"),
    _column("peak_rss_bytes", _COUNT, "peak resident memory of the worker; what only the GPU maps is not in it"),
    _column("rounds", _COUNT, "rounds"),
    _column("proposed", _COUNT, "drafted tokens sent to verification"),
    _column("accepted", _COUNT, "proposed tokens that matched"),
    _column("committed", _COUNT, "tokens the rounds added to the output"),
    _column("draft_ns", _COUNT, "sum over rounds: drafting"),
    _column("verify_ns", _COUNT, "sum over rounds: target passes"),
    _column("rollback_ns", _COUNT, "sum over rounds: forgetting rejected tokens"),
    _column("sample_ns", _COUNT, "sum over rounds: reading tokens, acceptance rule"),
    _column("other_ns", _COUNT, "sum over rounds: bookkeeping"),
    _column("prompt_key", _TEXT, "content and exact length of the prompt"),
    _column("workload", _TEXT, "kind of text: factual, code, ..."),
    _column("options", _TEXT, "options of the drafter, as JSON"),
    _column("source", _TEXT, "engine: mlsd's own; server: somebody's, over HTTP"),
    _column("decode_tok_s", _NUMBER, "(n_tokens - 1) / decode_ns"),
    _column("acceptance_rate", _NUMBER, "accepted / proposed"),
    _column("accepted_of_output", _NUMBER, "accepted / committed, as mlx_lm counts: 1 - 1 / MGL"),
    _column("mgl", _NUMBER, "committed / rounds"),
    _column("parts_ns", _COUNT, "draft + verify + rollback + sample + other"),
)

OUTCOMES: tuple[Field, ...] = (
    _column("environment_key", _TEXT, "host, backend, device and llama.cpp build"),
    _column("case_id", _TEXT, "content hash of the configuration"),
    _column("repeat", _COUNT, "repeat of the block"),
    _column("proposed", _COUNT, "tokens proposed in such a round"),
    _column("accepted", _COUNT, "of them accepted"),
    _column("rounds", _COUNT, "rounds that ended so"),
    _column("committed", _COUNT, "sum over them: tokens added to the output"),
    *(_column(part, _COUNT, f"sum over them: {part.removesuffix('_ns')}") for part in PARTS),
)


def trials(stored: Sequence[Measured], runs: Iterable[Run]) -> pd.DataFrame:
    """Trials with the sums of their rounds: columns `TRIALS`, one row a trial."""

    def derived(one: Measured, row: dict[str, Any]) -> dict[str, Any]:
        case, parts = one.case, [row[part] for part in PARTS]
        return row | {
            "prompt_key": f"{case.prompt.sha256}:{case.prompt.n_tokens}",
            "workload": case.prompt.workload or case.prompt.key,
            "options": options_text(case.drafter),
            "source": case.source,
            "parts_ns": None if None in parts else sum(parts),
        }

    return made(map(derived, stored, rows_of(stored, runs)), TRIALS)


def outcomes(store: Store, of: Container[int]) -> pd.DataFrame:
    """How the rounds of each case and repeat of these trials ended: columns `OUTCOMES`."""
    names = [field.name for field in OUTCOMES]
    return made((dict(zip(names, row, strict=True)) for row in store.round_outcomes(of)), OUTCOMES)


def made(rows: Iterable[Any], fields: Iterable[Field]) -> pd.DataFrame:
    """The frame of these rows, of exactly these columns and types."""
    import pandas as pd

    chosen = list(fields)
    types: dict[Any, Any] = {field.name: field.dtype for field in chosen}
    records = [tuple(field.get(row) for field in chosen) for row in rows]
    try:
        return pd.DataFrame.from_records(records, columns=list(types)).astype(types)
    except (TypeError, ValueError) as error:
        raise AnalysisError(
            f"The study holds a value of the wrong type: {error}.", hint="Check the file: mlsd results --check."
        ) from error
