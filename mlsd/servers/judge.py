"""Whether a server's speculative output is what it writes without speculation, by the rule of our own engine.

Equal token ids are lossless; without ids, equal texts of as many tokens. Else the plain server is led along the
speculative output: what it would have chosen at each place, by which lead, and how much that lead moves when the place
is computed in a pass as wide as a verification. Of a server that gives no log-probabilities a difference is not
judged: a tie may explain it, or not. Nor is one of texts that is no near tie: how wide its passes were nobody knows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from mlsd.engine.losslessness import explain, first_difference
from mlsd.records import Losslessness
from mlsd.servers.endpoint import Endpoint, Request, ServerAnswer

_CANDIDATES = 20  # of each token; one that is not among them is no near tie
_FEWEST = 2  # a drafting server gives one, of tokens it drafted
_NOISE_PLACES = 12  # where the noise of wide passes is measured
_USUAL_WIDTH = 5  # of a verification pass, where the server does not tell

Key = int | str  # a token by its id, or by its text
Row = tuple[float, float, float]  # log-probability of the best, the second and the emitted token


def equal(answer: ServerAnswer, reference: ServerAnswer) -> bool:
    """Whether two answers are the same tokens, or without ids the same text of as many."""
    if answer.tokens and reference.tokens:
        return answer.tokens == reference.tokens
    return answer.text == reference.text and answer.n_tokens == reference.n_tokens


def judge(
    plain: Endpoint, prompt: tuple[int, ...] | str, answer: ServerAnswer, reference: ServerAnswer
) -> Losslessness:
    """Compare a greedy answer with the plain server's own `reference` to the same prompt. Raises: ServerError."""
    if equal(answer, reference):
        return Losslessness(verdict="lossless")
    by_ids = bool(answer.tokens and reference.tokens)
    index = first_difference(answer.tokens, reference.tokens) if by_ids else None
    unjudged = Losslessness(verdict="not_judged", first_difference=index)
    if not (plain.program.gives_probabilities and prompt) or isinstance(prompt, str) is by_ids:
        return unjudged
    written: Any = answer.tokens if by_ids else answer.text
    steps = _lead_along(plain, prompt, written, answer.n_tokens)
    if not steps:
        return unjudged
    keys, rows, _ = zip(*steps, strict=True)
    best, second, emitted = np.asarray(rows).T
    width = max((r.rows for r in answer.rounds), default=_USUAL_WIDTH)
    noise = np.asarray(_noise(plain, prompt, written, steps, width), dtype=np.float64)
    # What plain decoding writes, as far as it is told.
    chosen = [key if row[0] <= row[2] else None for key, row in zip(keys, rows, strict=True)]
    plainly: Any = reference.tokens if by_ids else chosen
    verdict = explain(keys, plainly, best, second, emitted, noise)
    return verdict if by_ids or verdict.verdict == "near_tie" else replace(verdict, verdict="not_judged")


def _lead_along(plain: Endpoint, prompt: Any, written: Any, n_tokens: int) -> list[tuple[Key, Row, int]]:
    """Of each token of an output its key, the log-probabilities there, and where it begins; or nothing."""
    steps, at = list[tuple[Key, Row, int]](), 0
    while at < len(written) and len(steps) < n_tokens:
        probe = plain.complete(
            Request(prompt=prompt + written[:at], n_predict=n_tokens - len(steps), n_probs=_CANDIDATES)
        )
        if not probe.candidates or min(map(len, probe.candidates)) < _FEWEST:
            return []
        for index, candidates in enumerate(probe.candidates):
            if at >= len(written):
                break
            chosen = probe.tokens[index] if probe.tokens else next(iter(candidates))
            key = written[at] if probe.tokens else _piece(candidates, str(chosen), written[at:])
            if key is None:
                return []
            steps.append((key, _row(candidates, chosen, key), at))
            at += len(key) if isinstance(key, str) else 1
            if key != chosen:
                break  # what follows continues another text
    return steps


def _piece(candidates: dict[Key, float], chosen: str, rest: str) -> str | None:
    """The token that the rest of a text begins with: the chosen one, else the likeliest that fits."""
    fitting = [key for key in candidates if isinstance(key, str) and key and rest.startswith(key)]
    return chosen if chosen in fitting else max(fitting, key=lambda key: candidates[key], default=None)


def _row(candidates: dict[Key, float], chosen: Key, key: Key) -> Row:
    """Log-probability of the best, the second and the emitted token.

    What is likelier than what the server chose itself is forbidden to it, like an end token that it must not write.
    """
    best = candidates.get(chosen, max(candidates.values()))
    others = sorted((value for other, value in candidates.items() if other != chosen and value <= best), reverse=True)
    # One outside the candidates is less likely than all of them; how much less nobody says.
    least = min(candidates.values())
    return best, others[0] if others else least, min(best, candidates.get(key, least))


def _noise(
    plain: Endpoint, prompt: Any, written: Any, steps: Sequence[tuple[Key, Row, int]], width: int
) -> list[float]:
    """How much a pass of `width` moves the lead, at the places where little decides.

    The server is made to remember a text all but `width` tokens, then given the whole: it computes those in one pass.
    What it processed says whether it did; other passes tell nothing and do not count. Of texts that is not told.
    """
    noise = []
    leads = [best - (emitted if best > emitted else second) for _, (best, second, emitted), _ in steps]
    before = len(prompt) if isinstance(prompt, tuple) else width  # a text of so many tokens may be in front
    indices = sorted((i for i in range(len(steps)) if before + i > width), key=leads.__getitem__)
    for index in sorted(indices[:_NOISE_PLACES]):
        key, (best, _, emitted), start = steps[index]
        text = prompt + written[:start]
        if isinstance(text, tuple):
            plain.complete(Request(prompt=text[:-width], n_predict=0, keep=True))
        top = plain.complete(Request(prompt=text, n_predict=1, n_probs=_CANDIDATES, keep=True))
        if not top.candidates or len(top.candidates[0]) < _FEWEST:
            continue
        if top.tokens and (not top.n_processed or top.n_processed == 1):
            continue
        wide_best, wide_second, wide_emitted = _row(
            top.candidates[0], top.tokens[0] if top.tokens else next(iter(top.candidates[0])), key
        )
        # The same two tokens as before: a lead that turned around is a negative one.
        other = wide_second if wide_best <= wide_emitted else wide_best
        wide = wide_emitted - other if best <= emitted else wide_best - wide_emitted
        noise.append(abs(wide - leads[index]))
    return noise


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
