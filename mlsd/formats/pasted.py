"""Tables and logs as people paste them: CSV, tabs, Markdown, a page of a paper, what mlsd prints, programs' timings.

Every row becomes cells by the names that the audit knows (`HEADS`), each as it was printed. What is in no row of a
table but holds for all that follow (a command's model and gamma, the one chip that a text names) is added to them.
"""

import csv
import io
import itertools
import re
from collections.abc import Container, Iterator

import msgspec

from mlsd.errors import TableError
from mlsd.formats.printed import in_percent, is_blank, parse_printed, value_of
from mlsd.hardware.chips import named_chip
from mlsd.records import NO_DRAFTER, Record
from mlsd.stats import grouped

# Field -> how people head its column: lower case, without what stands in brackets, other signs as spaces.
HEADS: dict[str, str] = {
    "label": r"job id|id|#|label|name|row",
    "target": r"target( model)?|model( name| file)?|models?",
    "drafter": r"drafter|method|mode|spec( type)?|technique|arm|config(uration)?|settings?|run|variant|decoding|mtp",
    "draft": r"draft( model)?|drafter model|assistant|draft model",
    "gamma": r"gamma|γ|draft( |_)?len(gth)?|(spec )?(draft )?n max|draft max|max draft( tokens)?|k|d|draft tokens? max"
    r"|num speculative tokens|n draft max|mtp depth|n|(draft )?block( size)?",
    "tok_s": r"(mean |median |avg |average |overall |eff(?:ective)? |decode |decoding |generation |gen |eval |output "
    r"|tg )*"
    r"(tok(ens?)?( per |/| )s(ec(ond)?)?|t/s|tps|speed)( mean| median| avg| decode)?|tokens per sec|decode|generation"
    r"|throughput|tg|overall( median| mean)?|with (flag|mtp|spec\w*|draft\w*)",
    "baseline_tok_s": r"(baseline|plain|vanilla|classic|ar|no (spec\w*|draft|mtp)|without\b.*|off|mtp off|base)"
    r"( decode)?( tok(ens?)?/s| t/s| tps| tok s)?",
    "speedup": r"speed ?up( vs baseline)?( ratio)?|x|ratio|vs (baseline|plain|vanilla|ar|base|off)|加速比|gain"
    r"|delta|δ|change|improvement|uplift|overall gain",
    "acceptance": r"(draft |avg |mean |aggregate |token )*(accept(ed|ance)?|acc)( rate| ratio| pct| percent| %|%)?|rate"
    r"|alpha|α|接受率",
    "n_accepted": r"(n )?accepted( tokens| drafts?)?|n acc(ept)?|acc tokens|draft n accepted",
    "n_proposed": r"(n )?(drafted|proposed)( tokens)?|n draft(s)?|draft n|drafts? generated|generated drafts?",
    "mgl": r"mgl|mat|(m|a)al|(mean |avg |average )?(gen\w+ |accept(ed|ance)? )?len(gth)?|mean accepted tokens|tau|τ"
    r"|(tok(ens?)?|accepted)( per |/| )(step|round|cycle|pass)",
    "rounds": r"(n )?(rounds|cycles|verification steps|verify steps|target passes)",
    "n_output": r"n output|(output|generated|predicted|completion) tokens|pred|n predicted",
    "n_predict": r"n predict|max (new )?tokens|tokens|n gen|output( len(gth)?)?",
    "n_prompt": r"n prompt|prompt tokens|(context|ctx)( len(gth)?| size| tokens)?|n depth|prefill tokens",
    "depth": r"depth",
    "prompt": r"prompt( key| kind)?|task|data ?set|workload|category|text|benchmark|scenario|test|content",
    "chip": r"chip|machine|hardware|device|mac|gpu|card|system|soc|platform",
    "quantization": r"quant(s|ization)?|precision",
    "baseline_quantization": r"baseline quantization",
    "program": r"program|engine|runtime|tool|server|framework",
    "repeat": r"repeat|rep|trial",
    "ms_per_token": r"eval ms per token|ms per tok(en)?|ms/tok(en)?|tpot( ms)?|itl( ms)?",
    "users": r"requests|concurren\w+|users|streams|batch( size)?|parallel|n parallel|npl",
    "status": r"status",
    "valid": r"valid( trials)?",
    "verdict": r"verdict",
    **{
        name: name.replace("_", " ")
        for name in ("model_gb", "acceptance_of", "accepted_of_output", "draft_ms", "failed_calls")
    },
}
_KNOWN = {field: re.compile(f"(?:{heads})") for field, heads in HEADS.items()}
PASSED_OVER = ("timestamp", "machine", "prompt_eval_ms", "raw_log")  # of the study's layout: nothing is asked of them
# A column of speeds headed by a method, or a cell that names one.
_METHOD = re.compile(
    r"(?<![a-z])(mtp|dflash|dspark|eagle(?:-?[23])?|medusa|hydra|pld|prompt[- ]lookup|n-?gram(?:[- ]\w+)?|look-?up"
    r"|suffix|spec(?:ulative)?(?:[- ]decod\w+)?|sd|draft(?:ed|er|[- ]model)?)(?![a-z])"
)
_PLAIN = re.compile(
    r"(?:none|no|off|baseline|base|plain|vanilla|normal|standard|default|ar|autoregressive|greedy|-|n/a)(?![a-z])"
    r"|(?:no|without|w/o)[ -]|.*(?:[ =]off|disabled|no[- ](?:spec|draft|mtp))"
)
_SPEEDS = ("tok_s", "baseline_tok_s", "ms_per_token", "speedup")  # without any of these a table is of something else
_SPEED = re.compile(
    r"[~<>≈*_` ]*\d[\d.,]*(?: \d{3}(?:\.\d+)?)*(?: ?[-\N{EN DASH}/\N{PLUS-MINUS SIGN}] ?[\d.,]+)*\s*"
    r"(?:tok(?:en)?s?(?:/| per )s(?:ec(?:ond)?)?|t/s|tps|x)?(?: avg| median| mean)?[*_` ]*(?:\(.*\))?[*_` ]*",
    re.IGNORECASE,
)
_NO_SPEED = re.compile(r"ms|mib|gib|gb|ttft|acc|prefill|%|size|len")
# A text that names such a one, too, is of several machines.
_OTHER_CHIPS = re.compile(r"\b(?:AMD|Intel|NVIDIA|EPYC|Xeon|Ryzen|Radeon|GeForce|[RG]TX|[ABH][1-9]00)\b")
_QUOTED = 90  # letters of a row
_SHOWN = 3  # skipped lines that a note quotes
_GAMMA = re.compile(r"(?:n[-_ ]?max|draft[-_ ]max|gamma|γ|(?<![a-z])[knd])\s*[=: ]?\s*(\d{1,3})(?![\d.]|[a-z])")
_RATIO = re.compile("[%x\N{MULTIPLICATION SIGN}]")
_GAIN = re.compile(r"gain|delta|δ|change|improvement|uplift|^vs ")
_COUNTS = re.compile(r"(\d[\d,]*)\s*(?:/|of|out of)\s*(\d[\d,]*)")


