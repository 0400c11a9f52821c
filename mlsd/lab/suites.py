"""Suites on the machines of a lab, from request to result."""

from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from mlsd.errors import InputError
from mlsd.hardware import read_environment
from mlsd.lab.cluster import Cluster
from mlsd.lab.coordinator import LabOutcome, run_lab
from mlsd.lab.machine import Card, read_origin
from mlsd.measure.parent.blocks import Experiment, RunSettings, Watcher
from mlsd.measure.parent.requests import answer_of, check_database, conclude, plan_record, results_of, suite_session
from mlsd.measure.process import run_info
from mlsd.planning.plan import prepare_study
from mlsd.planning.question import Asked
from mlsd.planning.request import StudyRequest
from mlsd.records import QualityWarning, Record
from mlsd.stats import grouped
from mlsd.store.newest import study_path
from mlsd.store.store import Store


class LabStudyResult(Record, frozen=True, kw_only=True):
    """What a lab did and where its trials are."""

    database: str
    outcome: LabOutcome
    warnings: tuple[QualityWarning, ...]
    answer: tuple[str, ...] = ()  # which setting to use, a sentence for each machine and target


def run_lab_study(
    request: StudyRequest,
    address: str,
    certificate: Path | None = None,
    db: Path | None = None,
    *,
    settings: RunSettings,
    watcher: Watcher | None = None,
    options: Asked | None = None,
    patience_s: float = 600.0,
) -> LabStudyResult:
    """Run suites on the machines of a lab, each of which measures everything.

    Models need not be here. Raises: what `prepare_study` raises, LabError, ModelFileError, StoreError; all before
    anything is measured.
    """
    watcher, engine = watcher or Watcher(), request.overrides.engine
    environment = read_environment(run_info(engine))
    path = db or study_path(request.profile.name)
    check_database(path)
    with Cluster(address, certificate, engine) as lab:
        cards = tuple(lab.machines().values())
        facts = {one.ref.id: one for card in cards for one in card.models}
        prepared = prepare_study(request, make=True, elsewhere={id_: f.ref for id_, f in facts.items()})
        watcher.planned(prepared.plan)
        used = set(prepared.plan.models())
        check_same_files(cards, used)
        plan = Experiment(
            loads=tuple(msgspec.structs.replace(job, cool_down_s=settings.cool_down_s) for job in prepared.plan.loads),
            environment=environment,
            record=plan_record(
                prepared.plan, {**request.asked, **(options or {})}, suite_session(request, prepared.plan)
            ),
            facts=tuple(one for id_, one in facts.items() if id_ in used),
        )
        with Store.open(path) as store:
            outcome = run_lab(plan, read_origin(environment), lab, store, settings, watcher, patience_s)
            warnings = tuple(
                warning
                for place in outcome.places
                for warning in conclude(store, place.outcome.run_id, place.environment)
            )
    answer = tuple(
        f"{place.environment.chip or place.environment.machine}: {sentence}"
        for place in outcome.places
        for sentence in answer_of(results_of(path, place.outcome.run_id))
    )
    return LabStudyResult(database=str(path), outcome=outcome, warnings=warnings, answer=answer)


def check_same_files(cards: Iterable[Card], used: Collection[str]) -> None:
    """Raises: InputError where two machines have different files of a model that a plan uses."""
    models = [one.ref for card in cards for one in card.models if one.ref.id in used]
    for id_, same_id in grouped(models, lambda ref: ref.id).items():
        if len({ref.sha256 for ref in same_id}) > 1:
            raise InputError(
                f"The machines of the lab have different files of {id_}.",
                hint="`mlsd models verify` says which is right; pull it again on the other machine.",
            )
