"""From checkpoints to the files that ship: GGUFs, reference logits, a family.json with every figure, the card."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from card import card
from convert import write_gguf
from evaluate import SHIPPED, checkpoint
from shapes import SHAPES
from tokens import load as load_tokenizer
from train import TARGETS, stages

MTP, DRAFT = "tiny-dense-mtp", "tiny-draft"


def write_targets(run: Path) -> None:
    """Write the GGUFs of the targets, one of them also with its next-token block, into `run/targets`."""
    tokenizer = load_tokenizer(run / "tokenizer.json")
    (run / "targets").mkdir(exist_ok=True)
    states = {name: torch.load(run / checkpoint(name, run)) for name in TARGETS}
    block = mtp_state(torch.load(run / f"{MTP}.pt"), SHAPES["tiny-dense"]["num_hidden_layers"])
    for name, state in (states | {MTP: states["tiny-dense"] | block}).items():
        write_gguf(name, state, tokenizer, SHIPPED[name.removesuffix("-mtp")], run / "targets" / f"{name}.gguf")


def write_files(run: Path, out: Path) -> None:
    """Put every GGUF into `out`, with the reference logits beside them."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (*TARGETS, MTP):
        shutil.copyfile(run / "targets" / f"{name}.gguf", out / f"{name}.gguf")
    state, tokenizer = torch.load(run / checkpoint(DRAFT, run)), load_tokenizer(run / "tokenizer.json")
    write_gguf(DRAFT, state, tokenizer, SHIPPED[DRAFT], out / f"{DRAFT}.gguf")
    shutil.copyfile(run / "reference.npz", out / "reference.npz")


def mtp_state(block: dict[str, torch.Tensor], n_layers: int) -> dict[str, torch.Tensor]:
    """The next-token block's parameters under the names `convert` knows, as one more layer after the trunk."""
    return {f"model.layers.{n_layers}.{name.removeprefix('layer.')}": weight for name, weight in block.items()}


def describe(run: Path, out: Path) -> dict[str, Any]:
    """All figures of one family: corpus, files with hashes, training curves, held-out loss, acceptance."""
    facts = json.loads((run / "facts.json").read_text())
    family: dict[str, Any] = {
        "corpus": json.loads((run / "corpus.json").read_text()),
        "packages": json.loads((run / "packages.json").read_text()),
        "restored": json.loads(told.read_text()) if (told := run / "restored.json").exists() else None,
        **{key: facts[key] for key in ("held_out_bytes", "held_out_tokens", "five_gram")},
        "models": {},
        **json.loads((run / "acceptance.json").read_text()),
    }
    for name, number_format in (SHIPPED | {MTP: SHIPPED["tiny-dense"]}).items():
        path = out / f"{name}.gguf"
        done = [stage for stage in stages(name) if (run / f"{stage}.curve.json").exists()]
        family["models"][name] = {
            "file": path.name,
            "format": number_format,
            "n_bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            **facts["models"].get(name, {}),
            "training": {stage: thinned(json.loads((run / f"{stage}.curve.json").read_text())) for stage in done},
        }
    return family


def thinned(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of a loss curve that have a held-out loss, figures rounded."""
    return [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in point.items()}
        for point in curve
        if "held_out_nats" in point
    ]


def write_card(run: Path, out: Path) -> None:
    """Write the figures of the family, and the card that is made of them."""
    family = describe(run, out)
    (out / "family.json").write_text(json.dumps(family, indent=1) + "\n")
    (out / "CARD.md").write_text(card(family))
