"""What cannot be done is refused before any work: one message that says why, exit code 2, and nothing is written."""

import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Mlsd
from tests.engine.broken_files import write_nan_norm

STUDY = Path(__file__).parents[2] / "notebooks" / "data" / "tiny.sqlite"
ADVISE = "advise qwen3-8b --chip M1 --gamma 4 --drafter pld"
HUGE = "2,000,000,000 positions is beyond the 4,096"
RAISES = "--n-ctx 2000000000"
REFUSED = [
    ("advise no-such-model --chip 'M2 Ultra'", "no-such-model"),
    ("advise tiny-moe --chip 'M9 Hyper'", "no chip of that name"),
    ("advise tiny-moe --chip 'M9 Max'", "no chip of that name"),
    ("advise tiny-moe --chip -3", "impossible"),
    ("advise tiny-moe --gamma 0 --chip M1", "at least 1"),
    ("advise tiny-moe --draft other --chip M1", "other is not on this machine"),
    ("advise tiny-moe --measure --chip 'M2 Ultra'", "another"),
    ("advise qwen3-8b --chip M1 --acceptance 0.8 --gamma 4", "one draft or method"),
    ("advise qwen3-8b --chip M1 --acceptance 0.8 --drafter pld", "Name that one: --gamma"),
    ("advise qwen3-8b --chip M1 --runtime cpu", "mlsd bench qwen3-8b --n-gpu-layers 0"),
    ("advise qwen3-8b --chip M1 --n-gpu-layers 0", "on its CPU is not modelled"),
    (f"{ADVISE} --accepted 5/4", "No round at gamma 4"),
    (f"{ADVISE} --accepted 0.6", "167/264"),
    (f"{ADVISE} --acceptance x", "0.75 or 75%"),
    (f"{ADVISE} --acceptance 1.2", "0.75 or 75%"),
    ("audit", "Missing argument 'FILE'"),
    ("audit speed 25 --model 'Qwen3.5-9B Q4_K_M'", "--peak-gb-s NUMBER"),
    ("audit {study} --variable-drafts", "--full-drafts: only for tables"),
    ("bench {broken}/missing.gguf", "does not exist"),
    ("bench {broken}/text.gguf", "is not a GGUF file"),
    ("bench {broken}/truncated.gguf", "truncated"),
    ("bench {tiny}/llama.gguf --gamma two", "not a list of integers"),
    ("bench {tiny}/llama.gguf --prompt nonsense", "no prompt called 'nonsense'"),
    ("bench {tiny}/llama.gguf --prompt {broken}/nothing.txt", "nothing.txt"),
    ("bench {tiny}/llama.gguf --drafter pld --drafter pld", "--drafter holds a value twice: pld, pld"),
    ("bench {tiny}/llama.gguf --draft {broken}/same/llama.gguf", "Two different models are called 'llama'"),
    ("bench {tiny}/llama.gguf --drafter no-such-method", "no drafting method 'no-such-method'"),
    ("bench {tiny}/llama.gguf --drafter draft-model", "needs a draft"),
    ("bench {tiny}/llama.gguf --drafter pld:preset=paper", "Choose from qwen2.5-1.5b, smollm2"),
    ("bench {tiny}/llama.gguf --drafter pld --chat", "has no chat template"),
    ("bench {tiny}/llama.gguf --drafter pld --think on", "has no chat template"),
    ("bench {tiny}/llama.gguf --drafter pld --depth 9999999", "cannot stand at depth"),
    ("bench tiny-dense --temperature inf", "Invalid value for"),
    ("bench tiny-dense --top-p nan", "Invalid value for"),
    ("bench tiny-dense --repeats 1000000000", "Invalid value for"),
    ("bench tiny-dense --top-k 5", "--top-k and --top-p need --temperature"),
    ("bench tiny-dense --repeats 2 --until decided", "--repeats: only for a session without --until"),
    ("calibrate parts tiny-dense --gamma 2", "--gamma: only for the rounds of --draft or --drafter"),
    ("server http://127.0.0.1:9 --n-threads 2", "--n-threads: only for servers that --launch starts"),
    ("bench tiny-dense --drafter pld:ngrm=3", "Did you mean ngram"),
    ("calibrate tiny-dense --budget-s -nan", "Invalid value for"),
    ("calibrate tiny-dense --rows 2,3", "T(1)"),
    ("calibrate tiny-dense --rows 0,1", "0 is not at least 1"),
    ("calibrate tiny-dense --depth 0", "0 is not at least 1"),
    ("calibrate tiny-dense --budget-s 0", "above 0"),
    ("calibrate parts {tiny}/llama.gguf --rows 0,1", "0 is not at least 1"),
    ("calibrate parts {tiny}/llama.gguf --drafter mtp", "mtp was shown to be exact on qwen35"),
    ("calibrate parts {tiny}/llama.gguf --drafter layer-skip:exit=99", "99"),
    ("calibrate parts {tiny}/llama.gguf --drafter pld --n-predict 1", "is not at least 2"),
    ("calibrate parts {tiny}/llama.gguf --prompt nothing --drafter pld", "nothing"),
    ("compare . tiny-dense", "takes A, B and TARGET"),
    ("compare . nowhere tiny-dense", "does not exist"),
    ("compare . . tiny-nothing", "tiny-nothing"),
    ("compare . . tiny-dense --n-threads two/4", "'--n-threads': 'two' is not a whole number"),
    ("compare . . tiny-dense --n-threads -5", "'--n-threads': -5 is not at least 1"),
    ("compare . . tiny-dense --n-threads 0", "'--n-threads': 0 is not at least 1"),
    ("compare . . tiny-dense --n-threads 4/-1", "'--n-threads': -1 is not at least 1"),
    ("compare . . tiny-dense --flash-attention on/maybe", "'--flash-attention': There is no 'maybe'. Choose from"),
    ("compare . . tiny-dense --until 200%", "is not a share like 2%"),
    ("compare . . tiny-dense --fail-on faster:3%", "is not one of slower:3%"),
    (f"doctor model tiny-moe {RAISES}", HUGE),
    ("models show nope", "No model has the id 'nope'"),
    ("models show {broken}/text.gguf", "not a GGUF file"),
    ("models show {broken}/tasks.jsonl", "not a GGUF file"),
    ("models verify qwen3.5-9b-q8_0", "not on this machine"),
    ("models list --role boss", "No model has the role 'boss'"),
    ("models methods medusa", "not available in llama.cpp"),
    ("models methods magic", "no drafting method"),
    (f"models distance tiny-moe --draft tiny-draft {RAISES}", HUGE),
    ("models make tiny -o . --only gpt", "no tiny model 'gpt'"),
    ("models make noise missing.gguf --noise 0.1 -o x.gguf", "missing.gguf"),
    ("models make synth gpt-5 --dry-run", "no shape 'gpt-5'"),
    ("models make synth smollm2-135m", "--output"),
    ("models make synth missing.gguf --dry-run", "missing.gguf"),
    ("models make synth smollm2-135m --router-shared 0.5 -o x.gguf", "mixture of experts"),
    ("models make subset {tiny}/llama.gguf -o x.gguf --skip 2,6", "no block 6: the model has blocks 0 to 5"),
    ("models make subset {tiny}/llama.gguf -o x.gguf", "The blocks of the draft are not given"),
    ("models make subset {tiny}/qwen35.gguf -o x.gguf --keep 0-2", "ends the process"),
    ("record none.csv", "No such command 'none.csv'"),
    ("record import none.csv --into new.sqlite", "none.csv cannot be read: No such file or directory"),
    ("results --suite Q --db {study}", "Choose from A, B, C, D, F"),
    ("results trials --suite Q --db {study}", "Choose from A, B, C, D, F"),
    ("results trial 9999999 --db {study}", "No trial has the number or case id '9999999'"),
    ("results export csv --db {study} -o {study}", "exists"),
    ("results export csv --db {study} -o {study} --force", "is the study database itself"),
    ("run B --profile tiny --draft nobody", "nobody"),  # of the plan: tests/planning has every kind
    ("run B --profile tiny --repeats 0", "'--repeats': 0 is not"),
    ("run B --profile study", "mlsd models pull"),
    ("run --dry-run Z", "no suite called 'Z'"),
    ("run --dry-run B --draft ghost", "no draft called 'ghost'"),
    ("run --dry-run {broken}/broken.toml", "broken.toml"),
    (f"run --dry-run B --n-predict {'9' * 30}", "Invalid value for"),
    (f"run --dry-run B --gamma 4,{'9' * 5000}", "Invalid value for"),
    ("run E --profile tiny --tasks nothing.jsonl", "cannot be read"),
    ("run E --profile tiny --per-kind 2", "--per-kind is only for tasks"),
    ("run E --profile tiny --tasks shipped --prompt code", "exclude each other"),
    ("run E --profile tiny --tasks shipped --per-kind 0", "at least 1"),
    ("run E --profile tiny --tasks {broken}/tasks.jsonl", "line 2"),
    ("server http://127.0.0.1:9 --patience nan", "Invalid value for"),
    ("server http://127.0.0.1:9 --temperature nan", "Invalid value for"),
    ("bnech", "No such command 'bnech'. Did you mean bench"),
    ("repot", "No such command 'repot'. Did you mean report"),
    *((f"{words} 2,0", "0 is not at least 1") for words in ("doctor model tiny-dense --gamma", "compare . . x --rows")),
    ("bench tiny-dense --drafter pld --seed -1", "-1 is not at least 0"),
    ("compare . . tiny-dense --budget-s 0", "0 is not above 0"),
    ("zzz", "No such command 'zzz'. Choose from demo, doctor, bench"),
]  # fmt: skip
# What a process that loads the models says, when a database may be there.
LATE = [
    ("bench {tiny}/llama.gguf --draft {foreign}", "do not share a vocabulary"),
    ("bench {tiny}/llama.gguf --prompt {broken}/long.txt", "positions; the context has"),
    ("bench {tiny}/llama.gguf --n-ctx 256 --n-predict 400", "the context has 256"),
    ("bench {tiny}/qwen35.gguf --draft {tiny}/qwen35-other.gguf --rollback trim", "'trim' is not exact for qwen35"),
    (f"bench tiny-moe --draft tiny-draft --gamma 2 {RAISES}", HUGE),
    (f"search tiny-moe --drafter pld {RAISES}", HUGE),
    (f"calibrate tiny-moe {RAISES}", HUGE),
    ("calibrate parts {tiny}/llama.gguf --depth 9000", "--depth"),
    (f"run B --profile tiny {RAISES}", HUGE),
]  # fmt: skip


