"""What a study measured of acceptance, as controls that replay it here: acceptance is of models and text, cost is not.

Each control is the target's own output with wrong tokens where another machine's drafter had them as often, at the cost
of the same draft model where it is here, and free where it is not.
"""

from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from mlsd.analysis.predict.evidence import read_evidence, same_model
from mlsd.errors import InputError, MlsdError
from mlsd.formats.record import opened_study
from mlsd.models.library import resolve_model
from mlsd.planning.question import drafter_text
from mlsd.records import OptionValue, Record
from mlsd.stats import grouped
from mlsd.trials.acceptance_meanings import by_position
from mlsd.trials.rates import total
from mlsd.trials.results import ArmResult


class Replayed(Record, frozen=True, kw_only=True):
    """One drafter of a study as a control."""

    drafter: str  # as --drafter takes it
    gammas: tuple[int, ...]  # at which it was measured
    sentence: str  # what is replayed: of which drafter, from how many rounds


def replays(study: str | Path, target: str) -> tuple[Replayed, ...]:
    """A control for each drafter that a database or record measured on the target, or on its only target.

    Rates are those of the longest drafts, over all texts; they hold for shorter ones, too. Rounds that did not draft
    are replayed as such; drafts that ended early are as long as others. Raises: InputError where nothing can be.
    """
    path = Path(study)
    with opened_study(path) as store:
        arms = [arm for own in read_evidence([store]).arms.values() for arm in own if not (arm.is_plain or arm.control)]
    arms = [arm for arm in arms if arm.positions and not arm.case.drafter.name.endswith("-tree")]
    if not arms:
        raise InputError(f"{path} holds no drafted rounds.", hint="Give a database or record of `mlsd bench` or `run`.")
    ref, targets = resolve_model(target, make=True).ref, list(dict.fromkeys(arm.case.target.id for arm in arms))
    same = [arm for arm in arms if arm.case.target.id == ref.id or same_model(arm.case.target, ref)]
    if not same and len(targets) > 1:
        raise InputError(f"{path} measured {', '.join(targets)}, not {ref.id}.", hint="Replay on one of them.")
    drafters = grouped(same or arms, lambda arm: replace(arm.arm, gamma=0))
    return tuple(_replayed(own) for own in drafters.values())


def _replayed(arms: list[ArmResult]) -> Replayed:
    gammas = sorted({arm.case.gamma for arm in arms})
    longest = [arm for arm in arms if arm.case.gamma == gammas[-1]]
    whole = total(arm.whole for arm in longest)
    rates = [f"{place.rate.value:.3f}" for place in by_position([(whole, 1)])]
    options: dict[str, OptionValue] = {"accept": "/".join(rates)}
    drafting = sum(n for proposed, _, n in whole.endings if proposed) / whole.rounds
    if drafting < 1:
        options["propose"] = round(drafting, 3)
    draft, cost = arms[0].case.drafter.draft, "free"
    if draft is not None:
        cost = f"free, since {draft.id} is not here"
        with suppress(MlsdError):
            options["draft"] = resolve_model(draft.id).called
            cost = f"at the cost of {draft.id} here"
    name, texts = arms[0].arm.name, ", ".join(sorted({arm.text for arm in longest}))
    sentence = f"{name} on {texts}, {whole.rounds} rounds at gamma {gammas[-1]}: {' '.join(rates)}, {cost}"
    return Replayed(drafter=drafter_text("oracle", options), gammas=tuple(gammas), sentence=sentence)
