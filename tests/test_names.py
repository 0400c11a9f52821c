"""A name from anywhere ends no report: what neither XML nor a terminal can take is another character from the start."""

import contextlib
import json
import shutil
import sqlite3
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from mlsd.folders import asset_path
from mlsd.names import clean, clean_json
from mlsd.records import Environment, ModelFacts, ModelRef
from mlsd.servers.endpoint import Server
from mlsd.servers.programs import PROGRAMS
from mlsd.store.store import Store
from tests.cli.conftest import (
    Mlsd,
    mlsd,  # noqa: F401 - a fixture
)
from tests.servers.fake import FakeServer

UNFIT = ("\x1b[31m", "\x00", "\x0b", "\x07", "\ufffe", "\uffff", "\ud83d", "\x7f", "\x9b31m", "\x08", "\x0c")
FIT = ("m-1.gguf", "Ωμέγα", "a\tb\nc", "\U0001f600", "\u202eabc", "\\u001b", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("name", UNFIT)
def test_a_name_that_xml_cannot_hold_is_another_one(name: str) -> None:
    text = f"m{name}m"
    assert "\N{REPLACEMENT CHARACTER}" in clean(text)
    for made in (
        ModelRef(id=text).id,
        ModelFacts(ref=ModelRef(id="m"), architecture=text, name=text).name,
        Server(program=PROGRAMS[0], model=text).model,
        Environment(host="h", os=text, machine="m").os,
        msgspec.json.decode(clean_json(json.dumps(text)), type=str),
        msgspec.json.decode(clean_json(json.dumps(text, ensure_ascii=False)), type=str),
    ):
        assert made == clean(text)
        ET.fromstring(f"<a>{made.replace('<', '')}</a>")


@pytest.mark.parametrize("name", FIT)
def test_any_other_name_stays(name: str) -> None:
    assert clean(name) == name
    for text in (json.dumps(name), json.dumps(name, ensure_ascii=False), msgspec.json.encode(name).decode()):
        assert msgspec.json.decode(clean_json(text), type=str) == name


def test_a_server_with_such_a_name_is_reported_on(mlsd: Mlsd, tmp_path: Path) -> None:  # noqa: F811
    database, page, name = tmp_path / "s.sqlite", tmp_path / "report", "\x00m\x1b[31m\x0b\x07\ufffe\uffff"

    def renamed(path: str, value: object) -> object:
        return {**value, "data": [{"id": name}]} if "/models" in path and isinstance(value, dict) else value

    with FakeServer("openai", token_s=0.004) as plain, FakeServer("openai", token_s=0.004) as server:
        plain.value = server.value = renamed
        ran = mlsd("server", server.url, "--against", plain.url, "--n-predict", "8", "--repeats", "2", "--db", database)
    assert ran.code == 0, ran.err
    with Store.open(database, create=False) as store:
        assert all(case.target.id.startswith(clean(name)) for case in store.cases().values())
    assert mlsd("report", "--db", database, "-o", page).code == 0


def test_a_database_with_such_names_is_reported_on(mlsd: Mlsd, tmp_path: Path) -> None:  # noqa: F811
    """As one that an older mlsd wrote, or somebody else."""
    database = tmp_path / "s.sqlite"
    shutil.copy(Path(__file__).parents[1] / "notebooks" / "data" / "tiny.sqlite", database)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        for table, column in (("model", "facts"), ("case", "record"), ("case", "target"), ("run", "plan")):
            connection.execute(f"UPDATE \"{table}\" SET {column} = replace({column}, 'tiny-', 'tiny\\u001b\\u000b-')")
        connection.execute("UPDATE \"case\" SET target = replace(target, '\\u001b\\u000b', char(27) || char(11))")
        connection.execute("UPDATE model SET facts = CAST(replace(facts, 'Q8_0', x'ff1b') AS TEXT)")
    with Store.open(database, create=False) as store:
        assert all("\x1b" not in case.target.id for case in store.cases().values())
    ran = mlsd("report", "--db", database, "-o", tmp_path / "report")
    assert ran.code == 0, ran.err


def test_a_file_whose_name_is_no_text_is_one_message(mlsd: Mlsd, tmp_path: Path) -> None:  # noqa: F811
    shutil.copy(asset_path("tiny/tiny-dense.gguf"), strange := tmp_path / "m\udcff.gguf")
    for words in (
        ("doctor", "model", strange),
        ("report", "--db", tmp_path / "\udcff.sqlite", "-o", tmp_path / "\udcff"),
    ):
        ran = mlsd(*words)
        assert ran.code == 2 and "Traceback" not in ran.err, ran.err
    shutil.copy(asset_path("tiny/tiny-dense.gguf"), coloured := tmp_path / "m\x1b[31m.gguf")
    assert mlsd("doctor", "model", coloured).code == 0
