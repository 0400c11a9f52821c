"""What commands print with --json stands in docs/schemas.json; `tests/conftest.py` holds every test's output to it."""

import json

import jsonschema

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
