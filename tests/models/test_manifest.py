"""The shipped manifest is sound, and a wrong entry is named by file, key and value."""

import re
import tomllib
from pathlib import Path

import pytest

from mlsd.errors import ManifestError
from mlsd.folders import data_path
from mlsd.models.manifest import Manifest, load_manifest, read_manifest

GOOD = """
[models."a-model"]
source = "huggingface"
repo = "someone/some-model"
file = "a.gguf"
name = "A model"
architecture = "llama"
quantization = "Q8_0"
"""


@pytest.fixture
def shipped(tmp_path: Path) -> Manifest:
    return load_manifest(user=tmp_path / "none.toml")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gguf_manifest.toml"
    path.write_text(text)
    return path


def test_ids_end_with_the_quantization_of_the_file_that_they_name(shipped: Manifest) -> None:
    for entry in shipped:
        if entry.source == "huggingface":
            quantization = entry.quantization.lower()
            assert entry.id.endswith(quantization)
            assert all(quantization in part.file.lower() for part in entry.parts), entry.id


def test_hub_entries_that_share_a_repository_share_its_pinned_revision(shipped: Manifest) -> None:
    revisions: dict[str, set[str | None]] = {}
    for entry in shipped:
        if entry.source == "huggingface":
            revisions.setdefault(entry.repo, set()).add(entry.revision)
            assert entry.revision is None or re.fullmatch("[0-9a-f]{40}", entry.revision)
    assert all(len(pinned) == 1 for pinned in revisions.values()), revisions


def test_no_two_entries_name_the_same_file_or_the_same_hash(shipped: Manifest) -> None:
    files = [(e.repo, part.file) for e in shipped if e.source == "huggingface" for part in e.parts]
    hashes = [p.sha256 for e in shipped if e.source == "huggingface" for p in e.parts if p.sha256]
    assert len(set(files)) == len(files)
    assert len(set(hashes)) == len(hashes) > 10


def test_active_parameters_of_the_mixture_of_experts_follow_from_its_shape(shipped: Manifest) -> None:
    # 40 layers of 256 experts, 8 of them routed, 3,145,728 weights each; embedding table of 248,320 rows of 2,048.
    entry = shipped.find("qwen3.5-35b-a3b-q4_k_m")
    assert entry.parameters is not None
    assert entry.parameters_active == entry.parameters - 40 * (256 - 8) * 3_145_728 - 248_320 * 2_048


def test_sizes_agree_with_parameters_and_quantization(shipped: Manifest) -> None:
    """Of real models; in the tiny family the header and the unquantized norms are a visible part of the file."""
    bits = {"Q8_0": (8.4, 8.7), "BF16": (15.9, 16.3), "Q4_K_M": (4.5, 5.8)}
    checked = 0
    for entry in shipped:
        if entry.id.startswith("tiny-"):
            continue
        if entry.n_bytes and entry.parameters and entry.quantization in bits:
            low, high = bits[entry.quantization]
            assert low < 8 * entry.n_bytes / entry.parameters < high, entry.id
            checked += 1
    assert checked >= 10


def test_every_role_of_every_profile_names_a_known_model(shipped: Manifest) -> None:
    profiles = tomllib.loads(data_path("suites").joinpath("profiles.toml").read_text())
    bound = {model for profile in profiles.values() for model in profile["roles"].values()}
    assert bound <= set(shipped.models)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('repo = "someone/some-model"', "repo = 3", r"models\.a-model\.repo = 3: Expected `str`"),
        ('repo = "someone/some-model"', 'repo = "x"', r"models\.a-model\.repo = 'x'"),
        ('repo = "someone/some-model"', "", r"models\.a-model: .*missing required field `repo`"),
        ('"huggingface"', '"ftp"', r"models\.a-model\.source = 'ftp': it must be one of huggingface, package"),
        ('source = "huggingface"', "", r"models\.a-model\.source is missing"),
        ('name = "A model"', 'nmae = "A model"', r"models\.a-model: .*unknown field `nmae`"),
        ('name = "A model"', 'name = "A"\nbytes = "big"', r"models\.a-model\.bytes = 'big': Expected `int"),
        ('name = "A model"', 'name = "A"\nbytes = 0', r"models\.a-model\.bytes = 0: Expected `int` >= 1"),
        ('name = "A model"', 'name = "A"\nsha256 = "AB"', r"models\.a-model\.sha256 = 'AB'"),
        ('name = "A model"', 'name = "A"\nroles = ["boss"]', r"models\.a-model\.roles\[0\] = 'boss': .*'boss'"),
        ('file = "a.gguf"', "", r"models\.a-model needs either `file` or `files`"),
        ('file = "a.gguf"', 'file = "a"\nfiles = [{ file = "b" }]', r"needs either `file` or `files`"),
        ('"a-model"', '"A Model"', r"models\.A Model\.id = .*: it has lower-case letters"),
        ('name = "A model"', 'name = "A"\nid = "b"', r"models\.a-model\.id = 'b': the table's own name is the id"),
        ("[models", "[[models", r"is not valid TOML"),
        ('file = "a.gguf"', 'file = "/etc/a.gguf"', r"a-model\.file = '/etc/a\.gguf': it is a path without '\.\.'"),
        ('file = "a.gguf"', 'file = "a/../../b"', r"it is a path without '\.\.'"),
        ('file = "a.gguf"', 'file = "a\\u0000b"', r"it is a path without '\.\.'"),
        ('file = "a.gguf"', 'files = [{ file = "b" }, { file = "../c" }]', r"files\[1\]\.file = .* it is a path"),
        ('name = "A model"', 'name = "A"\nrevision = "../x"', r"revision = '\.\./x': it is a path without"),
        ('repo = "someone/some-model"', 'repo = "../.."', r"repo = '\.\./\.\.': it is OWNER/NAME"),
        ('repo = "someone/some-model"', 'repo = "a/b\\n"', r"it is OWNER/NAME"),
        ('"a-model"', '"a-model\\n"', r"models\.a-model\\n\.id = .*: it has lower-case letters"),
        ('"a-model"', f'"{"a" * 200}"', r"it has .* at most 128"),
        ("[models", "[model", r"unknown table 'model'"),
    ],
)
def test_a_wrong_entry_is_named_by_file_key_and_value(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ManifestError, match=message) as error:
        read_manifest(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("base", "message"), [("gone", r"models\.x\.base = 'gone': no model has this id"), ("y", "itself")]
)
def test_models_made_from_nothing_or_from_each_other_are_refused(tmp_path: Path, base: str, message: str) -> None:
    rest = 'source = "perturb"\nnoise = 0.1\nname = "n"\narchitecture = "llama"\nquantization = "F16"\n'
    path = write(tmp_path, f'[models.x]\nbase = "{base}"\n{rest}[models.y]\nbase = "x"\n{rest}')
    with pytest.raises(ManifestError, match=message):
        load_manifest(user=path)


def test_the_users_manifest_extends_the_shipped_one_and_may_not_redefine_it(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert "a-model" in load_manifest(user=path).models
    write(tmp_path, GOOD.replace("a-model", "smollm2-135m"))
    with pytest.raises(ManifestError, match=r"models\.smollm2-135m is already defined in"):
        load_manifest(user=path)


def test_a_relative_path_is_relative_to_the_manifest_that_names_it(tmp_path: Path) -> None:
    text = GOOD.replace('"huggingface"', '"path"').replace('repo = "someone/some-model"\n', "")
    (entry,) = read_manifest(write(tmp_path, text))
    assert entry.parts[0].file == str(tmp_path / "a.gguf")
