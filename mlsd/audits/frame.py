"""The rows of an audit as one DataFrame, with what each implies beside what it states.

A printed number is three columns: ``tok_s``, and ``tok_s_low`` and ``tok_s_high``, the interval that rounds to it.
What is derived is taken at the end that favours the row; NaN where the table does not say enough. Rows of two
contexts (`group`) never judge each other. A rule gives a frame, too: the rows it speaks of, its verdict (`kind`), a
template and the values that fill it. Numbers among the values are the figures that decided; texts only fill.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mlsd.audits.model_name import same_model, stored_bits
from mlsd.audits.plain_speed import plain_speed
from mlsd.audits.printed import Printed
from mlsd.audits.rows import AuditContext, AuditRow, Credibility, RuleFinding
from mlsd.hardware.chips import CHIPS, bins
from mlsd.records import NO_DRAFTER
from mlsd.trials.acceptance_meanings import MEANINGS

# A table and its columns in expressions, of which the stubs of pandas know less than is written here.
Frame = Any
Series = Any
PRINTED = ("tok_s", "ms_per_token", "speedup", "acceptance", "mgl", "rounds", "draft_ms", "bytes_claimed")
NUMBERS = (
    "gamma", "n_prompt", "n_predict", "repeat", "n_accepted", "n_proposed", "n_output", "pass_bytes", "relative_sd",
    "loop", "failed_native_calls",
)  # fmt: skip
PAIR = ["group", "target", "chip", "drafter", "draft", "options", "gamma"]
CASE = [*PAIR, "prompt", "n_prompt", "n_predict", "program", "setting"]
HOST = ["group", "target", "chip"]

DEEPER = 1.15  # a plain pass of a somewhat deeper context takes at most so much longer
PROGRAMS = 1.15  # two programs of one engine on one machine differ by at most so much
# A draft's own plain run may be of a file twice the size (BF16 for Q8_0), or pay for sampling that drafting does not.
DRAFT_SHARE = 0.5
LONG_OUTPUT = 1024  # tokens of an output that deepen the context of its own passes
NEAR_TOKENS = 256  # a context that much deeper, or by a quarter, is somewhat deeper
LEAST_NOISE, UNSEEN_NOISE, MOST_NOISE = 0.01, 0.02, 0.12  # relative standard deviations between repeats
UNSEEN_WEIGHT = 2  # UNSEEN_NOISE counts like so many degrees of freedom beside what the baselines show
CACHE_BYTES = 100_000_000  # of weights that a cache may keep between passes: the system cache of an M2 Ultra is 96 MB
# The most tokens that a drafter proposes at once where nobody says how many, by what it is called.
MOST_PROPOSED = (
    (r"mtp|eagle|medusa|hydra|dflash|dspark|pard(?![a-z])|block", 32),
    (r"draft|kangaroo|layer", 64),
    ("", 255),  # look-ups on a GPU propose 64 and more
)
_LLAMA_CPP = r"llama[-_. ]?(?:bench|cli|cpp|server|speculative|swap)|lcpp|ggml|ollama|kobold"
_GGUF = re.compile(r"gguf|(?<![a-z0-9])(?:ud-)?i?q[1-8]_[0-9k]", re.IGNORECASE)
# One pass of the draft proposes a whole block; one of a tree a whole level.
_BLOCKS = r"dflash|dspark|block|medusa|hydra|parallel|pard(?![a-z])"
_TREES = r"tree|eagle-?2|sequoia|specinfer"


def frame(*contexts: AuditContext) -> Frame:
    """One row for each row of the contexts, those beside them included, with all that it implies."""
    rows = _stated(contexts)
    rows["speculative"] = rows["drafter"] != NO_DRAFTER
    rows["claims_ratio"] = rows["speedup"].notna() | rows["compared"]
    rows["comparable"] = (rows["failed_native_calls"] == 0) & rows["invalid_reason"].isna() & rows["cannot_be"].isna()
    is_llama = rows["program"].fillna("").str.lower().str.contains(_LLAMA_CPP)
    engine = rows["program"].str.lower().str.replace(r"[ _-]*v?\d+\.\d[\w.]*$", "", regex=True)  # of any version
    rows["engine"] = engine.mask(is_llama, "llama.cpp")
    rows["long_output"] = rows["n_predict"].where(rows["n_predict"] > LONG_OUTPUT)
    for name, keys in (("pair", PAIR), ("case", CASE), ("host", HOST)):
        rows[name] = rows.groupby(keys, dropna=False, sort=False).ngroup()
    rows["noise"] = rows["group"].map(_noise(rows))
    rows = rows.copy()  # one block of each kind: faster
    _tokens_a_round(rows)
    _baselines(rows)
    _least_work(rows)
    _repeats(rows)
    return rows.copy()


def _stated(contexts: Sequence[AuditContext]) -> Frame:
    """What rows and contexts state, a printed number as three columns."""
    among = [
        (group, context, row) for group, context in enumerate(contexts) for row in (*context.rows, *context.beside)
    ]
    columns: dict[str, Any] = {name: [getattr(row, name) for *_, row in among] for name in AuditRow.__struct_fields__}
    for name in PRINTED:
        values: list[Printed | None] = columns[name]
        for end, of in (("", "value"), ("_low", "low"), ("_high", "high")):
            columns[name + end] = np.array([math.nan if v is None else getattr(v, of) for v in values], dtype=float)
    for name in NUMBERS:
        columns[name] = np.array(columns[name], dtype=float)
    columns |= {
        "group": [group for group, *_ in among],
        "judged": [flag for one in contexts for flag in [True] * len(one.rows) + [False] * len(one.beside)],
        "exact_counts": [context.exact_counts for _, context, _ in among],
        "peak_gb_s": [of.peak_gb_s or peak_gb_s(row.chip, row.pass_bytes) or math.nan for _, of, row in among],
        "target_bytes": [context.pass_bytes.get(row.target, math.nan) for _, context, row in among],
        "draft_bytes": [context.pass_bytes.get(row.draft or "", 0.0) for _, context, row in among],
        "draft_token_ms": [context.draft_token_ms.get(row.draft or "", 0.0) for _, context, row in among],
    }
    return pd.DataFrame(columns)


@functools.cache
def peak_gb_s(chip: str | None, pass_bytes: float | None) -> float | None:
    """Peak GB/s of the widest bin that can hold what is read; else of its family: people write M1 for an M1 Max."""
    held = [one for one in bins(chip or "") if (one.max_memory_gib or 0) * 2**30 > (pass_bytes or 0.0)]
    if not held and (named := re.search(r"(?<![a-z0-9])[am]\d+(?![a-z0-9])", (chip or "").lower())):
        held = [one for one in CHIPS if one.family == named[0]]
    return max((one.peak_bandwidth_gb_s for one in held if one.peak_bandwidth_gb_s), default=None)


# --- tokens a round -----------------------------------------------------------------------------------------------


def mgl_most(rate: Series, meaning: str, gamma: Series) -> Series:
    """The most tokens a round at a rate, by what it divides by (`trials.acceptance_meanings.mgl_of`, vectorised)."""
    rate = rate.clip(0.0, 1.0)
    if meaning == "proposed":
        return 1.0 + gamma * rate
    if meaning == "output":
        most = 1.0 / (1.0 - rate).where(rate < 1.0)
        return most.fillna(gamma + 1.0).clip(upper=(gamma + 1.0).fillna(np.inf)).where(rate.notna())
    geometric = (1.0 - rate ** (gamma + 1.0)) / (1.0 - rate).where(rate < 1.0)
    return geometric.where(rate < 1.0, gamma + 1.0).where(rate.notna())


def _tokens_a_round(rows: Frame) -> None:
    """MGL as stated or by rounds; the most that the row allows; and what equal work commits."""
    rounds = rows["rounds_low"] > 0
    for end, of in (("", "rounds"), ("_low", "rounds_high"), ("_high", "rounds_low")):
        counted = (rows["n_output"] / rows[of]).where(rounds & (rows["n_output"] > 0))
        rows[f"stated_mgl{end}"] = rows[f"mgl{end}"].fillna(counted.where(rows["mgl"].isna()))
    gamma, rate = rows["gamma"], rows["acceptance"]
    named = rows["drafter"].str.lower() + " " + rows["draft"].fillna("").str.lower()
    kinds = [named.str.contains(known) for known, _ in MOST_PROPOSED]
    unsaid = pd.Series(np.select(kinds, [n for _, n in MOST_PROPOSED]), rows.index, dtype=float)
    rows["tail"] = (gamma / (rows["n_predict"] - 1)).where((gamma > 0) & (rows["n_predict"] > 1), 0.0)
    by_proposals = (rows["n_proposed"] / rows["rounds_high"]).where(rows["rounds"].notna())
    full = (gamma * (1.0 - rows["tail"]).clip(lower=0)).where(rows["fixed_length"])
    accepted = (rows["mgl_low"] - 1.0).clip(lower=0).fillna(0.0)
    rows["proposed_least"] = by_proposals.fillna(full).fillna(accepted)
    most, weak = pd.DataFrame(index=rows.index), pd.DataFrame(index=rows.index)
    for meaning in MEANINGS:
        may_be = rows["acceptance_of"].isna() | (rows["acceptance_of"] == meaning)
        most[meaning] = mgl_most(rows["acceptance_high"], meaning, gamma).where(may_be)
        weak[meaning] = mgl_most(rows["acceptance_high"], meaning, gamma.fillna(unsaid)).where(may_be)
        least = pd.Series(1.0, rows.index)
        if meaning == "output":
            least = mgl_most(rows["acceptance_low"], meaning, gamma)
        elif meaning == "proposed":
            least = (1.0 + rows["proposed_least"] * rows["acceptance_low"]).where(rows["fixed_length"], 1.0)
        rows[f"most_{meaning}"], rows[f"least_{meaning}"] = most[meaning], least.where(most[meaning].notna())
    undecided = (most.isna() & weak.notna()).any(axis=1)  # a meaning that fits says nothing without a gamma
    by_rate = most.max(axis=1).where(~undecided)
    rows["mgl_most"] = rows["stated_mgl_high"].fillna(by_rate.where(rate.notna(), gamma + 1.0))
    rows["mgl_most"] = rows["mgl_most"].where(rows["speculative"], 1.0)
    # Where nothing is said, no drafter of its kind proposes more.
    rows["mgl_limit"] = rows["mgl_most"].fillna(weak.max(axis=1)).fillna(unsaid + 1.0)
    fixed = rows["mgl"].isna() & rows["fixed_length"] & (rows["acceptance_of"].fillna("proposed") == "proposed")
    for end in ("", "_low", "_high"):
        by_gamma = (1.0 + gamma * rows[f"acceptance{end}"]).where(fixed)
        rows[f"committed{end}"] = rows[f"mgl{end}"].fillna(by_gamma)
    rows["pace"] = (rows["tok_s"] / rows["committed"].fillna(1.0)).where(rows["tok_s"] > 0)


# --- plain runs ---------------------------------------------------------------------------------------------------


def _same(first: Series, second: Series) -> Series:
    return (first == second) | (first.isna() & second.isna())


def _baselines(rows: Frame) -> None:
    """The plain runs to judge a row by: those of its own setting, program, length, depth and prompt, as far as there
    are such.

    A shallower context has faster passes and so favours the row; of a somewhat deeper one `DEEPER` is given, of another
    program of its engine `PROGRAMS`. Another engine's plain run judges nobody but a row that states a ratio.
    """
    is_plain = rows["comparable"] & ~rows["speculative"] & rows["tok_s"].notna()
    of = ["host", "prompt", "n_prompt", "long_output", "program", "engine", "setting"]
    rows["asks"] = rows.groupby([*of, "claims_ratio"], dropna=False, sort=False).ngroup()
    asks = rows.drop_duplicates("asks")[["asks", "claims_ratio", *of]]
    speeds = ["tok_s", "tok_s_low", "tok_s_high"]
    pairs = asks.merge(rows.loc[is_plain, [*of, *speeds]], on="host", suffixes=("", "_plain"))
    program = np.select(
        [_same(pairs["program"], pairs["program_plain"]), _same(pairs["engine"], pairs["engine_plain"])], [0, 1], 2
    )
    either = pairs["claims_ratio"] | pairs["program"].isna() | pairs["program_plain"].isna()
    depth, plain_depth = pairs["n_prompt"].fillna(np.inf), pairs["n_prompt_plain"]
    reach = np.maximum(NEAR_TOKENS, depth / 4)
    deep = np.select(
        [_same(pairs["n_prompt"], plain_depth), ~(plain_depth > depth), plain_depth <= depth + reach], [0, 1, 2], 3
    )
    prompt = ~_same(pairs["prompt"], pairs["prompt_plain"]) & (deep == 0)
    pairs["rank"] = (
        10_000 * (pairs["setting"] != pairs["setting_plain"]) + 1000 * program
        + 100 * ~_same(pairs["long_output"], pairs["long_output_plain"]) + 10 * deep + prompt
    )  # fmt: skip
    pairs = pairs.assign(program_rank=program, deep=deep)[(deep < 3) & ((program < 2) | either)]
    pairs = pairs[pairs["rank"] == pairs.groupby("asks")["rank"].transform("min")]
    pairs["nowhere"] = pairs["n_prompt_plain"].isna() & pairs["prompt_plain"].isna()
    chosen = pairs.groupby("asks").agg(
        base_mean=("tok_s", "mean"), base_mean_low=("tok_s_low", "mean"), base_mean_high=("tok_s_high", "mean"),
        base_fastest=("tok_s", "max"), base_fastest_high=("tok_s_high", "max"), base_program=("program_rank", "min"),
        base_deep=("deep", "min"), nowhere=("nowhere", "all"), base_n=("tok_s", "size"),
    )  # fmt: skip
    margin = np.where(chosen["base_program"] == 1, PROGRAMS, 1.0) * np.where(chosen["base_deep"] == 2, DEEPER, 1.0)
    chosen["base_most"] = chosen["base_fastest_high"] * margin
    chosen["base_margin"] = margin
    chosen["base_own"] = (chosen["base_deep"] == 0) | chosen["nowhere"]
    for name in chosen.columns.drop(["nowhere", "base_deep"]):
        rows[name] = rows["asks"].map(chosen[name])
    rows["base_own"] = rows["base_own"].eq(True)
    plain = rows[is_plain]
    rows["host_known"] = rows["host"].isin(plain["host"])
    rows["host_fastest"] = rows["host"].map(plain.groupby("host")["tok_s_high"].max())
    # The tok/s that a speedup may honestly be a ratio to: any plain run of the row's prompt and depth, or their mean.
    here = [rows["host"], rows["prompt"].fillna(""), rows["n_prompt"].fillna(-1)]
    for end, how in (("low", "min"), ("high", "max")):
        least = rows["host"].map(plain.groupby("host")[f"tok_s_{end}"].agg(how))
        mean = rows["host"].map(plain.groupby("host")[f"tok_s_{end}"].mean())
        near = rows[f"tok_s_{end}"].where(is_plain).groupby(here).transform(how)
        either_mean = np.fmin(near, mean) if how == "min" else np.fmax(near, mean)
        rows[f"agreed_{end}"] = either_mean.where(near.notna(), least)
    bounded = rows["base_most"].notna() | ~rows["host_known"]
    by_speed = (rows["tok_s_low"] / rows["base_most"]).where(rows["base_most"] > 0)
    rows["speedup_least"] = np.fmin(rows["speedup_low"], by_speed).where(bounded)


def _noise(rows: Frame) -> Series:
    """Relative standard deviation between repeats, of baselines alone: a suspect row must not excuse itself."""
    of = scatter(rows)
    variance = (of["squares"] + UNSEEN_WEIGHT * UNSEEN_NOISE**2) / (of["freedom"] + UNSEEN_WEIGHT)
    return np.sqrt(variance).clip(LEAST_NOISE, MOST_NOISE)


def scatter(rows: Frame) -> Frame:
    """Of each group the sum of squares and degrees of freedom of log tok/s between repeats of baselines, else as they
    print it.
    """
    groups = pd.Index(rows["group"].unique(), name="group")
    plain = rows.loc[rows["comparable"] & ~rows["speculative"], ["group", "case", "repeat", "tok_s", "relative_sd"]]
    timed = plain[plain["repeat"].notna() & (plain["tok_s"] > 0)]
    logs = np.log(timed["tok_s"]).groupby([timed["group"], timed["case"]]).agg(["var", "size"])
    logs = logs[logs["size"] > 1]
    freedom = logs["size"] - 1
    of = pd.DataFrame(
        {"squares": (logs["var"] * freedom).groupby("group").sum(), "freedom": freedom.groupby("group").sum()}
    )
    printed = 2.0 * plain["relative_sd"].dropna() ** 2
    stated = printed.groupby(plain["group"]).agg(["sum", "size"]).set_axis(["squares", "freedom"], axis=1)
    stated["freedom"] *= 2
    return of.reindex(groups).fillna(stated).fillna(0.0)


# --- the least that a round does ----------------------------------------------------------------------------------


def by_names(rows: Frame, names: list[str], of: Callable[..., float | None]) -> Series:
    """A figure of each combination of names, computed once."""
    keys = list(rows[names].astype(object).where(rows[names].notna(), None).itertuples(index=False, name=None))
    figures = {key: of(*key) for key in dict.fromkeys(keys)}
    return pd.Series([figures[key] for key in keys], rows.index, dtype=float)


def least_pass_ms(model: str | None, chip: str | None, engine: str | None, beside: str) -> float | None:
    """The shortest pass that public rows lead to expect on the chip, in the engines that the row may be of.

    Files of GGUF are decoded by llama.cpp.
    """
    is_llama = engine == "llama.cpp" or bool(_GGUF.search(beside))
    speeds = plain_speed(model, chip, ("llama.cpp",) if is_llama else ("llama.cpp", "mlx")) if model and chip else None
    return None if speeds is None else 1e3 / speeds[1]


def _least_work(rows: Frame) -> None:
    """The shortest target pass and drafting of a round, the bytes it moves, and the longest that it can have taken."""
    named = rows.assign(beside=rows["target"] + " " + rows["draft"].fillna(""))
    expected = by_names(named, ["target", "chip", "engine", "beside"], least_pass_ms)
    by_run = 1e3 / rows["base_most"].where(rows["base_most"] > 0)
    rows["target_pass_ms"] = by_run.fillna(expected.where(~rows["host_known"]))
    rows["pass_expected"] = by_run.isna() & rows["target_pass_ms"].notna()
    drafts = rows["drafter"].str.lower() + " " + rows["draft"].fillna("").str.lower()
    levels = (rows["stated_mgl_low"] - 1.0).clip(lower=0).fillna(0.0)
    proposed = rows["proposed_least"]
    passes = proposed.mask(drafts.str.contains(_TREES), np.minimum(proposed, levels))
    passes = passes.mask(drafts.str.contains(_BLOCKS), proposed.clip(upper=1.0))
    of_draft = by_names(named, ["draft", "chip", "engine", "beside"], least_pass_ms).fillna(0.0)
    fastest = rows.groupby(HOST, dropna=False)["host_fastest"].first().dropna()
    timed = by_names(rows, ["draft", "chip", "group"], lambda *row: _timed_draft_ms(fastest, *row))
    token_ms = np.maximum(rows["draft_token_ms"], np.maximum(of_draft, timed))
    rows["draft_least_ms"] = rows["draft_ms_low"].fillna(passes * token_ms)
    read = (rows[["target_bytes", "draft_bytes", "pass_bytes"]] - CACHE_BYTES).clip(lower=0)
    by_file = read["target_bytes"] + read["draft_bytes"] * passes
    rows["round_bytes"] = rows["bytes_claimed_low"].fillna(by_file).fillna(read["pass_bytes"])
    # A program may count the first token, which prefill made, so n_predict tokens may be n_predict - 1 of decoding.
    length = rows["n_predict"].fillna(rows["n_output"])
    first = (length / (length - 1)).where(length > 1, 1.0)
    by_ratio = rows["base_mean_low"] * rows["speedup_low"]
    slowest = rows["tok_s_low"].where(rows["tok_s_low"] > 0).fillna(by_ratio.where(by_ratio > 0))
    longest = rows["mgl_most"] * 1e3 / slowest * first
    rows["round_longest_ms"] = longest.where(longest > 0)


def _timed_draft_ms(fastest: Series, draft: str | None, chip: str | None, group: int) -> float:
    """The least time of one pass of a draft by the table's plain runs of its model; 0 where there are none.

    A pass takes a fixed time plus the time to read its bytes, so that of a smaller file is shorter by less than it is.
    """
    bits, times = stored_bits(draft or ""), [0.0]
    for (run_group, target, run_chip), speed in fastest.items() if draft else ():
        stored = stored_bits(target)
        if run_group == group and target == draft:
            times.append(DRAFT_SHARE * 1e3 / speed)
        elif run_group == group and run_chip == chip and bits and stored and same_model(target, str(draft)):
            times.append(min(1.0, bits[0] / stored[1]) * 1e3 / speed / PROGRAMS)
    return max(times)


def _repeats(rows: Frame) -> None:
    """Of a case measured more than once: the lower quartile of its paces and their mean, over the row's own."""
    repeats = rows[rows["comparable"] & rows["repeat"].notna()]
    size = repeats.groupby("case")["case"].transform("size")
    repeats = repeats[size > 1]
    alike = repeats["committed"].notna() | (repeats.groupby("case")["acceptance"].transform("nunique") <= 1)
    paces = repeats["pace"].where(alike).groupby(repeats["case"])
    n = rows["case"].map(paces.count()).where(rows["comparable"])
    lower = rows["case"].map(paces.quantile(0.25, interpolation="lower")).where(n > 1)
    rows["typical"] = (lower / rows["pace"]).clip(upper=1.0).fillna(1.0)
    rows["mean_faster"] = (rows["case"].map(paces.mean()) / rows["pace"]).where((n > 1) & rows["base_mean"].notna())
    rows["mean_plain"] = rows["base_mean"] * rows["base_margin"]
    rows["mean_error"] = np.sqrt(1.0 / n + 1.0 / rows["base_n"])
    rows["n_repeats"] = (
        rows["case"].map(repeats.groupby("case").size()).where(rows["comparable"] & rows["repeat"].notna())
    )


