"""What trials of servers say, on trials whose times are drawn: nothing is decided where there is nothing."""

import random

import msgspec
import pytest

from mlsd.analysis.results.server_arms import recommend, row_name, server_costs, verdict_words
from mlsd.cli.commands.server import _long_enough
from mlsd.records import Case, DrafterSpec, Losslessness, ModelRef, PromptRef, Round, Status, Trial
from mlsd.servers.judge import margin
from mlsd.trials.results import ArmResult, Measured, SessionPlan, arm_results
from tests.analysis.studies import as_measured

DRAWN = 400


def case(arm: str, prompt: str = "code", server: str | None = "llama-server b1", gamma: int = 0) -> Case:
    """A request, plain or not."""
    return Case(
        suite="server", target=ModelRef(id="m"), prompt=PromptRef(key=prompt, sha256=prompt), n_predict=101,
        drafter=DrafterSpec() if arm == "ar" else DrafterSpec(name="draft-model", draft=ModelRef(id="d")),
        gamma=gamma if arm == "sd" else 0, server=server,
    )  # fmt: skip


def trial(
    case: Case, block: int, tok_s: float, verdict: str = "lossless", gap: float | None = None, valid: bool = True,
    counts: tuple[tuple[int, int], ...] = (),
) -> Measured:  # fmt: skip
    """A trial of 101 tokens at a speed; 60 of them were drafted where no rounds are given."""
    proposed, accepted = (sum(p for p, _ in counts), sum(a for _, a in counts)) if counts else (80, 60)
    trial_ = Trial(
        case_id=case.id, arm=case.arm, gamma=case.gamma, block=block, repeat=block, position=0,
        status=Status.VALID if valid else Status.INVALID, reason=None if valid else "it lies",
        started_at="2026-01-01T00:00:00+00:00", tokens=tuple(range(101)), decode_ns=round(100e9 / tok_s),
        losslessness=Losslessness(verdict=verdict, worst_gap=gap),
        stats={
            "whole_decode_ns": 101e9 / tok_s, "first_token_ns": 5e6,
            "draft_n": proposed, "draft_n_accepted": accepted,
        },
        rounds=tuple(
            Round(proposed=p, accepted=a, committed=a + 1, rows=1 + p, draft_ns=0, verify_ns=0, rollback_ns=0,
                  sample_ns=0, other_ns=1)
            for p, a in counts
        ),
    )  # fmt: skip
    return as_measured([(case, trial_)])[0]


def arms(speedup: float, noise: float, seed: int, *, blocks: int = 5, gamma: int = 4) -> list[Measured]:
    """Both arms in blocks that share their noise, and each its own."""
    draw, trials = random.Random(seed), []
    for block in range(blocks):
        shared = 100 * draw.lognormvariate(0, 5 * noise)
        trials.append(trial(case("ar"), block, shared * draw.lognormvariate(0, noise)))
        trials.append(trial(case("sd", gamma=gamma), block, shared * speedup * draw.lognormvariate(0, noise)))
    return trials


def rows(trials: list[Measured]) -> list[ArmResult]:
    """Every arm, servers being one process throughout."""
    return arm_results(trials, SessionPlan(pool="all", process_per_arm=True))


def drafted(trials: list[Measured]) -> ArmResult:
    """The speculative arm."""
    return next(row for row in rows(trials) if not row.is_plain)


LIES = [one if one.case.arm == "ar" else trial(one.case, one.trial.block, 300, valid=False) for one in arms(2, 0.01, 1)]
FLAGS = (
    "llama-server: --spec-type draft-simple --spec-draft-model DRAFT.gguf --spec-draft-n-max 4 (DRAFT.gguf: the file of"
)


@pytest.mark.parametrize(
    ("trials", "answer", "flags"),
    [
        (arms(1.5, 0.01, 1), "Use d, gamma 4: 1.5", f"{FLAGS} small.gguf)"),
        (arms(0.7, 0.01, 1), "Leave speculation off: the best tried, d, gamma 4, is", "llama-server: leave it off"),
        (arms(1.0, 0.01, 1), "Not decided yet: d, gamma 4 looks like no difference: 1.0", ""),
        (LIES, "No usable measurement: d, gamma 4: it lies.", ""),
        # Somebody else set it up, and knows how.
        (arms(1.5, 0.01, 1, gamma=0), "Use d", "Leave the server's speculation on."),
        (arms(0.7, 0.01, 1, gamma=0), "Leave speculation off", "Switch the server's speculation off."),
    ],
)
def test_a_gain_a_loss_a_draw_and_a_lie_are_answered_with_what_to_set(
    trials: list[Measured], answer: str, flags: str
) -> None:
    line, *rest = recommend(rows(trials), {"d": "small.gguf"})
    assert line.startswith(answer)
    assert rest[0].startswith(flags) if flags else not rest
    # Of a server that runs no other draft length was measured.
    assert flags != "Leave the server's speculation on." or "Only the draft length that it has" in rest[1]


