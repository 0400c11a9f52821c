"""What no bound refutes and yet is doubted or asked about: rows against their table, and against what is usual."""

import functools
import math

import numpy as np
import pandas as pd

from mlsd.audits.bounds import BOOKKEEPING_RATIO, IMPOSSIBLE_SDS, SUSPICIOUS_SDS
from mlsd.audits.frame import PAIR, Frame, Series, by_names, first_verdicts, scatter, verdicts
from mlsd.audits.model_name import same_model
from mlsd.audits.plain_speed import plain_speed
from mlsd.methods import of_kind
from mlsd.stats import t_quantile

_VISIBLE = 0.9995  # the share of a normal variable below SUSPICIOUS_SDS of its deviations
SAME_WORK_RATIO = 1.5  # rounds of equal work differ by less than this between prompts and depths
SAME_CASE_RATIO = 1.25  # repeats of one case differ by less than this
SAME_SPEED_RATIO = 1.04  # settings that do the same work run within this
HONEST_SLOPES = (0.9, 1.06)  # of log speed over log MGL: a last short round and dear rejections bend it a little
ONE_DEPTH = 0.03  # plain passes of prompts that differ by more compare in other things than acceptance, too
COINCIDENCE = 5e-3  # chance, of a case or of the table, below which equal repeats are not chance
QUIETEST = 0.0005  # no measured time scatters less
SHALLOW = 4096  # tokens of context up to which a plain pass is not much slower than an empty one's
LEAST_DIGITS = 0.105  # of a number of two digits its last unit is at most a tenth
RATE_SPREAD = 0.1  # by how much rates of two draft lengths lie apart, so that chance seldom makes them equal
FEWEST_COPIES = 2  # pairs of settings with one rate
FEWEST_PROPOSED = 50  # drafted tokens before none or all accepted means anything
FEWEST_BY_THEORY = 3  # rows of a table whose speedup is what theory gives
LEAST_FILE = 1.1  # a plain run that much faster than any public row leads to expect is asked about
_OWN_LOOKUPS = of_kind("look-up", "n-grams", "control")
# Words of published tables: what proposes nothing or repeats a text, and rules that accept more than equal tokens.
_OTHERS = r"oracle|random|look-?(?:up|ahead)|n-?gram|suffix|copy|fuzzy|typical|relaxed|judge|lossy"


def speed_ignores_acceptance(rows: Frame) -> Frame:
    """Is throughput independent of acceptance? Equal work takes equal time, so accepted tokens must show in tok/s.

    A round in target passes is ``MGL / speedup``; without a baseline of its own it is in seconds, and its equals are
    of its depth alone.
    """
    measured = rows["fixed_length"] & rows["committed"].notna() & (rows["tok_s"] > 0)
    round_ = (rows["committed"] / rows["tok_s"]).where(measured) * rows["base_mean"].where(rows["base_own"], 1.0)
    depth = rows["n_prompt"].fillna(-1).where(~rows["base_own"], -2)
    is_one = measured & rows["comparable"] & rows["speculative"]
    of = round_.where(is_one).groupby([rows["pair"], depth])
    typical, n = of.transform("median"), of.transform("count")
    ratio = np.maximum(round_ / typical, typical / round_)
    where = is_one & rows["acceptance"].notna() & (n >= 2)
    doubtful = ratio > np.maximum(SAME_WORK_RATIO, 1.0 + IMPOSSIBLE_SDS * rows["noise"])
    text = "A round of this row took {times:.2f} times what rounds of the same work in the table take"
    of_work = verdicts(
        where, np.where(doubtful, "suspicious", "possible"), text, ": speed does not follow acceptance as it must",
        round=round_, typical_round=typical, acceptance=rows["acceptance"], differs_by=ratio, times=round_ / typical,
    )  # fmt: skip
    of_table = _slopes(rows, round_.where(is_one))
    return first_verdicts(of_work[of_work["kind"] == "suspicious"], of_table, of_work)


