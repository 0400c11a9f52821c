"""What predicts acceptance before any drafting, brought together with the trials that show what was accepted."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mlsd.drafters import drafting_key
from mlsd.errors import AnalysisError, InputError, UnsupportedError
from mlsd.records import Case
from mlsd.store.rows import DraftDistance
from mlsd.trials.results import ArmResult


class Prediction(NamedTuple):
    """A method whose drafting model was compared with its target."""

    arm: ArmResult
    distance: DraftDistance


def case_distances(distances: Iterable[DraftDistance], cases: Mapping[str, Case]) -> dict[str, DraftDistance]:
    """How far the model that drafts in a case lies from its target, by case id, for cases of which it was measured.

    All on one text: distances on different texts do not compare, so the text that most pairs were measured on counts.
    """
    known = list(distances)
    if not known:
        return {}
    (text, n_tokens), _ = Counter((d.text_sha256, d.n_tokens) for d in known).most_common(1)[0]
    own: dict[tuple[str, str | None], DraftDistance] = {
        (d.target_key, d.drafting_key): d for d in known if (d.text_sha256, d.n_tokens) == (text, n_tokens)
    }
    keys = {case_id: (case.target.key, _drafting_key(case)) for case_id, case in cases.items()}
    return {case_id: own[key] for case_id, key in keys.items() if key in own}


def predictions(results: Iterable[ArmResult], distances: Mapping[str, DraftDistance]) -> list[Prediction]:
    """Each method with a drafting model of its own, the nearest to its target first; `distances` by case id.

    Raises: AnalysisError when none was compared.
    """
    known = [one for one in results if one.n_valid and not one.is_plain and one.trials[0].trial.case_id in distances]
    if not known:
        raise AnalysisError(
            "No model that drafts was compared with its target.", hint="Compare them: mlsd run E --distances."
        )
    found = [Prediction(one, distances[one.trials[0].trial.case_id]) for one in known]
    return sorted(found, key=lambda row: (row.arm.case.target.id, row.distance.ratio))


def _drafting_key(case: Case) -> str | None:
    try:
        return drafting_key(case.drafter)
    except (UnsupportedError, InputError):  # a method or an option of another release
        return None
