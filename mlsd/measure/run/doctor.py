"""What this machine can measure: its card, its present state, and which profiles fit.

Reads the machine and the manifest; downloads nothing, loads no model and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from mlsd.errors import ManifestError
from mlsd.hardware import Machine
from mlsd.hardware.budget import MemoryBudget, memory_budget
from mlsd.measure.run.checks import condition_warnings
from mlsd.models.hub import free_bytes
from mlsd.models.library import Library
from mlsd.models.manifest import MadeEntry, ModelEntry
from mlsd.planning.suite import Profile, Suite
from mlsd.records import Conditions, Environment, QualityWarning, Record
from mlsd.units import format_bytes

Fit = Literal["fits", "tight", "does not fit", "unknown"]

# Bits per weight of whole files, as llama.cpp's quantizer documents them for Llama-3.1-8B (tools/quantize/README.md).
_BITS_PER_WEIGHT = {
    "F32": 32.0, "F16": 16.0, "BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.56, "Q5_K_M": 5.7, "Q4_K_M": 4.89, "Q4_K_S": 4.67,
    "Q4_0": 4.64, "Q3_K_M": 4.0, "Q2_K": 3.16,
}  # fmt: skip
_ESTIMATE_MARGIN = 1.05  # files of one quantization differ by a few per cent from model to model


class ProfileFit(Record, frozen=True, kw_only=True):
    """Whether the models of a profile fit into this machine."""

    profile: str
    title: str
    verdict: Fit
    why: str
    pair: tuple[str, ...]  # the target and draft that need most together
    pair_bytes: int | None  # their weights
    n_models: int
    n_downloaded: int
    missing_bytes: int | None  # still to download or make; None where a size is not even estimated
    estimated: tuple[str, ...] = ()  # models whose size nobody stated: from parameters and quantization


class Diagnosis(Record, frozen=True, kw_only=True):
    """Everything `mlsd doctor` says."""

    environment: Environment
    missing: dict[str, str]  # field of the environment -> why it is None
    conditions: Conditions
    free_disk_bytes: int
    budget: MemoryBudget | None
    profiles: tuple[ProfileFit, ...]
    warnings: tuple[QualityWarning, ...]


def examine(
    machine: Machine,
    conditions: Conditions,
    library: Library,
    profiles: Iterable[Profile],
    suites: Sequence[Suite],
) -> Diagnosis:
    """Put the readings together; the free disk is that of the folder that downloads go to."""
    environment = machine.environment
    budget = memory_budget(environment)
    free = free_bytes(library.hub.cache_dir)
    fits = tuple(profile_fit(profile, suites, library, budget, free) for profile in profiles)
    return Diagnosis(
        environment=environment,
        missing=machine.missing,
        conditions=conditions,
        free_disk_bytes=free,
        budget=budget,
        profiles=fits,
        warnings=tuple(condition_warnings([conditions], environment)),
    )


def profile_fit(
    profile: Profile,
    suites: Sequence[Suite],
    library: Library,
    budget: MemoryBudget | None,
    free_disk_bytes: int,
) -> ProfileFit:
    """Compare the pair of models that needs most memory, and the bytes to download, with what there is."""
    try:
        entries = {model: library.manifest.find(model) for model in dict.fromkeys(profile.roles.values())}
    except ManifestError as error:
        return _fit(profile, "unknown", error.message)
    stated = {model: weight_bytes(entry, library) for model, entry in entries.items()}
    sizes = {model: stated[model] or estimated_bytes(entry) for model, entry in entries.items()}
    estimated = tuple(model for model in entries if stated[model] is None and sizes[model] is not None)
    located = {model for model, entry in entries.items() if library.locate(entry)}
    to_get = [sizes[model] for model in entries if model not in located]
    missing = None if None in to_get else sum(size for size in to_get if size is not None)
    pair, needed = _largest_pair(profile, suites, sizes)
    verdict, why = _judge(pair, needed, budget, sizes, estimated)
    if verdict in ("fits", "tight") and missing and missing > free_disk_bytes:
        verdict, why = (
            "does not fit",
            f"{format_bytes(missing)} to download or make, {format_bytes(free_disk_bytes)} of disk free",
        )
    return ProfileFit(
        profile=profile.name,
        title=profile.title,
        verdict=verdict,
        why=why,
        pair=pair,
        pair_bytes=needed,
        n_models=len(entries),
        n_downloaded=len(located),
        missing_bytes=missing,
        estimated=estimated,
    )


def weight_bytes(entry: ModelEntry, library: Library) -> int | None:
    """Bytes of a model: as stated, else of its files here; a made model counts as its base at most."""
    if entry.n_bytes is not None:
        return entry.n_bytes
    if paths := library.locate(entry):
        return sum(path.stat().st_size for path in paths)
    if isinstance(entry, MadeEntry):
        return weight_bytes(library.manifest.models[entry.base], library)
    stated = [part.n_bytes for part in entry.parts]
    return None if None in stated else sum(size for size in stated if size is not None)


def estimated_bytes(entry: ModelEntry) -> int | None:
    """Bytes from parameters and quantization, a little high; None where either says too little."""
    bits = _BITS_PER_WEIGHT.get(entry.quantization)
    if bits is None or entry.parameters is None:
        return None
    return round(entry.parameters * bits / 8 * _ESTIMATE_MARGIN)


def _largest_pair(
    profile: Profile, suites: Sequence[Suite], sizes: dict[str, int | None]
) -> tuple[tuple[str, ...], int | None]:
    """The models loaded together that weigh most, and their bytes; None when the size of any model is not known."""
    pairs: list[tuple[str, ...]] = []
    for part in (part for suite in suites for part in suite.parts):
        targets = [profile.roles[role] for role in part.targets if role in profile.roles]
        drafts = [profile.roles[c.draft] for c in part.drafters if c.draft and c.draft in profile.roles]
        pairs += [(target, draft) for target in targets for draft in drafts]
        pairs += [(target,) for target in targets]
    weighed = {pair: [sizes[model] for model in pair] for pair in pairs}
    for pair, parts in weighed.items():
        if None in parts:
            return pair, None
    if not weighed:
        return (), None
    totals = {pair: sum(size for size in parts if size is not None) for pair, parts in weighed.items()}
    largest = max(totals, key=lambda pair: totals[pair])
    return largest, totals[largest]


def _judge(
    pair: tuple[str, ...],
    needed: int | None,
    budget: MemoryBudget | None,
    sizes: dict[str, int | None],
    estimated: tuple[str, ...],
) -> tuple[Fit, str]:
    if not pair:
        return "unknown", "no suite uses its models"
    if needed is None:
        unknown = ", ".join(model for model in pair if sizes[model] is None)
        return "unknown", f"the size of {unknown} is not known; `mlsd models pull` finds it"
    about = "about " if set(pair) & set(estimated) else ""
    what = f"{' + '.join(pair)}: {about}{format_bytes(needed)} of weights"
    if budget is None:
        return "unknown", f"{what}; the memory for models is not known"
    if needed <= budget.safe_bytes:
        return "fits", f"{what}, {format_bytes(budget.safe_bytes)} safe"
    if needed <= budget.most_bytes:
        return "tight", f"{what}, {format_bytes(budget.safe_bytes)} safe, {format_bytes(budget.most_bytes)} at most"
    return "does not fit", f"{what}, {format_bytes(budget.most_bytes)} at most"


def _fit(profile: Profile, verdict: Fit, why: str) -> ProfileFit:
    return ProfileFit(
        profile=profile.name, title=profile.title, verdict=verdict, why=why, pair=(), pair_bytes=None,
        n_models=len(set(profile.roles.values())), n_downloaded=0, missing_bytes=None,
    )  # fmt: skip
