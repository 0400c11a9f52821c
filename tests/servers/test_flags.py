"""Flags are read from what a binary says of itself, recorded here of one build; advice is in the words of the tools."""

import shlex
from pathlib import Path

import msgspec
import pytest

from mlsd.drafters import find_method
from mlsd.errors import InputError, ServerError, UnsupportedError
from mlsd.folders import asset_path
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.methods import METHODS
from mlsd.records import DRAFT_MODEL, DrafterSpec, ModelRef, OptionValue
from mlsd.servers.flags import TYPES, Binary, advice, read_binary, read_flags, read_help, speculation
from mlsd.servers.launch import Launched

HELP = (Path(__file__).parent / "help_0.5.0.txt").read_text(encoding="utf-8")
BINARY = read_help("llama-server", HELP)


def test_types_and_flags_are_those_of_the_help() -> None:
    assert BINARY.types[:2] == ("draft-simple", "draft-eagle3") and "ngram-mod" in BINARY.types
    assert {"--model", "-m", "--spec-draft-n-max", "--no-spec-draft-backend-sampling"} <= BINARY.flags
    assert "FNAME" not in BINARY.flags


@pytest.mark.parametrize(
    ("spec", "flags"),
    [
        (DrafterSpec(name=DRAFT_MODEL), "--spec-type draft-simple --spec-draft-model d.gguf --spec-draft-n-max 4"),
        (
            DrafterSpec(name="mtp", options={"p_min": 0.6}),
            "--spec-type draft-mtp --spec-draft-n-max 4 --spec-draft-p-min 0.6",
        ),
        (
            DrafterSpec(name="pld", options={"ngram": 3}),
            "--spec-type ngram-simple --spec-ngram-simple-size-m 4 --spec-ngram-simple-size-n 3",
        ),
        (
            DrafterSpec(name="ngram-mod", options={"n-match": 6}),
            "--spec-type ngram-mod --spec-ngram-mod-n-max 4 --spec-ngram-mod-n-min 1 --spec-ngram-mod-n-match 6",
        ),
        (DrafterSpec(name="ngram-cache"), "--spec-type ngram-cache --spec-draft-n-max 4"),
        (DrafterSpec(name="ngram-map-k4v"), "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-m 4"),
    ],
    ids=lambda value: value.name if isinstance(value, DrafterSpec) else "",
)
def test_our_methods_and_the_servers_own_types_become_flags(spec: DrafterSpec, flags: str) -> None:
    draft = "d.gguf" if spec.name == DRAFT_MODEL else None
    assert " ".join(speculation(BINARY, spec, 4, draft)) == flags


def newer(*lines: str, kind: str = "none") -> Binary:
    """A build that lists more."""
    return read_help("new", "\n".join((HELP.replace("none,draft-simple", f"none,{kind},draft-simple"), *lines)))


def test_a_newer_server_needs_no_newer_mlsd() -> None:
    of_its_own = newer("--spec-draft-oracle-n-max N     most tokens", kind="draft-oracle")
    given = speculation(of_its_own, DrafterSpec(name="draft-oracle"), 7, "o.gguf")
    assert given == ["--spec-type", "draft-oracle", "--spec-draft-model", "o.gguf", "--spec-draft-oracle-n-max", "7"]
    sampling = newer("--spec-draft-sampling {greedy,probabilistic}")
    given = speculation(sampling, DrafterSpec(name="pld"), 2, None)
    assert given[given.index("--spec-draft-sampling") + 1] == "greedy"


def test_a_length_that_adapts_has_flags_where_the_server_has_that_type_and_is_named_elsewhere() -> None:
    spec = DrafterSpec(name="mtp", options={"adaptive": 3})
    adapting = newer("--spec-draft-n-min-adaptive N    least", kind="draft-mtp-adaptive")
    given = " ".join(speculation(adapting, spec, 12, None))
    assert given == "--spec-type draft-mtp-adaptive --spec-draft-n-max 12 --spec-draft-n-min-adaptive 3"
    line, differs, _ = advice(spec, 12)
    assert line == "llama-server: --spec-type draft-mtp --spec-draft-n-max 12"
    assert "adaptive 3 was measured, it does 0" in differs


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [("mtp", "adaptive", 3), *((method, "p_min_mode", "include") for method in (DRAFT_MODEL, "mtp", "eagle3"))],
)
def test_an_option_that_the_server_has_otherwise_is_refused(method: str, name: str, value: OptionValue) -> None:
    with pytest.raises(InputError, match=f"no setting '{name}' for draft-"):
        speculation(BINARY, DrafterSpec(name=method, options={name: value}), 4, "d.gguf")


def test_what_a_binary_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="cannot draft by rest"):
        speculation(BINARY, DrafterSpec(name="rest"), 4, None)
    older = read_help("old", "-m, --model FNAME\n--port PORT\n-md, --model-draft FNAME\n--draft-max N\n")
    with pytest.raises(UnsupportedError, match=r"by draft-model \(draft-simple\)") as caught:
        speculation(older, DrafterSpec(name=DRAFT_MODEL), 4, "d.gguf")
    assert "no speculation at all" in caught.value.hint
    with pytest.raises(InputError, match="has no option 'colour'"):
        speculation(BINARY, DrafterSpec(name="pld", options={"colour": 1}), 4, None)


