"""Tables and logs as people paste them: CSV, JSON, SQL, tabs, Markdown, a page of a paper, what mlsd and others print.

Every row becomes cells by the names that the audit knows (`headings.HEADINGS`), each as it was printed. What is in no
row of a table but holds for all that follow (a command's model and gamma, the one chip that a text names) is added.
"""

import csv
import io
import itertools
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from mlsd.audits.headings import SPEED, Heading, column, is_gain, is_measured, is_plain, method_in, plain_heading
from mlsd.audits.logs import log_rows
from mlsd.audits.model_name import read_model_name
from mlsd.audits.printed import in_percent, is_blank, parse_printed, value_of
from mlsd.audits.rows import PastedRow
from mlsd.errors import TableError
from mlsd.hardware.chips import named_chip
from mlsd.outside import parse
from mlsd.records import NO_DRAFTER
from mlsd.stats import grouped

_SPEEDS = ("tok_s", "baseline_tok_s", "ms_per_token", "speedup")  # without any of these a table is of something else
# A text that names such a one, too, is of several machines.
_OTHER_CHIPS = re.compile(r"\b(?:AMD|Intel|NVIDIA|EPYC|Xeon|Ryzen|Radeon|GeForce|[RG]TX|[ABH][1-9]00)\b")
_QUOTED = 90  # letters of a row
_SHOWN = 3  # skipped lines that a note quotes
# Letters of a line that is read as a row or a log: patterns with brackets take the square of a line's length.
_LONGEST_LINE = 5_000
_FEWEST_LINES = 4  # of a text before most of them must have as many cells as its heads
_LEAST_NUMBERS = 0.1  # of the rows of a table hold a number where a speed should stand
# `n=3` counts runs and `top-k 20` sampled tokens: neither is a length of drafts.
_GAMMA = re.compile(
    r"(?:n[-_ ]?max|draft[-_ ]?(?:n[-_ ]?)?max|gamma|γ|depth|num[-_ ]spec\w*[-_ ]tokens|--draft"
    r"|(?<![a-z-])[kd](?=[=: ]?\d)"
    r"|\bmtp(?=-?\d)|(?<=mtp )n(?=[=: ]?\d))"
    r"\s*[-=: ]?\s*(\d{1,3})(?![\d.]|[a-z])"
)
_N_OF_COLUMN = re.compile(r"(?<![a-z])n\s*[=: ]?\s*(\d{1,3})(?![\d.]|[a-z])")
_PAIR = re.compile(r"(?<![\d.])(\d[\d,]*)\s*(?:/|of|out of)\s*(\d[\d,]*)(?![\d.]|\s*%)")
_SEVERAL_USERS = re.compile(
    r"\b([2-9]|\d\d+) (?:streams|users|requests|parallel)|\(?\b[CB] ?= ?([2-9]|\d\d+)\b|\bC([2-9]|\d\d+)\)"
)


