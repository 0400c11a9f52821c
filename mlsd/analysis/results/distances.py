"""How far what drafts lies from its target, by case: what predicts acceptance before any drafting."""

from collections import Counter
from collections.abc import Iterable, Mapping

from mlsd.drafters import drafting_key
from mlsd.errors import InputError, UnsupportedError
from mlsd.records import Case
from mlsd.store.rows import DraftDistance


def case_distances(distances: Iterable[DraftDistance], cases: Mapping[str, Case]) -> dict[str, DraftDistance]:
    """How far the model that drafts in a case lies from its target, by case id, for cases of which it was measured.

    All on one text: distances on different texts do not compare, so the text that most pairs were measured on counts.
    """
    every_distance = list(distances)
    if not every_distance:
        return {}
    (text, n_tokens), _ = Counter((d.text_sha256, d.n_tokens) for d in every_distance).most_common(1)[0]
    by_pair: dict[tuple[str, str | None], DraftDistance] = {
        (d.target_key, d.drafting_key): d for d in every_distance if (d.text_sha256, d.n_tokens) == (text, n_tokens)
    }
    keys = {case_id: (case.target.key, _drafting_key(case)) for case_id, case in cases.items()}
    return {case_id: by_pair[key] for case_id, key in keys.items() if key in by_pair}


def _drafting_key(case: Case) -> str | None:
    try:
        return drafting_key(case.drafter)
    except (UnsupportedError, InputError):  # a method or an option of another release
        return None