class PastedRow(Record, frozen=True, kw_only=True):
    """One row: where it stands, and its cells by field; by column while the columns are not known."""

    line: int
    table: str = ""  # the heading above it
    group: int = 0  # rows of one group are of one table
    cells: dict[str, str] = msgspec.field(default_factory=dict)
    heads: dict[str, str] = msgspec.field(default_factory=dict)  # field -> the column as it is headed
    setting: str = ""  # words of columns without a field: rows that differ in them may differ in anything
    quote: str = ""  # the row as it stands
    broken: str = ""  # what is wrong with the line as a whole


def read_pasted(data: bytes, source: str) -> tuple[list[PastedRow], list[str]]:
    """Rows of every table and log in a text, and notes: what was taken from around them, and what is not read.

    Raises: TableError where there are none, or a table is not whole.
    """
    text = _text_of(data, source)
    lines = text.splitlines()
    logged, skipped = _log_rows(lines)
    found = [*_markdown(lines), *_ruled(lines), *_tabbed(lines), *logged] or list(_delimited(text, source))
    rows, unused = list[PastedRow](), list[str]()
    for same in grouped(found, lambda one: one.group).values():
        heads = _fields([one.cells for one in same])
        if not any(field.partition(":")[0] in _SPEEDS for field in heads.values()):
            continue
        unused += [head for head in same[0].cells if head not in heads and head not in (*PASSED_OVER, _ANSWER, "")]
        rates = [head for head, field in heads.items() if field == "acceptance"]
        percent = {head for head in rates if in_percent(one.cells.get(head, "") for one in same)}
        for one in same:
            rows += _rows(one, heads, percent)
    if not rows:
        hint = "Columns that are read: model, tok/s, baseline, gamma, acceptance, speedup, chip, quant, ...; or a log."
        raise TableError(f"{source} holds no row with a speed.", hint=hint)
    chips = dict.fromkeys(filter(None, map(named_chip, lines)))
    notes = list[str]()
    if len(chips) == 1 and not _OTHER_CHIPS.search(text) and not any("chip" in row.cells for row in rows):
        chip = next(iter(chips))
        rows = [msgspec.structs.replace(row, cells=row.cells | {"chip": chip}) for row in rows]
        notes.append(f"The chip of all rows is the one that the text names: {chip}.")
    if logged and skipped:
        first = "; ".join(f"line {number}: {lines[number - 1].strip()[:60]}" for number in skipped[:_SHOWN])
        more = f"; and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
        notes.append(f"{len(skipped)} lines of the log were skipped: {first}{more}.")
    rows.sort(key=lambda row: row.line)
    if unused:
        notes.append(f"Columns that no rule uses: {', '.join(dict.fromkeys(unused))}.")
    return rows, notes


