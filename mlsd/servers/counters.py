"""What a server counted since it started: the counters of its Prometheus page."""

from __future__ import annotations

import re
from collections import Counter

from mlsd.errors import ServerError
from mlsd.outside import excerpt
from mlsd.records import Record

_COUNTER = re.compile(r"^(?:llamacpp:|vllm:|rapid_mlx_)(\w{1,200})(?:\{([^}\n]{0,2000})\})? (\S+)", re.MULTILINE)
_PLACE = re.compile(r"\bposition=\"(\d{1,4})\"")
_MOST = 2.0**53
# llama.cpp 26389 took over vLLM's names; Rapid-MLX has its own.
_NAMES = {
    "tokens_predicted_total": "predicted",
    "spec_decode_num_draft_tokens_total": "proposed",
    "spec_decode_attempts_total": "proposed",
    "spec_decode_num_accepted_tokens_total": "accepted",
    "spec_decode_accepts_total": "accepted",
    "spec_decode_num_drafts_total": "rounds",
}


class Counters(Record, frozen=True, kw_only=True):
    """Counts; None where the server has none."""

    predicted: int | None = None  # llama-server's: vLLM also counts what it generated and did not answer
    proposed: int | None = None
    accepted: int | None = None
    rounds: int | None = None  # verification steps
    by_position: tuple[int, ...] = ()  # accepted tokens at each place of a draft

    def since(self, before: Counters) -> Counters:
        """What was counted from there to here."""
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in self.__struct_fields__[:-1]}
        grown = {name: None if None in pair else pair[1] - pair[0] for name, pair in pairs.items()}
        was = (*before.by_position, *(0 for _ in self.by_position[len(before.by_position) :]))
        places = tuple(now - then for then, now in zip(was, self.by_position, strict=False))
        return Counters(**grown, by_position=places)


def parse_counters(page: str, sender: str) -> Counters:
    """The counters of a page, summed over labels: vLLM has one of each for every engine.

    Raises: ServerError for a counter that is no count.
    """
    plain, places = Counter[str](), Counter[int]()
    for name, labels, text in _COUNTER.findall(page):
        position = _PLACE.search(labels) if name.endswith("per_pos_total") else None
        if name not in _NAMES and position is None:
            continue
        try:
            value = float(text[:40])
        except ValueError:
            value = -1.0
        if not 0 <= value <= _MOST:
            raise ServerError(f"{sender} returned a counter that cannot be used: {name} is {excerpt(text.encode())!r}.")
        if position is not None:
            places[int(position.group(1))] += int(value)
        else:
            plain[_NAMES[name]] += int(value)
    return Counters(**plain, by_position=tuple(places[place] for place in sorted(places)))
