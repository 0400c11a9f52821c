"""From the store to pandas frames with declared columns; sums over rounds are made in SQL, so a study fits in memory.

Owns the names, types and meanings of columns. `None` in the store is a missing value here, never 0.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mlsd.errors import AnalysisError
from mlsd.formats.tables import rows_of
from mlsd.store.rows import Run
from mlsd.store.store import Store
from mlsd.trials.arms import options_text
from mlsd.trials.results import Measured
from mlsd.trials.sums import PARTS


class Column(NamedTuple):
    """A column of a frame; units stand in the name."""

    name: str
    dtype: Any
    meaning: str


_TEXT: Any = "string"
_COUNT: Any = "Int64"
_NUMBER: Any = "float64"
_FLAG: Any = "boolean"

STORED: tuple[Column, ...] = (
    Column("trial_id", _COUNT, "row in the table trial"),
    Column("run_id", _COUNT, "invocation that measured it"),
    Column("environment_key", _TEXT, "host, backend, device and llama.cpp build"),
    Column("case_id", _TEXT, "content hash of the configuration"),
    Column("suite", _TEXT, "suite it was planned by"),
    Column("arm", _TEXT, "ar or sd"),
    Column("target", _TEXT, "id of the target"),
    Column("drafter", _TEXT, "drafting method"),
    Column("draft", _TEXT, "id of the draft model, where the method has one"),
    Column("gamma", _COUNT, "most tokens proposed a round"),
    Column("prompt", _TEXT, "name of the prompt"),
    Column("n_predict", _COUNT, "output tokens asked for"),
    Column("block_id", _COUNT, "the block: what one process measured together; its trials are compared, no others"),
    Column("block", _COUNT, "number of the planned block"),
    Column("repeat", _COUNT, "repeat of the block"),
    Column("position", _COUNT, "place within the block"),
    Column("status", _TEXT, "valid, hot (valid, and marked), disturbed (its time is not used), invalid or failed"),
    Column("valid", _FLAG, "valid or hot: every call succeeded, rollback is exact, output is lossless"),
    Column("reason", _TEXT, "why it is not simply valid"),
    Column("started_at", _TEXT, "ISO 8601, UTC"),
    Column("n_prompt", _COUNT, "prompt tokens"),
    Column("n_tokens", _COUNT, "output tokens, the first included"),
    Column("prefill_ns", _COUNT, "target prefill, up to the first output token"),
    Column("decode_ns", _COUNT, "from the first output token to the last"),
    Column("rollback_target", _TEXT, "how the target forgets"),
    Column("rollback_draft", _TEXT, "how the draft forgets"),
    Column("fell_back", _TEXT, "why the draft worked in another way than was asked for"),
    Column("failed_native_calls", _COUNT, "llama.cpp calls that returned failure"),
    Column("verdict", _TEXT, "lossless, near_tie, not_judged or diverged"),
    Column("tolerance", _NUMBER, "gap up to which noise explains a token that differs"),
    Column("worst_gap", _NUMBER, "largest gap between the best and the emitted token, when single tokens are decoded"),
    Column("differences_per_1000", _NUMBER, "output tokens in a thousand that single tokens would not have chosen"),
    Column("peak_rss_bytes", _COUNT, "peak resident memory of the worker; what only the GPU maps is not in it"),
    Column("rounds", _COUNT, "rounds"),
    Column("proposed", _COUNT, "drafted tokens sent to verification"),
    Column("accepted", _COUNT, "proposed tokens that matched"),
    Column("committed", _COUNT, "tokens the rounds added to the output"),
    Column("draft_ns", _COUNT, "sum over rounds: drafting"),
    Column("verify_ns", _COUNT, "sum over rounds: target passes"),
    Column("rollback_ns", _COUNT, "sum over rounds: forgetting rejected tokens"),
    Column("sample_ns", _COUNT, "sum over rounds: reading tokens, acceptance rule"),
    Column("other_ns", _COUNT, "sum over rounds: bookkeeping"),
)

if TYPE_CHECKING:
    import pandas as pd

DERIVED: tuple[Column, ...] = (
    Column("prompt_key", _TEXT, "content and exact length of the prompt"),
    Column("workload", _TEXT, "kind of text: factual, code, ..."),
    Column("options", _TEXT, "options of the drafter, as JSON"),
    Column("source", _TEXT, "engine: mlsd's own; server: somebody's, over HTTP"),
    Column("decode_tok_s", _NUMBER, "(n_tokens - 1) / decode_ns"),
    Column("acceptance_rate", _NUMBER, "accepted / proposed"),
    Column("accepted_of_output", _NUMBER, "accepted / committed, as mlx_lm counts: 1 - 1 / MGL"),
    Column("mgl", _NUMBER, "committed / rounds"),
    Column("parts_ns", _COUNT, "draft + verify + rollback + sample + other"),
)

TRIALS = STORED + DERIVED

OUTCOMES: tuple[Column, ...] = (
    Column("environment_key", _TEXT, "host, backend, device and llama.cpp build"),
    Column("case_id", _TEXT, "content hash of the configuration"),
    Column("repeat", _COUNT, "repeat of the block"),
    Column("proposed", _COUNT, "tokens proposed in such a round"),
    Column("accepted", _COUNT, "of them accepted"),
    Column("rounds", _COUNT, "rounds that ended so"),
    Column("committed", _COUNT, "sum over them: tokens added to the output"),
    *(Column(part, _COUNT, f"sum over them: {part.removesuffix('_ns')}") for part in PARTS),
)


def trials(store: Store) -> pd.DataFrame:
    """Every trial that counts, with the sums of its rounds: columns `TRIALS`, one row a trial."""
    return of_trials(list(store.trials(rounds=False)), store.runs())


def of_trials(stored: Sequence[Measured], runs: Iterable[Run]) -> pd.DataFrame:
    """The same of some of them."""
    return typed_frame(_trial_rows(stored, rows_of(stored, runs)), TRIALS)


def _trial_rows(stored: Sequence[Measured], rows: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for one, row in zip(stored, rows, strict=True):
        case, parts = one.case, [row[part] for part in PARTS]
        row |= {
            "prompt_key": f"{case.prompt.sha256}:{case.prompt.n_tokens}",
            "workload": case.prompt.workload or case.prompt.key,
            "options": options_text(case.drafter),
            "source": case.source,
            "parts_ns": None if None in parts else sum(parts),
        }
        yield tuple(row[column.name] for column in TRIALS)


def outcomes(store: Store, of: Container[int] | None = None) -> pd.DataFrame:
    """How the rounds of each case and repeat ended: columns `OUTCOMES`. Of these trials, else of all valid ones."""
    valid = {one.id for one in store.trials(rounds=False) if one.trial.valid} if of is None else of
    return typed_frame(store.round_outcomes(valid), OUTCOMES)


def typed_frame(rows: Iterable[Sequence[Any]], columns: tuple[Column, ...]) -> pd.DataFrame:
    """A frame of exactly these columns and types."""
    import pandas as pd

    types = {column.name: column.dtype for column in columns}
    try:
        return pd.DataFrame.from_records([tuple(row) for row in rows], columns=list(types)).astype(types)
    except (TypeError, ValueError) as error:
        raise AnalysisError(
            f"The study holds a value of the wrong type: {error}.", hint="Check the file: mlsd results --check."
        ) from error
