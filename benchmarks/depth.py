"""T(k) of whole models predicted from cut ones, against the whole ones timed beside them: what `mlsd advise` relies on.

Passes of all depths take turns and are timed with the processor's clock of this process, as in `predict`.
"""

import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.harness import Result
from benchmarks.predict import CLOCK
from mlsd.analysis.predict.shapes import Cut, full_depth
from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.gguf_tools.shape import FULL, Shape
from mlsd.gguf_tools.synthetic.synth import from_shape, write_synthetic

# A mixture of the large one's layers that fits a laptop: fewer of them, with fewer experts each.
MIXTURE = msgspec.structs.replace(FULL["qwen3.5-35b-a3b"], name="mixture", n_layers=16, n_experts=64, n_vocab=65_536)
SHAPES = ((FULL["smollm2-135m"], "Q8_0"), (FULL["qwen3.5-0.8b"], "Q8_0"), (MIXTURE, "Q4_0"))
CUTS: tuple[tuple[int, ...], ...] = ((4, 8), (2, 4), (4,))
WIDTHS = (1, 2, 5, 9)
DEPTH, REPEATS, BURST = 64, 7, 3
BAR = 10.0  # per cent, median over k and shapes, from two depths


def run() -> Iterator[Result]:
    errors: dict[tuple[int, ...], list[float]] = {depths: [] for depths in CUTS}
    for shape, quant in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            times = time_depths(shape, quant, Path(folder))
        for depths in CUTS:
            found = predicted(shape, quant, times, depths)
            own = [100 * (found[k] / statistics.median(times[shape.n_layers][k]) - 1) for k in WIDTHS]
            errors[depths] += own
            sizes = [abs(error) for error in own]
            each = ", ".join(f"{error:+.0f}" for error in own)
            yield Result(
                f"{shape.name}, {words(depths)} of {shape.n_layers} layers ({each})",
                statistics.median(sizes),
                min(sizes),
                max(sizes),
                "%",
            )
    for depths, found_errors in errors.items():
        sizes = [abs(error) for error in found_errors]
        value, barred = statistics.median(sizes), len(depths) > 1
        yield Result(
            f"all shapes, from {words(depths)} layers: |predicted/measured - 1|",
            value,
            min(sizes),
            max(sizes),
            "%",
            f"<= {BAR:g}" if barred else "",
            value <= BAR if barred else None,
        )


def words(depths: Sequence[int]) -> str:
    return " and ".join(map(str, depths))


def predicted(
    shape: Shape, quant: str, times: Mapping[int, Mapping[int, Sequence[float]]], depths: Sequence[int]
) -> dict[int, float]:
    """T(k) at full depth from `depths` alone."""
    cuts = []
    for n_layers in depths:
        spans = times[n_layers]
        spread = statistics.median(statistics.stdev(s) / statistics.fmean(s) / len(s) ** 0.5 for s in spans.values())
        cuts.append(
            Cut(
                n_layers=n_layers,
                weight=from_shape(shape, quant=quant, n_layers=n_layers).weight,
                ms={k: statistics.median(s) for k, s in spans.items()},
                relative_error=spread,
            )
        )
    return {k: one.ms for k, one in full_depth(cuts, from_shape(shape, quant=quant).weight).items()}


def time_depths(shape: Shape, quant: str, folder: Path) -> dict[int, dict[int, list[float]]]:
    """Milliseconds of passes by layers and width; one median of a burst a repeat."""
    layers = sorted({n for depths in CUTS for n in depths} | {shape.n_layers})
    rng = random.Random(0)
    text = [rng.randrange(256, min(shape.n_vocab, 40_000)) for _ in range(DEPTH + max(WIDTHS))]
    times: dict[int, dict[int, list[float]]] = {n: {k: [] for k in WIDTHS} for n in layers}
    with ExitStack() as stack:
        contexts: dict[tuple[int, int], LlamaContext] = {}
        recurrent = shape.full_attention_interval > 0
        for n in layers:
            path = folder / f"{n}.gguf"
            write_synthetic(path, from_shape(shape, quant=quant, n_layers=n))
            model = stack.enter_context(LlamaModel(path))
            for k in WIDTHS:
                options = ContextOptions(n_ctx=256, n_threads=1, max_outputs=max(WIDTHS), n_snapshots=k if k > 1 else 0)
                context = stack.enter_context(open_context(model, options))
                context.decode(text[:DEPTH])
                if recurrent:
                    context.save_state()
                contexts[n, k] = context
        for _ in range(REPEATS):
            for n, k in rng.sample(list(contexts), len(contexts)):
                times[n][k].append(burst(contexts[n, k], text[DEPTH : DEPTH + k], recurrent=recurrent))
    return times


def burst(context: LlamaContext, tokens: Sequence[int], *, recurrent: bool) -> float:
    """The median of a few passes after one that is not counted."""
    spans = []
    for _ in range(BURST + 1):
        began = CLOCK.now_ns()
        context.decode(tokens, n_outputs=len(tokens))
        context.greedy()
        spans.append((CLOCK.now_ns() - began) / 1e6)
        if recurrent:
            context.load_state()
        context.truncate(DEPTH)
    return statistics.median(spans[1:])
