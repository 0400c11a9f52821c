"""The one result of an arm: what its trials on one question come to, beside plain decoding in the same blocks.

Every surface shows this record and nothing else of an arm: `arm_results` makes it, whoever measured. A decision belongs
to what its session planned (`SessionPlan`), never to whatever else a file holds.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from mlsd.methods import is_control
from mlsd.records import (
    MOST_FEW,
    VERDICTS,
    Case,
    Few,
    Losslessness,
    Record,
    Sampling,
    Source,
    Status,
    Trial,
    Verdict,
    content_id,
)
from mlsd.stats import Interval, grouped, relative_spread
from mlsd.trials.acceptance_meanings import Position, by_position, loop_of, rate_of
from mlsd.trials.arms import Arm, arm_of
from mlsd.trials.decisions import LEAST_BLOCKS, SHORT_DECODE_NS, WAITED_SHARE, Decision, Effect, Most, Standing, decide
from mlsd.trials.intervals import Design, Logs, Stopping, against
from mlsd.trials.rates import (
    Sums,
    client_speed,
    counts_of,
    first_token_ms,
    pays_from,
    prefill_tok_s,
    share,
    speed,
    total,
)
from mlsd.units import NS_PER_MS, counted

Pool = Literal["prompt", "workload", "all"]
BENCH = "bench"  # the id of a plan whose every question is a session, which each run that asks it goes on with


class Measured(NamedTuple):
    """A trial with its case and its place in the store."""

    case: Case
    trial: Trial
    sums: Sums | None  # of its rounds, which need not be read for them; None of a trial without
    block_id: int  # one process measured the trials of a block one after the other: they are compared, and no others
    id: int = 0
    run_id: int = 0
    environment_key: str = ""
    superseded: bool = False  # its block was measured again
    on_processor: bool = False  # which decodes by itself: no device does

    @property
    def whole(self) -> Sums:
        """What its rounds sum to; of a server without rounds as it says."""
        return self.sums or counts_of(self.trial) or Sums()

    @property
    def waited(self) -> bool:
        """Whether for a quarter of its generation no thread of the worker ran, though the processor did all the work.

        Nothing is known of work on a device, of a server, or of a machine that does not say.
        """
        return self.on_processor and waited_ns(self.trial) > WAITED_SHARE * _generation_ns(self.trial)


class TrialPair(NamedTuple):
    """A trial beside the plain one of its prompt, measured by one process in one block."""

    plain: Measured
    measured: Measured

    @property
    def ratio(self) -> float:
        return _tok_s(self.measured) / _tok_s(self.plain)

    @property
    def waited(self) -> bool:
        """Whether one of the two waited for the processor."""
        return self.plain.waited or self.measured.waited


class Question(Record, frozen=True, kw_only=True):
    """What one decision answers: which setting of a target is fastest on a text, asked in one way."""

    suite: str
    source: Source
    target: str  # id; of servers with models of their own the first one's
    text: str  # key of the prompt, its workload, or empty: all prompts of the session together
    n_predict: int
    settings: str  # of the target's file, sampling and engine options, by hash; of threads what was used
    rivals: bool = False  # which server is faster, each with a target of its own


_AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=MOST_FEW)]


class SessionPlan(Record, frozen=True, kw_only=True):
    """What a session planned to decide; stored with its runs."""

    id: str = ""  # runs of one plan go on with one another; empty: a run is a session by itself; `BENCH`
    pool: Pool = "prompt"  # what is one question
    stopping: Stopping = Stopping.FIXED
    process_per_arm: bool = False  # each is one process throughout
    # Planned, of all questions of a target, by its id; controls not counted.
    n_arms: dict[str, Few] = msgspec.field(default_factory=dict)
    n_questions: dict[str, _AtLeastOne] = msgspec.field(default_factory=dict)  # likewise
    base: str = ""  # of servers with models of their own: the target that others are compared with
    n_threads: Few | None = None  # where the number was left open
    n_blocks: dict[str, Few] = msgspec.field(default_factory=dict)  # planned, by target's id; empty: not fixed
    # Of each arm, by `memory_key`: as llama.cpp says.
    context_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    limit_bytes: int | None = None  # what models might take of the machine

    def question(self, case: Case) -> Question:
        """Which one a trial of the case answers."""
        prompt = case.prompt
        kind = prompt.workload if prompt.n_tokens is None else None  # prompts of exact length differ in nothing else
        texts = {"prompt": prompt.key, "workload": kind or prompt.key, "all": ""}
        settings = "" if self.base else settings_of(case, self.n_threads)
        return Question(
            suite=case.suite, source=case.source, target=self.base or case.target.id, text=texts[self.pool],
            n_predict=case.n_predict, settings=settings, rivals=bool(self.base),
        )  # fmt: skip

    def name(self, case: Case) -> str | None:
        """The arm's name; None is what the others are compared with."""
        if self.base:
            return None if case.target.id == self.base else case.target.id
        return None if case.arm == "ar" else arm_of(case).setting

    def session(self, case: Case, run_id: int) -> str:
        """Which session a trial of the case belongs to: trials of equal ones are decided together."""
        if self.id != BENCH:
            return self.id or f"run {run_id}"
        return f"{content_id(self.question(case))} {case.prompt.sha256}:{case.prompt.n_tokens}"

    @property
    def pooled(self) -> SessionPlan:
        return msgspec.structs.replace(self, pool="all")

    def count(self, cases: Iterable[Case]) -> SessionPlan:
        """With the arms of these cases, by target: as many as it decides of, those over all workloads included."""
        counted_cases = [case for case in cases if not is_control(case.drafter.name)]
        arms, questions = Counter[str](), Counter[str]()
        for plan in (self, self.pooled) if self.pool == "workload" else (self,):
            named = {(plan.question(case), name) for case in counted_cases if (name := plan.name(case)) is not None}
            arms += Counter(question.target for question, _ in named)
            questions += Counter(question.target for question in {question for question, _ in named})
        return self.with_counts(arms, questions)

    def with_counts(self, n_arms: Mapping[str, int], n_questions: Mapping[str, int]) -> SessionPlan:
        """With at least so many arms and questions."""
        larger = {"n_arms": Counter(self.n_arms) | Counter(n_arms),
                  "n_questions": Counter(self.n_questions) | Counter(n_questions)}  # fmt: skip
        return msgspec.structs.replace(self, **{name: dict(counts) for name, counts in larger.items()})

    def design(self, question: Question) -> Design:
        """What the intervals of a question pay for."""
        n_arms, n_questions = (counts.get(question.target, 1) for counts in (self.n_arms, self.n_questions))
        return Design(
            n_arms=n_arms, n_questions=n_questions, stopping=self.stopping, process_per_arm=self.process_per_arm
        )


