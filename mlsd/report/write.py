"""Writing a report's files."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from mlsd.analysis.study.study import Study
from mlsd.errors import InputError
from mlsd.folders import replacing
from mlsd.records import Record
from mlsd.report.page import build
from mlsd.report.render import html, markdown, plot


class Written(Record, frozen=True, kw_only=True):
    """What a report wrote."""

    html: str
    markdown: str
    figures: tuple[str, ...]
    verdict: str  # of the study's claims, where the database holds its suites
    next: str | None  # the command that decides more of them
    answer: str
    missing: tuple[str, ...]


def write_report(study: Study, folder: Path) -> Written:
    """Write report.html, report.md and the figures as SVG into `folder`, each file whole or not at all.

    Raises InputError when the folder cannot be written.
    """
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)  # before the work, so that a wrong folder costs none
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{folder} cannot be written: {reason}.", hint="Name another folder with -o.") from error
    page = build(study)
    files: dict[str, bytes] = {"report.html": html.render(page).encode(), "report.md": markdown.render(page).encode()}
    for picture in page.pictures:
        files[f"figures/{picture.id}.svg"] = plot.standalone(picture.svg or "").encode()
    for file, content in files.items():
        with replacing(folder / file, "Name another folder with -o.") as part:
            part.write_bytes(content)
    return Written(
        html=str(folder / "report.html"),
        markdown=str(folder / "report.md"),
        figures=tuple(str(folder / file) for file in files if file.startswith("figures/")),
        verdict=page.verdict,
        next=page.next,
        answer=page.answer,
        missing=tuple(text for own in page.missing.values() for text in own),
    )


def check_figure_path(path: Path) -> None:
    """Refuse a name that `write_figure` cannot use, before anything is measured. Raises InputError."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{path.name} is not the name of a figure.", hint="End it in .png or .svg.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {path.parent}.", hint="Make it, or name another.")


def write_figure(draw: Callable[[], Figure], path: Path) -> None:
    """Write one figure as PNG or SVG, by the ending of the name, whole or not at all. Raises InputError."""
    check_figure_path(path)
    image = plot.png(draw) if path.suffix.lower() == ".png" else plot.standalone(plot.render(draw, "figure")).encode()
    with replacing(path, "Name another file.") as part:
        part.write_bytes(image)
