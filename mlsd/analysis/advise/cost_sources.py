"""Where advice takes costs from: calibrations and trials of this machine, models of a shape, or a chip."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mlsd.analysis.advise.acceptance import HEADS, way_of
from mlsd.analysis.advise.known_model import KnownModel
from mlsd.analysis.advise.prospects import Basis, CostRange
from mlsd.analysis.predict.costs import Costs, costs_from_arms, scale_to
from mlsd.analysis.predict.known import Known, predictable
from mlsd.errors import AnalysisError
from mlsd.hardware import apple_passes as passes
from mlsd.hardware.apple_passes import AppleChip, Engine, Work
from mlsd.hardware.metal_kernels import SHIPPED, metal_steps
from mlsd.planning.known_shapes import QUANTS
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, ModelRef
from mlsd.trials.arms import Arm
from mlsd.trials.results import ArmResult

Costed = tuple[CostRange, dict[Arm, CostRange]]  # of plain decoding, and by drafter

_AS_LONG = 2.0  # of prompts: a factor
_SINGLE_ERROR = 0.1  # relative, of trials without repeats
# A head reads the prompt too: 117 tok/s of prefill became 94.6 with MTP (a comment in llama.cpp PR 22673).
_HEAD_PREFILL = 117 / 94.6 - 1


def own_costs(
    target: KnownModel, drafts: Mapping[Arm, KnownModel | None], known: Known, machine: str, n_prompt: int | None = None
) -> Costed | None:
    """Costs from a calibration of the target on this machine, or from its trials; None where it has neither.

    `n_prompt`: tokens of the prompt whose reading is asked for, too.
    """
    arms = predictable(known.of(target.facts.ref, machine))
    alone = [arm for arm in arms if arm.is_plain]
    plain = _own(target, alone, None, known, machine, n_prompt)
    if plain is None:
        return None
    found = {}
    for way, draft in drafts.items():
        own = [arm for arm in arms if not arm.is_plain and way_of(arm) == way and arm.whole.proposed]
        if way.method in HEADS and not own:
            continue  # a calibration times passes of the target alone
        ref = None if way.draft is None else _ref(way.draft, draft, own)
        ran = [*(alone if own else ()), *own]
        costs = _own(target, ran, ref, known, machine, n_prompt, drafting=way.method != NO_DRAFTER)
        if costs is not None:
            found[way] = costs
    return plain, found


def _own(
    target: KnownModel,
    arms: Sequence[ArmResult],
    draft: ModelRef | None,
    known: Known,
    machine: str,
    n_prompt: int | None,
    *,
    drafting: bool = False,
) -> CostRange | None:
    """A calibration, scaled to what the trials of the same arms took; else those trials alone."""
    base = known.costs(machine, target.facts.ref, draft)
    ran = any(arm.case.gamma for arm in arms)
    prefill = _prefill_ms([arm for arm in arms if bool(arm.case.gamma) == ran], n_prompt)
    if base is not None:
        from mlsd.analysis.fits.calibration import relative_error, target_curve

        points = known.passes[machine, target.facts.ref.key]
        steps = target_curve(points).steps
        costs, edges = scale_to(base, arms) if arms else base, () if steps is None else steps.edges
        error = relative_error(points, _SINGLE_ERROR)
        source = "calibration of this machine, scaled to its own trials" if arms else "calibration on this machine"
        return _range(target, costs, error, source, "calibration", steps=edges, prefill_ms=prefill)
    if not arms or (drafting and not ran):
        return None
    try:
        costs = costs_from_arms(arms)
    except AnalysisError:
        return None
    spreads = [arm.spread / arm.n_valid**0.5 for arm in arms if arm.spread is not None and arm.n_valid > 1]
    error = statistics.median(spreads) if spreads else _SINGLE_ERROR
    return _range(target, costs, error, "trials on this machine, no calibration", "trials", prefill_ms=prefill)


def _range(target: KnownModel, costs: Costs, error: float, source: str, basis: Basis, **more: Any) -> CostRange:
    """Costs that were measured."""
    mixture = bool(target.facts.n_experts)
    return CostRange(
        low=costs, high=costs, relative_error=error, source=source, basis=basis, is_mixture=mixture, **more
    )


def _prefill_ms(arms: Sequence[ArmResult], n_prompt: int | None) -> float | None:
    """Ms of one prompt token, the draft's reading included; the median over trials of prompts about as long.

    A token of a prompt costs by its length (a batch that is not full, attention), so others say nothing of it.
    """
    found = [
        (t.prefill_ns + (t.draft_prefill_ns or 0)) / 1e6 / t.n_prompt
        for arm in arms
        for t in (one.trial for one in arm.trials)
        if t.valid and t.prefill_ns and t.n_prompt and n_prompt and 1 / _AS_LONG < t.n_prompt / n_prompt < _AS_LONG
    ]
    return statistics.median(found) if found else None


def _ref(asked: ModelRef, draft: KnownModel | None, own: Sequence[ArmResult]) -> ModelRef:
    """The identity of a draft: as a study recorded it, else as it lies on this machine."""
    recorded = next((arm.case.drafter.draft for arm in reversed(own) if arm.case.drafter.draft is not None), None)
    return recorded or (draft.facts.ref if draft is not None else asked)


def costs_by_shape(
    target: KnownModel, drafts: Mapping[Arm, KnownModel | None], known: Known, machine: str
) -> Costed | None:
    """Costs from calibrations of synthetic models of the target's shape and of drafts; None where there are none."""
    if target.shape is None or target.quant is None or not known.passes:
        return None
    from mlsd.analysis.predict.shapes import pair_costs, shape_costs

    alone = shape_costs(known, machine, target.shape, target.quant)
    if alone is None:
        return None
    plain = _range(target, alone.costs, alone.relative_error, f"{target.quant}, {alone.source}", "shape")
    found = {}
    for way, draft in drafts.items():
        # The draft in its own quantization, else in the first one that was timed.
        for quant in sorted(QUANTS, key=lambda one: draft is not None and one != draft.quant):
            timed = None
            if draft is not None and draft.shape is not None:
                timed = shape_costs(known, machine, draft.shape, quant)
            if timed is not None:
                costs = pair_costs(alone, timed)
                found[way] = msgspec.structs.replace(
                    plain, low=costs, high=costs, draft_source=f"{quant}, {timed.source}"
                )
                break
    return plain, found


