"""What to measure or fetch next so that advice is surer: commands that can be copied."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlsd.analysis.advise.known_model import KnownModel
from mlsd.analysis.predict.costs import CostRange
from mlsd.hardware.metal_kernels import VERIFICATION_KERNELS
from mlsd.models.manifest import ModelEntry, Repository, load_manifest
from mlsd.planning.known_shapes import shape_of
from mlsd.trials.arms import Arm
from mlsd.units import quoted

if TYPE_CHECKING:
    from mlsd.analysis.advise.answer import AdviceQuestion, AdvisedMachine
    from mlsd.analysis.advise.prospects import Prospect, Recommendation

# Shares of experts by neighbouring tokens that real mixtures of this family show (22 of 256 experts in 4 tokens).
_REAL_SHARING = 0.33
_WHOLE_BYTES = 3_000_000_000  # a synthetic model of this size is written whole, a larger one cut in depth
_HIGH = 0.9  # acceptance of a token that no draft model of this family was seen to reach
_DEPTHS = (4, 8)  # two periods of a hybrid: layers of both kinds in their real proportion


def timing_commands(models: Iterable[KnownModel | None], timed: Collection[int] = ()) -> list[str]:
    """How to time shapes: a synthetic model, whole or at the depths that were not `timed`, written and calibrated."""
    commands = []
    for model in models:
        shape = None if model is None else model.shape
        if model is None or shape is None or not shape.writable:
            continue
        whole = (model.facts.weight_bytes or _WHOLE_BYTES) < _WHOLE_BYTES
        name = shape.name.rpartition("-")[2] if whole else shape.name.split("-")[1]
        router = f" --router-shared {_REAL_SHARING}" if model.facts.n_experts else ""
        for depth in [0] if whole else [n for n in _DEPTHS if n not in timed]:
            cut, file = (f" --layers {depth}", f"{name}-{depth}.gguf") if depth else ("", f"{name}.gguf")
            commands.append(
                f"mlsd models make synth {shape.name} --quant {model.quant or 'Q8_0'}{cut}{router} -o {file} && "
                f"mlsd calibrate {file} --budget-s 60"
            )
    return commands


def next_steps(
    asked: AdviceQuestion,
    machine: AdvisedMachine,
    advice: Recommendation,
    target: KnownModel,
    drafts: Mapping[Arm, KnownModel | None],
    costs: Mapping[Arm, CostRange],
    texts: Sequence[str],
) -> Iterator[str]:
    """Steps in the order in which they tell most; none for what trials decided here. `texts`: prompts to measure on."""
    plain, best, is_open = costs[Arm()], advice.best, advice.verdict == "not decided yet"
    speculative = [p for p in advice.prospects if p.gamma]
    if not is_open and (best.effect if best.gamma else all(p.effect for p in speculative)):
        return
    to_measure = advice.to_measure or ((best,) if best.gamma else tuple(speculative[:1]))
    surer, on = "decides it" if is_open else "shows whether it is so", machine.runtime
    modelled, manifest, files = plain.basis == "bandwidth", load_manifest().models, _files_of(target)
    called, names = asked.target if Path(asked.target).is_file() else target.facts.ref.id, dict[str, str]()
    if machine.environment_key is None:
        called = target.called_elsewhere
        if {arm.method for arm in drafts} == {"mtp"}:
            called = next((entry.id for entry in files if "-mtp-" in entry.id), called)
        names = {model.facts.ref.id: model.called_elsewhere for model in drafts.values() if model is not None}
    files_of_texts = {text: f"{text[5:]}.txt" for text in texts if text.startswith("file:")}  # only the name is stored
    prompts = "".join(f" --prompt {quoted(files_of_texts.get(text, text))}" for text in texts)
    prompts += " (the path of that text)" if files_of_texts else ""
    again = prompts + (f" {asked.options}" if asked.options else "")
    drafters = "".join(f" {option}" for option in dict.fromkeys(p.option(names) for p in to_measure))
    bench = f"mlsd bench {quoted(called)}{drafters} --gamma {','.join(map(str, sorted({p.gamma for p in to_measure})))}"
    if modelled and on is not None and on.engine != "llama.cpp":
        program = "the program on MLX" if on.program == "mlx" else on.program
        yield (
            f"On that machine, start the server of {program} once with and once without its draft; this {surer}: "
            "mlsd server URL --against URL"
        )
    elif modelled and on is not None:
        if is_open and (machine.build_assumed or on.build < VERIFICATION_KERNELS):
            yield (
                "Name the llama.cpp that runs there, as `llama-server --version` prints it, by --llama-build: kernels "
                f"changed at b{VERIFICATION_KERNELS}, and which of them run decides many such questions."
            )
        needed = dict.fromkeys((called, *(p.draft or "" for p in to_measure)))
        ids = [name for name in needed if isinstance(manifest.get(name), Repository)]
        pull = f"mlsd models pull {shlex.join(ids)} && " if ids else ""
        paths = " (the paths of those files there)" if ".gguf" in bench else ""
        if to_measure:
            yield f"On that machine, this {surer}: {pull}{bench}{again}{paths}"
    elif not target.here:
        yield from _timing(target, plain, [d for arm, d in drafts.items() if arm not in costs], speculative)
        timed = next((p.draft for p in speculative if p.draft is not None), None)
        if files and machine.limit_bytes is not None and (files[0].n_bytes or 0) > machine.limit_bytes:
            yield (
                f"{called} does not fit into this machine's memory in the quantization above (--quant names another); "
                "the figures are for a machine like it with more."
            )
        elif files and timed is not None:
            of_draft = [name for name in manifest if name.startswith(f"{timed}-")]
            ids = [files[0].id, *([name for name in of_draft if name.endswith("-q8_0")] or of_draft)[:1]]
            pair = f"{quoted(ids[0])} --draft {quoted(ids[-1])}"
            yield f"mlsd models pull {shlex.join(ids)} && mlsd bench {pair}{again}: real acceptance."
        else:
            yield "Acceptance was not measured here: pull a target and a draft of `mlsd models list`, and bench them."
    elif not to_measure:
        named = " ".join(f"--draft {quoted(text)}" for text in asked.drafts or () if text not in asked.drafters)
        what = f"Nothing is known of {named[8:]}" if named else "No draft is known"
        yield f"{what}: mlsd bench {quoted(called)} {named or '--draft MODEL, or --drafter pld'}{again}"
    else:
        yield f"What decides it: {bench}{again} --until decided"


def _timing(
    target: KnownModel, plain: CostRange, untimed: Iterable[KnownModel | None], speculative: Sequence[Prospect]
) -> list[str]:
    """Shapes to time: a target of which one depth was timed, and drafts, if the smallest could break even."""
    if target.shape is None or plain.basis != "shape":
        return []
    cut = len(plain.depths) == 1 and plain.depths[0] < target.shape.n_layers
    needed = [p.break_even_acceptance for p in speculative]
    can_pay = not needed or any(rate is not None and rate < _HIGH for rate in needed)
    return (timing_commands([target], plain.depths) if cut else []) + (timing_commands(untimed) if can_pay else [])


def _files_of(target: KnownModel) -> list[ModelEntry]:
    """The manifest's files of the target's shape in its quantization, the one of its own id first."""
    if (shape := target.shape) is None:
        return []
    manifest, wanted = load_manifest(), (shape.name, target.quant)
    named = manifest.models.get(target.facts.ref.id)
    same = [e for e in manifest if shape_of(e.id) == wanted and e.architecture == shape.architecture]
    return same if named is None else [named, *same]
