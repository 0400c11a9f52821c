"""What a server counted since it started: the counters of its Prometheus page."""

import re
from collections import Counter
from collections.abc import Mapping

from mlsd.errors import ServerError
from mlsd.outside import excerpt

Counters = Mapping[str, int]  # by our names; what a server does not count is not in it

_COUNTER = re.compile(r"^(?:llamacpp:|vllm:|rapid_mlx_)(\w{1,200})(?:\{[^}\n]{0,2000}\})? (\S+)", re.MULTILINE)
_MOST = 2.0**53
# llama.cpp 26389 took over vLLM's names; Rapid-MLX has its own. What vLLM predicted it may not have answered.
_NAMES = {
    "tokens_predicted_total": "n_tokens",
    "spec_decode_num_draft_tokens_total": "proposed",
    "spec_decode_attempts_total": "proposed",
    "spec_decode_num_accepted_tokens_total": "accepted",
    "spec_decode_accepts_total": "accepted",
    "spec_decode_num_drafts_total": "n_rounds",
}


def parse_counters(page: str, sender: str) -> Counters:
    """The counters of a page, summed over labels: vLLM has one of each for every engine.

    Raises: ServerError for a counter that is no count.
    """
    counts = Counter[str]()
    for name, text in _COUNTER.findall(page):
        if name not in _NAMES:
            continue
        try:
            value = float(text[:40])
        except ValueError:
            value = -1.0
        if not 0 <= value <= _MOST:
            raise ServerError(f"{sender} returned a counter that cannot be used: {name} is {excerpt(text.encode())!r}.")
        counts[_NAMES[name]] += int(value)
    return dict(counts)


def grown(before: Counters | None, after: Counters | None) -> Counters:
    """What was counted between two looks, of what both told."""
    return {name: n - before[name] for name, n in (after or {}).items() if before and name in before}
