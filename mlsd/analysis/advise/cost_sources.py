"""Where advice takes costs from: calibrations and trials of this machine, models of a shape, or a chip."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from mlsd.analysis.advise.known_model import KnownModel
from mlsd.analysis.advise.prospects import CostRange, calibrated, key_matches
from mlsd.analysis.advise.reference_acceptance import HEADS
from mlsd.analysis.predict.arms import Known
from mlsd.analysis.predict.predict import Costs, MeasuredGamma, costs_from_arms, scale_to
from mlsd.analysis.predict.shape_costs import ShapeCosts, pair_costs, shape_costs
from mlsd.engine.llama.build.kernels import SHIPPED, metal_steps
from mlsd.errors import AnalysisError
from mlsd.planning import passes
from mlsd.planning.known_shapes import QUANTS
from mlsd.planning.passes import AppleChip, Engine, Work
from mlsd.records import NO_DRAFTER, ModelRef

Key = tuple[str, str | None]  # drafter, id of its draft

_SINGLE_ERROR = 0.1  # relative, of trials without repeats


def own_costs(
    target: KnownModel, drafts: Mapping[Key, KnownModel | None], known: Known, machine: str
) -> tuple[CostRange, dict[Key, CostRange]] | None:
    """Costs from a calibration of the target on this machine, or from its trials; None where it has neither."""
    plain = _own(target, (NO_DRAFTER, None), None, known, machine)
    if plain is None:
        return None
    found = {key: _own(target, key, draft, known, machine) for key, draft in drafts.items()}
    return plain, {key: costs for key, costs in found.items() if costs is not None}


def _own(target: KnownModel, key: Key, draft: KnownModel | None, known: Known, machine: str) -> CostRange | None:
    """A calibration, scaled to what the trials of the same arms took; else those trials alone."""
    arms = _arms(target, key, known, machine)
    base = known.costs(machine, target.facts.ref, None if key[1] is None else _ref(key[1], draft, known))
    points = known.passes.get((machine, target.facts.ref.key), ())
    mixture = bool(target.facts.n_experts)
    if key[0] in HEADS and not arms:
        return None  # a calibration times passes of the target alone
    if base is not None:
        found = calibrated(base, points, is_mixture=mixture)
        if not arms:
            return found
        scaled = scale_to(base, arms)
        return msgspec.structs.replace(
            found, low=scaled, high=scaled, source="calibration of this machine, scaled to its own trials"
        )
    if not arms or (key[0] != NO_DRAFTER and not any(arm.gamma for arm in arms)):
        return None
    costs = costs_from_arms(arms)
    return CostRange(
        low=costs,
        high=costs,
        relative_error=_spread(arms),
        source="trials on this machine, no calibration",
        basis="trials",
        is_mixture=mixture,
    )


def _arms(target: KnownModel, key: Key, known: Known, machine: str) -> list[MeasuredGamma]:
    """Arms of a drafter on a target and machine, plain decoding included; of no drafter, plain decoding alone."""
    own = [
        group
        for group in known.groups
        if group.environment_key == machine
        and key_matches(group, target.facts.ref.sha256 or target.facts.ref.id)
        and (key[0] == NO_DRAFTER or (group.drafter, group.draft_id) == key)
    ]
    return [arm for group in own for arm in group.arms if key[0] != NO_DRAFTER or not arm.gamma]


def _spread(arms: Sequence[MeasuredGamma]) -> float:
    """Standard error of an arm's decode tok/s, relative; median over arms with repeats."""
    errors = [
        statistics.stdev(arm.tok_s) / statistics.fmean(arm.tok_s) / len(arm.tok_s) ** 0.5
        for arm in arms
        if len(arm.tok_s) > 1
    ]
    return statistics.median(errors) if errors else _SINGLE_ERROR


def _ref(draft_id: str, draft: KnownModel | None, known: Known) -> ModelRef:
    """The identity of a draft: as a study recorded it, else as it lies on this machine."""
    recorded = [g.draft for g in known.groups if g.draft is not None and g.draft.id == draft_id]
    return recorded[-1] if recorded else draft.facts.ref if draft is not None else ModelRef(id=draft_id)


def costs_by_shape(
    target: KnownModel, drafts: Mapping[Key, KnownModel | None], known: Known, machine: str
) -> tuple[CostRange, dict[Key, CostRange]] | None:
    """Costs from calibrations of synthetic models of the target's shape and of drafts; None where there are none."""
    if target.shape is None or target.quant is None:
        return None
    alone = shape_costs(known, machine, target.shape, target.quant)
    if alone is None:
        return None
    mixture = bool(target.facts.n_experts)
    plain = CostRange(
        low=alone.costs,
        high=alone.costs,
        relative_error=alone.relative_error,
        source=f"{target.quant}, {alone.source}",
        basis="shape",
        is_mixture=mixture,
    )
    found = {}
    for key, draft in drafts.items():
        timed = None if draft is None else _timed_draft(draft, known, machine)
        if timed is None:
            continue
        quant, of_draft = timed
        costs = pair_costs(alone, of_draft)
        found[key] = msgspec.structs.replace(plain, low=costs, high=costs, draft_source=f"{quant}, {of_draft.source}")
    return plain, found


