"""A report as one HTML file: figures, style and script inside, nothing fetched, every string escaped."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mlsd.report.render.sections import Page
from mlsd.report.render.table import Table


def render(page: Page) -> str:
    """The whole file."""
    environment = _environment()

    def include(name: str) -> Markup:
        loaded = environment.loader.get_source(environment, name) if environment.loader else ("", None, None)
        return Markup(loaded[0])  # our own file, not data

    # Figures are written by matplotlib, which escapes the strings it is given.
    return environment.get_template("report.html.j2").render(page=page, include=include, drawn=Markup)


def table_text(table: Table) -> str:
    """One table with its title, note and source."""
    return _environment().get_template("table.html.j2").render(table=table)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("mlsd.report.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
