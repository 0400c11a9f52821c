"""Servers side by side in interleaved blocks: one trial a request, in the store."""

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from mlsd.drafters import METHODS
from mlsd.engine.context import threads_of
from mlsd.engine.losslessness import first_difference
from mlsd.errors import InputError, MlsdError, ServerError
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_conditions, read_environment
from mlsd.measure.messages import BlockMeasured, Event, Started, failed_trial, now, trial_of
from mlsd.measure.parent.blocks import ALL, Experiment, RunSettings, Watcher, machine_lock, next_repeat
from mlsd.measure.parent.race import Race
from mlsd.measure.parent.requests import BenchResult, check_database, conduct, result_of
from mlsd.measure.process import measure_job, run_info
from mlsd.models.library import LocalModel
from mlsd.planning.job import Job, ModelFile, Slot, TrialRole, file_of, prompt_key
from mlsd.planning.plan import in_order
from mlsd.planning.prompts import Prompt
from mlsd.planning.request import MOST_BLOCKS
from mlsd.records import (
    N_TOKENS,
    NO_DRAFTER,
    Case,
    DrafterSpec,
    Losslessness,
    ModelRef,
    QualityWarning,
    Record,
    Sampling,
    Status,
    Trial,
)  # fmt: skip
from mlsd.servers.counters import Counters
from mlsd.servers.distrust import decode_ns_of, impossible, whole_decode_ns
from mlsd.servers.endpoint import Endpoint, Request, Server, ServerAnswer
from mlsd.servers.judge import judge
from mlsd.servers.launch import Launched
from mlsd.servers.request import SERVERS, ServerRequest
from mlsd.stats import grouped
from mlsd.store import sessions
from mlsd.store.newest import study_path
from mlsd.store.store import Store
from mlsd.trials.decisions import Stopping
from mlsd.trials.results import SessionPlan
from mlsd.trials.sums import BY_ACCEPTED, DRAFT_ROUNDS, DRAFTED, DRAFTED_RIGHT

SPECULATION = "speculation"  # the drafter of a server that was not launched: it does not say which
_WARM_TOKENS, _WARM_PREDICT = 8, 8
_PREPARING = 10**6  # nonces of requests before anything is timed
_MOST_EARLIER = 64  # answers whose times are remembered
_SHOWN = 24  # characters around the first difference of two texts
_QUEUES = "{0} answers {1} of {2} requests at once, the others wait. Start it with --parallel {2}."
_NOT_TOLD = "The server does not tell of drafted tokens: that it drafts is taken on trust."
_NOTHING_DRAFTED = (
    "No server reports drafted tokens: two plain servers are compared. In llama-server --model-draft alone drafts "
    "nothing, it needs --spec-type too."
)
_CARRIES = (
    "{} carries what it drafted from into the next request: of a new prompt it accepts {} of {} tokens the first time "
    "and {} of {} the second. {}"
)
_CONFUSED = (
    "{} does not repeat itself (from token {} on): it writes another text when a prompt comes again, as a server does "
    "that goes on from a faulty memory of the first time."
)
_OTHER_CLOCK = (
    "{} claims another time for its decoding than passed here: such answers are timed by the clock of this program, "
    "whole less one of a single token."
)
_FACTS = {"model": "model file or quantization", "n_vocab": "vocabulary", "n_parameters": "number of weights"}

Arm = int | None  # place of the server; None: our own loop


@dataclass
class Side:
    """One arm: a server that is there, or one that is launched when it is needed; and what is known of it."""

    spec: DrafterSpec
    gamma: int
    server: Endpoint | Launched
    draft: bool = True  # requests leave drafting on
    must_draft: bool = False  # an answer without a draft is a fault
    carries: bool = False  # what it drafts depends on requests before
    reported: Server | None = None  # by it, of itself
    prompts: dict[str, Request] = field(default_factory=dict)  # by name; none: as the first side takes them
    references: dict[str, ServerAnswer] = field(default_factory=dict)  # by name: its first greedy answers
    prefills: dict[str, ServerAnswer] = field(default_factory=dict)  # by name: the quickest answer of one token
    earlier: deque[ServerAnswer] = field(default_factory=partial(deque, maxlen=_MOST_EARLIER))

    @property
    def endpoint(self) -> Endpoint:
        """The server, started if need be. Raises: ServerError."""
        endpoint = self.server.endpoint if isinstance(self.server, Launched) else self.server
        self.reported = endpoint.server
        return endpoint

    def stop(self) -> str:
        """End one that was launched, which then starts anew; how it had ended by itself."""
        if not isinstance(self.server, Launched):
            return ""
        death = self.server.death
        self.server.stop()
        return death


