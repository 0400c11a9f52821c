"""The model card: `card.md.j2` filled in with the figures of `family.json` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2


def card(family: dict[str, Any]) -> str:
    """The card as Markdown."""
    template = Path(__file__).with_name("card.md.j2").read_text(encoding="utf-8")
    return (
        jinja2.Environment(trim_blocks=True, keep_trailing_newline=True)
        .from_string(template)
        .render(
            family,
            stages=[stage for model in family["models"].values() for stage in model["training"].items()],
            pairs=[*family["acceptance"].items(), ("tiny-dense-mtp", family["next_token_acceptance"])],
            unseen=[a["acceptance"] for found in family["unseen_acceptance"].values() for a in found.values()],
            percent=lambda shares: ", ".join(f"{100 * share:.0f}" for share in shares),
            span=lambda shares: f"{100 * min(shares):.2f} to {100 * max(shares):.2f} %",
        )
    )
