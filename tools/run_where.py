"""Writes what docs/install.md says of machines: a row for each self-check under studies/. Run: make generated.

`mlsd doctor self-check -o studies/self-check-NAME.json` makes such a file; it names no person, machine or folder.
"""

from pathlib import Path

from mlsd.measure.parent.doctor import SelfCheck, read_self_check

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- self-checks: make generated -->\n", "<!-- end of self-checks -->"
_HEAD = "| self-check of | device | build | when | what holds |\n|---|---|---|---|---|\n"


def rows(folder: Path = ROOT / "studies") -> str:
    """The table."""
    return _HEAD + "".join(_row(path, read_self_check(path)) for path in sorted(folder.glob("self-check-*.json")))


def _row(path: Path, checked: SelfCheck) -> str:
    machine = checked.environment
    asked = [check for check in checked.checks if check.ok is not None]
    held = f"{len(asked) - len(checked.failed)} of {len(asked)} checks"
    failed = dict.fromkeys(f"{check.name} {check.subject}".strip() for check in checked.failed)
    if failed:
        held += "; not: " + ", ".join(failed)
    named = f"{machine.chip or machine.machine}, {machine.os.partition(',')[0]}: `{path.name}`"
    device = machine.backend if machine.backend == "RPC" else f"{machine.backend}: {machine.device}"
    build = f"llama-cpp-python {machine.llama_cpp_python_version}, mlsd {machine.mlsd_version}"
    return f"| {named} | {device} | {build} | {checked.made[:10]} | {held} |\n"


def with_rows(text: str) -> str:
    """The page with the table as it should be."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + rows() + END + rest.partition(END)[2]


if __name__ == "__main__":
    page = ROOT / "docs" / "install.md"
    page.write_text(with_rows(page.read_text(encoding="utf-8")), encoding="utf-8")
