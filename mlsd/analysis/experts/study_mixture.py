"""The study's own mixture of experts from its shape: what k tokens at batch one can read at all, without a download."""

from __future__ import annotations

from collections.abc import Sequence

from mlsd.analysis.fits.curves import distinct_experts
from mlsd.gguf_tools.shapes import FULL
from mlsd.gguf_tools.synthetic.synth import from_shape
from mlsd.records import Record

SHAPE = "qwen3.5-35b-a3b"


class ReadBounds(Record, frozen=True, kw_only=True):
    """Parameters that a pass over k tokens reads: between tokens that share all experts and independent routing."""

    k: int
    experts: float  # of a layer, independent uniform routing (MoESD): the most to expect
    most_parameters: float
    least_parameters: float  # all k tokens choose the same experts
    all_parameters: int  # what the study says of every pass
    plain_parameters: int

    @property
    def most_a_token(self) -> float:
        """A token of the pass against a plain pass, with independent routing."""
        return self.most_parameters / (self.k * self.plain_parameters)


def read_bounds(widths: Sequence[int]) -> list[ReadBounds]:
    """Exact counts from the published shape; independent of the quantization."""
    weight = from_shape(FULL[SHAPE], quant="Q8_0").plan.weight
    per_expert = weight.expert.n_parameters * weight.n_expert_layers
    distinct = distinct_experts(list(widths), weight.n_experts, weight.n_experts_used)
    return [
        ReadBounds(
            k=k,
            experts=float(n),
            most_parameters=float(weight.always.n_parameters + n * per_expert),
            least_parameters=float(weight.active.n_parameters),
            all_parameters=weight.total.n_parameters,
            plain_parameters=weight.active.n_parameters,
        )
        for k, n in zip(widths, distinct, strict=True)
    ]


def words(bounds: Sequence[ReadBounds]) -> str:
    """The study's claim against its own model's shape."""
    first, last = bounds[0], bounds[-1]
    everything, plain = first.all_parameters, first.plain_parameters
    return (
        f"The study's own mixture, {SHAPE}, has {everything / 1e9:.1f}e9 parameters, all loaded by every pass, it "
        f"says. By the model's shape a plain pass reads {plain / 1e9:.2f}e9, {everything / plain:.1f} times less, and "
        f"a pass over {last.k} tokens {last.least_parameters / 1e9:.2f}e9 to {last.most_parameters / 1e9:.1f}e9: the "
        f"routing decides. Independent routing would save {100 * (1 - last.most_a_token):.0f} % of the reading of "
        f"{last.k} plain passes; the claim means {100 * (1 - 1 / last.k):.0f} %."
    )