def _text_of(data: bytes, source: str) -> str:
    """Raises: TableError for what is not text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise TableError(f"{source}, line {line}: not UTF-8 text.", hint="Save the table as UTF-8.") from error
    if "\0" in text:
        raise TableError(f"{source} holds NUL bytes: it is not text.", hint="Save the table as UTF-8 text.")
    if not text.strip():
        hint = "Its first line names the columns: model, tok/s, gamma, acceptance, ..."
        raise TableError(f"{source} is empty.", hint=hint)
    return text


# --- columns ------------------------------------------------------------------------------------------------------


def _plain_head(head: str) -> str:
    bare = re.sub(r"[(\[].*?[)\]]|[*`]", " ", head.lower()) if not head.startswith("(") else head.lower()
    return " ".join(re.sub(r"[_\-:]+", " ", bare).split())


def _fields(rows: list[dict[str, str]]) -> dict[str, str]:
    """The field of every column that has one; of a speed under a method's name ``tok_s:METHOD``."""
    fields: dict[str, str] = {}
    heads = dict.fromkeys(head for row in rows for head in row)
    for head in sorted(heads, key=lambda head: _plain_head(head).replace(" ", "_") not in HEADS):
        field = _field(head, [cell for row in rows if not is_blank(cell := row.get(head, ""))])
        if field is not None and (field not in fields.values() or field.startswith("tok_s:")):
            fields[head] = field
    if "tok_s" in fields.values():
        fields = {head: field for head, field in fields.items() if not field.startswith("tok_s:")}
    return fields