def _timed_draft(draft: KnownModel, known: Known, machine: str) -> tuple[str, ShapeCosts] | None:
    """The draft in its own quantization, else in the first one that was timed."""
    if draft.shape is None:
        return None
    for quant in sorted(QUANTS, key=lambda one: one != draft.quant):
        timed = shape_costs(known, machine, draft.shape, quant)
        if timed is not None:
            return quant, timed
    return None


def costs_by_chip(
    target: KnownModel,
    drafts: Mapping[Key, KnownModel | None],
    chip: AppleChip,
    gammas: Sequence[int],
    runtime: str = "llama.cpp",
    build: int = 0,
    depth: int = 0,
) -> tuple[CostRange, dict[Key, CostRange]]:
    """Modelled costs on a chip that nobody measured here, in the range that held most public rows.

    Raises AnalysisError where the target's bytes or layers are not known.
    """
    work = _at_depth(target, depth)
    if work is None:
        name = target.facts.ref.id
        raise AnalysisError(f"The bytes or layers of {name} are not known, so no chip can be predicted for it.")
    found = {}
    for key, draft in drafts.items():
        step = passes.head_work(work, key[0]) if draft is None else _at_depth(draft, depth)
        found[key] = _modelled(key[0], work, step, chip, gammas, runtime, build)
    return _modelled(NO_DRAFTER, work, None, chip, gammas, runtime, build), found


def _at_depth(model: KnownModel, depth: int) -> Work | None:
    """What a token reads behind `depth` others: keys and values as well as weights."""
    work = passes.work_of(model.facts)
    if not depth or work is None:
        return work
    if model.shape is None:
        raise AnalysisError(
            f"How many keys and values {model.facts.ref.id} keeps is not known.", hint="Leave out --depth."
        )
    return msgspec.structs.replace(work, always_bytes=work.always_bytes + depth * passes.context_bytes(model.shape))


def _modelled(
    method: str, target: Work, step: Work | None, chip: AppleChip, gammas: Sequence[int], runtime: str, build: int
) -> CostRange:
    """One arm. What a chip leaves open of T(1) scales the whole round; what rows leave open is theirs alone."""
    engine: Engine = "llama.cpp" if runtime == "llama.cpp" else "mlx"
    one, whole = passes.plain_ms(target, chip, engine), passes.spread_of(target, chip)
    drafting = 0.0 if step is None else passes.plain_ms(step, chip, engine)
    each = passes.constants().round_ms[engine] if method != NO_DRAFTER else 0.0
    lengths = {
        gamma: passes.round_length(target, chip, method, gamma, step=step, engine=engine, build=build, program=runtime)
        for gamma in gammas
    }
    ends = []
    for end, t_one in ((0, one / whole), (1, one * whole)):
        verify, rest, scale = {1: t_one}, {1: 0.0}, t_one / one
        for gamma, length in lengths.items():
            steps = 0 if step is None else 1 if passes.drafts_a_block(method) else gamma
            # What a round's range leaves open is put into its pass.
            of_pass = passes.round_range(length, target, chip, engine)[end] * one - steps * (drafting + each) - each
            verify[gamma + 1], rest[gamma + 1] = scale * max(of_pass, one / 2), scale * each
        costs = Costs(
            verify_ms=verify,
            catch_up_ms={1: (drafting + each) * scale} if step is not None else {},
            step_ms=0.0 if passes.drafts_a_block(method) or step is None else (drafting + each) * scale,
            rest_ms=rest,
        )
        ends.append(costs)
    generation = "" if chip.generation is None else f" of the M{chip.generation} generation"
    kernels = metal_steps(f"b{build}" if build else SHIPPED) if engine == "llama.cpp" else None
    of_build = "" if kernels is None else f" b{build}" if build else " as llama-cpp-python compiles it"
    return CostRange(
        low=ends[0],
        high=ends[1],
        relative_error=0.0,  # the range holds it
        source=f"modelled for {runtime}{of_build} on {chip.peak_gb_s:g} GB/s{generation}, fitted to public rows"
        + (f" (its kernels are those {kernels.side}; --llama-build names another)" if kernels else ""),
        basis="bandwidth",
        is_mixture=target.expert_bytes > 0,
    )
