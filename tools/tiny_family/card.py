"""The model card, written from the figures in `family.json` alone."""

from __future__ import annotations

from itertools import groupby
from typing import Any

_HEAD = """# tiny Qwen3.5 family: model card

Three small models in the real Qwen3.5 architectures (Gated DeltaNet and gated attention 3:1, mixture of experts with a
shared expert), trained so that drafts really predict their targets. They exist to measure speculative decoding on any
machine in minutes. They write text that looks like Python and are good for nothing else.

This file is written by the recipe (`tools/tiny_family`) from `family.json`; edit neither by hand.
"""

_LICENCE = """## Licence and attribution

The training text is source code and documentation strings of the CPython standard library, Copyright (c) 2001
Python Software Foundation; All Rights Reserved, used under the PSF License Agreement (PSF-2.0, https://docs.python.org/3/license.html).
The weights, the tokenizer and the held-out excerpts in `reference.npz` are derived from it and are offered under the
same terms. The recipe is part of mlsd and has mlsd's licence.

tiny-draft was also trained on excerpts of the packages listed above, each under the permissive licence named there, and
on what the targets wrote after them; none of their text is in these files.
"""


def card(family: dict[str, Any]) -> str:
    """The card as Markdown."""
    parts = (_HEAD, _files(family), _corpus(family), _packages(family), _training(family), _quality(family))
    return "\n".join((*parts, _acceptance(family), _unseen(family), _routing(family), _samples(family), _LICENCE))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _files(family: dict[str, Any]) -> str:
    rows = [
        [
            m["file"],
            f"{m['parameters'] / 1e6:.2f} M" if "parameters" in m else "the same trunk and an MTP block",
            m["format"],
            f"{m['n_bytes']:,}",
            f"`{m['sha256']}`",
        ]
        for m in family["models"].values()
    ]
    total = sum(m["n_bytes"] for m in family["models"].values())
    return (
        "## Files\n\n"
        + _table(["file", "parameters", "matrices", "bytes", "SHA-256"], rows)
        + f"\nTogether {total / 1e6:.1f} MB. Norms, routers and the recurrence's own parameters are F32 everywhere. "
        "All figures below are of the weights as shipped, after rounding to the file's format.\n"
    )


def _corpus(family: dict[str, Any]) -> str:
    c = family["corpus"]
    return (
        "## Corpus\n\n"
        f"{c['source']} ({c['licence']}): {c['files']} files, {c['n_bytes']:,} bytes, SHA-256 `{c['sha256']}`. Tests, "
        "vendored packages, code tables and `pydoc_data` are left out. "
        f"Byte-level BPE of {c['vocab_size']:,} tokens with GPT-2's pre-tokenizer, learnt on the training part. "
        f"{c['train_tokens']:,} tokens to train on; {c['held_out_tokens']:,} tokens of {len(c['held_out_files'])} "
        "files held out by the hash of their names: " + ", ".join(f"`{name}`" for name in c["held_out_files"]) + ".\n"
    )


def _packages(family: dict[str, Any]) -> str:
    p = family["packages"]
    listed = [
        f"{licence}: " + ", ".join(f"`{pin}`" for pin, _ in pins)
        for licence, pins in groupby(sorted(p["taught"].items(), key=lambda pair: (pair[1], pair[0])), lambda t: t[1])
    ]
    return (
        "## Other code and text\n\n"
        f"The draft alone also learnt from {len(p['taught'])} packages of PyPI, of each its first modules by the hash "
        f"of their names and its description: {p['files']:,} files, {p['n_bytes']:,} bytes, SHA-256 `{p['sha256']}`. "
        + "; ".join(listed)
        + ".\n"
    )


def _training(family: dict[str, Any]) -> str:
    rows, curves = [], []
    for model in family["models"].values():
        for stage, curve in model["training"].items():
            last = curve[-1]
            rows.append(
                [stage, f"{last['step']:.0f}", f"{last['tokens'] / 1e6:.2f} M", f"{last['wall_s'] / 60:.0f} min"]
            )
            points = ", ".join(f"{p['tokens'] / 1e6:.1f} M {p['held_out_nats']:.3f}" for p in curve)
            curves.append(f"- {stage}: {points}")
    return (
        "## Training\n\n"
        "PyTorch, one CPU thread a model on a shared two-core machine (AMD EPYC, several jobs at once, so the wall "
        "times are upper bounds); batches of 8 windows of 512 tokens; Muon for the matrices inside the blocks, AdamW "
        "for the rest; warm-up, flat, linear decay. Seeds, rates and shapes stand in the recipe. The experts are "
        "balanced by the Switch loss (weight 0.01, per layer). The draft is first trained on the corpus, then "
        "distilled on both targets in turn, half of the time over the corpus and half over text the target wrote "
        "itself (greedy and at temperature 1, after training excerpts): 80 % cross entropy against the target's "
        "softmax, 20 % against the text. Last (tiny-draft-wide) it follows both targets on rows of 256 tokens that "
        "they wrote themselves, as the shipped files under llama.cpp (70 % greedy, 30 % at temperature 1), after "
        "excerpts of the packages (60 %), their descriptions (10 %) and the standard library (30 %): 70 % towards the "
        "target's odds, 30 % towards its likeliest token; every sixth batch is text of 512 tokens that they only "
        "read.\n\n"
        + _restored(family)
        + _table(["stage", "steps", "tokens seen", "wall time"], rows)
        + "\nHeld-out nats a token (first 40 windows, unrounded weights) over tokens seen:\n\n"
        + "\n".join(curves)
        + "\n"
        + _next_token_block(family)
    )