def _slopes(rows: Frame, round_: Series) -> Frame:
    """Over the whole table, does speed rise with the tokens a round commits as ``speed = MGL / round`` says: slope 1?

    Log speed against log(1 + gamma acceptance) within target, draft and gamma. Throughput that acceptance does not
    touch has slope 0; acceptance halved or with the bonus counted more than 1.1, doubled less than 0.9 (simulated). A
    slope that scatter does not explain is asked about. It is doubted where rounds that differ between texts by
    something else (experts, depth) do not explain it either: texts are few, so that takes much.
    """
    names = ["slope", "standard_error", "over_texts", "visible", "cases"]
    fits = pd.DataFrame(np.nan, rows.index, names)
    for _, group in rows[rows["group"].isin(rows["group"][round_.notna()])].groupby("group"):
        if (fitted := fit_slope(group, round_.loc[group.index])) is not None:
            fits.loc[group.index] = fitted
    low, high = HONEST_SLOPES
    where = fits["slope"].notna() & rows["fixed_length"] & rows["comparable"] & rows["acceptance"].notna()
    off = np.maximum(low - fits["slope"], fits["slope"] - high)
    doubtful, asked = off > fits["visible"] * fits["over_texts"], off > SUSPICIOUS_SDS * fits["standard_error"]
    text = "Over {cases:.0f} cases speed goes with the {slope:.2f}th power of the tokens a round commits"
    ask = f"{text}: do rounds of its texts differ by more than acceptance, or are drafts shorter?"
    why = [
        f" (standard error {e:.2f}), not the first: acceptance did not make it, or drafts are shorter"
        for e in fits["over_texts"]
    ]
    return verdicts(
        where & rows["speculative"], np.select([doubtful, asked], ["suspicious", "ask"], "possible"),
        np.where(asked & ~doubtful, ask, text), why, slope=fits["slope"],
        standard_error=fits["over_texts"].where(doubtful, fits["standard_error"]), cases=fits["cases"],
    )  # fmt: skip


def fit_slope(rows: Frame, round_: Series) -> tuple[float, float, float, float, int] | None:
    """Slope; its error by cases, and by texts with its quantile of Student; cases: least squares within each work.

    None where acceptance hardly varies or is coarsely printed, and of fewer than three texts. They are prompts with a
    baseline of their own whose plain passes take nearly as long as most: drafting is a smaller share of a deeper round.
    The error by cases counts the scatter of repeats, once for a case and once for the baseline that a text's cases
    share. That by texts takes the cases of a text as one (Liang and Zeger, Biometrika 73, 1986).
    """
    usable = rows[round_.notna() & rows["base_own"] & (rows["committed_low"] > 0)]
    if usable.empty:
        return None
    noise = float(rows["noise"].iloc[0])
    off = (usable["base_mean"] / usable.groupby("pair")["base_mean"].transform("median")).map(math.log).abs()
    usable = usable[off <= math.log(1.0 + ONE_DEPTH + noise)]
    prompt = usable.groupby([usable["prompt"].fillna(""), usable["n_prompt"].fillna(-1)]).ngroup()
    logs = pd.DataFrame({
        "work": usable["pair"], "prompt": prompt, "case": usable["case"], "x": np.log(usable["committed"]),
        "round": np.log(round_.loc[usable.index]), "width": np.log(usable["committed_high"] / usable["committed_low"]),
    })  # fmt: skip
    cases = logs.groupby(["work", "prompt", "case"]).agg(
        x=("x", "mean"), round=("round", "mean"), width=("width", "mean"), n=("x", "size")
    ).reset_index()  # fmt: skip
    cases = cases[cases.groupby("work")["work"].transform("size") > 1]
    n_texts, freedom = cases["prompt"].nunique(), len(cases) - cases["work"].nunique()
    if n_texts < 3 or freedom < 2:
        return None
    y = cases["x"] - cases["round"]
    x, y = (of - of.groupby(cases["work"]).transform("mean") for of in (cases["x"], y))
    spread = float((x**2).sum())
    if spread < max(0.02, 50 * float((cases["width"] ** 2 / 12).sum())):
        return None
    value = float((x * y).sum()) / spread
    shared = x.groupby(cases["prompt"]).sum() ** 2 / cases.groupby("prompt")["n"].first()
    of_repeats = noise**2 * float((x**2 / cases["n"]).sum() + shared.sum())
    residual = y - value * x
    of_cases = max(of_repeats, float((residual**2).sum()) / freedom * spread)
    of_texts = float(((x * residual).groupby(cases["prompt"]).sum() ** 2).sum()) * n_texts / (n_texts - 1)
    by_cases, by_texts = math.sqrt(of_cases) / spread, math.sqrt(max(of_repeats, of_texts)) / spread
    return value, by_cases, by_texts, t_quantile(_VISIBLE, n_texts - 1), len(cases)


