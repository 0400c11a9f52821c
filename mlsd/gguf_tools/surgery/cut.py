"""Which blocks and parts of a model make a draft: the choices users and papers name, checked by the header alone."""

import re
from collections.abc import Sequence
from typing import Literal

from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import HYBRIDS, Edit, attention_only, keep_layers, recurrent_layers, recurrent_only

# Parts of a hybrid to draft with. recurrent: attention adds nothing; recurrent-blocks: blocks with attention are left
# out; attention: the recurrent mixers of parallel blocks add nothing.
Component = Literal["recurrent", "recurrent-blocks", "attention"]


def read_layers(text: str) -> tuple[int, ...]:
    """Block numbers as a user writes them: ``3,5,8-11`` or ``3+5``. Raises: InputError."""
    layers: set[int] = set()
    for part in filter(None, re.split(r"[,+\s]", text)):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise InputError(f"{part!r} in {text!r} is not a block number or range.", hint="Write them like 3,5,8-11.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InputError(f"The range {part} in {text!r} runs backwards.", hint=f"Write it {last}-{first}.")
        if last > 100_000:
            raise InputError(f"No model has a block {last}.", hint="Write block numbers like 3,5,8-11.")
        layers.update(range(first, last + 1))
    if not layers:
        raise InputError(f"{text!r} names no block.", hint="Write block numbers like 3,5,8-11.")
    return tuple(sorted(layers))


def uniform_skip(n_layers: int, fraction: float) -> tuple[int, ...]:
    """`fraction` of the blocks, spread evenly; both ends stay (arXiv 2309.08168, arXiv 2404.16710)."""
    n_skip = min(round(fraction * n_layers), max(0, n_layers - 2))
    if n_skip < 1:
        return ()
    step = (n_layers - 2) / n_skip
    return tuple(1 + int((i + 0.5) * step) for i in range(n_skip))


def choose_layers(
    n_layers: int,
    *,
    keep: Sequence[int] | None = None,
    skip: Sequence[int] | None = None,
    exit_after: int | None = None,
    fraction: float | None = None,
) -> tuple[int, ...]:
    """The blocks that stay, by at most one of the four choices. Raises: InputError for unknown blocks, or none."""
    choices = {"keep": keep, "skip": skip, "exit": exit_after, "fraction": fraction}
    given = [name for name, value in choices.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} exclude each other.", hint="Give one of them.")
    for layer in (*(keep or ()), *(skip or ())):
        if not 0 <= layer < n_layers:
            raise InputError(f"There is no block {layer}: the model has blocks 0 to {n_layers - 1}.")
    left_out = set(skip or ())
    if keep is not None:
        left_out = set(range(n_layers)) - set(keep)
    elif exit_after is not None:
        if not 1 <= exit_after <= n_layers:
            raise InputError(f"An exit after block {exit_after} is not possible: the model has {n_layers} blocks.")
        left_out = set(range(exit_after, n_layers))
    elif fraction is not None:
        if not 0 < fraction < 1:
            raise InputError(f"A share of {fraction} of the blocks cannot be skipped.", hint="Give one like 0.33.")
        left_out = set(uniform_skip(n_layers, fraction))
    layers = tuple(layer for layer in range(n_layers) if layer not in left_out)
    if not layers:
        raise InputError("No block would stay.", hint="Skip fewer.")
    return layers


def plan_cut(source: Source, layers: Sequence[int], component: Component | None = None) -> Edit:
    """The draft with the trunk blocks `layers`, or only their part `component`. Raises: InputError, ModelFileError."""
    if component == "attention":
        return attention_only(source, layers)
    if component is not None:
        return recurrent_only(source, layers, whole_blocks=component == "recurrent-blocks")
    edit = keep_layers(source, layers)
    if source.architecture in HYBRIDS and all(recurrent_layers(source)[layer] for layer in layers):
        raise InputError(
            f"No kept block of {source.path.name} has attention, without which llama.cpp ends the process.",
            hint="Keep a block with attention; --component recurrent-blocks keeps one and zeroes its output.",
        )
    return edit


def refuse_unloadable(source: Source) -> None:
    """Refuse a hybrid without attention, on which llama.cpp ends the process. Raises: ModelFileError."""
    if source.architecture in HYBRIDS and trunk_layers(source) and all(recurrent_layers(source)):
        raise ModelFileError(
            f"{source.path.name} has no block with attention, without which llama.cpp ends the process.",
            hint="Cut it again and keep one; `mlsd models make subset --component recurrent-blocks` does.",
        )


def shallow_layers(source: Source, depth: int) -> tuple[int, ...]:
    """The first `depth` trunk blocks; of a hybrid the last may give way, so that both kinds of blocks are among them.

    Raises: InputError for one block of a hybrid that has blocks of both kinds, which llama.cpp cannot run.
    """
    layers = list(range(depth))
    if source.architecture in HYBRIDS:
        recurrent = recurrent_layers(source)
        kinds = set(recurrent)
        if depth < len(kinds):
            raise one_layer_of_hybrid(source.path.name)
        for missing in kinds - {recurrent[layer] for layer in layers}:
            layers[-1] = recurrent.index(missing)
    return tuple(layers)


def one_layer_of_hybrid(name: str) -> InputError:
    """The refusal of a cut that leaves one kind of a hybrid's blocks."""
    return InputError(f"llama.cpp cannot run one layer of {name}, a hybrid.", hint="Give 2 layers or more.")


def attention_layers(source: Source) -> tuple[int, ...]:
    """Trunk blocks with attention memory: those with key heads that are not recurrent, or both (falcon-h1)."""
    recurrent = recurrent_layers(source)
    counts = (source.of_blocks(f"attention.{key}", len(recurrent)) for key in ("head_count_kv", "head_count"))
    heads = next(filter(None, counts), (1,) * len(recurrent))
    parallel = source.architecture == "falcon-h1"
    return tuple(i for i, n_heads in enumerate(heads) if n_heads and (parallel or not recurrent[i]))


def state_layers(source: Source) -> tuple[int, ...]:
    """Trunk blocks with a recurrent state."""
    return tuple(i for i, recurrent in enumerate(recurrent_layers(source)) if recurrent)
