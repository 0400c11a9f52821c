"""A report as one HTML file: figures, style and script inside, nothing fetched, every string escaped."""

from markupsafe import Markup

from mlsd.report.render.prose import environment
from mlsd.report.render.sections import Page
from mlsd.report.render.table import explain_terms


def render(page: Page) -> str:
    """The whole file."""
    templates = environment()

    def include(name: str) -> Markup:
        return Markup(templates.loader.get_source(templates, name)[0]) if templates.loader else Markup("")  # our own

    # Figures are written by matplotlib, which escapes the strings it is given.
    return templates.get_template("report.html.j2").render(
        page=page, terms=explain_terms(), include=include, drawn=Markup
    )
