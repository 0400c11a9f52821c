"""A question as a person words it: the databases to read, and the machine at hand or a chip by its name."""

import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from mlsd.analysis.advise.acceptance import Stated
from mlsd.analysis.advise.answer import GAMMAS, AdviceQuestion, AdvisedMachine, TargetAdvice, answer
from mlsd.analysis.advise.prospects import RequestSize
from mlsd.analysis.predict.evidence import Evidence, read_evidence, same_model
from mlsd.engine.llama.build.prebuilt import A_MAC, installed_build
from mlsd.errors import InputError, choose
from mlsd.formats.record import opened_study
from mlsd.hardware.apple_passes import AppleChip, Runtime, apple_chip, constants, unnamed_chip
from mlsd.hardware.chips import MACS_GIB, bins, peak_bandwidth
from mlsd.hardware.metal_kernels import build_of
from mlsd.planning.prompts import load_prompt, prompt_names
from mlsd.planning.question import options_of
from mlsd.records import EngineOptions
from mlsd.store.newest import study_databases
from mlsd.store.rows import environment_key
from mlsd.units import quoted


def advise(
    target: str | Path,
    *,
    drafts: Sequence[str] = (),
    drafters: Sequence[str] = (),
    workload: str | None = None,
    gammas: Sequence[int] = GAMMAS,
    quant: str | None = None,
    chip: str | None = None,
    runtime: str = "llama.cpp",
    depth: int = 0,
    build: int = 0,
    prompt_tokens: int | None = None,
    n_predict: int | None = None,
    acceptance: float | None = None,
    accepted: tuple[int, int] | None = None,
    mgl: float | None = None,
    n_output: int | None = None,
    db: str | Path | Sequence[str | Path] = (),
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen record
) -> TargetAdvice:
    """Predict decode tok/s of a target for each draft, method and gamma, "off" included, and what decides it.

    `drafts` may name methods, too, which `drafters` must. Evidence is what `db` holds, databases or records, by default
    all databases under results/. `chip` is another machine: "M2 Ultra", "800 GB/s", with passes of `runtime` behind
    `depth` tokens of context, of llama.cpp's `build` (0: what set-up installs there); one's own Mac is modelled
    likewise where a runtime or a depth is given. What is known of one draft or method at one gamma may be stated:
    `acceptance` (accepted / proposed), `accepted` (both counts, with the `n_output` tokens of their answer), or `mgl`.
    `prompt_tokens` and `n_predict` describe a request, whose whole time is answered, too.
    """
    if runtime == "cpu" or (chip is not None and (engine.n_gpu_layers == 0 or re.search(r"(?i)\bcpu\b", chip))):
        raise InputError(
            "What a Mac does on its CPU is not modelled: no public row of it was found.",
            hint=f"Measure it there: mlsd bench {quoted(str(target))} --n-gpu-layers 0, with --draft or --drafter.",
        )
    if chip is not None and options_of(engine):
        raise InputError(
            f"{shlex.join(options_of(engine))} is of a measurement, and --chip predicts without one.",
            hint="Leave it out, or ask on that machine without --chip.",
        )
    programs = ("llama.cpp", "mlx", *(name for name in constants().programs if not name.startswith("llama.cpp")))
    if runtime not in programs:
        raise InputError(
            f"--runtime {runtime} is not known.",
            hint=choose(runtime, programs, "; mlx is any other program on MLX"),
        )
    kinds = {*prompt_names(), *(load_prompt(name).workload or "" for name in prompt_names())} - {""}
    if workload is not None and workload not in kinds and not Path(workload).suffix:
        raise InputError(f"There is no workload called {workload!r}.", hint=choose(workload, sorted(kinds)))
    request = None
    if prompt_tokens is not None and n_predict is not None:
        request = RequestSize(prompt_tokens=prompt_tokens, n_predict=n_predict)
    elif prompt_tokens is not None or n_predict is not None:
        raise InputError("A request is described by --prompt-tokens and --n-predict together.")
    databases = [db] if isinstance(db, str | Path) else db
    paths = [Path(path) for path in databases or study_databases()]
    again = options_of(engine) if chip is None else []
    if chip is None and len(databases) == 1:  # a command measures into one database
        again += ["--db", str(databases[0])]
    question = AdviceQuestion(
        target=str(target),
        drafts=(*drafts, *drafters) or None,
        drafters=tuple(drafters),
        workload=workload,
        gammas=tuple(gammas),
        quant=quant,
        stated=_stated(gammas, acceptance, accepted, mgl, n_output),
        request=request,
        engine=engine,
        options=shlex.join(again),
    )
    # Half of the answer stands before a token of it, on average.
    context = depth or (0 if request is None else request.prompt_tokens + request.n_predict // 2)
    if chip is not None:
        on = Runtime(chip=_chip(chip), program=runtime, build=build or installed_build(A_MAC))
        machine = AdvisedMachine(runtime=on, build_assumed=not build, depth=context, memories_gib=_memories(chip))
    elif runtime != "llama.cpp" or depth:
        here = _here(engine, build)
        if here.runtime is None:
            measures = (
                "mlsd server URL" if runtime != "llama.cpp" else f"mlsd bench {quoted(str(target))} --depth {depth}"
            )
            raise InputError(
                "--runtime and --depth model an Apple chip, and this machine has none that is known.",
                hint=f"Name one with --chip, or measure it here: {measures}.",
            )
        machine = replace(here, environment_key=None, runtime=replace(here.runtime, program=runtime), depth=depth)
    else:
        machine = _here(engine, build)
        if build and machine.runtime is None:
            raise InputError(
                "--llama-build models an Apple chip, and this machine has none that is known.",
                hint="Name one with --chip; --build of the commands that measure takes another llama.cpp.",
            )
    evidence = _evidence(paths)
    advice = answer(question, evidence, machine)
    refs = [model.facts.ref for model in (advice.target, *advice.drafts)]
    if not databases or any(same_model(stored.ref, ref) for stored in evidence.models.values() for ref in refs):
        return advice
    empty = f"{', '.join(map(str, paths))}: nothing was measured there of {' or '.join(ref.id for ref in refs)}."
    return replace(advice, notes=(empty, *advice.notes))


def _evidence(paths: Sequence[Path]) -> Evidence:
    if not paths:
        return Evidence()
    from mlsd.audits.trials import refuted

    with ExitStack() as stack:
        stores = (stack.enter_context(opened_study(path)) for path in paths)
        return read_evidence(stores, refuted)


def _stated(
    gammas: Sequence[int], rate: float | None, counts: tuple[int, int] | None, mgl: float | None, n_output: int | None
) -> Stated | None:
    n_given = sum(one is not None for one in (rate, counts, mgl))
    if n_output is not None and counts is None:
        raise InputError("--output-tokens is the length of the answer that --accepted counts.", hint="Give both.")
    if not n_given:
        return None
    if n_given > 1:
        raise InputError("--acceptance, --accepted and --mgl exclude each other.", hint="Give one of them.")
    if len(gammas) != 1:
        raise InputError(
            "An acceptance belongs to the draft length at which it was measured.", hint="Name that one: --gamma 4."
        )
    return Stated(gamma=gammas[0], rate=rate, counts=counts, mgl=mgl, n_output=n_output)


def _memories(chip: str) -> tuple[int, ...]:
    """The memory that is named with a chip, else those of Macs that were sold with it, in GiB; of a bandwidth none."""
    sold, stated = bins(chip), re.search(r"(\d+) ?gi?b(?!/)", chip.lower())
    if sold and stated:
        return (int(stated[1]),)
    sizes = {gib for c in sold for gib in c.sizes_gib or range(c.least_memory_gib, 1 + (c.max_memory_gib or 0))}
    return tuple(gib for gib in MACS_GIB if gib in sizes)


def _here(engine: EngineOptions, build: int = 0) -> AdvisedMachine:
    """Ask this machine. `build`: of llama.cpp; 0: the one that is loaded."""
    from mlsd.hardware import read_environment
    from mlsd.hardware.budget import memory_budget
    from mlsd.measure.process import run_info

    backend = run_info(engine)
    environment = read_environment(backend)
    budget, chip = memory_budget(environment, backend.memory_bytes), None
    if engine.n_gpu_layers != 0:  # what is known of chips is known of their GPUs
        chip = apple_chip(
            environment.chip or "", peak_gb_s=environment.peak_bandwidth_gb_s, gpu_cores=environment.gpu_cores
        )
    build = build or build_of(environment.llama_cpp_build) or 0
    return AdvisedMachine(
        environment_key=environment_key(environment),
        runtime=None if chip is None else Runtime(chip=chip, build=build),
        limit_bytes=None if budget is None else budget.limit_bytes,
    )


def _chip(chip: str) -> AppleChip:
    try:
        value = float(chip.lower().removesuffix("gb/s").strip())
    except ValueError:
        named = apple_chip(chip)
        if named is None:
            _, why = peak_bandwidth(chip)
            raise InputError(
                f"--chip {chip}: {why}.",
                hint='Give the peak bandwidth of its memory, as Apple states it: --chip "400 GB/s".',
            ) from None
        return named
    if not 0 < value < float("inf"):
        raise InputError(f"A bandwidth of {chip} is impossible.")
    return unnamed_chip(value)