def memory_key(case: Case) -> str:
    """Which arm of a target opens contexts: `SessionPlan.context_bytes`."""
    return f"{case.target.id}: {arm_of(case).setting}"


def settings_of(case: Case, n_threads: int | None = None) -> str:
    """Equal for two cases exactly when file of the target, sampling, engine options and server are the same."""
    sampling = Sampling() if case.sampling.greedy else case.sampling
    engine = case.engine
    if engine.n_threads is None:
        engine = msgspec.structs.replace(engine, n_threads=n_threads)
    used = msgspec.structs.replace(case, sampling=sampling, engine=engine)
    return content_id(used, "suite", "prompt", "n_predict", "drafter", "gamma", "rollback")


class ArmResult(Record, frozen=True, kw_only=True):
    """One arm over its trials on one question of one session. Numbers are of the trials that count.

    Those are the valid ones; of an arm without any, those that finished undisturbed, and it is shown as invalid: what a
    program that checks nothing would have printed.
    """

    question: Question
    session: int  # its latest run
    name: str | None  # None: what the others are compared with
    case: Case  # the first
    trials: tuple[Measured, ...]
    pairs: tuple[TrialPair, ...]  # trials that count, each beside the plain one of its block
    whole: Sums  # over the rounds of trials that count
    timed_whole: Sums  # of those of which times are known
    tok_s: float | None  # geometric mean over the blocks of a prompt, then over prompts: as the ratio
    plain_tok_s: float | None  # the same of plain decoding, in the same blocks
    client_tok_s: float | None  # as `tok_s`, by this program's clock
    spread: float | None  # half the range over the median, of what is left when each prompt's mean is taken out
    ratio: Interval | None  # the speedup; intervals of a session hold together
    standing: Standing | None  # None: plain, or nothing can be decided of it
    statuses: dict[str, int]  # how many trials have each
    first_token_ms: float | None = None  # from the prompt to the first token: geometric mean, as `tok_s`
    plain_first_token_ms: float | None = None  # the same of plain decoding, in the same blocks
    pays_from: Interval | None = None  # output tokens from which a whole request is faster
    memory_bytes: int | None = None  # weights of target and draft, and what the arm's contexts take
    memory_left_bytes: int | None = None  # of what models might take of the machine
    impossible: str = ""  # why a speedup that clocks give is not used

    @property
    def arm(self) -> Arm:
        return arm_of(self.case)

    @property
    def is_plain(self) -> bool:
        return self.name is None

    @property
    def label(self) -> str:
        return self.arm.name + ("" if self.fell_back is None else " (not sync)")

    @property
    def setting(self) -> str:
        return self.arm.setting + ("" if self.fell_back is None else " (not sync)")

    @property
    def control(self) -> bool:
        return is_control(self.case.drafter.name)

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.case.prompt.key for one in self.trials))

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.case.prompt.workload or one.case.prompt.key for one in self.trials))

    @property
    def text(self) -> str:
        """What was written, in words; several workloads by their number."""
        if self.question.text:
            return self.question.text
        prompts, kinds = self.prompts, self.workloads
        return prompts[0] if len(prompts) == 1 else kinds[0] if len(kinds) == 1 else f"{len(kinds)} workloads pooled"

    @property
    def n_trials(self) -> int:
        return len(self.trials)

    @property
    def n_valid(self) -> int:
        return sum(n for status, n in self.statuses.items() if Status(status).counts)

    @property
    def n_blocks(self) -> int:
        return len(self.pairs)

    @property
    def n_invalid(self) -> int:
        """Of them those whose output is not proven to be that of plain decoding, failed ones included."""
        return sum(n for status, n in self.statuses.items() if not Status(status).right)

    @property
    def effect(self) -> Effect:
        return "not decided yet" if self.standing is None else self.standing.effect

    @property
    def is_open(self) -> bool:
        """Whether it may still turn out to be faster: nothing is decided of it, or nothing could be judged.

        One that failed in every one of several blocks is not open: it cannot be used here.
        """
        standing = self.standing
        if standing is None:
            return not (self.is_plain or self.control or self.never_ran)
        return standing.effect == "not decided yet" and standing.out is None and not self.control

    @property
    def repeat_helps(self) -> bool:
        """Whether further blocks may decide an open arm: none was invalid, not all failed, and scatter allows it."""
        statuses = {one.trial.status for one in self.trials}
        if Status.INVALID in statuses or statuses == {Status.FAILED}:
            return False
        return self.standing is None or self.more_blocks is not None or self.standing.ratio.low is None

    @property
    def more_blocks(self) -> int | None:
        """About so many further blocks decide it; None: no scatter is known, or no number of them would."""
        return None if self.standing is None else self.standing.more_blocks or self.quiet_blocks_lacking or None

    @property
    def quiet_blocks_lacking(self) -> int:
        """How many more blocks must not wait for the processor before its times decide; 0: they are not in doubt so."""
        return _quiet_blocks_lacking(self.pairs) if self.standing is not None and self.standing.doubt else 0

    @property
    def never_ran(self) -> bool:
        """Whether it failed each time, more than once."""
        return self.n_trials > 1 and set(self.statuses) == {Status.FAILED.value}

    @property
    def decision(self) -> str | None:
        """What is decided of it, in words; None of plain decoding."""
        if self.is_plain:
            return None
        if self.standing is not None:  # what two servers are compared with is not plain decoding
            return (None if self.question.rivals else self.standing.out) or self.standing.sentence
        return "a control, cannot be used" if self.control else self.impossible or self.why_not or "not compared"

    @property
    def why_not(self) -> str | None:
        """Why it does not count: the first reason, of trials whose output is not right where there are some."""
        worst_first = sorted((one.trial for one in self.trials if not one.trial.valid), key=lambda t: t.status.right)
        return next((trial.reason for trial in worst_first if trial.reason), None)

    @property
    def losslessness(self) -> Losslessness | None:
        """The worst of its trials."""
        judgements = [one.trial.losslessness for one in self.trials if one.trial.losslessness is not None]
        return max(judgements, key=lambda one: VERDICTS.index(one.verdict), default=None)

    @property
    def verdict(self) -> Verdict | None:
        return None if self.losslessness is None else self.losslessness.verdict

    @property
    def request_s(self) -> float | None:
        """The whole request at its length: to the first token, then the others."""
        return _request_s(self.first_token_ms, self.tok_s, self.question.n_predict) if self.n_valid else None

    @property
    def plain_request_s(self) -> float | None:
        return _request_s(self.plain_first_token_ms, self.plain_tok_s, self.question.n_predict)

    @property
    def n_loops(self) -> int:
        """Outputs, of the trials that count, that repeat themselves to their end: acceptance of a loop says nothing."""
        return sum(loop_of(one.trial.tokens) is not None for one in counting(self.trials))

    @property
    def timed(self) -> bool:
        return all(one.trial.timed for one in self.trials)

    @property
    def fell_back(self) -> str | None:
        return next((one.trial.fell_back for one in self.trials if one.trial.fell_back is not None), None)

    @property
    def acceptance_rate(self) -> float | None:
        return self.whole.acceptance_rate

    @property
    def accepted_of_output(self) -> float | None:
        """Accepted over output tokens, as mlx-lm counts: ``1 - 1 / MGL``."""
        mgl = None if self.case.arm == "ar" and not self.whole.accepted else self.mgl
        return None if mgl is None else rate_of(mgl, "output", None)

    @property
    def acceptance_by_position(self) -> float | None:
        """Of a proposed token after the one before it: accepted over reached, at all places of a draft together."""
        return self.whole.acceptance_by_position

    @property
    def positions(self) -> tuple[Position, ...]:
        """Acceptance at each place of a draft; empty where single rounds are not known."""
        texts = grouped(counting(self.trials), lambda one: _block_of(one)[0]).values()
        return by_position([(total(one.whole for one in rows), len(rows)) for rows in texts])

    @property
    def mgl(self) -> float | None:
        return self.whole.mgl

    @property
    def break_even_mgl(self) -> float | None:
        return None if self.ratio is None else share(self.mgl, self.ratio.value)

    @property
    def ms_per_round(self) -> dict[str, float]:
        return self.timed_whole.ms_per_round


