"""What the trials of servers say: one row an arm, what the server costs beside our own loop, and what to set."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlsd.measure.run.runs import BenchTrial
from mlsd.records import NO_DRAFTER, DrafterSpec, Losslessness, Record, Source, Trial
from mlsd.servers.distrust import beyond
from mlsd.servers.flags import advice
from mlsd.servers.judge import margin
from mlsd.stats import Interval, best_of, grouped, median, paired
from mlsd.trials.arms import Arm, options_text
from mlsd.trials.pairs import Timed, speedup
from mlsd.trials.sums import decode_tok_s, share, speed, sums_of

# Two processes of one program lie elsewhere in memory, which is a steady difference of some tenths of a percent to two.
# Blocks do not show it, so intervals go so much further: where processes differ by 0.7 to 1.2 % (standard deviation),
# with noise of 0.2 to 2 % and 3 to 12 blocks, they cover in 93 to 100 % of simulated sessions; without it in 12 to 94.
ALIKE = 0.02
_SEVERITY = ("lossless", "near_tie", "diverged")


class Row(Record, frozen=True, kw_only=True):
    """One arm over its prompts and repeats, beside the plain arm of the same source and number of requests at once."""

    suite: str
    source: Source
    spec: DrafterSpec
    gamma: int  # 0: plain, or nobody knows
    n_trials: int
    n_valid: int
    tok_s: float | None  # medians; by the server's clock where it has one
    client_tok_s: float | None
    first_token_ms: float | None  # by the client's clock
    speedup: Interval | None
    acceptance_rate: float | None
    mgl: float | None
    rounds: int | None
    verdict: str
    margin: str  # what decided a verdict that is not lossless
    invalid_reason: str | None
    impossible: str = ""  # why a speedup that the clocks give is not used
    confirmed: bool = True  # by our own clock: that it is faster

    @property
    def effect(self) -> str:
        """Whether the interval excludes what two equal processes show, and on which side."""
        if self.speedup is None or self.speedup.low is None or self.speedup.high is None:
            return "undecided"
        if self.speedup.low > 1:
            return "faster" if self.confirmed else "undecided"
        return "slower" if self.speedup.high < 1 else "undecided"

    @property
    def name(self) -> str:
        """The arm in words."""
        return Arm(method=self.spec.name, draft=self.spec.draft, options=options_text(self.spec)).name


def rows(trials: Sequence[BenchTrial], *, deterministic: bool = True) -> list[Row]:
    """Every arm, our own loop's last, plain ones first."""

    def arm(one: BenchTrial) -> tuple[str, str, str, str, int]:
        case = one.case
        return case.suite, case.source, case.arm, f"{case.drafter.name} {case.drafter}", case.gamma

    arms = grouped(trials, arm)
    order = sorted(arms, key=lambda key: (len(key[0]), key[0], key[1] != "server", key[2], key[3], key[4]))
    plain = {key[:2]: own for key, own in arms.items() if key[2] == "ar"}
    return [_row(arms[key], plain.get(key[:2], []), deterministic) for key in order]


