"""What the arms of servers say beyond their result: losslessness in words, what a server costs beside our own loop."""

from collections.abc import Mapping, Sequence

from mlsd.records import NO_DRAFTER, Status, Trial
from mlsd.servers.flags import flags_of
from mlsd.servers.request import SERVERS
from mlsd.stats import Percentiles, grouped, percentiles
from mlsd.trials.decisions import times
from mlsd.trials.on_or_off import Answer, answers
from mlsd.trials.rates import DRAFTED, DRAFTED_RIGHT, client_speed, share, speed, total
from mlsd.trials.results import ArmResult, Measured, counting, is_unusable, speed_over
from mlsd.units import NS_PER_MS

_ENDS = "({} .. {})"


def row_name(arm: ArmResult) -> str:
    """The arm in words; of servers with models of their own the target's; with how many requests at once."""
    name = arm.case.target.id if arm.question.rivals else arm.label
    n_at_once = arm.question.suite.removeprefix(f"{SERVERS}-parallel-")
    return f"{name}, {n_at_once} at once" if n_at_once.isdigit() else name


def first_token_ms(arm: ArmResult) -> Percentiles | None:
    """From sending a request to the first piece of output, by the client's clock."""
    spans = (one.trial.stats.get("first_token_ns") for one in counting(arm.trials))
    return percentiles([ns / NS_PER_MS for ns in spans if ns])


def token_ms(arm: ArmResult) -> Percentiles | None:
    """Mean time of a token after the first, of each answer."""
    return percentiles([1e3 / tok_s for one in counting(arm.trials) if (tok_s := speed(one.trial))])


def by_category(arm: ArmResult) -> dict[str, float]:
    """Acceptance of each kind of text, where there are several."""
    kinds = grouped(counting(arm.trials), lambda one: one.case.prompt.workload or one.case.prompt.key)
    sums = {kind: total(one.whole for one in some) for kind, some in kinds.items()}
    rates = {
        kind: share(one.accepted, one.proposed or one.committed)
        for kind, one in sums.items()
        if one.proposed or one.accepted
    }
    return {kind: rate for kind, rate in rates.items() if rate is not None} if len(kinds) > 1 else {}


def verdict_words(arm: ArmResult, *, deterministic: bool = True) -> str:
    """Whether its output is that of plain decoding."""
    if arm.verdict is not None:
        return "different" if arm.verdict == "not_judged" else arm.verdict
    measured = any(one.trial.status is not Status.FAILED for one in arm.trials)
    return "-" if not measured else "not judged" if deterministic else "cannot be judged"


# --- beside our own loop ------------------------------------------------------------------------------------------


def server_costs(trials: Sequence[Measured]) -> list[str]:
    """What the server costs beyond the decoding, and where its rounds are others than ours."""
    engine = [one for one in trials if one.case.source == "engine"]
    if not engine:
        return []
    lines = []
    pools = {
        (source, arm): [one for one in trials if one.case.source == source and one.case.arm == arm]
        for source in ("engine", "server")
        for arm in ("ar", "sd")
    }
    for arm, kind in (("ar", "plain decoding"), ("sd", "speculative decoding")):
        for of, clock in ((speed, "its own clock"), (client_speed, "the client's clock")):
            ratio = speed_over(pools["engine", arm], pools["server", arm], of)
            if ratio is not None:
                lines.append(f"The server's {kind} runs at {times(ratio)} of our loop's speed by {clock}.")
    return lines + _round_differences(pools["engine", "sd"], pools["server", "sd"])


def _round_differences(engine: Sequence[Measured], server: Sequence[Measured]) -> list[str]:
    """For each prompt and setting: whether acceptance agrees, and the first round that does not."""

    def setting(stored: Measured) -> str:
        return f"{stored.case.prompt.key}, {stored.case.drafter.name}, gamma {stored.case.gamma}"

    ours = {setting(one): one.trial for one in engine if one.trial.rounds}
    theirs = {setting(one): one.trial for one in server if one.trial.stats.get(DRAFTED)}
    return [f"{key}: {_compare(trial, theirs[key])}" for key, trial in ours.items() if key in theirs]


