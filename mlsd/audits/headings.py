"""How people head columns and name methods: a new dialect is a line of a table here."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from mlsd.audits.printed import is_blank, value_of
from mlsd.hardware.chips import named_chip

_SPEED_UNIT = r"(?:tok(?:en)?s?(?:/| per )s(?:ec(?:ond)?)?|t/s|t ps|tps|toks/s)"
_SORT = (
    r"(?:mean|median|avg|average|overall|eff(?:ective)?|decode|decoding|generation|gen|eval|output|tg|wall"
    r"|single stream"
    r"|measured)"
)
# Field -> how people head its column: lower case, marks of stress gone, other signs than a slash as spaces.
HEADINGS: dict[str, str] = {
    "label": r"job id|id|#|label|name|row",
    "target": r"target( model)?|model( name| file| type| filename)?|models?",
    "drafter": r"drafter|decoder|method|mode|spec( type)?|technique|arm|config(uration)?|settings?|run|variant"
    r"|decoding|mtp|model configuration|strategy|flags|arguments",
    "draft": r"draft( model)?|drafter model|assistant( model)?",
    "gamma": r"gamma|γ|draft( |_)?len(gth)?|(spec )?(draft )?n max|draft max|max draft( tokens)?|k|d"
    r"|draft tokens? max"
    r"|num speculative tokens|n draft max|mtp depth|n|(draft )?block( size)?|verify width|num draft tokens",
    "tok_s": rf"({_SORT} )*({_SPEED_UNIT}|speed)( {_SORT})*|tokens per sec(ond)?|tokens per s|decode|generation"
    r"|throughput|overall( median| mean)?|s tg t/s|avg ts|predicted per second|generation tokens per second"
    r"|generation tps|decode tok s|tok s"
    r"|with (flag|mtp|spec\w*|draft\w*|speculation)|tg ?\d+|speculative tok/s",
    "baseline_tok_s": r"(baseline|plain|vanilla|classic|ar|no (spec\w*|draft|mtp)|without\b.*|off|mtp off|base)"
    rf"( {_SORT})*( {_SPEED_UNIT}| tok s)?",
    "speedup": r"(effective |measured )?speed ?up( vs [\w ]+)?( ratio)?|x|×|ratio|multiplier|加速比|gain"
    r"|overall gain|relative"
    r"|(vs|over|% of|Δ vs|δ vs|delta vs)( own tree| own)? ?(baseline|plain|plain decode|plain decoding|vanilla|ar|base"
    r"|off|k0|no spec\w*)"
    r"|delta|δ|change|improvement|uplift|performance impact|% faster|faster|mtp/ar|raw ratio",
    "acceptance": r"(draft |avg |mean |median |aggregate |token |overall )*(accept(ed|ance)?|acc)( rate| ratio"
    r"| pct| percent| %|%)?"
    r"|rate|draft rate|accept rate|alpha|α|接受率",
    "n_accepted": r"(n )?accepted( tokens| drafts?)?|n acc(ept)?|acc tokens|draft n accepted|accepted draft tokens",
    "n_proposed": r"(n )?(drafted|proposed)( tokens)?|n draft(s)?|draft n|drafts? generated|generated drafts?"
    r"|draft tokens",
    "mgl": r"mgl|mat|a ?l|a len|m ?al|acc len|(mean |avg |average |median )*(gen\w+ |acc(ept(ed"
    r"|ance)?)? )?(len(gth)?|al)"
    r"|mean accepted tokens|tau|τ|((committed |emitted |accepted )?tok(ens?)?|committed|accepted|accept)( per |/)"
    r"( ?)(step|round|cycle|pass"
    r"|forward|verify|verification|iter(ation)?|target pass)|block efficiency|tokens per target forward",
    "rounds": r"(n )?(rounds|cycles|verification steps|verify (steps|calls)|target (passes|fwds|forwards)"
    r"|n drafts called)",
    "n_output": r"n output|(output|generated|predicted|completion|emitted) tokens|pred|n predicted|predicted n"
    r"|num tokens|n tokens generated"
    r"|tokens out",
    "n_predict": r"n predict|max (new )?tokens|tokens|n gen|output( len(gth)?)?|tg",
    "n_prompt": r"n prompt|prompt tokens|(context|ctx)( len(gth)?| size| tokens)?|n depth|prefill tokens|n kv",
    "depth": r"depth",
    "prompt": r"prompt( key| kind| #| id)?|task|data ?set|workload|category|text|benchmark|scenario|test|content"
    r"|domain",
    "chip": r"chip|machine|hardware|device|mac|gpu( info)?|card|system|soc|platform|cpu",
    "quantization": r"quant(s|ization)?|precision",
    "baseline_quantization": r"baseline quantization",
    "program": r"program|engine|runtime|tool|server|framework|runner",
    "repeat": r"repeat|rep|trial",
    "ms_per_token": r"eval ms per token|ms per tok(en)?|ms/tok(en)?|tpot( ms)?|itl( ms)?|predicted per token ms",
    "users": r"requests|concurren\w+|users|streams|batch( size)?|parallel|n parallel|npl|b",
    "backend": r"backends?",
    "ngl": r"ngl|n gpu layers",
    "threads": r"threads|n threads",
    "status": r"status",
    "valid": r"valid( trials)?",
    "verdict": r"verdict",
    **{name: name.replace("_", " ") for name in (
        "model_gb", "acceptance_of", "accepted_of_output", "draft_ms", "failed_calls", "baseline_n_predict"
    )},
}  # fmt: skip
# Columns that measure or identify something else: rows that differ in them may still be repeats.
_MEASURED = re.compile(
    r"timestamp|date|time|machine|raw log|.*(hash|sha\d*|url|link|source|note|comment|remark|seed|build|commit)\b.*"
    r"|.*\b(ms|s|sec|secs|seconds?|gb|gib|mb|mib|watts?|w|joules?|j|ppl|ttft|std|stddev|sd|latency|memory|ram"
    r"|vram|rss)"
    r"|(pp|s pp|t pp|t tg|s t/s|t s|s|prefill|prompt eval|prompt processing)\b.*|.*\b(prefill|prompt (eval"
    r"|processing))\b.*"
    r"|stddev ts|prompt (n|ms|per second|per token ms)|predicted ms|total tokens|num per position rates|n"
)
_PROMPT_SPEED = re.compile(r"\b(pp\d*|prefill|prompt eval|prompt processing|prompt|input|ttft)\b")
# What a bracket or the rest of a heading may say without changing the column.
_NEUTRAL = re.compile(
    rf"\d+ ?% ?(?:ci|interval)|{_SORT}|{_SPEED_UNIT}|tok s|higher is better|lower is better|↑|↓|%|pct|percent|x|×"
    rf"|ratio|rate|tokens?|speed|c ?1"
    r"|greedy|steady|n \d+|runs?|\d+ runs?|vs( baseline| plain| ar| vanilla| base)?|of proposed|\d+ tok(ens)?|the"
    r"|in|of"
)
_TIME_UNIT = re.compile(r"(ms|s|sec|secs|seconds?|gb|gib|mb|mib|w)")
METHOD = re.compile(
    r"(?<![a-z])(mtp|dflash\d?|dspark|eagle(?:-?[23])?|medusa|hydra|pld|prompt[- ]lookup|n-?gram(?:[- ]\w+)?|look-?up"
    r"|suffix|spec(?:ulati(?:ve|on))?(?:[- ]decod\w+)?|sd|draft(?:ed|er|[- ]model)?|self-?spec\w*)(?=\d|[^a-z]|$)"
)
_GENERIC = r"spec.*|sd|draft.*|self.*"  # which say no method beside one that does
_FLAGS = re.compile(r"(?:^|\s)(?:-md|--model-draft|--draft(?:-max)?)\s+\S")
# Words that a cell may hold beside those of plain decoding: sampling, machine, depth of the context.
_PLAIN_WORD = re.compile(
    r"(?<![a-z])(none|no|off|baseline|base|plain|vanilla|normal|standard|default|ar|autoregressive|target[- ]only"
    r"|serial"
    r"|control)(?![a-z])"
)
_NEGATED = re.compile(
    rf"(?:\b(?:no|without|w/o|non)[- ]+(?:any )?{METHOD.pattern})"
    rf"|(?:{METHOD.pattern}\w*(?: decoding)?[ =:]*(?:off|disabled|none|false|0)\b)"
    r"|--spec-type[ =]none|--no-\w+|--draft(?:-max)?[ =]0\b|spec[- ]type[ =]none"
)
SPEED = re.compile(
    r"[~<>≈*_` ]*\d[\d.,]*(?: \d{3}(?:\.\d+)?)*(?: ?[-\N{EN DASH}/\N{PLUS-MINUS SIGN}] ?[\d.,]+)*\s*"
    r"(?:tok(?:en)?s?(?:/| per )s(?:ec(?:ond)?)?|t/s|tps|x|\N{MULTIPLICATION SIGN})?(?: avg| median| mean"
    r"| aggregate)?[*_` ]*(?:\(.*\))?[*_` ]*",
    re.IGNORECASE,
)
_GAIN = re.compile(r"gain|delta|δ|Δ|change|improvement|uplift|faster|impact")
_RATIO = re.compile("[%x\N{MULTIPLICATION SIGN}]")
_TIMES = re.compile("[0-9] ?[x\N{MULTIPLICATION SIGN}][*_` ]*$")  # a ratio, no speed
_PATTERNS = {field: re.compile(f"(?:{heads})") for field, heads in HEADINGS.items()}
_COMPOSED = ("speedup", "acceptance", "mgl", "tok_s")  # may stand with the words of a method, a chip or a workload
_PHRASE = {
    "tok_s": re.compile(rf"{_SPEED_UNIT}|\btok s\b|\bspeed\b|\bdecode\b"),
    "speedup": re.compile(r"speed ?up|\bgain\b"),
    "acceptance": re.compile(r"\baccept(?:ance)?(?: rate)?\b"),
    "mgl": re.compile(r"\b(?:accept(?:ance|ed)? len(?:gth)?|mgl|al|tau|τ)\b"),
}


class Heading(NamedTuple):
    """What a column holds, and of what: the method, chip or workload that its heading names beside the figure."""

    field: str
    of: str = ""


def plain_heading(head: str) -> str:
    """A heading without stress, in lower case, its signs as spaces."""
    return " ".join(re.sub(r"[_\-:–]+|\.(?!\d)", " ", re.sub(r"[*`\\]", " ", head.lower())).split())


def is_gain(head: str) -> bool:
    """Whether a percentage in this column says how much more, not how much of the baseline."""
    return bool(_GAIN.search(head.lower()))


def is_measured(head: str) -> bool:
    """Whether a column measures or identifies something else: its cells are no setting."""
    return bool(_MEASURED.fullmatch(plain_heading(head).replace("(", "").replace(")", "")))


def column(head: str, values: Sequence[str]) -> Heading | None:
    """What a column of these cells holds, by its heading, unless the cells are of something else."""
    whole = plain_heading(head)
    inner = " ".join(re.findall(r"[(\[](.*?)[)\]]", whole))
    outer = " ".join(re.sub(r"[(\[].*?[)\]]", " ", whole).split()) or inner
    numeric = bool(values) and all(map(SPEED.fullmatch, values))
    for text, rest in ((whole, ""), (outer, inner if outer != inner else "")):
        field = _named(text, values)
        if field is not None and _agrees(field, text, rest, values):
            return _of(field, rest, head)
    for field in _COMPOSED if numeric and not _PROMPT_SPEED.search(whole) else ():
        phrase = _PHRASE[field].search(whole)
        if phrase is not None and _agrees(field, whole, "", values):
            rest = f"{whole[: phrase.start()]} {whole[phrase.end() :]}".translate(_NO_BRACKETS)
            return _of(field, " ".join(rest.split()), head)
    method = METHOD.search(whole) and not re.search(r"^n\b|\b(tokens|calls|steps|time)\b", whole)
    chip = named_chip(head) is not None and len(whole.split()) <= 4
    is_speed = (
        numeric
        and not any(map(_TIMES.search, values))
        and not re.search(r"\b(ms|[mg]i?b|ttft|acc\w*|prefill|size|len|s|overhead|fraction|share|%)\b|%", whole)
    )
    return Heading("tok_s", head) if is_speed and (method or chip) else None


_NO_BRACKETS = str.maketrans("()[],", "     ")


def _named(text: str, values: Sequence[str]) -> str | None:
    """The field that a heading names, by what stands in the column where it names several."""
    numbers = [value_of(value) for value in values]
    most = max((number or 0 for number in numbers), default=0)
    field = next((field for field, heads in _PATTERNS.items() if heads.fullmatch(text)), None)
    if field == "n_predict" and any("lossless" in value for value in values):
        return "verdict"
    if field == "depth":
        return "gamma" if most <= 32 else "n_prompt"
    if field == "gamma" and text in ("n", "k", "d") and most > 64:
        return None
    if field == "acceptance" and text == "accepted" and values and all(value.isdecimal() for value in values):
        return "n_accepted"
    if field == "draft" and values and None not in numbers:
        return None if any("." in value for value in values) else "n_proposed"  # milliseconds, or a count
    speeds = field in ("drafter", "label", "target", "draft") and values and all(map(SPEED.fullmatch, values))
    return None if speeds and METHOD.search(text) else field


def _agrees(field: str, text: str, rest: str, values: Sequence[str]) -> bool:
    """Whether the cells, and a unit in brackets, are of that field."""
    timed = any(map(_TIME_UNIT.fullmatch, rest.split()))
    if field in ("tok_s", "baseline_tok_s", "ms_per_token"):
        if values and (not any(map(SPEED.fullmatch, values)) or any(map(_TIMES.search, values))):
            return False
        if timed and (field != "ms_per_token" or "ms" not in rest):
            return False  # milliseconds, watts; seconds a token
        return not _PROMPT_SPEED.search(rest) and "batched" not in rest
    if field == "speedup" and values and (is_gain(text) or text.startswith("vs")):
        return "%" in text or bool(_RATIO.search(" ".join(values)))  # else a difference in some unit
    return not (field == "speedup" and timed)


def _of(field: str, rest: str, head: str) -> Heading:
    """The column, of what the rest of its heading says."""
    if named_chip(head) is not None:
        return Heading(field, head)
    if field not in (*_COMPOSED, "baseline_tok_s") or not _NEUTRAL.sub(" ", rest).split():
        return Heading(field)
    return Heading("baseline_tok_s") if field == "tok_s" and is_plain(rest) else Heading(field, rest)


# --- methods ------------------------------------------------------------------------------------------------------


def method_in(text: str) -> str | None:
    """The drafting method that a text names and does not deny."""
    rest = _NEGATED.sub(" ", text.lower())
    named = [found[1] for found in METHOD.finditer(rest)]
    exact = [name for name in named if not re.fullmatch(_GENERIC, name)]
    return (exact or named or ["draft-model" if _FLAGS.search(rest) else None])[0]


def is_plain(text: str) -> bool:
    """Whether a text names plain decoding and no method beside it."""
    lower = text.lower().strip(" (")
    if method_in(lower) is not None:
        return False
    return is_blank(lower) or lower == "n/a" or bool(_NEGATED.search(lower) or _PLAIN_WORD.match(lower)) or (
        lower.startswith(("without", "w/o")) or bool(_PLAIN_WORD.search(lower) and len(lower.split()) <= 3)
    )  # fmt: skip
