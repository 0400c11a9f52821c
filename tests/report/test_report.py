"""The report as files and text: the answer first, nothing fetched, every string escaped, what is missing said."""

import dataclasses
import html.parser
import json
import re
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from click.testing import CliRunner

import mlsd
from mlsd.analysis import frames
from mlsd.analysis.claims.claims import decide_all
from mlsd.analysis.pairs import PairedTrials
from mlsd.analysis.study.study import Study
from mlsd.cli.commands.report import report as command
from mlsd.errors import InputError
from mlsd.planning.options import Overrides
from mlsd.planning.question import study_asked
from mlsd.records import Losslessness, Status
from mlsd.report.figures.answer import arm_labels
from mlsd.report.page import build, write_report
from mlsd.report.render import html as html_form
from mlsd.report.render import markdown
from mlsd.report.render.sections import Page, section
from mlsd.report.tables.claims import next_step, of_the_study
from mlsd.report.tables.paper import table_f
from mlsd.report.tables.records import MOST_TRIALS, audit_table, trial_table, warning_table
from mlsd.store.store import Store
from tests.analysis.studies import MACHINE, MOE, blocks, case, failed, trial, write
from tests.trials.made import result

HOSTILE = "<script>alert(1)</script>\"'&</style>|`[x](javascript:alert(2))`=cmd()"


