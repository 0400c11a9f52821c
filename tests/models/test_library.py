"""A model named by path or id is found, fetched or made in one way, whatever its source."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import mlsd.models.library
from mlsd.errors import HubError, ManifestError, ModelFileError
from mlsd.gguf_tools.read import model_facts, source_weight
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.synth import plan_synthetic
from mlsd.models.hub import Hub
from mlsd.models.library import Library, made_models_dir, resolve_model, space_hint
from mlsd.models.lock import read_lock
from mlsd.models.manifest import (
    Asset,
    FilePart,
    LocalFile,
    Manifest,
    ModelEntry,
    Perturbed,
    Quantized,
    Repository,
    Synthetic,
)
from tests.hub_server import COMMIT, OTHER_COMMIT, REPO, HubServer

TEXT = {"name": "A model", "architecture": "llama", "quantization": "Q8_0"}


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer({"one.gguf": b"GGUF one" * 99, "a-1.gguf": b"GGUF a" * 50, "a-2.gguf": b"GGUF b" * 70}) as running:
        yield running


def library(server: HubServer, tmp_path: Path, *entries: ModelEntry) -> Library:
    manifest = Manifest(models={entry.id: entry for entry in entries})
    return Library(manifest, Hub(endpoint=server.url, cache_dir=tmp_path / "cache"))


def hub_entry() -> ModelEntry:
    return Repository(id="one", repo=REPO, file="one.gguf", **TEXT)


def test_a_path_is_a_model_with_the_hash_of_what_it_holds_now(tmp_path: Path) -> None:
    path = tmp_path / "my-model.gguf"
    path.write_bytes(b"GGUF mine")
    model = resolve_model(str(path))
    assert (model.path, model.entry) == (path, None)
    assert (model.ref.id, model.ref.n_bytes) == ("my-model", 9)
    assert model.ref.sha256 == hashlib.sha256(b"GGUF mine").hexdigest()
    path.write_bytes(b"GGUF ours")
    os.utime(path, ns=(0, 1))
    assert resolve_model(str(path)).ref.sha256 == hashlib.sha256(b"GGUF ours").hexdigest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gone.gguf", "does not exist"),
        ("folder/gone", "does not exist"),
        (".", "is a folder"),
        ("smollm-135m", "Did you mean smollm2-135m"),
        ("qwen3.5-9b-q4_k_m", r"Run `mlsd models pull qwen3\.5-9b-q4_k_m`"),
    ],
)
def test_what_is_no_model_here_says_so_or_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises((ModelFileError, ManifestError), match=message):
        resolve_model(text)


def test_the_model_inside_a_package_is_found_and_has_the_manifests_hash(smollm2: Path) -> None:
    model = resolve_model("smollm2-135m")
    assert model.path.samefile(smollm2)
    assert model.entry is not None
    assert model.ref.sha256 == model.entry.parts[0].sha256
    assert model.ref.n_bytes == model.entry.n_bytes


def test_the_tiny_family_ships_with_mlsd_and_its_second_quantization_is_made_here() -> None:
    for model_id, architecture in (("tiny-moe", "qwen35moe"), ("tiny-dense", "qwen35"), ("tiny-draft", "qwen35")):
        model = resolve_model(model_id)
        facts = model_facts(model.path)
        assert model.entry is not None
        assert facts.n_parameters == model.entry.parameters
        assert (facts.architecture, facts.synthetic) == (architecture, False)
    model = resolve_model("tiny-moe-q4_0", make=True)
    assert "Q4_0" in model_facts(model.path).tensor_types
    assert model.ref.sha256 != resolve_model("tiny-moe").ref.sha256


def test_a_pull_records_what_the_hub_stated_and_stays_at_that_commit(server: HubServer, tmp_path: Path) -> None:
    books = library(server, tmp_path, entry := hub_entry())
    assert books.locate(entry) is None
    (path,) = books.pull(entry)
    locked = read_lock()["one"]["one.gguf"]
    assert (locked.revision, locked.sha256) == (COMMIT, hashlib.sha256(path.read_bytes()).hexdigest())
    server.commit, server.files["one.gguf"] = OTHER_COMMIT, b"GGUF replaced"
    assert books.pull(entry) == (path,)
    assert books.resolve("one").path == path


def test_a_file_damaged_on_disk_is_found_by_a_fresh_check(server: HubServer, tmp_path: Path) -> None:
    books = library(server, tmp_path, entry := hub_entry())
    (path,) = books.pull(entry)
    assert [file.right for file in books.check(entry, fresh=True)] == [True]
    status = path.stat()
    path.resolve().write_bytes(b"X" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # a silent flip, invisible without reading
    assert [file.right for file in books.check(entry)] == [True]
    assert [(file.right, file.stated_by) for file in books.check(entry, fresh=True)] == [(False, "hub")]
    with pytest.raises(HubError, match=r"Delete that file"):
        books.pull(entry)


def test_what_another_program_downloaded_is_checked_against_the_name_of_its_blob(
    server: HubServer, tmp_path: Path
) -> None:
    from huggingface_hub import hf_hub_download

    books = library(server, tmp_path, entry := hub_entry())
    hf_hub_download(REPO, "one.gguf", cache_dir=tmp_path / "cache", endpoint=server.url)
    sent = server.sent_bytes
    (file,) = books.check(entry)
    assert (file.right, file.stated_by) == (True, "hub")
    books.pull(entry)
    assert server.sent_bytes == sent


def test_bytes_that_do_not_have_the_stated_hash_are_deleted(server: HubServer, tmp_path: Path) -> None:
    server.stated_sha256["one.gguf"] = "ab" * 32
    with pytest.raises(HubError, match=r"came with the hash .*, not abab"):
        library(server, tmp_path, entry := hub_entry()).pull(entry)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and "blobs" in path.parts]
    assert read_lock() == {}


def test_a_model_of_a_tag_is_here_once_it_was_pulled(server: HubServer, tmp_path: Path) -> None:
    server.tags = {"v1.0": COMMIT}
    books = library(server, tmp_path, entry := msgspec.structs.replace(hub_entry(), revision="v1.0"))
    paths = books.pull(entry)
    assert books.locate(entry) == paths
    assert books.resolve("one").path == paths[0]


@pytest.mark.parametrize(("system", "counted"), [("darwin", True), ("linux", False)])
def test_a_full_disk_of_a_mac_is_told_of_with_what_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, system: str, counted: bool
) -> None:
    monkeypatch.setattr("mlsd.models.library.sys.platform", system)
    assert ("purgeable" in space_hint("HF_HUB_CACHE")) is counted


def test_a_full_disk_stops_a_pull_before_its_first_byte(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlsd.models.library, "free_bytes", lambda _: 1000)
    with pytest.raises(HubError, match=r"one needs 67\.\d+ MB of disk"):
        library(server, tmp_path, entry := hub_entry()).pull(entry)
    assert server.sent_bytes == 0


def test_a_split_model_is_here_only_when_all_its_files_are(server: HubServer, tmp_path: Path) -> None:
    entry = Repository(id="a", repo=REPO, files=(FilePart(file="a-1.gguf"), FilePart(file="a-2.gguf")), **TEXT)
    books = library(server, tmp_path, entry)
    second = server.files.pop("a-2.gguf")
    with pytest.raises(HubError, match=r"a-2\.gguf of .*no such file"):
        books.pull(entry)
    server.files["a-2.gguf"] = second
    paths = books.pull(entry)
    model = books.resolve("a")
    assert [path.name for path in paths] == ["a-1.gguf", "a-2.gguf"]
    assert paths[0].parent == paths[1].parent
    assert (model.path, model.ref.n_bytes) == (paths[0], 300 + 420)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match="not on this machine"):
        books.resolve("a")


def test_a_shape_with_random_weights_is_written_once_where_it_is_asked_for(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLSD_HOME", str(tmp_path / "home"))
    first, other = (Synthetic(id=f"s{seed}", shape="llama", seed=seed, **TEXT) for seed in (0, 1))
    books = library(server, tmp_path, first, other)
    with pytest.raises(ModelFileError, match="not on this machine"):
        books.resolve("s0")
    assert books.can_make(first)
    first, again, second = (books.resolve(name, make=True) for name in ("s0", "s0", "s1"))
    assert first == again and first.path.stat().st_mtime_ns == again.path.stat().st_mtime_ns
    assert first.ref.sha256 != second.ref.sha256
    assert source_weight(Source(first.path)).total.n_parameters == plan_synthetic("llama").weight.total.n_parameters


def made_from(tiny: Path) -> tuple[ModelEntry, ModelEntry, ModelEntry]:
    base = LocalFile(id="base", file=str(tiny / "llama.gguf"), **TEXT)
    quantized = Quantized(id="small", base="base", type="Q4_0", **TEXT)
    return base, quantized, Perturbed(id="noisy", base="small", noise=0.01, **TEXT)


def test_models_are_made_from_models_that_are_made(server: HubServer, tmp_path: Path, tiny: Path) -> None:
    books = library(server, tmp_path, *made_from(tiny))
    with pytest.raises(ModelFileError, match=r"Run `mlsd models pull noisy`"):
        books.resolve("noisy")
    model = books.resolve("noisy", make=True)
    assert model.path.parent == made_models_dir()
    assert model.ref.sha256 != books.resolve("small").ref.sha256
    assert sorted(path.name[:5] for path in made_models_dir().iterdir()) == ["noisy", "small"]


def test_a_made_model_is_made_once_and_again_only_when_recipe_or_base_change(
    server: HubServer, tmp_path: Path, tiny: Path
) -> None:
    base, quantized, noisy = made_from(tiny)
    books = library(server, tmp_path, base, quantized, noisy)
    (first,) = books.pull(quantized)
    made_at = first.stat().st_mtime_ns
    assert books.pull(quantized) == (first,)
    assert first.stat().st_mtime_ns == made_at
    other_type = Quantized(id="small", base="base", type="Q8_0", **TEXT)
    other_base = LocalFile(id="base", file=str(tiny / "llama-other.gguf"), **TEXT)
    assert library(server, tmp_path, base, other_type).locate(other_type) is None
    assert library(server, tmp_path, other_base, quantized).locate(quantized) is None
    renamed = Quantized(id="small", base="base", type="Q4_0", **{**TEXT, "name": "Another name"})
    assert library(server, tmp_path, base, renamed).locate(renamed) == (first,)


def test_an_asset_that_is_missing_or_wrong_is_named(server: HubServer, tmp_path: Path) -> None:
    gone = Asset(id="gone", file="tiny/gone.gguf", **TEXT)
    wrong = Asset(id="wrong", file="prompts/prompts.toml", sha256="ab" * 32, **TEXT)
    books = library(server, tmp_path, gone, wrong)
    with pytest.raises(ModelFileError, match=r"mlsd itself should hold tiny/gone\.gguf: reinstall it"):
        books.resolve("gone")
    with pytest.raises(HubError, match=r"prompts\.toml has the hash .* manifest says abab"):
        books.pull(wrong)


def test_making_never_downloads(server: HubServer, tmp_path: Path) -> None:
    quantized = Quantized(id="small", base="one", type="Q4_0", **TEXT)
    with pytest.raises(ModelFileError, match="not on this machine"):
        library(server, tmp_path, hub_entry(), quantized).resolve("small", make=True)
    assert server.sent_bytes == 0


def test_a_repository_that_lost_the_pinned_revision_gives_its_current_file_with_a_warning(
    server: HubServer, tmp_path: Path
) -> None:
    pinned = Repository(id="one", repo=REPO, file="one.gguf", revision=OTHER_COMMIT, sha256="0" * 64, **TEXT)
    here = library(server, tmp_path, pinned)
    (path,) = here.pull(pinned)
    assert path.read_bytes() == server.files["one.gguf"]
    assert here.notes[0].startswith(f"Warning: {REPO} no longer has revision {OTHER_COMMIT}")
    again = library(server, tmp_path, pinned)
    n_requests = len(server.requests)
    assert again.resolve("one").ref.sha256 == server.sha256("one.gguf"), "its own hash, not the manifest's"
    assert again.pull(pinned) == (path,) and len(server.requests) == n_requests
    (locked,) = read_lock()["one"].values()
    assert (locked.revision, locked.replaces) == (COMMIT, OTHER_COMMIT)
