"""Templates of pages and of their sentences: analysis gives the numbers, `templates/` the words."""

from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mlsd.report.render.table import significant
from mlsd.units import format_bytes, format_percent, quoted


def prose(name: str, **values: Any) -> tuple[str, ...]:
    """The sentences of ``prose/NAME.j2``, one for each of its lines that says something."""
    lines = environment(escape=False).get_template(f"prose/{name}.j2").render(**values).splitlines()
    return tuple(text for line in lines if (text := " ".join(line.split())))


@cache
def environment(*, escape: bool = True) -> Environment:
    """The templates; with `escape` for HTML, else for plain text, which whoever shows it escapes."""
    templates = Environment(
        loader=PackageLoader("mlsd.report.render"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=escape,
    )
    filters: dict[str, Callable[..., str]] = {
        "num": significant,
        "pct": lambda share, digits=0: format_percent(share, digits),
        "size": lambda n: format_bytes(round(n)),
        "ends": lambda estimate, digits=2: estimate.text(digits, ends="(95 % {} to {})"),
        "shell": quoted,
    }
    templates.filters |= filters
    return templates
