"""What must hold within a trial: between its parts and the whole, its counts, its output and its case.

The loop makes these identities hold to the nanosecond: a round begins where the one before ended, so the parts of all
rounds sum to the decode time, and every committed token is accepted or a bonus. A trial that breaks one is no
measurement, whoever says so: it is not stored, no record of it verifies, and no answer is made of it.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from mlsd.records import DRAFT_MODEL, MOST_FEW, NO_DRAFTER, Case, Round, Status, Trial
from mlsd.trials.rates import Sums, sums

_SPARE_NS = 100_000_000  # processor time is counted in coarse steps, and of threads that were at work before
_CLOCK_SLACK = 1.05
_GENERATION, _GENERATION_NS = 1.25, 2_000_000_000  # most of a generation are its parts
_PLACES = {"block": (1 << 63) - 1, "repeat": MOST_FEW, "position": MOST_FEW}


class Broken(NamedTuple):
    """An identity that does not hold."""

    rule: str
    sentence: str


def broken(
    case: Case, trial: Trial, stored: Sums | None = None, *, n_vocab: int | None = None, n_cores: int | None = None
) -> Iterator[Broken]:
    """Every identity that a trial of this case breaks; of a server's trial only those that a server can know.

    `stored`: the sums of a trial that was read without its rounds, its types checked; None: the rounds are here.
    """
    if stored is None and trial.case_id != case.id:
        yield Broken("case", "it belongs to another case")
    if (trial.arm, trial.gamma) != (case.arm, case.gamma):
        yield Broken("arm", f"it is {trial.arm} at gamma {trial.gamma}, its case {case.arm} at gamma {case.gamma}")
    misfit = None if stored is not None else _mistyped(trial)
    if misfit is not None:
        yield Broken("range", misfit)
    if trial.status is Status.FAILED:
        if trial.tokens or trial.rounds or trial.reason is None:
            yield Broken("failed", "it failed, but has an output, or no reason")
        return
    if misfit is not None:  # nothing can be summed up
        return
    whole = sums(trial.rounds) if stored is None else stored
    yield from _of_output(case, trial, n_vocab)
    yield from _of_rounds(case, trial, whole)
    yield from _of_times(case, trial, whole, n_cores)
    yield from _of_verdict(case, trial)


# A trial that breaks one of these gives no figure, and readers could not sum it up.
_NO_FIGURE = ("arm", "range", "tokens", "committed", "round", "parts")


def no_figure(breaches: Iterable[Broken]) -> Broken | None:
    """The first of what a trial breaks for which it gives no figure."""
    return next((one for one in breaches if one.rule in _NO_FIGURE), None)


def admitted(case: Case, trial: Trial) -> Trial:
    """The trial as it may be stored: itself, or a failed one that says why its figures cannot be."""
    if not all(map(math.isfinite, trial.stats.values())):  # JSON has no NaN and no infinity: it was not measured
        finite = {name: value for name, value in trial.stats.items() if math.isfinite(value)}
        trial = msgspec.structs.replace(trial, stats=finite)
    breach = no_figure(broken(case, trial))
    if breach is None:
        return trial
    places = {name: max(0, min(getattr(trial, name), most)) for name, most in _PLACES.items()}
    return Trial(
        case_id=trial.case_id, arm=case.arm, gamma=case.gamma, status=Status.FAILED, started_at=trial.started_at,
        reason=f"What it says cannot be: {breach.sentence}.", **places,
    )  # fmt: skip


def _mistyped(record: msgspec.Struct) -> str | None:
    """Which value of a record made here its type does not allow: a number below 0, beyond 64 bits, or none."""
    try:
        msgspec.json.decode(msgspec.json.encode(record), type=type(record))
    except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError) as error:
        return f"a value in it cannot be: {error}"
    return None


def _of_output(case: Case, trial: Trial, n_vocab: int | None) -> Iterator[Broken]:
    n_prompt = case.prompt.n_tokens
    if case.source == "server":
        if trial.n_tokens < 1:
            yield Broken("tokens", "it has no output")
        return
    n_tokens = len(trial.tokens)
    if not 0 < n_tokens <= case.n_predict or (case.ignore_eog and n_tokens != case.n_predict):
        yield Broken("tokens", f"{n_tokens} tokens for {case.n_predict} asked for")
    if n_vocab is not None and any(token >= n_vocab for token in trial.tokens):
        yield Broken("tokens", "a token that the vocabulary does not have")
    if n_prompt is not None and trial.n_prompt != n_prompt:
        yield Broken("prompt", f"{trial.n_prompt} prompt tokens where exactly {n_prompt} were asked for")


def _of_rounds(case: Case, trial: Trial, whole: Sums) -> Iterator[Broken]:
    # Trees verify more rows than they propose along one path, and a checkpoint decodes what is kept once more.
    chain = case.drafter.name in (NO_DRAFTER, DRAFT_MODEL) and not case.drafter.options
    exact = chain and trial.rollback_target in (None, "trim", "snapshots")
    if case.source == "engine" and whole.committed != len(trial.tokens) - 1:
        n_tokens = len(trial.tokens)
        yield Broken("committed", f"{n_tokens} tokens, but the first and {whole.committed} committed by rounds")
    if case.source == "engine" and whole.rows < whole.rounds + whole.proposed:
        yield Broken("round", f"{whole.rows} rows verified {whole.proposed} proposed tokens in {whole.rounds} rounds")
    if whole.accepted > whole.proposed:
        yield Broken("round", f"{whole.accepted} tokens accepted of {whole.proposed} proposed")
    of_server, last = case.source == "server", len(trial.rounds) - 1
    for number, each in enumerate(trial.rounds):
        if not of_server:
            ended = number == last and not case.ignore_eog
            yield from _of_round(number, each, case.gamma, ended=ended, exact=exact)
        elif each.accepted > each.proposed:
            yield Broken("round", f"round {number} accepted {each.accepted} of {each.proposed} proposed")


def _of_round(number: int, a_round: Round, gamma: int, *, ended: bool, exact: bool) -> Iterator[Broken]:
    if not a_round.accepted <= a_round.proposed <= gamma:
        yield Broken(
            "round", f"round {number} accepted {a_round.accepted} of {a_round.proposed} proposed at gamma {gamma}"
        )
    elif a_round.committed not in ((a_round.accepted, a_round.accepted + 1) if ended else (a_round.accepted + 1,)):
        yield Broken("round", f"round {number} accepted {a_round.accepted} and committed {a_round.committed}")
    if a_round.rows < 1 + a_round.proposed or (exact and a_round.rows != 1 + a_round.proposed):
        yield Broken("round", f"round {number} verified {a_round.proposed} proposed tokens in {a_round.rows} rows")


def _of_times(case: Case, trial: Trial, summed: Sums, n_cores: int | None) -> Iterator[Broken]:
    if case.source == "server":
        return
    parts = summed.parts_ns
    whole = parts + (trial.draft_prefill_ns or 0)
    if any(value > whole for name, value in trial.stats.items() if name.startswith("draft_") and name.endswith("_ns")):
        yield Broken("stats", f"its drafter counted more time for itself than the {whole} ns of the trial")
    if case.arm == "ar" and trial.draft_prefill_ns:
        yield Broken("draft", "it has no draft, and read the prompt into one")
    if not trial.timed:
        if trial.decode_ns is not None:
            yield Broken("parts", "its times are not its method's, but it has a decode time")
    elif trial.decode_ns != parts:
        yield Broken("parts", f"the parts of its rounds sum to {parts} ns, its decode time is {trial.decode_ns} ns")
    around = trial.conditions
    if around is None or around.generation_ns is None:
        return
    inside = (trial.prefill_ns or 0) + (trial.draft_prefill_ns or 0) + parts
    if parts > around.generation_ns:  # a prompt that was read for its time was read before
        yield Broken("generation", f"its parts take {parts} ns of a generation of {around.generation_ns} ns")
    if trial.prefill_ns is not None and around.generation_ns > _GENERATION * inside + _GENERATION_NS:
        yield Broken("generation", f"a generation of {around.generation_ns} ns has parts of {inside} ns")
    most = around.generation_ns * (n_cores or math.inf) * _CLOCK_SLACK + _SPARE_NS
    if around.processor_ns is not None and around.processor_ns > most:
        yield Broken("processor", "it took more processor time than the machine has")


def _of_verdict(case: Case, trial: Trial) -> Iterator[Broken]:
    verdict = trial.losslessness
    if (trial.status is Status.VALID) == (trial.reason is not None):
        yield Broken("valid", "it is valid with a reason against it, or not valid without one")
    # A server's speed counts where nobody can judge its text: the two are told apart.
    unlike = ("diverged", "not_judged") if case.source == "engine" else ("diverged",)
    differs = verdict is not None and verdict.verdict in unlike
    if trial.status.right and (trial.failed_native_calls or differs):
        yield Broken("valid", "it is called valid, but calls failed, or its output diverged or could not be judged")
    if verdict is None:
        return
    if verdict.verdict == "lossless" and (verdict.first_difference is not None or verdict.n_positions_off):
        yield Broken("verdict", "it is called lossless and differs")
    if (verdict.n_different or 0) > (verdict.n_compared or 0):
        yield Broken("verdict", "more tokens differ than were compared")
    if verdict.verdict == "near_tie" and verdict.tolerance is not None:
        gap = max(verdict.worst_gap or 0.0, verdict.top2_gap or 0.0)
        if gap > verdict.tolerance:
            yield Broken(
                "verdict", f"it is called a near tie of {gap:.3g} logits, where {verdict.tolerance:.3g} explain one"
            )
    if verdict.verdict == "near_tie" and (verdict.first_difference or 0) >= max(1, trial.n_tokens):
        yield Broken("verdict", "it is called a near tie behind its last token")
    distance, limit, noise = verdict.live_distance, verdict.live_limit, verdict.live_noise
    if noise is not None and limit is not None and not 0 <= noise <= limit:
        yield Broken("verdict", f"memories are {noise:.3g} apart, {limit:.3g} is the limit made of that")
    if verdict.verdict in ("lossless", "near_tie") and distance is not None and limit is not None and distance > limit:
        yield Broken(
            "verdict", f"its memory is {distance:.3g} from what it should be, {limit:.3g} is the limit, and it diverged"
        )