def order(arm: ArmResult) -> tuple[Any, ...]:
    """Plain decoding first, then by method, draft, options and gamma."""
    spec = arm.case.drafter
    draft = spec.draft.id if spec.draft else ""
    return not arm.is_plain, arm.case.target.id, spec.name, draft, str(spec.options), arm.case.gamma


def arm_results(trials: Sequence[Measured], plan: SessionPlan, *, session: int = 0) -> list[ArmResult]:
    """Every arm of every question of a session, plain decoding first; each question is decided once."""
    results = []
    plan = plan.count(_cases(trials).values())
    for question, arms in _by_question(trials, plan).items():
        decision, plain = _decision(arms, plan, question), arms.get(None, [])
        of_arms = [_result(question, session, name, rows, plain, decision, plan) for name, rows in arms.items()]
        results += sorted(of_arms, key=order)
    return results


def pooled_results(trials: Sequence[Measured], plan: SessionPlan, *, session: int = 0) -> list[ArmResult]:
    """The same over all workloads of a suite; where prompts or all of them are the questions, as they are."""
    plan = plan.count(_cases(trials).values())
    return arm_results(trials, plan.pooled if plan.pool == "workload" else plan, session=session)


def decisions(
    trials: Sequence[Measured], plan: SessionPlan, anchors: Mapping[Question, str] | None = None
) -> dict[Question, Decision]:
    """What is decided of each question that plain decoding was measured on; `anchors` never drop out."""
    decided, plan = {}, plan.count(_cases(trials).values())
    for question, arms in _by_question(trials, plan).items():
        if (decision := _decision(arms, plan, question, (anchors or {}).get(question))) is not None:
            decided[question] = decision
    return decided