def runs_of_one_setting_apart(rows: Frame) -> Frame:
    """Does a run lie near its repeats? Rows that differ in any column are no repeats of one setting."""
    speculative = rows["speculative"]
    alike = rows["committed"].notna() | (rows.groupby("case")["acceptance"].transform("nunique") <= 1)
    pace = rows["pace"].where(alike & rows["repeat"].notna()).where(speculative, rows["tok_s"].where(rows["tok_s"] > 0))
    pace = pace.where(rows["comparable"])
    prompt = rows["prompt"].fillna("").where(rows["repeat"].isna(), "")
    setting = [rows["case"].where(speculative, -1 - rows["host"]), rows["program"].fillna(""), rows["setting"]]
    setting += [rows[name].fillna(-1) for name in ("n_prompt", "long_output")]
    others = medians_of_others(pace, [*setting, prompt, rows["n_predict"].fillna(-1)])
    faster = pace / others
    what = np.where(speculative, "A round of this run went", "This plain run went")
    doubtful = np.maximum(faster, 1 / faster) > np.maximum(SAME_CASE_RATIO, 1.0 + IMPOSSIBLE_SDS * rows["noise"])
    # Plain runs of other prompts are no repeats: that they lie near speaks for a row, that they do not says nothing.
    near = pace / medians_of_others(pace.where(~speculative), setting)
    faster = faster.fillna(near.where(near.between(1 / SAME_CASE_RATIO, SAME_CASE_RATIO)))
    return verdicts(
        faster.notna(), np.where(doubtful, "suspicious", "possible"),
        "{what} {times_as_fast:.2f} times as fast as the others of its setting", times_as_fast=faster, what=what,
    )  # fmt: skip