# --- what a rule finds, as columns, and how its figures become a sentence ------------------------------------------

_ENDS: dict[str, str] = {"impossible": ": this cannot be true.", "suspicious": "."}


class Figure(float):
    """A number in a template: ``{round_ms:ms}`` has one digit behind the point from 10 up, else three in all."""

    def __format__(self, spec: str) -> str:
        if spec == "ms":
            return f"{float(self):.1f}" if self >= 10 else f"{float(self):.3g}"
        return format(float(self), spec)


def verdicts(where: Series, kind: Any, sentence: Any, why: Any = "", **values: Any) -> Frame:
    """What a rule finds of the rows `where`.

    `kind` is possible, suspicious, impossible, ask (a question, nothing is doubted) or told (it bounds nothing); `why`
    goes on from the sentence of a suspicious row.
    """
    return pd.DataFrame({"kind": kind, "sentence": sentence, "why": why, **values}, index=where.index)[where]


def first_verdicts(*of_rules: Frame) -> Frame:
    """Of each row the first that was found."""
    every: Frame = pd.concat(of_rules)
    return every[~every.index.duplicated()].sort_index()


def findings(rule: str, of_rows: Frame) -> Iterator[tuple[int, RuleFinding]]:
    """The finding of each row, by its place in the frame."""
    numbers = [name for name in of_rows.columns[3:] if pd.api.types.is_numeric_dtype(of_rows[name])]
    for at, row in zip(of_rows.index, of_rows.to_dict("records"), strict=True):
        figures = {name: float(row[name]) for name in numbers if row[name] == row[name]}
        text = str(row["sentence"]).format(**(row | {name: Figure(value) for name, value in figures.items()}))
        yield int(at), _finding(rule, str(row["kind"]), text, str(row["why"]), figures)


def _finding(rule: str, kind: str, text: str, why: str, figures: dict[str, float]) -> RuleFinding:
    if kind == "ask":  # it may begin with the name of a program
        return RuleFinding(rule=rule, figures=figures, sentence=text + "." * (text[-1] not in ".?"), ask=True)
    verdict: Credibility = kind if kind != "told" else "not judged"  # type: ignore[assignment]
    text = text[0].upper() + text[1:] + (why if kind == "suspicious" else "") + _ENDS.get(kind, ".")
    return RuleFinding(rule=rule, verdict=verdict, figures=figures, sentence=text)
