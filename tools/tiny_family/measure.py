"""What llama.cpp does with the finished files: greedy acceptance of the draft on both targets, and sample texts.

Runs on mlsd's own engine, so the figures in the card are made by the program they are for.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mlsd.clock import MonotonicClock
from mlsd.drafters.draft_model import DraftModel
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.llama import LlamaModel
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import SessionOptions

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
        "accepted_given_previous": [round(b / a, 4) for a, b in pairwise(reached)],
        "mgl": round(1 + sum(r.accepted for r in rounds) / len(rounds), 3),
    }


def acceptance(folder: Path, target: str, prompts: list[list[int]]) -> dict[str, Any]:
    """Greedy generation after every prompt with and without the draft; the two outputs are compared."""
    with ExitStack() as stack:
        big = stack.enter_context(LlamaModel(folder / f"{target}.gguf"))
        small = stack.enter_context(LlamaModel(folder / "tiny-draft.gguf"))
        options = SessionOptions(n_ctx=512, n_threads=1, max_outputs=GAMMA + 1, n_snapshots=GAMMA + 1)
        session = stack.enter_context(big.session(options))
        draft = stack.enter_context(small.session(SessionOptions(n_ctx=512, n_threads=1)))
        clock = MonotonicClock()
        drafter = DraftModel(draft, make_rollback("checkpoint", draft), clock)
        rollback = make_rollback("snapshots", session)
        limits = GenerationLimits(n_predict=N_PREDICT, gamma=GAMMA)
        plain = [generate(session, NoDrafter(), rollback, p, limits, clock) for p in prompts]
        fast = [generate(session, drafter, rollback, p, limits, clock) for p in prompts]
        sample = generate(session, NoDrafter(), rollback, session.tokenize(SAMPLE_PROMPT), limits, clock)
        return {
            **positions(fast, GAMMA),
            "outputs_equal": sum(a.tokens == b.tokens for a, b in zip(plain, fast, strict=True)),
            "prompts": len(prompts),
            "ar_tok_s": round(rate(plain), 1),
            "sd_tok_s": round(rate(fast), 1),
            "distinct_4_grams": round(float(np.mean([distinct(g.tokens) for g in plain])), 3),
            "sample": SAMPLE_PROMPT + session.detokenize(sample.tokens),
        }


def rate(generations: list[Generation]) -> float:
    """Tokens after the first of each generation a second."""
    return sum(len(g.tokens) - 1 for g in generations) / sum(g.decode_ns for g in generations) * 1e9


def distinct(tokens: tuple[int, ...]) -> float:
    """Share of different 4-grams: 1 for a text that never repeats itself; loops inflate acceptance."""
    grams = [tokens[i : i + 4] for i in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--family", type=Path, required=True, help="folder with the GGUF files and reference.npz")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    with np.load(options.family / "reference.npz") as stored:
        prompts = stored["tokens"][:, :N_PROMPT].astype(int).tolist()
    found = {target: acceptance(options.family, target, prompts) for target in TARGETS}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
