"""Servers with and without speculation, side by side in interleaved blocks: one trial a request, in the store."""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mlsd.drafters import METHODS
from mlsd.engine.losslessness import first_difference
from mlsd.errors import InputError, MlsdError, ServerError, WorkerError
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_conditions, read_environment
from mlsd.hardware.budget import host_budget
from mlsd.measure.messages import (
    Done,
    Event,
    Started,
    failed_trial,
    now,
    trial_of,
)
from mlsd.measure.process import run_info, run_job
from mlsd.measure.run.checks import check_run
from mlsd.measure.run.runner import RunSettings, Watcher, machine_lock, next_repeat, run_jobs
from mlsd.measure.run.runs import BenchResult, BenchTrial, check_database
from mlsd.measure.store.newest import study_path
from mlsd.measure.store.rows import TrialFilter
from mlsd.measure.store.store import Store
from mlsd.models.library import LocalModel
from mlsd.planning.job import Job, ModelFile, Slot, prompt_key, prompt_text
from mlsd.planning.prompts import Prompt as PlannedPrompt
from mlsd.records import (
    N_TOKENS,
    NO_DRAFTER,
    Case,
    DrafterSpec,
    EngineOptions,
    Losslessness,
    ModelRef,
    QualityWarning,
    Record,
    Sampling,
    Trial,
)
from mlsd.servers.distrust import believed_decode_ns, doubt
from mlsd.servers.endpoint import Answer, Counters, Endpoint, Prompt, Request
from mlsd.servers.judge import judge, margin
from mlsd.servers.launch import Launched
from mlsd.trials.sums import BY_ACCEPTED, DRAFT_ROUNDS, DRAFTED, DRAFTED_RIGHT

SERVERS = "server"  # the study that trials go to, and the suite of a request alone; `server-parallel-N` of N at once
SPECULATION = "speculation"  # the drafter of a server that was not launched: it does not say which
_WARM_TOKENS, _WARM_PREDICT = 8, 8
_PREPARING = 10**6  # nonces of requests before anything is timed
_MOST_EARLIER = 64  # answers whose times are remembered


@dataclass
class Side:
    """One arm: a server that is there, or one that is launched when it is needed."""

    spec: DrafterSpec
    gamma: int
    server: Endpoint | Launched
    draft: bool = True  # requests leave drafting on
    must_draft: bool = False  # an answer without a draft is a fault
    carries: bool = False  # what it drafts depends on requests before
    earlier: list[Answer] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        """The server, started if need be. Raises: ServerError."""
        return self.server.endpoint if isinstance(self.server, Launched) else self.server

    def stop(self) -> None:
        """End a launched server."""
        if isinstance(self.server, Launched):
            self.server.stop()


class Ask(Record, frozen=True, kw_only=True):
    """What to measure on sides that are ready; nothing here says which servers."""

    n_predict: int = 128
    repeats: int = 3
    sampling: Sampling = Sampling()
    ignore_eog: bool = True
    parallel: tuple[int, ...] = (1,)  # requests at once
    seed: int = 0
    engine: EngineOptions = EngineOptions()  # of launched servers, and of our own loop beside them
    beside: bool = False  # our own loop in the same blocks


class Models(Record, frozen=True, kw_only=True):
    """The files behind the servers, where they are known."""

    target: LocalModel | None = None
    drafts: tuple[LocalModel, ...] = ()
    flags: str = ""  # beyond what mlsd sets


class ServerResult(BenchResult, frozen=True, kw_only=True):
    """The same of servers, and what was found out about them."""

    notes: tuple[str, ...]
    deterministic: bool  # the plain server repeats itself


class _Turn(Record, frozen=True, kw_only=True):
    """Slots that belong together: one arm's requests, sent at once; or our own loop's, run in one worker."""

    side: int | None  # index of the arm; None: our own loop
    slots: tuple[Slot, ...]