def _field(head: str, values: list[str]) -> str | None:
    """What a column of these cells holds, by its head, unless the cells are of something else."""
    own, numbers = _plain_head(head), [value_of(value) for value in values]
    field = next((field for field, heads in _KNOWN.items() if heads.fullmatch(own)), None)
    most = max((number or 0 for number in numbers), default=0)
    if field == "n_predict" and any("lossless" in value for value in values):
        field = "verdict"
    if field == "depth":
        field = "gamma" if most <= 32 else "n_prompt"
    if field == "gamma" and own in ("n", "k", "d") and most > 64:
        field = None
    if field == "acceptance" and own == "accepted" and values and all(v.isdecimal() for v in values):
        field = "n_accepted"
    if field == "draft" and values and None not in numbers:
        field = None if any("." in v for v in values) else "n_proposed"  # milliseconds, or a count
    if field in ("tok_s", "baseline_tok_s", "ms_per_token") and values and not any(map(_SPEED.fullmatch, values)):
        field = None  # milliseconds, watts
    if (
        field == "speedup"
        and values
        and _GAIN.match(own)
        and not re.search("[%x\N{MULTIPLICATION SIGN}]", " ".join(values))
    ):
        field = None  # a difference in some unit
    if field in ("draft", "drafter", "label", "target", None) and values and _METHOD.search(own):
        speeds = all(map(_SPEED.fullmatch, values)) and not _NO_SPEED.search(head.lower())
        field = f"tok_s:{head}" if speeds else field
    return field


def _rows(one: PastedRow, heads: dict[str, str], percent: Container[str]) -> Iterator[PastedRow]:
    """The rows that one line gives: one for each column of speeds; none for llama-bench's prefill."""
    if one.broken:
        yield one
        return
    filled = {head: cell for head in heads if (cell := " ".join(one.cells.get(head, "").split()))}
    methods = [head for head in filled if heads[head].startswith("tok_s:")]
    fields = {head: heads[head] for head in filled if head not in methods}
    own = {field: _cell(field, head, filled[head], in_percent=head in percent) for head, field in fields.items()}
    tested = re.match(r"(pp|tg) ?(\d+)(?:\+tg ?\d+)?(?: @ d(\d+))?$", own.get("prompt", ""))
    if tested and tested[1] == "pp":
        return
    if tested:
        own |= {"n_predict": tested[2], "prompt": "llama-bench"} | ({"n_prompt": tested[3]} if tested[3] else {})
    if counts := _COUNTS.search(own.get("acceptance", "")):  # `146/329`: accepted and proposed tokens
        accepted, proposed = (count.replace(",", "") for count in counts.groups())
        own = {"n_accepted": accepted, "n_proposed": proposed} | own
        del own["acceptance"]
    words = [c for h, c in one.cells.items() if h not in heads and h not in PASSED_OVER and not _SPEED.fullmatch(c)]
    quote = " | ".join(" ".join(cell.split()) for cell in one.cells.values() if cell.strip(" *_`"))
    for head in methods or [""]:
        speed = {"tok_s": _cell("tok_s", head, filled[head]), "drafter": head.lower()} if head else {}
        yield msgspec.structs.replace(
            one,
            quote=quote if len(quote) <= _QUOTED else f"{quote[: _QUOTED - 3]}...",
            setting=" ".join(" ".join(words).split()),
            cells=_method(own | speed),
            heads={field: head for head, field in heads.items()} | ({"tok_s": head} if head else {}),
        )


def _cell(field: str, head: str, text: str, *, in_percent: bool = False) -> str:
    text = text.strip("*_` ")
    if field in ("tok_s", "baseline_tok_s", "acceptance", "speedup", "n_prompt", "n_predict", "n_output"):
        counts = _COUNTS.search(text) if field == "acceptance" else None
        text = counts[0] if counts else re.sub(r"\s*(?:\(.*?\)|\[.*?\]|avg|median|mean)\s*", " ", text).strip()
    if field != "acceptance":
        text = re.sub(r"(?<=[\dx]) / (?=\d)", "-", text) if _SPEED.fullmatch(text) else text  # two runs: a range
    if field == "acceptance" and (in_percent or "%" in head) and "%" not in text and "/" not in text:
        return text if is_blank(text) else f"{text} %"
    if field == "gamma" and "block" in head.lower() and (block := re.match("[1-9][0-9]{0,2}", text)):
        return str(int(block[0]) - 1)  # the first token of a block is known
    if field == "mgl" and "accepted" in head.lower() and (value := value_of(text)) is not None:
        return f"{1 + value:.6g}"
    if field == "speedup" and text.endswith("%") and (text[0] in "+-\N{MINUS SIGN}" or _GAIN.search(_plain_head(head))):
        try:
            gain = parse_printed(text.lstrip("+"))
        except ValueError:
            return text
        return f"{1 + gain.low!r}-{1 + gain.high!r}" if gain.low > -1 else text
    return text


