"""An option changes what a command answers or is refused: of the commands that answer without a measurement."""

import json
import shlex
from pathlib import Path

import click
import pytest

from mlsd.cli.main import cli
from tests.cli.conftest import Mlsd

pytestmark = pytest.mark.heavy
STUDY = Path(__file__).parents[2] / "notebooks" / "data" / "tiny.sqlite"
TABLE = (
    "| gamma | tok/s | plain tok/s | acceptance |\n|---|---|---|---|\n| 8 | 152 | 41 | 12 % |\n| 4 | 55 | 41 | 62 % |\n"
)
# How an answer is printed, and where; and what only a measurement does.
OF_OUTPUT = {"as_json", "help_all", "quiet", "verbose", "wide", "output", "show_all", "force", "rounds"}
OF_THIS_MACHINE = {"n_threads", "n_gpu_layers", "n_ctx", "flash_attention", "kv_type"}
OF_ADVICE = """--drafter pld
--workload code
--gamma 2
--chip M1
--runtime mlx
--depth 8192
--prompt-tokens 5000
--n-predict 32
--llama-build 9430
--acceptance 0.3
--accepted 167/264
--output-tokens 300
--mgl 2
--quant Q8_0
--budget-s 5"""
CHANGES: dict[str, tuple[str, set[str]]] = {  # a command: an option a line, and the parameters that are left out
    "advise qwen3-8b-q4_k_m --chip 'M4 Pro' --draft qwen3-0.6b-q8_0 --gamma 4": (
        f"--draft qwen3-1.7b-q8_0\n{OF_ADVICE}\n--measure\n--db {{study}}\n--n-threads 2\n--n-gpu-layers 0"
        "\n--n-ctx 512\n--flash-attention off\n--kv-type q8_0",
        set(),
    ),
    "advise tiny-moe --db {study}": (
        f"--draft tiny-draft\n{OF_ADVICE}",
        {"databases", "measure", *OF_THIS_MACHINE},
    ),
    "run B --profile tiny --dry-run": (
        """--n-ctx 512
        --profile smollm2
        --model draft-small=tiny-dense
        --repeats 1
        --gamma 2
        --draft tiny-draft
        --prompt code
        --n-predict 32
        --temperature 0.5
        --limit 3
        --tasks shipped
        --per-kind 1""",
        # What follows the plan, or is its place.
        {
            "n_threads",
            "n_gpu_layers",
            "flash_attention",
            "kv_type",
            "seed",
            "top_k",
            "top_p",
            "rollback",
            "stop_at_eog",
            "db",
            "cool_down_s",
            "fresh",
            "distances",
            "pull",
            "yes",
        }
        | {"costs_s", "folder", "address", "certificate", "dry_run", "build"},
    ),
    "audit table table.md": (
        """--model 'Qwen3.5-9B Q4_K_M'
        --chip M1
        --peak-gb-s 10
        --full-drafts
        --strict""",
        set(),
    ),
    "audit speed 25 --model 'Qwen3.5-9B Q4_K_M' --chip 'M4 Pro'": (
        """--model 'Qwen3.5-2B Q4_K_M'
        --chip M1
        --peak-gb-s 10""",
        set(),
    ),
    "audit published study": ("--strict", set()),
    "results arms --db {study}": ("--suite B\n--machine x\n--settings x", {"db"}),
    "results trials --db {study}": ("--suite B\n--arm sd\n--failed", {"db"}),
    "results export csv --db {study}": ("--suite B\n--arm sd\n--failed", {"db"}),
    "results claims --db {study}": ("--machine x\n--settings x", {"db"}),
    "results fits --db {study}": ("--target tiny-moe\n--machine x\n--settings x", {"db"}),
    "models list": ("--role draft\n--here", set()),
    "models make synth qwen3.5-35b-a3b --dry-run": ("--quant Q4_0\n--layers 2\n--router-shared 3", {"seed", "dry_run"}),
}


def _command(line: str) -> click.Command:
    found: click.Command = cli
    for word in shlex.split(line):
        inner = found.get_command(click.Context(cli), word) if isinstance(found, click.Group) else None
        if inner is None:
            break
        found = inner
    return found


def _steady(text: str) -> object:
    """A printed answer without what moves from call to call: the space on the disk."""
    if not text.startswith("{"):
        return text
    answer = json.loads(text)
    answer.get("needs", {}).pop("free_disk_bytes", None)
    return answer


@pytest.mark.parametrize("line", CHANGES)
def test_each_option_changes_the_answer_or_is_refused(mlsd: Mlsd, line: str) -> None:
    Path("table.md").write_text(TABLE)
    options, others = CHANGES[line]
    asked = [shlex.split(one.format(study=STUDY)) for one in options.splitlines()]
    command = _command(line)
    by_flag = {flag: one.name for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    named = {by_flag[words[0]] for words in asked}
    declared = {one.name for one in command.params if isinstance(one, click.Option)}
    assert declared - OF_OUTPUT - others == named, "a new option needs a line here"
    base = shlex.split(line.format(study=STUDY))
    json_ = ["--json"] if "as_json" in declared else []
    plain = mlsd(*base, *json_)
    assert plain.code == 0, plain.err
    assert _steady(mlsd(*base, *json_).out) == _steady(plain.out), "asked twice, it answers alike"
    for words in asked:
        changed = mlsd(*base, *words, *json_)
        if changed.code == 2:
            assert changed.err.strip(), words
        else:
            differs = (changed.code, _steady(changed.out)) != (0, _steady(plain.out))
            assert differs, (words, "changes nothing")