def is_unusable(stored: Measured) -> bool:
    """Whether its arm counts no more: it failed, is not valid or not timed; a disturbed one does not."""
    return not speed(stored.trial) if stored.trial.valid else stored.trial.status is not Status.DISTURBED


def prefill_speed(rows: Iterable[Measured]) -> float | None:
    """Prompt tokens a second of valid trials: geometric mean over the blocks of a prompt, then over prompts."""
    return _mean((one for one in rows if one.trial.valid), lambda one: prefill_tok_s(one.trial))


def speed_over(
    base: Iterable[Measured], others: Iterable[Measured], of: Callable[[Trial], float | None] = speed
) -> Interval | None:
    """The speed of one program over another's in the same blocks, one process each throughout."""
    design = Design(n_arms=1, stopping=Stopping.FIXED, process_per_arm=True)
    return against(_logs(base, of), {"": _logs(others, of)}, design).get("")


# --- inside -------------------------------------------------------------------------------------------------------


def _cases(trials: Iterable[Measured]) -> dict[str, Case]:
    return {one.trial.case_id: one.case for one in trials}


def _by_question(trials: Sequence[Measured], plan: SessionPlan) -> dict[Question, dict[str | None, list[Measured]]]:
    """The trials of each question by the name of their arm; a case, of which many are trials, is read once."""
    of_case = {case_id: (plan.question(case), plan.name(case)) for case_id, case in _cases(trials).items()}
    by_question: dict[Question, dict[str | None, list[Measured]]] = {}
    for stored in trials:
        question, name = of_case[stored.trial.case_id]
        by_question.setdefault(question, {}).setdefault(name, []).append(stored)
    return by_question


