"""A record that was altered is found, whatever was altered and whether or not its digest was mended."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlsd.analysis.audit.record_identities import problems
from mlsd.api import bench
from mlsd.errors import TableError
from mlsd.formats.record import LATER_RATES, output_key, rates, read_record, sums, whole_trials
from mlsd.planning.prompts import READ_ONCE_FROM
from mlsd.records import EngineOptions
from tests.measure.records import Leaf, body, change, leaves, record_of, small_study, write_body

FIGURES = ("decode_ns", "prefill_ns", "gamma", "n_prompt")
HASHES = ("sha256", "host", "environment_key", "case_id", "output")
MANY = settings(max_examples=200, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identities")
    return record_of(small_study(folder), folder / "small.record.json.gz")


def is_tied(leaf: Leaf) -> bool:
    """Whether it is a token, a time, a count or a hash, from which others follow."""
    followed = leaf[0] == "trials" and (leaf[-1] in FIGURES or leaf[-2] in ("sums", "rates"))
    return followed or leaf[0] in ("outputs", "rounds") or leaf[-1] in HASHES


def another(value: Any, by: int) -> Any:
    if value == "":
        return "x"
    if isinstance(value, str):
        place = by % len(value)
        return value[:place] + ("0" if value[place] != "0" else "1") + value[place + 1 :]
    return value + by


def test_an_honest_record_agrees_with_itself(record: Path) -> None:
    file = read_record(record)
    assert problems(file) == []
    assert file.canonical
    assert len(file.study.trials) == 8


def test_a_deep_prompt_that_was_read_once_for_all_arms_is_no_false_record(tmp_path: Path) -> None:
    path = tmp_path / "deep.sqlite"
    bench(
        "tiny-dense", db=path, drafters=("pld",), gammas=(2,), depths=(0, READ_ONCE_FROM), n_predict=8, repeats=2,
        engine=EngineOptions(n_threads=1),
    )  # fmt: skip
    file = read_record(record_of(path, tmp_path / "deep.record.json.gz"))
    assert any(one.trial.prefill_ns is None for one in file.study.trials)
    assert problems(file) == []


@MANY
@given(data=st.data())
def test_any_altered_value_is_found_by_the_digest(record: Path, data: st.DataObject) -> None:
    study, digest = body(record), read_record(record).stated_digest
    leaf = data.draw(st.sampled_from(sorted(leaves(study), key=str)))
    by = data.draw(st.integers(1, 10**6))
    change(study, leaf, lambda value: not value if isinstance(value, bool) else another(value, by) if value else "x")
    try:
        file = write_body(record.with_name("altered.record.json.gz"), study, digest)
    except Exception as error:  # noqa: BLE001 - a value of another kind is no record at all
        assert type(error).__name__ == "TableError"
        return
    assert "digest" in {problem.rule for problem in problems(file)}


@MANY
@given(data=st.data())
def test_one_altered_token_time_count_or_hash_is_found_though_the_digest_was_mended(
    record: Path, data: st.DataObject
) -> None:
    study = body(record)
    leaf = data.draw(st.sampled_from(sorted(filter(is_tied, leaves(study)), key=str)))
    by = data.draw(st.integers(1, 10**6) | st.integers(-(10**6), -1))
    change(study, leaf, lambda value: another(value, by))
    found = problems(write_body(record.with_name("mended.record.json.gz"), study))
    assert {problem.rule for problem in found} - {"digest", "form"}, leaf


# What one may alter, by itself and with sums, rates and digest mended, without contradicting the rest of the record: no
# identity ties it to another value, and no rate, speedup or verdict is made of it. `record verify` says of all of them
# that they were taken as told; of models it compares with the files that are here.
UNTIED = {
    "what the machine's card says beside its key": r"runs\.environment\.\w+",
    "when, how and by what it was run": r"runs\.(seed|started_at|ended_at|suites|profile|status)|mlsd_version|made",
    "what a model's file says of itself": r"models\.\w+(\.\w+)?",
    "what its session planned, which is never less than what the record holds": r"runs\.decides\..+",
    "words": r"warnings\.warning\.\w+",
    "how much was measured again": "n_superseded",
    "the machine around a trial": r"trials\.trial\.(conditions\.\w+|peak_rss_bytes|load_ns|started_at|disturbed)",
    "strategies by name": r"trials\.trial\.(rollback_target|rollback_draft)",
    "a time that only the whole generation bounds": r"trials\.trial\.(prefill_ns|draft_prefill_ns)",
    "what a drafter counted, within its drafting time": r"trials\.trial\.stats\.\w+",
    "the limit of a distance that lies below it": r"trials\.trial\.losslessness\.live_limit",
}  # fmt: skip


def plain(leaf: Leaf) -> str:
    """The place of a leaf without numbers and keys, which differ from record to record."""
    named = leaf[:1] + leaf[2:] if leaf[0] in ("models", "cases", "outputs") else leaf
    return ".".join(step for step in named if isinstance(step, str))


def test_every_leaf_that_carries_a_figure_is_tied_to_another(record: Path) -> None:
    study = body(record)
    arms = [next(i for i, one in enumerate(study["trials"]) if one["trial"]["arm"] == arm) for arm in ("ar", "sd")]
    chosen = {
        (plain(leaf), leaf[1] if leaf[0] == "trials" else None): leaf
        for leaf in leaves(study)
        if leaf[0] != "trials" or (leaf[1] in arms and leaf[2] not in ("sums", "rates"))
    }
    untied = set()
    for (place, _), leaf in chosen.items():
        altered = copy.deepcopy(study)
        change(altered, leaf, lambda value: not value if isinstance(value, bool) else another(value, 1))
        try:
            found = mend(altered, record.with_name("leaf.record.json.gz"))
        except TableError:
            continue
        if not found:
            untied.add(place)
    assert len(chosen) > 100
    assert {place for place in untied if not any(re.fullmatch(free, place) for free in UNTIED.values())} == set()


@pytest.mark.parametrize("section", ["cases", "models", "outputs"])
def test_an_altered_key_is_found(record: Path, section: str) -> None:
    study = body(record)
    for key in study[section]:
        altered = copy.deepcopy(study)
        altered[section] = {another(k, 3) if k == key else k: v for k, v in study[section].items()}
        found = problems(write_body(record.with_name("key.record.json.gz"), altered))
        assert {problem.rule for problem in found} - {"digest", "form"}


def mend(study: dict[str, Any], path: Path) -> list[str]:
    """Sums, rates and digest made anew, as an inventor would; returns the rules that still find it."""
    file = write_body(path, study)
    for recorded, trial in zip(study["trials"], whole_trials(file.study), strict=True):
        recorded["sums"], recorded["rates"] = sums(trial.rounds), rates(trial)
    return [problem.rule for problem in problems(write_body(path, study))]


def test_acceptance_stands_in_its_three_meanings_and_older_records_that_say_one_still_agree(record: Path) -> None:
    study = body(record)
    drafted = next(one["rates"] for one in study["trials"] if one["trial"]["arm"] == "sd")
    assert drafted["accepted_of_output"] == pytest.approx(1 - 1 / drafted["mgl"])
    assert 0 < drafted["acceptance_by_position"] < 1
    for recorded in study["trials"]:
        recorded["rates"] = {name: rate for name, rate in recorded["rates"].items() if name not in LATER_RATES}
    assert problems(write_body(record.with_name("older.record.json.gz"), study)) == []


@pytest.mark.parametrize(
    ("column", "by", "rule"),
    [("verify_ns", -1_000, "parts"), ("accepted", 1, "round")],
    ids=["faster", "accepted more"],
)
def test_an_altered_round_is_found_by_its_trial_though_all_sums_were_mended(
    record: Path, column: str, by: int, rule: str
) -> None:
    study = body(record)
    assert mend(copy.deepcopy(study), record.with_name("whole.record.json.gz")) == []
    place = next(i for i, one in enumerate(study["trials"]) if one["trial"]["arm"] == "sd")
    rounds = {name: columns[place] for name, columns in study["rounds"].items()}
    at = next(i for i, n in enumerate(rounds["accepted"]) if n < rounds["proposed"][i])
    rounds[column][at] += by
    assert mend(study, record.with_name("altered.record.json.gz")) == [rule]


def test_one_output_altered_is_found_by_the_trials_that_say_they_equal_it_though_its_hash_was_mended(
    record: Path,
) -> None:
    study = body(record)
    recorded = next(one for one in study["trials"] if one["trial"]["arm"] == "sd")
    tokens = list(study["outputs"][recorded["output"]])
    tokens[5] += 1
    recorded["output"] = output_key(tokens)
    study["outputs"][recorded["output"]] = tokens
    assert "output" in mend(study, record.with_name("output.record.json.gz"))


def test_a_folder_and_a_second_copy_of_a_trial_are_found(record: Path) -> None:
    study = body(record)
    study["trials"][0]["trial"]["fell_back"] = "see /home/jane/notes"
    assert "private" in mend(study, record.with_name("private.record.json.gz"))
    study = body(record)
    study["trials"].append(study["trials"][0])
    for columns in study["rounds"].values():
        columns.append(columns[0])
    assert "twice" in mend(study, record.with_name("twice.record.json.gz"))


def test_what_the_schema_does_not_know_is_found(record: Path) -> None:
    study = body(record)
    study["runs"][0]["hostname"] = "jane-mac"
    assert mend(study, record.with_name("more.record.json.gz")) == ["form"]
