"""Nothing that a stranger wrote steers the terminal, turns into markup, or becomes a second command."""

import ast
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from mlsd import cli
from mlsd.cli import output, watch
from mlsd.measure.messages import Progress
from mlsd.planning.job import Job, ModelFile, Slot
from mlsd.records import Case, ModelRef, PromptRef, Status, Trial
from mlsd.redact import VARIABLES, hide
from mlsd.report.render.markdown import escape
from mlsd.report.render.terminal import plain
from mlsd.units import quoted
from tests.cli.conftest import Mlsd

EVIL = "\x1b[31mred\x9b31m\x07\x7f\u202etxt\u2028[bold]x[/]; rm -rf ~ `id` $(id)"
CASE = Case(suite="B", target=ModelRef(id=EVIL), prompt=PromptRef(key=EVIL, sha256="x"), n_predict=4)
SLOT = Slot(case=CASE, case_id=CASE.id, block=0, repeat=0, position=0)
TRIAL = Trial(
    case_id=CASE.id, arm="ar", gamma=0, block=0, repeat=0, position=0, status=Status.FAILED, started_at="x", reason=EVIL
)
STEERING = ("\x1b", "\x9b", "\x07", "\x7f", "\u202e", "\u2028")


def steers(text: str) -> list[str]:
    return [c for c in STEERING if c in text]


def test_text_for_a_screen_and_for_markdown_holds_nothing_that_steers() -> None:
    assert not steers(plain(EVIL)) and not steers(escape(EVIL))
    assert "[bold]" in plain(EVIL) and "\\[bold\\]" in escape(EVIL)
    assert plain("a\tb\nc") == "a b\nc"


def test_lines_break_at_words_and_commands_stay_whole() -> None:
    text = "Not decided yet: about two more blocks would decide it. Try `mlsd doctor tiny-dense`.\n  Next: mlsd bench a"
    assert output.folded(text, 40).splitlines() == [
        "Not decided yet: about two more blocks",
        "would decide it. Try",
        "`mlsd doctor tiny-dense`.",
        "  Next: mlsd bench a",
    ]
    command = "What decides it: mlsd bench tiny-dense --drafter pld --gamma 2 --prompt code"
    assert output.folded(command, 40).splitlines() == ["What decides it:", command.partition(": ")[2]]
    assert output.folded(text, None) == text


def test_json_reads_the_same_and_shows_no_control(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"name": EVIL, EVIL: "ü \U000e0041"})
    said = capsys.readouterr().out
    assert not steers(said) and "ü" in said and "\U000e0041" not in said
    assert json.loads(said) == {"name": EVIL, EVIL: "ü \U000e0041"}


def test_every_line_goes_through_one_door() -> None:
    for path in Path(cli.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("click.echo", "click.secho", "print") or path.name == "output.py", path
            if called.endswith("TextColumn") and isinstance(node, ast.Call):
                assert "markup=False" in ast.unparse(node), f"{path}: a model's name would be markup"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 200 columns shows of a line that moves."""
    shown = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=shown, force_terminal=True, width=200))
    monkeypatch.setattr(watch, "shows_progress", lambda: True)
    monkeypatch.setattr(output, "shows_progress", lambda: True)
    return shown


def test_a_line_that_moves_shows_names_as_they_are(screen: io.StringIO) -> None:
    with watch.TrialWatcher() as watcher:
        watcher.begin(1, 0)
        watcher.job(Job(target=ModelFile(ref=CASE.target, path=""), prompts={}, slots=()))
        watcher.event(Progress(slot=SLOT, n_tokens=3))
    said = screen.getvalue()
    assert "[0/1] " in said and "[bold]x[/]" in said and not [c for c in STEERING if c in said.replace("\x1b", "")]
    assert "\x1b[31mred" not in said


def test_a_line_that_moves_counts_trials_and_says_how_long_the_rest_takes(
    screen: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    with watch.TrialWatcher() as watcher:
        watcher.begin(3, 1)
        watcher.trial(SLOT, TRIAL)
        with watcher.paused():
            pass
    assert re.search(r"\[2/3, [\d.]+ \w+ left\] ", screen.getvalue())
    assert "FAILED" in capsys.readouterr().err, "what is not valid is a line of its own"


def test_a_session_that_goes_on_until_it_knows_enough_shows_its_time_and_not_the_most_trials(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with watch.TrialWatcher(1e6) as watcher:
        for _ in range(2):  # waves of a search
            watcher.begin(300, 0)
            watcher.trial(SLOT, TRIAL)
    said = capsys.readouterr().err
    assert re.search(r"\[1, \d+ s of 1000000 s\] B ", said) and "[2, " in said and "300" not in said


def test_a_trial_that_is_measured_again_is_counted_once_and_says_of_which_side_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watcher = watch.TrialWatcher()
    watcher.begin(2, 0)
    for side in ("A", "A", "B"):
        watcher.turn(side)
        watcher.trial(SLOT, TRIAL)
    assert re.findall(r"\[(\d)/2\] ([AB]): B ", capsys.readouterr().err) == [("1", "A"), ("1", "A"), ("2", "B")]


def test_an_interrupted_bench_says_that_what_had_ended_is_kept(monkeypatch: pytest.MonkeyPatch, mlsd: Mlsd) -> None:
    def run_bench(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mlsd.measure.parent.requests.bench", run_bench)
    ran = mlsd("bench", "tiny-dense", "--drafter", "pld")
    assert ran.code == 130 and "what had ended is kept" in ran.err


def test_what_was_typed_is_repeated_without_steering(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in ((f"--{EVIL}",), (EVIL,), ("bench", "tiny-dense", f"--{EVIL}")):
        with pytest.raises(SystemExit):
            cli.main(list(arguments))
        assert not steers("".join(capfd.readouterr()))


def test_a_suggested_command_is_one_word_an_id() -> None:
    arguments = ["mlsd", "bench", EVIL, "--draft", "a b"]
    assert shlex.split(f"mlsd bench {quoted(EVIL)} --draft {quoted(Path('a b'))}") == arguments


@pytest.mark.parametrize("name", VARIABLES)
def test_secrets_are_masked_in_whatever_is_printed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, "hf_secret")
    hide("token-in-a-file")
    secret = "it is hf_secret or token-in-a-file"
    output.say(secret)
    output.note(secret)
    output.complain(secret)
    output.print_json({"hf_secret": [secret]})
    out, err = capsys.readouterr()
    assert "hf_secret" not in out + err and "token-in" not in out + err and "***" in out and "***" in err
