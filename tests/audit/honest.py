"""Tables for the audit whose truth is known: simulated loops, honest in every figure, and their corruptions.

A loop is simulated round by round, so acceptance, token counts and times follow from one another; noise, digits and
what the table leaves out are drawn on top. A corruption changes printed cells only.
"""

import csv
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

COLUMNS = (
    "job_id", "chip", "target_model", "draft_model", "draft_len", "n_prompt", "n_predict", "repeat", "prompt_key",
    "tokens_per_sec", "eval_ms_per_token", "draft_acceptance_rate", "speedup_vs_baseline", "status",
    "mgl", "acceptance_of", "quantization", "program",
)  # fmt: skip
Row = dict[str, str]


@dataclass(frozen=True)
class World:
    """A machine, a pair of models and a way of printing."""

    t_one_ms: float = 20.0
    draft_ms: float = 3.0
    per_row: float = 0.05  # T(k) = t_one (1 + per_row (k - 1))
    rollback_ms: float = 0.5
    acceptance: tuple[float, ...] = (0.8, 0.4)  # one a prompt
    gammas: tuple[int, ...] = (2, 4)
    n_predict: int = 128
    repeats: int = 3
    noise: float = 0.01
    heavy_tails: bool = False  # noise by Student's t with 3 degrees of freedom, of the same spread
    digits: int = 3  # decimals of tok/s
    rate_digits: int = 5  # decimals of acceptance
    with_ms: bool = True  # prints milliseconds a token, too
    full_drafts: bool = True
    confident: bool = False  # drafts that may end do so in doubt, so that they are longer where more is accepted
    trims: bool = True  # proposes no more than the output can take
    sampled: bool = False  # each repeat draws its own tokens
    bursts: bool = False  # accepted and rejected tokens come in runs
    own_baselines: bool = True  # a baseline for each prompt, else of one prompt alone
    baseline_prompt: int = 0
    speedups: Literal["none", "own repeat", "mean baseline"] = "none"
    draft_baseline: float | None = None  # its time over that of a drafted token; None: the table has none
    turns: int = 1  # answers that a row is pooled over
    early_ends: bool = False  # answers that end before n_predict
    says_all: bool = False  # prints MGL, the quantization and a second program's plain runs
    seed: int = 0
    n_prompts: tuple[int, ...] = (16, 400, 64, 900)
    depth_cost: float = 0.1  # by how much 1,000 tokens of context lengthen a pass


