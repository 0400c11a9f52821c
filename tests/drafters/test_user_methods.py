"""Drafting methods of one's own: the documentation's example, and any out of a file, known by its content."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mlsd import drafters
from mlsd.drafters import find_method, resolve_spec, user_methods
from mlsd.engine.verify import Verification
from mlsd.errors import InputError, MlsdError, UnsupportedError
from mlsd.methods import METHODS, KnownMethod
from mlsd.planning.question import parse_drafter
from mlsd.planning.request import own_draft
from mlsd.records import DrafterSpec
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd, mlsd, own_folder  # noqa: F401 - fixtures
from tests.conftest import ARCHITECTURES
from tests.drafters.arena import Arena, prompt_of

HEAD = "import mlsd\n\n\nclass Freq(mlsd.Drafter):\n"
COPY = """\
    def __init__(self, longest: int = 8):
        self.longest = longest

    def begin(self, prompt, rng):
        self.text = list(prompt)

    def observe(self, verification):
        self.text += verification.committed

    def propose(self, k):
        n = min(k, self.longest)
        return mlsd.Proposal(tokens=tuple(self.text[:n]))
"""
QUICK = ("--gamma", 2, "--n-predict", 12, "--repeats", 2, "--n-threads", 1)
EXAMPLE = Path(__file__).parents[2] / "docs" / "new_method.py"


def file(body: str, head: str = HEAD) -> Path:
    path = Path("mine.py")
    path.write_text(head + body, encoding="utf-8")
    return path


def test_a_class_is_a_method_whose_options_are_what_it_is_called_with() -> None:
    file(COPY)
    spec, draft = own_draft(parse_drafter("./mine.py:Freq:longest=3"))
    assert draft is None and spec.options == {"longest": 3}
    method = find_method(spec.name)
    assert [(option.name, option.default) for option in method.info().options] == [("longest", 8), ("adaptive", 0)]
    with pytest.raises(InputError, match="has no option 'length'"):
        method.read(parse_drafter("x:length=3"))


def test_its_name_is_its_content_and_how_it_is_typed_is_known() -> None:
    first = find_method(f"{file(COPY)}:Freq").name
    assert first == find_method(f"{Path('mine.py').absolute()}:Freq").name
    second = find_method(f"{file(COPY + '# other')}:Freq").name
    assert first.startswith("mine.py:Freq@") and second.startswith("mine.py:Freq@") and first != second
    assert (
        user_methods.as_typed(second) == f"{Path('mine.py').absolute()}:Freq" and user_methods.as_typed("pld") == "pld"
    )
    assert user_methods.as_typed("other.py:Freq@0123456789ab") == "./other.py:Freq"
    with pytest.raises(UnsupportedError, match=r"--drafter \./other\.py:Freq"):
        find_method("other.py:Freq@0123456789ab")
    with pytest.raises(InputError, match="has changed"):
        user_methods.load_again({first: f"{Path('mine.py').absolute()}:Freq"})


def test_a_whole_method_of_the_documentation_runs_as_it_is_and_replaces_none() -> None:
    renamed = file(EXAMPLE.read_text(encoding="utf-8").replace('"bigram",', '"pld",', 1), head="")
    before = find_method("pld")
    method_again = find_method(f"{renamed}:Options")
    assert (
        method_again.space.keys() == {"longest"}
        and method_again.summary == "Propose what followed the newest token where it last occurred."
    )
    assert find_method("pld") is before
    assert resolve_spec(parse_drafter("pld")).options == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Freq(:\n", r"SyntaxError: .*\(mine\.py, line 1\)"),
        ("import no_such_module\n", r"ModuleNotFoundError: No module named 'no_such_module' \(mine\.py, line 1\)"),
        ("class Freq:\n    pass\n", "has no drafting method 'Freq'.* derives from mlsd.Drafter"),
        ("import mlsd\nclass Freqs(mlsd.Drafter):\n    pass\n", "Did you mean Freqs"),
    ],
)
def test_a_file_that_holds_no_method_is_told_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(MlsdError) as caught:
        find_method(f"{file(text, head='')}:Freq")
    assert caught.match("mine.py") and __import__("re").search(message, str(caught.value), __import__("re").DOTALL)


def test_it_is_measured_in_the_worker_and_kept_under_its_content(mlsd: Mlsd) -> None:  # noqa: F811
    path = file(COPY)
    ran = mlsd(
        "bench", "tiny-dense", "--drafter", f"./{path}:Freq", "--drafter", f"./{path}:Freq:longest=1", *QUICK, "--json"
    )
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    drafted = [trial for trial in found["trials"] if trial["arm"] == "sd"]
    name = find_method(f"{path}:Freq").name
    assert len(drafted) == 4 and all(trial["valid"] and trial["proposed"] for trial in drafted)
    with Store.open(Path(found["database"]), read_only=True) as store:
        specs = [case.drafter for case in store.cases().values() if case.arm == "sd"]
    assert {spec.name for spec in specs} == {name} and sorted(s.options["longest"] for s in specs if s.options) == [1]
    for answer in found["answers"]:
        assert answer["next"] is None or f"--drafter {path.absolute()}:Freq" in answer["next"]


def test_a_file_that_changed_or_is_gone_stops_no_measurement_that_does_not_name_it(mlsd: Mlsd) -> None:  # noqa: F811
    file(COPY)
    command = ("bench", "tiny-dense", "--drafter", "./mine.py:Freq", *QUICK, "--repeats", 1)
    assert mlsd(*command).code == 0
    file(COPY + "# edited")
    assert mlsd(*command).code == 0, "one process, as in a notebook: the former content is not asked for"
    Path("mine.py").unlink()
    assert mlsd("bench", "tiny-dense", "--drafter", "pld", *QUICK, "--repeats", 1).code == 0


@pytest.mark.parametrize(
    ("propose", "message"),
    [
        ("return {}[3]", "Freq of mine.py raised KeyError: 3 (mine.py, line 6)."),
        ("return [1]", "Freq of mine.py proposed 'list', and no mlsd.Proposal."),
        ("return mlsd.Proposal(tokens=(1,) * 9)", "Freq of mine.py proposed 9 tokens where at most 2 may be."),
        (
            "return mlsd.Proposal(tokens=(10**9,))",
            "Freq of mine.py proposed what is no token of the target: (1000000000,).",
        ),
    ],
)
def test_a_fault_of_it_is_its_own_fails_its_row_alone_and_is_one_line(mlsd: Mlsd, propose: str, message: str) -> None:  # noqa: F811
    path = file(f"    def propose(self, k):\n        {propose}\n")
    ran = mlsd("bench", "tiny-dense", "--drafter", f"./{path}:Freq", *QUICK)
    assert ran.code == 0, ran.err
    assert message in ran.err and "Traceback" not in ran.out + ran.err
    shown = mlsd("results", "trials", "--db", "results/bench.sqlite").out
    assert "Traceback" not in shown and " ".join(message.split()[:4]) in " ".join(shown.split())


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mlsd.drafters.bigram", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def entered(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, example.__name__, example)
    monkeypatch.setitem(METHODS, "bigram", KnownMethod("bigram", "look-up"))


def test_it_copies_what_followed_the_newest_token(example: ModuleType) -> None:
    drafter = example.Bigram(example.Options(longest=3))
    drafter.begin([5, 6, 7, 8, 9, 5], np.random.default_rng(0))
    assert drafter.propose(8).tokens == (6, 7, 8)
    assert drafter.propose(2).tokens == (6, 7)
    drafter.observe(Verification(accepted=1, committed=(6, 4)))
    assert drafter.propose(8).tokens == ()  # 4 is new
    drafter.observe(Verification(accepted=0, committed=(5,)))
    assert drafter.propose(8).tokens == (6, 4, 5)  # where 5 occurred last


@pytest.mark.usefixtures("entered")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_its_output_equals_plain_decoding(arena: Arena, architecture: str) -> None:
    runs = ((prompt, arena.run(architecture, "bigram", 4, prompt, 40)) for prompt in map(prompt_of, range(9)))
    prompt, run = next((prompt, run) for prompt, run in runs if run.proposed > run.accepted)
    arena.assert_exact(architecture, prompt, run)


@pytest.mark.usefixtures("entered")
def test_its_options_explain_themselves() -> None:
    method = drafters.find_method("bigram")
    assert [option.name for option in method.info().options] == ["longest", "adaptive"]
    with pytest.raises(InputError, match="longest"):
        method.read(DrafterSpec(name="bigram", options={"longest": 0}))