def measure(
    sides: Sequence[Side],
    ask: Ask,
    prompts: Sequence[PlannedPrompt],
    models: Models,
    db: Path | None = None,
    watcher: Watcher | None = None,
) -> ServerResult:
    """Measure every side beside the first, which is plain, and keep each request as a trial.

    Raises: ServerError when the plain server cannot even answer once; LockError, StoreError, InputError.
    """
    path = db or study_path(SERVERS)
    with machine_lock(), ExitStack() as stack:
        for side in sides:
            stack.callback(side.stop)
        check_database(path)
        environment = read_environment(run_info(ask.engine))
        session = _Session(sides, ask, prompts, models)
        session.prepare()
        cases = {case.id: case for turn in session.turns(0) for case in (slot.case for slot in turn.slots)}
        with Store.open(path) as store:
            requests = session.turns(next_repeat(store, environment, cases))
            job = session.job(requests)
            facts = [model_facts(m.path, ref=m.ref) for m in (models.target, *models.drafts) if m is not None]
            plan = {"profile": None, "suites": [SERVERS], "servers": [side.spec.name for side in sides]}

            def drive(job: Job, *, patience_s: float, turns: Iterable[Sequence[int]]) -> Iterator[Event]:
                return (e for chosen in turns for e in session.drive(job, requests, set(chosen), patience_s))

            outcome = run_jobs((job,), store, environment, facts, plan, RunSettings(seed=ask.seed), watcher, drive)
            own = [stored.trial for stored in store.trials(TrialFilter(run_id=outcome.run_id))]
            if not outcome.interrupted:
                session.compare(own, cases)
            advice = "See the page on servers in the documentation."
            told = (QualityWarning(code="server", message=note, advice=advice) for note in session.notes)
            warnings = (*check_run(own, environment, own_threads=None), *told)
            store.add_warnings(outcome.run_id, warnings)
    if own and all(trial.status == "failed" for trial in own):
        raise WorkerError(f"Every request failed: {own[0].error}")
    return ServerResult(
        database=str(path),
        outcome=outcome,
        trials=tuple(BenchTrial(case=cases[trial.case_id], trial=trial) for trial in own),
        warnings=warnings,
        notes=tuple(session.notes),
        deterministic=session.deterministic,
    )