def simulate(world: World) -> list[Row]:
    """Rows in the column layout of the study."""
    rng = random.Random(world.seed)
    rows: list[Row] = []
    for prompt, alpha in enumerate(world.acceptance):
        n_prompt = world.n_prompts[prompt % len(world.n_prompts)]
        depth = 1.0 + world.depth_cost * n_prompt / 1000
        plain_ms = (world.n_predict - 1) * world.t_one_ms * depth
        lengths = tuple(
            rng.randint(max(8, world.n_predict // 5), world.n_predict) if world.early_ends else world.n_predict
            for _ in range(world.turns)
        )
        if world.own_baselines or prompt == world.baseline_prompt:
            for program in ("one", "other") if world.says_all else ("one",):
                plain = _repeats(world, rng, prompt, "target", 0, lambda ms=plain_ms: Decoded(ms))
                rows += [row | {"program": program} if world.says_all else row for row in plain]
        if world.draft_baseline is not None and prompt == 0:
            draft_ms = (world.n_predict - 1) * world.draft_ms * world.draft_baseline
            rows += _repeats(world, rng, prompt, "draft", 0, lambda ms=draft_ms: Decoded(ms))
        for gamma in world.gammas:
            once = _decode(world, rng, alpha, gamma, depth, lengths)

            def decoded(alpha=alpha, gamma=gamma, depth=depth, once=once, lengths=lengths) -> Decoded:
                return _decode(world, rng, alpha, gamma, depth, lengths) if world.sampled else once

            rows += _repeats(world, rng, prompt, "target", gamma, decoded)
    return _with_speedups(world, rows)


class Decoded(NamedTuple):
    """What a row's answers took, scaled to n_predict - 1 tokens."""

    ms: float
    rate: float | None = None
    mgl: float | None = None
    of_output: float = 0.0  # accepted over output tokens
    drafting: float = 0.0  # share of the time


def _decode(
    world: World, rng: random.Random, alpha: float, gamma: int, depth: float, lengths: tuple[int, ...]
) -> Decoded:
    """Decode time and counts of a row's answers."""
    total, drafting, proposed, accepted, rounds, counted = 0.0, 0.0, 0, 0, 0, 0
    hot = 1.0
    for length in lengths:
        left = length - 1
        while left > 0:
            k = gamma if world.full_drafts else rng.randint(0, gamma)
            if world.confident:
                k = next((i for i in range(gamma) if rng.random() > 0.5 + 0.5 * alpha), gamma)
            if world.trims:
                k = min(k, left - 1)
            if world.bursts and rng.random() < 0.15:
                hot = rng.uniform(0.5, 1.2)
            hits = 0
            while hits < k and rng.random() < min(0.98, alpha * hot):
                hits += 1
            verify_ms = depth * world.t_one_ms * (1 + world.per_row * k)
            total += k * world.draft_ms + verify_ms + world.rollback_ms * (hits < k)
            drafting += k * world.draft_ms
            proposed, accepted, rounds, left = proposed + k, accepted + hits, rounds + 1, left - hits - 1
        counted += length - 1 - left  # a loop that does not trim counts what it made
    return Decoded(
        ms=total * (world.n_predict - 1) / counted,
        rate=accepted / max(1, proposed),
        mgl=counted / rounds,
        of_output=accepted / counted,
        drafting=drafting / total,
    )


def _noise(world: World, rng: random.Random) -> float:
    if not world.heavy_tails:
        return math.exp(rng.gauss(0.0, world.noise))
    t = rng.gauss(0.0, 1.0) / math.sqrt(sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3)
    return math.exp(world.noise * max(-25.0, min(25.0, t)) / math.sqrt(3))


def _repeats(
    world: World,
    rng: random.Random,
    prompt: int,
    model: str,
    gamma: int,
    decoded: Callable[[], Decoded],
) -> list[Row]:
    rows = []
    for repeat in range(world.repeats):
        run = decoded()
        rate = run.rate
        measured_ms = run.ms * _noise(world, rng)
        tok_s = 1e3 * (world.n_predict - 1) / measured_ms
        rows.append(
            dict.fromkeys(COLUMNS, "")
            | {
                "job_id": f"{'d' if model == 'draft' else ''}p{prompt}_g{gamma}_r{repeat}",
                "chip": "a chip",
                "target_model": model,
                "draft_model": "draft" if gamma else "none",
                "draft_len": str(gamma),
                "n_prompt": str(world.n_prompts[prompt % len(world.n_prompts)]),
                "n_predict": str(world.n_predict),
                "repeat": str(repeat),
                "prompt_key": f"prompt{prompt}",
                "tokens_per_sec": f"{tok_s:.{world.digits}f}",
                "eval_ms_per_token": f"{measured_ms / (world.n_predict - 1):.5f}" if world.with_ms else "",
                "draft_acceptance_rate": "" if rate is None else f"{rate:.{world.rate_digits}f}",
                "status": "ok",
                "mgl": f"{run.mgl:.2f}" if world.says_all and run.mgl is not None else "",
                "acceptance_of": "proposed" if world.says_all and gamma else "",
                "program": "one" if world.says_all else "",
                "quantization": "Q8_0" if world.says_all and model == "target" else "",
                "_of_output": str(run.of_output),
                "_drafting": str(run.drafting),
            }
        )
    return rows


def _with_speedups(world: World, rows: list[Row]) -> list[Row]:
    """Fill the column of speedups by the world's definition; None of it where the world has none."""
    if world.speedups == "none":
        return rows
    plain = [row for row in rows if row["draft_model"] == "none" and row["target_model"] == "target"]
    for row in rows:
        if row["draft_model"] == "none":
            continue
        same = [p for p in plain if p["prompt_key"] == row["prompt_key"]] or plain
        if world.speedups == "own repeat":
            same = [p for p in same if p["repeat"] == row["repeat"]]
        baseline = statistics.fmean(float(p["tokens_per_sec"]) for p in same)
        row["speedup_vs_baseline"] = f"{float(row['tokens_per_sec']) / baseline:.3f}"
    return rows


def write(path: Path, rows: list[Row]) -> Path:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


# --- kinds of honest tables -------------------------------------------------------------------------------------


def ordinary(seed: int, **changes: object) -> World:
    """A table as people publish them: one pair of models, three draft lengths, four prompts, three repeats."""
    rng = random.Random(f"world {seed}")
    t_one = math.exp(rng.uniform(math.log(2.0), math.log(60.0)))
    world = World(
        t_one_ms=t_one,
        draft_ms=t_one * rng.uniform(0.03, 0.25),
        per_row=rng.uniform(0.0, 0.15),
        rollback_ms=t_one * rng.uniform(0.0, 0.1),
        acceptance=tuple(rng.sample([rng.uniform(a, a + 0.15) for a in (0.25, 0.4, 0.55, 0.7)], 4)),
        gammas=tuple(sorted(rng.sample((2, 3, 4, 5, 6, 8, 12, 16), 3))),
        n_predict=rng.choice((96, 128, 200, 256, 300)),
        noise=rng.uniform(0.003, 0.02),
        digits=rng.choice((1, 2, 3, 4)),
        rate_digits=rng.choice((3, 4, 5)),
        with_ms=rng.random() < 0.5,
        trims=rng.random() < 0.5,
        seed=seed,
    )
    return replace(world, **changes)  # type: ignore[arg-type]


def _flat(seed: int) -> World:
    world = ordinary(seed, per_row=0.0, rollback_ms=0.0, speedups="own repeat")
    return replace(world, draft_ms=world.t_one_ms * random.Random(seed).choice((0.0, 0.002, 0.01)))


def _one_baseline(seed: int) -> World:
    rng = random.Random(f"depth {seed}")
    depths = tuple(rng.sample((60, 500, 2000, 8000, 32000), 4))
    cost = rng.uniform(0.003, 0.05)  # at 32,000 tokens a pass takes 1.1 to 2.6 times as long
    speedups = rng.choice(("none", "mean baseline"))
    return ordinary(
        seed,
        own_baselines=False,
        baseline_prompt=rng.randrange(4),
        n_prompts=depths,
        depth_cost=cost,
        speedups=speedups,
        per_row=rng.choice((0.0, 0.05)),
    )


def _few_digits(seed: int, decimals: int) -> World:
    """Speeds of 20 to 99 tok/s, so that the decimals say how many digits are printed."""
    rng = random.Random(f"digits {seed}")
    world = ordinary(seed, digits=decimals, with_ms=False, noise=rng.uniform(0.005, 0.02))
    scale = rng.uniform(20.0, 40.0) / world.t_one_ms
    return replace(world, t_one_ms=scale * world.t_one_ms, draft_ms=scale * world.draft_ms)


# name -> the world of a seed, and whether the auditor is told how drafts end (None: decided from the counts)
HONEST: dict[str, tuple[Callable[[int], World], bool | None]] = {
    "as published": (ordinary, True),
    "length of drafts not said": (ordinary, None),
    "paired per repeat": (lambda s: ordinary(s, speedups="own repeat"), True),
    "paired per repeat, noise 10 %": (lambda s: ordinary(s, speedups="own repeat", noise=0.10), True),
    "flat T(k)": (_flat, True),
    "heavy tails": (lambda s: replace(_flat(s), noise=0.04, heavy_tails=True), True),
    "slow draft baseline": (
        lambda s: ordinary(
            s, draft_baseline=random.Random(f"slow {s}").uniform(1.0, 2.0), per_row=0.0, rollback_ms=0.0
        ),
        True,
    ),
    "baseline of one prompt, 60 to 32k deep": (_one_baseline, True),
    "drafts of varying length": (lambda s: ordinary(s, full_drafts=False, rate_digits=3 + s % 3), None),
    "drafts that end in doubt": (lambda s: ordinary(s, full_drafts=False, confident=True), None),
    "sampled, acceptance in bursts": (lambda s: ordinary(s, sampled=True, bursts=True), True),
    "heavy tails, three digits": (lambda s: replace(_few_digits(s, 1), heavy_tails=True), True),
    "one repeat": (lambda s: ordinary(s, repeats=1, noise=0.03), True),
    "pooled over turns that end early": (lambda s: ordinary(s, turns=4, early_ends=True), True),
    "outputs of 32 tokens": (lambda s: ordinary(s, n_predict=32), True),
    "prompts 60 to 32k deep, each with its baseline": (
        lambda s: ordinary(
            s, n_prompts=(60, 2000, 8000, 32000), depth_cost=random.Random(f"deep {s}").uniform(0.003, 0.05)
        ),
        True,
    ),
}


# --- corruptions ------------------------------------------------------------------------------------------------


def _cells(rows: list[Row], change: Callable[[Row], dict[str, str]], which: Callable[[Row], bool]) -> list[Row]:
    return [row | change(row) if which(row) else row for row in rows]


def _speculative(row: Row) -> bool:
    return row["draft_model"] != "none"


def _rate(change: Callable[[float, int], float]) -> Callable[[list[Row], random.Random], list[Row]]:
    def corrupt(rows: list[Row], rng: random.Random) -> list[Row]:
        def cells(row: Row) -> dict[str, str]:
            rate = min(1.0, change(float(row["draft_acceptance_rate"]), int(row["draft_len"])))
            return {"draft_acceptance_rate": f"{rate:.{_decimals(row['draft_acceptance_rate'])}f}"}

        return _cells(rows, cells, _speculative)

    return corrupt


def _decimals(text: str) -> int:
    return len(text.partition(".")[2])


def _speed(row: Row, tok_s: float) -> dict[str, str]:
    ms = f"{1e3 / tok_s:.5f}" if row["eval_ms_per_token"] else ""
    return {"tokens_per_sec": f"{tok_s:.{_decimals(row['tokens_per_sec'])}f}", "eval_ms_per_token": ms}


def _constant_speed(rows: list[Row], rng: random.Random) -> list[Row]:
    """Throughput that is the same for every prompt, up to noise."""
    means = {
        gamma: statistics.fmean(float(r["tokens_per_sec"]) for r in rows if r["draft_len"] == gamma)
        for gamma in {row["draft_len"] for row in rows if _speculative(row)}
    }
    return _cells(rows, lambda r: _speed(r, means[r["draft_len"]] * math.exp(rng.gauss(0, 0.01))), _speculative)


def _rollback(low: float, high: float, *, each_repeat: bool) -> Callable[[list[Row], random.Random], list[Row]]:
    """The study's artefact: passes that fail at once. Nothing is accepted, and the table still shows a speedup."""

    def corrupt(rows: list[Row], rng: random.Random) -> list[Row]:
        plain = statistics.fmean(
            float(r["tokens_per_sec"]) for r in rows if not _speculative(r) and r["target_model"] == "target"
        )
        drawn: dict[str, float] = {}

        def cells(row: Row) -> dict[str, str]:
            key = row["job_id"] if each_repeat else row["draft_len"]
            speedup = drawn.setdefault(key, rng.uniform(low, high)) * math.exp(rng.gauss(0.0, 0.005))
            return _speed(row, plain * speedup) | {"speedup_vs_baseline": ""}

        return _cells(rows, cells, _speculative)

    return corrupt


def _copied(rows: list[Row], rng: random.Random) -> list[Row]:
    """All but the first repeat of half of the cases are copies of it."""
    cases = sorted({row["job_id"].rpartition("_")[0] for row in rows if _speculative(row)})
    chosen = set(rng.sample(cases, len(cases) // 2))
    first = {row["job_id"].rpartition("_")[0]: row for row in rows if row["repeat"] == "0"}
    kept = ("tokens_per_sec", "eval_ms_per_token", "draft_acceptance_rate")
    return _cells(
        rows,
        lambda r: {name: first[r["job_id"].rpartition("_")[0]][name] for name in kept},
        lambda r: r["job_id"].rpartition("_")[0] in chosen,
    )


def _one_rate(rows: list[Row], rng: random.Random) -> list[Row]:
    """The rate of the shortest drafts printed for all lengths."""
    first: dict[tuple[str, str], str] = {}
    for row in filter(_speculative, rows):
        first.setdefault((row["prompt_key"], row["repeat"]), row["draft_acceptance_rate"])
    return _cells(rows, lambda r: {"draft_acceptance_rate": first[r["prompt_key"], r["repeat"]]}, _speculative)


def _rejecting(seed: int) -> World:
    rng = random.Random(f"reject {seed}")
    rates = tuple(rng.uniform(0.002, 0.04) for _ in range(4))
    return ordinary(seed, acceptance=rates, gammas=(4, 8, 16), draft_baseline=rng.uniform(1.0, 2.0), trims=True)


def _low(seed: int) -> World:
    world = ordinary(seed, noise=random.Random(seed).uniform(0.003, 0.015))
    return replace(world, acceptance=tuple(0.6 * rate for rate in world.acceptance))


def stated(seed: int) -> World:
    """A table that states what a reader needs: MGL, quantization, a draft's and a second program's plain runs."""
    return ordinary(seed, says_all=True, speedups="mean baseline", draft_baseline=1.0)


def _faster(factor: Callable[[Row], float]) -> Callable[[list[Row], random.Random], list[Row]]:
    """Speculation's speed and its ratio by a factor."""

    def corrupt(rows: list[Row], rng: random.Random) -> list[Row]:
        def cells(row: Row) -> dict[str, str]:
            by = factor(row)
            ratio = f"{by * float(row['speedup_vs_baseline']):.3f}" if row["speedup_vs_baseline"] else ""
            return _speed(row, by * float(row["tokens_per_sec"])) | {"speedup_vs_baseline": ratio}

        return _cells(rows, cells, _speculative)

    return corrupt


def _slow_baseline(rows: list[Row], rng: random.Random) -> list[Row]:
    """The plain runs of one program 1.5 times as slow, the ratio to them as much larger."""
    slowed = _cells(
        rows,
        lambda r: _speed(r, float(r["tokens_per_sec"]) / 1.5),
        lambda r: not _speculative(r) and r["target_model"] == "target" and r["program"] != "other",
    )
    return _cells(
        slowed, lambda r: {"speedup_vs_baseline": f"{1.5 * float(r['speedup_vs_baseline']):.3f}"},
        lambda r: _speculative(r) and bool(r["speedup_vs_baseline"]),
    )  # fmt: skip


def _smaller_file(rows: list[Row], rng: random.Random) -> list[Row]:
    """Speculation on a file of half the bits, over the plain runs of the larger one."""
    faster = _faster(lambda row: 1.8)(rows, rng)
    return _cells(faster, lambda r: {"quantization": "Q4_K_M" if r["quantization"] else ""}, _speculative)


# What people get wrong, in a table that says little and in one that states what finds it.
MISTAKES: dict[str, Callable[[list[Row], random.Random], list[Row]]] = {
    "time halved": _faster(lambda row: 2.0),
    "drafting time left out": _faster(lambda row: 1.0 / (1.0 - float(row["_drafting"]))),
    "accepted over output as the rate": lambda rows, rng: _cells(
        rows, lambda r: {"draft_acceptance_rate": f"{float(r['_of_output']):.4f}"}, _speculative
    ),
    "block size as gamma": lambda rows, rng: _cells(
        rows, lambda r: {"draft_len": str(int(r["draft_len"]) + 1)}, _speculative
    ),
    "bonus counted": _rate(lambda a, g: (1 + g * a) / (1 + g)),
    "baseline slowed 1.5 times": _slow_baseline,
    "a smaller file over a larger one's plain run": _smaller_file,
}


# The corruptions whose rows cannot be true, where the table says how fast the draft is.
ROLLBACK = ("rollback pattern", "rollback pattern, drawn anew each repeat", "rollback pattern near 1")

Corruption = Callable[[list[Row], random.Random], list[Row]]
CORRUPTED: dict[str, tuple[Callable[[int], World], Corruption]] = {
    "acceptance x 0.5 in all cases": (
        lambda s: ordinary(s, noise=0.003 + 0.012 * (s % 5) / 4),
        _rate(lambda a, g: a / 2),
    ),
    "acceptance x 2 in all cases": (_low, _rate(lambda a, g: 2 * a)),
    "acceptance that counts the bonus": (
        lambda s: ordinary(s, noise=0.003 + 0.012 * (s % 5) / 4),
        _rate(lambda a, g: (1 + g * a) / (1 + g)),
    ),
    "one acceptance for all lengths of draft": (ordinary, _one_rate),
    "throughput constant over prompts": (ordinary, _constant_speed),
    "rollback pattern": (_rejecting, _rollback(1.0, 2.2, each_repeat=False)),
    "rollback pattern, drawn anew each repeat": (_rejecting, _rollback(1.0, 2.2, each_repeat=True)),
    "rollback pattern near 1": (_rejecting, _rollback(0.97, 1.05, each_repeat=False)),
    "rollback pattern near 1, no draft baseline": (
        lambda s: replace(_rejecting(s), draft_baseline=None),
        _rollback(0.97, 1.05, each_repeat=False),
    ),
    "copied repeats, 4 digits": (lambda s: _few_digits(s, 2), _copied),
    "copied repeats, 3 digits": (lambda s: _few_digits(s, 1), _copied),
}
