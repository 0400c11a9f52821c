"""Whether a server's speculative output is what it writes without speculation, by the rule of our own engine.

Equal token ids are lossless. Else the plain server is led along the speculative output: what it would have chosen at
each place, by which lead, and how much that lead moves when the place is computed in a pass as wide as a verification.
Of a server that gives no log-probabilities a difference is not judged: a tie may explain it, or not.
"""

from collections.abc import Sequence

import numpy as np

from mlsd.engine.losslessness import explain, first_difference
from mlsd.records import Losslessness
from mlsd.servers.endpoint import Endpoint, Request, ServerAnswer

_CANDIDATES = 20  # of each token; one that is not among them is no near tie
_FEWEST = 2  # a drafting server gives one, of tokens it drafted
_NOISE_PLACES = 12  # where the noise of wide passes is measured
_USUAL_WIDTH = 5  # of a verification pass, where the server does not tell


def judge(
    plain: Endpoint, prompt: tuple[int, ...] | str, answer: ServerAnswer, reference: ServerAnswer
) -> Losslessness:
    """Compare a greedy answer with the plain server's own `reference` to the same prompt. Raises: ServerError."""
    if answer.tokens and reference.tokens:
        index = first_difference(answer.tokens, reference.tokens)
        if index is None:
            return Losslessness(verdict="lossless")
        if not plain.server.gives_probabilities or isinstance(prompt, str):
            return Losslessness(verdict="not_judged", first_difference=index)
        return _lead_along(plain, prompt, answer, reference.tokens)
    same = answer.text == reference.text and answer.n_tokens == reference.n_tokens
    return Losslessness(verdict="lossless" if same else "not_judged")


def _lead_along(
    plain: Endpoint, prompt: tuple[int, ...], answer: ServerAnswer, reference: Sequence[int]
) -> Losslessness:
    rows: list[tuple[float, float, float]] = []  # log-probability of the best, the second and the emitted token
    tokens = answer.tokens
    while len(rows) < len(tokens):
        rest = len(tokens) - len(rows)
        request = Request(prompt=prompt + tokens[: len(rows)], n_predict=rest, n_probs=_CANDIDATES)
        probe = plain.complete(request)
        if not probe.candidates or min(map(len, probe.candidates)) < _FEWEST:
            return Losslessness(verdict="not_judged", first_difference=first_difference(tokens, reference))
        for candidates, chosen, token in zip(probe.candidates, probe.tokens, tokens[len(rows) :], strict=False):
            rows.append(_row(candidates, chosen, token))
            if token != chosen:
                break  # what follows continues another text
    best, second, emitted = np.asarray(rows).T
    width = max((r.rows for r in answer.rounds), default=_USUAL_WIDTH)
    noise = _noise(plain, prompt, tokens, rows, width)
    return explain(tokens, reference, best, second, emitted, np.asarray(noise, dtype=np.float64))


def _row(candidates: dict[int, float], chosen: int, token: int) -> tuple[float, float, float]:
    """Log-probability of the best, the second and the emitted token.

    What is likelier than what the server chose itself is forbidden to it, like an end token that it must not write.
    """
    best = candidates.get(chosen, max(candidates.values()))
    others = sorted((value for other, value in candidates.items() if other != chosen and value <= best), reverse=True)
    # One outside the candidates is less likely than all of them; how much less nobody says.
    least = min(candidates.values())
    return best, others[0] if others else least, min(best, candidates.get(token, least))


def _noise(
    plain: Endpoint,
    prompt: tuple[int, ...],
    tokens: tuple[int, ...],
    rows: Sequence[tuple[float, float, float]],
    width: int,
) -> list[float]:
    """How much a pass of `width` moves the lead, at the places where little decides.

    The server is made to remember a text all but `width` tokens, then given the whole: it computes those in one pass.
    What it processed says whether it did; other passes tell nothing and do not count.
    """
    found = []
    leads = [best - (emitted if best > emitted else second) for best, second, emitted in rows]
    places = sorted((i for i in range(len(rows)) if len(prompt) + i > width), key=leads.__getitem__)
    for place in sorted(places[:_NOISE_PLACES]):
        text = prompt + tokens[:place]
        plain.complete(Request(prompt=text[:-width], n_predict=0, keep=True))
        top = plain.complete(Request(prompt=text, n_predict=1, n_probs=_CANDIDATES, keep=True))
        if not top.candidates or len(top.candidates[0]) < _FEWEST or not top.n_processed or top.n_processed == 1:
            continue
        best, second, emitted = _row(top.candidates[0], top.tokens[0], tokens[place])
        # The same two tokens as before: a lead that turned around is a negative one.
        was_best_emitted = rows[place][0] <= rows[place][2]
        wide = (emitted - (second if best <= emitted else best)) if was_best_emitted else (best - emitted)
        found.append(abs(wide - leads[place]))
    return found


def margin(worst: Losslessness | None) -> str:
    """What decided a verdict, in words; nothing where outputs are equal."""
    if worst is None or worst.verdict == "lossless":
        return ""
    where = "" if worst.first_difference is None else f"first at token {worst.first_difference}"
    if worst.worst_gap is None:
        return where
    return (
        f"{where}, there the two candidates are {_digits(worst.top2_gap)} apart in log-probability; at most "
        f"{worst.worst_gap:.3g}, of which wide passes explain {_digits(worst.tolerance)}"
    )


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
