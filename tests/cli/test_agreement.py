"""One value of each: an arm is worth the same on every surface, whoever measured it and whatever the file holds.

Three databases: a bench of several arms and prompts with another bench in the file, part of suites B and D, a server.
"""

import csv
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mlsd.analysis.advise import ask, known_model
from mlsd.analysis.advise.answer import AdvisedMachine
from mlsd.analysis.results.server_arms import recommend
from mlsd.analysis.study.study import Study, read_study
from mlsd.cli.answers import answer_objects, say_answers
from mlsd.errors import ModelFileError
from mlsd.measure.parent.requests import BenchResult, answer_of, bench
from mlsd.planning.question import Invocation
from mlsd.planning.request import bench_request
from mlsd.records import Case, EngineOptions, Trial
from mlsd.report.figures.answer import gains
from mlsd.report.figures.paper import speedup_over_gamma
from mlsd.report.page import build
from mlsd.report.render import html, markdown, terminal
from mlsd.report.render.table import Table
from mlsd.report.tables.arms import bench_table
from mlsd.servers.measure import ServerResult, serve
from mlsd.servers.request import SERVERS, ServerRequest
from mlsd.store.rows import environment_key
from mlsd.store.sessions import latest, sessions
from mlsd.store.store import Store
from mlsd.trials.fields import arm_object
from mlsd.trials.on_or_off import DECIDED
from mlsd.trials.results import ArmResult
from tests.analysis.studies import DENSE, MACHINE, MOE, blocks, failed, write
from tests.cli.conftest import Mlsd
from tests.servers.fake import FakeServer
from tests.servers.measured import ONE_THREAD

pytestmark = pytest.mark.usefixtures("unsaved_figures")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
FEW = {"n_predict": 16, "repeats": 3, "engine": EngineOptions(n_threads=1)}
# What a column's head means -> the field of the record.
READ: dict[str, Callable[[ArmResult], Sequence[float | None]]] = {
    "speedup": lambda one: _ends(one, value=True),
    "speedup [95 % CI]": lambda one: _ends(one, value=True),
    "95 % CI": lambda one: _ends(one, value=False),
    "tok/s": lambda one: [one.tok_s],
    "plain tok/s": lambda one: [one.plain_tok_s],
    "acceptance": lambda one: [_percent(one.acceptance_rate)],
    "of output": lambda one: [_percent(one.accepted_of_output)],
    "MGL": lambda one: [one.mgl],
    "break-even MGL": lambda one: [one.break_even_mgl],
}
EFFECTS = {"faster", "slower", "no difference", "not decided yet"}


def _ends(arm: ArmResult, *, value: bool) -> list[float | None]:
    ratio = arm.ratio
    if ratio is None:
        return []
    return [*([ratio.value] if value else []), *(() if ratio.low is None else (ratio.low, ratio.high))]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


@pytest.fixture(scope="module")
def benched(tmp_path_factory: pytest.TempPathFactory) -> BenchResult:
    """The second of two benches in one database, of other questions."""
    path = tmp_path_factory.mktemp("agreement") / "bench.sqlite"
    other: dict[str, Any] = {"drafters": ("ngram-cache",), "gammas": (1, 3, 5), "prompts": ("reasoning",)}
    bench(bench_request(target="tiny-dense", **other, **FEW), path)  # type: ignore[arg-type]
    arms: dict[str, Any] = {"drafts": ("tiny-draft",), "drafters": ("pld", "oracle"), "gammas": (2, 4)}
    return bench(bench_request(target="tiny-dense", prompts=("code", "factual"), **arms, **FEW), path)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trials = blocks(MOE, "B", noise=0.03) + blocks(DENSE, "D", alpha=0.2, noise=0.03, prompts=("code", "chinese"))
    path = write(tmp_path_factory.mktemp("agreement") / "suites.sqlite", trials, suites=["B", "D"])
    return write_again(path)


