"""A target and the draft beside it, as commands that time or profile their passes take them and record them."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from mlsd.errors import InputError
from mlsd.gguf_tools.read import model_facts
from mlsd.measure.messages import PairJob
from mlsd.models.library import resolve_model
from mlsd.planning.job import ModelFile
from mlsd.records import EngineOptions, ModelFacts, Record


class PairRequest(Record, frozen=True, kw_only=True):
    """Whose passes; models are GGUF paths or ids."""

    target: str
    draft: str | None = None
    rows: tuple[int, ...]  # k of the target's passes
    engine: EngineOptions = EngineOptions()


def find_pair(request: PairRequest) -> tuple[ModelFile, ModelFile | None, list[ModelFacts]]:
    """The files, made where they can be, and what their headers say. Raises: InputError, ModelFileError."""
    if not request.rows or min(request.rows) < 1:
        raise InputError("--rows must be positive numbers of positions.", hint="Like --rows 1,5,9.")
    models = [resolve_model(text, make=True) for text in (request.target, request.draft) if text]
    files = [ModelFile(ref=model.ref, path=str(model.path)) for model in models]
    facts = [model_facts(model.path, ref=model.ref) for model in models]
    return files[0], files[1] if len(files) > 1 else None, facts


def stored_plan(command: str, job: PairJob) -> dict[str, Any]:
    """What was asked for, as a run records it: models by name and hash, without the text and without a path."""
    plan: dict[str, Any] = msgspec.to_builtins(job)
    for role in ("target", "draft"):
        if plan[role] is not None:
            plan[role] = plan[role]["ref"]
    plan["text"] = hashlib.sha256(job.text.encode()).hexdigest()
    del plan["type"]
    return {"command": command, **plan}
