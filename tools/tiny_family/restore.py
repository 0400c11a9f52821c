"""The shipped files back into a run folder, as if the trainings had just ended: a later stage can go on from them.

Weights come back as the files hold them and the targets' files are copied; curves come from `family.json`. The corpus
must be the one the family was trained on, and its hash is checked.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from convert import torch_state
from export import MTP, mtp_state
from mtp import MtpBlock
from shapes import SHAPES, new_model
from train import TARGETS


def restore(family: Path, run: Path) -> None:
    """Write the checkpoints, curves and yardstick of the family in the folder `family` into `run`."""
    told = json.loads((family / "family.json").read_text())
    prepared = json.loads((run / "corpus.json").read_text())
    if prepared["sha256"] != told["corpus"]["sha256"]:
        raise SystemExit(f"{prepared['source']} is not the {told['corpus']['source']} the family was trained on")
    models: dict[str, Any] = {name: new_model(name) for name in SHAPES}
    for name, model in models.items():
        state = torch_state(family / f"{name}.gguf", SHAPES[name], model.state_dict())
        torch.save(state, run / f"{list(told['models'][name]['training'])[-1]}.pt")
    trunk = models["tiny-dense"]
    block = MtpBlock(trunk).state_dict()
    names = mtp_state(block, n_layers := trunk.config.num_hidden_layers)
    state = torch_state(family / f"{MTP}.gguf", SHAPES["tiny-dense"], names)
    prefix = f"model.layers.{n_layers}."
    back = {own: state[there] for own, there in zip(block, names, strict=True) if there.startswith(prefix)}
    torch.save(back, run / f"{MTP}.pt")
    for model in told["models"].values():
        for stage, curve in model["training"].items():
            (run / f"{stage}.curve.json").write_text(json.dumps(curve))
    (run / "targets").mkdir(exist_ok=True)
    for name in (*TARGETS, MTP):
        shutil.copyfile(family / f"{name}.gguf", run / "targets" / f"{name}.gguf")
    restored = [stage for model in told["models"].values() for stage in model["training"]]
    (run / "restored.json").write_text(json.dumps(restored))
    yardstick = {key: value for key, value in told["five_gram"].items() if key != "bits_per_byte"}
    (run / "five_gram.json").write_text(json.dumps(yardstick))
