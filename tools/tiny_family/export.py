"""From checkpoints to the files that ship: GGUFs, reference logits, a family.json with every figure, the card."""

from __future__ import annotations

import argparse
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

MTP = "tiny-dense-mtp"


def write_files(run: Path, out: Path) -> None:
    """Write every GGUF in its shipped number format into `out`, with the reference logits beside them."""
    tokenizer = load_tokenizer(run / "tokenizer.json")
    out.mkdir(parents=True, exist_ok=True)
    for name, number_format in SHIPPED.items():
        state = torch.load(run / checkpoint(name, run))
        write_gguf(name, state, tokenizer, number_format, out / f"{name}.gguf")
    trunk = torch.load(run / checkpoint("tiny-dense", run))
    block = mtp_state(torch.load(run / f"{MTP}.pt"), SHAPES["tiny-dense"]["num_hidden_layers"])
    write_gguf(MTP, trunk | block, tokenizer, SHIPPED["tiny-dense"], out / f"{MTP}.gguf")
    shutil.copyfile(run / "reference.npz", out / "reference.npz")


def mtp_state(block: dict[str, torch.Tensor], n_layers: int) -> dict[str, torch.Tensor]:
    """The next-token block's parameters under the names `convert` knows, as one more layer after the trunk."""
    return {f"model.layers.{n_layers}.{name.removeprefix('layer.')}": weight for name, weight in block.items()}


def describe(run: Path, out: Path) -> dict[str, Any]:
    """All figures of one family: corpus, files with hashes, training curves, held-out loss, acceptance."""
    facts = json.loads((run / "facts.json").read_text())
    family: dict[str, Any] = {
        "corpus": json.loads((run / "corpus.json").read_text()),
        **{key: facts[key] for key in ("held_out_bytes", "held_out_tokens", "five_gram")},
        "models": {},
        **json.loads((run / "acceptance.json").read_text()),
    }
    for name, number_format in (SHIPPED | {MTP: SHIPPED["tiny-dense"]}).items():
        path = out / f"{name}.gguf"
        stages = [stage for stage in (name, f"{name}-distilled") if (run / f"{stage}.curve.json").exists()]
        family["models"][name] = {
            "file": path.name,
            "format": number_format,
            "n_bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            **facts["models"].get(name, {}),
            "training": {stage: thinned(json.loads((run / f"{stage}.curve.json").read_text())) for stage in stages},
        }
    return family


def thinned(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points of a loss curve that have a held-out loss, figures rounded."""
    return [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in point.items()}
        for point in curve
        if "held_out_nats" in point
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["files", "card"])
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.what == "files":
        write_files(options.run, options.out)
        return
    family = describe(options.run, options.out)
    (options.out / "family.json").write_text(json.dumps(family, indent=1) + "\n")
    (options.out / "CARD.md").write_text(card(family))


if __name__ == "__main__":
    main()
