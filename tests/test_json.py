"""What commands print with --json stands in docs/schemas.json; `tests/conftest.py` holds every test's output to it."""

import json
from pathlib import Path

import jsonschema
import pytest

from mlsd.cli.main import cli
from tests.cli.test_main import commands
from tools import json_reference


def test_every_command_with_json_has_a_schema() -> None:
    printing = {" ".join(words) for words, command in commands(cli) if any(p.name == "as_json" for p in command.params)}
    assert printing == set(json_reference.PRINTED)


def test_the_schemas_are_those_of_the_records() -> None:
    text = json_reference.text()
    assert json_reference.FILE.read_text(encoding="utf-8") == text, "make generated"
    document = json.loads(text)
    chosen = [document["failure"], *document["commands"].values()]
    jsonschema.Draft202012Validator.check_schema({"anyOf": chosen, "$defs": document["$defs"]})


def test_another_shape_needs_another_version_and_another_comment_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(json_reference.text())
    old = tmp_path / "schemas.json"
    monkeypatch.setattr(json_reference, "FILE", old)
    monkeypatch.setattr(json_reference, "RELEASED", json_reference.VERSION)
    for schema in ("string", "integer"):
        document["$defs"]["Noisy"]["properties"]["path"] = {"type": schema, "description": "another comment"}
        old.write_text(json.dumps(document), encoding="utf-8")
        if schema == "integer":
            with pytest.raises(SystemExit, match="raise VERSION above"):
                json_reference.main()
            monkeypatch.setattr(json_reference, "VERSION", json_reference.VERSION + 1)
        json_reference.main()
        assert old.read_text(encoding="utf-8") == json_reference.text()
