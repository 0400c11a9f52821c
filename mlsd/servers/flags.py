"""llama-server's flags for our methods, read from the binary's own help; and settings for people to copy.

What a binary cannot do is known from what it lists, so a newer one needs no newer mlsd.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from mlsd.errors import InputError, UnsupportedError
from mlsd.folders import empty_dir
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import state_layers
from mlsd.outside import output_of
from mlsd.records import DRAFT_MODEL, DrafterSpec, OptionValue, Record

# Our methods -> the server's types; a type of the server goes by its own name as well.
TYPES = {
    DRAFT_MODEL: "draft-simple",
    "mtp": "draft-mtp",
    "eagle3": "draft-eagle3",
    "dflash": "draft-dflash",
    "pld": "ngram-simple",
    "ngram-cache": "ngram-cache",
}
# Options of ours -> the end of the server's flag of that type.
_OPTIONS = {"ngram": ("size-n", "n-match"), "size-n": ("size-n",), "n-match": ("n-match",), "min-hits": ("min-hits",)}
# What llama-server keeps snapshots of a recurrent state for (`need_n_rs_seq` in common.h of b11434, and before).
_SNAPSHOTS = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")
_TIMEOUT_S = 30
_FORBIDDEN = {
    "--api-key", "--api-key-file", "--port", "--host", "-m", "--model", "-hf", "--hf-repo", "-np", "--parallel",
}  # fmt: skip


class Binary(Record, frozen=True, kw_only=True):
    """What a llama-server can do, by its help."""

    path: str
    flags: frozenset[str]
    types: tuple[str, ...]  # of speculation

    def known(self, *names: str) -> str | None:
        return next((name for name in names if name in self.flags), None)


def read_binary(path: str) -> Binary:
    """Ask a binary for its help. Raises: InputError when it is no llama-server."""
    found = str(Path(shutil.which(path) or path).absolute())
    try:  # elsewhere than in the working directory, where it would load backends that lie there
        ran = output_of([found, "--help"], timeout_s=_TIMEOUT_S, cwd=empty_dir())
    except OSError as error:
        raise InputError(f"{path} cannot be run: {error}.", hint="Name the llama-server program.") from error
    return read_help(found, ran.out + ran.err)


def read_help(path: str, text: str) -> Binary:
    """The flags and types that a help text lists. Raises: InputError for a text that is none of llama-server's."""
    heads = (line.replace(",", " ").split() for line in text.splitlines() if line.startswith("-"))
    flags = frozenset(flag for words in heads for flag in itertools.takewhile(lambda word: word[0] == "-", words))
    if not {"--port", "--model"} <= flags:
        raise InputError(f"{path} is no llama-server: its help knows no --port and --model.")
    listed = re.search(r"^--spec-type\s+\[?([\w,|-]+)", text, re.MULTILINE)
    types = tuple(name for name in re.split(r"[,|]", listed.group(1)) if name != "none") if listed else ()
    return Binary(path=path, flags=flags, types=types)


def speculation(binary: Binary, spec: DrafterSpec, gamma: int, draft_path: str | None) -> list[str]:
    """The flags that make a server draft as `spec` says, at most `gamma` tokens a round.

    Raises: UnsupportedError for what the binary cannot do, InputError for an option that has no flag.
    """
    kind = TYPES.get(spec.name, spec.name)
    if kind not in binary.types:
        raise UnsupportedError(
            f"This llama-server cannot draft by {spec.name}{f' ({kind})' if kind != spec.name else ''}.",
            hint=f"It knows: {', '.join(binary.types) or 'no speculation at all'}.",
        )
    # Without a type a draft model may do nothing at all, so it is always given.
    given = ["--spec-type", kind]
    if draft_path is not None:
        flag = binary.known("--spec-draft-model", "--model-draft")
        if flag is None:
            raise UnsupportedError("This llama-server takes no draft model.")
        given += [flag, draft_path]
    most = binary.known(f"--spec-{kind}-size-m", f"--spec-{kind}-n-max", "--spec-draft-n-max", "--draft-max")
    if most is not None:
        given += [most, str(gamma)]
    if least := binary.known(f"--spec-{kind}-n-min"):
        given += [least, "1"]  # its default may be more than gamma
    if sampling := binary.known("--spec-draft-sampling"):
        given += [sampling, "greedy"]  # its default, given so that it is recorded: it decides what a temperature means
    return given + _options(binary, kind, spec.options)


