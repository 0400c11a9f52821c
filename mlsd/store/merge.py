"""Merging one study database into another: what several machines measured, or what a record holds."""

from collections.abc import Callable, Mapping, Sequence

from mlsd.records import Record, Trial
from mlsd.stats import grouped
from mlsd.store.rows import FIGURES, Run, environment_key
from mlsd.store.store import Store
from mlsd.trials.results import Measured


class Merged(Record, frozen=True, kw_only=True):
    """What of a database went into another one."""

    new: tuple[Measured, ...]
    n_known: int  # trials that were there already
    machines: tuple[str, ...]  # the environment keys of all of them

    @property
    def n_new(self) -> int:
        return len(self.new)


def merge(store: Store, theirs: Store, as_stored: Callable[[Run], Run] = lambda run: run, key: str = "") -> Merged:
    """Add the trials of a database that count, each machine under its own key, or those of one `key`.

    Of two measurements of one block the later one counts, unless it alone has failed or disturbed trials. So merging
    twice, or an earlier state after a later one, changes nothing. Raises: StoreError.
    """
    runs_here = {(environment_key(run.environment), run.started_at, run.seed): run for run in store.runs()}
    cases, trials, new = theirs.cases(), list(theirs.trials()), list[Measured]()
    trials = [stored_trial for stored_trial in trials if key in ("", stored_trial.environment_key)]
    runs = [run for run in theirs.runs() if key in ("", environment_key(run.environment))]
    store.add_models(theirs.models().values())
    numbers, there = dict[int, int](), dict[tuple[str, int, int], dict[str, Trial]]()
    for stored_trial in store.trials(rounds=False):
        there.setdefault(_block_of(stored_trial), {})[stored_trial.trial.case_id] = stored_trial.trial
    for run in runs:
        machine = environment_key(run.environment)
        stored = runs_here.get((machine, run.started_at, run.seed))
        numbers[run.id] = number = store.add_run(as_stored(run)) if stored is None else stored.id
        if stored is not None and stored.status == "started" != run.status:
            store.set_in_plan(number, "stages", run.stages)
            store.end_run(number, run.status, run.ended_at)
        used = {stored_trial.trial.case_id for stored_trial in trials if stored_trial.run_id == run.id}
        store.add_cases(number, {case_id: case for case_id, case in cases.items() if case_id in used})
        store.add_warnings(
            number, (stored_trial for stored_trial in theirs.warnings() if stored_trial.run_id == run.id)
        )
        if stored is None:
            store.add_figures(
                number, (stored_trial for kind in FIGURES for of, stored_trial in theirs.figures(kind) if of == run.id)
            )
    for of_block in grouped(trials, lambda stored_trial: stored_trial.block_id).values():
        block, here = [stored_trial.trial for stored_trial in of_block], there.setdefault(_block_of(of_block[0]), {})
        if (supersede := _counts_instead(block, here)) or any(trial.case_id not in here for trial in block):
            new += store.add(numbers[of_block[0].run_id], block, supersede=supersede)
            here |= {trial.case_id: trial for trial in block}
    for distance in theirs.distances() if len(store.runs()) > len(runs_here) else ():
        store.add_distance(distance)
    machines = dict.fromkeys(stored_trial.environment_key for stored_trial in trials)
    return Merged(new=tuple(new), n_known=len(trials) - len(new), machines=tuple(machines))


def _block_of(stored: Measured) -> tuple[str, int, int]:
    return stored.environment_key, stored.trial.block, stored.trial.repeat


def _counts_instead(block: Sequence[Trial], here: Mapping[str, Trial]) -> bool:
    """Whether a measurement of a block counts instead of what is there of it."""
    pairs = [(trial, here[trial.case_id]) for trial in block if trial.case_id in here]
    better = any(theirs.valid and not ours.valid for theirs, ours in pairs)
    worse = any(ours.valid and not theirs.valid for theirs, ours in pairs)
    return better or (not worse and any(theirs.started_at > ours.started_at for theirs, ours in pairs))