def read_pasted(data: bytes, source: str) -> tuple[list[PastedRow], list[str]]:
    """Rows of every table and log in a text, and notes: what was taken from around them, and what is not read.

    Raises: TableError where there are none, or a table is not whole.
    """
    text = _text_of(data, source)
    whole = text.splitlines()
    lines = [line if len(line) <= _LONGEST_LINE else "" for line in whole]
    logged, skipped = log_rows(lines)
    pasted = [*_markdown(lines), *_listed(lines), *_ruled(lines), *_tabbed(lines), *logged, *_json(text), *_sql(lines)]
    pasted = pasted or list(_delimited(lines, source))
    rows, unused, seen = list[PastedRow](), list[str](), list[str]()
    for group in grouped(pasted, lambda row: row.group).values():
        columns, turned = _columns(group), _transposed(group)
        if not _holds(columns, *_SPEEDS) or (turned and Heading("tok_s") not in columns.values()):
            columns = _columns(turned)
            if not _holds(columns, "tok_s", "speedup"):
                if names := ", ".join(filter(None, group[0].cells)):
                    seen.append(f"line {group[0].line}: {names[:_QUOTED]}")
                continue
            group = turned
        read = _table(group, columns)
        n_speeds = sum(any(SPEED.fullmatch(row.cells.get(name, "")) for name in _SPEEDS) for row in read)
        all_broken = all(row.broken for row in group)
        if n_speeds < _LEAST_NUMBERS * len(read) and not all_broken:  # prose, a page of help, a glossary
            seen.append(f"line {group[0].line}: words alone in {', '.join(columns)}"[:_QUOTED])
            continue
        unused += [head for head in group[0].cells if head not in columns and head not in ("", "answer")]
        rows += read
    if not rows:
        raise _nothing_read(source, lines, seen)
    chips = list(dict.fromkeys(itertools.chain.from_iterable(map(chips_in, lines))))
    notes = list[str]()
    if len(chips) == 1 and not _OTHER_CHIPS.search(text) and not any("chip" in row.cells for row in rows):
        rows = [msgspec.structs.replace(row, cells=row.cells | {"chip": chips[0]}) for row in rows]
        notes.append(f"The chip of all rows is the one that the text names: {chips[0]}.")
    if logged and skipped:
        first = "; ".join(f"line {number}: {lines[number - 1].strip()[:60]}" for number in skipped[:_SHOWN])
        more = f"; and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
        notes.append(f"{len(skipped)} lines of the log were skipped: {first}{more}.")
    if lines != whole:
        too_long = ", ".join(str(number) for number, line in enumerate(whole, 1) if len(line) > _LONGEST_LINE)
        notes.append(f"Lines of over {_LONGEST_LINE:,} letters were read as JSON only: {too_long[:_QUOTED]}.")
    if seen:
        notes.append(f"Tables without a column of decode speeds were passed over ({'; '.join(seen[:_SHOWN])}).")
    rows.sort(key=lambda row: row.line)
    if unused:
        notes.append(f"Columns that no rule uses: {', '.join(dict.fromkeys(unused))}.")
    return rows, notes


def _nothing_read(source: str, lines: list[str], seen: list[str]) -> TableError:
    """Which columns and lines were seen, and what they lack."""
    hint = "Columns that are read: model, tok/s, baseline, gamma, acceptance, speedup, chip, quant, ...; or a log."
    speeds = [
        (i, line.strip()) for i, line in enumerate(lines, 1) if re.search(r"\d ?(?:tok\w*[/-]|t/s|tps)", line.lower())
    ]
    quoted = "; ".join(f"line {i}: {line[:60]}" for i, line in speeds[:_SHOWN])
    what = [f"no column of its tables is a decode speed; columns seen: {'; '.join(seen[:_SHOWN])}"] if seen else []
    what += [f"lines that name a speed stand in no table or log that is known: {quoted}"] if speeds else []
    what = what or ["it holds no table, and no log that is known"]
    return TableError(f"{source} holds no row with a speed that could be read: {'; '.join(what)}.", hint=hint)


def chips_in(text: str) -> list[str]:
    """Every chip that a text names."""
    newer = r"\b[AM]\d+(?: \w+)?(?:\+(?!\w)| (?:and|or) (?:later|newer|up))"  # names none
    parts = re.split(r"[,;/|()+&]|\band\b|\bvs\.?\b|\bor\b", re.sub(newer, "", text))
    return list(dict.fromkeys(filter(None, map(named_chip, parts))))


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


_FIRST = ("model_gb", "tok_s", "target")  # of two columns with one meaning these are read, else the first
_WHOLE_ANSWER = re.compile(r"\b(?:end to end|e2e|total)\b")  # its prompt's time included
_BARE = ("x", "×", "ratio", "change", "delta", "δ", "gain", "relative", "%")  # beside no speed one may be of times


def _columns(rows: Sequence[PastedRow]) -> dict[str, Heading]:
    """What each column holds that is read."""
    heads = dict.fromkeys(head for row in rows for head in row.cells)
    chosen: dict[str, Heading] = {}
    for head in sorted(heads, key=lambda head: plain_heading(head).replace(" ", "_") not in _FIRST):
        meant = column(head, [cell for row in rows if not is_blank(cell := row.cells.get(head, ""))])
        if meant is not None and meant not in chosen.values():
            chosen[head] = meant
    speeds = [head for head, meant in chosen.items() if meant.field == "tok_s"]
    decoding = [head for head in speeds if not _WHOLE_ANSWER.search(plain_heading(head))] or speeds
    chosen = {head: meant for head, meant in chosen.items() if meant.field != "tok_s" or head in decoding}
    figures = set(chosen.values())
    alone = Heading("tok_s") in figures or not decoding  # that of the row: what names something is of something else
    timed = _holds(chosen, "tok_s", "baseline_tok_s", "ms_per_token")
    left = dict(zip(heads, ["", *heads], strict=False))
    return {
        head: meant for head, meant in chosen.items()
        if not (alone and meant.of and Heading(meant.field) in figures)
        and (meant.field != "speedup" or _is_speedup(head, left[head], rows, chosen, timed=timed))
        and (meant.field != "gamma" or plain_heading(head) not in ("n", "k", "d") or _is_gamma(head, rows, chosen))
    }  # fmt: skip


