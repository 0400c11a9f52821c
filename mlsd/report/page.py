"""What a report says, in order, as values, and its files; `html` and `markdown` give it a form.

A part that the data cannot fill says what is missing; nothing is drawn or tabled of nothing.
"""

import dataclasses
import datetime
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from mlsd import __version__
from mlsd.analysis.results.depths import deep_arms
from mlsd.analysis.study.study import Study, attempt
from mlsd.errors import InputError
from mlsd.folders import replacing
from mlsd.hardware.metal_kernels import metal_steps
from mlsd.records import Record
from mlsd.report.figures.answer import ANSWER_FIGURE, arm_labels
from mlsd.report.figures.machine import EXPERT_FIGURE, PASS_FIGURE
from mlsd.report.figures.paper import STUDY_FIGURES
from mlsd.report.render import html, markdown, plot
from mlsd.report.render.sections import Advice, Page, Section, picture, section
from mlsd.report.render.table import Table
from mlsd.report.tables import machine, methods, paper, records, results
from mlsd.report.tables.claims import claim_table, next_step, of_the_study, scoreboard, verdict_line
from mlsd.report.tables.equations import (
    equation_sentences,
    equation_table,
    traffic_sentences,
    traffic_table,
)
from mlsd.report.tables.sides import comparison_table, machine_table
from mlsd.servers.flags import flags_of
from mlsd.stats import grouped
from mlsd.trials.on_or_off import Answer, first_line
from mlsd.trials.stages import stage_line
from mlsd.units import counted, format_duration, quoted


def build(study: Study) -> Page:
    """The report of a study."""
    answers = [] if study.trials.empty else study.answers
    claims = of_the_study(study)
    step = next_step(study, claims) if claims else None
    return Page(
        title=f"Speculative decoding measured: {Path(study.source).name}",
        verdict=verdict_line(claims) if claims else "",
        scoreboard=scoreboard(claims) if claims else None,
        next=None if step is None else step.command,
        next_time="" if step is None or step.seconds is None else f"about {format_duration(step.seconds)}",
        answer=first_line(answers),
        chart=picture(study, ANSWER_FIGURE),
        advice=tuple(_advice(answers)),
        disturbed=() if study.trials.empty else tuple(_disturbed(study)),
        summary=_summary(study),
        notes=tuple(_notes(study)),
        sections=tuple(_sections(study)),
        written=f"mlsd {__version__}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
    )


def _advice(answers: list[Answer]) -> Iterator[Advice]:
    """What to set for each target: one entry for all texts with the same answer, those to switch on first.

    How speculation is switched off stands in the first entry where it is, once.
    """
    off = set[str]()
    several_lengths = len({answer.n_predict for answer in answers}) > 1
    on_first = sorted(answers, key=lambda answer: answer.use != "on")
    for (subject, use, setting), group in grouped(on_first, lambda a: (a.subject, a.use, a.setting)).items():
        texts = ", ".join(f"{a.text} ({a.n_predict} tokens)" if several_lengths else a.text for a in group)
        lines = dict.fromkeys(f"{a.text}: {a.sentence.removeprefix(f'{use}: ')}." for a in group)
        flags = [line for answer in group for line in flags_of(answer) if line not in off]
        off |= set(flags) if use == "off" else set()
        lines |= dict.fromkeys(flags)
        yield Advice(title=f"{subject}, {texts}: {setting}", lines=tuple(lines))


def _disturbed(study: Study) -> Iterator[str]:
    """Arms with trials that must not be used, and what a program that ignores it would have printed of them."""
    arms = [arm for arm in study.results if arm.n_invalid]
    for arm, label in zip(arms, arm_labels(arms), strict=True):
        claimed = arm.ratio.value if arm.ratio is not None else None
        if claimed is None and arm.tok_s is not None and arm.plain_tok_s:
            claimed = arm.tok_s / arm.plain_tok_s
        name = label if label.startswith(arm.case.target.id) else f"{arm.case.target.id} + {label}"
        sentence = f"{name}: {arm.n_invalid} of {counted(arm.n_trials, 'trial')} invalid: {arm.why_not or arm.verdict}."
        if not arm.n_valid and claimed is not None:
            sentence += f" A program that ignores this would claim {claimed:.2f}x ({arm.tok_s:,.0f} tok/s)."
        yield sentence


def _notes(study: Study) -> Iterator[str]:
    yield from study.notes
    if random := ", ".join(name for name, facts in study.facts.items() if facts.synthetic):
        yield f"{random}: random weights, so times and bytes hold; acceptance and speedup need real ones."
    if kinds := ", ".join(dict.fromkeys(warning.code.replace("_", " ") for warning in study.warnings)):
        yield f"{counted(len(study.warnings), 'warning')}: {kinds}."
    if (line := stage_line(time for run in study.runs for time in run.stages)) is not None:
        yield f"Time of the measuring processes: {line}."