def _restored(family: dict[str, Any]) -> str:
    if not family["restored"]:
        return ""
    return (
        f"These files did not come out of one run: {', '.join(family['restored'])} were trained earlier and put back "
        "from the shipped files; the recipe went on from there.\n\n"
    )


def _next_token_block(family: dict[str, Any]) -> str:
    shares = family["models"]["tiny-dense-mtp"]["training"]["tiny-dense-mtp"][-1]["agreement"]
    told = ", ".join(f"{100 * share:.0f} % at depth {depth}" for depth, share in enumerate(shares, 1))
    return (
        "\ntiny-dense-mtp is tiny-dense with a next-token (MTP) block, trained with the trunk frozen on the trunk's "
        "own distribution (its nats above are against that distribution). On held-out text its best token is the "
        f"trunk's in {told}.\n"
    )


def _quality(family: dict[str, Any]) -> str:
    scored = {name: model for name, model in family["models"].items() if "nats_per_token" in model}
    rows = [[n, f"{m['nats_per_token']:.3f}", f"{m['bits_per_byte']:.3f}"] for n, m in scored.items()]
    g = family["five_gram"]
    rows.append(["interpolated Kneser-Ney 5-gram", f"{g['nats_per_token']:.3f}", f"{g['bits_per_byte']:.3f}"])
    return (
        "## Held-out loss\n\n"
        + _table(["model", "nats a token", "bits a byte"], rows)
        + f"\nOver {family['held_out_tokens']:,} tokens or {family['held_out_bytes']:,} bytes, in windows of 512; the "
        "5-gram saw the same training tokens and is given its full history.\n"
    )


def _acceptance(family: dict[str, Any]) -> str:
    pairs = [("tiny-draft", target, found) for target, found in family["acceptance"].items()]
    pairs.append(("its next-token block", "tiny-dense-mtp", family["next_token_acceptance"]))
    rows = [
        [
            drafter,
            target,
            f"{100 * a['acceptance']:.1f} %",
            _percent(a["accepted_at_position"]),
            _percent(a["accepted_given_previous"]),
            f"{a['mgl']:.2f}",
            f"{a['outputs_equal']} of {a['prompts']}",
        ]
        for drafter, target, a in pairs
    ]
    circles = ", ".join(f"{a['distinct_4_grams']:.2f} ({target})" for target, a in family["acceptance"].items())
    return (
        "## Greedy acceptance\n\n"
        + _table(
            [
                "drafter",
                "target",
                "accepted / proposed",
                "at position 1-4, %",
                "given the one before, %",
                "MGL",
                "outputs equal to plain decoding",
            ],
            rows,
        )
        + "\nGamma 4, 8 held-out prompts of 64 tokens, 96 tokens each, mlsd's own engine. Small models' greedy texts "
        f"run in circles, which makes drafting easy: share of distinct 4-grams {circles}; 1 would be a text without "
        "repeats.\n"
    )


def _unseen(family: dict[str, Any]) -> str:
    rows, all_shares = [], []
    for package, found in family["unseen_acceptance"].items():
        shares = [a["acceptance"] for a in found.values()]
        all_shares += shares
        prompts = {a["prompts"] for a in found.values()}
        rows.append([f"`{package}`", *(f"{100 * share:.1f} %" for share in shares), str(max(prompts))])
    targets = list(next(iter(family["unseen_acceptance"].values())))
    return (
        "## Greedy acceptance on code that no model of the family saw\n\n"
        + _table(["package", *(f"tiny-draft for {target}" for target in targets), "prompts"], rows)
        + f"\nAccepted over proposed at gamma 4, {100 * sum(all_shares) / len(all_shares):.1f} % on average, "
        f"{100 * min(all_shares):.1f} to {100 * max(all_shares):.1f} %. Prompts of 64 tokens spaced evenly over the "
        "package's modules, 96 tokens each, as above.\n"
    )


def _percent(shares: list[float]) -> str:
    return ", ".join(f"{100 * share:.0f}" for share in shares)


def _routing(family: dict[str, Any]) -> str:
    lines = ["## Routing on held-out text\n"]
    for name, model in family["models"].items():
        if (r := model.get("routing")) is None:
            continue
        lines.append(
            f"{name}: {r['n_used']} of {r['n_experts']} experts a token. The least used expert of a layer gets "
            f"{_span(r['least_used_share'])} of the choices, the most used {_span(r['most_used_share'])} (even: "
            f"{100 / r['n_experts']:.1f} %). Eight consecutive tokens use {r['distinct_of_8_tokens_mean']:.2f} "
            f"distinct experts a layer on average ({', '.join(f'{d:.1f}' for d in r['distinct_of_8_tokens'])}); "
            f"independent uniform routing would use E(1-(1-K/E)^8) = {r['distinct_if_uniform']:.2f}.\n"
        )
    return "\n".join(lines)


def _span(shares: list[float]) -> str:
    return f"{100 * min(shares):.2f} to {100 * max(shares):.2f} %"


def _samples(family: dict[str, Any]) -> str:
    lines = ["## Greedy continuations\n"]
    for target, a in family["acceptance"].items():
        lines.append(f"{target}:\n\n```python\n{a['sample'].rstrip()}\n```\n")
    return "\n".join(lines)