def _method(cells: dict[str, str]) -> dict[str, str]:
    """How the row drafted, by every word it says of it: ``MTP n-max 3`` is mtp at gamma 3, ``off`` plain decoding."""
    rest = dict(cells)
    method = rest.pop("drafter", "")
    named, draft = method.lower().strip(), rest.get("draft", "").lower()
    words = " ".join([method, *(cells.get(name, "") for name in ("draft", "label", "prompt"))]).lower()
    if found := _GAMMA.search(rest.get("gamma", words).lower()):
        rest["gamma"] = found[1]
    elif _PLAIN.match(rest.get("gamma", "").lower().lstrip("(")):
        rest["gamma"] = "0"
    drafted = any(not is_blank(rest.get(name, "")) for name in ("acceptance", "n_accepted", "mgl"))
    has_gamma, drafter = (rest.get("gamma") or "0") != "0", NO_DRAFTER
    if not (_PLAIN.match(named) if named else draft and (_PLAIN.match(draft) or is_blank(draft))):
        if (found := _METHOD.search(named)) or (named and (drafted or "gamma" in rest)):
            drafter = found[1] if found else _GAMMA.sub("", named).strip(" ,")
        elif draft:
            drafter = "draft-model"
        elif has_gamma or (drafted and rest.get("n_proposed") != "0") or {"speedup", "baseline_tok_s"} & set(rest):
            drafter = "unnamed"
    if drafter == NO_DRAFTER:
        method += f" {rest['gamma']}" if has_gamma else ""  # no length of drafts, but of something
        rest = {name: cell for name, cell in rest.items() if name not in ("gamma", "draft", "n_proposed", "n_accepted")}
    return rest | {"drafter": drafter} | ({"method": method} if method else {})


# --- tables -------------------------------------------------------------------------------------------------------

_RULE = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def _markdown(lines: list[str]) -> Iterator[PastedRow]:
    title, head, group = "", list[str](), 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("#"):
            title = text.strip("# *")
        if "|" not in text:
            head = []
        elif "|" in lines[number - 2] and number > 1 and _RULE.fullmatch(text) and "-" in text:
            head, group = _split(lines[number - 2]), number
        elif (
            head
            and not _RULE.fullmatch(text)
            and not _RULE.fullmatch(lines[number].strip() if number < len(lines) else "")
        ):
            cells = dict(zip(head, [*_split(line), *[""] * len(head)], strict=False))
            yield PastedRow(line=number, table=title, group=group, cells=cells)


