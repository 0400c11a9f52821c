"""Servers side by side in interleaved blocks: one trial a request, in the store."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec.structs import asdict, replace

from mlsd.engine.context import threads_of
from mlsd.errors import InputError, MlsdError, ServerError
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_conditions, read_environment
from mlsd.measure.bench import Bench, BlockBench, Report
from mlsd.measure.messages import BlockMeasured, Started, failed_trial, now, trial_of
from mlsd.measure.parent.blocks import ALL, Experiment, RunSettings, Watcher, machine_lock, next_repeat
from mlsd.measure.parent.race import Race
from mlsd.measure.parent.requests import BenchResult, check_database, conduct, result_of
from mlsd.measure.process import run_info
from mlsd.methods import METHODS
from mlsd.planning.job import Block, Job, ModelFile, Slot, TrialRole, file_of, prompt_key
from mlsd.planning.plan import in_order
from mlsd.planning.prompts import Prompt
from mlsd.planning.request import MOST_BLOCKS
from mlsd.records import (
    N_TOKENS,
    NO_DRAFTER,
    Case,
    Losslessness,
    QualityWarning,
    Sampling,
    Status,
    Trial,
)  # fmt: skip
from mlsd.servers.counters import Counters
from mlsd.servers.distrust import decode_ns_of, impossible, whole_decode_ns
from mlsd.servers.endpoint import Endpoint, Request, ServerAnswer
from mlsd.servers.judge import judge
from mlsd.servers.launch import Launched
from mlsd.servers.request import SERVERS, ServerRequest
from mlsd.servers.sides import Arm, ServerModels, Side, Sides, apart
from mlsd.stats import grouped
from mlsd.store import sessions
from mlsd.store.newest import study_path
from mlsd.store.store import Store
from mlsd.trials.decisions import Stopping
from mlsd.trials.results import SessionPlan
from mlsd.trials.sums import BY_ACCEPTED, DRAFT_ROUNDS, DRAFTED, DRAFTED_RIGHT

_WARM_TOKENS, _WARM_PREDICT = 8, 8
_OTHER_CLOCK = (
    "{} claims another time for its decoding than passed here: such answers are timed by the clock of this program, "
    "whole less one of a single token."
)


class ServerResult(BenchResult, frozen=True, kw_only=True):
    """The same of servers, and what was found out about them."""

    notes: tuple[str, ...]
    deterministic: bool  # the plain server repeats itself
    base: str = ""  # the target's id at the server that others are compared with, where none of them is plain
    agreement: tuple[str, ...] = ()  # of two such servers: whether they write the same, and why they may not


def measure(
    sides: Sequence[Side],
    wanted: ServerRequest,
    prompts: Sequence[Prompt],
    models: ServerModels,
    db: Path | None = None,
    watcher: Watcher | None = None,
) -> ServerResult:
    """Measure every side against the first, and store each request as a trial.

    The first one is plain and the others have its target; or they are rivals with models of their own, of which only
    speed and text are compared.
    Raises: ServerError when the first server cannot even answer once; LockError, StoreError, InputError.
    """
    path = db or study_path(SERVERS)
    with machine_lock(), ExitStack() as stack:
        for side in sides:
            stack.callback(side.stop)
        check_database(path)
        environment = read_environment(run_info(wanted.engine))
        ready = Sides(sides, wanted, prompts, models)
        ready.prepare()
        session = _Session(ready)
        blocks = session.blocks()
        cases = {case.id: case for block in blocks for _, case in block}
        arm_of = {case.id: arm for block in blocks for arm, case in block}
        with Store.open(path) as store:
            first = next_repeat(store, environment, cases)
            last = first + (MOST_BLOCKS if wanted.goal else wanted.repeats)
            study: TrialRole = "study"
            planned = [[(case, case.id, study) for _, case in block] for block in blocks]
            slots = in_order(dict.fromkeys(range(first, last), planned), wanted.seed, turn=arm_of.__getitem__)
            facts = tuple(model_facts(model.path, ref=model.ref) for model in models.files)
            decides = session.decides(cases)
            before = sessions.of_cases(store, environment, decides, cases.values())
            earlier = [one for known in before for one in known.trials]
            race = None if wanted.goal is None else Race(wanted.goal, plan=decides, earlier=earlier)
            record = {"profile": None, "suites": [SERVERS], "servers": [side.spec.name for side in sides]}
            record |= sessions.as_stored(decides)
            plan = Experiment(loads=(session.job(slots),), environment=environment, facts=facts, record=record)

            start = partial(_Bench, session, arm_of)
            outcome, warnings = conduct(plan, store, RunSettings(seed=wanted.seed), watcher, race or ALL, start)
            advice = "See the page on servers in the documentation."
            noted = tuple(QualityWarning(code="server", message=note, advice=advice) for note in ready.notes)
            store.add_warnings(outcome.run_id, noted)
            own, done = sessions.of_run(store, outcome.run_id), (outcome, (*warnings, *noted))
            found = result_of(store, path, done, own, models=models.files, race=race)
    return ServerResult(
        **asdict(found),
        notes=tuple(ready.notes),
        deterministic=ready.deterministic,
        base=decides.base,
        agreement=tuple(ready.agreement()),
    )


class _Session:
    """The plan of one call, and its trials."""

    def __init__(self, sides: Sides) -> None:
        self._sides, self._wanted = sides, sides.wanted
        # With a process for each of its turns a server's luck with memory is noise, which the blocks show.
        self._anew = self._wanted.goal is not None and isinstance(sides.all[0].server, Launched)

    def decides(self, cases: Mapping[str, Case]) -> SessionPlan:
        """What is compared with what: per number of requests at once, and our own loop by itself.

        Calls with the same cases go on with one another, where a process stands for as much in both.
        """
        identity = " ".join((str(self._anew), *sorted(cases)))
        plan = SessionPlan(
            id=f"{SERVERS} {hashlib.sha256(identity.encode()).hexdigest()[:16]}",
            pool="all",
            stopping=Stopping.FIXED if self._wanted.goal is None else Stopping.SEQUENTIAL,
            process_per_arm=not self._anew,
            base=self._sides.target(0).id if self._sides.rivals else "",
            n_threads=threads_of(self._wanted.engine),
        )
        return plan.count(cases.values())

    # --- the plan -------------------------------------------------------------------------------------------------

    def blocks(self) -> list[list[tuple[Arm, Case]]]:
        """A block for each group of prompts that are sent at once: every arm's cases, those of an arm together.

        The last group is topped up from the first prompts. Raises: InputError where there are too few of them.
        """
        made, prompts = [], list(self._sides.prompts.values())
        for n in self._wanted.parallel:
            if len(prompts) < n:
                raise InputError(
                    f"{n} requests at once need {n} different prompts; {len(prompts)} were given.", hint="Add --prompt."
                )
            arms: list[Arm] = [*range(len(self._sides.all)), *([None] if self._wanted.with_engine and n == 1 else [])]
            suite = SERVERS if n == 1 else f"{SERVERS}-parallel-{n}"
            for start in range(0, len(prompts), n):
                group = (prompts * 2)[start : start + n]
                made.append([(arm, case) for arm in arms for one in group for case in self._cases(arm, one, suite)])
        return made

    def _cases(self, arm: Arm, prompt: Prompt, suite: str) -> Iterator[Case]:
        wanted = self._wanted
        plain = Case(
            suite=suite,
            target=self._sides.target(arm),
            prompt=prompt.ref,
            n_predict=wanted.n_predict,
            sampling=Sampling() if wanted.sampling.greedy else wanted.sampling,
            engine=wanted.engine,
            ignore_eog=wanted.ignore_eog,
        )
        if arm is None:
            drafting = [side for side in self._sides.all[1:] if side.spec.name in METHODS]
            yield from (plain, *(replace(plain, drafter=side.spec, gamma=side.gamma) for side in drafting))
            return
        side, words = self._sides.all[arm], f"{self._sides.server(arm).words} {wanted.flags}".strip()
        yield replace(plain, drafter=side.spec, gamma=side.gamma, server=words)

    def job(self, slots: tuple[Slot, ...]) -> Job:
        """All blocks as one job."""
        local = self._sides.models.target
        return Job(
            target=ModelFile(ref=slots[0].case.target, path="" if local is None else str(local.path)),
            prompts={prompt_key(slot.case.prompt): self._sides.prompts[slot.case.prompt.key] for slot in slots},
            slots=slots,
        )

    # --- measuring ------------------------------------------------------------------------------------------------

    def measure(self, job: Job, arm: Arm, slots: Sequence[Slot]) -> Iterator[tuple[Slot, Trial]]:
        """The trials of an arm in one block; what fails is a failed trial."""
        return self._own_loop(job, slots) if arm is None else self._measure(self._sides.all[arm], slots)

    def _own_loop(self, rest: Job, slots: Sequence[Slot]) -> Iterator[tuple[Slot, Trial]]:
        assert self._sides.models.target is not None
        job = Job(
            target=file_of(self._sides.models.target),
            models=tuple(map(file_of, self._sides.models.drafts)),
            prompts=rest.prompts,
            slots=tuple(sorted(slots, key=lambda slot: slot.case.arm != "ar")),
        )
        try:
            with Bench(job) as bench:
                for block in job.blocks:
                    yield from zip(block.slots, bench.measure(block).trials, strict=True)
        except MlsdError as error:
            yield from ((slot, failed_trial(slot, str(error))) for slot in job.slots)

    def _measure(self, side: Side, slots: Sequence[Slot]) -> Iterator[tuple[Slot, Trial]]:
        """The trials of one turn, judged when all of its requests have ended."""
        requests = [self._sides.request(side, slot.case.prompt.key, 1 + slot.repeat) for slot in slots]
        try:
            if side.carries or self._anew:
                side.stop()
            endpoint = self._sides.use(side)
            _warm(endpoint, requests[0])
            with ThreadPoolExecutor(len(slots)) as pool:
                prefills = list(pool.map(lambda one: endpoint.complete(replace(one, n_predict=1)), requests))
                before = endpoint.counters() if len(slots) == 1 else None
                answers = list(pool.map(partial(_attempt, endpoint), requests))
        except MlsdError as error:
            yield from ((slot, failed_trial(slot, str(error))) for slot in slots)
            return
        for slot, request, answer, prefill in zip(slots, requests, answers, prefills, strict=True):
            name = f"{slot.case.suite} {slot.case.prompt.key}"
            # A moment's stall would pass for prefill, and shorten the decoding by as much.
            side.prefills[name] = min(prefill, side.prefills.get(name, prefill), key=lambda one: one.total_ns)
            try:
                yield slot, self._trial(side, endpoint, slot, request, answer, side.prefills[name], before)
            except MlsdError as error:
                yield slot, failed_trial(slot, str(error))

    def _trial(
        self,
        side: Side,
        endpoint: Endpoint,
        slot: Slot,
        request: Request,
        attempt: tuple[str, ServerAnswer | MlsdError],
        prefill: ServerAnswer,
        before: Counters | None,
    ) -> Trial:
        """The trial of an answer that began at a time. Raises: MlsdError where it gives no number."""
        started_at, answer = attempt
        if isinstance(answer, MlsdError):  # a launched server starts anew, whatever state it is in
            raise ServerError(" ".join(filter(None, (str(answer), side.stop()))))
        after = None if before is None else endpoint.counters()
        grown = None if before is None or after is None else after.since(before)
        answer = endpoint.settle(request, answer)
        reason = impossible(request, answer, side.gamma, grown, side.earlier)
        side.earlier.append(answer)
        if reason is not None and answer.n_tokens < request.n_predict:
            raise ServerError(reason[0].upper() + reason[1:] + ".")
        verdict = self._verdict(slot, request, answer)
        if grown is not None:
            counted = {"proposed": grown.proposed, "accepted": grown.accepted, "n_rounds": grown.rounds}
            answer = replace(answer, **{name: n for name, n in counted.items() if getattr(answer, name) is None})
        timed = {
            "whole_decode_ns": whole_decode_ns(answer, prefill),
            "first_token_ns": answer.first_ns,
            DRAFTED: answer.proposed,
            DRAFTED_RIGHT: answer.accepted,
            N_TOKENS: None if answer.tokens else answer.n_tokens,
            DRAFT_ROUNDS: answer.n_rounds,
            **{f"{BY_ACCEPTED}{n}": rounds for n, rounds in enumerate(answer.by_accepted)},
        }
        reason = reason or (None if self._sides.rivals else _fault(side, answer, verdict))
        decode_ns, rounds = decode_ns_of(answer, prefill), answer.rounds
        if answer.decode_ns is not None and decode_ns != answer.decode_ns:
            timed["server_decode_ns"], rounds = answer.decode_ns, ()  # rounds are of the same clock
            self._sides.note(_OTHER_CLOCK.format(endpoint.program.name))
        return trial_of(  # by the server's clock where it has one, and the client's beside it
            slot,
            status=Status.VALID if reason is None else Status.INVALID,
            reason=reason,
            started_at=started_at,
            n_prompt=answer.n_prompt,
            tokens=answer.tokens,
            text=answer.text,
            prefill_ns=answer.prompt_ns if answer.prompt_ns is not None else answer.first_ns,
            decode_ns=decode_ns,
            rounds=rounds,
            earlier=request.earlier,
            losslessness=verdict,
            stats={name: float(value) for name, value in timed.items() if value is not None},
            conditions=read_conditions(),
        )

    def _verdict(self, slot: Slot, request: Request, answer: ServerAnswer) -> Losslessness | None:
        """The verdict on a greedy answer; None where there is nothing sure to compare it with."""
        if self._sides.rivals or not self._wanted.sampling.greedy or not self._sides.deterministic:
            return None
        plain = self._sides.all[0]
        reference = plain.references[slot.case.prompt.key]
        if slot.case.arm == "ar" and slot.case.suite == SERVERS and apart(reference, answer) is not None:
            self._sides.check_repeats(plain, reference, answer)
            return None
        return judge(self._sides.use(plain), request.prompt, answer, reference)

    # --- afterwards -----------------------------------------------------------------------------------------------


def _warm(endpoint: Endpoint, request: Request) -> None:
    """A few tokens, so that no turn begins on a cold connection or a cold server.

    Of another text, or of the prompt itself where the server may remember it: then it does so in all that is timed.
    """
    request = replace(request, nonce=time.monotonic_ns() % 10**6)
    if not endpoint.program.forgets:
        endpoint.complete(replace(request, n_predict=1))
        return
    words = request.prompt[: _WARM_TOKENS if isinstance(request.prompt, tuple) else 20] or "Hello"
    endpoint.complete(replace(request, prompt=words, messages=(), n_predict=_WARM_PREDICT, ignore_eog=False))


def _attempt(endpoint: Endpoint, request: Request) -> tuple[str, ServerAnswer | MlsdError]:
    """When it began, and the answer or why there is none."""
    started_at = now()
    try:
        return started_at, endpoint.complete(request)
    except MlsdError as error:
        return started_at, error


def _fault(side: Side, answer: ServerAnswer, verdict: Losslessness | None) -> str | None:
    if verdict is not None and verdict.verdict == "diverged":
        where = "" if verdict.first_difference is None else f" at token {verdict.first_difference}"
        return f"output differs from the plain server's{where}"
    if side.spec.name == NO_DRAFTER and answer.proposed:
        return f"the server that should be plain drafted {answer.proposed} tokens"
    if side.must_draft and not answer.proposed:
        why = side.server.complaint if isinstance(side.server, Launched) else ""
        return f"the server reports no drafted tokens: {f'its log says {why!r}' if why else 'it ignored the setting'}"
    return None


class _Bench(BlockBench):
    """Measures blocks arm by arm."""

    def __init__(self, session: _Session, arm_of: Mapping[str, Arm], job: Job, report: Report) -> None:
        self._session, self._arm_of, self._job, self._report = session, arm_of, job, report
        self._places = {(slot.case_id, slot.repeat): place for place, slot in enumerate(job.slots)}

    def measure(self, block: Block) -> BlockMeasured:
        places = {slot.case_id: self._places[slot.case_id, slot.repeat] for slot in block.slots}
        trials: dict[str, Trial] = {}
        for arm, slots in grouped(block.slots, lambda slot: self._arm_of[slot.case_id]).items():
            self._report(Started(index=places[slots[0].case_id]))
            measured = self._session.measure(self._job, arm, slots)
            trials |= {slot.case_id: trial for slot, trial in measured}
        return BlockMeasured(slots=tuple(places.values()), trials=tuple(trials[case_id] for case_id in places))
