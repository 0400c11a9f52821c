"""What to try on a target when nobody chose: look-ups, which need nothing, and the small drafts of its vocabulary."""

from __future__ import annotations

from pathlib import Path

from mlsd.engine.vocabulary import MAX_SIZE_DIFFERENCE
from mlsd.errors import MlsdError
from mlsd.gguf_tools.source import Source
from mlsd.models.library import Library, LocalModel
from mlsd.records import Record

LOOK_UPS = ("pld", "ngram-cache")
_DRAFT = "draft"  # the role of the manifest
_MOST_SHARE = 0.6  # of the target's bytes: a draft as large as its target costs what it saves
_MOST_DRAFTS = 3


class DefaultArms(Record, frozen=True, kw_only=True):
    """Methods and drafts to try."""

    drafts: tuple[str, ...]  # ids that are here, the smallest first
    to_get: tuple[str, ...]  # ids of the same family that are not, the smallest first
    drafters: tuple[str, ...] = LOOK_UPS


def default_arms(model: LocalModel) -> DefaultArms:
    """What to try on a target."""
    library = Library()
    known = library.manifest.models.get(model.ref.id)
    family = known.name.split()[0] if known is not None else None
    most = _MOST_SHARE * (model.ref.n_bytes or 0)
    here: list[tuple[int, str]] = []
    elsewhere: list[tuple[int, str]] = []
    for entry in library.manifest:
        if _DRAFT not in entry.roles or entry.id == model.ref.id:
            continue
        paths = library.locate(entry)
        if paths:
            size = sum(path.stat().st_size for path in paths)
            if size <= most and _same_tokenizer(model, paths[0]):
                here.append((size, entry.id))
        elif family is not None and entry.name.split()[0] == family and (entry.n_bytes or most + 1) <= most:
            elsewhere.append((entry.n_bytes or 0, entry.id))
    return DefaultArms(
        drafts=tuple(id_ for _, id_ in sorted(here)[:_MOST_DRAFTS]),
        to_get=tuple(id_ for _, id_ in sorted(elsewhere)[:_MOST_DRAFTS]),
    )


def _same_tokenizer(target: LocalModel, draft: Path) -> bool:
    """Whether two files cut text alike, as far as their headers say; the worker compares token by token."""
    try:
        ours, theirs = _tokenizer(target.path), _tokenizer(draft)
    except MlsdError:  # a file that cannot be read is not here
        return False
    return ours[:2] == theirs[:2] and abs(ours[2] - theirs[2]) <= MAX_SIZE_DIFFERENCE


def _tokenizer(path: Path) -> tuple[str, str, int]:
    source = Source(path)
    model, pre = (source.text(f"tokenizer.ggml.{key}", "", own=False) for key in ("model", "pre"))
    return model, pre, source.length("tokenizer.ggml.tokens") or 0
