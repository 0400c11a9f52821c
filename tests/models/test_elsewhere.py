"""Files that other programs keep are found by hash or by size and name, checked, and used in place of a download."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from mlsd.models.hub import Hub
from mlsd.models.library import Library
from mlsd.models.manifest import Manifest, ModelEntry, Repository

DATA = b"GGUF a model that another program keeps"
SHA256 = hashlib.sha256(DATA).hexdigest()
ENTRY = Repository(id="m", name="m", architecture="llama", quantization="Q8_0", repo="maker/Model-GGUF",
    file="Model-Q8_0.gguf", n_bytes=len(DATA), sha256=SHA256,
)  # fmt: skip
# Where each program puts it, under the home folder.
PLACES = {
    "LM Studio": ".lmstudio/models/maker/Model-GGUF/Model-Q8_0.gguf",
    "older LM Studio": ".cache/lm-studio/models/maker/Model-GGUF/Model-Q8_0.gguf",
    "Ollama": f".ollama/models/blobs/sha256-{SHA256}",
    "llama.cpp on a Mac": "Library/Caches/llama.cpp/maker_Model-GGUF_Model-Q8_0.gguf",
    "llama.cpp": ".cache/llama.cpp/maker_Model-GGUF_Model-Q8_0.gguf",
    "another repository of the hub": f"hub/models--other--Copy/blobs/{SHA256}",
    "another revision of the hub": "hub/models--maker--Model-GGUF/snapshots/abc/Model-Q8_0.gguf",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def library(home: Path, entry: ModelEntry = ENTRY) -> Library:
    """A hub that nobody can reach: what is not found here cannot be had."""
    return Library(Manifest(models={entry.id: entry}), Hub(endpoint="http://127.0.0.1:9", cache_dir=home / "hub"))


def keep(path: Path, data: bytes = DATA) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_the_folder_that_was_chosen_in_lm_studio_is_looked_in(home: Path) -> None:
    settings = {"downloadsFolder": str(home / "disk" / "models"), "language": "en"}
    keep(home / ".lmstudio" / "settings.json", json.dumps(settings).encode())
    path = keep(home / "disk/models/maker/Model-GGUF/Model-Q8_0.gguf")
    assert library(home).elsewhere(ENTRY) == (path,)
    keep(home / ".lmstudio" / "settings.json", b"[")
    assert library(home).elsewhere(ENTRY) is None


@pytest.mark.parametrize("program", PLACES)
def test_a_file_of_another_program_is_used_in_place_of_a_download(home: Path, program: str) -> None:
    path = keep(home / PLACES[program])
    here = library(home)
    assert here.locate(ENTRY) is None, "nothing is used before it was checked"
    assert here.elsewhere(ENTRY) == (path,)
    assert here.pull(ENTRY) == (path,)
    assert here.notes == [f"m: {path} is used, nothing was downloaded."]
    assert library(home).resolve("m").ref.sha256 == SHA256
    path.unlink()
    assert library(home).locate(ENTRY) is None, "the other program may remove it"


def test_a_file_of_the_right_name_and_size_with_another_hash_is_not_used(home: Path, pauses: list[float]) -> None:
    keep(home / PLACES["LM Studio"], DATA[::-1])
    here = library(home)
    with pytest.raises(Exception, match="Check your connection"):
        here.pull(ENTRY)
    assert pauses and "it has another hash" in here.notes[0]


def test_where_no_hash_is_known_size_and_name_are_enough_and_its_own_hash_is_kept(home: Path) -> None:
    entry = msgspec.structs.replace(ENTRY, sha256=None)
    path = keep(home / PLACES["LM Studio"])
    library(home, entry).pull(entry)
    path.write_bytes(DATA[::-1])
    (checked,) = library(home, entry).check(entry, fresh=True)
    assert checked.right is False and checked.stated_by == "this machine"


def test_a_layer_of_ollama_is_found_by_its_manifest_where_no_hash_is_known(home: Path) -> None:
    entry = msgspec.structs.replace(ENTRY, sha256=None)
    blob = keep(home / PLACES["Ollama"])
    layers = [{"size": 7, "digest": "sha256:00"}, {"size": len(DATA), "digest": f"sha256:{SHA256}"}]
    manifest = home / ".ollama/models/manifests/hf.co/maker/Model-GGUF/Q8_0"
    keep(manifest, json.dumps({"layers": layers}).encode())
    keep(manifest.with_name("broken"), b"{")
    assert library(home, entry).elsewhere(entry) == (blob,)


def test_a_file_of_another_size_or_of_which_neither_size_nor_hash_is_known_is_not_even_read(home: Path) -> None:
    keep(home / PLACES["LM Studio"], DATA + b"!")
    assert library(home).elsewhere(ENTRY) is None
    entry = msgspec.structs.replace(ENTRY, sha256=None, n_bytes=None)
    assert library(home, entry).elsewhere(entry) is None