def test_a_speedup_beyond_the_mgl_is_not_used_and_the_answer_says_so() -> None:
    trials = arms(4.0, 0.01, 1, gamma=0)  # 60 of 100 accepted: 2.5 tokens a round
    assert drafted(trials).ratio is None and "more than its MGL of 2.50 allows" in drafted(trials).impossible
    assert "MGL of 2.50" in recommend(rows(trials))[0] and recommend(rows(trials))[0].startswith(
        "No usable measurement"
    )


def idle(measured: Measured) -> Measured:
    none = {"draft_n": 0, "draft_n_accepted": 0} if measured.case.arm == "sd" else {}
    return as_measured(
        [(measured.case, msgspec.structs.replace(measured.trial, stats={**measured.trial.stats, **none}))]
    )[0]


@pytest.mark.parametrize(("speedup", "blocks"), [(1.04, 1), (1.16, 5)])
def test_a_server_that_proposed_nothing_is_said_and_ends_the_question(speedup: float, blocks: int) -> None:
    results = rows([idle(one) for one in arms(speedup, 0.001, 1, blocks=blocks)])
    assert recommend(results)[0] == (
        "Leave speculation off: the best tried, d, gamma 4, proposed nothing, so it decoded plainly."
    )
    assert results[1].effect == "not decided yet" and not results[1].is_open, "whatever its times say"


@pytest.mark.parametrize(("plain_tok_s", "tok_s", "n_predict"), [(500, 800, 101), (500, 2000, 303), (4000, 2000, 606)])
def test_so_many_tokens_are_asked_for_that_the_shortest_arm_can_be_decided(
    plain_tok_s: float, tok_s: float, n_predict: int
) -> None:
    trials = [trial(case("ar"), 0, plain_tok_s), trial(case("sd", gamma=4), 0, tok_s)]
    assert _long_enough(trials, 101) == n_predict


def test_a_difference_without_probabilities_is_different_and_with_them_diverged() -> None:
    unjudged = [trial(case("ar"), 0, 100), trial(case("sd"), 0, 100, "not_judged", valid=False)]
    assert verdict_words(drafted(unjudged)) == "different"
    diverged = [trial(case("ar"), 0, 100), trial(case("sd"), 0, 100, "diverged", gap=1.5, valid=False)]
    assert verdict_words(drafted(diverged)) == "diverged" and "1.5" in margin(drafted(diverged).losslessness)
    assert verdict_words(rows(diverged)[0], deterministic=False) == "lossless"


def test_engine_and_server_are_never_pooled_and_their_rounds_are_compared() -> None:
    trials = arms(1.2, 0.01, 2)
    for block in range(3):
        trials.append(trial(case("ar", server=None), block, 200))
        trials.append(trial(case("sd", server=None, gamma=4), block, 300, counts=((4, 2), (4, 1), (2, 0))))
    trials.append(trial(case("sd", gamma=4), 9, 120, counts=((4, 2), (4, 0), (2, 0))))
    results = {(row.question.source, row_name(row)): row for row in rows(trials)}
    assert set(results) == {("server", "plain"), ("server", "d"), ("engine", "plain"), ("engine", "d")}
    assert results["engine", "d"].ratio is not None and results["engine", "d"].ratio.value == pytest.approx(1.5)
    lines = server_costs(trials)
    assert any("part at round 2 (after token 4)" in line and "accepted 1 of 4" in line for line in lines)
    assert recommend(rows(trials))[0].startswith("Use d, gamma 4: 1.2"), "which is said of the server alone"


def test_an_interval_covers_what_two_processes_of_one_program_differ_by() -> None:
    draw, hits = random.Random(0), 0
    for seed in range(DRAWN):
        ratio = drafted(arms(draw.lognormvariate(0, 0.012), 0.003, seed)).ratio
        assert ratio is not None and ratio.low is not None and ratio.high is not None
        hits += ratio.low <= 1 <= ratio.high
    assert hits >= 0.93 * DRAWN - 10