class Tags(html.parser.HTMLParser):
    """Names and attributes of every tag."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("href", "src", "xlink:href", "action")]
        self.handlers += [key for key, _ in attrs if key.startswith("on")]


@pytest.fixture(scope="module")
def written(page: Page) -> str:
    return html_form.render(page)


@pytest.mark.heavy
def test_a_page_of_the_study_opens_with_its_verdict_then_says_what_to_set(page: Page, written: str) -> None:
    assert page.scoreboard is not None and len(page.scoreboard.rows) == 14
    assert page.verdict.startswith("The study's 14 claims on other models: ")
    assert "Not the study's models: tiny-dense, tiny-draft, tiny-moe-q4_0." in page.scoreboard.note
    of = [head.label for head in page.scoreboard.heads].index("of")
    assert {row[of].text for row in page.scoreboard.rows} >= {"4 texts, 3 repeats", "6 texts, 3 repeats"}
    assert {"holds here", "does not hold here"} & {row[1].text for row in page.scoreboard.rows}
    assert page.next is not None and page.next.startswith("mlsd run ") and "--profile tiny " in page.next
    assert markdown.render(page).splitlines()[0] == f"# {markdown.escape(page.verdict)}"
    assert written.index("The study&#39;s 14 claims") < written.index("Faster in 3 of 14:")


ASKED = {
    "": ["B"], "--profile": ["tiny"], "--model": ["moe-q8=my moe.gguf"], "--gamma": ["4,8"], "--n-predict": ["24"],
    "--repeats": ["2"], "--limit": ["9"], "--n-threads": ["1"], "--cool-down": ["2"],
}  # fmt: skip
KEPT = "--profile tiny --model 'moe-q8=my moe.gguf' --gamma 4,8 --n-predict 24"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "more"),
    [(("code",), "--repeats 4 --n-threads 1 --cool-down 2"),
     (("chinese", "code"), "--repeats 2 --n-threads 1 --cool-down 2 --prompt chinese --prompt code --prompt factual "
                           "--prompt reasoning")],
    ids=["repeats", "texts, where texts are the units"],
)  # fmt: skip
def test_the_next_command_is_what_was_asked_with_twice_the_units(
    tmp_path: Path, prompts: tuple[str, ...], more: str
) -> None:
    measured = blocks(MOE, prompts=prompts, gammas=(4, 8), n_predict=24, repeats=2, noise=0.6)
    study = mlsd.open_study(write(tmp_path / "s.sqlite", measured, asked=ASKED))
    step = next_step(study, of_the_study(study))
    assert step is not None and step.command == f"mlsd run B {KEPT} {more} --db {study.source}"
    took_ns = [(one.trial.prefill_ns or 0) + (one.trial.decode_ns or 0) for one in study.stored]
    assert step.seconds == pytest.approx(sum(took_ns) / 1e9)


def test_after_an_interrupt_the_next_command_is_the_one_that_was_interrupted(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE, gammas=(4, 8), repeats=1, noise=0.6), asked=ASKED)
    with Store.open(path) as store:
        store.end_run(1, "interrupted")
    study = mlsd.open_study(path)
    step = next_step(study, of_the_study(study))
    assert step is not None and step.seconds is None
    assert step.command == f"mlsd run B {KEPT} --repeats 2 --limit 9 --n-threads 1 --cool-down 2 --db {path}"


@pytest.mark.slow
@pytest.mark.usefixtures("unsaved_figures")
def test_commands_of_a_page_name_files_from_the_root_for_it_is_read_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "s.sqlite", blocks(MOE, gammas=(4, 8), repeats=1, noise=0.6), asked=ASKED)
    (tmp_path / "own.toml").touch()
    monkeypatch.chdir(tmp_path)
    following = write_report(mlsd.open_study("s.sqlite"), tmp_path / "page").next
    assert following is not None and following.endswith(f" --db {tmp_path / 's.sqlite'}")
    asked = study_asked(["B", "own.toml"], "tiny", {"moe-q8": "own.toml"}, Overrides())
    assert asked[""] == ("B", str(tmp_path / "own.toml"))
    assert asked["--model"] == (f"moe-q8={tmp_path / 'own.toml'}",)


def test_of_a_study_that_nobody_here_asked_for_nothing_is_next(tmp_path: Path) -> None:
    study = mlsd.open_study(write(tmp_path / "s.sqlite", blocks(MOE, repeats=1)))
    assert next_step(study, of_the_study(study)) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suites", "unmeasured", "command"),
    [
        (("B",), "prompt-length", "mlsd run F"),
        (("B", "F"), "smaller-draft", None),  # the profile has one draft
        (("D",), "moe-speedup", "mlsd run B"),
        (("D", "F"), "gamma-32", "mlsd run B --gamma 16,32"),
    ],
)
def test_the_next_command_measures_a_claim_that_was_not_measured_if_it_can_here(
    tmp_path: Path, suites: tuple[str, ...], unmeasured: str, command: str | None
) -> None:
    measured = [one for suite in suites for one in blocks(MOE, suite, repeats=1, prompts=("code",), gammas=(4,))]
    asked = {"": suites, "--profile": ["tiny"], "--repeats": ["2"], "--n-threads": ["1"]}
    study = mlsd.open_study(write(tmp_path / "s.sqlite", measured, asked=asked))
    nothing = PairedTrials(pairs=frames.pairs((), {}), plain=frames.pairs((), {}))
    (open_,) = [one for one in decide_all(nothing) if one.claim.id == unmeasured]
    step = next_step(study, [open_])
    if command is None:
        assert step is None
    else:
        head, _, changes = command.partition(" --")
        changed = f" --{changes}" if changes else ""
        assert step is not None
        assert step.command == f"{head} --profile tiny --n-threads 1{changed} --db {tmp_path / 's.sqlite'}"


@pytest.mark.slow
def test_speedup_and_verdict_over_depth_stand_in_a_table_and_a_sentence(tmp_path: Path) -> None:
    measured = [
        (of, one)
        for prompt, alpha in (("code", 0.9), ("code@1024", 0.2), ("code@2048", 0.9))
        for of, one in blocks(MOE, alpha=alpha, noise=0.001, prompts=(prompt,), gammas=(4,))
    ]
    lost = {"status": Status.INVALID, "losslessness": Losslessness(verdict="diverged"), "reason": "the output differs"}
    measured = [
        (of, msgspec.structs.replace(one, **lost) if of.gamma and of.prompt.key == "code@2048" else one)
        for of, one in measured
    ]
    (part,) = [s for s in build(mlsd.open_study(write(tmp_path / "s.sqlite", measured))).sections if s.id == "results"]
    (shown,) = [one for one in part.tables if one.id == "depth"]
    assert [row[-1].text for row in shown.rows] == ["lossless", "lossless", "INVALID"]
    assert re.search(r"faster behind 0; slower behind 1024; INVALID .*: it pays up to about \d+ tokens", shown.note)


@pytest.mark.heavy
def test_a_page_of_anything_else_opens_with_the_answer(study: Study) -> None:
    """The same trials under another suite than the study's."""
    other = dataclasses.replace(study)
    other.__dict__["trials"] = study.trials.assign(suite="bench")
    page = build(other)
    written = html_form.render(page)
    assert page.scoreboard is None and page.verdict == ""
    assert page.answer == "Faster in 3 of 14: tiny-moe-q4_0 + tiny-draft, gamma 8 gives 2.05x on code."
    assert markdown.render(page).splitlines()[0] == f"# {markdown.escape(page.answer)}"
    body = re.sub(r"<[^>]+>", " ", written.split("<body>")[1]).split()
    assert " ".join(body[:5]) == "Faster in 3 of 14:"
    for form in (written, markdown.render(page)):
        assert "gamma: the draft length, in tokens; MGL: tokens per round" in form


