"""How one pass of a model divides into the parts of its network, and how far the looking changed it."""

from mlsd.engine.parts import PARTS, Part
from mlsd.errors import InputError, UnsupportedError
from mlsd.records import Count, DrafterSpec, Few, Record
from mlsd.store.rows import Span

# Shares are in doubt where the pieces of a watched pass do not sum to a plain pass within this factor, ...
AGREEMENT_LIMIT = 1.25
# ... and where looking took longer than computing: caches are then not what they are in a plain pass.
INFLATION_LIMIT = 2.0


class PassShares(Record, frozen=True, kw_only=True):
    """The fastest of several passes of one width at one depth, part by part: a busy machine only ever adds time.

    Profiling: none of these times is a speed.
    """

    model_key: str  # of the model that makes the pass
    # Where that is no model of its own but a part of the model with that key: which (`drafters.drafting_key`).
    drafting_key: str | None = None
    rows: Few  # positions of the pass; each makes an output
    depth: Few  # positions in the context before it
    n_passes: Few  # counted, of each kind
    plain_ns: Span  # a pass as it runs in any measurement
    profiled_ns: Span  # the same pass with the clock read between parts
    headless_ns: Count | None  # a plain pass without outputs, hence without head; None of a head, in earlier versions
    parts_ns: dict[Part, Count]  # of the profiled pass; parts that the graph does not have are left out

    @property
    def shares(self) -> dict[Part, float | None]:
        """Each part's share of all parts; None for a part that the graph does not have."""
        total = sum(self.parts_ns.values())
        return {part: self.parts_ns[part] / total if part in self.parts_ns else None for part in PARTS}

    @property
    def inflation(self) -> float:
        return self.profiled_ns / self.plain_ns

    @property
    def agreement(self) -> float:
        """Sum of the parts over a plain pass; the time between them, in which this program looks, is no part."""
        return sum(self.parts_ns.values()) / self.plain_ns

    @property
    def in_doubt(self) -> bool:
        """Whether looking, or noise, changed the pass too much for its shares to be those of a plain pass."""
        agrees = 1 / AGREEMENT_LIMIT <= self.agreement <= AGREEMENT_LIMIT
        return not agrees or self.inflation > INFLATION_LIMIT

    @property
    def head_by_difference(self) -> float | None:
        """The share of head and sampling a second way, without looking: (T(k) - T(k without outputs)) / T(k).

        Graphs that drop rows without output before their last feed-forward half lose that, too, so it may be too large
        by one of the network's halves of a block.
        """
        return None if self.headless_ns is None else 1 - self.headless_ns / self.plain_ns


def part_key(spec: DrafterSpec) -> str | None:
    """The drafting key of what drafts; None of a method or an option of another release."""
    from mlsd.drafters import drafting_key  # every method with it, which listing trials does not need

    try:
        return drafting_key(spec)
    except (InputError, UnsupportedError):
        return None
