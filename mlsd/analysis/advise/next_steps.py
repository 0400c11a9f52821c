"""What to measure or fetch next so that advice is surer: commands that can be copied."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from mlsd.records import Record
from mlsd.units import quoted

# Shares of experts by neighbouring tokens that real mixtures of this family show (22 of 256 experts in 4 tokens).
_REAL_SHARING = 0.33
_DEPTHS = (4, 8)  # two periods of a hybrid: layers of both kinds in their real proportion


class ToTime(Record, frozen=True, kw_only=True):
    """A shape of which something could be timed without a download."""

    shape: str
    quant: str
    n_layers: int
    depths: tuple[int, ...] = ()  # timed already
    is_mixture: bool = False
    whole: bool = False  # small enough to be written whole


def timing_commands(models: Iterable[ToTime]) -> Iterator[str]:
    """How to time shapes: a synthetic model at one or two depths each, written and calibrated."""
    for model in models:
        name = model.shape.rpartition("-")[2] if model.whole else model.shape.split("-")[1]
        depths: Sequence[int | None] = [None] if model.whole else [n for n in _DEPTHS if n not in model.depths]
        router = f" --router-shared {_REAL_SHARING}" if model.is_mixture else ""
        for depth in depths:
            cut, file = ("", f"{name}.gguf") if depth is None else (f" --layers {depth}", f"{name}-{depth}.gguf")
            yield (
                f"mlsd models make synth {model.shape} --quant {model.quant}{cut}{router} -o {file} && "
                f"mlsd calibrate {file} --budget-s 60"
            )


def next_steps(
    target: str,
    workload: str | None,
    drafts: Sequence[str],
    unsure_gammas: Sequence[int],
    *,
    basis: str,
    known: bool,
    sure: bool,
    to_time: Sequence[ToTime] = (),
    fetch: Sequence[str] = (),
    fits: bool = True,
    here: bool = True,
) -> Iterator[str]:
    """Steps in the order in which they tell most.

    `known`: acceptance was measured on this target and workload. `fetch`: ids of the models worth downloading. `fits`:
    some file of the target fits into this machine's memory. `here`: it is on this machine.
    """
    draft = f" --draft {quoted(drafts[0])}" if drafts else ""
    yield from timing_commands(to_time)
    if basis == "bandwidth" and not to_time:
        yield f"On that machine: mlsd calibrate {quoted(target)}{draft}."
    elif basis == "bandwidth":
        yield "Those two on that machine: T(k) of rows decides what the range above leaves open."
    if not fits:
        yield f"No file of {target} fits into this machine's memory; the figures are for one like it with more."
        return
    if fetch:
        bench = f"mlsd bench {quoted(fetch[0])} --draft {quoted(fetch[-1])}"
        yield f"mlsd models pull {shlex.join(fetch)} && {bench}: real acceptance."
        return
    if not here:
        yield "Acceptance comes from elsewhere: pull a target and a draft of `mlsd models list`, and bench them."
        return
    if not drafts and not known:
        yield f"No draft of {target} is known: mlsd bench {quoted(target)} --draft MODEL, or --drafter pld."
    elif not known:
        prompt = f" --prompt {quoted(workload)}" if workload else ""
        yield f"Acceptance comes from elsewhere: mlsd bench {quoted(target)}{draft}{prompt}."
    elif not sure:
        gammas = ",".join(map(str, sorted(set(unsure_gammas))[:3])) or "1,2,4"
        yield f"The interval holds 1: mlsd bench {quoted(target)}{draft} --gamma {gammas} --repeats 9."
