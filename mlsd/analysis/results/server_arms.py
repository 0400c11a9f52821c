"""What the trials of servers say: one row an arm, what a server costs beside our own loop, and what to set or use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from mlsd.measure.run.runs import BenchTrial
from mlsd.records import NO_DRAFTER, DrafterSpec, Losslessness, Record, Source, Trial
from mlsd.servers.distrust import beyond
from mlsd.servers.flags import advice
from mlsd.servers.judge import margin
from mlsd.stats import Interval, Percentiles, best_of, grouped, median, paired, percentiles
from mlsd.trials.acceptance import of_output
from mlsd.trials.arms import Arm, arm_of, options_text
from mlsd.trials.decisions import Decision, Effect, Standing, effect_of, processes_apart
from mlsd.trials.pairs import Timed, speedup
from mlsd.trials.sums import DRAFTED, DRAFTED_RIGHT, Sums, counts_of, decode_tok_s, share, speed, total
from mlsd.units import NS_PER_MS

_SEVERITY = ("lossless", "near_tie", "diverged")


class Row(Record, frozen=True, kw_only=True):
    """One arm over its prompts and repeats, beside the base of the same source and number of requests at once."""

    suite: str
    source: Source
    target: str  # id
    rival: bool = False  # beside a server with a model of its own
    spec: DrafterSpec
    gamma: int  # 0: plain, or nobody knows
    n_trials: int
    n_valid: int
    tok_s: float | None  # medians; by the server's clock where it has one
    client_tok_s: float | None
    first_token_ms: Percentiles | None  # by the client's clock
    token_ms: Percentiles | None  # mean time of a token after the first, of each answer
    speedup: Interval | None
    joint: bool = False  # the intervals of all rows hold together
    acceptance_rate: float | None  # accepted / proposed
    accepted_of_output: float | None  # accepted / output tokens
    mgl: float | None
    rounds: int | None
    verdict: str
    margin: str  # what decided a verdict that is not lossless
    invalid_reason: str | None
    impossible: str = ""  # why a speedup that the clocks give is not used
    confirmed: bool = True  # by our own clock: that it is faster
    by_category: Mapping[str, float] = msgspec.field(default_factory=dict)  # accepted / proposed, else of the output

    @property
    def effect(self) -> Effect:
        """What the interval decides; faster only what our own clock finds faster, too."""
        found = effect_of(self.speedup)
        return found if found != "faster" or self.confirmed else "undecided"

    @property
    def name(self) -> str:
        """The arm in words."""
        if self.rival:
            return self.target
        return Arm(method=self.spec.name, draft=self.spec.draft, options=options_text(self.spec)).name


def rows(
    trials: Sequence[BenchTrial],
    *,
    deterministic: bool = True,
    base: str = "",
    decisions: Mapping[str, Decision] | None = None,
) -> list[Row]:
    """Every arm, our own loop's last, the base first: plain decoding, or the arm with the target `base`.

    With `decisions` speedups are those that hold together, and at every look.
    """

    def arm(one: BenchTrial) -> tuple[str, str, str, str, int, str]:
        case, rival = one.case, one.case.target.id if base else ""
        return case.suite, case.source, case.arm, f"{case.drafter.name} {case.drafter}", case.gamma, rival

    def is_base(key: tuple[str, str, str, str, int, str]) -> bool:
        return key[5] == base if base else key[2] == "ar"

    arms = grouped(trials, arm)
    order = sorted(arms, key=lambda key: (len(key[0]), key[0], key[1] != "server", not is_base(key), *key[3:]))
    bases = {key[:2]: own for key, own in arms.items() if is_base(key)}
    made = []
    for key in order:
        against = [] if is_base(key) else bases.get(key[:2], [])
        decision = (decisions or {}).get(f"{key[0]} {key[1]}")
        standing = None if decision is None else decision.of(key[5] or arm_of(arms[key][0].case).setting)
        made.append(_row(arms[key], against, deterministic, standing, rival=bool(base)))
    return made


def _row(
    own: Sequence[BenchTrial],
    base: Sequence[BenchTrial],
    deterministic: bool,
    standing: Standing | None,
    *,
    rival: bool,
) -> Row:
    case = own[0].case
    measured = [one.trial for one in own if one.trial.status == "ok"]
    whole = _counted(measured)
    verdicts = [trial.losslessness for trial in measured if trial.losslessness is not None]
    worst = max(verdicts, key=lambda v: _SEVERITY.index(v.verdict), default=None)
    reason = next((t.error or t.invalid_reason for t in (one.trial for one in own) if not t.valid), None)
    found, mine = (ratio(own, base, of) if base else None for of in (speed, client_speed))
    if standing is not None:
        found = standing.ratio
    most = None if rival else whole.mgl or (case.gamma + 1.0 if case.gamma else None)
    impossible = beyond(found, most)
    return Row(
        suite=case.suite,
        source=case.source,
        target=case.target.id,
        rival=rival,
        spec=case.drafter,
        gamma=case.gamma,
        n_trials=len(own),
        n_valid=sum(trial.valid for trial in measured),
        tok_s=_median(measured, speed),
        client_tok_s=_median(measured, client_speed),
        first_token_ms=percentiles([ns / NS_PER_MS for trial in measured if (ns := trial.stats.get("first_token_ns"))]),
        token_ms=percentiles([1e3 / tok_s for trial in measured if (tok_s := speed(trial))]),
        speedup=None if impossible else found,
        joint=standing is not None,
        impossible=f"{_interval(found)} is more than its MGL of {most:.2f} allows" if found and impossible else "",
        confirmed=mine is not None and mine.low is not None and mine.low > 1 and not beyond(mine, most),
        acceptance_rate=share(whole.accepted, whole.proposed),
        accepted_of_output=of_output(whole.mgl),
        mgl=whole.mgl,
        rounds=whole.rounds or None,
        verdict="not compared" if rival else _verdict(worst, measured, deterministic),
        margin=margin(worst),
        invalid_reason=reason,
        by_category=_by_category(own),
    )  # fmt: skip


def _counted(trials: Sequence[Trial]) -> Sums:
    """Tokens proposed, accepted and committed, and rounds, where speculation was on."""
    return total(one for trial in trials if trial.arm == "sd" and (one := _counts(trial)) is not None)


def _counts(trial: Trial) -> Sums | None:
    """The same of a trial.

    Each round gives what it accepted and one token more; a server may count the rounds that drafted alone (vLLM), or
    accepted tokens behind the end of its answer (mlx-vlm): the larger number of rounds is right.
    """
    said = counts_of(trial)
    if said is None or trial.rounds:
        return said
    committed = trial.n_tokens - 1
    return msgspec.structs.replace(said, committed=committed, rounds=max(said.rounds, committed - said.accepted))


def _by_category(own: Sequence[BenchTrial]) -> dict[str, float]:
    """Acceptance of each kind of text, where there are several."""
    kinds = grouped(own, lambda one: one.case.prompt.workload or one.case.prompt.key)
    sums = {kind: _counted([one.trial for one in some if one.trial.status == "ok"]) for kind, some in kinds.items()}
    rates = {kind: share(one.accepted, one.proposed or one.committed) for kind, one in sums.items()}
    return {kind: rate for kind, rate in rates.items() if rate is not None} if len(kinds) > 1 else {}


def client_speed(trial: Trial) -> float | None:
    """Decode tok/s by the clock of this program, which is our own loop's as well."""
    span = trial.stats.get("client_decode_ns", trial.decode_ns)
    return decode_tok_s(trial.n_tokens, None if span is None else int(span))