@pytest.mark.slow
def test_the_page_fetches_nothing(written: str) -> None:
    tags = Tags(written)
    assert all(link.startswith(("#", "data:")) for link in tags.links)
    assert not set(tags.names) & {"iframe", "object", "embed", "base"}
    assert tags.handlers == []
    assert not re.search(r"@import|url\((?!#)", written)
    assert "default-src 'none'" in written


def test_the_tables_of_the_study_stand_in_its_order_with_print_ours_and_ratio(page: Page) -> None:
    (section_,) = [section for section in page.sections if section.id == "study"]
    order = ["table-2", "table-4", "table-5", "table-f"]
    assert [table.id for table in section_.tables] == order
    tables = {table.id: table for table in section_.tables}
    named = {id_: [dict(zip([h.label for h in t.heads], r, strict=True)) for r in t.rows] for id_, t in tables.items()}
    (row,) = [r for r in named["table-5"] if r["study's pair"].text == "moe_q4 + draft_0.8b" and r["gamma"].text == "8"]
    printed = [row[label].text for label in ("printed tok/s", "printed speedup", "printed α, %")]
    assert printed == ["65.2", "1.18x", "1.1"]
    assert row["ours"].text == "tiny-moe-q4_0 + tiny-draft" and row["audit of it"].text == "impossible"
    speedup = row["speedup [95 % CI]"].sort
    assert isinstance(speedup, float) and row["ours / printed"].sort == pytest.approx(speedup / 1.18)
    assert len(named["table-5"]) == 18, "the study's rows and no others"
    assert "20.5 GiB" in tables["table-2"].note
    assert [p.title.split(":")[0] for p in section_.pictures] == ["Figure 1", "Figure 2", "Figure 4"]
    experts = next(section for section in page.sections if section.id == "experts")
    hint = re.compile(r"mlsd calibrate tiny-moe-q4_0 --db /\S+/study\.sqlite")  # a path that can be copied
    assert any(hint.search(text) for text in experts.missing) and experts.empty


def test_one_caption_of_the_study_is_not_printed_as_three_values(tmp_path: Path) -> None:
    measured = blocks(MOE, "F", prompts=("length-32", "length-256", "length-512"), gammas=(8,))
    shown = table_f(mlsd.open_study(write(tmp_path / "f.sqlite", measured)))
    index = [head.label for head in shown.heads].index("printed speedup")
    assert [row[index].text for row in shown.rows] == ["1.26x", "~1.19x from 256 on", "~1.19x from 256 on"]


def test_the_failed_and_the_invalid_trial_are_in_the_table_with_their_reason(study: Study) -> None:
    table = trial_table(study)
    assert len(table.rows) == len(study.trials)
    reasons = " ".join(row[[head.label for head in table.heads].index("reason")].text for row in table.rows)
    assert "llama_decode returned 1" in reasons and "the output differs" in reasons


@pytest.mark.slow
def test_hostile_strings_stay_text(tmp_path: Path) -> None:
    target = msgspec.structs.replace(MOE, ref=msgspec.structs.replace(MOE.ref, id=HOSTILE))
    measured = []
    for repeat in range(3):
        for i, gamma in enumerate((0, 4, 8)):
            of = case(target, "code", gamma, suite=HOSTILE)
            of = msgspec.structs.replace(of, prompt=msgspec.structs.replace(of.prompt, key=HOSTILE, workload=HOSTILE))
            measured.append((of, trial(of, repeat, repeat, i, text=HOSTILE)))
    of = case(target, "code", 4)
    measured.append((of, failed(of, 9, reason=HOSTILE)))
    machine = msgspec.structs.replace(MACHINE, chip=HOSTILE, os=HOSTILE)
    path = write(tmp_path / "s.sqlite", measured, machine, profile=HOSTILE)
    page = build(mlsd.open_study(path))
    written = html_form.render(page)
    assert Tags(written).names.count("script") == 1
    assert "<script>alert" not in written
    assert all(link.startswith(("#", "data:")) for link in Tags(written).links)
    form = markdown.render(page)
    assert "<script>" not in form.replace("\\<", "")
    assert not re.search(r"(?<!\\)\]\(javascript", form)