def _is_speedup(
    head: str, left: str, rows: Sequence[PastedRow], columns: Mapping[str, Heading], *, timed: bool
) -> bool:
    """Whether a column of ratios is over plain decoding: not of times or memory, not over an arm that drafts."""
    if plain_heading(re.sub(r"\(.*?\)", "", head)) in _BARE and (
        not timed or (left not in columns and is_measured(left))
    ):
        return False
    if re.search(r"\bvs\b", plain_heading(head)) and method_in(plain_heading(head).partition("vs")[2]):
        return False
    drafter = next((name for name, meant in columns.items() if meant.field == "drafter"), "")
    ratios = [(row.cells.get(drafter, ""), value_of(row.cells.get(head, ""))) for row in rows]
    plain = [ratio for method, ratio in ratios if method and is_plain(method) and ratio is not None]
    return all(ratio == 1 for ratio in plain) or not any(ratio == 1 and method_in(method) for method, ratio in ratios)


def _is_gamma(head: str, rows: Sequence[PastedRow], columns: Mapping[str, Heading]) -> bool:
    """Whether a letter is the length of drafts: most rows commit no more than it allows, else it counts branches."""
    length = next((name for name, meant in columns.items() if meant.field == "mgl"), "")
    pairs = [[value_of(_no_brackets(row.cells.get(name, ""))) for name in (head, length)] for row in rows]
    fits = [mgl <= gamma + 1 for gamma, mgl in pairs if gamma is not None and mgl is not None]
    return not fits or 2 * sum(fits) > len(fits)


def _holds(columns: Mapping[str, Heading], *fields: str) -> bool:
    return any(meant.field in fields for meant in columns.values())


def _transposed(rows: Sequence[PastedRow]) -> list[PastedRow]:
    """A table whose arms are columns and whose figures are rows, turned round; empty for another."""
    heads = list(rows[0].cells)
    names = [row.cells.get(next(iter(heads), ""), "") for row in rows]
    figures = {name: meant for name in names if (meant := column(name, [])) is not None}
    distinct = len(set(names)) == len(names) <= 60 and not any(row.broken for row in rows)
    if len(heads) < 2 or not distinct or not _holds(figures, "tok_s", "speedup"):
        return []
    if column(heads[0], names) == Heading("prompt"):  # `tg128` under `test` names a test, not a figure
        return []
    arms = {head: [row.cells.get(head, "") for row in rows] for head in heads[1:] if head}
    turned = ({"method": head} | dict(zip(names, cells, strict=True)) for head, cells in arms.items())
    return [msgspec.structs.replace(rows[0], cells=cells) for cells in turned]


def _table(rows: Sequence[PastedRow], columns: Mapping[str, Heading]) -> list[PastedRow]:
    """The rows of a table, one for each method, chip or workload that its columns of speeds name."""
    rates = [head for head, meant in columns.items() if meant.field == "acceptance"]
    percent = {head for head in rates if in_percent(row.cells.get(head, "") for row in rows)}
    gains = {
        head for head, meant in columns.items() if meant.field == "speedup" and _percent_is_gain(head, rows, columns)
    }
    return [cells for row in rows for cells in _rows(row, columns, percent, gains)]