@pytest.fixture(scope="module")
def places(tiny: Path, foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models, a study, and a folder of files that are not what they are named."""
    broken = tmp_path_factory.mktemp("broken")
    (broken / "truncated.gguf").write_bytes((tiny / "llama.gguf").read_bytes()[:60_000])
    (broken / "text.gguf").write_text("this is no model")
    (broken / "long.txt").write_text("word " * 100_000)
    (broken / "broken.toml").write_text("name = ")
    (broken / "tasks.jsonl").write_text('{"question_id": 1, "category": "qa", "turns": ["?"]}\n{"question_id": 5}\n')
    (broken / "same").mkdir()
    shutil.copy(tiny / "llama-other.gguf", broken / "same" / "llama.gguf")
    return {"broken": broken, "tiny": tiny, "foreign": foreign, "study": STUDY}


@pytest.mark.parametrize(("line", "message"), [*REFUSED, *LATE], ids=lambda text: text[:60])
def test_what_cannot_be_is_one_message_and_leaves_nothing(
    mlsd: Mlsd, places: dict[str, Path], line: str, message: str
) -> None:
    before = STUDY.read_bytes()
    refused = mlsd(*shlex.split(line.format(**places)))
    assert refused.code == 2 and message in " ".join(refused.err.split()), refused.err
    assert refused.out == "" or "--json" in line
    assert ((line, message) in LATE or not list(Path().iterdir())) and STUDY.read_bytes() == before


@pytest.mark.parametrize(
    ("value", "message"), [(float("nan"), "weights that are NaN or infinite: tensor"), (3e38, "logits are not finite")]
)
def test_a_model_that_computes_no_numbers_is_one_message(
    mlsd: Mlsd, tiny: Path, tmp_path: Path, value: float, message: str
) -> None:
    write_nan_norm(tiny / "llama.gguf", tmp_path / "nan.gguf", value)
    distance = ("models", "distance", "--draft", tiny / "llama.gguf")
    for command in (("bench",), ("doctor", "model"), distance, ("calibrate", "--budget-s", 1)):
        result = mlsd(*command, tmp_path / "nan.gguf", "--n-threads", 1)
        assert result.code != 0, command
        assert message in " ".join(result.err.split()), (command, result.err)