def test_markdown_has_no_broken_table(page: Page) -> None:
    for block in markdown.render(page).split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) <= 1


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "measured", "expected"),
    [
        ("one plain trial", [(case(MOE, "code"), trial(case(MOE, "code"), 1, 0, 0))], "no setting to choose"),
        ("one pair", blocks(MOE, repeats=1, prompts=("code",), gammas=(4,)), "Not decided yet; best tried: "),
        ("all failed", [(case(MOE, "code", 4), failed(case(MOE, "code", 4), 1))], "no pair of trials is valid"),
        ("only suite F", blocks(MOE, "F", prompts=("length-32", "length-64"), gammas=(8,)), "gamma 8"),
    ],
)
def test_a_study_with_holes_is_a_report_that_says_so(tmp_path: Path, name: str, measured: list, expected: str) -> None:
    page = build(mlsd.open_study(write(tmp_path / "s.sqlite", measured)))
    assert expected in page.answer
    written = html_form.render(page)
    assert page.missing and written.count("No data for: ") == 1
    assert all(f'id="{section.id}-s"' not in written for section in page.sections if section.empty)
    assert "## No data for" in markdown.render(page)


def test_flags_to_copy_stand_beside_the_answer_those_to_switch_on_first(page: Page, written: str) -> None:
    first, *_, last = page.advice
    assert first.title.startswith("tiny-moe-q4_0, ") and first.title.endswith(": tiny-draft, gamma 4")
    assert any("--spec-draft-n-max 4" in line for line in first.lines)
    assert last.title.startswith("tiny-dense, ") and last.title.endswith(": off")
    assert sum("leave it off" in line for advice in page.advice for line in advice.lines) == 1
    assert written.index("<span>--spec-draft-n-max</span> <span>4</span>") < written.index("What disturbs the answer")


@pytest.mark.slow
def test_invalid_trials_are_named_in_red_with_what_they_would_have_claimed(tmp_path: Path) -> None:
    measured = blocks(MOE, repeats=3, prompts=("code",), gammas=(4,))
    lost = Losslessness(verdict="diverged", n_compared=24, first_difference=3)
    for i, (of, changed) in enumerate(measured):
        if of.gamma:
            reason = "the output differs"
            invalid = msgspec.structs.replace(changed, status=Status.INVALID, losslessness=lost, reason=reason)
            measured[i] = (of, invalid)
    page = build(mlsd.open_study(write(tmp_path / "s.sqlite", measured)))
    (sentence,) = page.disturbed
    assert sentence.startswith("tiny-moe-q4_0 + tiny-draft, gamma 4: 3 of 3 trials invalid: the output differs. ")
    assert re.search(r"A program that ignores this would claim \d\.\d\dx", sentence)
    assert f'<p class="bad">{sentence}</p>' in html_form.render(page) and page.chart.missing


def test_no_two_rows_of_the_chart_have_one_label() -> None:
    arms = [result(1.1, 1.2, 1.3, n_predict=n, session=session) for n in (64, 256) for session in (1, 2)]
    labels = arm_labels(arms)
    assert len(set(labels)) == 4 and all("tokens" in label for label in labels)
    assert arm_labels(arms[:1]) == ["small, gamma 4"]


def test_an_audit_without_findings_is_good_news_and_not_missing(tmp_path: Path) -> None:
    study = mlsd.open_study(write(tmp_path / "s.sqlite", blocks(MOE, repeats=3, prompts=("code",), gammas=(4,))))
    checked = section("checks", "Checks", study, audit_table, warning_table)
    assert "6 finished trials, all possible; none is doubted" in checked.text[0]
    assert "nothing speaks against" in checked.text[1] and checked.missing == ()


def test_what_was_left_out_is_said_in_both_forms(page: Page) -> None:
    noted = msgspec.structs.replace(page, notes=("48 trials of another machine or build are left out.",))
    for form in (html_form.render(noted), markdown.render(noted)):
        assert "48 trials of another machine or build are left out" in form


def test_very_many_trials_are_cut_with_a_word_about_it(study: Study) -> None:
    copies = -(-(MOST_TRIALS + 1) // len(study.trials))
    many = dataclasses.replace(study)
    many.__dict__["trials"] = pd.concat([study.trials] * copies, ignore_index=True)
    many.__dict__["audit"] = study.audit  # the audit of so many rows has a test of its own
    table = trial_table(many)
    assert len(table.rows) <= MOST_TRIALS
    assert f"of {len(many.trials)} trials" in table.note
    assert any(cell.text == "invalid" and cell.tone == "bad" for row in table.rows for cell in row)


# --- the command ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_page_text_and_figures(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE, repeats=2, prompts=("code",), gammas=(4,)))
    result = CliRunner().invoke(command, ["--db", str(path), "-o", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["answer"] in Path(printed["html"]).read_text(encoding="utf-8")
    for name in printed["figures"]:
        assert Path(name).stat().st_size > 1000
    text = Path(printed["markdown"]).read_text(encoding="utf-8")
    for linked in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (tmp_path / "out" / linked).is_file()


def test_a_folder_that_cannot_be_written_is_a_clear_message(study: Study, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(study, tmp_path / "file")
