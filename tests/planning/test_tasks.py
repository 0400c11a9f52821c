"""Task files: read as Spec-Bench writes them, refused with the line that is broken."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.errors import TaskError
from mlsd.planning.prompts import (
    KINDS,
    Task,
    load_prompt,
    read_tasks,
    shipped_tasks,
    stratified,
    task_prompts,
    tasks_by_name,
)

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
        ('{"question_id": 1,', r"line 2: Input data was truncated"),
        ({"category": "qa", "turns": ["a"]}, "line 2: Object missing required field `question_id`"),
        ({**GOOD, "question_id": "x"}, r"line 2: Expected `int`, got `str`"),
        ({**GOOD, "question_id": 1, "category": "poetry"}, "line 2: the category 'poetry' is unknown"),
        ({**GOOD, "question_id": 1, "turns": []}, "line 2: there is no turn"),
        ({**GOOD, "question_id": 1, "turns": ["a", " "]}, "line 2: there is no turn, or an empty one"),
        (GOOD, "line 2: question_id 81 occurs twice"),
        ({**GOOD, "question_id": 1, "turns": ["a"] * 100_000}, "line 2: there are more than 64 turns"),
        ('{"question_id": 1, "category": "qa", "x": ' + "[" * 100_000, "line 2: .*recursion"),
        ({**GOOD, "question_id": 10**4000}, "line 2: .*question_id"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: object, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        read_tasks(written(tmp_path, GOOD, line))


def test_all_broken_lines_are_named_at_once_but_not_hundreds_of_them(tmp_path: Path) -> None:
    three = written(tmp_path, GOOD, "{", {**GOOD, "question_id": 2}, {**GOOD, "category": "x"}, GOOD)
    with pytest.raises(TaskError, match=r"question\.jsonl, line 2: .* line 4: .* line 5: question_id 81 occurs twice"):
        read_tasks(three)
    with pytest.raises(TaskError, match=r"line 5: .* And 95 more\.") as caught:
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
        prompt = load_prompt(name)
        assert (prompt.key, prompt.text, prompt.workload, prompt.chat) == (name, task.turns[0], task.kind, True)


def test_every_turn_of_a_file_is_a_prompt_of_its_own_with_the_turns_before_it() -> None:
    tasks = [Task(id=n, category="writing", turns=turns) for n, turns in ((81, ("one", "two")), (9, ("other", "two")))]
    prompts = task_prompts(tasks)
    assert list(prompts) == ["task-81-turn-1", "task-81-turn-2", "task-9-turn-1", "task-9-turn-2"]
    assert all(prompt.key == key and prompt.chat for key, prompt in prompts.items())
    assert [(p.text, p.earlier) for p in prompts.values()][:2] == [("one", ()), ("two", ("one",))]
    assert len({prompt.sha256 for prompt in prompts.values()}) == 4


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
    monkeypatch.setenv("MLSD_MOST_FILE_BYTES", "1000000")
    row = {"question_id": 1, "category": "qa", "turns": ["x" * 10_000] * 10}
    small = speed_bench(tmp_path, [row] * 9)
    assert small.stat().st_size < 5_000 and len(read_tasks(small)) == 9
    with pytest.raises(TaskError, match="more than 1,000,000 bytes of text"):
        read_tasks(speed_bench(tmp_path, [row] * 10))
    with pytest.raises(TaskError, match="more than 100,000 rows or turns"):
        read_tasks(speed_bench(tmp_path, [{**row, "turns": [None] * 100_001}]))
    with pytest.raises(TaskError, match="row 1: no task"):
        read_tasks(speed_bench(tmp_path, [{**row, "turns": ["a"] * 65}]))