def _percent_is_gain(head: str, rows: Sequence[PastedRow], columns: Mapping[str, Heading]) -> bool:
    """Whether `68 %` in a column of ratios says how much more than plain, not how much of it.

    Where both speeds are printed, the reading that fits decides; a plain row of 100 % says how much of it.
    """

    def cells(*fields: str) -> list[str]:
        name = next((name for name, meant in columns.items() if meant.field in fields), "")
        return [_no_brackets(row.cells.get(name, "")) for row in rows]

    ratios = [row.cells.get(head, "") for row in rows]
    if any(re.match(r"\s*[+\N{MINUS SIGN}-]", ratio) for ratio in ratios):
        return True
    shares = [value_of(_percent(head, ratio)) for ratio in ratios]
    speeds, methods = list(map(value_of, cells("tok_s"))), cells("drafter", "draft")
    plain = next((speed for speed, method in zip(speeds, methods, strict=True) if is_plain(method or "none")), None)
    votes = 0.0
    for share, speed, beside in zip(shares, speeds, map(value_of, cells("baseline_tok_s")), strict=True):
        over = beside or plain
        if share and share > 0 and speed and over and speed != over:
            votes += abs(math.log(speed / over / share)) - abs(math.log(speed / over / (1 + share)))
    if votes:
        return votes > 0
    if any(is_plain(method or "?") and share == 1.0 for method, share in zip(methods, shares, strict=True)):
        return False
    return is_gain(head) or plain_heading(head).startswith("speed")


def _rows(
    row: PastedRow, columns: Mapping[str, Heading], percent: Container[str], gains: Container[str]
) -> Iterator[PastedRow]:
    """The rows that one line gives: one for each column of speeds; none for llama-bench's prefill."""
    if row.broken:
        yield row
        return
    filled = {head: cell for head in columns if (cell := " ".join(row.cells.get(head, "").split()))}
    variants = list(dict.fromkeys(_variant(columns[head].of) for head in filled if columns[head].field == "tok_s"))
    several = len(variants) - ("" in variants) > 1
    setting = " ".join(
        f"{head}={' '.join(cell.split())}" for head, cell in row.cells.items() if _is_setting(head, columns)
    )
    quote = " | ".join(" ".join(cell.split()) for cell in row.cells.values() if cell.strip(" *_`"))
    quote = quote if len(quote) <= _QUOTED else f"{quote[: _QUOTED - 3]}..."
    for variant in variants or [""]:
        fields, heads = dict[str, str](), dict[str, str]()
        for head, cell in filled.items():
            field, of = columns[head]
            of_another = _variant(of) not in ("", variant) and (several or field == "tok_s")
            if field not in fields and not of_another:
                fields[field] = _cell(field, head, cell, in_percent=head in percent, gain=head in gains)
                heads[field] = head
        tested = re.match(r"(pp|tg) ?(\d+)(?:\+tg ?\d+)?(?: @ d(\d+))?$", fields.get("prompt", ""))
        if (tested and tested[1] == "pp") or fields.get("n_predict") == "0":
            continue
        if tested:
            fields |= {"n_predict": tested[2], "prompt": "llama-bench"} | ({"n_prompt": tested[3]} if tested[3] else {})
        cells = _length(_method(_acceptance(_named_by(variant, fields))), heads.get("mgl", ""))
        if _on_cpu(*(cells.pop(name, "").strip().lower() for name in ("backend", "ngl", "threads"))):
            cells["on_cpu"] = "1"
        yield msgspec.structs.replace(row, quote=quote, setting=setting, cells=cells, heads=heads)


def _is_setting(head: str, columns: Mapping[str, Heading]) -> bool:
    """Whether rows that differ in a column are of different settings: all that neither measures nor identifies."""
    return columns[head].field in ("backend", "ngl", "threads") if head in columns else not is_measured(head)


def _on_cpu(backend: str, ngl: str, threads: str) -> bool:
    """Whether the processor's cores computed: as its backend says, else layers on the GPU, else a count of threads."""
    return backend == "cpu" if backend else ngl == "0" if ngl else bool(threads)


def _variant(of: str) -> str:
    """The method, chip or workload in a heading, without the measure that stands beside it."""
    bare = re.sub(
        r"\b(?:tok(?:en)?s?(?:/| per )s(?:ec(?:ond)?)?|t/s|tps|toks/s|decode|speed)\b|[()\[\]]", " ", plain_heading(of)
    )
    return " ".join(bare.split())


def _named_by(variant: str, cells: dict[str, str]) -> dict[str, str]:
    """The cells with what the heading of their speed names: a chip, a method, or a text."""
    if not variant:
        return cells
    if (chip := named_chip(variant)) is not None:
        return cells | {"chip": chip}
    if method_in(variant) is None and not variant.startswith("with") and not _GAMMA.search(variant):
        return cells | {"prompt": f"{cells.get('prompt', '')} {variant}".strip()}
    method = cells.get("drafter", "")
    return cells | {"drafter": variant if method_in(method) is not None else f"{method} {variant}".strip()}