def medians_of_others(values: Series, keys: list[Series]) -> Series:
    """Of each value the median of the others of its group; NaN where there are none."""
    groups = values.groupby(keys)
    n, at = groups.transform("count"), groups.rank(method="first")
    ranked = values.groupby([groups.ngroup(), at]).first()
    low, high = ((n - 2) // 2 + 1, (n - 1) // 2 + 1)
    ends = [
        pd.Series([*zip(groups.ngroup(), i + (i >= at), strict=True)], values.index).map(ranked) for i in (low, high)
    ]
    return ((ends[0] + ends[1]) / 2).where(values.notna() & (n > 1))


def figures_copied(rows: Frame) -> Frame:
    """Do repeats print one time, or lengths of draft one rate, oftener than noise and digits allow?

    Two lengths of one rate and one speed are asked about: the longer is capped, or a row was copied.
    """
    copied, capped = _equal_rates(rows)
    times = _equal_times(rows)
    return first_verdicts(copied, times, capped)


def _equal_times(rows: Frame) -> Frame:
    """Chance that one other repeat prints the same time: ``step / (2 sqrt(pi) sigma)`` of two normal draws.

    Sigma is a low guess of the noise.
    """
    timed = rows["tok_s"].notna() | rows["ms_per_token"].notna()
    if not (rows["n_repeats"] > 1).any():
        return verdicts(timed & False, "", "")
    many = rows["comparable"] & (rows["n_repeats"] > 1)
    spread = scatter(rows)
    quiet = (0.85 * np.sqrt(spread["squares"] / spread["freedom"].where(spread["freedom"] >= 4))).fillna(QUIETEST)
    sigma = rows["group"].map(quiet.clip(lower=QUIETEST))
    steps = pd.concat([(rows[f"{of}_high"] - rows[f"{of}_low"]) / rows[of].where(rows[of] > 0) for of in ("tok_s", "ms_per_token")], axis=1)  # noqa: E501  # fmt: skip
    chance = (steps.min(axis=1).clip(lower=1e-9) / (2.0 * math.sqrt(math.pi) * sigma)).clip(upper=1.0).fillna(1.0)
    printed = [rows["case"].where(many, -1), rows["tok_s"].fillna(-1), rows["ms_per_token"].fillna(-1)]
    equal = rows["case"].groupby(printed).transform("size").where(many)
    n = rows["n_repeats"].where(many)
    cases = rows.assign(alike=equal == n, by_chance=chance ** (n - 1))[many].drop_duplicates("case")
    by_group = cases.groupby("group")[["alike", "by_chance"]].sum().apply(lambda sums: chance_of_more(*sums), axis=1)
    table = rows["group"].map(by_group).fillna(1.0)
    asked = n.notna() & timed
    ways = pd.Series(
        [math.comb(int(a), int(b)) if k else 1 for a, b, k in zip(n, equal, asked, strict=True)], rows.index
    )
    row_chance = (ways * chance ** (equal - 1)).clip(upper=1.0)
    doubtful = (equal > 1) & ((row_chance <= COINCIDENCE) | ((equal == n) & (table <= COINCIDENCE)))
    text = (
        "{equal_repeats:.0f} of {others:.0f} other repeats print the same time; chance gives that in {percent:.2g} % "
    )
    why = [f", and as often as in this table in {100 * t:.2g} % of tables" if c > COINCIDENCE else "" for c, t in zip(row_chance, table, strict=True)]  # noqa: E501  # fmt: skip
    return verdicts(
        asked, np.where(doubtful, "suspicious", "possible"), text + "of cases", why,
        equal_repeats=equal - 1, others=n - 1, chance=row_chance, chance_over_the_table=table, percent=100 * row_chance,
    )  # fmt: skip


def _equal_rates(rows: Frame) -> tuple[Frame, Frame]:
    """Is one acceptance printed for several lengths of draft that run at other speeds, oftener than chance does that?

    Longer drafts of equal text accept a smaller share; two that happen to print the same are counted against how finely
    the rates are printed. A cap that makes the lengths equal makes the speeds equal too, and is asked about instead.
    """
    width, rate = rows["acceptance_high"] - rows["acceptance_low"], rows["acceptance"]
    fine = rows["comparable"] & rows["speculative"] & (rows["gamma"] > 0) & rows["tok_s"].notna()
    fine &= rate.between(0, 1, inclusive="neither") & (width < LEAST_DIGITS * rate)
    if fine.sum() < 2:
        return verdicts(fine & False, "", ""), verdicts(fine & False, "", "")
    work = rows.groupby([*PAIR[:-1], "prompt", "n_prompt", "setting"], dropna=False).ngroup()
    rates = rows.assign(work=work, width=width, at=rows.index)[fine].drop_duplicates(["work", "gamma"])
    rates = rates[["work", "group", "gamma", "acceptance", "width", "tok_s", "at", "case"]]
    pairs = rates.merge(rates, on=["work", "group"], suffixes=("", "_longer"))
    pairs = pairs[pairs["gamma"] < pairs["gamma_longer"]]
    expected = (
        (pairs[["width", "width_longer"]].max(axis=1) / RATE_SPREAD).clip(upper=1.0).groupby(pairs["group"]).sum()
    )
    pairs = pairs[pairs["acceptance"] == pairs["acceptance_longer"]]
    speeds = pairs[["tok_s", "tok_s_longer"]]
    copied = pairs[speeds.max(axis=1) > SAME_SPEED_RATIO * speeds.min(axis=1)]
    capped = pairs.drop(copied.index).drop_duplicates("case_longer").set_index("case_longer")["gamma"]
    n = copied.groupby("group").size()
    chance = pd.Series({group: chance_of_more(count, expected[group]) for group, count in n.items()}, dtype=float)
    shorter = rows["case"].map(capped)
    is_copied = rows["case"].isin([*copied["case"], *copied["case_longer"]]) & rows["comparable"]
    often = rows["group"].map(n).ge(FEWEST_COPIES) & rows["group"].map(chance).le(COINCIDENCE)
    text = "{percent:.4g} % is printed for other lengths of draft, which run at another speed, too: {pairs_alike:.0f} "
    text += "such pairs in the table, where chance gives {pairs_by_chance:.2g}; longer drafts accept a smaller share"
    ask = "At gamma {gamma:.0f} the rate is that of gamma {shorter:.0f} to the digit, and nearly so the speed"
    return verdicts(
        is_copied & often, "suspicious", text, acceptance=rate, percent=100 * rate,
        pairs_alike=rows["group"].map(n), pairs_by_chance=rows["group"].map(expected),
    ), verdicts(
        shorter.notna() & rows["comparable"], "ask", f"{ask}: is the draft capped, or a row copied?",
        gamma=rows["gamma"], shorter=shorter,
    )  # fmt: skip


def chance_of_more(n: float, expected: float) -> float:
    """Chance of so many or more where so many are expected, a Poisson count."""
    if not expected:  # less than a float holds
        return float(not n)
    return max(0.0, 1.0 - sum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(int(n))))


