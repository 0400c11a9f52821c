"""Where the time of one pass goes: the clock is read where one part of the network ends and the next begins.

The device waits at every such place and the graph runs in pieces, so a profiled pass is longer than a plain one and its
times are no speeds. Shares are taken of the pieces alone; how much longer the pass became tells what they are worth.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlsd.clock import Clock
from mlsd.engine.llama.taps import TensorValue
from mlsd.engine.parts import Node, Part, node_parts, part_ends, part_sums
from mlsd.errors import EngineError


class GraphTap:
    """Writes down every node of a pass, each computed by itself."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def wants(self, name: str) -> bool:
        return True

    def visit(self, name: str, value: TensorValue) -> None:
        self.nodes.append(Node(name=name, operation=value.operation))


class SpanTap:
    """Times the pieces of passes over one graph, whose nodes are known."""

    def __init__(self, nodes: Sequence[Node], clock: Clock) -> None:
        self._nodes, self._clock = nodes, clock
        self.parts = node_parts(nodes)
        self.ends = part_ends(self.parts)
        ends = set(self.ends)
        self._is_end = [i in ends for i in range(len(nodes))]
        self._next = 0
        self._started_ns = 0
        self._spans: list[int] = []

    def wants(self, name: str) -> bool:
        """See `Tap`. The clock is read last, so that asking is no part of a span."""
        i = self._next
        if i >= len(self._nodes) or (self._is_end[i] and self._nodes[i].name != name):
            raise EngineError(f"A profiled pass computed {name} where its graph had another tensor.")
        self._next = i + 1
        if not self._is_end[i]:
            return False
        self._started_ns = self._clock.now_ns()
        return True

    def visit(self, name: str, value: TensorValue) -> None:
        self._spans.append(self._clock.now_ns() - self._started_ns)

    def take(self) -> dict[Part, int]:
        """Time of each part in the pass since the last call, in ns.

        Raises: EngineError when that was not one whole pass over the known graph.
        """
        n_computed, spans = self._next, self._spans
        self._next, self._spans = 0, []
        if n_computed != len(self._nodes):
            raise EngineError(f"A profiled pass computed {n_computed} tensors, its graph had {len(self._nodes)}.")
        return part_sums(self.ends, self.parts, spans)
