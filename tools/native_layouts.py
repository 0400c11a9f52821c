"""Layouts of the structures that mlsd passes to llama.cpp by value, read from headers into a table.

`python -m tools.native_layouts 10653:0.3.36=SOURCE 11434=SOURCE ...` reads `include/llama.h` and the functions of
default values of each source tree (that of llama-cpp-python's source archive lies in `vendor/llama.cpp`), and prints
`mlsd/engine/llama/build/layouts.toml`. Each tree is named by its build of llama.cpp; trees of the same layout make one
entry. Where no package has the header of a build, `CHANGES` says what came when, and a test holds the result against
the library's own default values.
"""

import re
import sys
from pathlib import Path

STRUCTURES = {"llama_context_params": "llama-context.cpp", "llama_model_params": "llama-model.cpp"}
FIRST = 10653  # the build that brought the newest field of both structures as the installed binding has them
# First build, structure, field before, new field. b11480 came with `--moe-cache-mib`; b11479 is the last without.
CHANGES = ((11480, "llama_context_params", "type_v", "size moe_cache_size"),)
TYPES = {"uint32_t": "u32", "int32_t": "i32", "float": "f32", "bool": "bool", "size_t": "size"}
NUMBERS = {"nullptr": "0", "false": "0", "true": "1", "GGML_DEFAULT_N_THREADS": "4", "GGML_TYPE_F16": "1"}


def fields(header: str, structure: str) -> list[str]:
    """`kind name` of every field, in order; every enumeration is an i32 and every pointer a ptr."""
    body = re.search(rf"struct {structure} \{{(.*?)\n    \}};", header, re.S)
    assert body, f"no {structure}"
    found = []
    for line in re.sub(r"//.*", "", body.group(1)).split(";"):
        words = line.replace("*", " * ").split()
        if not words:
            continue
        kind = words[0] if words[0] != "const" else "ptr"
        if "*" in words or kind.endswith("_callback"):
            kind = "ptr"
        found.append(f"{'i32' if kind == 'enum' else TYPES.get(kind, kind)} {words[-1]}")
    return found


def defaults(source: str, structure: str, header: str, names: list[str]) -> dict[str, str]:
    """The initial values, by the names of the fields; numbers as they stand, names of enumerations as their numbers."""
    function = f"{structure.removesuffix('params')}default_params"
    body = re.search(rf"^{structure} {function}\(\) \{{(.*?)^\}}", source, re.S | re.M)
    assert body, f"no {function}"
    values = re.findall(r"/\*\.\w+\s*=\*/\s*([^,]+),", body.group(1))
    assert len(values) == len(names), f"{function}: {len(values)} values for {len(names)} fields"

    def number(text: str) -> str:
        text = NUMBERS.get(text.strip(), text.strip().removesuffix("f"))
        if re.fullmatch(r"[A-Z_]+", text):
            found = re.search(rf"\b{text}\s*=\s*(-?\d+)", header)
            assert found, f"no value of {text}"
            text = found.group(1)
        return text

    return {name: number(value) for name, value in zip(names, values, strict=True)}


def table(trees: dict[int, Path]) -> str:
    """The text of the table."""
    known: dict[str, list[str]] = {}
    values: dict[str, dict[str, str]] = {}
    for build, tree in sorted(trees.items()):
        header = (tree / "include" / "llama.h").read_text(encoding="utf-8")
        for structure, file in STRUCTURES.items():
            own = fields(header, structure)
            assert known.setdefault(structure, own) == own, f"{structure} of b{build} differs: it wants its own entry"
            source = (tree / "src" / file).read_text(encoding="utf-8")
            own_values = defaults(source, structure, header, [field.split()[1] for field in own])
            assert values.setdefault(structure, own_values) == own_values, f"defaults of {structure} differ in b{build}"
    lines = ["# Made by `python -m tools.native_layouts`; read there.", ""]
    starts = [FIRST, *(first for first, *_ in CHANGES)]
    for place, first in enumerate(starts):
        for since, structure, before, field in CHANGES:
            if since == first:
                at = [known_field.split()[1] for known_field in known[structure]].index(before)
                known[structure] = [*known[structure][: at + 1], field, *known[structure][at + 1 :]]
                values[structure][field.split()[1]] = "0"
        lines += ["[[layouts]]", f"first = {first}"]
        lines += [f"last = {starts[place + 1] - 1}"] if place + 1 < len(starts) else []
        for structure in STRUCTURES:
            lines += [f"{structure} = ["]
            lines += [
                f'    ["{kind}", "{name}", {values[structure][name]}],'
                for kind, name in (field.split() for field in known[structure])
            ]
            lines += ["]"]
        lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    given = (argument.partition("=") for argument in sys.argv[1:])
    print(table({int(build): Path(tree) for build, _, tree in given}), end="")