class ServerModels(Record, frozen=True, kw_only=True):
    """The files behind the servers, where they are known."""

    target: LocalModel | None = None
    drafts: tuple[LocalModel, ...] = ()
    together: bool = True  # memory holds all servers at once

    @property
    def files(self) -> tuple[LocalModel, ...]:
        return tuple(model for model in (self.target, *self.drafts) if model is not None)


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
        session = _Session(sides, wanted, prompts, models)
        session.prepare()
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
            decides = session.decides.count(cases.values())
            race = None if wanted.goal is None else Race(wanted.goal, plan=decides)
            record = {"profile": None, "suites": [SERVERS], "servers": [side.spec.name for side in sides]}
            record |= sessions.as_stored(decides)
            plan = Experiment(loads=(session.job(slots),), environment=environment, facts=facts, record=record)

            def drive(job: Job, *, turns: Iterable[Sequence[int]]) -> Generator[Event]:
                for chosen in turns:
                    yield from session.measure(job, arm_of, chosen)

            outcome, warnings = conduct(plan, store, RunSettings(seed=wanted.seed), watcher, race or ALL, drive)
            advice = "See the page on servers in the documentation."
            noted = tuple(QualityWarning(code="server", message=note, advice=advice) for note in session.notes)
            store.add_warnings(outcome.run_id, noted)
            own, done = sessions.of_run(store, outcome.run_id), (outcome, (*warnings, *noted))
            found = result_of(store, path, done, own, models=models.files, race=race)
    return ServerResult(
        **asdict(found),
        notes=tuple(session.notes),
        deterministic=session.deterministic,
        base=session.decides.base,
        agreement=tuple(session.agreement()),
    )


