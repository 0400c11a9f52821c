"""What methods with a trained head share: its file, checked against the target's, and what it has read."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from mlsd.clock import Clock
from mlsd.drafters.method import DrafterSetup, MethodOptions
from mlsd.drafters.model_drafter import DraftMemory
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.engine.llama.heads import RowContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.rows import Rows, check_layers
from mlsd.engine.verify import Verification
from mlsd.engine.vocabulary import check_vocabularies
from mlsd.gguf_tools.heads import DraftingHead, read_head
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source


class HeadOptions(MethodOptions, frozen=True, kw_only=True):
    """What methods have in common that read the target's rows with a head from a file."""

    architecture: ClassVar[str] = "eagle3"

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        return opening.with_head()

    def check_target(self, target: Source) -> None:
        """Refuse one whose graph does not give out the rows between its blocks. Raises: UnsupportedError."""
        check_layers(target.architecture, trunk_layers(target) or 0, ())

    def check_second(self, target: Source, second: Source) -> object:
        return check_head(self.architecture, target, second)


def check_head(architecture: str, target: Source, file: Source) -> DraftingHead:
    """The head in a file, checked against the target by their two headers. Raises: UnsupportedError."""
    head = read_head(file, target, architecture)
    # Only EAGLE-3's own driver reads the row after the last block where a next-token block would.
    last = architecture == "eagle3"
    check_layers(target.architecture, trunk_layers(target) or 0, head.target_layers, last=last)
    return head


def open_head(setup: DrafterSetup, architecture: str) -> tuple[LlamaModel, DraftingHead]:
    """Load the head beside the target, which keeps its rows from now on.

    Raises: UnsupportedError, ModelFileError, EngineError.
    """
    head = check_head(architecture, Source(setup.target_path), Source(setup.second))
    model: LlamaModel = setup.open_model(setup.second)
    check_vocabularies(setup.target.tokenizer, model)
    setup.target.layer_rows.keep(head.target_layers)
    return model, head


class HeadMemory(DraftMemory):
    """What a head has read: committed tokens with the target's rows, proposals with its own row of the step before."""

    counted = (*DraftMemory.counted, "catch_up_ns")  # also the time of reading the committed tokens, part of all

    def __init__(
        self, head: RowContext, clock: Clock, true_rows: Callable[[int, int], Rows], *, n_ahead: int = 0
    ) -> None:
        """`true_rows` gives the rows of positions that the target has decoded.

        The head's position p holds token p + `n_ahead`, so the newest text is that much shorter there.
        """
        self._head, self._true_rows, self._n_ahead = head, true_rows, n_ahead
        super().__init__(head, clock)

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the last text; the head reads the prompt when the target's rows of it are there, in `observe`."""
        super().begin(prompt)
        self._has_prompt = False

    def news(self) -> list[int]:
        first = self._head.n_past + self._n_ahead
        self.tally["catch_up_rows"] += len(self.text) - first
        return self.text[first:]

    def read(self, tokens: Sequence[int]) -> None:
        head, first, started_ns = self._head, self._head.n_past, self._now()
        is_committed = first + self._n_ahead < len(self.text)
        head.decode(tokens, self._true_rows(first, first + len(tokens)) if is_committed else head.hidden_row())
        span_ns = self._now() - started_ns
        self.tally["catch_up_ns"] += span_ns * is_committed
        self._count(0 if is_committed else 1, span_ns)  # T_draft(1) reads no row of the target

    def observe(self, verification: Verification) -> None:
        """Read the prompt after the first token; later forget the speculative positions, whose rows were its own."""
        n_read = len(self.text) - self._n_ahead
        if self._has_prompt:
            self._head.truncate(n_read)
        elif n_read > 0:
            self._head.decode(self.text[self._n_ahead :], self._true_rows(0, n_read), output=False)
        self._has_prompt = True
        self.text.extend(verification.committed)
