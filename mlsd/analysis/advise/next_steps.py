"""What to measure or fetch next so that advice is surer: commands that can be copied."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mlsd.analysis.advise.known_model import KnownModel
from mlsd.hardware.metal_kernels import VERIFICATION_KERNELS
from mlsd.records import Record
from mlsd.units import quoted

if TYPE_CHECKING:
    from mlsd.analysis.advise.prospects import Prospect

# Shares of experts by neighbouring tokens that real mixtures of this family show (22 of 256 experts in 4 tokens).
_REAL_SHARING = 0.33
_WHOLE_BYTES = 3_000_000_000  # a synthetic model of this size is written whole, a larger one cut in depth
_DEPTHS = (4, 8)  # two periods of a hybrid: layers of both kinds in their real proportion


def timing_commands(models: Iterable[KnownModel | None], timed: Collection[int] = ()) -> list[str]:
    """How to time shapes: a synthetic model, whole or at the depths that were not `timed`, written and calibrated."""
    commands = []
    for model in models:
        shape = None if model is None else model.shape
        if model is None or shape is None or not shape.writable:
            continue
        whole = (model.facts.weight_bytes or _WHOLE_BYTES) < _WHOLE_BYTES
        name = shape.name.rpartition("-")[2] if whole else shape.name.split("-")[1]
        router = f" --router-shared {_REAL_SHARING}" if model.facts.n_experts else ""
        for depth in [0] if whole else [n for n in _DEPTHS if n not in timed]:
            cut, file = (f" --layers {depth}", f"{name}-{depth}.gguf") if depth else ("", f"{name}.gguf")
            commands.append(
                f"mlsd models make synth {shape.name} --quant {model.quant or 'Q8_0'}{cut}{router} -o {file} && "
                f"mlsd calibrate {file} --budget-s 60"
            )
    return commands


class Lacking(Record, frozen=True, kw_only=True):
    """What an answer lacks before anything is decided, and how the commands that bring it are written."""

    target: str  # as commands call it
    files: Mapping[str, str] = {}  # drafts that commands call otherwise than by their ids
    pull: tuple[str, ...] = ()  # ids to pull first, on another machine
    texts: tuple[str, ...] = ()  # to measure on
    is_here: bool = True  # the target, on its machine
    is_too_large: bool = False  # its file, for the memory
    has_acceptance: bool = True  # measured on it and these texts
    to_time: tuple[str, ...] = ()  # `timing_commands`
    fetch: tuple[str, ...] = ()  # ids of the models worth downloading
    again: str = ""  # options that every bench repeats
    named: tuple[str, ...] = ()  # drafts that were named, as options
    served_by: str = ""  # the program asked about, where it is none of llama.cpp: no command of ours times its passes
    unsure_build: bool = False  # llama.cpp's build was assumed, or is from before its kernels for verification


def next_steps(lacking: Lacking, tell: Sequence[Prospect], *, modelled: bool, is_open: bool) -> Iterator[str]:
    """Steps in the order in which they tell most.

    `tell` are the settings to measure. `modelled`: no pass was timed on the machine that is asked about; `is_open`:
    intervals leave the answer open.
    """
    surer = "decides it" if is_open else "shows whether it is so"
    if lacking.served_by:
        yield (
            f"On that machine, start the server of {lacking.served_by} once with and once without its draft; this "
            f"{surer}: mlsd server URL --against URL"
        )
        return
    options = list(dict.fromkeys(p.option(lacking.files) for p in tell))
    gammas = ",".join(map(str, sorted({p.gamma for p in tell})))
    target, again = quoted(lacking.target), f" {lacking.again}" if lacking.again else ""
    files = [text for text in lacking.texts if text.startswith("file:")]  # only the name is stored, not where it lies
    named = [f"{text[5:]}.txt" if text in files else text for text in lacking.texts]
    prompt = "".join(f" --prompt {quoted(name)}" for name in named) + (" (the path of that text)" if files else "")
    how = f"{''.join(f' {option}' for option in options)} --gamma {gammas}{prompt}{again}"
    if is_open or not modelled:
        yield from lacking.to_time
    if modelled:
        if is_open and lacking.unsure_build:
            yield (
                "Name the llama.cpp that runs there, as `llama-server --version` prints it, by --llama-build: kernels "
                f"changed at b{VERIFICATION_KERNELS}, and which of them run decides many such questions."
            )
        if lacking.to_time and is_open:
            yield "Run both on that machine."
        elif is_open:
            drafts = "".join(f" {option}" for option in options if option.startswith("--draft "))
            yield f"On that machine: mlsd calibrate {target}{drafts}."
        if options:
            needed = [name for name in lacking.pull if name in (lacking.target, *(p.draft for p in tell))]
            pull = f"mlsd models pull {shlex.join(needed)} && " if needed else ""
            paths = " (the paths of those files there)" if ".gguf" in how + target else ""
            yield f"On that machine, this {surer}: {pull}mlsd bench {target}{how}{paths}"
    elif lacking.is_too_large:
        yield (
            f"{lacking.target} does not fit into this machine's memory in the quantization above (--quant names "
            "another); the figures are for a machine like it with more."
        )
    elif lacking.fetch:
        bench = f"mlsd bench {quoted(lacking.fetch[0])} --draft {quoted(lacking.fetch[-1])}{again}"
        yield f"mlsd models pull {shlex.join(lacking.fetch)} && {bench}: real acceptance."
    elif not lacking.is_here:
        yield "Acceptance was not measured here: pull a target and a draft of `mlsd models list`, and bench them."
    elif not options:
        drafts = " ".join(lacking.named) or "--draft MODEL, or --drafter pld"
        what = f"Nothing is known of {' '.join(lacking.named)[8:]}" if lacking.named else "No draft is known"
        yield f"{what}: mlsd bench {target} {drafts}{prompt}{again}"
    elif not lacking.has_acceptance:
        texts = ", ".join(lacking.texts)
        where = f"Nothing of {texts} was measured" if texts else "Acceptance was not measured here"
        yield f"{where}: mlsd bench {target}{how} --until decided decides it."
    elif is_open:
        yield f"mlsd bench {target}{how} --until decided decides it."
