"""A question as a person words it: the databases to read, and the machine at hand or a chip by its name."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from mlsd.analysis.advise.request import Request
from mlsd.engine.llama.build.prebuilt import A_MAC, installed_build
from mlsd.errors import InputError
from mlsd.hardware.apple_passes import AppleChip, apple_chip, unnamed_chip
from mlsd.hardware.chips import peak_bandwidth
from mlsd.hardware.metal_kernels import build_of
from mlsd.planning.question import options_of
from mlsd.records import EngineOptions, ModelFacts
from mlsd.store.newest import study_databases
from mlsd.store.rows import environment_key
from mlsd.store.store import Store
from mlsd.units import quoted

if TYPE_CHECKING:
    from mlsd.analysis.advise.acceptance import Stated
    from mlsd.analysis.advise.answer import Place, TargetAdvice


def advise(
    target: str | Path,
    *,
    drafts: Sequence[str] | None = None,
    workload: str | None = None,
    gammas: Sequence[int] = (1, 2, 4, 8, 16),
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
    db: str | Path | Sequence[str | Path] = (),
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen record
) -> TargetAdvice:
    """Predict decode tok/s of a target for each draft, method and gamma, "off" included, and what decides it.

    Known is what `db` holds, one database or several, by default all under results/. `chip` is another machine: "M2
    Ultra", "800 GB/s", with passes of `runtime` behind `depth` tokens of context, of llama.cpp's `build` (0: what
    set-up installs there). What is known of one draft or method at one gamma may be stated: `acceptance` (accepted /
    proposed), `accepted` (both counts), or `mgl`. `prompt_tokens` and `n_predict` describe a request, whose whole time
    is answered, too.
    """
    if runtime == "cpu" or (chip is not None and engine.n_gpu_layers == 0):
        raise InputError(
            "What a Mac does on its CPU is not modelled: no public row of it was found.",
            hint=f"Measure it there: mlsd bench {quoted(str(target))} --n-gpu-layers 0, with --draft or --drafter.",
        )
    asked = None if chip is None else _chip(chip)
    request = _request(prompt_tokens, n_predict)
    if request is not None and chip is not None:  # half of the answer stands before a token of it, on average
        depth = depth or request.prompt_tokens + request.n_predict // 2
    named = [db] if isinstance(db, str | Path) else db
    paths = [Path(path) for path in named or study_databases()]
    _check_names((str(target), *(drafts or ())), quant, paths, elsewhere=chip is not None)
    from mlsd.analysis.advise.answer import AdviceQuestion, answer, check_question
    from mlsd.analysis.predict.known import Known

    question = AdviceQuestion(
        target=str(target),
        drafts=None if drafts is None else tuple(drafts),
        workload=workload,
        gammas=tuple(gammas),
        quant=quant,
        chip=asked,
        runtime=runtime,
        depth=depth,
        build=build or (0 if chip is None else installed_build(A_MAC)),
        stated=_stated(gammas, acceptance, accepted, mgl),
        request=request,
        options=shlex.join(_again(named, engine)) if chip is None else "",
    )
    check_question(question)
    known = Known(passes={}, models={})
    if paths:
        from mlsd.analysis.audit.trials import refuted
        from mlsd.analysis.predict.known import read_known

        with ExitStack() as stack:
            stores = (stack.enter_context(Store.open(path, create=False, read_only=True)) for path in paths)
            known = read_known(stores, refuted)
    return answer(question, known, _here(engine) if chip is None else None)


def _again(named: Sequence[str | Path], engine: EngineOptions) -> list[str]:
    """What a command that goes on from here must say again; a command measures into one database."""
    return [*options_of(engine), *(("--db", str(named[0])) if len(named) == 1 else ())]


def _check_names(names: Sequence[str], quant: str | None, paths: Sequence[Path], *, elsewhere: bool) -> None:
    """Before anything heavy is imported. Raises: what `named` raises; StoreError."""
    from mlsd.analysis.advise.acceptance import is_method
    from mlsd.analysis.advise.known_model import named

    stored: list[ModelFacts] = []
    for path in paths:
        with Store.open(path, create=False, read_only=True) as store:
            stored += store.models().values()
    for place, name in enumerate(names):
        if not place or not is_method(name.partition(":")[0]):
            named(name, None if place else quant, stored, elsewhere=elsewhere)


def _stated(
    gammas: Sequence[int], rate: float | None, counts: tuple[int, int] | None, mgl: float | None
) -> Stated | None:
    given = [one for one in (rate, counts, mgl) if one is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InputError("--acceptance, --accepted and --mgl exclude each other.", hint="Give one of them.")
    if len(gammas) != 1:
        raise InputError(
            "An acceptance belongs to the draft length at which it was measured.", hint="Name that one: --gamma 4."
        )
    from mlsd.analysis.advise.acceptance import Stated

    return Stated(gamma=gammas[0], rate=rate, counts=counts, mgl=mgl)


def _request(prompt_tokens: int | None, n_predict: int | None) -> Request | None:
    if prompt_tokens is None and n_predict is None:
        return None
    if prompt_tokens is None or n_predict is None:
        raise InputError("A request is described by --prompt-tokens and --n-predict together.")
    return Request(prompt_tokens=prompt_tokens, n_predict=n_predict)


def _here(engine: EngineOptions) -> Place:
    from mlsd.hardware import read_environment
    from mlsd.hardware.budget import memory_budget
    from mlsd.measure.process import run_info

    backend = run_info(engine)
    environment = read_environment(backend)
    budget = memory_budget(environment, backend.memory_bytes)
    from mlsd.analysis.advise.answer import Place

    return Place(
        environment_key=environment_key(environment),
        chip=None  # what is known of chips is known of their GPUs
        if engine.n_gpu_layers == 0
        else apple_chip(
            environment.chip or "", peak_gb_s=environment.peak_bandwidth_gb_s, gpu_cores=environment.gpu_cores
        ),
        safe_bytes=None if budget is None else budget.limit_bytes,
        build=build_of(environment.llama_cpp_build) or 0,
    )


def _chip(chip: str) -> AppleChip:
    try:
        value = float(chip.lower().removesuffix("gb/s").strip())
    except ValueError:
        known = apple_chip(chip)
        if known is None:
            why = peak_bandwidth(chip).source
            raise InputError(
                f"--chip {chip}: {why}.",
                hint='Give the peak bandwidth of its memory, as Apple states it: --chip "400 GB/s".',
            ) from None
        return known
    if not 0 < value < float("inf"):
        raise InputError(f"A bandwidth of {chip} is impossible.")
    return unnamed_chip(value)