# --- cells --------------------------------------------------------------------------------------------------------


def _no_brackets(text: str) -> str:
    return re.sub(r"\s*(?:\(.*?\)|\[.*?\]|avg|median|mean|aggregate)\s*", " ", text.strip("*_` ")).strip()


def _cell(field: str, head: str, text: str, *, in_percent: bool, gain: bool) -> str:
    text = text.strip("*_` ")
    if field in ("tok_s", "baseline_tok_s", "acceptance", "speedup", "n_prompt", "n_predict", "n_output"):
        counts = _PAIR.search(text) if field == "acceptance" else None
        text = counts[0] if counts and _is_count(counts) else _no_brackets(text)
    if field != "acceptance":
        text = re.sub(r"(?<=[\dx]) / (?=\d)", "-", text) if SPEED.fullmatch(text) else text  # two runs: a range
    if field == "acceptance" and (in_percent or "%" in head) and "%" not in text and "/" not in text:
        return text if is_blank(text) else f"{text} %"
    if field == "gamma" and "block" in head.lower() and (block := re.match("[1-9][0-9]{0,2}", text)):
        return str(int(block[0]) - 1)  # the first token of a block is known
    if field == "gamma" and plain_heading(head) in ("n", "k", "d") and (count := _N_OF_COLUMN.fullmatch(text)):
        return count[1]
    text = _percent(head, text) if field == "speedup" else text
    if field == "speedup" and text.endswith("%") and (gain or text[0] in "+-\N{MINUS SIGN}"):
        try:
            more = parse_printed(text.lstrip("+"))
        except ValueError:
            return text
        return f"{1 + more.low!r}-{1 + more.high!r}" if more.low > -1 else text
    return text


def _percent(head: str, text: str) -> str:
    """A cell of ratios with the sign that its heading bears for it; `95 % CI` in a heading is none."""
    return f"{text}%" if text and "%" in re.sub(r"\d+ ?%", "", head) and not re.search("[%x]", text) else text


def _is_count(pair: re.Match[str]) -> bool:
    first, second = (int(number.replace(",", "")) for number in pair.groups())
    return first <= second and second > 1


def _acceptance(cells: dict[str, str]) -> dict[str, str]:
    """Two figures with a slash: accepted and proposed tokens, else rates, lengths or positions, whose span is kept.

    `2.53/3` are accepted of proposed tokens a round: no length and no rate is said.
    """
    text = cells.get("acceptance", "").strip()
    rest = {name: cell for name, cell in cells.items() if name != "acceptance"}
    if pair := _PAIR.fullmatch(text):
        accepted, proposed = (count.replace(",", "") for count in pair.groups())
        if _is_count(pair) or (int(accepted) > int(proposed) and int(accepted) > 100):
            return {"n_accepted": accepted, "n_proposed": proposed} | rest
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]
    if "/" not in text or not numbers:
        is_length = numbers and "%" not in text and 1 < numbers[0] <= 20 and "." in text and "mgl" not in cells
        return rest | {"mgl": text} if is_length else cells
    span = f"{min(numbers):g}-{max(numbers):g}"
    if "%" in text or min(numbers) > 20 or max(numbers) <= 1:
        return rest | {"acceptance": span if max(numbers) <= 1 and "%" not in text else f"{span} %"}
    no_length = min(numbers) < 1 or text.strip("~ ").count("/") > 1 or re.match(r"[^/]*\.[^/]*/\s*\d+\s*$", text)
    return rest if no_length else {"mgl": span} | rest


def _length(cells: dict[str, str], head: str) -> dict[str, str]:
    """Tokens a round: under a heading `accepted` programs count the target's own token or not.

    Rate and gamma, or rounds and output, say which; else it may be either.
    """
    value = value_of(cells.get("mgl", "")) if "accepted" in head.lower() else None
    if value is None:
        return cells
    rate, gamma = value_of(cells.get("acceptance", "")), value_of(cells.get("gamma", ""))
    rounds, output = value_of(cells.get("rounds", "")), value_of(cells.get("n_output", ""))
    expected = output / rounds if rounds and output else 1 + gamma * rate if gamma and rate is not None else None
    if expected is None:
        return cells | {"mgl": f"{cells['mgl']}-{value + 1:g}" if value >= 1 else f"{1 + value:g}"}
    lacks_bonus = abs(value + 1 - expected) < abs(value - expected)
    return cells | ({"mgl": f"{1 + value:.6g}"} if lacks_bonus else {})


