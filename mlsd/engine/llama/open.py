"""Which kind of context serves a model and its options."""

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import LOG
from mlsd.engine.llama.trees import LlamaTreeContext
from mlsd.errors import MlsdError, UnsupportedError


class UncheckedContext(LlamaContext):
    """What the study's tool did: native calls that fail are counted and ignored."""

    _earlier: list[int] = []  # noqa: RUF012 - replaced, never changed

    def _failed(self, error: MlsdError) -> None:
        self.failed_native_calls += 1
        LOG.drain()

    def greedy(self) -> list[int]:
        """The same; where an output row has no token, whatever an earlier pass left behind."""
        tokens = super().greedy()
        if min(tokens, default=0) >= 0:
            self._earlier = tokens or self._earlier
            return tokens
        stale = self._earlier or [0]
        return [token if token >= 0 else stale[min(i, len(stale) - 1)] for i, token in enumerate(tokens)]


# Drafting heads; their graphs end the process where no target's rows are fed to them.
HEADS = ("eagle3", "dflash")


def open_context(model: LlamaModel, options: ContextOptions) -> LlamaContext:
    """A new context of the kind that `options` ask for. Raises: UnsupportedError for a drafting head."""
    if model.architecture in HEADS:
        raise UnsupportedError(
            f"{model.path.name} is a drafting head ({model.architecture}): it reads the rows of the model it was "
            "trained for and cannot run alone.",
            hint=f"Draft with it: --drafter {model.architecture} --draft {model.path.name}.",
        )
    if options.checked:
        return LlamaContext(model, options) if options.tree == "off" else LlamaTreeContext(model, options)
    if options.tree != "off" or options.kind != "plain":
        raise UnsupportedError("Only a context that verifies chains and reads no rows can be unchecked.")
    return UncheckedContext(model, options)