def test_a_program_that_is_no_llama_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no llama-server"):
        read_binary("/bin/ls")
    with pytest.raises(InputError, match="cannot be run"):
        read_binary(str(tmp_path / "nothing"))


@pytest.mark.parametrize("flag", ["--api-key x", "--api-key=x", "--port 1", "--model m", "--host 0.0.0.0", "-np 2"])
def test_what_mlsd_sets_itself_and_keys_do_not_stand_in_flags(flag: str) -> None:
    with pytest.raises(InputError, match="must not stand in --flags"):
        read_flags(f"--mlock {flag}")


def test_flags_are_split_as_a_shell_does() -> None:
    assert read_flags("--mlock --override-kv 'a b'") == ["--mlock", "--override-kv", "a b"]
    with pytest.raises(InputError, match="cannot be read"):
        read_flags("--mlock 'a")


def test_advice_says_what_to_set() -> None:
    spec = DrafterSpec(name=DRAFT_MODEL, draft=ModelRef(id="small"))
    assert advice(spec, 6) == (
        "llama-server: --spec-type draft-simple --spec-draft-model DRAFT.gguf --spec-draft-n-max 6 "
        "(DRAFT.gguf: the file of small)",
        "LM Studio: Speculative Decoding > Draft Model small, Drafting Max Size 6.",
    )
    assert f"--spec-draft-model {shlex.quote(__file__)} " in advice(spec, 6, __file__)[0]
    assert "leave it off" in advice(None, 0)[0] and "leave it off" in advice(spec, 0)[0]
    flags = "llama-server: --spec-type ngram-simple --spec-ngram-simple-size-m 8 --spec-ngram-simple-size-n 3"
    for options in ({}, {"ngram": 3}):  # its own default would be 12
        line, differs, _ = advice(DrafterSpec(name="pld", options=options), 8)
        assert line == flags and "min_ngram 1" in differs and "match first" in differs
    like = {"ngram": 3, "min_ngram": 3, "match": "last"}
    assert advice(DrafterSpec(name="pld", options=like), 8)[0] == flags
    assert not any("differs" in line for line in advice(DrafterSpec(name="pld", options=like), 8))
    assert "--spec-type" not in " ".join(advice(DrafterSpec(name="ngram-cache"), 4))
    assert "--spec-type ngram-cache" in advice(DrafterSpec(name="ngram-cache"), 4, by_server=True)[0]
    for kind, option in (("ngram-map-k", "min_hits"), ("draft-simple", "n_min")):  # any that its server had
        line = advice(DrafterSpec(name=kind, options={option: 2}), 4, by_server=True)[0]
        assert line.endswith(f" --spec-{kind.replace('-simple', '')}-{option.replace('_', '-')} 2")
    assert advice(DrafterSpec(name="lookahead"), 4) == ("llama-server and LM Studio cannot draft by lookahead.",)


@pytest.mark.parametrize(
    ("method", "target", "warns"),
    [("pld", "tiny-moe", True), (DRAFT_MODEL, "tiny-moe", True), ("mtp", "tiny-moe", False), ("pld", "llama", False)],
)
def test_a_server_that_copies_a_recurrent_state_each_round_is_named(
    tmp_path: Path, method: str, target: str, warns: bool
) -> None:
    path = asset_path("tiny/tiny-moe.gguf")
    if target == "llama":
        write_random(path := tmp_path / "llama.gguf", TINY_SET["llama"], seed=1)
    lines = " ".join(advice(DrafterSpec(name=method), 4, None, path))
    assert ("n_rs_seq stays 0" in lines) is warns


def test_a_launched_server_that_dies_is_reported_with_its_signal_and_its_last_line(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\necho loading\necho cannot go on\nkill -SEGV $$\n", encoding="utf-8")
    program.chmod(0o755)
    dying = Launched(msgspec.structs.replace(BINARY, path=str(program)), [], 20.0)
    with dying, pytest.raises(ServerError, match="server ended with SIGSEGV: cannot go on"):
        assert dying.endpoint


@pytest.mark.parametrize("method", METHODS)
def test_every_option_of_a_method_is_translated_or_named_as_left_out(method: str) -> None:
    for name in (option.name for option in find_method(method).info().options):
        if (value := _OTHER.get(name)) is None:
            assert TYPES.get(method) is None, name
            continue
        said = " ".join(advice(DrafterSpec(name=method, options={name: value}), 4))
        assert any(words in said for words in ("cannot draft by", "no flags do this", f" {value}", f"{name} ")), said


_OTHER = {
    "p_min": 0.6, "p_min_mode": "include", "ngram": 2, "min_ngram": 2, "match": "first", "full": True,
    "no_match": "dummy", "thresholds": "strict", "adaptive": 3,
}  # fmt: skip