def _row(own: Sequence[BenchTrial], plain: Sequence[BenchTrial], deterministic: bool) -> Row:
    case = own[0].case
    measured = [one.trial for one in own if one.trial.status == "ok"]
    proposed, accepted = _sum(measured, "proposed", "draft_n"), _sum(measured, "accepted", "draft_n_accepted")
    whole = sums_of(measured)
    verdicts = [trial.losslessness for trial in measured if trial.losslessness is not None]
    worst = max(verdicts, key=lambda v: _SEVERITY.index(v.verdict), default=None)
    reason = next((t.error or t.invalid_reason for t in (one.trial for one in own) if not t.valid), None)
    found, mine = (ratio(own, plain, of) if case.arm == "sd" else None for of in (speed, client_speed))
    mgl = whole.mgl if case.arm == "sd" else None
    most = mgl or _most(measured, accepted, case.gamma)
    impossible = beyond(found, most)
    return Row(
        suite=case.suite,
        source=case.source,
        spec=case.drafter,
        gamma=case.gamma,
        n_trials=len(own),
        n_valid=sum(trial.valid for trial in measured),
        tok_s=_median(measured, speed),
        client_tok_s=_median(measured, client_speed),
        first_token_ms=_median(measured, lambda t: (ns := t.stats.get("first_token_ns")) and ns / 1e6),
        speedup=None if impossible else found,
        impossible=f"{_interval(found)} is more than its MGL of {most:.2f} allows" if found and impossible else "",
        confirmed=mine is not None and mine.low is not None and mine.low > 1 and not beyond(mine, most),
        acceptance_rate=share(accepted, proposed),
        mgl=mgl,
        rounds=(whole.rounds or _sum(measured, "rows", "draft_rounds") or None) if case.arm == "sd" else None,
        verdict=_verdict(worst, measured, deterministic),
        margin=margin(worst),
        invalid_reason=reason,
    )  # fmt: skip


def _most(trials: Sequence[Trial], accepted: int | None, gamma: int) -> float | None:
    """The MGL that no speedup exceeds: each round gives what it accepted and one token more; else what gamma allows."""
    tokens = sum(max(0, trial.n_tokens - 1) for trial in trials)
    if accepted is not None and accepted < tokens:
        return tokens / (tokens - accepted)
    return gamma + 1.0 if gamma else None


def client_speed(trial: Trial) -> float | None:
    """Decode tok/s by the clock of this program, which is our own loop's as well."""
    span = trial.stats.get("client_decode_ns", trial.decode_ns)
    return decode_tok_s(trial.n_tokens, None if span is None else int(span))


def ratio(
    own: Sequence[BenchTrial], plain: Sequence[BenchTrial], of: Callable[[Trial], float | None] = speed
) -> Interval | None:
    """Speed over that of the other arm in the same block, geometric mean over blocks, or over prompts."""

    def timed(arm: Sequence[BenchTrial]) -> list[Timed]:
        known = ((one, of(one.trial)) for one in arm if one.trial.valid)
        return [Timed(found, one.case.prompt.key, one.trial.block) for one, found in known if found is not None]

    return _apart(speedup(paired(timed(plain), timed(own), lambda one: one[1:])))


def _apart(found: Interval | None) -> Interval | None:
    """The interval with what two processes of one program differ by on both sides: blocks of the two share it."""
    if found is None or found.low is None or found.high is None:
        return found
    return Interval(value=found.value, low=found.low / (1 + ALIKE), high=found.high * (1 + ALIKE), n=found.n)


def _verdict(worst: Losslessness | None, measured: Sequence[Trial], deterministic: bool) -> str:
    if worst is None:
        return "-" if not measured else "cannot be told" if not deterministic else "not judged"
    # Without log-probabilities nobody can say how near a tie was.
    return "different" if worst.verdict == "diverged" and worst.worst_gap is None else worst.verdict


def _sum(trials: Sequence[Trial], of_round: str, stat: str) -> int | None:
    said = [int(trial.stats[stat]) for trial in trials if stat in trial.stats]
    counted = [sum(getattr(r, of_round) for r in trial.rounds) for trial in trials if trial.rounds]
    return sum(said) if said else sum(counted) if counted else None


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
    theirs = {setting(one): one.trial for one in server if one.trial.stats.get("draft_n")}
    return [f"{key}: {_compare(trial, theirs[key])}" for key, trial in ours.items() if key in theirs]


def _compare(ours: Trial, theirs: Trial) -> str:
    mine, other = ([(r.proposed, r.accepted) for r in trial.rounds] for trial in (ours, theirs))
    counts = sum(p for p, _ in mine), sum(a for _, a in mine)
    said = int(theirs.stats["draft_n"]), int(theirs.stats["draft_n_accepted"])
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
        low = best_of(best.speedup, len(good), ratio=True).low
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