def costs_by_chip(
    target: KnownModel,
    drafts: Mapping[Arm, KnownModel | None],
    chip: AppleChip,
    gammas: Sequence[int],
    runtime: str = "llama.cpp",
    build: int = 0,
    depth: int = 0,
) -> Costed:
    """Modelled costs on a chip that nobody measured here, in the range that held most public rows.

    Raises AnalysisError where the target's bytes or layers are not known.
    """
    work = _at_depth(target, depth)
    if work is None:
        name = target.facts.ref.id
        raise AnalysisError(f"The bytes or layers of {name} are not known, so no chip can be predicted for it.")
    found = {}
    for way, draft in drafts.items():
        step = passes.head_work(work, way.method) if draft is None else _at_depth(draft, depth)
        found[way] = _modelled(way.method, work, step, chip, gammas, runtime, build)
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
            of_pass = (
                passes.round_range(length, target, chip, gamma, engine, build)[end] * one
                - steps * (drafting + each)
                - each
            )
            verify[gamma + 1], rest[gamma + 1] = scale * max(of_pass, one / 2), scale * each
        costs = Costs(
            verify_ms=verify,
            catch_up_ms={1: (drafting + each) * scale} if step is not None else {},
            step_ms=0.0 if passes.drafts_a_block(method) or step is None else (drafting + each) * scale,
            rest_ms=rest,
        )
        ends.append(costs)
    prefill = passes.prefill_ms(target, chip)
    if step is not None:
        prefill += passes.prefill_ms(step, chip) if method == DRAFT_MODEL else _HEAD_PREFILL * prefill
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
        prefill_ms=prefill,
        tested_gamma=passes.FEW_PROPOSED if engine == "llama.cpp" else None,
    )