def _decision(
    arms: Mapping[str | None, list[Measured]], plan: SessionPlan, question: Question, anchor: str | None = None
) -> Decision | None:
    plain = arms.get(None, [])
    # Of two servers neither is the plain one: which is named first must not decide whose failures count.
    if not (base := _logs(plain, speed)) or (question.rivals and any(map(is_unusable, plain))):
        return None
    usable = {name: rows for name, rows in arms.items() if name is not None and not any(map(is_unusable, rows))}
    controls = {name for name, rows in usable.items() if is_control(rows[0].case.drafter.name)}
    logs = {name: own for name, rows in usable.items() if (own := _logs(rows, speed)).keys() & base.keys()}
    limits = {name: most for name in logs if not question.rivals and (most := _most(usable[name])) is not None}
    doubts = {name: doubt for name in logs if (doubt := _doubt(_pairs(usable[name], plain)))}
    design = plan.design(question)
    return decide(base, logs, design, controls=controls, anchor=anchor, limits=limits, doubts=doubts)


def _doubt(pairs: Sequence[TrialPair]) -> str:
    """Why the times of an arm's blocks decide nothing; empty where they may."""
    if _are_short(pairs):
        return f"each trial decoded for less than {SHORT_DECODE_NS // NS_PER_MS} ms (raise --n-predict)"
    if _quiet_blocks_lacking(pairs):
        n_waited = sum(pair.waited for pair in pairs)
        return f"{n_waited} of {counted(len(pairs), 'block')} waited for the processor (close other programs)"
    return ""