def all_or_nothing_accepted(rows: Frame) -> Frame:
    """Is acceptance exactly 0 or 100 %? Then a degenerate prompt, a false counter or one model for both is likely.

    Not where the output was compared with plain decoding, nor of controls and of look-ups in a text that repeats.
    """
    named = (rows["drafter"] + " " + rows["draft"].fillna("") + " " + rows["setting"]).str.lower()
    expected = rows["drafter"].isin(_OWN_LOOKUPS) | named.str.contains(_OTHERS)
    rate, gamma = rows["acceptance"], rows["gamma"]
    by_length = (rows["n_predict"] * gamma / (1.0 + gamma * rate)).where((gamma > 0) & (rows["n_predict"] > 0))
    enough = by_length.fillna(rows["n_proposed"]).fillna(np.inf) >= FEWEST_PROPOSED
    where = rows["speculative"] & ~expected & ~rows["lossless"] & rate.isin([0.0, 1.0]) & enough
    return verdicts(
        where, "suspicious", "{percent:.2f} % of proposed tokens were accepted", acceptance=rate, percent=100 * rate
    )


def speedup_is_theory(rows: Frame) -> Frame:
    """Is every speedup of a table ``1 + gamma acceptance``? That is MGL: what a round gains if all of it were free.

    Rounds that verify and draft for nothing were not measured, so a table of them is theory. Only
    where its rates differ.
    """
    low = 1.0 + rows["gamma"] * rows["acceptance_low"]
    high = 1.0 + rows["gamma"] * rows["acceptance_high"]
    asked = rows["speculative"] & (rows["gamma"] > 0) & rows["acceptance"].notna() & rows["speedup"].notna()
    equal = (rows["speedup_low"] <= high) & (rows["speedup_high"] >= low)
    fine = (rows["speedup_high"] - rows["speedup_low"]) < 0.05 * (rows["speedup"] - 1.0)
    of = [rows["group"], rows["table"]]
    n = asked.groupby(of).transform("sum")
    all_equal = (equal | ~asked).groupby(of).transform("all")
    varied = rows["acceptance"].where(asked & fine).groupby(of).transform("nunique") >= FEWEST_BY_THEORY
    where = asked & all_equal & varied & (n >= FEWEST_BY_THEORY)
    text = "The speedup is 1 + gamma x acceptance in all {n_rows:.0f} rows: {speedup:.4g} is 1 + {gamma:.0f} x "
    return verdicts(
        where, "suspicious", text + "{acceptance:.3g}",
        ": what a round commits if drafts and verification cost nothing, not a measured ratio",
        n_rows=n, speedup=rows["speedup"], gamma=rows["gamma"], acceptance=rows["acceptance"],
    )  # fmt: skip


def output_is_a_loop(rows: Frame) -> Frame:
    """Does the output repeat a few tokens to its end? What is accepted of that says nothing of text: ask."""
    text = "The last third of the output repeats {period:.0f} tokens: acceptance of a loop says nothing of text"
    return verdicts(rows["loop"].notna() & rows["speculative"], "ask", text, period=rows["loop"])


def arms_do_not_match(rows: Frame) -> Frame:
    """Do both arms of a ratio come from one engine, one file and one token count? Another prompt is not doubted.

    It is asked about where another program decodes the file plainly much faster than the row's own plain run.
    """
    plain = rows[rows["comparable"] & ~rows["speculative"]]
    other = rows["baseline_target"].where(rows["speculative"]).fillna(_other_file(rows, plain))
    file = verdicts(
        other.notna(), "suspicious", "The speedup is over a plain run of {other}, another file than {target}",
        ": the ratio is not what speculation gained", other=other, target=rows["target"],
    )  # fmt: skip
    ratio = rows["speculative"] & rows["claims_ratio"]
    no_engine, no_length = (_lacks(rows, plain, name) for name in ("engine", "n_predict"))
    engines = rows["host"].map(plain.groupby("host")["engine"].min()).astype("str")  # also where none is plain
    program = "program (" + engines + " against " + rows["engine"].astype("str") + ")"
    both = np.select([no_engine & no_length, no_engine], [program + " and token count", program], "token count")
    count = verdicts(
        ratio & (no_engine | no_length), "suspicious", "No baseline of {target} has the same {both} as this row",
        differences=no_engine.astype(float) + no_length, target=rows["target"], both=both,
    )  # fmt: skip
    at = ["host", "n_prompt", "program"]
    fastest = plain.groupby(at, dropna=False)["tok_s"].max().reset_index().dropna(subset="program").sort_values("tok_s")
    pairs = rows[at].reset_index().merge(fastest, on=at[:2], suffixes=("", "_other"))
    pairs = pairs[pairs["program"].notna() & (pairs["program"] != pairs["program_other"])]
    best = pairs.drop_duplicates("index", keep="last").set_index("index")
    faster = best["tok_s"].reindex(rows.index) / rows["base_mean"]
    far = faster > np.maximum(SAME_CASE_RATIO, 1.0 + IMPOSSIBLE_SDS * rows["noise"])
    text = "{elsewhere} decodes the same file plainly {faster_by:.2f} times as fast as {program}"
    ask = verdicts(
        rows["speculative"] & far, "ask", f"{text}: how much of the gain is left over the faster plain run?",
        faster_by=faster, elsewhere=best["program_other"].reindex(rows.index), program=rows["program"],
    )  # fmt: skip
    return first_verdicts(file, count, ask)


