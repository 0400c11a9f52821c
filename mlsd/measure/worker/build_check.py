"""Whether a build of llama.cpp can be measured at all, asked before anything runs; and what it says to a known text."""

from functools import partial

import msgspec
import numpy as np

from mlsd.clock import MonotonicClock
from mlsd.engine.context import ContextOptions, Logits, check_finite, context_options
from mlsd.engine.llama.build.layouts import layout_of
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info, library, loaded_libraries, sequence_state_version
from mlsd.engine.llama.open import open_context
from mlsd.engine.llama.state import BlobError, BlobShape, check_saved
from mlsd.engine.rollback_choice import PROBE_TEXT, first_exact
from mlsd.errors import NativeError
from mlsd.folders import asset_path
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers, state_layers
from mlsd.measure.messages import BuildFits, LogitsRead, report_progress
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from mlsd.planning.job import Job
from mlsd.records import EngineOptions

_TOP = 50  # tokens whose logits are read at each place: the rest of a vocabulary is never chosen
_GAMMA = 8  # of the rollback that is tried
_N_KNOWN = 8  # tokens of the known text
# Logits of the embedded tiny-dense after that text, for every 64th token. Its kernels round alike to 1e-7 of the spread
# with AVX-512, AVX2 and no vectors at all; half precision on a GPU is coarser, a shifted structure is nowhere near.
_KNOWN_STEP, _KNOWN_LIMIT = 64, 0.1
_LOGITS = (
    *(-3.659, -4.296, -11.764, -11.929, -10.409, -5.606, -0.873, -3.525, 0.275, -6.044, -0.187, 1.169),
    *(-1.494, -2.595, -6.332, -4.019, -1.158, -4.261, -3.875, -0.155, -1.353, -2.164, -4.693, -0.168),
)


def check_build(job: Job | None) -> BuildFits:
    """See that a known pass gives what it should, that memory saved is memory loaded, and that every arm opens.

    Names and structures were seen when the library was loaded. Raises: NativeError for a build that does not fit,
    ModelFileError for a model that it does not know, and what else keeps an arm from being opened.
    """
    given = EngineOptions() if job is None else job.engine
    # Other settings are another pass than the one that is stored.
    engine = EngineOptions(n_threads=given.n_threads or 1, n_gpu_layers=given.n_gpu_layers)
    distance, rollback = _known_model(engine)
    if job is not None:
        with Arms(job, MonotonicClock(), ProbeCache()) as arms:
            for case in job.cases.values():
                arms.check(case)
    native = library()
    return BuildFits(
        backend=backend_info(engine.n_gpu_layers),
        known_distance=distance,
        loaded=loaded_libraries(native),
        memory_version=sequence_state_version(),
        layout=layout_of(native),
        rollback=rollback,
    )


def _known_model(engine: EngineOptions) -> tuple[float, str]:
    """How far a pass of the embedded model is from the stored one, and which rollback is exact for it."""
    path = asset_path("tiny/tiny-dense.gguf")
    source = Source(path)
    with LlamaModel(path, n_gpu_layers=engine.n_gpu_layers) as model:
        open_model = partial(open_context, model)
        with open_model(_reading(engine, 256)) as context:
            stored, logits = np.asarray(_LOGITS), known_logits(context)
            distance = float(np.sqrt(np.mean((logits - stored) ** 2)) / np.std(stored))
            if not distance <= _KNOWN_LIMIT:  # not-a-number, too
                raise NativeError(
                    f"This build computes something else: logits of a known text are off by {distance:.2g} of their "
                    f"spread, rounding explains {_KNOWN_LIMIT}.",
                    hint="Its structures or kernels are broken; rebuild it.",
                )
            shape = BlobShape(
                n_attention=len(attention_layers(source)),
                n_state=len(state_layers(source)),
                n_blocks=source.n_blocks or 0,
                has_axes=context.has_position_axes,
            )
            try:
                check_saved(context, context.tokenizer.tokenize(PROBE_TEXT)[:_N_KNOWN], shape)
            except BlobError as error:
                raise NativeError(
                    f"This build does not keep memory as mlsd reads it: {error.message}",
                    hint="Rollback and self-drafting live by it; use another build.",
                ) from error
        options = _reading(engine, 1)
        rollback = first_exact(open_model, options, "target", _GAMMA, recurrent=model.is_recurrent)
    if rollback is None:
        raise NativeError("This build cannot go back: no rollback strategy is exact for the embedded model.")
    return distance, rollback


def known_logits(context: LlamaContext) -> Logits:
    """What this build says to the known text, for the tokens that are stored."""
    for token in context.tokenizer.tokenize(PROBE_TEXT)[:_N_KNOWN]:
        context.decode([token])
    row: Logits = context.logits()[0]
    return row[::_KNOWN_STEP]


def read_logits(job: Job, tokens: tuple[int, ...], ids: tuple[tuple[int, ...], ...] = (), width: int = 1) -> LogitsRead:
    """The logits before each token of a text that is fed in passes of one width after the prompt of a job's first slot.

    `ids` are the tokens whose logits are wanted at each place, by default the likeliest.
    """
    case = job.slots[0].case
    ids_read: list[tuple[int, ...]] = []
    logits: list[tuple[float, ...]] = []
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        prompt = arms.prompt(case)
        options = _reading(case.engine, len(prompt) + len(tokens), width)
        with open_context(arms.target, options) as context:
            context.decode(prompt)
            before = check_finite(context.logits()).copy()
            for start in range(0, len(tokens), width):
                report_progress("reading logits")
                part = tokens[start : start + width]
                context.decode(part, n_outputs=len(part))
                rows = np.concatenate([before, check_finite(context.logits())])
                before = rows[-1:].copy()
                for i, (row, token) in enumerate(zip(rows, part, strict=False), start):
                    wanted = ids[i] if ids else _likeliest(row, token)
                    ids_read.append(wanted)
                    logits.append(tuple(float(row[i]) for i in wanted))
    return LogitsRead(ids=tuple(ids_read), logits=tuple(logits))


def _reading(engine: EngineOptions, n_ctx: int, width: int = 1) -> ContextOptions:
    return msgspec.structs.replace(context_options(engine, n_ctx), device_sampling=False, max_outputs=width)


def _likeliest(row: Logits, token: int) -> tuple[int, ...]:
    others = [int(i) for i in np.argsort(-row)[:_TOP] if i != token]
    return (token, *others[: min(_TOP, len(row)) - 1])