class _Session:
    """What is known of the sides and prompts of one call."""

    def __init__(
        self, sides: Sequence[Side], wanted: ServerRequest, prompts: Sequence[Prompt], models: ServerModels
    ) -> None:
        self._sides, self._wanted, self._models, self._rivals = sides, wanted, models, bool(wanted.rivals)
        # With a process for each of its turns a server's luck with memory is noise, which the blocks show.
        self._anew = wanted.goal is not None and isinstance(sides[0].server, Launched)
        self._prompts = {prompt.key: prompt for prompt in prompts}
        self.deterministic = True
        self.notes: list[str] = []

    @property
    def decides(self) -> SessionPlan:
        """What is compared with what: per number of requests at once, and our own loop by itself."""
        return SessionPlan(
            pool="all",
            stopping=Stopping.FIXED if self._wanted.goal is None else Stopping.SEQUENTIAL,
            process_per_arm=not self._anew,
            base=self._target(0).id if self._rivals else "",
            n_threads=threads_of(self._wanted.engine),
        )

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _use(self, side: Side) -> Endpoint:
        """The side's server; others that lie in memory only while they work are ended first."""
        for other in self._sides if not self._models.together else ():
            if other is not side:
                other.stop()
        return side.endpoint

    def _request(self, side: Side, name: str, nonce: int) -> Request:
        wanted = self._wanted
        prompt = (side.prompts or self._sides[0].prompts)[name]
        return replace(
            prompt, draft=side.draft, nonce=nonce, n_predict=wanted.n_predict, sampling=wanted.sampling,
            ignore_eog=wanted.ignore_eog,
        )  # fmt: skip

    # --- before anything is timed ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read the prompts, warm every server, and see what each does with the same request twice."""
        first = self._sides[0]
        endpoint = self._use(first)
        if self._rivals and any(self._use(side).program.chat_only for side in self._sides):
            self._prompts = {key: replace(prompt, chat=True) for key, prompt in self._prompts.items()}
        turns = {name: self._conversation(endpoint, prompt) for name, prompt in self._prompts.items()}
        for side in self._sides:
            try:
                other = self._use(side)
                if not self._rivals:
                    _check_same_model(endpoint.server, other.server)
                if self._rivals or side is first:
                    side.prompts = {name: _read(other, prompt, turns[name]) for name, prompt in self._prompts.items()}
                self._answer_twice(side)
                for number, name in enumerate(side.prompts) if self._wanted.sampling.greedy else ():
                    if name not in side.references:
                        side.references[name] = self._answer(side, self._request(side, name, _PREPARING + number))
            except ServerError as error:  # its trials will fail with their reasons, and the others are measured
                if side is first:
                    raise
                self._note(f"{side.spec.name}: {error}")
        self._note_servers()

    def _conversation(self, endpoint: Endpoint, prompt: Prompt) -> tuple[str, ...]:
        """The turns up to and with a prompt, the server's own greedy answers between; none for a plain text."""
        turns: list[str] = []
        for turn in prompt.earlier if prompt.chat else ():
            turns.append(turn)
            request = endpoint.chat(tuple(turns))
            request = replace(request, n_predict=self._wanted.n_predict, ignore_eog=False, draft=False)
            turns.append(endpoint.complete(request).text.strip())
        return (*turns, prompt.text) if prompt.chat else ()

    def _answer(self, side: Side, request: Request) -> ServerAnswer:
        endpoint = self._use(side)
        side.earlier.append(endpoint.settle(request, endpoint.complete(request)))
        return side.earlier[-1]

    def _answer_twice(self, side: Side) -> None:
        """Whether a server repeats itself, and whether its draft remembers requests: then it drafts otherwise.

        The second is asked with a prompt that nobody can have asked before: what a server drafts for one that it knows
        may be what it wrote then (llama.cpp 26100), the first time here as well.
        """
        name = next(iter(self._prompts))
        request = self._request(side, name, _PREPARING)
        request = request if side.prompts else _unseen(self._use(side), request)
        first, second = (self._answer(side, replace(request, nonce=n * _PREPARING)) for n in (1, 2))
        if not self._wanted.sampling.greedy:
            return
        if side.prompts:
            side.references[name] = first
            self._check_repeats(side, first, second)
        elif not self._rivals and (place := _apart(first, second)) is not None:
            self._note(_CONFUSED.format(side.spec.name, place))
        counts = [count for answer in (first, second) for count in (answer.accepted, answer.proposed)]
        side.carries = counts[:2] != counts[2:]
        if side.carries:
            launched = isinstance(side.server, Launched)
            then = "It is started anew before each turn." if launched else "Below is a prompt that comes again."
            self._note(_CARRIES.format(side.spec.name, *counts, then))

    def _check_repeats(self, side: Side, first: ServerAnswer, second: ServerAnswer) -> None:
        where = _apart(first, second)
        if where is None:
            return
        place = f" (from token {where} on)" if first.tokens else ""
        if self._rivals:
            self._note(f"{self._target(self._sides.index(side)).id} does not repeat itself{place}.")
        else:
            self.deterministic = False
            self._note(f"The plain server does not repeat itself{place}: only speed can be judged.")

    def _note_servers(self) -> None:
        counts = [(a.proposed, a.accepted) for side in self._sides[1:] if not side.must_draft for a in side.earlier]
        if counts and not self._rivals and not any(map(any, counts)):
            self._note(_NOT_TOLD if set(counts) == {(None, None)} else _NOTHING_DRAFTED)
        for side in self._sides if self._rivals else self._sides[:1]:
            server = side.reported
            if server is None:
                continue
            n_most = max(self._wanted.parallel)
            if server.n_slots is not None and server.n_slots < n_most:
                self._note(_QUEUES.format(server.program, server.n_slots, n_most))
            if server.row.untested:
                self._note(f"{server.words}: read its figures with care.")
            if not server.row.gives_tokens and not self._rivals:
                self._note(f"{server.program} gives no token ids: outputs are compared as text.")
            if all(a.decode_ns is None for other in self._sides if other.reported == server for a in other.earlier):
                self._note(
                    f"{server.program} tells no times in its streams: every tok/s is of whole answers, by our clock."
                )

    # --- the plan -------------------------------------------------------------------------------------------------

    def blocks(self) -> list[list[tuple[Arm, Case]]]:
        """A block for each group of prompts that are sent at once: every arm's cases, those of an arm together.

        The last group is topped up from the first prompts. Raises: InputError where there are too few of them.
        """
        made, prompts = [], list(self._prompts.values())
        for n in self._wanted.parallel:
            if len(prompts) < n:
                raise InputError(
                    f"{n} requests at once need {n} different prompts; {len(prompts)} were given.", hint="Add --prompt."
                )
            arms: list[Arm] = [*range(len(self._sides)), *([None] if self._wanted.with_engine and n == 1 else [])]
            suite = SERVERS if n == 1 else f"{SERVERS}-parallel-{n}"
            for start in range(0, len(prompts), n):
                group = (prompts * 2)[start : start + n]
                made.append([(arm, case) for arm in arms for one in group for case in self._cases(arm, one, suite)])
        return made

    def _cases(self, arm: Arm, prompt: Prompt, suite: str) -> Iterator[Case]:
        wanted = self._wanted
        plain = Case(
            suite=suite,
            target=self._target(arm),
            prompt=prompt.ref,
            n_predict=wanted.n_predict,
            sampling=Sampling() if wanted.sampling.greedy else wanted.sampling,
            engine=wanted.engine,
            ignore_eog=wanted.ignore_eog,
        )
        if arm is None:
            drafting = [side for side in self._sides[1:] if side.spec.name in METHODS]
            yield from (plain, *(replace(plain, drafter=side.spec, gamma=side.gamma) for side in drafting))
            return
        side, words = self._sides[arm], f"{self._server(arm).words} {wanted.flags}".strip()
        yield replace(plain, drafter=side.spec, gamma=side.gamma, server=words)

    def _server(self, arm: int) -> Server:
        server = self._sides[arm if self._rivals else 0].reported
        assert server is not None  # the first has answered, and rivals were asked whether they take plain text
        return server

    def _target(self, arm: Arm) -> ModelRef:
        local = self._models.target
        if arm is None:
            assert local is not None
            return local.ref
        host = self._server(arm)
        # Another name than our own engine's target, so that no table and no export can take one for the other.
        known = ModelRef(id=host.model) if local is None else local.ref
        twins = self._rivals and [self._server(place).words for place in range(len(self._sides))].count(host.words) > 1
        return replace(known, id=f"{known.id} @ {host.program}{f' {arm + 1}' if twins else ''}")

    def job(self, slots: tuple[Slot, ...]) -> Job:
        """All blocks as one job."""
        local = self._models.target
        return Job(
            target=ModelFile(ref=slots[0].case.target, path="" if local is None else str(local.path)),
            prompts={prompt_key(slot.case.prompt): self._prompts[slot.case.prompt.key] for slot in slots},
            slots=slots,
        )

    # --- measuring ------------------------------------------------------------------------------------------------

    def measure(self, job: Job, arm_of: Mapping[str, Arm], chosen: Sequence[int]) -> Iterator[Event]:
        """Measure a block arm by arm; what fails is a failed trial, and the next arm runs."""
        trials: dict[str, Trial] = {}
        for arm, places in grouped(chosen, lambda place: arm_of[job.slots[place].case_id]).items():
            slots = [job.slots[place] for place in places]
            yield Started(index=places[0])
            measured = self._own_loop(job, slots) if arm is None else self._measure(self._sides[arm], slots)
            trials |= {slot.case_id: trial for slot, trial in measured}
        yield BlockMeasured(slots=tuple(chosen), trials=tuple(trials[job.slots[place].case_id] for place in chosen))

    def _own_loop(self, rest: Job, slots: Sequence[Slot]) -> Iterator[tuple[Slot, Trial]]:
        assert self._models.target is not None
        job = Job(
            target=file_of(self._models.target),
            models=tuple(map(file_of, self._models.drafts)),
            prompts=rest.prompts,
            slots=tuple(sorted(slots, key=lambda slot: slot.case.arm != "ar")),
        )
        try:
            for event in measure_job(job):
                if isinstance(event, BlockMeasured):
                    yield from zip(job.slots, event.trials, strict=True)
        except MlsdError as error:
            yield from ((slot, failed_trial(slot, str(error))) for slot in job.slots)

    def _measure(self, side: Side, slots: Sequence[Slot]) -> Iterator[tuple[Slot, Trial]]:
        """The trials of one turn, judged when all of its requests have ended."""
        requests = [self._request(side, slot.case.prompt.key, 1 + slot.repeat) for slot in slots]
        try:
            if side.carries or self._anew:
                side.stop()
            endpoint = self._use(side)
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
        reason = reason or (None if self._rivals else _fault(side, answer, verdict))
        decode_ns, rounds = decode_ns_of(answer, prefill), answer.rounds
        if answer.decode_ns is not None and decode_ns != answer.decode_ns:
            timed["server_decode_ns"], rounds = answer.decode_ns, ()  # rounds are of the same clock
            self._note(_OTHER_CLOCK.format(endpoint.program.name))
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
        if self._rivals or not self._wanted.sampling.greedy or not self.deterministic:
            return None
        plain = self._sides[0]
        reference = plain.references[slot.case.prompt.key]
        if slot.case.arm == "ar" and slot.case.suite == SERVERS and _apart(reference, answer) is not None:
            self._check_repeats(plain, reference, answer)
            return None
        return judge(self._use(plain), request.prompt, answer, reference)

    # --- afterwards -----------------------------------------------------------------------------------------------

    def agreement(self) -> Iterator[str]:
        """Whether each rival writes what the first one does, prompt by prompt, and why it may not."""
        first = self._sides[0]
        for arm, side in enumerate(self._sides[1:] if self._rivals else (), 1):
            names = [name for name in first.references if name in side.references]
            if not names:
                continue
            pairs = {name: (first.references[name], side.references[name]) for name in names}
            parted = {name: _parted(one.text, other.text) for name, (one, other) in pairs.items()}
            n_same = sum(words is None for words in parted.values())
            yield f"{self._target(arm).id} writes what {self._target(0).id} does on {n_same} of {len(pairs)} prompts."
            yield from (f"{name}: {words}" for name, words in parted.items() if words is not None)
            facts = _differing(self._server(0), self._server(arm))
            why = [f"{_FACTS[name]} ({one} and {other})" for name, one, other in facts]
            read = [answer.n_prompt for answer in pairs[names[0]]]
            if None not in read and read[0] != read[1]:
                why.append(f"tokenizer or template ({names[0]} is {read[0]} tokens and {read[1]})")
            if why:
                yield f"They are not the same: {'; '.join(why)}."