def _are_short(pairs: Sequence[TrialPair]) -> bool:
    """Whether no trial decoded long enough to be timed, which further blocks do not change."""
    spans = [one.trial.decode_ns for pair in pairs for one in pair]
    return bool(spans) and all(span is not None and span < SHORT_DECODE_NS for span in spans)


def _quiet_blocks_lacking(pairs: Sequence[TrialPair]) -> int:
    """How many more blocks must not wait: `LEAST_BLOCKS` and half of all must not, where some did."""
    n_waited = sum(pair.waited for pair in pairs)
    n_quiet = len(pairs) - n_waited
    return max(LEAST_BLOCKS - n_quiet, n_waited - n_quiet, 0) if n_waited and not _are_short(pairs) else 0


def _pairs(rows: Iterable[Measured], plain: Iterable[Measured]) -> list[TrialPair]:
    """The one pairing: trials that count and are timed, each beside the plain one of its prompt and block."""
    base = {_block_of(one): one for one in plain if one.trial.valid and speed(one.trial) is not None}
    timed = [one for one in rows if speed(one.trial) is not None]
    return [TrialPair(base[place], one) for one in timed if (place := _block_of(one)) in base]


def waited_ns(trial: Trial) -> int:
    """How long no thread of the worker ran in a generation that the processor computes; 0 where that is not known."""
    around = trial.conditions
    if around is None or around.processor_ns is None:
        return 0
    return max(0, _generation_ns(trial) - around.processor_ns)


def _generation_ns(trial: Trial) -> int:
    return 0 if trial.conditions is None else trial.conditions.generation_ns or 0


def _most(rows: Sequence[Measured]) -> Most | None:
    """What the rounds of an arm's valid trials allow: MGL, as a speedup the geometric mean over prompts."""
    speculative = [one for one in rows if one.trial.valid and one.case.arm == "sd"]
    prompts = [
        total(one.whole for one in some) for some in grouped(speculative, lambda one: _block_of(one)[0]).values()
    ]
    mgls = [found for one in prompts if (found := one.mgl) is not None]
    if not mgls:
        gamma = next((one.case.gamma for one in speculative), 0)
        return Most(gamma + 1.0) if gamma else None
    mgl = math.exp(statistics.fmean(math.log(max(1.0, one)) for one in mgls))
    return Most(mgl, proposed=any(one.proposed or one.accepted for one in prompts))