def _method(cells: dict[str, str]) -> dict[str, str]:
    """How the row drafted, by every word it says of it: ``MTP n-max 3`` is mtp at gamma 3, ``off`` plain decoding."""
    rest = dict(cells)
    method = rest.pop("drafter", "").strip()
    if _SEVERAL_USERS.search(method):
        rest.setdefault("users", "2")
    rest, method = _models_in(rest, method)
    draft = rest.get("draft", "").lower()
    text = " ".join([method, *(cells.get(name, "") for name in ("draft", "label", "prompt"))]).lower()
    text = re.sub(r"top[-_ ]?[kp]\s*[=: ]?\s*[\d.]+", " ", text)
    gamma = rest.get("gamma", "")
    if match := _GAMMA.search(gamma.lower() or text):
        rest["gamma"] = match[1]
    elif gamma and gamma.lower() not in ("auto", "?") and is_plain(gamma):
        rest["gamma"] = "0"
    elif gamma and (count := _N_OF_COLUMN.search(gamma.lower())):
        rest["gamma"] = count[1]
    rate, accepted, mgl = (value_of(rest.get(name, "")) for name in ("acceptance", "n_accepted", "mgl"))
    drafted = bool(rate or accepted or (mgl or 0) > 1 or "/" in rest.get("acceptance", ""))
    has_gamma, proposes, drafter = (rest.get("gamma") or "0") != "0", rest.get("n_proposed") != "0", NO_DRAFTER
    named = method_in(method)
    is_base = value_of(rest.get("speedup", "")) == 1.0 and not drafted
    if named is not None:
        drafter = named
    elif drafted and method and proposes:
        drafter = (not is_plain(method) and _GAMMA.sub("", method.lower()).strip(" ,")) or "unnamed"
    elif method and is_plain(method) and not (has_gamma and "baseline_tok_s" in rest):
        pass
    elif draft and not (is_plain(draft) or is_blank(draft)):
        drafter = method_in(draft) or "draft-model"
    elif draft and not drafted and not (method or has_gamma):
        pass
    elif method and "gamma" in rest and has_gamma:
        drafter = (not is_plain(method) and _GAMMA.sub("", method.lower()).strip(" ,")) or "unnamed"
    elif has_gamma or (drafted and proposes) or ({"speedup", "baseline_tok_s"} & set(rest) and not is_base):
        drafter = "unnamed"
    if drafter == NO_DRAFTER:
        method += f" {rest['gamma']}" if has_gamma else ""  # no length of drafts, but of something
        rest = {name: cell for name, cell in rest.items() if name not in ("gamma", "draft", "n_proposed", "n_accepted")}
    return rest | {"drafter": drafter} | ({"method": method} if method else {})


_MODEL = re.compile(
    r"[A-Za-z][\w.]*[ -]?(?:[\d.]+[ -])?(?:[\w.]+-)*?\d+(?:\.\d+)?[BbMm](?![a-z])[\w.-]*(?: (?:UD-)?I?Q\d\w*"
    r"| \d-?bit)?"
)


def _models_in(cells: dict[str, str], method: str) -> tuple[dict[str, str], str]:
    """Models that stand in the cell of a method: a target and its draft, or the draft of a row that drafts."""
    target = cells.get("target", "")
    if " + " in (target or method):
        first, second = (part.strip() for part in (target or method).split(" + ", 1))
        sizes = [read_model_name(part).total_b for part in (first, second)]
        if all(sizes):
            draft = _MODEL.search(second)
            cells = cells | {"target": first, "draft": cells.get("draft") or (draft[0].strip() if draft else second)}
            return cells, method if target else "draft-model"
    named = _MODEL.search(method)
    if named is None or method_in(method) is not None or read_model_name(named[0]).total_b is None:
        return cells, method
    evidence = any(not is_blank(cells.get(name, "")) for name in ("gamma", "acceptance", "n_accepted", "mgl"))
    if evidence or _GAMMA.search(method.lower()):
        return {"draft": named[0].strip()} | cells, f"draft-model {method.replace(named[0], '')}".strip()
    if not target and "baseline_tok_s" not in cells and "speedup" not in cells:
        return cells | {"target": method}, ""
    return cells, method


