"""A small but complete byte-level tokenizer: every UTF-8 text becomes tokens and comes back unchanged."""

from __future__ import annotations

from importlib import resources

import gguf

from mlsd.errors import InputError

_MERGES_FILE = "merges.txt"  # one merge a line, most frequent first, counted on English text and Python code
END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
_SPECIALS = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
N_BYTES = 256
N_MERGES = 208
N_TEXT = N_BYTES + N_MERGES  # tokens that stand for text; the ones after them are special or unused
MIN_VOCAB = N_TEXT + len(_SPECIALS)


def byte_spellings() -> list[str]:
    """The stand-in of each byte in GPT-2's tokenizer: itself if printable Latin-1, else from U+0100 onwards."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spellings, next_free = [], N_BYTES
    for byte in range(N_BYTES):
        if byte in printable:
            spellings.append(chr(byte))
        else:
            spellings.append(chr(next_free))
            next_free += 1
    return spellings


def merges() -> list[str]:
    """The byte pairs that become tokens, each ``left right``; without them every byte would be a token."""
    return resources.files(__package__).joinpath(_MERGES_FILE).read_text(encoding="utf-8").splitlines()


def add_vocabulary(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Write the tokenizer's metadata, padded to `n_vocab`. Raises: InputError for too few to spell every byte."""
    if n_vocab < MIN_VOCAB:
        raise InputError(f"A vocabulary of {n_vocab} cannot spell every text.", hint=f"Use at least {MIN_VOCAB}.")
    pairs = merges()
    tokens = byte_spellings() + [pair.replace(" ", "") for pair in pairs] + list(_SPECIALS)
    tokens += [f"<|unused_{i}|>" for i in range(n_vocab - len(tokens))]
    types = [gguf.TokenType.NORMAL] * N_TEXT + [gguf.TokenType.CONTROL] * len(_SPECIALS)
    types += [gguf.TokenType.UNUSED] * (n_vocab - len(types))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(pairs)
    writer.add_bos_token_id(tokens.index(END_OF_TEXT))
    writer.add_eos_token_id(tokens.index(END_OF_TEXT))
    writer.add_eot_token_id(tokens.index(END_OF_TURN))
    writer.add_add_bos_token(False)
