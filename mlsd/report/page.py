"""What a report says, in order, as values, and its files; `html` and `markdown` give it a form.

A part that the data cannot fill says what is missing; nothing is drawn or tabled of nothing.
"""

import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from mlsd import __version__
from mlsd.analysis.results.depths import deep_arms
from mlsd.analysis.study.study import Study, attempt
from mlsd.errors import InputError
from mlsd.folders import replacing
from mlsd.hardware.metal_kernels import metal_steps
from mlsd.records import Record
from mlsd.report.figures.answer import ANSWER_FIGURE, DEPTH_FIGURE, arm_labels
from mlsd.report.figures.machine import COST_FIGURES, EXPERT_FIGURE
from mlsd.report.figures.paper import STUDY_FIGURES
from mlsd.report.figures.rounds import ROUND_FIGURES
from mlsd.report.render import html, markdown, plot
from mlsd.report.render.sections import Advice, Page, Section, picture, section
from mlsd.report.render.table import Table
from mlsd.report.tables import machine as machine_tables
from mlsd.report.tables import methods
from mlsd.report.tables import paper as paper_tables
from mlsd.report.tables import records as record_tables
from mlsd.report.tables import results as result_tables
from mlsd.report.tables.claims import claim_table, next_step, of_the_study, scoreboard, verdict_line
from mlsd.report.tables.equations import (
    equation_sentences,
    equation_table,
    round_table,
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
    sections = _of_machine(study) if study.trials.empty else _of_trials(study, answers)
    return Page(
        title=f"Speculative decoding measured: {Path(study.source).name}",
        verdict=verdict_line(claims) if claims else "",
        scoreboard=scoreboard(claims) if claims else None,
        next=None if step is None else step.command,
        next_time="" if step is None or step.seconds is None else f"about {format_duration(step.seconds)}",
        answer=first_line(answers),
        chart=picture(study, ANSWER_FIGURE),
        advice=_advice(answers),
        disturbed=() if study.trials.empty else _disturbed(study),
        summary=_summary(study),
        notes=_notes(study),
        sections=sections,
        made=f"mlsd {__version__}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
    )


def _advice(answers: list[Answer]) -> tuple[Advice, ...]:
    """What to set for each target: one entry for all texts with the same answer, those to switch on first."""
    found, lengths = [], len({answer.n_predict for answer in answers}) > 1
    on_first = sorted(answers, key=lambda answer: answer.use != "on")
    for (subject, use, _), own in grouped(on_first, lambda a: (a.subject, a.use, a.setting)).items():
        texts = ", ".join(f"{a.text} ({a.n_predict} tokens)" if lengths else a.text for a in own)
        words = dict.fromkeys(f"{a.text}: {a.words.removeprefix(f'{use}: ')}." for a in own)
        lines = (*words, *dict.fromkeys(line for a in own for line in flags_of(a)))
        found.append(Advice(title=f"{subject}, {texts}: {own[0].setting}", lines=lines))
    return tuple(found)


def _disturbed(study: Study) -> tuple[str, ...]:
    """Arms with trials that must not be used, and what a program that ignores it would have printed of them."""
    arms = [arm for arm in study.results if arm.n_invalid]
    found = []
    for arm, label in zip(arms, arm_labels(arms), strict=True):
        claimed = arm.ratio.value if arm.ratio is not None else None
        if claimed is None and arm.tok_s is not None and arm.plain_tok_s:
            claimed = arm.tok_s / arm.plain_tok_s
        name = label if label.startswith(arm.case.target.id) else f"{arm.case.target.id} + {label}"
        sentence = f"{name}: {arm.n_invalid} of {counted(arm.n_trials, 'trial')} invalid: {arm.why_not or arm.verdict}."
        if not arm.n_valid and claimed is not None:
            sentence += f" A program that ignores this would claim {claimed:.2f}x ({arm.tok_s:,.0f} tok/s)."
        found.append(sentence)
    return tuple(found)


def _notes(study: Study) -> tuple[str, ...]:
    kinds = ", ".join(dict.fromkeys(one.code.replace("_", " ") for one in study.warnings))
    found = [f"{counted(len(study.warnings), 'warning')}: {kinds}."] if kinds else []
    if random := ", ".join(name for name, facts in study.facts.items() if facts.synthetic):
        found.insert(0, f"{random}: random weights, so times and bytes hold; acceptance and speedup need real ones.")
    if (line := stage_line(time for run in study.runs for time in run.stages)) is not None:
        found.append(f"Time of the measuring processes: {line}.")
    return (*study.notes, *found)


def _of_machine(study: Study) -> tuple[Section, ...]:
    """The sections of a database of calibrations alone."""
    return (
        section("machine", "Machine and models", study, *_MACHINE),
        _costs(study),
        _experts(study),
        section("passes", "Parts of a pass", study, methods.pass_table),
    )


def _of_trials(study: Study, answers: list[Answer]) -> tuple[Section, ...]:
    best = [lambda _: result_tables.best_table(answers)]
    settings = [lambda study: result_tables.speedup_table(study.results)]
    deep = deep_arms(study.results)
    settings += [result_tables.depth_table] if deep else []
    sides = [lambda _, one=one: comparison_table(one) for one in study.comparisons]
    compared = [one.answer for one in study.comparisons]
    predicted, _ = attempt(lambda: study.predictions)
    equations = equation_sentences(predicted) if predicted else ()
    sections = (
        section("warnings", "Warnings", study, record_tables.warning_table),
        section("answer", "Which setting to use", study, *best),
        section("machine", "Machine and models", study, *_MACHINE),
        study.other_machines and section("machines", "Machines compared", study, machine_table),
        section("study", "The study's tables with ours", study, *_STUDY, figures=STUDY_FIGURES),
        study.comparisons and section("compare", "Builds and settings side by side", study, *sides, text=compared),
        section("results", "All settings", study, *settings, figures=[DEPTH_FIGURE] if deep else []),
        section("methods", "Drafting methods by task", study, *methods.METHOD_TABLES),
        _costs(study),
        _experts(study),
        section("fits", "The study's equations, and fits", study, *_FITS, text=equations, figures=ROUND_FIGURES),
        section("claims", "Published claims", study, claim_table),
        section("audit", "Audit", study, record_tables.audit_table),
        section("trials", "Every trial", study, record_tables.trial_table),
    )
    return tuple(one for one in sections if one)


def _costs(study: Study) -> Section:
    rounds = attempt(lambda: study.timed_rounds)[0] or ()
    makers = [*_COSTS, *([lambda _: round_table(rounds)] if rounds else [])]
    words, title = attempt(lambda: traffic_sentences(study))[0], "Bandwidth: what passes read, cost, and memory gives"
    curves, _ = attempt(lambda: study.machine.curves)
    certified = [name for name in study.machine.certificates if name in (curves or {})]
    widths = [lambda _, name=name: _widths(study, name) for name in certified]
    return section("costs", title, study, *makers, *widths, text=words or (), figures=COST_FIGURES)


def _widths(study: Study, model: str) -> Table:
    """What calibrations of a model proved of each width, beside its cost."""
    on_metal, shown = study.environment.backend == "Metal", study.machine.certificates[model]
    kernels = metal_steps(study.environment.llama_cpp_build) if on_metal else None
    steps = kernels.rows if kernels else ()
    return machine_tables.widths_table(model, study.machine.curves[model], tuple(shown.values()), steps)


def _experts(study: Study) -> Section:
    mixtures, _ = attempt(lambda: study.machine.mixtures)
    title, found = "Experts: does verification amortize at batch one?", mixtures or ()
    tables = [lambda _, one=one: machine_tables.share_table(one) for one in found]
    answers = [text for one in found for text in machine_tables.share_sentences(one)]
    return section("experts", title, study, *tables, text=answers, figures=[EXPERT_FIGURE])


_MACHINE = [record_tables.environment_table, record_tables.models_table]
_STUDY = [
    *(paper_tables.table_1, paper_tables.table_2, paper_tables.table_3, paper_tables.table_4),
    *(paper_tables.table_5, paper_tables.table_6, paper_tables.table_f),
]
_COSTS: list[Callable[[Study], Table]] = [
    traffic_table,
    lambda study: machine_tables.curve_table(study.machine.curves),
    lambda study: machine_tables.bandwidth_table(study.machine.bandwidth, study.environment),
]
_FITS: list[Callable[[Study], Table]] = [
    lambda study: equation_table(study.predictions),
    lambda study: result_tables.model_table(study.pair_fits, study.curve_fits),
]


def _summary(study: Study) -> str:
    trials = study.trials
    if trials.empty:
        return (
            f"{study.source} holds calibrations and no trials: what asks for trials is left out. Measure some beside "
            f"them: mlsd run B --db {quoted(study.source)}."
        )
    failed, valid = int((trials["status"] == "failed").sum()), int(trials["valid"].fillna(False).sum())
    targets, suites = counted(trials["target"].nunique(), "target"), counted(trials["suite"].nunique(), "suite")
    return f"{len(trials)} trials ({valid} valid, {failed} failed) of {targets} in {suites}, on {study.place}."


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