def _options(binary: Binary, kind: str, options: Mapping[str, OptionValue]) -> list[str]:
    given: list[str] = []
    for name, value in options.items():
        ends = _OPTIONS.get(name, (name,))
        flag = binary.known(*(f"--spec-{kind}-{end}" for end in ends), f"--spec-draft-{name}")
        if flag is None:
            raise InputError(f"llama-server has no setting {name!r} for {kind}.", hint="Leave it out, or use --flags.")
        given += [flag, str(value)]
    return given


def read_flags(text: str) -> list[str]:
    """Flags as a person types them, files by their full path: the server runs elsewhere.

    Raises: InputError for what mlsd sets itself, and for keys.
    """
    try:
        given = shlex.split(text)
    except ValueError as error:
        raise InputError(f"--flags {text!r} cannot be read: {error}.") from error
    if forbidden := next((flag for flag in (word.split("=")[0] for word in given) if flag in _FORBIDDEN), None):
        raise InputError(
            f"{forbidden} must not stand in --flags.",
            hint="mlsd sets model, port and slots itself; a server on this machine needs no key.",
        )
    # A word may be longer than any file's name, for which `Path.is_file` raises.
    return [str(Path(word).absolute()) if "." in word and os.path.isfile(word) else word for word in given]  # noqa: PTH113


def advice(
    spec: DrafterSpec | None, gamma: int, draft: str | None = None, target: Path | None = None
) -> tuple[str, ...]:
    """What to set in llama-server and in LM Studio for a recommended setting; None: to leave drafting off.

    `draft` is the path of its file, or an id where it is not here: a server takes files only. `target` is the file of
    the target, where it is here: one with a recurrent state costs a server more than it costs mlsd.
    """
    if spec is None or gamma == 0:
        return (
            "llama-server: leave it off (no --spec-type; --model-draft alone only takes memory).",
            "LM Studio: leave Speculative Decoding off (no draft model).",
        )
    kind, name = TYPES.get(spec.name, spec.name), draft or (spec.draft.id if spec.draft else None)
    if not kind.startswith(("draft-", "ngram-")):
        return (f"llama-server and LM Studio cannot draft by {spec.name}.",)
    most = f"--spec-{kind}-size-m" if kind.startswith(("ngram-simple", "ngram-map")) else "--spec-draft-n-max"
    most = "--spec-ngram-mod-n-max" if kind == "ngram-mod" else most
    missing = name is not None and not Path(name).is_file()
    file = "DRAFT.gguf" if missing else shlex.quote(name or "")
    model = f" --spec-draft-model {file}" if name and kind.startswith("draft-") else ""
    own = "".join(
        f" --spec-{kind}-{_OPTIONS[key][-1 if kind == 'ngram-mod' else 0]} {value}"
        for key, value in spec.options.items()
        if key in _OPTIONS and kind.startswith("ngram-") and kind != "ngram-cache"
    )
    where = f" (DRAFT.gguf: the file of {name})" if model and missing else ""
    lines = [f"llama-server: --spec-type {kind}{model} {most} {gamma}{own}{where}"]
    if spec.name == DRAFT_MODEL and name:
        lines.append(f"LM Studio: Speculative Decoding > Draft Model {name}, Drafting Max Size {gamma}.")
    else:
        lines.append("LM Studio: leave Speculative Decoding off; it drafts with a second model only.")
    if target is not None and kind not in _SNAPSHOTS and state_layers(Source(target)):
        lines.append(
            f"llama-server keeps no snapshots of this target's recurrent state for {kind} (n_rs_seq stays 0; seen in "
            "b11434): it copies the state each round, which mlsd does not, so it may gain less or lose. Measure it: "
            "mlsd server TARGET --launch llama-server."
        )
    return tuple(lines)