def _sections(study: Study) -> Iterator[Section]:
    """In order; of a database of calibrations alone those of its machine."""
    of_machine = section("machine", "Machine and models", study, records.environment_table, records.models_table)
    if study.trials.empty:
        yield from (of_machine, _costs(study), _experts(study))
        yield section("passes", "Parts of a pass", study, methods.pass_table)
        return
    yield section("warnings", "Warnings", study, records.warning_table)
    yield of_machine
    if study.other_machines:
        yield section("machines", "Machines compared", study, machine_table)
    of_paper = (paper.table_2, paper.table_4, paper.table_5, paper.table_f)
    yield section("study", "The study's tables with ours", study, *of_paper, figures=STUDY_FIGURES)
    if study.comparisons:
        sides = [lambda _, sides=comparison: comparison_table(sides) for comparison in study.comparisons]
        compared = [comparison.answer for comparison in study.comparisons]
        yield section("compare", "Builds and settings side by side", study, *sides, text=compared)
    depths = [results.depth_table] if deep_arms(study.results) else []
    yield section("results", "All settings", study, lambda study: results.speedup_table(study.results), *depths)
    yield section("methods", "Drafting methods by task", study, *methods.METHOD_TABLES)
    yield from (_costs(study), _experts(study))
    predicted, _ = attempt(lambda: study.predictions)
    fits = (lambda study: equation_table(study.predictions),
            lambda study: results.model_table(study.pair_fits, study.curve_fits))  # fmt: skip
    text = equation_sentences(predicted) if predicted else ()
    yield section("fits", "The study's equations, and fits", study, *fits, text=text)
    yield section("claims", "Published claims", study, claim_table)
    yield section("audit", "Audit", study, records.audit_table)
    yield section("trials", "Every trial", study, records.trial_table)


def _costs(study: Study) -> Section:
    curves, _ = attempt(lambda: study.machine.curves)
    tables: list[Callable[[Study], Table]] = [
        traffic_table,
        lambda study: machine.curve_table(study.machine.curves),
        lambda study: machine.bandwidth_table(study.machine.bandwidth, study.environment),
    ]
    tables += [partial(_widths, model=model) for model in study.machine.certificates if model in (curves or {})]
    text, _ = attempt(lambda: traffic_sentences(study))
    title = "Bandwidth: what passes read, cost, and memory gives"
    return section("costs", title, study, *tables, text=text or (), figures=[PASS_FIGURE])


def _widths(study: Study, model: str) -> Table:
    """What calibrations of a model proved of each width, beside its cost."""
    on_metal = study.environment.backend == "Metal"
    kernels = metal_steps(study.environment.llama_cpp_build) if on_metal else None
    exactness = tuple(study.machine.certificates[model].values())
    return machine.widths_table(model, study.machine.curves[model], exactness, kernels.rows if kernels else ())


def _experts(study: Study) -> Section:
    mixtures = attempt(lambda: study.machine.mixtures)[0] or ()
    tables = [lambda _, model=mixture: machine.share_table(model) for mixture in mixtures]
    text = [sentence for mixture in mixtures for sentence in machine.share_sentences(mixture)]
    title = "Experts: does verification amortize at batch one?"
    return section("experts", title, study, *tables, text=text, figures=[EXPERT_FIGURE])


def _summary(study: Study) -> str:
    trials = study.trials
    if trials.empty:
        return (
            f"{study.source} holds calibrations and no trials: what asks for trials is left out. Measure some beside "
            f"them: mlsd run B --db {quoted(study.source)}."
        )
    failed, valid = int((trials["status"] == "failed").sum()), int(trials["valid"].fillna(False).sum())
    targets, suites = counted(trials["target"].nunique(), "target"), counted(trials["suite"].nunique(), "suite")
    return f"{len(trials)} trials ({valid} valid, {failed} failed) of {targets} in {suites}, on {study.machine_name}."


# --- its files -----------------------------------------------------------------------------------------------------


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
    page = build(dataclasses.replace(study, source=str(Path(study.source).absolute())))  # a page is read elsewhere
    files: dict[str, bytes] = {"report.html": html.render(page).encode(), "report.md": markdown.render(page).encode()}
    for drawn in page.pictures:
        files[f"figures/{drawn.id}.svg"] = plot.standalone(drawn.svg or "").encode()
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
        missing=tuple(text for texts in page.missing.values() for text in texts),
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