def _compare(ours: Trial, theirs: Trial) -> str:
    mine, other = ([(r.proposed, r.accepted) for r in trial.rounds] for trial in (ours, theirs))
    counts = sum(p for p, _ in mine), sum(a for _, a in mine)
    server = int(theirs.stats[DRAFTED]), int(theirs.stats[DRAFTED_RIGHT])
    if mine == other:
        return f"the same rounds, {counts[1]} of {counts[0]} accepted."
    text = "" if ours.tokens == theirs.tokens else " Their texts differ, too."
    if not other:
        agree = f"both accepted {counts[1]} of {counts[0]}" if counts == server else (
            f"our loop accepted {counts[1]} of {counts[0]}, the server {server[1]} of {server[0]}"
        )  # fmt: skip
        return f"{agree}; the server's stream does not report each round.{text}"
    first = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other)))
    after = 1 + sum(r.committed for r in ours.rounds[:first])
    again = sum(r.proposed == 0 and r.rows > 1 for r in theirs.rounds)
    why = f" {again} of the server's passes repeat what a rejection undid." if again else ""
    ends = " and ".join(
        f"{who} accepted {each[first][1]} of {each[first][0]}" if first < len(each) else f"{who} had ended"
        for who, each in (("our loop", mine), ("the server", other))
    )
    return (
        f"our loop accepted {counts[1]} of {counts[0]} in {len(mine)} rounds, the server {server[1]} of "
        f"{server[0]} in {len(other)}; they part at round {first + 1} (after token {after}), where {ends}.{why}{text}"
    )


# --- what to do ---------------------------------------------------------------------------------------------------


def server_answers(arms: Sequence[ArmResult]) -> list[Answer]:
    """The answer of the server, of requests alone; our own loop's trials and requests at once say nothing of it."""
    return answers(arm for arm in arms if arm.question.source == "server" and arm.question.suite == SERVERS)


def recommend(arms: Sequence[ArmResult], drafts: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The answer of the server, and what to set.

    `drafts` are the files of draft models by id, where they are here.
    """
    lines: list[str] = []
    for answer in server_answers(arms):
        lines.append(f"{answer.sentence[0].upper()}{answer.sentence[1:]}.")
        ref = None if answer.best is None else answer.best.case.drafter.draft
        lines += flags_of(answer, None if ref is None else (drafts or {}).get(ref.id))
    return tuple(lines)


def rival(arms: Sequence[ArmResult]) -> tuple[str, ...]:
    """Which of two servers with models of their own is faster, and what of it is drafting, in sentences."""
    lines = []
    alone = [arm for arm in arms if arm.question.suite == SERVERS]
    for arm in alone[1:]:
        first, name = alone[0], row_name(arm)
        base = row_name(first)
        if arm.standing is not None:
            lines.append(f"Against {base}, {name} {arm.standing.finding}.")
        else:
            unusable = any(map(is_unusable, (*first.trials, *arm.trials)))
            why = ": not every answer can be used" if unusable else ""
            lines.append(f"{name} against {base} is not decided yet{why}.")
    for arm in alone:
        parts = [
            f"{100 * rate:.0f} % of {of}"
            for rate, of in ((arm.acceptance_rate, "proposed tokens"), (arm.accepted_of_output, "its output"))
            if rate is not None
        ]
        mgl = "" if arm.mgl is None else f", {arm.mgl:.2f} tokens a round"
        untold = "drafts nothing" if arm.case.drafter.name == NO_DRAFTER else "does not report drafted tokens"
        drafted = f"accepts {' and '.join(parts)}{mgl}" if parts else untold
        lines.append(f"{row_name(arm)} {drafted}.")
    return tuple(lines)
