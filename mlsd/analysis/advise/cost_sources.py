"""Where advice takes costs from: calibrations and trials of this machine, models of a shape, or a chip."""

import statistics
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mlsd.analysis.advise.acceptance import HEADS, PLAIN_ARM, arm_of
from mlsd.analysis.advise.known_model import KnownModel
from mlsd.analysis.predict.costs import CostRange, Costs, costs_from_arms, known_costs, scale_to
from mlsd.analysis.predict.evidence import Evidence, predictable
from mlsd.errors import AnalysisError
from mlsd.hardware import apple_passes as passes
from mlsd.hardware.apple_passes import Runtime, Work
from mlsd.hardware.metal_kernels import SHIPPED, metal_steps
from mlsd.planning.known_shapes import QUANTS
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, ModelRef
from mlsd.trials.arms import Arm
from mlsd.trials.results import ArmResult

Drafts = Mapping[Arm, KnownModel | None]  # the draft model of each drafter, where it has one
Costed = dict[Arm, CostRange]  # of each drafter, plain decoding among them; empty where nothing is known

_AS_LONG = 2.0  # of prompts: a factor
_SINGLE_ERROR = 0.1  # relative, of trials without repeats
# A head reads the prompt too: 117 tok/s of prefill became 94.6 with MTP (a comment in llama.cpp PR 22673).
_HEAD_PREFILL = 117 / 94.6 - 1


def own_costs(
    target: KnownModel, drafts: Drafts, evidence: Evidence, machine: str, n_prompt: int | None = None
) -> Costed:
    """Costs from a calibration of the target on this machine, or from its trials.

    `n_prompt`: tokens of the prompt whose reading is asked for, too.
    """
    arms = predictable(evidence.of(target.facts.ref, machine))
    alone, costs_of = [arm for arm in arms if arm.is_plain], Costed()
    for arm, draft in {PLAIN_ARM: None, **drafts}.items():
        drafting = [ran for ran in arms if not ran.is_plain and arm_of(ran) == arm and ran.whole.proposed]
        if arm.method in HEADS and not drafting:
            continue  # a calibration times passes of the target alone
        ran = [*alone, *drafting] if drafting or arm == PLAIN_ARM else []
        # The draft as a study recorded it, else as it lies on this machine.
        ref = arm.draft if draft is None else draft.facts.ref
        ref = next((recorded for arm in reversed(drafting) if (recorded := arm.case.drafter.draft)), ref)
        prefill = _prefill_ms(drafting or ran, n_prompt)
        costs = _calibrated(target, ran, ref, evidence, machine, prefill) or _of_trials(target, ran, prefill)
        if costs is not None:
            costs_of[arm] = costs
        elif arm == PLAIN_ARM:
            break
    return costs_of


def _calibrated(
    target: KnownModel,
    ran: Sequence[ArmResult],
    draft: ModelRef | None,
    evidence: Evidence,
    machine: str,
    prefill_ms: float | None,
) -> CostRange | None:
    """A calibration, scaled to what the trials of the same arms took."""
    base = evidence.costs(machine, target.facts.ref, draft)
    if base is None:
        return None
    from mlsd.analysis.fits.calibration import relative_error, target_curve

    points = evidence.passes[machine, target.facts.ref.key]
    steps, error = target_curve(points).steps, relative_error(points, _SINGLE_ERROR)
    return known_costs(
        scale_to(base, ran) if ran else base,
        error,
        "calibration of this machine, scaled to its own trials" if ran else "calibration on this machine",
        "calibration",
        is_mixture=bool(target.facts.n_experts),
        steps=() if steps is None else steps.edges,
        prefill_ms=prefill_ms,
    )


def _of_trials(target: KnownModel, ran: Sequence[ArmResult], prefill_ms: float | None) -> CostRange | None:
    """What these trials took, plain decoding among them; None without it."""
    try:
        costs = costs_from_arms(ran)
    except AnalysisError:
        return None
    spreads = [arm.spread / arm.n_valid**0.5 for arm in ran if arm.spread is not None and arm.n_valid > 1]
    error, mixture = statistics.median(spreads) if spreads else _SINGLE_ERROR, bool(target.facts.n_experts)
    source = "trials on this machine, no calibration"
    return known_costs(costs, error, source, "trials", is_mixture=mixture, prefill_ms=prefill_ms)


def _prefill_ms(arms: Sequence[ArmResult], n_prompt: int | None) -> float | None:
    """Ms of one prompt token, the draft's reading included; the median over trials of prompts about as long.

    A token of a prompt costs by its length (a batch that is not full, attention), so others say nothing of it.
    """
    each_ms = [
        (t.prefill_ns + (t.draft_prefill_ns or 0)) / 1e6 / t.n_prompt
        for arm in arms
        for t in (one.trial for one in arm.trials)
        if t.valid and t.prefill_ns and t.n_prompt and n_prompt and 1 / _AS_LONG < t.n_prompt / n_prompt < _AS_LONG
    ]
    return statistics.median(each_ms) if each_ms else None


