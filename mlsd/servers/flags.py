"""llama-server's flags for our methods, read from the binary's own help; and settings for people to copy.

What a binary cannot do is known from what it lists, so a newer one needs no newer mlsd.
"""

import itertools
import os
import re
import shlex
import shutil
from pathlib import Path

import msgspec

from mlsd.drafters import find_method
from mlsd.errors import InputError, UnsupportedError
from mlsd.folders import empty_dir
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import state_layers
from mlsd.methods import METHODS
from mlsd.outside import output_of
from mlsd.records import ADAPTIVE, DRAFT_MODEL, DrafterSpec, OptionValue, Record
from mlsd.trials.on_or_off import DECIDED, Answer


class _Drafting(Record, frozen=True, kw_only=True):
    """How llama-server does one of our methods, and with which of its options it does the same."""

    type: str
    # Ours -> the ending of the server's flag. Given where ours is not 0, for defaults differ.
    options: dict[str, str] = msgspec.field(default_factory=dict)
    # What the server does whatever it is told; the name of another option stands for that one's value.
    always: dict[str, OptionValue] = msgspec.field(default_factory=dict)
    other: str = ""  # it is another method under that name, and why


_P_MIN = {"p_min": "p-min"}
_CHAIN: dict[str, OptionValue] = {"p_min_mode": "drop", ADAPTIVE: 0}
_DRAFTINGS = {
    DRAFT_MODEL: _Drafting(type="draft-simple", options=_P_MIN, always=_CHAIN),
    "mtp": _Drafting(type="draft-mtp", options=_P_MIN, always=_CHAIN),
    "eagle3": _Drafting(type="draft-eagle3", options=_P_MIN, always=_CHAIN),
    "dflash": _Drafting(type="draft-dflash", always={ADAPTIVE: 0}),
    # `common_ngram_simple_draft` of b11524: one length, the last occurrence, no draft shorter than that length.
    "pld": _Drafting(
        type="ngram-simple",
        options={"ngram": "size-n"},
        always={"min_ngram": "ngram", "match": "last", "full": False, "no_match": "ar", ADAPTIVE: 0},
    ),
    "ngram-cache": _Drafting(type="ngram-cache", other="it takes no most tokens a round and other thresholds"),
}
TYPES = {name: one.type for name, one in _DRAFTINGS.items()}  # our methods -> the server's types
# Options of the server's own types -> the end of the flag of that type.
_OPTIONS = {"ngram": ("size-n", "n-match")}
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

    def first_flag(self, *names: str) -> str | None:
        return next((name for name in names if name in self.flags), None)


# What a llama-server of today has (b11524); no older one is advised about.
_CURRENT = Binary(
    path="llama-server",
    types=(),
    flags=frozenset(
        (
            "--spec-draft-model", "--spec-draft-n-max", "--spec-draft-p-min", "--spec-ngram-mod-n-max",
            "--spec-ngram-mod-n-min", "--spec-ngram-mod-n-match",
            *(f"--spec-ngram-{kind}-size-{end}" for kind in ("simple", "map-k", "map-k4v") for end in "nm"),
        )
    ),
)  # fmt: skip
_OTHER_LENGTHS = (
    "Only the draft length that it has was measured. Set another (LM Studio: Drafting Max Size; llama-server: "
    "--spec-draft-n-max) and give the same command again to compare."
)
_MEASURE = "Measure it: mlsd server TARGET --launch llama-server."


def read_binary(path: str) -> Binary:
    """Ask a binary for its help. Raises: InputError when it is no llama-server."""
    program = str(Path(shutil.which(path) or path).absolute())
    try:  # elsewhere than in the working directory, where it would load backends that lie there
        ran = output_of([program, "--help"], timeout_s=_TIMEOUT_S, cwd=empty_dir())
    except OSError as error:
        raise InputError(f"{path} cannot be run: {error}.", hint="Name the llama-server program.") from error
    return read_help(program, ran.stdout + ran.stderr)


