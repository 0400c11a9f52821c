"""How drafting methods are named in tables and sentences: by draft and options, never by a case's id."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from mlsd.records import DRAFT_MODEL, DrafterSpec


def method_name(drafter: str, draft: str | None, options: str) -> str:
    """A method as a reader names it: its draft where it has one, its options (JSON) where they are not the defaults."""
    return drafter + (f" {draft}" if draft else "") + _listed(options)


def arm_name(drafter: str, draft: str | None, options: str) -> str:
    """The same where space is short: a draft model, which most arms have, goes by its own name alone."""
    return draft + _listed(options) if draft and drafter == DRAFT_MODEL else method_name(drafter, draft, options)


def spec_name(spec: DrafterSpec) -> str:
    """The same of a case's drafter."""
    options = msgspec.json.encode(spec.options, order="sorted").decode() if spec.options else ""
    return arm_name(spec.name, None if spec.draft is None else spec.draft.id, options)


def _listed(options: str) -> str:
    values: dict[str, Any] = json.loads(options) if options else {}
    return f" ({', '.join(f'{key} {value}' for key, value in values.items())})" if values else ""