def _result(
    question: Question,
    session: int,
    name: str | None,
    rows: Sequence[Measured],
    plain: Sequence[Measured],
    decision: Decision | None,
    plan: SessionPlan,
) -> ArmResult:
    shown_rows = counting(rows)
    timed = [one for one in shown_rows if speed(one.trial) is not None]
    pairs = [] if name is None else _pairs(shown_rows, plain)
    whole = total(one.whole for one in shown_rows)
    timed_whole = whole if len(timed) == len(shown_rows) else total(one.whole for one in timed)
    standing = None if decision is None or name is None else decision.of(name)
    shown = [pair.measured for pair in pairs] or timed
    tok_s, plain_tok_s = _mean(shown, _tok_s), _mean([pair.plain for pair in pairs], _tok_s)
    ratio = None if standing is None else standing.ratio
    if ratio is None and tok_s is not None and plain_tok_s is not None:
        ratio = Interval(value=tok_s / plain_tok_s, n=len(pairs))
    impossible = ""
    if ratio is not None and decision is not None and name in decision.impossible and (most := _most(rows)):
        impossible = f"{ratio.value:.2f}x is more than its MGL of {most.mgl:.2f} allows"
        ratio = None
    begun = [
        (one, plain_ms, ms) for one in pairs
        if (plain_ms := first_token_ms(one.plain.trial)) and (ms := first_token_ms(one.measured.trial))
    ]  # fmt: skip
    first_ms = _mean([one.measured for one, *_ in begun] if pairs else shown, lambda one: first_token_ms(one.trial))
    later_ms = [ms - plain_ms for _, plain_ms, ms in begun]
    places = [_block_of(one.measured) for one, *_ in begun]
    units = [prompt for prompt, _ in places] if len({prompt for prompt, _ in places}) > 1 else places
    pays = None  # of an arm whose times count for nothing: what an unchecked loop claims pays nowhere
    if standing is not None and ratio is not None and plain_tok_s is not None:
        pays = pays_from(later_ms, units, plain_tok_s, ratio)
    case, counts, limit = rows[0].case, Counter(one.trial.status for one in rows), plan.limit_bytes
    draft_bytes = 0 if case.drafter.draft is None else case.drafter.draft.n_bytes
    parts = [plan.context_bytes.get(memory_key(case)), case.target.n_bytes, draft_bytes]
    memory_bytes = None if None in parts else sum(part or 0 for part in parts)  # where each part of it is known
    return ArmResult(
        question=question, session=session, name=name, case=case, trials=tuple(rows), pairs=tuple(pairs),
        whole=whole, timed_whole=timed_whole, tok_s=tok_s,
        plain_tok_s=plain_tok_s, client_tok_s=_mean(shown, lambda one: client_speed(one.trial)), spread=_spread(shown),
        ratio=ratio, standing=standing, first_token_ms=first_ms,
        statuses={status.value: counts[status] for status in Status if counts[status]},
        plain_first_token_ms=_mean([one.plain for one, *_ in begun], lambda one: first_token_ms(one.trial)),
        pays_from=pays, memory_bytes=memory_bytes, impossible=impossible,
        memory_left_bytes=None if memory_bytes is None or limit is None else limit - memory_bytes,
    )  # fmt: skip


def _request_s(first_ms: float | None, tok_s: float | None, n_predict: int) -> float | None:
    return None if first_ms is None or not tok_s else first_ms / 1e3 + (n_predict - 1) / tok_s


def counting(rows: Iterable[Measured]) -> list[Measured]:
    """The trials that an arm is shown by; see `ArmResult`."""
    every_row = list(rows)
    return [one for one in every_row if one.trial.valid] or [
        one for one in every_row if one.trial.status is Status.INVALID
    ]


def _block_of(stored: Measured) -> tuple[str, int]:
    prompt = stored.case.prompt
    return f"{prompt.key} {prompt.sha256}:{prompt.n_tokens}", stored.block_id


def _logs(rows: Iterable[Measured], of: Callable[[Trial], float | None]) -> Logs:
    with_speed = ((one, of(one.trial)) for one in rows if one.trial.valid)
    return {_block_of(one): math.log(tok_s) for one, tok_s in with_speed if tok_s}


def _tok_s(stored: Measured) -> float:
    tok_s = speed(stored.trial)
    assert tok_s is not None
    return tok_s


def _by_prompt(rows: Iterable[Measured], of: Callable[[Measured], float | None]) -> Iterator[list[float]]:
    for of_prompt in grouped(rows, lambda one: _block_of(one)[0]).values():
        if values := [math.log(value) for one in of_prompt if (value := of(one))]:
            yield values


def _mean(rows: Iterable[Measured], of: Callable[[Measured], float | None]) -> float | None:
    means = [statistics.fmean(own) for own in _by_prompt(rows, of)]
    return math.exp(statistics.fmean(means)) if means else None


def _spread(rows: Iterable[Measured]) -> float | None:
    prompts = ((own, statistics.fmean(own)) for own in _by_prompt(rows, _tok_s))
    flat = [math.exp(log - mean) for own, mean in prompts for log in own]
    return relative_spread(flat)
