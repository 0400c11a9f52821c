"""Seeded damage: what discs, networks, editors and ill will do to bytes, texts, headers and databases."""

import json
import random
import re
import sqlite3
import struct
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from gguf import GGUFValueType as Type

from mlsd.gguf_tools.header import Header

NUMBERS = (0, 1, -1, 2**15, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 10**18)
TEXTS = (
    "0", "-1", "-0.0", "nan", "NaN", "inf", "-inf", "1e400", "1e-400", "99999999999999999999999", "0x10", "1_000", "",
    "''", '"', "null", "true", "[]", "{}", "\x1b[31mred\x1b[0m", "\x00", "\u202e", "\ud7ff", "../../x", "/etc/passwd",
    "x" * 5000, "<script>alert(1)</script>", "%s%n", "'; DROP TABLE trial; --", "\r\n", "=1+1", "1,2", "1;2", "٣",
)  # fmt: skip
VALUES: tuple[object, ...] = (
    -5, 0, -1, 10**9, 10**12, 2**62, -(2**62), 0.5, -1.5, 1e308, float("inf"), None, "", "text", "NaN", "{}",
    "[]", "null", "{]", "\x1b[31m", b"\xff\xfe\x00", "[-1]", '{"a": -1}', "x" * 5000,
)  # fmt: skip


def of_bytes(data: bytes, rng: random.Random, *, within: int | None = None) -> bytes:
    """A few hurts to the first `within` bytes: flips, numbers, cuts, doubles, holes."""
    hurt = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        if not hurt:
            break
        at = rng.randrange(min(len(hurt), within or len(hurt)))
        match rng.randrange(7):
            case 0:
                hurt[at] ^= 1 << rng.randrange(8)
            case 1:
                hurt[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                number = rng.choice(NUMBERS) % 2**64
                width = rng.choice((4, 8))
                hurt[at : at + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")
            case 3:
                del hurt[at : at + rng.choice((1, 8, 512))]
            case 4:
                hurt[at:at] = hurt[at : at + rng.choice((1, 8, 64))]
            case 5:
                hurt[at : at + 64] = rng.randbytes(min(64, len(hurt) - at))
            case _:
                if rng.random() < 0.3:
                    del hurt[at:]
    return bytes(hurt)


def of_text(data: bytes, rng: random.Random) -> bytes:
    """Numbers, words and lines of a text exchanged, doubled, dropped; sometimes its bytes."""
    if rng.random() < 0.25:
        return of_bytes(data, rng)
    text = data.decode("utf-8")
    for _ in range(rng.choice((1, 1, 2, 5))):
        match rng.randrange(4):
            case 0 | 1:
                words = list(re.finditer(r"[\w.\-]+", text))
                if words:
                    word = rng.choice(words)
                    text = text[: word.start()] + rng.choice(TEXTS) + text[word.end() :]
            case 2:
                lines = text.splitlines(keepends=True) or [""]
                place = rng.randrange(len(lines))
                lines[place : place + 1] = [lines[place]] * rng.choice((0, 2, 3))
                text = "".join(lines)
            case _:
                marks = list(re.finditer(r'[,="\[\]{}:\n]', text))
                if marks:
                    mark = rng.choice(marks)
                    text = text[: mark.start()] + rng.choice(("", *',="[]{}:\n\t')) + text[mark.end() :]
    return text.encode("utf-8", "surrogatepass")


def of_header(data: bytes, rng: random.Random) -> bytes:
    """One typed value of a GGUF with another number or another type of the same width, else bytes of its header."""
    header = Header(data)
    scalars = {k: v for k, v in header.values.items() if v.item_type is None and v.type is not Type.STRING}
    if rng.random() < 0.4 or not scalars:
        return of_bytes(data, rng, within=header.data_start)
    hurt = bytearray(data)
    value = scalars[rng.choice(sorted(scalars))]
    if rng.random() < 0.7:
        width = {Type.UINT64: 8, Type.INT64: 8, Type.FLOAT64: 8, Type.BOOL: 1, Type.UINT8: 1, Type.INT8: 1}.get(
            value.type, 4
        )
        hurt[value.start : value.start + width] = (rng.choice(NUMBERS) % 2 ** (8 * width)).to_bytes(width, "little")
    else:
        struct.pack_into("<I", hurt, value.start - 4, rng.choice([kind.value for kind in Type] + [77]))
    return bytes(hurt)


def of_weights(path: Path, rng: random.Random) -> bytes:
    """One weight of a layer or of the output made no number; a row of the embedding is not always read."""
    hurt = bytearray(path.read_bytes())
    tensors = [t for t in GGUFReader(path).tensors if t.name != "token_embd.weight" and t.tensor_type.name == "F32"]
    tensor = rng.choice(tensors)
    at = tensor.data_offset + 4 * rng.randrange(tensor.n_elements)
    struct.pack_into("<f", hurt, at, float("nan"))
    return bytes(hurt)


def of_database(path: Path, rng: random.Random) -> None:
    """One value, row or table of a database of ours changed with SQL; sometimes bytes of the file."""
    if rng.random() < 0.3:
        data = path.read_bytes()
        path.write_bytes(of_bytes(data, rng))
        return
    connection = sqlite3.connect(path)
    with connection:
        things = connection.execute("SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'").fetchall()
        tables = [name for kind, name in things if kind == "table"]
        for _ in range(rng.choice((1, 1, 3))):
            table = rng.choice(tables)
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            if not columns:  # dropped by a hurt before
                continue
            column = rng.choice(columns)
            try:
                match rng.randrange(8):
                    case 0:
                        connection.execute(f'DELETE FROM "{table}" WHERE random() % 2')
                    case 1 if rng.random() < 0.5:
                        kind, name = rng.choice(things)
                        connection.execute(f'DROP {kind} "{name}"')
                    case _:
                        where = rng.choice(("", " WHERE random() % 3 = 0"))
                        value, mark = (
                            rng.choice(VALUES),
                            rng.choice(("?", "?", "CAST(? AS TEXT)")),
                        )  # of bytes: no UTF-8
                        connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = {mark}{where}', (value,))
            except sqlite3.Error:  # a constraint that holds
                continue
    connection.close()


BROKEN = (b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"", b"9" * 5_000, b"null", b"\xff", b"\xef\xbb\xbf{}")


def of_json(value: Any, rng: random.Random) -> Any:
    """A value of JSON with something else at a few of its places; sometimes bytes that no encoder writes."""
    if rng.random() < 0.1:
        return of_bytes(json.dumps(value).encode("utf-8", "surrogatepass"), rng)
    if rng.random() < 0.03:
        return rng.choice(BROKEN)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _elsewhere(value, rng)
    return value


def _elsewhere(value: Any, rng: random.Random) -> Any:
    inner = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inner or rng.random() < 0.15:
        known = (
            *NUMBERS, *TEXTS, 0.5, -0.5, 1e308, -1e-308, True, None, [], {}, [value], {"a": value}, 2**70, -(2**63),
        )  # fmt: skip
        return rng.choice(known)
    made, name = (dict(value) if isinstance(value, dict) else list(value)), rng.choice(inner)
    match rng.randrange(8):
        case 0:
            del made[name]
        case 1 if isinstance(made, list):
            made[name:name] = [made[name]] * rng.choice((1, 3, 1000))
        case 1:
            made[rng.choice(TEXTS)] = made.pop(name)
        case _:
            made[name] = _elsewhere(made[name], rng)
    return made
