"""What to measure or fetch next so that advice is surer: commands that can be copied."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

from mlsd.analysis.advise.known_model import KnownModel
from mlsd.units import quoted

# Shares of experts by neighbouring tokens that real mixtures of this family show (22 of 256 experts in 4 tokens).
_REAL_SHARING = 0.33
_WHOLE_BYTES = 3_000_000_000  # a synthetic model of this size is written whole, a larger one cut in depth
_DEPTHS = (4, 8)  # two periods of a hybrid: layers of both kinds in their real proportion

# What a question lacks: passes timed on the machine it asks about; memory for the target's file; the target on its
# machine; acceptance measured on it and this workload; a decision, where intervals leave the answer open.
Gap = Literal["machine", "memory", "target", "acceptance", "decision"]


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


def next_steps(
    target: str,
    texts: Sequence[str],
    options: Sequence[str],
    gammas: Sequence[int],
    gaps: Collection[Gap],
    to_time: Sequence[str] = (),
    fetch: Sequence[str] = (),
    again: str = "",
) -> Iterator[str]:
    """Steps in the order in which they tell most.

    `options` and `gammas` are those of the settings to measure. `to_time`: `timing_commands`. `fetch`: ids of the
    models worth downloading. `again`: options that every bench repeats.
    """
    files = [text for text in texts if text.startswith("file:")]  # only its name is stored, not where it lies
    named = [f"{text[5:]}.txt" if text in files else text for text in texts]
    prompt = "".join(f" --prompt {quoted(name)}" for name in named) + (" (the path of that text)" if files else "")
    again = f" {again}" if again else ""
    how = f"{''.join(f' {option}' for option in options)} --gamma {','.join(map(str, gammas))}{prompt}{again}"
    yield from to_time
    if "machine" in gaps:
        if to_time:
            yield "Run both on that machine: the cost of a pass, T(k), is the biggest unknown above."
        elif "decision" in gaps:
            drafts = "".join(f" {option}" for option in options if option.startswith("--draft "))
            yield f"On that machine: mlsd calibrate {quoted(target)}{drafts}."
        if options:
            surer = "decides it" if "decision" in gaps else "shows whether it is so"
            yield f"mlsd bench {quoted(target)}{how}, on that machine, {surer}."
    elif "memory" in gaps:
        yield (
            f"{target} does not fit into this machine's memory in the quantization above (--quant names another); the "
            "figures are for a machine like it with more."
        )
    elif fetch:
        bench = f"mlsd bench {quoted(fetch[0])} --draft {quoted(fetch[-1])}{again}"
        yield f"mlsd models pull {shlex.join(fetch)} && {bench}: real acceptance."
    elif "target" in gaps:
        yield "Acceptance was not measured here: pull a target and a draft of `mlsd models list`, and bench them."
    elif not options:
        measure = f"mlsd bench {quoted(target)} --draft MODEL, or --drafter pld{prompt}{again}"
        yield f"No draft of {target} is known: {measure}."
    elif "acceptance" in gaps:
        where = f"Nothing of {', '.join(texts)} was measured" if texts else "Acceptance was not measured here"
        yield f"{where}: mlsd bench {quoted(target)}{how} --until decided decides it."
    elif "decision" in gaps:
        yield f"mlsd bench {quoted(target)}{how} --until decided decides it."