def write_again(path: Path) -> Path:
    """With other trials in the file, of another session."""
    return write(path, blocks(MOE, "E", noise=0.05, gammas=(1, 2, 3)), suites=["E"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServerResult:
    path = tmp_path_factory.mktemp("agreement") / "server.sqlite"
    # 1.3 times as fast, of the 1.9 that its counts allow: no disturbance makes it impossible.
    with FakeServer(token_s=0.02) as plain, FakeServer(draft=True, token_s=0.03) as drafting:
        asked = ServerRequest(url=drafting.url, against=plain.url, n_predict=16, repeats=3, engine=ONE_THREAD)
        return serve(asked, path)


def study_of(path: Path | str) -> Study:
    with Store.open(Path(path), read_only=True) as store:
        return read_study(store)


def rows_of(table: Table) -> Iterator[dict[str, str]]:
    for row in table.rows:
        yield {head.label: cell.text for head, cell in zip(table.heads, row, strict=True)}


def arm_of(row: dict[str, str], arms: Sequence[ArmResult]) -> ArmResult | None:
    """The arm that a row shows: by target, setting, text, suite and length, as far as its columns tell."""

    def fits(arm: ArmResult) -> bool:
        gamma = row.get("gamma", str(arm.case.gamma)) == str(arm.case.gamma)
        name = arm.setting in row.values() or (
            gamma and (arm.label in row.values() or f"{_target(arm)} + {arm.label}" in row.values())
        )
        name = name or f"{_target(arm)} + {arm.setting}" in row.values()
        where = {"text": arm.text, "prompt": arm.text, "output tokens": str(arm.question.n_predict),
                 "target": _target(arm), "suite": arm.question.suite}  # fmt: skip
        return name and all(row.get(label, value) == value for label, value in where.items())

    fitting = [one for one in arms if not one.is_plain and fits(one)]
    assert len(fitting) <= 1, (row, [(one.setting, one.text, one.question.suite) for one in fitting])
    return fitting[0] if fitting else None


def _target(arm: ArmResult) -> str:
    return arm.case.target.id


def hold(table: Table, arms: Sequence[ArmResult]) -> int:
    """How many cells of a table are what the record says; any other is an error."""
    n = 0
    for row in rows_of(table):
        arm = arm_of(row, arms)
        for label, text in row.items() if arm is not None else ():
            assert arm is not None
            if label in ("effect", "decision") and text in EFFECTS | {"a control"}:
                assert text == ("a control" if arm.control else arm.effect), (table.title, row)
                n += 1
            if label not in READ:
                continue
            # A column may show the value without its ends, or how few units gave no interval.
            printed = NUMBER.findall(re.sub(r"\(\d+ (texts|blocks)\)", "", text.replace("\u202f", "")))
            wanted = [value for value in READ[label](arm) if value is not None][: len(printed)]
            shown, digits = list(map(float, printed)), [len(number.partition(".")[2]) for number in printed]
            assert [round(v, d) for v, d in zip(wanted, digits, strict=True)] == pytest.approx(shown, abs=0.011), (
                table.title, label, row, wanted,
            )  # fmt: skip
            n += len(shown)
    return n


def everywhere(study: Study) -> dict[str, int]:
    """Cells that were compared, by table of the page; the page's two forms show the same cells."""
    page = build(study)
    tables = [table for section in page.sections for table in section.tables]
    pooled = {"table-5": study.pooled}
    held = {t.id: hold(t, pooled.get(t.id, study.results)) for t in tables if t.id in _ARMS}
    written = html.render(page), markdown.render(page)
    for arm in study.results:
        if arm.ratio is not None and not arm.is_plain:
            assert all(f"{arm.ratio.value:.2f}x" in form for form in written)
    figures(study)
    return held


_ARMS = {"speedups", "table-5", "table-f", "depth"}


def figures(study: Study) -> None:
    """Every point, bar and interval of a figure is that of a record."""
    records = [one for one in (*study.results, *study.pooled) if one.ratio is not None]
    ratios = {round(one.ratio.value, 9) for one in records if one.ratio}
    ends = {round(end, 9) for one in records if one.ratio for end in (one.ratio.low, one.ratio.high) if end}
    (ax,) = gains(study).axes
    for line in ax.get_lines():
        xs = [round(float(x), 9) for x in line.get_xdata()]  # type: ignore[union-attr]
        assert set(xs) <= ratios | ends, line.get_label()
    labels = {str(line.get_label()) for line in ax.get_lines()} - {"_interval"}
    effects = {one.effect for one in study.results if one.ratio is not None and not one.is_plain and not one.control}
    assert labels and labels - {"a bound"} <= effects
    for ax in speedup_over_gamma(study).axes:
        for line in ax.get_lines():
            if "(published" not in str(line.get_label()) and not str(line.get_label()).startswith("_"):
                assert {round(float(y), 9) for y in line.get_ydata()} <= ratios  # type: ignore[union-attr]


# --- a bench ------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_bench_says_the_same_on_every_surface(benched: BenchResult, mlsd: Mlsd, tmp_path: Path) -> None:
    arms = [arm for arm in benched.results if not arm.is_plain]
    assert len(arms) == 12 and sum(arm.control for arm in arms) == 4
    assert hold(bench_table(benched.results), arms) > 60
    assert all(f"{arm.ratio.value:.2f}x" in terminal.render(bench_table(benched.results)) for arm in arms if arm.ratio)
    with Store.open(Path(benched.database), read_only=True) as store:
        remade = {(arm.question, arm.name): arm for arm in latest(o for s in sessions(store) for o in s.results())}
    for arm in benched.results:
        again = remade[arm.question, arm.name]
        assert (again.ratio, again.standing, again.tok_s, again.plain_tok_s) == (
            arm.ratio, arm.standing, arm.tok_s, arm.plain_tok_s,
        ), "another bench in the file changes nothing"  # fmt: skip
    study = study_of(benched.database)
    cells = everywhere(study)
    assert cells["speedups"] > 5
    shown = {
        answer.text: answer.sentence
        for answer in study.answers
        if answer.best and answer.best.question.suite == "bench"
    }
    assert all(shown[answer.text] == answer.sentence for answer in benched.answers if answer.text == "factual")
    fitted = json.loads(mlsd("results", "fits", "--db", benched.database, "--json").out)["arms"]
    for arm in arms:
        assert json.loads(json.dumps(_builtins(arm))) in fitted
    exported(mlsd, Path(benched.database), arms, tmp_path)


def _builtins(arm: ArmResult) -> Any:
    return msgspec.to_builtins(arm_object(arm))


def exported(mlsd: Mlsd, db: Path, arms: Sequence[ArmResult], folder: Path) -> None:
    """A table of trials holds the pairs that each ratio is the mean of, and the rates of each trial."""
    assert mlsd("results", "export", "csv", "--db", db, "-o", folder / "t.csv").code == 0
    with (folder / "t.csv").open(encoding="utf-8") as file:
        tok_s = {int(row["trial_id"]): float(row["decode_tok_s"]) for row in csv.DictReader(file)}
    for arm in arms:
        pairs = [tok_s[pair.measured.id or 0] / tok_s[pair.plain.id or 0] for pair in arm.pairs]
        ratio = math.exp(statistics.fmean(map(math.log, pairs)))
        assert arm.ratio is not None and ratio == pytest.approx(arm.ratio.value)
        rates = [tok_s[pair.measured.id or 0] for pair in arm.pairs]
        assert math.exp(statistics.fmean(map(math.log, rates))) == pytest.approx(arm.tok_s)


# --- suites -------------------------------------------------------------------------------------------------------


def test_suites_say_the_same_on_every_surface_and_other_sessions_change_nothing(suites: Path, mlsd: Mlsd) -> None:
    study = study_of(suites)
    cells = everywhere(study)
    assert min(cells[name] for name in ("speedups", "table-5")) > 10, cells
    with Store.open(suites, read_only=True) as store:
        alone = next(s for s in sessions(store) if "B" in {arm.case.suite for arm in s.trials})
        assert alone.plan.n_arms == {} and len(sessions(store)) == 2
    ratios = {(o.question, o.name): o.ratio for o in alone.results()}
    for arm in study.results:
        if arm.question.suite in "BD":
            assert arm.ratio == ratios[arm.question, arm.name]
    for printed in json.loads(mlsd("results", "fits", "--db", suites, "--json").out)["arms"]:
        assert printed in [json.loads(json.dumps(_builtins(arm))) for arm in study.pooled]
    pooled = [arm for arm in study.pooled if not arm.is_plain]
    assert all("workloads pooled" in arm.text for arm in pooled if arm.question.suite == "B")


# --- a server -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_says_the_same_in_its_report(served: ServerResult) -> None:
    study = study_of(served.database)
    (drafted,) = [one for one in served.results if not one.is_plain]
    (again,) = [one for one in study.results if not one.is_plain]
    assert (again.ratio, again.standing, again.tok_s, again.plain_tok_s, again.mgl) == (
        drafted.ratio, drafted.standing, drafted.tok_s, drafted.plain_tok_s, drafted.mgl,
    )  # fmt: skip
    assert [answer.sentence for answer in study.answers] == [answer.sentence for answer in served.answers]
    everywhere(study)


# --- one statement of every answer --------------------------------------------------------------------------------


def failing(kind: str) -> list[tuple[Case, Trial]]:
    """Blocks of which nothing can be judged: their drafts did not finish."""
    trials = blocks(DENSE, gammas=(4,), prompts=("code",))
    return [(of, one if of.arm == "ar" else failed(of, one.block, one.repeat, kind)) for of, one in trials]


def _of_server(arm: ArmResult) -> ArmResult:
    return replace(arm, question=replace(arm.question, source="server", suite=SERVERS))


def _gone(name: str, **_: object) -> None:
    raise ModelFileError(f"{name} is gone.")


@pytest.mark.parametrize(
    ("use", "trials"),
    [
        ("on", blocks(DENSE, alpha=0.9, gammas=(4,), prompts=("code",))),
        ("off", blocks(DENSE, alpha=0.1, gammas=(4,), prompts=("code",))),
        ("not decided yet", blocks(DENSE, noise=0.3, gammas=(4,), prompts=("code",))),
        ("no usable measurement", failing("the vocabularies differ")),
    ],
)
def test_an_answer_is_one_statement_on_every_surface(
    use: str, trials: list[tuple[Case, Trial]], mlsd: Mlsd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = write(tmp_path / "s.sqlite", trials)
    here = AdvisedMachine(environment_key=environment_key(MACHINE))
    monkeypatch.setattr(ask, "_here", lambda *_: here)
    monkeypatch.setattr(known_model, "resolve_model", _gone)  # the files of these names that are here are others
    study = study_of(path)
    (answer,) = study.answers
    assert answer.use == use
    (shown,) = answer_objects([answer], [], Invocation())
    say_answers([shown])
    page = build(study)
    said = {
        "terminal": capfd.readouterr().out,
        "bench --json": json.loads(msgspec.json.encode(shown))["sentence"],
        "run": " ".join(answer_of(study.results)),
        "server": " ".join(recommend([_of_server(one) for one in study.results])),
        "page": unescape(re.sub(r"<[^>]+>", "", html.render(page))),
        "Markdown": markdown.render(page),
        "notebook": study.answer,
        "advice": mlsd("advise", "tiny-dense", "--db", path).out,
    }
    flat = {surface: " ".join(text.replace("\\", "").split()) for surface, text in said.items()}
    rest = answer.sentence.removeprefix(f"{use}: ")[1:]  # a sentence may begin with it
    assert [surface for surface, text in flat.items() if rest not in text] == []
    (advised,) = json.loads(mlsd("advise", "tiny-dense", "--db", path, "--json").out)["measured"]
    assert (advised["use"], advised["sentence"]) == (use, answer.sentence)
    has_flags = {surface for surface, text in flat.items() if "llama-server: " in text}
    assert has_flags - {"advice"} == ({"terminal", "page", "Markdown", "server"} if use in DECIDED else set())
