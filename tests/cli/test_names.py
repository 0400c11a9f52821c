"""A name that is not known is named, with similar ones and the list: in every command that takes one."""

import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Mlsd

STUDY = Path(__file__).parents[2] / "notebooks" / "data" / "tiny.sqlite"
MODEL, METHOD = "tiny-dence", "ngram-cach"
MISSPELT = [  # a command, what was meant, another of the list
    *(
        (words, "tiny-dense", "mlsd models list")
        for words in (
            *(f"bench {MODEL}", f"advise {MODEL}", f"doctor model {MODEL}"),
            *(f"calibrate {MODEL}", f"calibrate parts {MODEL}"),
            *(f"compare . . {MODEL}", f"compare . . tiny-moe --target-b {MODEL}", f"bench tiny-moe --draft {MODEL}"),
            *(f"models {verb} {MODEL}" for verb in ("show", "pull", "verify")),
            f"models distance tiny-moe --draft {MODEL}",
            *(f"models make noise {MODEL} --noise 0.1 -o x", f"models make subset {MODEL} --exit 2 -o x"),
            *(f"models make store x.txt --target {MODEL} -o x", f"run B --profile tiny --draft {MODEL} --dry-run"),
            f"run B --profile tiny --model draft-small={MODEL} --dry-run",
        )
    ),
    *(
        (words, "ngram-cache", "oracle")
        for words in (
            *(f"bench tiny-dense --drafter {METHOD}", f"search tiny-dense --drafter {METHOD}"),
            *(f"advise tiny-dense --drafter {METHOD}", f"compare . . tiny-dense --drafter {METHOD}"),
            *(f"calibrate parts tiny-dense --drafter {METHOD}", f"models methods {METHOD}"),
            f"models distance tiny-dense --drafter {METHOD}",
        )
    ),
    *(
        (f"{words} --prompt cod", "code", "reasoning")
        for words in (
            *("bench tiny-dense --drafter pld", "compare . . tiny-dense --drafter pld", "server http://127.0.0.1:1"),
            *("run B --profile tiny --dry-run", "calibrate parts tiny-dense --drafter pld"),
        )
    ),
    *(
        (f"{words} --chip {chip}", meant, "M1 Max")
        for chip, meant in (("M44", "M4"), ("'M4 Proo'", "M4 Pro"))
        for words in ("advise qwen3-8b", "audit speed 25 --model 'Qwen3.5-9B Q4_K_M'", "audit t.csv")
    ),
    ("advise qwen3-8b --chip M4 --runtime mlxx", "mlx", "mlx-vlm"),
    ("advise tiny-dense --workload cod", "code", "reasoning"),
    ("calibrate memory --quant Q8_9", "Q8_0", "Q4_0"),
    ("models make synth qwen3.5-9bb --dry-run", "qwen3.5-9b", "smollm2-135m"),
    ("models make synth qwen3.5-9b --quant Q8_9 --dry-run", "Q8_0", "Q4_0"),
    ("models make tiny --only lama -o x", "llama", "qwen35"),
    ("models list --role drft", "draft", "head"),
    ("audit published studdy", "study", "spec-bench"),
    ("run BB --dry-run", "B", "G"),
    ("run B --profile tinny --dry-run", "tiny", "smollm2"),
    ("run B --profile tiny --model draft-smal=tiny-draft --dry-run", "draft-small", "moe-q4"),
    ("results --suite BB --db {study}", "B", "D"),
    ("results trials --suite BB --db {study}", "B", "D"),
    ("results export csv --suite BB --db {study}", "B", "D"),
    ("results fits --target tiny-mo --db {study}", "tiny-moe", "tiny-dense"),
    ("results claim --db {study}", "claims", "fits"),
    ("results export cvs", "csv", "llama-bench"),
    ("bench tiny-dense --kv-type q8", "q8_0", "f16"),
    ("models lst", "list", "verify"),
    ("lab strt", "start", "join"),
]


@pytest.mark.parametrize(("line", "meant", "other"), MISSPELT, ids=[line for line, *_ in MISSPELT])
def test_a_misspelt_name_is_answered_with_what_was_meant_and_the_list(
    mlsd: Mlsd, line: str, meant: str, other: str
) -> None:
    ran = mlsd(*shlex.split(line.format(study=STUDY)))
    assert ran.code == 2, ran
    assert "Did you mean" in ran.err and meant in ran.err.partition("Did you mean")[2].partition("?")[0]
    assert other in ran.err
    assert not list(Path.cwd().rglob("x"))