class _Session:
    """What is known of the sides and prompts of one call."""

    def __init__(self, sides: Sequence[Side], ask: Ask, prompts: Sequence[PlannedPrompt], models: Models) -> None:
        self._sides, self._ask, self._models = sides, ask, models
        self._together = _fits_together(sides, models)
        self._planned = {prompt.key: prompt for prompt in prompts}
        self._prompts: dict[str, Prompt] = {}  # by name, as the server takes them
        self._references: dict[str, Answer] = {}  # by name
        self.deterministic = True
        self.notes: list[str] = []

    def _use(self, side: Side) -> Endpoint:
        """The side's server; others that lie in memory only while they work are ended first."""
        if not self._together:
            for other in self._sides:
                if other is not side:
                    other.stop()
        return side.endpoint

    # --- before anything is timed ---------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read the prompts, warm every server, and see what each does with the same request twice."""
        plain = self._sides[0]
        endpoint = self._use(plain)
        self._server = server = endpoint.server
        self._prompts = {name: self._read(endpoint, prompt) for name, prompt in self._planned.items()}
        if self._ask.sampling.greedy:
            for number, name in enumerate(self._planned):
                self._references[name] = first = self._answer(plain, name, nonce=_PREPARING + number)
                if number == 0:
                    self._check_repeats(first, self._answer(plain, name, nonce=2 * _PREPARING))
        for side in self._sides[1:]:
            self._check_same_model(endpoint, self._use(side))
            try:
                self._check_memory(side)
            except ServerError as error:  # its trials will fail with their reasons, and the others are measured
                self.notes.append(f"{side.spec.name}: {error}")
        if not any(side.must_draft for side in self._sides) and not any(
            answer.proposed for side in self._sides[1:] for answer in side.earlier
        ):
            self.notes.append("No server says that it drafted anything: two plain servers are compared.")
        if server.untested:
            self.notes.append(f"{server.words}: read its figures with care.")
        if not server.gives_tokens:
            self.notes.append(f"{server.program} gives no token ids: outputs are compared as text.")
        if not server.has_clock and all(one.decode_ns is None for side in self._sides for one in side.earlier):
            self.notes.append(f"{server.program} does not time itself: every tok/s is by the clock of this program.")

    def _read(self, endpoint: Endpoint, prompt: PlannedPrompt) -> Prompt:
        """A prompt as the server takes it; exactly `n_tokens` of it where it asks for that.

        Raises: InputError where the server cannot tell tokens and a length in tokens was asked for.
        """
        if prompt.chat:
            said: list[str] = []
            for turn in prompt.earlier:
                said.append(turn)
                request = self._request(endpoint.chat(tuple(said)), draft=False)
                request = msgspec.structs.replace(request, ignore_eog=False, sampling=Sampling())
                said.append(endpoint.complete(request).text.strip())
            made = endpoint.chat((*said, prompt.text))
            return msgspec.structs.replace(made, earlier=tuple(said[1::2]))
        tokens = endpoint.tokenize(prompt.text)
        if prompt.n_tokens is not None and len(tokens) < prompt.n_tokens:
            raise InputError(
                f"{endpoint.server.program} cannot cut the prompt {prompt.key} to {prompt.n_tokens} tokens.",
                hint="Give a shorter one, or a whole text.",
            )
        return Prompt(tokens=tokens[: prompt.n_tokens] if prompt.n_tokens else tokens, text=prompt.text)

    def _check_repeats(self, first: Answer, second: Answer) -> None:
        self.deterministic = _output(first) == _output(second)
        if not self.deterministic:
            where = first_difference(first.tokens, second.tokens) if first.tokens else None
            self.notes.append(
                "The plain server does not repeat itself"
                + ("" if where is None else f" (from token {where} on)")
                + ": nothing can be said of losslessness, only of speed."
            )

    def _check_memory(self, side: Side) -> None:
        """Ask the same twice: a draft that remembers requests drafts otherwise the second time."""
        name = next(iter(self._planned))
        first, second = (self._answer(side, name, nonce=nonce) for nonce in (_PREPARING, 2 * _PREPARING))
        side.carries = self._ask.sampling.greedy and _drafted(first) != _drafted(second)
        if side.carries:
            launched = isinstance(side.server, Launched)
            self.notes.append(
                f"{side.spec.name} carries what it drafted from into the next request: of one prompt it accepts "
                f"{_shares(first)} the first time and {_shares(second)} the second. "
                + ("It is started anew before each turn." if launched else "Below is a prompt that comes again.")
            )

    def _check_same_model(self, plain: Endpoint, other: Endpoint) -> None:
        for name in ("n_vocab", "n_parameters"):
            one, two = getattr(plain.server, name), getattr(other.server, name)
            if one is not None and two is not None and one != two:
                raise InputError(
                    f"The servers hold different models: {plain.server.model} has {name} {one:,}, {other.server.model} "
                    f"{two:,}.",
                    hint="Start both with the same target.",
                )

    def _request(self, prompt: Prompt, *, draft: bool, nonce: int = 0) -> Request:
        return Request(
            prompt=prompt.tokens or prompt.text,
            messages=prompt.messages,
            n_predict=self._ask.n_predict,
            sampling=self._ask.sampling,
            ignore_eog=self._ask.ignore_eog,
            draft=draft,
            nonce=nonce,
        )

    def _answer(self, side: Side, name: str, nonce: int) -> Answer:
        """An answer outside what is measured, its counts seen."""
        endpoint = self._use(side)
        request = self._request(self._prompts[name], draft=side.draft, nonce=nonce)
        answer = endpoint.settle(request, endpoint.complete(request))
        side.earlier = [*side.earlier, answer][-_MOST_EARLIER:]
        return answer

    # --- the plan -------------------------------------------------------------------------------------------------

    def turns(self, first_repeat: int) -> tuple[_Turn, ...]:
        """Repeats outermost; blocks in random order, arms in random order within, the plain one first at first."""
        made: list[_Turn] = []
        for repeat in range(first_repeat, first_repeat + self._ask.repeats):
            blocks = [(n, group) for n in self._ask.parallel for group in _groups(list(self._planned.values()), n)]
            random.Random(f"{self._ask.seed} {repeat}").shuffle(blocks)
            for number, (n, group) in enumerate(blocks):
                made += self._block(n, group, repeat, f"{self._ask.seed} {repeat} {number}", first_repeat)
        return tuple(made)

    def _block(
        self, n: int, group: Sequence[PlannedPrompt], repeat: int, seed: str, first_repeat: int
    ) -> Iterator[_Turn]:
        arms: list[int | None] = [*range(len(self._sides)), *([None] if self._ask.beside and n == 1 else [])]
        random.Random(seed).shuffle(arms)
        if repeat == first_repeat:
            arms.sort(key=lambda arm: arm != 0)
        positions = itertools.count()
        for arm in arms:
            slots = []
            for case in (case for prompt in group for case in self._cases(arm, prompt, n)):
                number = f"{repeat} {n} {case.prompt.sha256} {case.prompt.n_tokens} {case.n_predict}"
                block = int(hashlib.sha256(number.encode()).hexdigest()[:12], 16)
                slots.append(Slot(case=case, case_id=case.id, block=block, repeat=repeat, position=next(positions)))
            yield _Turn(side=arm, slots=tuple(slots))

    def _cases(self, arm: int | None, prompt: PlannedPrompt, n: int) -> Iterator[Case]:
        suite = SERVERS if n == 1 else f"{SERVERS}-parallel-{n}"
        plain = Case(
            suite=suite,
            target=self._target(arm),
            prompt=prompt.ref,
            n_predict=self._ask.n_predict,
            sampling=self._ask.sampling,
            engine=self._ask.engine,
            ignore_eog=self._ask.ignore_eog,
        )
        if arm is None:
            yield plain
            for side in (side for side in self._sides[1:] if side.spec.name in METHODS):
                yield msgspec.structs.replace(plain, drafter=side.spec, gamma=side.gamma)
            return
        side = self._sides[arm]
        words = f"{self._server.words} {self._models.flags}".strip()
        yield msgspec.structs.replace(plain, drafter=side.spec, gamma=side.gamma, server=words)

    def _target(self, arm: int | None) -> ModelRef:
        local = self._models.target
        if arm is None:
            assert local is not None
            return local.ref
        server = self._server
        name = local.ref.id if local is not None else server.model
        # Another name than our own engine's target, so that no table and no export can take one for the other.
        known = ModelRef(id=name) if local is None else local.ref
        return msgspec.structs.replace(known, id=f"{name} @ {server.program}")

    def job(self, turns: Sequence[_Turn]) -> Job:
        """All turns as one job for the runner."""
        slots = tuple(slot for turn in turns for slot in turn.slots)
        prompts = {prompt_key(slot.case.prompt): slot.case.prompt for slot in slots}
        local = self._models.target
        ref = slots[0].case.target
        return Job(
            target=ModelFile(ref=ref, path="" if local is None else str(local.path)),
            prompts={key: prompt_text(ref, self._planned.__getitem__) for key, ref in prompts.items()},
            slots=slots,
        )

    # --- measuring ------------------------------------------------------------------------------------------------

    def drive(self, rest: Job, turns: Sequence[_Turn], chosen: Collection[int], patience_s: float) -> Iterator[Event]:
        """Run the chosen slots of a job turn by turn; what fails is a failed trial, and the next turn runs."""
        index = {_place(slot): i for i, slot in enumerate(rest.slots) if i in chosen}
        for turn in turns:
            slots = [slot for slot in turn.slots if _place(slot) in index]
            if not slots:
                continue
            yield Started(index=index[_place(slots[0])])
            measured = self._own_loop(rest, slots, patience_s) if turn.side is None else (
                self._measure(self._sides[turn.side], slots)
            )  # fmt: skip
            for slot, trial in measured:
                yield Done(index=index[_place(slot)], trial=trial)

    def _own_loop(self, rest: Job, slots: Sequence[Slot], patience_s: float) -> Iterator[tuple[Slot, Trial]]:
        """The same cases in our own engine: one worker, so one load, a turn."""
        local = self._models.target
        assert local is not None
        job = Job(
            target=ModelFile(ref=local.ref, path=str(local.path)),
            models=tuple(ModelFile(ref=draft.ref, path=str(draft.path)) for draft in self._models.drafts),
            prompts=rest.prompts,
            slots=tuple(sorted(slots, key=lambda slot: slot.case.arm != "ar")),
        )
        n_done = 0
        try:
            for event in run_job(job, patience_s=patience_s):
                if isinstance(event, Done):
                    n_done += 1
                    yield job.slots[event.index], event.trial
        except MlsdError as error:
            for slot in job.slots[n_done:]:
                yield slot, failed_trial(slot, str(error))

    def _measure(self, side: Side, slots: Sequence[Slot]) -> Iterator[tuple[Slot, Trial]]:
        """The trials of one turn: its requests sent at once, judged when all have ended."""
        try:
            if side.carries:
                side.stop()
            endpoint = self._use(side)
            self._warm(side, endpoint, slots[0])
            before = endpoint.counters() if len(slots) == 1 else None
        except MlsdError as error:
            for slot in slots:
                yield slot, failed_trial(slot, str(error))
            return
        with ThreadPoolExecutor(len(slots)) as pool:
            asked = list(pool.map(lambda slot: self._ask_one(side, endpoint, slot), slots))
        for slot, result in zip(slots, asked, strict=True):
            yield slot, self._trial(side, endpoint, slot, result, before)

    def _warm(self, side: Side, endpoint: Endpoint, slot: Slot) -> None:
        """A few tokens of another text, so that no turn begins on a cold connection or a cold server."""
        prompt = self._prompts[slot.case.prompt.key]
        request = self._request(prompt, draft=side.draft, nonce=time.monotonic_ns() % 10**6)
        short = {"messages": (), "n_predict": _WARM_PREDICT, "ignore_eog": False}
        words = prompt.tokens[:_WARM_TOKENS] or prompt.text[:20] or "Hello"
        endpoint.complete(msgspec.structs.replace(request, prompt=words, **short))

    def _ask_one(self, side: Side, endpoint: Endpoint, slot: Slot) -> tuple[Request, str, Answer | MlsdError]:
        """A request, when it was sent, and what became of it."""
        prompt, started_at = self._prompts[slot.case.prompt.key], now()
        request = self._request(prompt, draft=side.draft, nonce=1 + slot.repeat)
        try:
            return request, started_at, endpoint.complete(request)
        except MlsdError as error:
            return request, started_at, error

    def _trial(
        self,
        side: Side,
        endpoint: Endpoint,
        slot: Slot,
        asked: tuple[Request, str, Answer | MlsdError],
        before: Counters | None,
    ) -> Trial:
        request, started_at, answer = asked
        if isinstance(answer, MlsdError):
            side.stop()  # a launched one starts anew, whatever state it is in
            return failed_trial(slot, str(answer))
        try:
            after = endpoint.counters() if before is not None else None
            grown = after.since(before) if after is not None and before is not None else None
            answer = endpoint.settle(request, answer)
            reason = doubt(request, answer, side.gamma, grown, side.earlier)
            side.earlier = [*side.earlier, answer][-_MOST_EARLIER:]
            if reason is not None and answer.n_tokens < request.n_predict:
                raise ServerError(reason[0].upper() + reason[1:] + ".")
            verdict = self._verdict(slot, request, answer)
        except MlsdError as error:
            return failed_trial(slot, str(error))
        answer = _counted(answer, grown)
        timed = {
            "client_decode_ns": answer.client_decode_ns,
            "first_token_ns": answer.first_ns,
            "client_total_ns": answer.total_ns,
            DRAFTED: answer.proposed,
            DRAFTED_RIGHT: answer.accepted,
            N_TOKENS: None if answer.tokens else answer.n_tokens,
            DRAFT_ROUNDS: answer.n_rounds,
            **{f"{BY_ACCEPTED}{n}": rounds for n, rounds in enumerate(answer.by_accepted)},
        }
        reason = reason or self._fault(side, answer, verdict)
        decode_ns = believed_decode_ns(answer)
        if answer.decode_ns is not None and decode_ns != answer.decode_ns:
            timed["server_decode_ns"] = answer.decode_ns
            answer = msgspec.structs.replace(answer, rounds=())  # they are of the same clock
            self._tell_clock(endpoint)
        return trial_of(  # by the server's clock where it has one, and the client's beside it
            slot,
            status="ok",
            started_at=started_at,
            n_prompt=answer.n_prompt,
            tokens=answer.tokens,
            text=answer.text,
            prefill_ns=answer.prompt_ns if answer.prompt_ns is not None else answer.first_ns,
            decode_ns=decode_ns,
            rounds=answer.rounds,
            earlier=self._prompts[slot.case.prompt.key].earlier,
            losslessness=verdict,
            valid=reason is None,
            invalid_reason=reason,
            stats={name: float(value) for name, value in timed.items() if value is not None},
            conditions=read_conditions(),
        )

    def _verdict(self, slot: Slot, request: Request, answer: Answer) -> Losslessness | None:
        """The verdict on a greedy answer; None where there is nothing sure to compare it with."""
        if not self._ask.sampling.greedy or not self.deterministic:
            return None
        reference = self._references[slot.case.prompt.key]
        if slot.case.arm == "ar" and slot.case.suite == SERVERS and _output(answer) != _output(reference):
            self._check_repeats(reference, answer)
            return None
        return judge(self._use(self._sides[0]), request.prompt, answer, reference)

    def _tell_clock(self, endpoint: Endpoint) -> None:
        told = f"{endpoint.server.program} at {endpoint.url} claims less time for its decoding than passed here: "
        told += "answers of which it does so are timed by the clock of this program."
        if told not in self.notes:
            self.notes.append(told)

    def _fault(self, side: Side, answer: Answer, verdict: Losslessness | None) -> str | None:
        if verdict is not None and verdict.verdict == "diverged":
            where = "" if verdict.first_difference is None else f" at token {verdict.first_difference}"
            return f"output differs from the plain server's{where}"
        if side.spec.name == NO_DRAFTER and answer.proposed:
            return f"the server that should be plain drafted {answer.proposed} tokens"
        if side.must_draft and not answer.proposed:
            return "the server says that it drafted nothing: it ignored the setting"
        return None

    def compare(self, trials: Sequence[Trial], cases: Mapping[str, Case]) -> None:
        """Say where our own loop's plain output is another than the server's, and whether a tie explains it."""
        for name, reference in self._references.items():
            ours = (t for t in trials if cases[t.case_id].source == "engine" and cases[t.case_id].prompt.key == name)
            tokens = next((t.tokens for t in ours if t.arm == "ar" and t.tokens), ())
            if not tokens or not reference.tokens or tokens == reference.tokens:
                continue
            try:
                why = self._apart(self._prompts[name].tokens, tokens, reference)
            except ServerError as error:
                why = str(error)
            self.notes.append(f"{name}: our loop's plain output is another than the server's: {why}.")

    def _apart(self, prompt: tuple[int, ...], tokens: tuple[int, ...], reference: Answer) -> str:
        """Why two plain outputs differ."""
        plain = self._use(self._sides[0])
        place = first_difference(tokens, reference.tokens) or 0
        ended = plain.complete(Request(prompt=prompt + tokens[:place], n_predict=1, n_probs=1, ignore_eog=False)).ended
        if ended and self._ask.ignore_eog:
            return (
                f"from token {place} on, where the model ends its answer: our loop goes on behind the end token, the "
                "server writes none (compare with --stop-at-eog)"
            )
        found = judge(plain, prompt, Answer(tokens=tokens, n_tokens=len(tokens)), reference)
        return f"{found.verdict}, {margin(found)}"


