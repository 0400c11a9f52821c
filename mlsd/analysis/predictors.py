"""What predicts acceptance before any drafting, brought together with the trials that show what was accepted."""

from __future__ import annotations

from collections import Counter

from mlsd.drafters.drafting import drafting_key
from mlsd.errors import InputError, UnsupportedError
from mlsd.measure.rows import DraftDistance, TrialFilter, model_key
from mlsd.measure.store import Store
from mlsd.records import Case


def case_distances(store: Store) -> dict[str, DraftDistance]:
    """How far the model that drafts in a case lies from its target, by case id, for cases of which it was measured.

    All on one text: distances on different texts do not compare, so the text that most pairs were measured on counts.
    """
    known = list(store.distances())
    if not known:
        return {}
    (text, n_tokens), _ = Counter((d.text_sha256, d.n_tokens) for d in known).most_common(1)[0]
    own: dict[tuple[str, str | None], DraftDistance] = {
        (d.target_key, d.drafting_key): d for d in known if (d.text_sha256, d.n_tokens) == (text, n_tokens)
    }
    keys = {case_id: (_target_key(case), _drafting_key(case)) for case_id, case in store.cases().items()}
    return {case_id: own[key] for case_id, key in keys.items() if key in own}


def perplexity_ratios(store: Store) -> dict[int, float]:
    """Perplexity of the drafting model over that of its target, by id of the valid SD trials that drafted with it."""
    by_case = case_distances(store)
    chosen = TrialFilter(arm="sd", status="ok", valid=True)
    return {
        stored.id: by_case[stored.trial.case_id].ratio
        for stored in (store.trials(chosen, rounds=False) if by_case else ())
        if stored.trial.case_id in by_case
    }


def _target_key(case: Case) -> str:
    return model_key(case.target.sha256, case.target.id)


def _drafting_key(case: Case) -> str | None:
    try:
        return drafting_key(case.drafter)
    except (UnsupportedError, InputError):  # a method or an option of another release
        return None