# --- tables -------------------------------------------------------------------------------------------------------

_RULE = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def _unlike(heads: Iterable[str]) -> list[str]:
    """Headings of which no two are equal."""
    seen: dict[str, int] = {}
    result = []
    for head in heads:
        seen[head] = seen.get(head, 0) + 1
        result.append(head if seen[head] == 1 or not head else f"{head} {seen[head]}")
    return result


def _markdown(lines: list[str]) -> Iterator[PastedRow]:
    title, above, head, group = "", "", list[str](), 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("#"):
            title, above = text.strip("# *"), ""
        elif text and "|" not in text:
            above = text
        if "|" not in text:
            head = []
        elif "|" in lines[number - 2] and number > 1 and _RULE.fullmatch(text) and "-" in text:
            head, group = _unlike(_split(lines[number - 2])), number
        elif (
            head
            and not _RULE.fullmatch(text)
            and not _RULE.fullmatch(lines[number].strip() if number < len(lines) else "")
        ):
            cells = dict(zip(head, [*_split(line), *[""] * len(head)], strict=False))
            yield PastedRow(line=number, table=title, above=above, group=group, cells=cells)


def _split(line: str) -> list[str]:
    cells = re.split(r"(?<!\\)\|", _LINK.sub(r"\1", line.strip().strip("|")))
    return [
        re.sub(r"\\([\[\]_*.|+-])", r"\1", re.sub(r"<br ?/?>|\*\*|</?\w+>", " ", cell)).strip(" `*") for cell in cells
    ]


_POINT = re.compile(
    r"\s*[-*+\N{BULLET}] +\**(?P<method>[^:=|]{1,60}?)\**\s*(?:[:=|\N{EM DASH}\N{EN DASH}]|->)[\s*]*"
    r"(?P<tok_s>~?\d[\d.,]*) ?(?:tok(?:en)?s?(?:/| per )s(?:ec(?:ond)?)?|t/s|tps)\b(?P<rest>.*)",
    re.IGNORECASE,
)
_OF_POINT = {
    "acceptance": re.compile(
        r"accept\w*(?: rate)?[ :=]*(?:of )?(\d[\d.]* ?%?|\d+/\d+)|(\d[\d.]* ?%) accept", re.IGNORECASE
    ),
    "speedup": re.compile("(?<![\\d.])(\\d+\\.\\d+) ?[x\N{MULTIPLICATION SIGN}]"),
}


def _listed(lines: list[str]) -> Iterator[PastedRow]:
    """Points of a list that each name an arm and its speed, where plain decoding and a method are among them."""
    title, points = "", list[tuple[int, re.Match[str]]]()
    for number, line in enumerate([*lines, ""], 1):
        if match := _POINT.match(line):
            points.append((number, match))
            continue
        methods = [match["method"] for _, match in points]
        if any(map(is_plain, methods)) and any(map(method_in, methods)):
            for at, match in points:
                figures = {name: figure for name, of in _OF_POINT.items() if (figure := of.search(match["rest"]))}
                cells = {name: next(filter(None, figure.groups())) for name, figure in figures.items()}
                cells = {"method": match["method"], "tok/s": match["tok_s"]} | cells
                yield PastedRow(line=at, table=title, group=points[0][0], cells=cells)
        points = []
        title = line.strip("# *") if line.startswith("#") else title


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
            of_row = {head: cell for (head, of), cell in row if head and of in ("", name)}
            if not name or not all(is_blank(cell) for (_, of), cell in row if of == name):
                cells_of_group = _of_group(name, [head for head, _ in columns])
                yield PastedRow(line=number, table=title, group=group, cells=_halved(of_row) | cells_of_group)


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
    named = any(column(head.partition(" / ")[0], []) == Heading("target") for head in heads)
    return {"prompt" if named else "model": name}


