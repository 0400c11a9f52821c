"""Acceptance that others, or the makers of the tiny family, measured: for advice before anything was measured here."""

from __future__ import annotations

import json
import statistics

import msgspec

from mlsd.errors import InputError
from mlsd.folders import asset_path
from mlsd.planning import passes
from mlsd.records import DRAFT_MODEL, Record
from mlsd.trials.acceptance import WORDS, mgl_of, rate_of


class Acceptance(Record, frozen=True, kw_only=True):
    """How often a drafter is right on one target."""

    drafter: str = DRAFT_MODEL
    draft: str | None  # id of the draft model
    workload: str | None = None  # None: a mixture of texts
    alphas: tuple[float, ...]  # given that the position before was accepted; the last one goes on
    relative_error: float = 0.0  # standard error of the MGL over the MGL
    source: str
    # Nobody measured it: it is assumed to lie between these two at every position, `alphas` is their middle.
    least_alpha: float | None = None
    most_alpha: float | None = None


class Stated(Record, frozen=True, kw_only=True):
    """What a log or a person says of rounds: one of the three, at one gamma."""

    gamma: int
    rate: float | None = None  # accepted / proposed
    counts: tuple[int, int] | None = None  # accepted, proposed
    mgl: float | None = None

    @property
    def words(self) -> str:
        what = f"MGL {self.tokens:.2f} at gamma {self.gamma}"
        if self.mgl is not None:
            return f"{what} as stated"
        rate = f"{self.counts[0]} of {self.counts[1]}" if self.counts else f"{self.rate or 0.0:.0%}"
        return f"{rate} as stated, {WORDS['proposed']}: {what}"

    @property
    def tokens(self) -> float:
        """MGL. Raises InputError for counts or a length that no round at this gamma can have."""
        rate = self.counts[0] / self.counts[1] if self.counts and self.counts[1] > 0 else self.rate
        mgl = self.mgl if rate is None else mgl_of(rate, "proposed", self.gamma) if 0 <= rate <= 1 else None
        if mgl is None or not 1 <= mgl <= self.gamma + 1:
            raise InputError(
                f"No round at gamma {self.gamma} has such an acceptance.",
                hint="--acceptance lies between 0 and 1, --accepted N/M has N of M proposed tokens, --mgl lies between "
                f"1 and {self.gamma + 1}.",
            )
        return mgl


class _Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    target: str
    draft: str
    acceptance: dict[str, float]
    source: str


class _Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    least: float
    most: float
    source: str
    targets: list[str] = []
    drafts: list[str] = []
    methods: list[str] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    measured: list[_Measured]
    assumed: list[_Range]
    lookups: list[_Range]


HEADS = ("mtp", "eagle3", "dflash", "dspark")
_ELSEWHERE = 0.15  # of the MGL: another text, quantization or version of the models; texts differ by about so much


def reference_acceptance(target: str) -> list[Acceptance]:
    """What is known of drafts for the target of this id; empty when nothing is."""
    published = []
    for entry in _file().measured:
        if target.lower().startswith(entry.target):
            of_gammas = (rate_of(1 + int(g) * rate, "position", int(g)) for g, rate in entry.acceptance.items())
            alpha = statistics.fmean(alpha for alpha in of_gammas if alpha is not None)
            published.append(
                Acceptance(draft=entry.draft, alphas=(alpha,), relative_error=_ELSEWHERE, source=entry.source)
            )
    return [*published, *_tiny(target.lower())]


def assumed_acceptance(target: str) -> list[Acceptance]:
    """Drafts that a target could have, in ranges that other targets of its family had; no draft as large as it."""
    return [
        _within(entry, DRAFT_MODEL, draft)
        for entry in _file().assumed
        for draft in entry.drafts
        if target.lower().startswith(tuple(entry.targets))
    ]


def is_method(name: str) -> bool:
    """Whether this is a way to draft without a draft model."""
    return name in HEADS or any(name in entry.methods for entry in _file().lookups)


def stated_acceptance(drafter: str, draft: str | None, stated: Stated) -> Acceptance:
    """A drafter with the chance of a token that gives the stated MGL at the stated gamma."""
    alpha = rate_of(stated.tokens, "position", stated.gamma)
    assert alpha is not None
    return Acceptance(drafter=drafter, draft=draft, alphas=(alpha,), source=stated.words)


def any_acceptance(drafter: str, draft: str | None, workload: str | None) -> Acceptance:
    """A drafter of which nothing is known on this text: a look-up by a range, heads and drafts by public rows.

    Rows say code or something else of their text, so a workload is either.
    """
    lookup = next((entry for entry in _file().lookups if drafter in entry.methods), None)
    if lookup is not None:
        return _within(lookup, drafter, draft)
    least, middle, most = passes.acceptance_of(drafter, workload or "")
    whose, text = "heads and drafts of all kinds", ""
    if drafter in HEADS:
        whose = drafter if drafter in passes.constants().acceptance else whose
        text = "" if workload is None else " on code" if workload == "code" else " on other text than code"
    source = f"public rows of {whose}{text}: {least:.0%} to {most:.0%} of tokens"
    return Acceptance(drafter=drafter, draft=draft, alphas=(middle,), source=source, least_alpha=least, most_alpha=most)


def _within(entry: _Range, drafter: str, draft: str | None) -> Acceptance:
    return Acceptance(
        drafter=drafter,
        draft=draft,
        alphas=((entry.least + entry.most) / 2,),
        source=entry.source,
        least_alpha=entry.least,
        most_alpha=entry.most,
    )


def _file() -> _File:
    return msgspec.toml.decode(asset_path("acceptance.toml").read_bytes(), type=_File)


def _tiny(target: str) -> list[Acceptance]:
    card = json.loads(asset_path("tiny/family.json").read_text(encoding="utf-8"))["acceptance"]
    name = next((name for name in card if target == name or target.startswith(f"{name}-")), None)
    if name is None:
        return []
    return [
        Acceptance(
            draft="tiny-draft",
            workload="code",
            alphas=tuple(card[name]["accepted_given_previous"]),
            relative_error=_ELSEWHERE,
            source="the tiny family's model card, held-out Python",
        )
    ]