def ratio(
    own: Sequence[BenchTrial], plain: Sequence[BenchTrial], of: Callable[[Trial], float | None] = speed
) -> Interval | None:
    """Speed over that of the other arm in the same block, geometric mean over blocks, or over prompts.

    As two processes of one program differ by themselves, the interval goes so much further.
    """

    def timed(arm: Sequence[BenchTrial]) -> list[Timed]:
        known = ((one, of(one.trial)) for one in arm if one.trial.valid)
        return [Timed(found, one.case.prompt.key, one.trial.block) for one, found in known if found is not None]

    found = speedup(paired(timed(plain), timed(own), lambda one: one[1:]))
    return None if found is None else processes_apart(found)


def _verdict(worst: Losslessness | None, measured: Sequence[Trial], deterministic: bool) -> str:
    if worst is None:
        return "-" if not measured else "cannot be told" if not deterministic else "not judged"
    # Without log-probabilities nobody can say how near a tie was.
    return "different" if worst.verdict == "diverged" and worst.worst_gap is None else worst.verdict


def _median(trials: Sequence[Trial], of: Callable[[Trial], float | None]) -> float | None:
    return median([value for trial in trials if (value := of(trial)) is not None])


# --- beside our own loop ------------------------------------------------------------------------------------------


def beside(trials: Sequence[BenchTrial]) -> list[str]:
    """What the server costs beyond the decoding, and where its rounds are others than ours."""
    said: list[str] = []
    engine = [one for one in trials if one.case.source == "engine"]
    if not engine:
        return said
    pools = {
        (source, arm): [one for one in trials if one.case.source == source and one.case.arm == arm]
        for source in ("engine", "server")
        for arm in ("ar", "sd")
    }
    for arm, words in (("ar", "plain decoding"), ("sd", "speculative decoding")):
        for of, clock in ((speed, "its own clock"), (client_speed, "the client's clock")):
            found = ratio(pools["server", arm], pools["engine", arm], of)
            if found is not None:
                said.append(f"The server's {words} runs at {_interval(found)} of our loop's speed by {clock}.")
    return said + _rounds_apart(pools["engine", "sd"], pools["server", "sd"])


def _interval(found: Interval) -> str:
    bounds = "" if found.low is None else f" ({found.low:.2f} .. {found.high:.2f})"
    return f"{found.value:.2f}x{bounds}"


