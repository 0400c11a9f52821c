"""What is measured against what: one record for an arm, with one name for people, wherever it came from."""

import json
from typing import Any

import msgspec

from mlsd.records import DRAFT_MODEL, NO_DRAFTER, Case, DrafterSpec, ModelRef, Record, Sampling, Source

PLAIN = "plain"


class Arm(Record, frozen=True, kw_only=True):
    """One way to decode a target. Equal, and hashed alike, exactly when nothing that was chosen of it differs."""

    method: str = NO_DRAFTER
    draft: ModelRef | None = None
    options: str = ""  # of the method: JSON with sorted keys, as the store's frames have it; empty without any
    gamma: int = 0  # 0: plain decoding, or a server that does not tell
    sampling: Sampling = Sampling()
    source: Source = "engine"

    @property
    def name(self) -> str:
        """For people, where the gamma stands beside it: a draft model goes by its own name, options in brackets."""
        if self.method == NO_DRAFTER:
            return PLAIN
        draft = "" if self.draft is None else self.draft.id
        name = draft if draft and self.method == DRAFT_MODEL else f"{self.method} {draft}".rstrip()
        chosen = ", ".join(f"{key} {value}" for key, value in self._values.items())
        return f"{name} ({chosen})" if chosen else name

    @property
    def adapts(self) -> bool:
        """Whether its drafts have a length that adapts to what is accepted, up to gamma (`drafters.adaptive`)."""
        return bool(self._values.get("adaptive"))

    @property
    def p_min(self) -> float:
        """A token that the drafter gives less than this chance ends a draft; 0: none does."""
        return float(self._values.get("p_min") or 0.0)

    @property
    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self.options) if self.options else {}
        return values

    @property
    def setting(self) -> str:
        """For people, alone: ``plain``, ``tiny-draft, gamma 4``."""
        return f"{self.name}, gamma {self.gamma}" if self.gamma else self.name


def arm_of(case: Case) -> Arm:
    """The arm of a case."""
    spec = case.drafter
    return Arm(method=spec.name, draft=spec.draft, options=options_text(spec), gamma=case.gamma,
               sampling=case.sampling, source=case.source)  # fmt: skip


def arm_named(method: str, draft: str | None = None, options: str = "", gamma: int = 0) -> Arm:
    """An arm as tables know it, its draft by its id alone."""
    return Arm(method=method, draft=ModelRef(id=draft) if draft else None, options=options, gamma=gamma)


def options_text(spec: DrafterSpec) -> str:
    """The options of a method as JSON with sorted keys; empty without any."""
    return msgspec.json.encode(spec.options, order="sorted").decode() if spec.options else ""
