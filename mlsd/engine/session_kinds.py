"""Which kind of session serves a model and its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlsd.engine.layer_rows import LayerRowsSession, LayerRowsTreeSession
from mlsd.engine.llama import LlamaSession
from mlsd.engine.next_token import HiddenRowsSession
from mlsd.engine.session import SessionOptions
from mlsd.engine.taps import TappedSession
from mlsd.engine.tree_session import LlamaTreeSession
from mlsd.errors import UnsupportedError

if TYPE_CHECKING:
    from mlsd.engine.llama import LlamaModel

# Drafting heads; their graphs end the process where no target's rows are fed to them.
HEADS = ("eagle3", "dflash")


def open_session(model: LlamaModel, options: SessionOptions) -> LlamaSession:
    """A new context of the kind that `options` ask for.

    Raises: UnsupportedError for a drafting head, which cannot run by itself.
    """
    if model.architecture in HEADS:
        raise UnsupportedError(
            f"{model.path.name} is a drafting head ({model.architecture}): it reads the rows of the model it was "
            "trained for and cannot run alone.",
            hint=f"Draft with it: --drafter {model.architecture} --draft {model.path.name}.",
        )
    return _kind(options)(model, options)


def _kind(options: SessionOptions) -> type[LlamaSession]:
    if options.layer_rows:
        return LayerRowsSession if options.tree == "off" else LayerRowsTreeSession
    if options.hidden_rows:
        return HiddenRowsSession
    if options.tapped:
        return TappedSession
    return LlamaSession if options.tree == "off" else LlamaTreeSession
