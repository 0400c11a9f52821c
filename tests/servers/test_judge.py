"""A difference between texts of servers without token ids is a near tie where their log-probabilities say so."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from mlsd.servers.endpoint import ServerAnswer, connect
from mlsd.servers.judge import judge
from tests.servers.fake import FakeServer

PROMPT = "Why?"
PLAIN = ("The", " sky", " is", " blue", ",", " and", " so")
GREY = ("The", " sky", " is", " grey", ",", " and", " so")


class Tied(FakeServer):
    """Ollama, whose fourth word leads another one by `gap`, by `noise` more where that word alone is asked."""

    def __init__(self, gap: float, noise: float, *, tells: bool = True) -> None:
        super().__init__("ollama")
        self.gap, self.noise, self.tells = gap, noise, tells

    def _events(self, path: str, sent: Any) -> Iterator[Any]:
        written, begun = sent["prompt"].removeprefix(PROMPT), 0
        while written:
            written, begun = written[len(PLAIN[begun]) :], begun + 1
        n = sent["options"]["num_predict"]
        for word, other in list(zip(PLAIN, GREY, strict=True))[begun : begun + n]:
            lead = self.gap + (self.noise if n == 1 else 0.0) if word != other else 5.0
            tops = [
                {"token": word, "logprob": -1.0},
                {"token": other if word != other else "?", "logprob": -1.0 - lead},
            ]
            scores = {"logprobs": [{**tops[0], "top_logprobs": tops}]} if sent.get("logprobs") and self.tells else {}
            yield {"response": word, "done": False, **scores}
        yield {"response": "", "done": True, "done_reason": "length", "eval_count": n, "prompt_eval_count": 5}


def answer(pieces: tuple[str, ...]) -> ServerAnswer:
    return ServerAnswer(text="".join(pieces), n_tokens=len(pieces))


@pytest.mark.parametrize(
    ("gap", "noise", "verdict"),
    [(0.01, 0.05, "near_tie"), (1.0, 0.05, "not_judged"), (0.01, 0.0, "not_judged")],
)
def test_a_text_that_differs_is_a_near_tie_where_a_wider_pass_moves_the_lead_by_more(
    gap: float, noise: float, verdict: str
) -> None:
    with Tied(gap, noise) as server, closing(connect(server.url, 5.0)) as plain:
        losslessness = judge(plain, PROMPT, answer(GREY), answer(PLAIN))
        assert judge(plain, PROMPT, answer(PLAIN), answer(PLAIN)).verdict == "lossless"
    assert (losslessness.verdict, losslessness.first_difference) == (verdict, 3)
    assert losslessness.worst_gap == pytest.approx(gap) and losslessness.tolerance == pytest.approx(noise)


def test_a_server_of_before_log_probabilities_is_not_judged() -> None:
    with Tied(0.01, 0.05, tells=False) as server, closing(connect(server.url, 5.0)) as plain:
        losslessness = judge(plain, PROMPT, answer(GREY), answer(PLAIN))
    assert losslessness.verdict == "not_judged" and losslessness.worst_gap is None
