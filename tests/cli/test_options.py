"""Each option, alone and beside each other one, changes what a command answers or asks to measure, or is refused.

Nothing is measured here: what a command would have measured is its answer.
"""

import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click
import pytest
from msgspec.structs import replace

from mlsd.cli.main import cli
from mlsd.errors import MlsdError
from mlsd.measure.parent.tune import setting_of
from mlsd.planning.options import SearchOptions
from mlsd.planning.plan import plan_bench, prepare_study
from mlsd.planning.request import BenchRequest, StudyRequest
from tests.cli.conftest import Mlsd
from tests.servers.fake import FakeServer

pytestmark = pytest.mark.heavy
STUDY = Path(__file__).parents[2] / "notebooks" / "data" / "tiny.sqlite"
TABLE = (
    "| gamma | tok/s | plain tok/s | acceptance |\n|---|---|---|---|\n| 8 | 152 | 41 | 12 % |\n| 4 | 55 | 41 | 62 % |\n"
)
# How an answer is printed, and where.
OF_OUTPUT = {"as_json", "help_all", "quiet", "verbose", "wide", "output", "show_all", "force", "rounds", "markdown"}
MEASURING = (  # what commands call to measure
    *(f"mlsd.measure.parent.{name}" for name in (
        "requests.bench", "requests.run_study", "tune.tune", "compare.compare", "calibration.run_calibration",
        "calibration.breakdown", "bandwidth.measure_bandwidth",
    )),
    "mlsd.servers.measure.measure",
)  # fmt: skip
WITHOUT_EFFECT = {  # what is said of nothing that is left
    "results trials --db {study}": {"--suite beside --failed", "--arm beside --failed"},
    "results export csv --db {study}": {"--suite beside --failed", "--arm beside --failed"},
}
VALUES = {  # of each option by the name of its parameter; "" of a flag
    "acceptance": "0.3", "accepted": "167/264", "against": "http://127.0.0.1:1", "arm": "sd", "budget_s": "5",
    "build": "9430", "chat": "", "chip": "M1", "cool_down_s": "3", "databases": "{study}", "db": "other.sqlite",
    "depth": "8192", "depths": "64", "distances": "", "draft": "tiny-draft", "drafter": "ngram-cache",
    "drafters": "ngram-cache", "drafts": "tiny-draft", "failed": "", "flags": "--no-mmap",
    "flash_attention": "off",
    "fresh": "", "full_drafts": "", "gamma": "2", "gammas": "2", "here": "", "kv_type": "q8_0",
    "launch": "llama-server", "layers": "2", "limit": "3", "machine": "x", "measure": "", "mgl": "2",
    "model": "Qwen3.5-2B Q4_K_M", "models": "draft-small=tiny-dense", "n_ctx": "512", "n_gpu_layers": "0",
    "n_output": "300", "n_predict": "32", "n_threads": "2", "no_control": "", "parallel": "2", "patience_s": "7",
    "peak_gb_s": "10", "per_kind": "1", "precision": "0.5", "profile": "smollm2", "prompt": "factual",
    "prompt_tokens": "5000", "prompts": "factual", "quant": "Q4_0", "quants": "Q4_0", "read_mb": "64", "remote": "",
    "repeats": "2", "replay": "{study}", "role": "draft", "rollback": "checkpoint", "router_shared": "3",
    "rows": "1,3", "runtime": "mlx", "seed": "7", "settings": "9", "sizes_mb": "150", "stop_at_eog": "",
    "strict": "", "suite": "B", "target": "tiny-moe", "target_b": "tiny-moe", "task_file": "shipped",
    "tasks": "questions.jsonl", "temperature": "0.5", "text": "text.txt", "think": "on", "top_k": "5", "top_p": "0.9",
    "until": "decided", "with_engine": "", "workload": "code",
}  # fmt: skip
ENGINE = {"n_ctx", "n_threads", "n_gpu_layers", "flash_attention", "kv_type"}
COMMANDS: dict[str, tuple[set[str], dict[str, str]]] = {  # left out; values of its own
    "bench tiny-dense --drafter pld": ({"build"}, {}),
    "search tiny-dense --drafter pld": ({"build"}, {}),
    "run B --profile tiny": ({"build", "pull", "yes", "costs_s", "folder", "address", "certificate", "dry_run"}, {}),
    "compare . . tiny-dense --drafter pld": ({"fail_on"}, {"until": "2%", "n_threads": "1/2"}),
    "calibrate passes tiny-dense": ({"build"}, {}),
    "calibrate memory": ({"build"}, {}),
    "calibrate parts tiny-dense": ({"build"}, {}),
    "server {speculating} --against {plain}": (set(), {}),
    "server tiny-dense --launch llama-server --drafter pld": ({"launch"}, {}),
    "advise qwen3-8b-q4_k_m --chip 'M4 Pro' --draft qwen3-0.6b-q8_0 --gamma 4": (set(), {"drafts": "qwen3-1.7b-q8_0"}),
    "advise tiny-moe --db {study}": ({"databases", "measure", *ENGINE}, {}),
    "audit table table.md --model 'Qwen3.5-9B Q4_K_M'": (set(), {}),
    "audit speed 25 --model 'Qwen3.5-9B Q4_K_M' --chip 'M4 Pro'": (set(), {}),
    "audit published study": (set(), {}),
    "results arms --db {study}": ({"db"}, {"settings": "x"}),
    "results trials --db {study}": ({"db"}, {}),
    "results export csv --db {study}": ({"db"}, {}),
    "results claims --db {study}": ({"db"}, {"settings": "x"}),
    "results fits --db {study}": ({"db"}, {"settings": "x"}),
    "models list": (set(), {}),
    "models make synth qwen3.5-35b-a3b --dry-run": ({"seed", "dry_run"}, {}),
}