def _groups(prompts: Sequence[PlannedPrompt], n: int) -> list[tuple[PlannedPrompt, ...]]:
    """The prompts, `n` at a time, the last ones topped up from the first."""
    if len(prompts) < n:
        raise InputError(
            f"{n} requests at once need {n} different prompts; {len(prompts)} were given.", hint="Add --prompt."
        )
    around = (*prompts, *prompts)
    return [around[i : i + n] for i in range(0, len(prompts), n)]


def _fits_together(sides: Sequence[Side], models: Models) -> bool:
    """Whether all launched servers may run at once."""
    n_launched = sum(isinstance(side.server, Launched) for side in sides)
    if n_launched < 2 or models.target is None:
        return True
    weights = n_launched * (models.target.ref.n_bytes or 0) + sum(draft.ref.n_bytes or 0 for draft in models.drafts)
    return weights <= host_budget().limit_bytes


def _place(slot: Slot) -> tuple[str, int, int, int]:
    return slot.case_id, slot.block, slot.repeat, slot.position


def _counted(answer: Answer, grown: Counters | None) -> Answer:
    """The answer with what it does not say itself and the server's counters do."""
    if grown is None:
        return answer
    known = {"proposed": grown.proposed, "accepted": grown.accepted, "n_rounds": grown.rounds}
    return msgspec.structs.replace(
        answer, **{name: value for name, value in known.items() if getattr(answer, name) is None}
    )


def _output(answer: Answer) -> object:
    return answer.tokens or (answer.text, answer.n_tokens)


def _drafted(answer: Answer) -> tuple[int | None, int | None]:
    return answer.proposed, answer.accepted


def _shares(answer: Answer) -> str:
    return f"{answer.accepted} of {answer.proposed} tokens"
