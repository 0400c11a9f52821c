"""A scripted context with a fake clock: the same protocol, exact costs, no native code.

The script is a function from a context to the next token, so a draft can agree with its target as often as a test
wants. Memory behaves like the real ones: attention memory can be cut anywhere, recurrent memory only inside the
snapshots of the last batch, and outside that range a cut is refused.
"""

from collections.abc import Callable, Sequence

import numpy as np

from mlsd.engine.context import ContextOptions, Logits
from mlsd.engine.tree import ROOT, Tree
from mlsd.engine.vocabulary import Vocabulary
from mlsd.errors import EngineError
from mlsd.records import Record
from mlsd.units import NS_PER_S

Script = Callable[[Sequence[int]], int]


def path_to(tree: Tree, node: int) -> tuple[int, ...]:
    """The tokens of a node and of all above it, from the root on."""
    return () if node == ROOT else (*path_to(tree, tree.parents[node]), tree.tokens[node])


class FakeClock:
    """A clock that a test or the fake context moves forward; it never runs by itself."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, span_ns: int) -> None:
        if span_ns < 0:
            raise ValueError(f"a clock cannot go back ({span_ns} ns)")
        self._now_ns += span_ns

    def sleep(self, span_s: float) -> None:
        self.advance(round(span_s * NS_PER_S))


class FakeCosts(Record, frozen=True, kw_only=True):
    """What each call adds to the fake clock."""

    pass_ns: int = 1_000_000  # one decode call of any width
    row_ns: int = 0  # each further position of a decode call
    sample_ns: int = 0
    truncate_ns: int = 0
    state_ns: int = 0  # saving or loading the recurrent state


class FakeTokenizer:
    """One token a byte."""

    vocabulary = Vocabulary(kind=1, n_tokens=256, bos=None, eos=0, adds_bos=False, adds_eos=False)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> tuple[int, ...]:
        return tuple(text.encode())

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    def token_text(self, token: int) -> str:
        return chr(token)

    def is_end(self, token: int) -> bool:
        return token == 0


class FakeContext:
    """See `context.Context` for the contract of each method."""

    tokenizer = FakeTokenizer()
    n_vocab = tokenizer.vocabulary.n_tokens
    model_key = None
    window = 0

    def __init__(
        self,
        script: Script,
        options: ContextOptions,
        clock: FakeClock,
        costs: FakeCosts | None = None,
        *,
        recurrent: bool = False,
    ) -> None:
        self._script, self._clock, self._costs = script, clock, costs or FakeCosts()
        self._recurrent = recurrent
        self.options = options
        self.context: list[int] = []
        self.failed_native_calls = 0
        self.last_width = 0
        self.n_ctx = options.n_ctx
        self.n_snapshots = options.n_snapshots if recurrent else 0
        self._outputs: list[int] = []
        self._saved: dict[int | None, list[int]] = {}
        self._tree = Tree(tokens=(), parents=())
        self.closed = False

    @property
    def n_past(self) -> int:
        return len(self.context)

    def decode(self, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
        self._clock.advance(self._costs.pass_ns + self._costs.row_ns * (len(tokens) - 1))
        self.context.extend(tokens)
        self.last_width = len(tokens)
        end = len(self.context)
        self._outputs = [self._script(self.context[:i]) for i in range(end - n_outputs + 1, end + 1)]

    def greedy(self) -> list[int]:
        self._clock.advance(self._costs.sample_ns)
        return list(self._outputs)

    def logits(self) -> Logits:
        self._clock.advance(self._costs.sample_ns)
        rows = np.zeros((len(self._outputs), self.n_vocab), dtype=np.float32)
        rows[np.arange(len(self._outputs)), self._outputs] = 8.0
        return rows

    def decode_tree(self, root: int, tree: Tree) -> None:
        self._clock.advance(self._costs.pass_ns + self._costs.row_ns * len(tree.tokens))
        self.context.append(root)
        self._tree = tree
        self.last_width = 1 + len(tree.tokens)

    def row(self, node: int) -> Logits:
        self._clock.advance(self._costs.sample_ns)
        row = np.zeros(self.n_vocab, dtype=np.float32)
        row[self._script([*self.context, *path_to(self._tree, node)])] = 8.0
        return row

    def keep_path(self, path: Sequence[int]) -> int:
        self._clock.advance(self._costs.truncate_ns)
        self.context.extend(self._tree.tokens[node] for node in path)
        return 0

    def truncate(self, n_past: int) -> None:
        depth = self.n_past - n_past
        if self._recurrent and depth > min(self.n_snapshots, self.last_width - 1):
            raise EngineError(f"The fake recurrent memory cannot go back {depth} positions.")
        self._clock.advance(self._costs.truncate_ns)
        del self.context[n_past:]

    def save_state(self, slot: int | None = None) -> None:
        self._clock.advance(self._costs.state_ns)
        self._saved[slot] = list(self.context)

    def load_state(self, slot: int | None = None) -> None:
        if slot not in self._saved:
            raise EngineError("There is no saved state to load.")
        self._clock.advance(self._costs.state_ns)
        self.context = list(self._saved[slot])

    def copy_memory(self) -> list[int]:
        return list(self.context)

    def set_memory(self, data: Sequence[int], n_past: int) -> None:
        self.context = list(data)

    def clear(self) -> None:
        self.context = []
        self._saved = {}
        self.last_width = 0

    def close(self) -> None:
        self.closed = True
