"""Which model drafts: what tells it from others, and the file it is in.

A method that drafts with a model made of its target has, beside `make`, `drafting_part(spec)`, the spec without what
does not change that model, and `drafting_file(spec, target_path)`, the model's file. A method whose second file is a
head over the target's rows says `READS_TARGET`: there is no model to compare.
"""

from __future__ import annotations

from pathlib import Path

from mlsd.drafters import method_module
from mlsd.records import NO_DRAFTER, DrafterSpec, content_id


def drafting_key(spec: DrafterSpec) -> str | None:
    """Equal for two specs on one target exactly when the same model drafts; None where no model of its own does.

    Raises: UnsupportedError for an unknown method.
    """
    module = None if spec.name == NO_DRAFTER else method_module(spec.name)
    if getattr(module, "READS_TARGET", False):  # a head has no distribution without the target's rows
        return None
    if spec.draft is not None:
        return spec.draft.sha256 or f"id:{spec.draft.id}"
    part = getattr(module, "drafting_part", None)
    return None if part is None else content_id(part(spec))


def drafting_file(spec: DrafterSpec, target_path: Path) -> Path | None:
    """The file of the model that drafts out of the target itself, made if need be; None where there is no such file.

    Raises: UnsupportedError for an unknown method, and what the method raises for a target it cannot serve.
    """
    make_file = None if spec.name == NO_DRAFTER else getattr(method_module(spec.name), "drafting_file", None)
    path: Path | None = None if make_file is None else make_file(spec, target_path)
    return path