def read_help(path: str, text: str) -> Binary:
    """The flags and types that a help text lists. Raises: InputError for a text that is none of llama-server's."""
    heads = (line.replace(",", " ").split() for line in text.splitlines() if line.startswith("-"))
    flags = frozenset(flag for words in heads for flag in itertools.takewhile(lambda word: word[0] == "-", words))
    if not {"--port", "--model"} <= flags:
        raise InputError(f"{path} is no llama-server: its help knows no --port and --model.")
    listed = re.search(r"^--spec-type\s+\[?([\w,|-]+)", text, re.MULTILINE)
    types = tuple(name for name in re.split(r"[,|]", listed.group(1)) if name != "none") if listed else ()
    return Binary(path=path, flags=flags, types=types)


def type_of(spec: DrafterSpec) -> str:
    """The server's type for a method of ours; a type of the server goes by its own name."""
    return TYPES.get(spec.name, spec.name)


def speculation(binary: Binary, spec: DrafterSpec, gamma: int, draft_path: str | None) -> list[str]:
    """The flags that make a server draft as `spec` says, at most `gamma` tokens a round.

    Raises: UnsupportedError for what the binary cannot do, InputError for an option that has no flag.
    """
    kind = type_of(spec)
    if spec.name in TYPES and _all_options(spec).get(ADAPTIVE) and f"{kind}-{ADAPTIVE}" in binary.types:
        kind = f"{kind}-{ADAPTIVE}"
    if kind not in binary.types:
        raise UnsupportedError(
            f"This llama-server cannot draft by {spec.name}{f' ({kind})' if kind != spec.name else ''}.",
            hint=f"It knows: {', '.join(binary.types) or 'no speculation at all'}.",
        )
    given = _flags(binary, kind, spec, gamma, draft_path)
    other = _differences(spec).keys() & spec.options.keys()
    if other := other - ({ADAPTIVE} if kind.endswith(ADAPTIVE) else set()):
        raise _no_flag(min(other), kind)
    return given


def _flags(binary: Binary, kind: str, spec: DrafterSpec, gamma: int, draft_path: str | None) -> list[str]:
    drafting, values = _DRAFTINGS.get(spec.name), _all_options(spec)
    # Without a type a draft model does nothing at all, so it is always given.
    given = ["--spec-type", kind]
    if draft_path is not None:
        flag = binary.first_flag("--spec-draft-model", "--model-draft")
        if flag is None:
            raise UnsupportedError("This llama-server takes no draft model.")
        given += [flag, draft_path]
    settings = [
        ((f"--spec-{kind}-size-m", f"--spec-{kind}-n-max", "--spec-draft-n-max", "--draft-max"), str(gamma)),
        ((f"--spec-{kind}-n-min",), "1"),  # its default may be more than gamma
        # Its default, given so that it is recorded: it decides what a temperature means.
        (("--spec-draft-sampling",), "greedy"),
    ]
    given += [word for names, value in settings if (flag := binary.first_flag(*names)) for word in (flag, value)]
    if kind.endswith(ADAPTIVE) and drafting is not None:
        given += ["--spec-draft-n-min-adaptive", str(values[ADAPTIVE])]
    # Of ours those that were given, and defaults that switch something on.
    names = drafting.options if drafting else spec.options
    for name in (name for name in names if name in spec.options or values.get(name)):
        ends = _OPTIONS.get(name, (name.replace("_", "-"),)) if drafting is None else (drafting.options[name],)
        flag = binary.first_flag(*(f"--spec-{of}-{end}" for of in (kind, "draft") for end in ends))
        if flag is None and binary is not _CURRENT:
            raise _no_flag(name, kind)
        # What is advised was measured, so there is a server that has it.
        given += [flag or f"--spec-{'draft' if kind.startswith('draft-') else kind}-{ends[0]}", str(values[name])]
    return given


def _no_flag(name: str, kind: str) -> InputError:
    return InputError(f"llama-server has no setting {name!r} for {kind}.", hint="Leave it out, or use --flags.")


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


def flags_of(answer: Answer, draft: str | None = None, target: Path | None = None) -> tuple[str, ...]:
    """What to set for an answer, where one is decided; files as `advice` has them."""
    if answer.use not in DECIDED or answer.best is None:
        return ()
    case, is_on = answer.best.case, answer.use == "on"
    if answer.source == "server" and case.gamma == 0:  # somebody else set it up, and knows how
        line = f"{'Leave' if is_on else 'Switch'} the server's speculation {answer.use}."
        return (line, _OTHER_LENGTHS) if is_on else (line,)
    if not is_on:
        return advice(None, 0)
    return advice(case.drafter, case.gamma, draft, target, by_server=answer.source == "server")