class WouldMeasure(MlsdError):
    """What a command would have measured, in place of an answer."""

    exit_code = 1


def _would_measure(*asked: object, **more: object) -> NoReturn:
    shown: list[object] = []
    for part in (*asked, *more.items()):
        if isinstance(part, BenchRequest):
            shown += [plan_bench(part), part.goal]
        elif isinstance(part, SearchOptions):
            setting = setting_of(part)
            setting = replace(setting, arms=((setting.arms[0][0], (2,)),))
            shown += [plan_bench(setting), part.settings, part.budget_s, part.db]
        elif isinstance(part, StudyRequest):
            shown += [prepare_study(part)]
        elif not callable(part):
            shown += [part]
    text = re.sub(r" at 0x\w+", "", repr(shown))
    raise WouldMeasure(f"Would measure {hashlib.sha256(text.encode()).hexdigest()}")


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a command would begin to measure it says what: the plan of a bench or a suite, else what was asked."""
    for name in MEASURING:
        monkeypatch.setattr(name, _would_measure)


@pytest.fixture
def named() -> Iterator[dict[str, str]]:
    """What lines name."""
    Path("table.md").write_text(TABLE)
    Path("text.txt").write_text("One text of a few words. " * 200)
    Path("questions.jsonl").write_text('{"question_id": 1, "category": "writing", "turns": ["Write a line."]}\n')
    with FakeServer(draft=True) as speculating, FakeServer() as plain:
        yield {"study": str(STUDY), "speculating": speculating.url, "plain": plain.url}


def _command(path: list[str]) -> click.Command:
    command: click.Command = cli
    for word in path:
        inner = command.get_command(click.Context(cli), word) if isinstance(command, click.Group) else None
        if inner is None:
            break
        command = inner
    return getattr(command, "default", None) or command


def _answer(mlsd: Mlsd, arguments: list[str]) -> tuple[int, object]:
    """The exit code and what was printed, without what moves from call to call: the space on the disk."""
    ran = mlsd(*arguments)
    if ran.code == 2:
        assert ran.err.strip(), arguments
    if not ran.out.startswith("{"):
        return ran.code, ran.out + ran.err
    printed = json.loads(ran.out)
    printed.get("needs", {}).pop("free_disk_bytes", None)
    return ran.code, (printed, ran.err)


@pytest.mark.parametrize("line", COMMANDS)
def test_each_option_alone_and_beside_each_other_changes_the_answer_or_is_refused(
    mlsd: Mlsd, named: dict[str, str], line: str
) -> None:
    left_out, values = COMMANDS[line]
    base, options = shlex.split(line.format(**named)), {}
    declared = _command(base).params
    base += ["--json"] if any(option.name == "as_json" for option in declared) else []
    for option in declared:
        if isinstance(option, click.Option) and option.name not in OF_OUTPUT | left_out:
            value = (VALUES | values)[option.name or ""].format(**named)  # a new option needs a value here
            options[option.opts[-1]] = [option.opts[-1], *filter(None, [value])]
    _answer(mlsd, base)  # the first may make a file that later ones read
    plain = _answer(mlsd, base)
    assert plain[0] in (0, 1), plain
    assert _answer(mlsd, base) == plain, "asked twice, it answers alike"
    alone = {name: _answer(mlsd, [*base, *words]) for name, words in options.items()}
    idle = [name for name, answer in alone.items() if answer[0] != 2 and answer == plain]
    for first, other in itertools.combinations(options, 2):
        both = _answer(mlsd, [*base, *options[first], *options[other]])
        idle += [
            f"{added} beside {given}"
            for given, added in ((first, other), (other, first))
            if both[0] != 2 and both == alone[given]
        ]
    assert set(idle) == WITHOUT_EFFECT.get(line, set()), "these change nothing"
