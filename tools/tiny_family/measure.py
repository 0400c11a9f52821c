"""What llama.cpp does with the finished files: greedy acceptance of the draft on both targets
and of the next-token block on its trunk, and sample texts.

Runs on mlsd's own engine, so the figures in the card are made by the program they are for.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from packages import UNSEEN, documents, fetch, is_prose
from tokens import encode
from tokens import load as load_tokenizer

from mlsd.clock import MonotonicClock
from mlsd.drafters.chain import Chain
from mlsd.drafters.heads.mtp import block_memory
from mlsd.drafters.model_drafter import ChainDrafter, OwnMemory
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.llama.heads import NextTokenHead
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import make_rollback

GAMMA, N_PROMPT, N_PREDICT = 4, 64, 96
TARGETS = ("tiny-dense", "tiny-moe")
SAMPLE_PROMPT = "def read_lines(path):"


def positions(generations: list[Generation], gamma: int) -> dict[str, Any]:
    """Acceptance from counts: overall, at each position, and at each position given the one before was accepted."""
    rounds = [r for g in generations for r in g.rounds if r.proposed == gamma]
    reached = [sum(r.accepted >= i for r in rounds) for i in range(gamma + 1)]
    return {
        "gamma": gamma,
        "rounds": len(rounds),
        "acceptance": round(sum(reached[1:]) / (gamma * len(rounds)), 4),
        "accepted_at_position": [round(n / len(rounds), 4) for n in reached[1:]],
        "accepted_given_previous": [round(b / a, 4) if a else 0.0 for a, b in pairwise(reached)],
        "mgl": round(1 + sum(r.accepted for r in rounds) / len(rounds), 3),
    }


def unseen_prompts(run: Path, count: int = 16) -> dict[str, list[list[int]]]:
    """Evenly spaced excerpts of the modules of each package that no model of the family was trained on."""
    tokenizer = load_tokenizer(run / "tokenizer.json")
    found = {}
    for pin, wheel in zip(UNSEEN, fetch(UNSEEN, run / "packages"), strict=True):
        tokens = encode(tokenizer, [d for d in documents(wheel) if not is_prose(d)], False)
        starts = np.linspace(0, len(tokens) - N_PROMPT, count).astype(int)
        found[pin] = [tokens[s : s + N_PROMPT].astype(int).tolist() for s in starts]
    return found


def acceptance(folder: Path, target: str, prompts: list[list[int]]) -> dict[str, Any]:
    """Greedy generation after every prompt with and without the draft; the two outputs are compared."""
    with ExitStack() as stack:
        big = stack.enter_context(LlamaModel(folder / f"{target}.gguf"))
        small = stack.enter_context(LlamaModel(folder / "tiny-draft.gguf"))
        options = ContextOptions(n_ctx=512, n_threads=1, max_outputs=GAMMA + 1, n_snapshots=GAMMA + 1)
        context = stack.enter_context(open_context(big, options))
        draft = stack.enter_context(open_context(small, ContextOptions(n_ctx=512, n_threads=1)))
        clock = MonotonicClock()
        drafter = ChainDrafter(OwnMemory(draft, make_rollback("checkpoint", draft), clock), Chain(clock))
        rollback = make_rollback("snapshots", context)
        limits = GenerationLimits(n_predict=N_PREDICT, gamma=GAMMA)
        plain = [generate(context, NoDrafter(), rollback, p, limits, clock) for p in prompts]
        fast = [generate(context, drafter, rollback, p, limits, clock) for p in prompts]
        sample = generate(context, NoDrafter(), rollback, context.tokenizer.tokenize(SAMPLE_PROMPT), limits, clock)
        return {
            **positions(fast, GAMMA),
            "outputs_equal": sum(a.tokens == b.tokens for a, b in zip(plain, fast, strict=True)),
            "prompts": len(prompts),
            "ar_tok_s": round(rate(plain), 1),
            "sd_tok_s": round(rate(fast), 1),
            "distinct_4_grams": round(float(np.mean([distinct(g.tokens) for g in plain])), 3),
            "sample": SAMPLE_PROMPT + context.tokenizer.detokenize(sample.tokens),
        }


def next_token_acceptance(folder: Path, prompts: list[list[int]]) -> dict[str, Any]:
    """The same prompts with the next-token block of tiny-dense-mtp as drafter, against plain tiny-dense."""
    with ExitStack() as stack:
        options = ContextOptions(n_ctx=512, n_threads=1, max_outputs=GAMMA + 1, n_snapshots=GAMMA + 1)
        bare = stack.enter_context(open_context(stack.enter_context(LlamaModel(folder / "tiny-dense.gguf")), options))
        model = stack.enter_context(LlamaModel(folder / "tiny-dense-mtp.gguf", load_mtp=True))
        context = stack.enter_context(open_context(model, msgspec.structs.replace(options, kind="layer-rows")))
        clock, limits = MonotonicClock(), GenerationLimits(n_predict=N_PREDICT, gamma=GAMMA)
        memory = block_memory(context, NextTokenHead(context), clock)
        drafter = stack.enter_context(closing(ChainDrafter(memory, Chain(clock))))
        plain = [generate(bare, NoDrafter(), make_rollback("snapshots", bare), p, limits, clock) for p in prompts]
        fast = [generate(context, drafter, make_rollback("snapshots", context), p, limits, clock) for p in prompts]
        return {
            **positions(fast, GAMMA),
            "outputs_equal": sum(a.tokens == b.tokens for a, b in zip(plain, fast, strict=True)),
            "prompts": len(prompts),
        }


def rate(generations: list[Generation]) -> float:
    """Tokens after the first of each generation a second."""
    return sum(len(g.tokens) - 1 for g in generations) / sum(g.decode_ns for g in generations) * 1e9


def distinct(tokens: tuple[int, ...]) -> float:
    """Share of different 4-grams: 1 for a text that never repeats itself; loops inflate acceptance."""
    grams = [tokens[i : i + 4] for i in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams)


def measure(family: Path, run: Path) -> None:
    """Write what the files in `family` accept; tokenizer and packages are those of the run folder."""
    with np.load(family / "reference.npz") as stored:
        prompts = stored["tokens"][:, :N_PROMPT].astype(int).tolist()
    found = {
        "acceptance": {target: acceptance(family, target, prompts) for target in TARGETS},
        "unseen_acceptance": {
            package: {target: acceptance(family, target, cut) for target in TARGETS}
            for package, cut in unseen_prompts(run).items()
        },
        "next_token_acceptance": next_token_acceptance(family, prompts),
    }
    (run / "acceptance.json").write_text(json.dumps(found, indent=1) + "\n")