def advice(
    spec: DrafterSpec | None,
    gamma: int,
    draft: str | None = None,
    target: Path | None = None,
    *,
    by_server: bool = False,
) -> tuple[str, ...]:
    """What to set in llama-server and in LM Studio for a recommended setting; None: to leave drafting off.

    `draft` is the path of its file, or an id where it is not here: a server takes files only. `target` is the file of
    the target, where it is here: one with a recurrent state costs a server more than it costs mlsd. Every option is
    translated, or named where the server has none like it, unless it was measured `by_server`.
    """
    if spec is None or gamma == 0:
        return (
            "llama-server: leave it off (no --spec-type; --model-draft alone only takes memory).",
            "LM Studio: leave Speculative Decoding off (no draft model).",
        )
    drafting, name = _DRAFTINGS.get(spec.name), draft or (spec.draft.id if spec.draft else None)
    kind = type_of(spec)
    studio = "LM Studio: leave Speculative Decoding off; it needs a second model."
    if not re.fullmatch(r"(draft|ngram)-[\w-]+", kind) or (drafting is None and spec.name in METHODS):
        return (f"llama-server and LM Studio cannot draft by {spec.name}.",)
    if drafting is not None and drafting.other and not by_server:
        return (f"llama-server: no flags do this: its {kind} is another method ({drafting.other}).", studio)
    where = ""
    if name and (not kind.startswith("draft-") or Path(name).is_file()):
        name = name if kind.startswith("draft-") else None
    elif name:
        name, where = "DRAFT.gguf", f" (DRAFT.gguf: the file of {name})"
    lines = [f"llama-server: {shlex.join(_flags(_CURRENT, kind, spec, gamma, name))}{where}"]
    if differs := {} if by_server else _differences(spec):
        clauses = (f"{n} {v} was measured" + ("" if d is None else f", it does {d}") for n, (v, d) in differs.items())
        lines.append(
            f"llama-server differs: {', '.join(clauses)}; it may draft otherwise than measured here. {_MEASURE}"
        )
    if spec.name == DRAFT_MODEL and name and drafting is not None:
        # There one picks a model by name, not a file.
        called = spec.draft.id if spec.draft else Path(name).stem
        left = "".join(f"; it has no {option}" for option in drafting.options if _all_options(spec).get(option))
        lines.append(f"LM Studio: Speculative Decoding > Draft Model {called}, Drafting Max Size {gamma}{left}.")
    else:
        lines.append(studio)
    if target is not None and not by_server and kind not in _SNAPSHOTS and state_layers(Source(target)):
        lines.append(
            f"llama-server keeps no snapshots of this target's recurrent state for {kind} (n_rs_seq stays 0; seen in "
            f"b11434): it copies the state each round, so it may draft otherwise, gain less or lose. {_MEASURE}"
        )
    return tuple(lines)


def _all_options(spec: DrafterSpec) -> dict[str, OptionValue]:
    """With those that were left at their defaults, which differ between programs."""
    if spec.name not in METHODS:
        return dict(spec.options)
    method = find_method(spec.name)
    chosen = msgspec.to_builtins(method.read(spec)) | msgspec.to_builtins(method.length(spec))
    return {name: value for name, value in chosen.items() if isinstance(value, str | int | float)}


def _differences(spec: DrafterSpec) -> dict[str, tuple[OptionValue, OptionValue | None]]:
    """Options of a method of ours that the server has nothing like: their values, and what it does instead."""
    drafting, values = _DRAFTINGS.get(spec.name), _all_options(spec)
    differences = dict[str, tuple[OptionValue, OptionValue | None]]()
    for name, value in values.items():
        if drafting is None or name in drafting.options:
            continue
        done = drafting.always.get(name)
        done = values.get(done, done) if isinstance(done, str) else done
        if value != done:
            differences[name] = value, done
    return differences