def _split(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", _LINK.sub(r"\1", line.strip().strip("|")))
    return [re.sub(r"\\([\[\]_*.|+-])", r"\1", re.sub(r"<br ?/?>|\*\*", " ", cell).strip(" `*")) for cell in cells]


_DRAWN = re.compile(r"\s*[\u2500-\u257f]{20,}\s*")
_CAPTION = re.compile(r"\W*(Table \d+)[:.]")
_GROUP_OF_DRAFTS = re.compile(r"draft(?:er)?:? ", re.IGNORECASE)


def _ruled(lines: list[str]) -> Iterator[PastedRow]:
    """Tables as mlsd prints them: columns two spaces apart, their heads over a drawn rule."""
    head, group = list[str](), 0
    for number, line in enumerate(lines, 1):
        cells = re.split(r" {2,}", line.strip())
        if _DRAWN.fullmatch(line) and number > 1:
            head, group = re.split(r" {2,}", lines[number - 2].strip()), number
        elif len(cells) != len(head):
            head = head if line.strip() else []
        elif head:
            yield PastedRow(line=number, group=group, cells=dict(zip(head, cells, strict=True)))


def _tabbed(lines: list[str]) -> Iterator[PastedRow]:
    """Tables of a page whose cells stand between tabs, with one line of heads or two."""
    block = list[tuple[int, list[str]]]()
    for number, line in enumerate([*lines, ""], 1):
        if line.count("\t") > 1 or (block and "\t" in line):
            plain = (
                line.replace("$", "").replace("\\times", "x").replace("\\pm", "\N{PLUS-MINUS SIGN}").replace("\\", "")
            )
            block.append((number, [cell.strip() for cell in plain.split("\t")]))
            continue
        if len(block) > 1 and (len(block) < len(lines) or not all(block[0][1])):
            around = [*lines[max(0, block[0][0] - 4) : block[0][0] - 1][::-1], *lines[number - 1 : number + 2]]
            captions = [found[1] for text in around if (found := _CAPTION.match(text))]
            yield from _of_block(block, next(iter(captions), ""))
        block = []


def _of_block(block: list[tuple[int, list[str]]], title: str) -> Iterator[PastedRow]:
    (group, tops), (_, subs) = block[0], block[1]
    two_levels = not all(tops[1:-1]) and not subs[0] and not any(value_of(cell) is not None for cell in subs)
    columns, over = list[tuple[str, str]](), ""  # the head of each, and the head of the group that it is of
    for top, sub in itertools.zip_longest(tops, subs if two_levels else (), fillvalue=""):
        over = top or over
        columns.append((sub, over) if sub else (top, ""))
    groups = list(dict.fromkeys(name for _, name in columns if name))
    above = ""
    for number, cells in block[1 + two_levels :]:
        above = cells[0] or above  # a cell that stands for the rows below it, too
        row = list(zip(columns, [above, *cells[1:], *[""] * len(columns)], strict=False))
        for name in groups or [""]:
            own = {head: cell for (head, of), cell in row if head and of in ("", name)}
            if not name or not all(is_blank(cell) for (_, of), cell in row if of == name):
                cells_of_group = _of_group(name, [head for head, _ in columns])
                yield PastedRow(line=number, table=title, group=group, cells=_halved(own) | cells_of_group)


def _halved(cells: dict[str, str]) -> dict[str, str]:
    """``Target / gamma`` as two columns."""
    halves: dict[str, str] = {}
    for head, cell in cells.items():
        names, values = head.split(" / "), cell.split(" / ")
        halves |= dict(zip(names, values, strict=True)) if len(names) == len(values) == 2 else {head: cell}
    return halves


def _of_group(name: str, heads: list[str]) -> dict[str, str]:
    """What the head over a group of columns says of them: a draft, a model, or else a text."""
    if not name or _GROUP_OF_DRAFTS.match(name):
        return {"draft": _GROUP_OF_DRAFTS.sub("", name)} if name else {}
    named = any(_KNOWN["target"].fullmatch(_plain_head(head.partition(" / ")[0])) for head in heads)
    return {"prompt" if named else "model": name}


def _delimited(text: str, source: str) -> Iterator[PastedRow]:
    """CSV by comma, tab or semicolon, whichever its first line holds most of."""
    lines = text.splitlines()
    first = next(iter(lines), "")
    mark = max(",\t;", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    try:
        head = [name.strip() for name in next(reader, [])]
        twice = sorted({name for name in head if name and head.count(name) > 1})
        if twice:
            raise TableError(f"{source}, line 1: column {', '.join(twice)} appears twice.")
        for cells in reader:
            if len(cells) > len(head):
                broken = f"{len(cells) - len(head)} more cells than columns"
                yield PastedRow(line=reader.line_num, group=1, broken=broken)
            elif any(cell.strip() for cell in cells):
                named = dict(zip(head, [*cells, *[""] * len(head)], strict=False))
                yield PastedRow(line=reader.line_num, group=1, cells=named)
    except csv.Error as error:
        raise TableError(f"{source}, line {reader.line_num}: not readable as CSV: {error}.") from error


# --- logs ---------------------------------------------------------------------------------------------------------

_N = r"\s*=\s*([\d.]+)"
_BENCH = re.compile(
    r"\s*(\S+)\s+pred=\s*(\d+)\s+draft=\s*(\d+)\s+acc=\s*(\d+)\s+rate=\s*(\S+)(?:\s+tok/s=\s*([\d.]+))?"
)
_EVAL = re.compile(rf"(prompt )?\beval time{_N} ms /\s*(\d+) (?:tokens|runs)(?:.*?([\d.]+) tokens per second)?")
_ACCEPTANCE = re.compile(
    rf"draft acceptance(?: rate)?{_N}\s*\(\s*(\d+) accepted /\s*(\d+) generated\)(?:.*?mean len{_N})?"
)
_ANSWER = "answer"  # a column of logs: answers of one server differ in depth, and are no repeats
# llama-speculative sums up an answer so.
_DECODED = re.compile(r"\bdecoded\s+(\d+) tokens in\s+[\d.]+ seconds, speed:\s+([\d.]+) t/s")
_COUNTED = re.compile(rf"(n_draft|n_drafted|n_accept){_N}$")
_FAILED = re.compile(r"failed to decode|llama_decode.* failed")
_MODEL = re.compile(r"(?:^|\s)(?:-m|--model|-hf|-hfr?|--hf-repo)\s+(\S+)")
_N_MAX = re.compile(r"--(?:spec-)?draft-(?:n-)?max\s+(\d+)")


def _log_rows(lines: list[str]) -> tuple[list[PastedRow], list[int]]:
    """Timings of llama-server and llama-speculative, and mtp-bench's lines; a command above names model and n-max.

    How many tokens of a prompt were read says nothing of how deep the context is: a server keeps what it read before.
    What failed to decode belongs to the answer that is timed next. Also returns the numbers of the skipped lines.
    """
    rows, skipped = list[PastedRow](), list[int]()
    around: dict[str, str] = {}
    last = dict[str, str]()  # of the answer that is being read
    title, failed = "", 0

    def add(number: int, cells: dict[str, str]) -> None:
        nonlocal failed, last
        if cells.get("tok_s") or "n_proposed" in cells:
            told = {"failed_calls": str(failed)} if failed else {}
            rows.append(PastedRow(line=number, table=title, cells=cells | told))
            failed = 0
        last = {}

    for number, line in enumerate(lines, 1):
        known = not line.strip() or line.startswith("#") or "|" in line
        if line.startswith("#"):
            title = line.strip("# *")
        if re.search(r"llama-\w+|mtplx|mlx_lm", line) and (model := _MODEL.search(line)):
            around, known = {"target": model[1].rsplit("/", 1)[-1]}, True
        if n_max := _N_MAX.search(line):
            around["gamma"], known = n_max[1], True
        of_model = {name: cell for name, cell in around.items() if name == "target"}
        if _FAILED.search(line):
            if last.get("tok_s"):
                add(number, last)
            failed += 1
        elif found := _BENCH.match(line):
            prompt, made, drafted, accepted, rate, speed = found.groups()
            counts = {"n_proposed": drafted, "n_accepted": accepted, "acceptance": rate, **around}
            if drafted == "0":
                counts = of_model | {"drafter": NO_DRAFTER}
            add(number, {"prompt": prompt, "n_output": made, "tok_s": speed or "", **counts})
        elif found := _EVAL.search(line):
            if found[1]:
                add(number, last)
            else:
                last |= {"n_output": found[3], "tok_s": found[4] or "", _ANSWER: f"answer {number}", **of_model}
        elif found := _DECODED.search(line):
            add(number, last)
            last = {"n_output": found[1], "tok_s": found[2], **around}
        elif found := _COUNTED.search(line.strip()):
            last[{"n_draft": "gamma", "n_drafted": "n_proposed", "n_accept": "n_accepted"}[found[1]]] = found[2]
        elif found := _ACCEPTANCE.search(line):
            rate, accepted, drafted, mean = found.groups()
            last |= {"n_proposed": drafted, "n_accepted": accepted, "acceptance": rate, **around}
            add(number, last | ({"mgl": mean} if mean else {}))
        elif not known:
            skipped.append(number)
    add(len(lines), last)
    return rows, skipped
