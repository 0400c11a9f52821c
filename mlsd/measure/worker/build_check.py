"""Whether a build of llama.cpp can be measured at all, asked before anything runs; and what it says to a known text."""

from __future__ import annotations

import msgspec
import numpy as np

from mlsd.clock import MonotonicClock
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.open import open_session
from mlsd.engine.probe import PROBE_TEXT
from mlsd.engine.session import Logits, SessionOptions, check_finite, session_options
from mlsd.errors import NativeError
from mlsd.folders import asset_path
from mlsd.measure.messages import BuildFits, BuildJob, LogitsRead, ReadJob
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.probe_cache import ProbeCache
from mlsd.records import EngineOptions

_TOP = 50  # tokens whose logits are read at each place: the rest of a vocabulary is never chosen
_N_KNOWN = 8  # tokens of the known text
# Logits of the embedded tiny-dense after that text, for every 64th token. Its kernels round alike to 1e-7 of the spread
# with AVX-512, AVX2 and no vectors at all; half precision on a GPU is coarser, a shifted structure is nowhere near.
_KNOWN_STEP, _KNOWN_LIMIT = 64, 0.1
_KNOWN = (
    *(-3.659, -4.296, -11.764, -11.929, -10.409, -5.606, -0.873, -3.525, 0.275, -6.044, -0.187, 1.169),
    *(-1.494, -2.595, -6.332, -4.019, -1.158, -4.261, -3.875, -0.155, -1.353, -2.164, -4.693, -0.168),
)


def check_build(job: BuildJob) -> BuildFits:
    """See that structures and functions fit, that a known pass gives what it should, and that every arm opens.

    Raises: NativeError for a build that does not fit, ModelFileError for a model that it does not know, and what else
    keeps an arm from being opened.
    """
    distance = _known_distance(job.job.slots[0].case.engine)
    if not distance <= _KNOWN_LIMIT:  # not-a-number, too
        raise NativeError(
            f"This build computes something else: logits of a known text are off by {distance:.2g} of their spread, "
            f"rounding explains {_KNOWN_LIMIT}.",
            hint="Its structures or kernels are broken; build it anew.",
        )
    with Arms(job.job, MonotonicClock(), ProbeCache()) as arms:
        for case in {slot.case_id: slot.case for slot in job.job.slots}.values():
            arms.check(case)
    return BuildFits(backend=backend_info(job.job.slots[0].case.engine.n_gpu_layers), known_distance=distance)


def known_logits(engine: EngineOptions) -> Logits:
    """What this build says to the known text, for the tokens that are stored."""
    path = asset_path("tiny/tiny-dense.gguf")
    with (
        LlamaModel(path, n_gpu_layers=engine.n_gpu_layers) as model,
        open_session(model, _reading(engine, 256)) as session,
    ):
        for token in session.tokenize(PROBE_TEXT)[:_N_KNOWN]:
            session.decode([token])
        row: Logits = session.logits()[0]
        return row[::_KNOWN_STEP]


def _known_distance(engine: EngineOptions) -> float:
    stored, found = np.asarray(_KNOWN), known_logits(engine)
    return float(np.sqrt(np.mean((found - stored) ** 2)) / np.std(stored))


def read_logits(job: ReadJob) -> LogitsRead:
    """The logits before each token of a text that is fed in passes of one width."""
    case = job.job.slots[0].case
    ids: list[tuple[int, ...]] = []
    logits: list[tuple[float, ...]] = []
    with Arms(job.job, MonotonicClock(), ProbeCache()) as arms:
        prompt = arms.prompt(case)
        options = _reading(case.engine, len(prompt) + len(job.tokens), job.width)
        with open_session(arms.target, options) as session:
            session.decode(prompt)
            before = check_finite(session.logits()).copy()
            for start in range(0, len(job.tokens), job.width):
                part = job.tokens[start : start + job.width]
                session.decode(part, n_outputs=len(part))
                rows = np.concatenate([before, check_finite(session.logits())])
                before = rows[-1:].copy()
                for place, (row, token) in enumerate(zip(rows, part, strict=False), start):
                    wanted = job.ids[place] if job.ids else _likeliest(row, token)
                    ids.append(wanted)
                    logits.append(tuple(float(row[i]) for i in wanted))
    return LogitsRead(ids=tuple(ids), logits=tuple(logits))


def _reading(engine: EngineOptions, n_ctx: int, width: int = 1) -> SessionOptions:
    return msgspec.structs.replace(session_options(engine, n_ctx), device_sampling=False, max_outputs=width)


def _likeliest(row: Logits, token: int) -> tuple[int, ...]:
    others = [int(i) for i in np.argsort(-row)[:_TOP] if i != token]
    return (token, *others[: min(_TOP, len(row)) - 1])