def costs_by_shape(target: KnownModel, drafts: Drafts, evidence: Evidence, machine: str) -> Costed:
    """Costs from calibrations of synthetic models of the target's shape and of drafts."""
    if target.shape is None or target.quant is None or not evidence.passes:
        return {}
    from mlsd.analysis.predict.shapes import pair_costs, shape_costs

    alone = shape_costs(evidence, machine, target.shape, target.quant)
    if alone is None:
        return {}
    costs_of = {PLAIN_ARM: alone}
    for arm, draft in drafts.items():
        if draft is None or draft.shape is None:
            continue
        stored, shape = draft.quant, draft.shape
        # The draft in its own quantization, else in the first one that was timed.
        every = (
            shape_costs(evidence, machine, shape, quant) for quant in sorted(QUANTS, key=lambda one: one != stored)
        )
        timed = next((costs for costs in every if costs is not None), None)
        if timed is not None:
            costs_of[arm] = pair_costs(alone, timed)
    return costs_of


def costs_by_chip(target: KnownModel, drafts: Drafts, on: Runtime, gammas: Sequence[int], depth: int = 0) -> Costed:
    """Modelled costs on a chip that nobody measured here, in the range that held most public rows.

    Raises AnalysisError where the target's bytes or layers are not known.
    """
    work = _at_depth(target, depth)
    if work is None:
        name = target.facts.ref.id
        raise AnalysisError(f"The bytes or layers of {name} are not known, so no chip can be predicted for it.")
    costs_of = {PLAIN_ARM: _modelled(NO_DRAFTER, work, None, on, gammas)}
    for arm, draft in drafts.items():
        step = passes.head_work(work, arm.method) if draft is None else _at_depth(draft, depth)
        costs_of[arm] = _modelled(arm.method, work, step, on, gammas)
    return costs_of


def _at_depth(model: KnownModel, depth: int) -> Work | None:
    """What a token reads behind `depth` others: keys and values as well as weights."""
    work = passes.work_of(model.facts)
    if not depth or work is None:
        return work
    if model.shape is None:
        raise AnalysisError(
            f"How many keys and values {model.facts.ref.id} keeps is not known.", hint="Leave out --depth."
        )
    return replace(work, always_bytes=work.always_bytes + depth * passes.context_bytes(model.shape))


def _modelled(method: str, target: Work, step: Work | None, on: Runtime, gammas: Sequence[int]) -> CostRange:
    """One arm. What a chip leaves open of T(1) scales the whole round; what rows leave open is theirs alone."""
    plain_ms, whole = on.plain_ms(target), on.spread(target)
    each = on.constants.round_ms[on.engine] if method != NO_DRAFTER else 0.0
    drafting = 0.0 if step is None else on.plain_ms(step) + each
    lengths = {gamma: on.round_length(target, method, gamma, step=step) for gamma in gammas}
    ends = []
    for end, t_one in ((0, plain_ms / whole), (1, plain_ms * whole)):
        verify, rest, scale = {1: t_one}, {1: 0.0}, t_one / plain_ms
        for gamma, length in lengths.items():
            steps = 1 if passes.drafts_a_block(method) else gamma
            # What a round's range leaves open is put into its pass.
            of_pass = on.round_range(length, target, gamma)[end] * plain_ms - steps * drafting - each
            verify[gamma + 1], rest[gamma + 1] = scale * max(of_pass, plain_ms / 2), scale * each
        costs = Costs(
            verify_ms=verify,
            catch_up_ms={} if step is None else {1: scale * drafting},
            step_ms=0.0 if passes.drafts_a_block(method) else scale * drafting,
            rest_ms=rest,
        )
        ends.append(costs)
    prefill = on.prefill_ms(target)
    if step is not None:
        prefill += on.prefill_ms(step) if method == DRAFT_MODEL else _HEAD_PREFILL * prefill
    chip, build = on.chip, on.build
    generation = "" if chip.generation is None else f" of the M{chip.generation} generation"
    kernels = metal_steps(f"b{build}" if build else SHIPPED) if on.engine == "llama.cpp" else None
    of_build = "" if kernels is None else f" b{build}" if build else " as llama-cpp-python compiles it"
    return CostRange(
        low=ends[0],
        high=ends[1],
        relative_error=0.0,  # the range holds it
        source=f"modelled for {on.program}{of_build} on {chip.peak_gb_s:g} GB/s{generation}, fitted to public rows"
        + (f" (its kernels are those {kernels.side}; --llama-build names another)" if kernels else ""),
        basis="bandwidth",
        is_mixture=target.expert_bytes > 0,
        prefill_ms=prefill,
        tested_gamma=passes.FEW_PROPOSED if on.engine == "llama.cpp" else None,
    )
