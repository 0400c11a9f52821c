"""Kangaroo: the target's first blocks draft, a small trained adapter bridges to its head, and doubt ends a draft.

Source: Liu et al. 2024 (arXiv 2404.18911). The adapter is the user's own file. Blocks and adapter become one draft
model, whose memory is what the paper's would be: the first blocks of both compute the same from the same tokens. The
paper's verification goes on from the exit; here the target's pass computes its first blocks again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from mlsd.drafters import DrafterBench
from mlsd.drafters.chain import Chain, Doubt, Probability
from mlsd.drafters.draft_model import DraftModel
from mlsd.drafters.options import SMALL_MODEL_STUDY, Choice, Preset, Span, read_options
from mlsd.engine.llama.open import open_session
from mlsd.engine.rollback import make_rollback
from mlsd.errors import InputError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.adapter import Adapter
from mlsd.gguf_tools.surgery.draft_cache import cached_draft
from mlsd.gguf_tools.surgery.edit import write_edit
from mlsd.gguf_tools.surgery.kangaroo import compose
from mlsd.hashes import file_sha256
from mlsd.records import DrafterSpec, OptionValue, Record


class Options(Record, frozen=True, kw_only=True):
    """Options of Kangaroo."""

    adapter: str  # folder with config.json and model.safetensors, or the path of the latter
    exit: Annotated[int, Meta(ge=1)] = 2  # the first so many blocks draft; what the adapter was trained behind
    p_min: Probability = 0.6  # the draft ends behind a likeliest token below it (softmax)
    content: str = ""  # what the adapter holds; filled in when the spec is resolved


OPTIONS = Options
SPACE = {"gamma": Span(low=1, high=8), "p_min": Choice(values=(0.0, 0.3, 0.5, 0.6, 0.7, 0.8), unless=("preset",))}


def _preset(steps: int, p_min: float) -> Preset:
    return Preset(gamma=steps, values={"exit": 2, "p_min": p_min}, source=SMALL_MODEL_STUDY)


# Steps (gamma), exit layer and threshold.
PRESETS = {
    "qwen2.5-1.5b": _preset(7, 0.6),
    "smollm2": _preset(7, 0.7),
    "llama-3.2-1b": _preset(4, 0.8),
    "vicuna-7b": _preset(6, 0.3),
}


def fill_in(spec: DrafterSpec) -> dict[str, OptionValue]:
    """The content of the adapter, so that another one under the same name is another case.

    Raises: InputError when it is missing, damaged or none, before any model is loaded.
    """
    return {"content": Adapter(Path(read_options(spec, Options, PRESETS).adapter)).content}


def check_target(spec: DrafterSpec, target_path: Path) -> None:
    """Refuse a target that the adapter does not fit, from headers alone.

    Raises: InputError, ModelFileError.
    """
    own = read_options(spec, Options, PRESETS)
    compose(Source(target_path), Adapter(Path(own.adapter)), own.exit)


def drafting_part(spec: DrafterSpec) -> DrafterSpec:
    """What of the spec decides which weights draft: the threshold and the adapter's place do not."""
    own = read_options(spec, Options, PRESETS)
    return msgspec.structs.replace(spec, options={"exit": own.exit, "content": own.content or own.adapter})


def drafting_file(spec: DrafterSpec, target_path: Path) -> Path:
    """The file of the draft, composed now if it is not there. Raises: InputError, ModelFileError."""
    return composed_file(target_path, read_options(spec, Options, PRESETS))


def make(bench: DrafterBench) -> KangarooDraft:
    """Compose the draft, or find it where such drafts are kept, and open it.

    Raises: InputError for an adapter that was replaced since the spec was resolved, and what `check_target` raises.
    """
    own = read_options(bench.spec, Options, PRESETS)
    path = composed_file(bench.target_path, own)
    strategy = bench.draft_rollback(path)
    chain = Chain(bench.clock, bench.sampling, Doubt(p_min=own.p_min, p_min_mode="include"))
    options = msgspec.structs.replace(bench.options, device_sampling=chain.on_device, max_outputs=1)
    session = open_session(bench.open_model(path), options)
    try:
        return KangarooDraft(session, make_rollback(strategy, session), bench.clock, chain)
    except BaseException:
        session.close()
        raise


def composed_file(target_path: Path, options: Options) -> Path:
    """The draft of a target and an adapter, written once and kept for the next time."""
    source, adapter = Source(target_path), Adapter(Path(options.adapter))
    if options.content not in ("", adapter.content):
        raise InputError(
            f"{adapter.path} holds {adapter.content}, not {options.content}: it was replaced.",
            hint="Start the measurement again; its numbers belong to another adapter.",
        )
    edit = compose(source, adapter, options.exit)
    recipe = f"{file_sha256(target_path)} {adapter.content} {options.exit}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return cached_draft(f"{target_path.stem}-kangaroo-{digest}.gguf", lambda path: write_edit(source, edit, path))


class KangarooDraft(DraftModel):
    """A chain that ends behind the first token of which the draft is not sure enough; that token is still proposed."""

    name = "kangaroo"
