"""Servers side by side: what is known of them before anything is timed, and blocks of requests measured as a call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from mlsd.engine.losslessness import first_difference
from mlsd.errors import InputError, MlsdError, ServerError
from mlsd.hardware import read_conditions
from mlsd.measure.bench import Bench, BlockBench, Report
from mlsd.measure.messages import BlockMeasured, Started, failed_trial, now, trial_of
from mlsd.measure.stage_clock import StageClock
from mlsd.models.library import LocalModel
from mlsd.planning.job import Block, Job, Slot, file_of
from mlsd.planning.prompts import Prompt
from mlsd.records import N_TOKENS, NO_DRAFTER, DrafterSpec, Losslessness, ModelRef, Status, Trial
from mlsd.servers.distrust import decode_ns_of, impossible, whole_decode_ns
from mlsd.servers.endpoint import Endpoint, Request, Server, ServerAnswer
from mlsd.servers.judge import equal, judge
from mlsd.servers.launch import Launched
from mlsd.servers.programs import Counters, counts_between
from mlsd.servers.request import SERVERS, ServerRequest
from mlsd.stats import grouped
from mlsd.trials.rates import BY_ACCEPTED, DRAFT_ROUNDS, DRAFTED, DRAFTED_RIGHT
from mlsd.trials.stages import StageTime, summed

T = TypeVar("T")
SPECULATION = "speculation"  # the drafter of a server that was not launched: it does not say which
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
    "{} does not repeat itself (from {} on): it writes another text when a prompt comes again, as a server does "
    "that goes on from a faulty memory of the first time."
)
_WARM_TOKENS, _WARM_PREDICT = 8, 8
_OTHER_CLOCK = (
    "{} claims another time for its decoding than passed here: such answers are timed by the clock of this program, "
    "whole less one of a single token."
)
_FACTS = {"model": "model file or quantization", "n_vocab": "vocabulary", "n_parameters": "number of weights"}

Arm = int | None  # number of the side; None: our own loop


@dataclass
class Side:
    """One arm: a server that is there, or one that is launched when it is needed; and what is known of it."""

    spec: DrafterSpec
    gamma: int
    server: Endpoint | Launched
    draft: bool = True  # requests leave drafting on
    must_draft: bool = False  # an answer without a draft is a fault
    reported: Server | None = None  # by it, of itself
    prompts: dict[str, Request] = field(default_factory=dict)  # by name; none: as the first side takes them
    references: dict[str, ServerAnswer] = field(default_factory=dict)  # by name: its first greedy answers
    prefills: dict[str, ServerAnswer] = field(default_factory=dict)  # by name: the quickest answer of one token
    earlier: deque[ServerAnswer] = field(default_factory=partial(deque, maxlen=_MOST_EARLIER))

    @property
    def launched(self) -> bool:
        return isinstance(self.server, Launched)

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


class ServerBench(BlockBench):
    """Measures blocks of requests: the first side is plain and the others have its target, or they are rivals.

    One launched server runs at a time, a new process for each of its turns: a process's luck with memory, and what a
    draft remembers of earlier requests, are then noise that the blocks show.
    """

    def __init__(
        self, sides: Sequence[Side], wanted: ServerRequest, prompts: Sequence[Prompt], files: Sequence[LocalModel] = ()
    ) -> None:
        """`files` are the models behind launched servers, the target first."""
        self.sides, self.wanted, self.files, self.rivals = sides, wanted, files, bool(wanted.rivals)
        self.prompts = {prompt.key: prompt for prompt in prompts}
        self.arm_of: Mapping[str, Arm] = {}  # by the id of a case
        self.deterministic = True
        self.notes: list[str] = []
        self._of_workers: tuple[StageTime, ...] = ()  # of the block that is measured

    def note(self, note: str) -> None:
        """Keep a doubt, once."""
        if note not in self.notes:
            self.notes.append(note)

    def use(self, side: Side) -> Endpoint:
        """The side's server; any other that was launched is ended first."""
        for other in self.sides:
            if other is not side:
                other.stop()
        return side.endpoint

    def request(self, side: Side, name: str, nonce: int) -> Request:
        """The request for a prompt by its name, as it is measured."""
        wanted = self.wanted
        prompt = (side.prompts or self.sides[0].prompts)[name]
        return replace(
            prompt, draft=side.draft, nonce=nonce, n_predict=wanted.n_predict, sampling=wanted.sampling,
            ignore_eog=wanted.ignore_eog,
        )  # fmt: skip

    # --- before anything is timed ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read the prompts, warm every server, and see what each does with the same request twice.

        Raises: ServerError where the first server cannot answer; InputError for servers of different models.
        """
        first = self.sides[0]
        endpoint = self.use(first)
        if self.rivals and any(self.use(side).program.chat_only for side in self.sides):
            self.prompts = {key: replace(prompt, chat=True) for key, prompt in self.prompts.items()}
        turns = {name: self._conversation(endpoint, prompt) for name, prompt in self.prompts.items()}
        for side in self.sides:
            try:
                other = self.use(side)
                if not self.rivals:
                    _check_same_model(endpoint.server, other.server)
                if self.rivals or side is first:
                    side.prompts = {name: _read(other, prompt, turns[name]) for name, prompt in self.prompts.items()}
                self._answer_twice(side)
                for number, name in enumerate(side.prompts) if self.wanted.sampling.greedy else ():
                    if name not in side.references:
                        side.references[name] = self._answer(side, self.request(side, name, _PREPARING + number))
            except ServerError as error:  # its trials will fail with their reasons, and the others are measured
                if side is first:
                    raise
                self.note(f"{side.spec.name}: {error}")
        self._note_servers()

    def _conversation(self, endpoint: Endpoint, prompt: Prompt) -> tuple[str, ...]:
        """The turns up to and with a prompt, the server's own greedy answers between; none for a plain text."""
        turns: list[str] = []
        for turn in prompt.earlier if prompt.chat else ():
            turns.append(turn)
            request = endpoint.chat(tuple(turns))
            request = replace(request, n_predict=self.wanted.n_predict, ignore_eog=False, draft=False)
            turns.append(endpoint.complete(request).text.strip())
        return (*turns, prompt.text) if prompt.chat else ()

    def _answer(self, side: Side, request: Request) -> ServerAnswer:
        endpoint = self.use(side)
        side.earlier.append(endpoint.settle(request, endpoint.complete(request)))
        return side.earlier[-1]

    def _answer_twice(self, side: Side) -> None:
        """Whether a server repeats itself, and whether its draft remembers requests: then it drafts otherwise.

        The second is asked with a prompt that nobody can have asked before: what a server drafts for one that it knows
        may be what it wrote then (llama.cpp 26100), the first time here as well.
        """
        request = self.request(side, next(iter(self.prompts)), _PREPARING)
        request = request if side.prompts else _unseen(self.use(side), request)
        first, second = (self._answer(side, replace(request, nonce=n * _PREPARING)) for n in (1, 2))
        if not self.wanted.sampling.greedy:
            return
        if side.prompts:
            side.references[next(iter(self.prompts))] = first
            self._check_repeats(side, first, second)
        elif not self.rivals and (index := apart(first, second)) is not None:
            self.note(_CONFUSED.format(side.spec.name, f"{'token' if first.tokens else 'character'} {index}"))
        counts = [count for answer in (first, second) for count in (answer.accepted, answer.proposed)]
        if counts[:2] != counts[2:]:
            then = "It is started anew before each turn." if side.launched else "Below is a prompt that comes again."
            self.note(_CARRIES.format(side.spec.name, *counts, then))

    def _check_repeats(self, side: Side, first: ServerAnswer, second: ServerAnswer) -> None:
        """Note a server that answers one request in two ways."""
        index = apart(first, second)
        if index is None:
            return
        where = f" (from token {index} on)" if first.tokens else ""
        if self.rivals:
            self.note(f"{self.target(self.sides.index(side)).id} does not repeat itself{where}.")
        else:
            self.deterministic = False
            self.note(f"The plain server does not repeat itself{where}: only speed can be judged.")

    def note_drafting(self) -> None:
        """Note, once everything is measured, where no answer was drafted: a look-up may find nothing in the first."""
        counts = [(a.proposed, a.accepted) for side in self.sides[1:] if not side.must_draft for a in side.earlier]
        if counts and not self.rivals and not any(map(any, counts)):
            self.note(_NOT_TOLD if set(counts) == {(None, None)} else _NOTHING_DRAFTED)

    def _note_servers(self) -> None:
        for side in self.sides if self.rivals else self.sides[:1]:
            server, n_most = side.reported, max(self.wanted.parallel)
            if server is None:
                continue
            name, answers = server.program.name, [a for s in self.sides if s.reported == server for a in s.earlier]
            if server.n_slots is not None and server.n_slots < n_most:
                self.note(_QUEUES.format(name, server.n_slots, n_most))
            if server.program.untested:
                self.note(f"{server.description}: read its figures with care.")
            if not server.program.gives_tokens and not self.rivals:
                self.note(f"{name} gives no token ids: outputs are compared as text.")
            if all(answer.decode_ns is None for answer in answers):
                self.note(f"{name} tells no times in its streams: every tok/s is of whole answers, by our clock.")

    # --- a block --------------------------------------------------------------------------------------------------

    def at(self, job: Job, report: Report) -> Self:
        """To measure the blocks of a job; the second hears what it is at."""
        self._job, self._report = job, report
        self._stages = StageClock(self.clock, "resting")
        return self

    def measure(self, block: Block) -> BlockMeasured:
        with self._stages.of("other"):
            trials = self._trials(block)
        stages, self._of_workers = summed((*self._of_workers, *self._stages.take())), ()
        return BlockMeasured(trials=tuple(trials[slot.case_id] for slot in block.slots), stages=stages)

    def _trials(self, block: Block) -> dict[str, Trial]:
        """The trials of a block by case."""
        trials: dict[str, Trial] = {}
        for arm, slots in grouped(block.slots, lambda slot: self.arm_of[slot.case_id]).items():
            self._report(Started(slot=slots[0]))
            try:
                turn = self._own_loop(slots) if arm is None else self._turn(self.sides[arm], slots)
                trials |= {slot.case_id: trial for slot, trial in turn}
            except MlsdError as error:
                trials |= {slot.case_id: failed_trial(slot, str(error)) for slot in slots}
        return trials

    def _own_loop(self, slots: Sequence[Slot]) -> list[tuple[Slot, Trial]]:
        for side in self.sides:
            side.stop()
        target, *drafts = map(file_of, self.files)
        plain_first = tuple(sorted(slots, key=lambda slot: slot.case.arm != "ar"))
        job = Job(target=target, models=tuple(drafts), prompts=self._job.prompts, slots=plain_first)
        self._of_workers = self._stages.take()
        with Bench(job) as bench:
            answers = [(part, bench.measure(part)) for part in job.blocks]
        self._stages.take()  # which the worker accounts for
        self._of_workers += tuple(stage for _, answer in answers for stage in answer.stages)
        return [pair for part, answer in answers for pair in zip(part.slots, answer.trials, strict=True)]

    def _turn(self, side: Side, slots: Sequence[Slot]) -> list[tuple[Slot, Trial]]:
        """The trials of one turn, judged when all of its requests have ended. Raises: MlsdError."""
        requests = [self.request(side, slot.case.prompt.key, 1 + slot.repeat) for slot in slots]
        side.stop()
        with self._stages.of("load"):
            endpoint = self.use(side)
        with self._stages.of("warm-up"):
            _warm(endpoint, requests[0], is_new=side.launched)
        with ThreadPoolExecutor(len(slots)) as pool:
            with self._stages.of("prefill"):
                prefills = list(pool.map(lambda request: endpoint.complete(replace(request, n_predict=1)), requests))
            before = endpoint.counters() if len(slots) == 1 else None
            with self._stages.of("timed rounds"):
                attempts = list(
                    pool.map(lambda request: (now(), _tried(partial(endpoint.complete, request))), requests)
                )
        is_counted = before is not None and isinstance(attempts[0][1], ServerAnswer)
        counted = counts_between(before, endpoint.counters() if is_counted else None)
        answers = [
            answer if isinstance(answer, MlsdError) else _tried(partial(endpoint.settle, request, answer))
            for request, (_, answer) in zip(requests, attempts, strict=True)
        ]
        death = side.stop() if any(isinstance(answer, MlsdError) for answer in answers) else ""
        trials = []
        turn = zip(slots, requests, attempts, answers, prefills, strict=True)
        for slot, request, (began, _), answer, prefill in turn:
            call = partial(self._trial, side, slot, request, began, prefill=prefill, counted=counted)
            trial = answer if isinstance(answer, MlsdError) else _tried(partial(call, answer))
            if isinstance(trial, MlsdError):
                trial = failed_trial(slot, f"{trial} {death}".strip())
            trials.append((slot, trial))
        return trials

    def _trial(
        self, side: Side, slot: Slot, request: Request, started_at: str, answer: ServerAnswer, prefill: ServerAnswer,
        counted: Counters,
    ) -> Trial:  # fmt: skip
        """The trial of an answer that began at a time. Raises: MlsdError where it gives no number."""
        # A moment's stall would pass for prefill, and shorten the decoding by as much.
        name = f"{slot.case.suite} {slot.case.prompt.key}"
        prefill = side.prefills[name] = min(prefill, side.prefills.get(name, prefill), key=lambda a: a.total_ns)
        reason = impossible(request, answer, side.gamma, counted, side.earlier)
        side.earlier.append(answer)
        if reason is not None and answer.n_tokens < request.n_predict:
            raise ServerError(reason[0].upper() + reason[1:] + ".")
        silent = side.must_draft and not answer.proposed
        complaint = side.server.complaint if silent and isinstance(side.server, Launched) else ""
        verdict = self._verdict(slot, request, answer)
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
        reason = reason or (None if self.rivals else _fault(side, answer, verdict, complaint))
        decode_ns, rounds = decode_ns_of(answer, prefill), answer.rounds
        if answer.decode_ns is not None and decode_ns != answer.decode_ns:
            timed["server_decode_ns"], rounds = answer.decode_ns, ()  # rounds are of the same clock
            assert side.reported is not None
            self.note(_OTHER_CLOCK.format(side.reported.program.name))
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
        if self.rivals or not self.wanted.sampling.greedy or not self.deterministic:
            return None
        plain = self.sides[0]
        reference = plain.references[slot.case.prompt.key]
        if slot.case.arm == "ar" and slot.case.suite == SERVERS and apart(reference, answer) is not None:
            self._check_repeats(plain, reference, answer)
            return None
        if equal(answer, reference):
            return Losslessness(verdict="lossless")
        return judge(self.use(plain), request.prompt, answer, reference)

    # --- what it is of --------------------------------------------------------------------------------------------

    def server(self, arm: int) -> Server:
        """What answers for an arm, as the first server of a pair describes it."""
        server = self.sides[arm if self.rivals else 0].reported
        assert server is not None  # the first has answered, and rivals were asked whether they take plain text
        return server

    def target(self, arm: Arm) -> ModelRef:
        """The target of an arm, named with its server."""
        local = self.files[0].ref if self.files else None
        if arm is None:
            assert local is not None
            return local
        host = self.server(arm)
        # Another name than our own engine's target, so that no table and no export can take one for the other.
        ref = local or ModelRef(id=host.model)
        twins = (
            self.rivals
            and [self.server(other).description for other in range(len(self.sides))].count(host.description) > 1
        )
        return replace(ref, id=f"{ref.id} @ {host.program.name}{f' {arm + 1}' if twins else ''}")

    def agreement(self) -> Iterator[str]:
        """Whether each rival writes what the first one does, prompt by prompt, and why it may not."""
        first = self.sides[0]
        for arm, side in enumerate(self.sides[1:] if self.rivals else (), 1):
            names = [name for name in first.references if name in side.references]
            if not names:
                continue
            pairs = {name: (first.references[name], side.references[name]) for name in names}
            parted = {name: _parted(answer.text, other.text) for name, (answer, other) in pairs.items()}
            n_same = sum(part is None for part in parted.values())
            yield f"{self.target(arm).id} writes what {self.target(0).id} does on {n_same} of {len(pairs)} prompts."
            yield from (f"{name}: {part}" for name, part in parted.items() if part is not None)
            facts = _differing(self.server(0), self.server(arm))
            why = [f"{_FACTS[name]} ({one} and {other})" for name, one, other in facts]
            read = [answer.n_prompt for answer in pairs[names[0]]]
            if None not in read and read[0] != read[1]:
                why.append(f"tokenizer or template ({names[0]} is {read[0]} tokens and {read[1]})")
            if why:
                yield f"They are not the same: {'; '.join(why)}."