def _delimited(lines: list[str], source: str) -> Iterator[PastedRow]:
    """CSV by comma, tab or semicolon, from the first line that heads a column of speeds; comments are passed over."""
    kept = [
        (number, line) for number, line in enumerate(lines, 1) if line.strip() and not re.match(r"#\s*[^,;\t]", line)
    ]
    mark = max(",\t;", key=lambda sign: max((line.count(sign) for _, line in kept), default=0))
    starts = (i for i, (_, line) in enumerate(kept) if any(map(_heads_speed, line.split(mark))))
    kept = kept[next(starts, 0) :]
    title = " ".join(line.strip("# ") for line in lines[: kept[0][0] - 1]) if kept else ""
    reader = csv.reader(io.StringIO("\n".join(line for _, line in kept), newline=""), delimiter=mark, strict=True)
    at, n_whole, rows = 0, 0, list[PastedRow]()
    try:
        head = [name.strip() for name in next(reader, [])]
        if twice := sorted({name for name in head if name and head.count(name) > 1}):
            raise TableError(f"{source}, line {kept[0][0]}: column {', '.join(twice)} appears twice.")
        for cells in reader:
            at = kept[min(reader.line_num, len(kept)) - 1][0]
            n_whole += len(cells) == len(head) and (len(head) > 1 or bool(SPEED.fullmatch(cells[0])))
            if len(cells) > len(head):
                rows.append(PastedRow(line=at, group=1, broken=f"{len(cells) - len(head)} more cells than columns"))
            elif any(cell.strip() for cell in cells):
                named = dict(itertools.zip_longest(head, cells, fillvalue=""))
                rows.append(PastedRow(line=at, table=title, group=1, cells=named))
    except csv.Error as error:
        raise TableError(f"{source}, line {at + 1}: not readable as CSV: {error}.") from error
    if (
        2 * n_whole >= len(rows) or len(rows) < _FEWEST_LINES
    ):  # else prose, of which a line holds a word that heads a column
        yield from rows


def _heads_speed(name: str) -> bool:
    meant = column(name.strip(' "'), [])
    return meant is not None and meant.field in _SPEEDS


def _json(text: str) -> Iterator[PastedRow]:
    """Every object with a speed in a JSON document, or in its lines, with what the objects round it say."""
    objects = itertools.chain.from_iterable(_objects(document, {}) for document in _documents(text))
    for number, cells in enumerate(objects, 1):
        yield PastedRow(line=number, group=1, cells=cells)


def _documents(text: str) -> list[Any]:
    """A text that is JSON, or each of its lines; none where it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return []
    for parts in ([text], [line for line in text.splitlines() if line.strip()]):
        with suppress(TableError):
            return [parse(part.encode(), Any, "The table", TableError) for part in parts]
    return []


_PARTS = (
    "timings",
    "metrics",
    "usage",
    "result",
    "results",
    "stats",
    "receipt",
    "scores",
)  # of an answer, no names of arms


def _objects(value: Any, around: dict[str, str]) -> Iterator[dict[str, str]]:
    """The innermost objects that hold a speed, as cells by key."""
    if isinstance(value, list):
        for item in value:
            yield from _objects(item, around)
    if not isinstance(value, dict):
        return
    is_scalar = {key: isinstance(item, int | float | str) and not isinstance(item, bool) for key, item in value.items()}
    scalars = {str(key): str(item) for key, item in value.items() if is_scalar[key]}
    inner = list[dict[str, str]]()
    for key, item in value.items():
        if isinstance(item, dict | list):
            arm = (
                {"method": str(key)} if isinstance(item, dict) and "method" not in scalars and key not in _PARTS else {}
            )
            inner += _objects(item, around | scalars | arm)
    if inner:
        yield from inner
    elif any(_heads_speed(key) for key in scalars):
        yield around | scalars


_INSERT = re.compile(r"INSERT INTO \w+ \(([^)]*)\) VALUES \((.*)\);?\s*$", re.IGNORECASE)


def _sql(lines: list[str]) -> Iterator[PastedRow]:
    """The rows that llama-bench -o sql inserts."""
    for number, line in enumerate(lines, 1):
        if match := _INSERT.match(line.strip()):
            heads = [name.strip(" `\"'") for name in match[1].split(",")]
            cells = next(csv.reader([match[2]], quotechar="'", skipinitialspace=True))
            yield PastedRow(line=number, group=1, cells=dict(zip(heads, cells, strict=False)))
