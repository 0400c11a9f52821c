"""The one reader of rows that somebody printed: cells by name, of a pasted table, an import or a published study."""

from collections.abc import Mapping
from typing import Any

from mlsd.audits.model_name import LEAST_SHARE, read_model_name
from mlsd.audits.printed import Printed, exact, is_blank, parse_printed
from mlsd.audits.rows import AuditRow
from mlsd.hardware.chips import named_chip
from mlsd.records import NO_DRAFTER
from mlsd.trials.acceptance_meanings import MEANINGS

_OF_BOTH = (
    "target", "chip", "prompt", "n_prompt", "n_predict", "repeat", "active_b", "bits", "program", "quantization",
)  # fmt: skip
# What plain decoding has not, whatever stands in its columns.
_OF_DRAFTING = (
    "draft", "gamma", "acceptance", "acceptance_percent", "accepted_of_output", "n_accepted", "n_proposed", "mgl",
    "rounds",
)  # fmt: skip
AS_PLAIN = ("lossless", "near_tie", "near tie")  # an output that was compared with plain decoding
_INVALID = ("no", "0 of")
_MOST = 1e12  # of any figure
_OF_A_FILE = ("active_b", "bits", "quantization", "model_gb")  # what is known of one file is not known of another


class CellError(ValueError):
    """A cell that is no figure of its column."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"column {column}: {why}")
        self.column, self.why = column, why


def rows_of(cells: Mapping[str, str], **fields: Any) -> list[AuditRow]:
    """The row, after the plain run that it prints beside itself. Raises: CellError."""
    baseline = {name.removeprefix("baseline_"): cell for name, cell in cells.items() if name.startswith("baseline_")}
    if "tok_s" not in baseline and "n_predict" not in baseline:
        return [row_of(cells, **fields)]
    unknown = _OF_A_FILE if "target" in baseline else ()
    plain = {name: cells[name] for name in _OF_BOTH if name in cells and name not in unknown} | baseline
    label = f"{fields['label']}, plain" if "label" in fields else ", ".join(_names(plain))
    of_plain = fields | {"label": label, "fixed_length": False}
    return [row_of(plain, **of_plain), row_of(cells, **fields, compared=True)]


def row_of(cells: Mapping[str, str], **fields: Any) -> AuditRow:
    """One row. `known` are fields of it that no cell says. Raises: CellError."""
    drafter = cells.get("drafter", NO_DRAFTER)
    label = fields.pop("label", None) or cells.get("label") or ", ".join(_names(cells))
    if drafter == NO_DRAFTER:
        cells = {name: cell for name, cell in cells.items() if name not in _OF_DRAFTING}
    target, program, chip, prompt, quantization, of_baseline = (
        " ".join(cells.get(name, "").split())
        for name in ("target", "program", "chip", "prompt", "quantization", "baseline_quantization")
    )
    printed, speedup, ms = _above_0(cells, "tok_s"), _above_0(cells, "speedup"), _figure(cells, "ms")
    acceptance, meaning, cannot_be = _acceptance(cells)
    accepted, proposed = _count(cells, "n_accepted"), _count(cells, "n_proposed")
    if accepted is not None and proposed:
        meaning = meaning or "proposed"
        acceptance = acceptance or (exact(accepted / proposed) if accepted <= proposed else None)
        if accepted > proposed:
            cannot_be = f"{accepted} of {proposed} proposed tokens are said to be accepted"
    n_output, rounds = _count(cells, "n_output"), _figure(cells, "rounds")
    stated = {"n_predict": _count(cells, "n_predict"), "program": program or None}
    fields |= {name: value for name, value in stated.items() if value is not None}
    if rounds is not None:
        n_output = fields.get("n_predict") if n_output is None else n_output
    elif accepted and n_output and accepted < n_output:
        # A program may count the token that prefill made, or not.
        value = n_output - accepted
        rounds = Printed(value=value, low=max(1, value - 1), high=value + 1)
    file, other = _stored_as(target, quantization), _stored_as(target, of_baseline)
    valid, claimed = cells.get("valid", "").lower(), _figure(cells, "gb_claimed")
    return AuditRow(
        label=label,
        target=file or "an unnamed target",
        chip=named_chip(chip) or chip or None,
        drafter=drafter,
        draft=cells.get("draft"),
        gamma=_count(cells, "gamma"),
        prompt=prompt or None,
        n_prompt=_count(cells, "n_prompt"),
        repeat=_count(cells, "repeat"),
        tok_s=exact(1e3).over(ms) if printed is None and ms is not None and ms.low > 0 else printed,
        ms_per_token=_figure(cells, "ms_per_token"),
        speedup=speedup,
        acceptance=acceptance,
        acceptance_of=next((of for of in MEANINGS if of == meaning), None),
        n_accepted=accepted,
        n_proposed=proposed,
        mgl=_figure(cells, "mgl"),
        rounds=rounds,
        n_output=n_output,
        baseline_target=cells.get("baseline_target") or (other if of_baseline and other != file else None),
        pass_bytes=_pass_bytes(cells, target, quantization),
        draft_ms=_figure(cells, "draft_ms"),
        bytes_claimed=None if claimed is None else claimed.scaled(1e9),
        cannot_be=cannot_be,
        lossless=cells.get("verdict", "") in AS_PLAIN or (bool(valid) and not valid.startswith(_INVALID)),
        invalid_reason="its source says so" if valid.startswith(_INVALID) else None,
        on_cpu=bool(cells.get("on_cpu")),
        failed_native_calls=_count(cells, "failed_calls") or 0,
        relative_sd=_scatter(cells, "speedup", speedup) if printed is None else _scatter(cells, "tok_s", printed),
        **fields,
    )


def _names(cells: Mapping[str, str]) -> list[str]:
    """What tells a row from others, for a reader."""
    drafted = cells.get("drafter", NO_DRAFTER) != NO_DRAFTER
    named = [cells[name] for name in ("target", "drafter", "draft") if cells.get(name, NO_DRAFTER) != NO_DRAFTER]
    named += [f"gamma {cells['gamma']}"] if drafted and not is_blank(cells.get("gamma", "")) else []
    named += [cells["prompt"]] if "prompt" in cells else []
    return named + ([f"{cells['n_prompt']} prompt tokens"] if "n_prompt" in cells else [])


def _stored_as(model: str, quantization: str) -> str:
    """The file: a model in a quantization, which its name may state already."""
    stated = not model or not quantization or quantization.lower() in model.lower()
    return model if stated else f"{model} {quantization}"


def _pass_bytes(cells: Mapping[str, str], name: str, quantization: str) -> float | None:
    if "active_b" in cells and "bits" in cells:
        return LEAST_SHARE * float(cells["active_b"]) * 1e9 * float(cells["bits"]) / 8
    if (model_gb := _figure(cells, "model_gb")) is not None:
        return LEAST_SHARE * 1e9 * model_gb.low
    return read_model_name(name, quantization).least_bytes


def _acceptance(cells: Mapping[str, str]) -> tuple[Printed | None, str | None, str | None]:
    """The rate, what it divides by, and what no rate can be."""
    of, columns = cells.get("acceptance_of"), ("acceptance_percent", "acceptance", "accepted_of_output")
    column = next((name for name in columns if not is_blank(cells.get(name, ""))), "")
    rate = _figure(cells, column)
    if rate is None:
        return None, of, None
    of = "output" if column == "accepted_of_output" else of
    in_percent = column == "acceptance_percent" or (column == "accepted_of_output" and rate.value > 1)
    if rate.value < 0 or (rate.value > 1 and not in_percent and "%" not in cells[column]):
        raise CellError(column, f"{cells[column]!r} is not a fraction between 0 and 1")
    rate = rate.scaled(0.01) if in_percent else rate
    if rate.low > 1:
        return None, of, f"{100 * rate.value:.4g} % of tokens are said to be accepted"
    return rate.each(lambda value: min(value, 1.0)), of, None


def _above_0(cells: Mapping[str, str], column: str) -> Printed | None:
    figure = _figure(cells, column)
    if figure is not None and figure.value <= 0:
        raise CellError(column, f"{cells[column]!r} is not above 0")
    return figure


def _scatter(cells: Mapping[str, str], column: str, figure: Printed | None) -> float | None:
    """The deviation printed after a figure, over it."""
    deviation = cells.get(column, "").partition("\N{PLUS-MINUS SIGN}")[2].strip(" *%x")
    try:
        return float(deviation) / figure.value if figure is not None and deviation else None
    except ValueError:
        return None


def _figure(cells: Mapping[str, str], column: str) -> Printed | None:
    text = cells.get(column, "")
    if is_blank(text):
        return None
    try:
        figure = parse_printed(text)
    except ValueError as error:
        raise CellError(column, f"{text!r} is not a {'finite ' * ('finite' in str(error))}number") from None
    if not figure.high < _MOST:
        raise CellError(column, f"{text[:20]!r} is larger than any figure of decoding")
    if column == "mgl" and figure.high < 1:
        raise CellError(column, f"{text!r} is less than the token that every round commits")
    return figure


def _count(cells: Mapping[str, str], column: str) -> int | None:
    text = cells.get(column, "").strip()
    times = {"k": 1e3, "m": 1e6}.get(text.lower()[-1:], 1.0)
    figure = _figure({column: text[:-1] if times > 1 else text}, column)
    if figure is None:
        return None
    value = figure.value * times
    if value < 0 or value != int(value):
        raise CellError(column, f"{text!r} is not a count")
    return int(value)
