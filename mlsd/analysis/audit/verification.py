"""Checking a record of somebody else's study: its identities, the audit of every row, what it says of models.

Its outputs are decoded again by whoever asks for the check: nothing here measures.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mlsd.analysis.audit.audit import audit
from mlsd.analysis.audit.record_identities import Problem, problems
from mlsd.analysis.audit.trials import database_contexts
from mlsd.analysis.results import comparability
from mlsd.errors import AnalysisError, MlsdError
from mlsd.formats.decode_again import DecodedAgain
from mlsd.formats.record import n_superseded, opened_record
from mlsd.gguf_tools.read import model_facts
from mlsd.models.library import Library
from mlsd.records import Case, ModelFacts, Record, Trial
from mlsd.store.rows import environment_key
from mlsd.store.store import Store


class Verification(Record, frozen=True, kw_only=True):
    """What was asked of a record, and what was found."""

    source: str
    n_bytes: int
    n_trials: int
    n_superseded: int
    machines: tuple[str, ...]  # chip and backend of each
    problems: tuple[Problem, ...]
    rows: dict[str, int]  # verdict of the audit -> how many rows
    n_decoded: int  # trials whose output was compared with plain decoding, made here
    n_ties: int  # of these differ, each time within the noise of the model's logits as measured here
    not_checked: dict[str, int]  # why not -> trials whose output was not decoded again

    @property
    def sound(self) -> bool:
        return not self.problems


Decode = Callable[[Iterable[tuple[Case, Trial]]], DecodedAgain]


def verify(path: Path, decode: Decode) -> Verification:
    """Check a record; `decode` decodes its outputs again (`formats.decode_again`).

    Raises: TableError for a file that is no record, and what `decode` raises.
    """
    with opened_record(path) as file:
        store, found, rows = file.store, problems(file), Counter[str]()
        decoded = DecodedAgain()
        cases, trials = store.cases(), [stored.trial for stored in store.trials()]
        if not found:  # of a record that contradicts itself nothing else needs to be asked
            rows, impossible = _audit(store)
            found += impossible
            decoded = decode((cases[trial.case_id], trial) for trial in trials)
            found += _of_facts(store.models().values())
            found += [Problem(where=f"trial {i}", rule="decoded again", sentence=text) for i, text in decoded.problems]
        cards = {environment_key(run.environment): run.environment for run in store.runs()}
        n_again = n_superseded(store)
    return Verification(
        source=str(path),
        n_bytes=file.n_bytes,
        n_trials=len(trials),
        n_superseded=n_again,
        machines=tuple(
            f"{card.chip or card.machine}, {card.backend or 'backend not known'}" for card in cards.values()
        ),
        problems=tuple(found),
        rows=dict(rows),
        n_decoded=decoded.n_checked,
        n_ties=decoded.n_ties,
        not_checked=dict(decoded.not_checked),
    )


def _audit(store: Store) -> tuple[Counter[str], list[Problem]]:
    """The audit of the rows of every machine, each among its own."""
    counts, found = Counter[str](), []
    for key in comparability.machines(store):
        try:
            contexts = database_contexts(store, key)
        except AnalysisError:  # nothing but failed trials
            continue
        result, valid = audit(key, *contexts), {row.label for context in contexts for row in context.comparable}
        counts.update(row.verdict for row in result.rows)
        for row in result.rows:
            for finding in row.findings:
                if finding.verdict == "impossible" and row.identity["label"] in valid:
                    where = f"{row.identity['table']}, {row.identity['label']}"
                    found.append(Problem(where=where, rule=finding.rule, sentence=finding.sentence))
    return counts, found


def _of_facts(models: Iterable[ModelFacts]) -> Iterator[Problem]:
    """What the record says of models that are here, against their files."""
    library = Library()
    for stored in models:
        try:
            model = library.resolve(stored.ref.id)
            if model.ref.sha256 != stored.ref.sha256:
                continue
            read = model_facts(model.path, ref=stored.ref)
        except MlsdError:
            continue
        for name in stored.__struct_fields__:
            own, there = getattr(stored, name), getattr(read, name)
            if own is not None and own != there:
                sentence = f"its {name} is {own}, the file's {there}"
                yield Problem(where=f"model {stored.ref.id}", rule="model facts", sentence=sentence)