def _lacks(rows: Frame, plain: Frame, name: str) -> Series:
    """Whether a row's figure is none of those of its plain runs, all of which state it."""
    stated = rows["host"].map(plain[name].notna().groupby(plain["host"]).all()).eq(True)
    pairs, among = (pd.MultiIndex.from_frame(of[["host", name]]) for of in (rows, plain))
    return stated & rows[name].notna() & ~pairs.isin(among)


def _other_file(rows: Frame, plain: Frame) -> Series:
    """The file whose plain runs the printed speedup is a ratio to, where only the quantization differs."""
    other = pd.Series(None, rows.index, dtype=object)
    hosts = plain.groupby(["group", "chip", "target"], dropna=False)[["tok_s_low", "tok_s_high"]].agg(["min", "max"])
    asked = rows["speculative"] & rows["speedup"].notna() & rows["tok_s"].notna() & ~rows["host_known"]
    for at, row in rows[asked].iterrows():
        for (group, chip, target), speeds in hosts.iterrows():
            same_chip = chip == row["chip"] or (chip != chip and row["chip"] is None)
            if group != row["group"] or not same_chip or not same_model(target, row["target"]):
                continue
            low = row["tok_s_low"] / speeds["tok_s_high", "max"]
            high = row["tok_s_high"] / speeds["tok_s_low", "min"]
            if row["speedup_low"] <= BOOKKEEPING_RATIO * high and low <= BOOKKEEPING_RATIO * row["speedup_high"]:
                other[at] = target
    return other


def _usual_tok_s(target: str, chip: str | None, end: int) -> float | None:
    """The least or most tok/s that public rows lead to expect of plain decoding."""
    span = plain_speed(target, chip) if chip else None
    return None if span is None else span[end]


def plain_speed_unexpected(rows: Frame) -> Frame:
    """Is a plain run as fast as its chip should decode that model? A ratio to one that is not is too high: ask.

    One that is faster than public rows lead to expect may be speculative, or of another file. Of what the processor's
    cores compute nothing is expected.
    """
    low, high = (by_names(rows, ["target", "chip"], functools.partial(_usual_tok_s, end=end)) for end in (0, 1))
    depth = rows["n_prompt"].fillna(0) + rows["n_output"].fillna(rows["n_predict"]).fillna(0)
    ratio = rows["speculative"] & rows["claims_ratio"]
    speed = rows["tok_s"].where(~rows["speculative"]).fillna(rows["base_fastest"].where(ratio))
    most = rows["tok_s_high"].where(~rows["speculative"]).fillna(rows["base_fastest_high"].where(ratio))
    slow, fast = most < low, rows["tok_s_low"] > LEAST_FILE * high
    where = low.notna() & speed.notna() & ~(depth > SHALLOW) & ~rows["on_cpu"] & (~rows["speculative"] | slow)
    run = "{plain_tok_s:.4g} tok/s of {target} on an {chip}"
    span = "the {least_expected_tok_s:.3g} to {most_expected_tok_s:.3g} that public rows lead to expect"
    text = np.select(
        [rows["speculative"], slow, fast, rows["tok_s_low"] > high],
        [f"The plain run that it is compared with, {run}, lies below {span}: a ratio to it is too high",
         f"{run}, plain, lies below {span}: is it hot, busy, on battery, or was it computed by the processor's cores?",
         f"{run} lies above {span}: is this run plain, and which file ran?",
         f"{run}, plain, lies above {span}"],
        f"{run}, plain, lies within {span}",
    )  # fmt: skip
    return verdicts(
        where, np.where(rows["speculative"] | slow | fast, "ask", "told"), text, plain_tok_s=speed,
        least_expected_tok_s=low, most_expected_tok_s=high, target=rows["target"], chip=rows["chip"].fillna(""),
    )  # fmt: skip