def _warm(endpoint: Endpoint, request: Request, *, is_new: bool) -> None:
    """A few tokens, so that no turn begins on a cold connection or a cold server.

    Of another text, or of the prompt itself where the server may remember it: then it does so in all that is timed; and
    where its process is new: what reads a prompt first takes longer there, and would pass for prefill of what follows.
    """
    request = replace(request, nonce=time.monotonic_ns() % 10**6)
    if is_new or not endpoint.program.forgets:
        endpoint.complete(replace(request, n_predict=_WARM_PREDICT if is_new else 1))
        return
    beginning = request.prompt[: _WARM_TOKENS if isinstance(request.prompt, tuple) else 20] or "Hello"
    endpoint.complete(replace(request, prompt=beginning, messages=(), n_predict=_WARM_PREDICT, ignore_eog=False))


def _tried(call: Callable[[], T]) -> T | MlsdError:
    """What a call gives, or why it gives nothing."""
    try:
        return call()
    except MlsdError as error:
        return error


def _fault(side: Side, answer: ServerAnswer, verdict: Losslessness | None, complaint: str) -> str | None:
    if verdict is not None and verdict.verdict == "diverged":
        where = "" if verdict.first_difference is None else f" at token {verdict.first_difference}"
        return f"output differs from the plain server's{where}"
    if side.spec.name == NO_DRAFTER and answer.proposed:
        return f"the server that should be plain drafted {answer.proposed} tokens"
    if side.must_draft and not answer.proposed:
        why = f"its log says {complaint!r}" if complaint else "it ignored the setting"
        return f"the server reports no drafted tokens: {why}"
    return None


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


def _check_same_model(plain: Server, other: Server) -> None:
    for name, first, second in _differing(plain, other):
        if name != "model":  # which may be given by any name
            raise InputError(
                f"The servers hold different models: {plain.model} has {name} {first:,}, {other.model} {second:,}.",
                hint="Start both with the same target; `mlsd server URL URL` compares two models.",
            )


def _differing(first: Server, second: Server) -> list[tuple[str, Any, Any]]:
    """What both report of their models, where it is not the same."""
    facts = [(name, getattr(first, name), getattr(second, name)) for name in _FACTS]
    return [(name, a, b) for name, a, b in facts if a is not None and b is not None and a != b]


def apart(first: ServerAnswer, second: ServerAnswer) -> int | None:
    """The first token that differs, or character where there are no tokens; None where all are the same."""
    if first.tokens:
        return first_difference(first.tokens, second.tokens)
    return first_difference(first.text, second.text)


def _parted(first: str, second: str) -> str | None:
    """Where two texts part; None where they are the same."""
    index = first_difference(first, second)
    if index is None:
        return None
    ends = (text[index : index + _SHOWN] or "(its end)" for text in (first, second))
    return f"the texts part after {index} characters, at {' and '.join(map(repr, ends))}"