def _rounds_apart(engine: Sequence[BenchTrial], server: Sequence[BenchTrial]) -> list[str]:
    """For each prompt and setting: whether acceptance agrees, and the first round that does not."""

    def setting(one: BenchTrial) -> str:
        return f"{one.case.prompt.key}, {one.case.drafter.name}, gamma {one.case.gamma}"

    ours = {setting(one): one.trial for one in engine if one.trial.rounds}
    theirs = {setting(one): one.trial for one in server if one.trial.stats.get(DRAFTED)}
    return [f"{key}: {_compare(trial, theirs[key])}" for key, trial in ours.items() if key in theirs]


def _compare(ours: Trial, theirs: Trial) -> str:
    mine, other = ([(r.proposed, r.accepted) for r in trial.rounds] for trial in (ours, theirs))
    counts = sum(p for p, _ in mine), sum(a for _, a in mine)
    said = int(theirs.stats[DRAFTED]), int(theirs.stats[DRAFTED_RIGHT])
    if mine == other:
        return f"the same rounds, {counts[1]} of {counts[0]} accepted."
    text = "" if ours.tokens == theirs.tokens else " Their texts differ, too."
    if not other:
        agree = f"both accepted {counts[1]} of {counts[0]}" if counts == said else (
            f"our loop accepted {counts[1]} of {counts[0]}, the server {said[1]} of {said[0]}"
        )  # fmt: skip
        return f"{agree}; the server's stream does not tell each round.{text}"
    first = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other)))
    after = 1 + sum(r.committed for r in ours.rounds[:first])
    again = sum(r.proposed == 0 and r.rows > 1 for r in theirs.rounds)
    why = f" {again} of the server's passes repeat what a rejection undid." if again else ""
    words = " and ".join(
        f"{who} accepted {each[first][1]} of {each[first][0]}" if first < len(each) else f"{who} had ended"
        for who, each in (("our loop", mine), ("the server", other))
    )
    return (
        f"our loop accepted {counts[1]} of {counts[0]} in {len(mine)} rounds, the server {said[1]} of {said[0]} in "
        f"{len(other)}; they part at round {first + 1} (after token {after}), where {words}.{why}{text}"
    )


# --- what to do ---------------------------------------------------------------------------------------------------


def recommend(found: Sequence[Row], draft_path: str | None = None) -> tuple[str, ...]:
    """The flags of the fastest arm that is decided to be faster and writes the same; else to leave drafting off."""
    alone = [row for row in found if row.source == "server" and row.spec.name != NO_DRAFTER and row.suite == "server"]
    good = [row for row in alone if row.n_valid == row.n_trials and row.speedup is not None]
    best = max(good, key=lambda row: row.speedup.value if row.speedup else 0.0, default=None)
    if best is not None and best.speedup is not None:
        low = best.speedup.low if best.joint else best_of(best.speedup, len(good), ratio=True).low
        if low is not None and low > 1:
            if not best.confirmed:
                why = "its clock says that it is faster, and the clock of this program does not"
                return (f"Leave it off: {why}.", *advice(None, 0))
            if best.gamma == 0:  # a server that somebody else set up
                return (f"Leave the server's speculation on: {_interval(best.speedup)} of plain decoding.",)
            return advice(best.spec, best.gamma, draft_path)
    why = "no setting is decided to be faster" if good else "no speculative answer can be trusted"
    if wrong := next((row.impossible for row in alone if row.impossible), ""):
        why = f"a speedup of {wrong}, so a clock is wrong and it is not used"
    elif not good and any(row.n_valid for row in alone):
        why = "not every answer can be trusted, or none was long enough to be timed"
    return (f"Leave it off: {why}.", *advice(None, 0))


def rival(found: Sequence[Row]) -> tuple[str, ...]:
    """Which of two servers with models of their own is faster, and what of it is drafting, in sentences."""
    said = []
    alone = [row for row in found if row.rival and row.suite == "server"]
    for row in alone[1:]:
        first = alone[0]
        if row.n_valid < row.n_trials or first.n_valid < first.n_trials:
            said.append(f"{row.name} against {first.name} is not decided: not every answer can be used.")
        elif row.speedup is None or row.effect == "undecided":
            how = "" if row.speedup is None else f": {_interval(row.speedup)} of its tok/s"
            said.append(f"{row.name} against {first.name} is undecided{how}.")
        else:
            effect = f"is {row.effect}" if row.effect != "no difference" else "does not differ by more than 3 %"
            said.append(f"{row.name} {effect}: {_interval(row.speedup)} of the tok/s of {first.name}.")
    for row in alone:
        if row.acceptance_rate is not None or row.accepted_of_output is not None:
            parts = [
                f"{100 * rate:.0f} % of {of}"
                for rate, of in ((row.acceptance_rate, "proposed tokens"), (row.accepted_of_output, "its output"))
                if rate is not None
            ]
            mgl = "" if row.mgl is None else f", {row.mgl:.2f} tokens a round"
            said.append(f"{row.name} accepts {' and '.join(parts)}{mgl}.")
        else:
            said.append(f"{row.name} says of no token that it was drafted.")
    return tuple(said)
