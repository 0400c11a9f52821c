"""Names of prompts and files of tasks: found, read as Spec-Bench writes them, or refused with what is broken."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.errors import PromptError, TaskError
from mlsd.planning import prompts
from mlsd.planning.prompts import KINDS, Task, read_tasks, shipped_tasks, stratified, task_prompts, tasks_by_name

FOUR = ("factual", "code", "reasoning", "chinese")


def by_byte(text: str) -> list[int]:
    return list(text.encode())


def test_the_four_prompts_come_first_and_each_loads_under_its_workload():
    assert prompts.prompt_names()[:4] == FOUR
    for name in prompts.prompt_names():
        prompt = prompts.load_prompt(name)
        assert prompt.key == name and (name not in FOUR or prompt.workload == name)
        assert prompt.sha256 == hashlib.sha256(prompt.text.encode()).hexdigest()
        assert prompt.text == prompt.text.strip()


@pytest.mark.slow
@given(st.text(max_size=60), st.integers(min_value=1, max_value=80))
def test_an_exact_prompt_is_a_prefix_of_the_texts_tokens_or_a_clear_error(text, n_tokens):
    tokens = by_byte(text)
    if n_tokens <= len(tokens):
        assert prompts.exact_prompt(text, n_tokens, by_byte) == tuple(tokens[:n_tokens])
    else:
        with pytest.raises(PromptError, match=f"has {len(tokens)} tokens"):
            prompts.exact_prompt(text, n_tokens, by_byte)


UNKNOWN = ("poetry", "qa-0", "qa-99", "length-0", "length--5", "length-x", "", "Code", "nothing@64")
ENDLESS = ("random-" + "9" * 5000, "length-" + "9" * 5000, "random-9999999", "length-99999", "code@1" + "@1" * 3000)


@pytest.mark.parametrize("name", [*UNKNOWN, *ENDLESS])
def test_an_unknown_name_is_refused_and_the_message_lists_what_exists(name):
    with pytest.raises(PromptError) as caught:
        prompts.load_prompt(name)
    assert all(known in str(caught.value) for known in (*FOUR, "length-N"))


NUMBERS = st.integers(-1, 10**8).map(str) | st.integers(1, 5000).map("9".__mul__) | st.text(max_size=4)


@given(st.sampled_from([*FOUR, "copy", "qa", "random", "length"]), st.none() | NUMBERS, st.lists(NUMBERS, max_size=50))
def test_a_name_is_a_prompt_of_bounded_size_or_refused_before_anything_loads(word, number, depths):
    name = "@".join([word if number is None else f"{word}-{number}", *depths * len(depths)])
    try:
        prompt = prompts.load_prompt(name)
    except PromptError as error:
        assert len(str(error)) < 1000
    else:
        assert len(name) < 50 and max(prompt.n_tokens or 0, prompt.depth) < 2**21


SHA256 = {
    "factual": "716f3474c250d9cb3756194202cec1827d457e3903db64d77572eab93abf705f",
    "code": "1dfb3a6518535d1f264b30f53ec4c9d223993e8298e8ac14b9928029e95a1cd6",
    "reasoning": "7a925a6cf4ea148b7c7c1c09c02cd18afcfe72f2ef40df564c30dcc972389a8b",
    "chinese": "2c7dd7dab93f3a1a962eff1d3b2252602e110a909c1454fd7e81df879643bfbc",
    "length-64": "ef431ed9464f45b08c7cd5c9d81058213180d3c2ca4bf50bf8851165e294cfa2",
    "code@64": "1a95e2bc07eabd231b826409d9a45b15ed51b59d6c08e3ab1b9819150ffe9520",
    "code@4096": "9cdbcdb2a9d9e13d754e1dfdc2ed7214d9ce9a58d3a28ffb3ded2b87b99a8008",
    "qa-1@100000": "7592b38a4c6cef84ede7794d36cf8ce499d968f1ae25d6d992b57449cd3aaf93",
}


@pytest.mark.parametrize("name", SHA256)
def test_a_shipped_prompt_never_changes(name):
    prompt = prompts.load_prompt(name)
    assert prompt.sha256 == SHA256[name], "another id: studies of yesterday resume nothing"
    if prompt.depth:  # long enough at four characters a token
        prompts.exact_prompt(prompt.context, prompt.depth, lambda text: text[::4])


def test_a_prompts_reference_holds_its_identity_but_not_its_text():
    ref = prompts.load_prompt("length-64").ref
    assert (ref.key, ref.n_tokens, ref.workload) == ("length-64", 64, "prose")
    assert ref.sha256 == prompts.load_prompt("length-1024").sha256


def test_a_file_becomes_a_prompt_with_the_hash_of_its_text(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_bytes("\ufeffGrüße,\nworld\n".encode())
    prompt = prompts.prompt_from_file(file)
    assert prompt.text == "Grüße,\nworld\n"
    assert prompt.key == "file:notes"
    assert prompt.sha256 == hashlib.sha256(prompt.text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), (b" \n", "is empty"), (b"caf\xe9 au lait", "not UTF-8")]
)
def test_a_file_that_cannot_be_a_prompt_is_refused_by_name(tmp_path, content, message):
    file = tmp_path / "broken.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PromptError, match=message) as caught:
        prompts.prompt_from_file(file)
    assert "broken.txt" in str(caught.value)


def test_a_chat_is_another_prompt_than_its_text_and_is_found_by_its_own_name():
    switches = {
        "code": (False, None),
        "code+chat": (True, None),
        "code+think": (True, True),
        "code+no-think": (True, False),
    }
    named = {name: prompts.load_prompt(name) for name in switches}
    assert len({prompt.sha256 for prompt in named.values()}) == 4
    assert all((prompt.key, prompt.called) == (name, name) for name, prompt in named.items())
    assert {name: (prompt.chat, prompt.think) for name, prompt in named.items()} == switches
    deep = prompts.load_prompt("code+chat@100")
    assert (deep.key, deep.chat, deep.depth, deep.text) == ("code+chat@100", True, 100, named["code"].text)


def test_a_json_file_is_a_chat_that_can_be_asked_for_again(tmp_path):
    place = tmp_path / "talk.json"
    place.write_text('[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]')
    found = prompts.find_prompt(f"{place}+no-think@64")
    assert [(one.role, one.content) for one in found.messages] == [("system", "Be brief."), ("user", "Why?")]
    assert (found.key, found.called, found.think) == ("file:talk+no-think@64", f"{place}+no-think@64", False)
    assert prompts.find_prompt(found.called) == found


OF_ROLE = '[{"role": "%s", "content": "a"}]'
NO_CHATS = ('{"role": "user"}', "[]", '[{"content": "a"}]', OF_ROLE % "tool", OF_ROLE % "assistant")


@pytest.mark.parametrize("text", [*NO_CHATS, "[" * 100_000, "Why?"])
def test_a_json_file_that_is_no_chat_is_refused_with_what_to_write(tmp_path, text):
    (tmp_path / "talk.json").write_text(text)
    with pytest.raises(PromptError, match=r"talk\.json") as refused:
        prompts.find_prompt(str(tmp_path / "talk.json"))
    assert '"role": "user"' in refused.value.hint


# --- tasks ---------------------------------------------------------------------------------------------------------

GOOD = {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."], "reference": ["x"]}


def written(path: Path, *lines: object) -> Path:
    file = path / "question.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return file


def test_the_shipped_set_has_eight_tasks_of_each_kind_and_two_turns_where_it_says_so() -> None:
    tasks = shipped_tasks()
    assert Counter(task.kind for task in tasks) == dict.fromkeys(KINDS, 8)
    assert all(len(task.turns) == (2 if task.kind == "multi_turn" else 1) for task in tasks)
    assert len({turn for task in tasks for turn in task.turns}) == 56


def test_a_spec_bench_file_is_read_and_its_eight_categories_are_one_kind(tmp_path: Path) -> None:
    tasks = read_tasks(written(tmp_path, GOOD, "", {**GOOD, "question_id": 9, "category": "rag", "turns": ["Q"]}))
    assert tasks == (
        Task(id=81, category="writing", turns=("Write.", "Rewrite.")),
        Task(id=9, category="rag", turns=("Q",)),
    )
    assert [task.kind for task in tasks] == ["multi_turn", "rag"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"question_id": 1,', "line 2 is not valid JSON"),
        ({"category": "qa", "turns": ["a"]}, "line 2 .*Object missing required field `question_id`"),
        ({**GOOD, "question_id": "x"}, r"line 2 .*Expected `int`, got `str`"),
        ({**GOOD, "question_id": 1, "category": "poetry"}, "line 2: the category 'poetry' is unknown"),
        ({**GOOD, "question_id": 1, "turns": []}, "line 2: there is no turn"),
        ({**GOOD, "question_id": 1, "turns": ["a", " "]}, "line 2: there is no turn, or an empty one"),
        (GOOD, "line 2: question_id 81 occurs twice"),
        ({**GOOD, "question_id": 1, "turns": ["a"] * 100_000}, "line 2: there are more than 64 turns"),
        ('{"question_id": 1, "category": "qa", "x": ' + "[" * 100_000, "line 2 is JSON that is nested too deeply"),
        ({**GOOD, "question_id": 10**4000}, "line 2 .*question_id"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: object, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        read_tasks(written(tmp_path, GOOD, line))


def test_all_broken_lines_are_named_at_once_but_not_hundreds_of_them(tmp_path: Path) -> None:
    three = written(tmp_path, GOOD, "{", {**GOOD, "question_id": 2}, {**GOOD, "category": "x"}, GOOD)
    with pytest.raises(TaskError, match=r"question\.jsonl, line 2 .* line 4: .* line 5: question_id 81 occurs twice"):
        read_tasks(three)
    with pytest.raises(TaskError, match=r"line 5 .* And 95 more\.") as caught:
        read_tasks(written(tmp_path, *["{"] * 100))
    assert "line 6" not in caught.value.message


def test_a_file_of_too_many_rows_or_turns_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="more than 100,000 lines"):
        read_tasks(written(tmp_path, "\n" * 100_001))
    with pytest.raises(TaskError, match="more than 100,000 turns"):
        read_tasks(written(tmp_path, *({**GOOD, "question_id": n, "turns": ["a"] * 64} for n in range(1600))))


def test_a_file_without_a_task_or_that_is_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds no task"):
        read_tasks(written(tmp_path, "", " "))
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(TaskError, match=r"not UTF-8 text \(byte 3\)"):
        read_tasks(tmp_path / "latin")


@given(counts=st.lists(st.integers(0, 20), min_size=6, max_size=6), per_kind=st.integers(1, 12))
def test_a_subset_takes_from_each_kind_what_there_is_and_keeps_the_order(counts: list[int], per_kind: int) -> None:
    categories = ("math", *KINDS[1:])
    listed = [category for category, n in zip(categories, counts, strict=True) for _ in range(n)]
    tasks = [Task(id=i, category=category, turns=("x",)) for i, category in enumerate(listed)]
    chosen = stratified(tasks, per_kind)
    assert list(chosen) == [task for task in tasks if task in chosen]
    found = Counter(task.category for task in chosen)
    assert {c: found[c] for c in categories} == {c: min(n, per_kind) for c, n in zip(categories, counts, strict=True)}


def test_a_subset_is_spread_evenly() -> None:
    tasks = [Task(id=i, category="qa", turns=("x",)) for i in range(80)]
    assert [task.id for task in stratified(tasks, 4)] == [0, 20, 40, 60]
    with pytest.raises(TaskError, match="at least 1"):
        stratified(tasks, 0)


def test_every_shipped_task_is_a_prompt_of_its_kind() -> None:
    assert set(tasks_by_name().values()) == set(shipped_tasks())
    for name, task in tasks_by_name().items():
        prompt = prompts.load_prompt(name)
        assert (prompt.key, prompt.text, prompt.workload, prompt.chat) == (name, task.turns[0], task.kind, True)


def test_every_turn_of_a_file_is_a_prompt_of_its_own_with_the_turns_before_it() -> None:
    tasks = [Task(id=n, category="writing", turns=turns) for n, turns in ((81, ("one", "two")), (9, ("other", "two")))]
    found = task_prompts(tasks)
    assert list(found) == ["task-81-turn-1", "task-81-turn-2", "task-9-turn-1", "task-9-turn-2"]
    assert all(prompt.key == key and prompt.chat for key, prompt in found.items())
    assert [(p.text, p.earlier) for p in found.values()][:2] == [("one", ()), ("two", ("one",))]
    assert len({prompt.sha256 for prompt in found.values()}) == 4


# --- SPEED-Bench ------------------------------------------------------------------------------------------------


def speed_bench(path: Path, rows: list[dict[str, object]], name: str = "qualitative.parquet") -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(rows), path / name)
    return path / name


def speed_rows(*categories: str) -> list[dict[str, object]]:
    return [
        {"question_id": f"q{n}", "category": category, "turns": [f"Ask {n}.", "And then?"], "source": "made up"}
        for n, category in enumerate(categories)
    ]


def test_a_parquet_in_the_form_of_speed_bench_is_read_and_its_categories_are_kinds(tmp_path: Path) -> None:
    tasks = read_tasks(speed_bench(tmp_path, speed_rows("coding", "rag", "coding", "multilingual")))
    assert [(task.id, task.kind) for task in tasks] == [(1, "coding"), (2, "rag"), (3, "coding"), (4, "multilingual")]
    assert tasks[0].turns == ("Ask 0.", "And then?")
    assert [task.id for task in stratified(tasks, 1)] == [1, 2, 4]
    assert task_prompts(tasks)["task-1-turn-2"].workload == "coding"


def test_a_split_by_input_length_keeps_entropy_tier_and_length_apart(tmp_path: Path) -> None:
    file = speed_bench(tmp_path, speed_rows("low_entropy", "high_entropy"), "throughput_8k.parquet")
    assert [task.kind for task in read_tasks(file)] == ["low_entropy 8k", "high_entropy 8k"]


def test_a_parquet_that_is_none_or_lacks_columns_or_turns_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no")
    with pytest.raises(TaskError, match="cannot be read as parquet"):
        read_tasks(broken)
    with pytest.raises(TaskError, match="cannot be read as parquet"):
        read_tasks(tmp_path / "absent.parquet")
    with pytest.raises(TaskError, match="has no column turns"):
        read_tasks(speed_bench(tmp_path, [{"question_id": 1, "category": "coding"}]))
    with pytest.raises(TaskError, match="row 1: no task"):
        read_tasks(speed_bench(tmp_path, [{"question_id": 1, "category": "coding", "turns": [" "]}]))


def test_a_parquet_that_unfolds_to_more_than_there_may_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlsd.planning.prompts.MOST_FILE_BYTES", 1_000_000)
    row = {"question_id": 1, "category": "qa", "turns": ["x" * 10_000] * 10}
    small = speed_bench(tmp_path, [row] * 9)
    assert small.stat().st_size < 5_000 and len(read_tasks(small)) == 9
    with pytest.raises(TaskError, match="more than 1,000,000 bytes of text"):
        read_tasks(speed_bench(tmp_path, [row] * 10))
    with pytest.raises(TaskError, match="more than 100,000 rows or turns"):
        read_tasks(speed_bench(tmp_path, [{**row, "turns": [None] * 100_001}]))
    with pytest.raises(TaskError, match="row 1: no task"):
        read_tasks(speed_bench(tmp_path, [{**row, "turns": ["a"] * 65}]))