def _read(endpoint: Endpoint, prompt: Prompt, chat: tuple[str, ...]) -> Request:
    """A prompt as the server takes it; exactly `n_tokens` of it where it asks for that.

    Raises: InputError where the server cannot tell tokens and a length in tokens was asked for.
    """
    if chat:
        return replace(endpoint.chat(chat), earlier=chat[1::2])
    tokens = endpoint.tokenize(prompt.text)
    if prompt.n_tokens is not None and len(tokens) < prompt.n_tokens:
        raise InputError(
            f"{endpoint.program.name} cannot cut the prompt {prompt.key} to {prompt.n_tokens} tokens.",
            hint="Give a shorter one, or a whole text.",
        )
    return Request(prompt=tokens[: prompt.n_tokens] or prompt.text)


def _unseen(endpoint: Endpoint, request: Request) -> Request:
    """A request of the same kind and length that begins with the time, so that no server has read it."""
    mark = f"{time.time_ns()}\n"
    if request.messages:
        first, *rest = request.messages
        return replace(request, messages=(mark + first, *rest))
    if isinstance(request.prompt, str):
        return replace(request, prompt=mark + request.prompt[len(mark) :])
    new = endpoint.tokenize(mark)
    return replace(request, prompt=(*new, *request.prompt[len(new) :]))


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


def _check_same_model(plain: Server, other: Server) -> None:
    for name, one, two in _differing(plain, other):
        if name != "model":  # which may be given by any name
            raise InputError(
                f"The servers hold different models: {plain.model} has {name} {one:,}, {other.model} {two:,}.",
                hint="Start both with the same target; `mlsd server URL URL` compares two models.",
            )


def _differing(one: Server, other: Server) -> list[tuple[str, Any, Any]]:
    """What both tell of their models, where it is not the same."""
    told = [(name, getattr(one, name), getattr(other, name)) for name in _FACTS]
    return [(name, a, b) for name, a, b in told if a is not None and b is not None and a != b]


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


def _apart(one: ServerAnswer, two: ServerAnswer) -> int | None:
    """The first token that differs, or character where there are no tokens; None where all are the same."""
    return first_difference(one.tokens, two.tokens) if one.tokens else first_difference(one.text, two.text)


def _parted(one: str, other: str) -> str | None:
    """Where two texts part; None where they are the same."""
    place = first_difference(one, other)
    if place is None:
        return None
    ends = (text[place : place + _SHOWN] or "(its end)" for text in (one, other))
    return f"the texts part after {place} characters, at {' and '.join(map(repr, ends))}"
