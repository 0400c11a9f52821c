"""A thousand generated pages through the audit: seconds, tracebacks, and the share of telling rows that are judged.

A page is text and one to three headings with parts of tables or logs that people published, cells damaged, lines cut.
"""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result, counted
from mlsd.audits import published_tables as published
from mlsd.audits.check import audit
from mlsd.audits.rows import AuditContext
from mlsd.audits.tables import table_contexts
from mlsd.errors import MlsdError, TableError

N_PAGES, AT_ONCE, MOST_S = 1_000, 100, 60.0  # seconds of the processor: other programs do not count
_SAVED = Path(__file__).parent.parent / "tests" / "audit" / "data"
_TELLING = ("tok_s", "speedup", "acceptance", "mgl", "n_accepted")  # two of these let a row be judged
_JUNK = (
    "",
    "-",
    "n/a",
    "1e999",
    "9/3/1",
    "NaN",
    "~",
    "[x](y)",
    "12 tok/s (3 runs)",
    "\N{GREEK SMALL LETTER GAMMA}=",
    "100 %",
)


def sources() -> list[list[str]]:
    """Saved pages as people wrote them, and every published table as Markdown, in lines."""
    saved = [path.read_text(encoding="utf-8").splitlines() for path in sorted(_SAVED.glob("*/**/*.*"))]
    tables = []
    for table in (table for name in published.names() for table in published.load(name).tables):
        heads = list(dict.fromkeys((*table.same, *table.columns)))
        lines = ["| " + " | ".join(cells) + " |" for cells in ([*heads], ["--"] * len(heads))]
        tables.append([*lines, *("| " + " | ".join(row.get(head, "") for head in heads) + " |" for row in table.cells)])
    return [lines for lines in (*saved, *tables) if lines]


def page(seed: int, texts: list[list[str]]) -> str:
    """One page; the same for the same seed."""
    rng, lines = random.Random(seed), [f"# Run {seed} on an M{seed % 5 + 1} Max", "", "It was fast."]
    for chosen in rng.choices(texts, k=rng.randint(1, 3)):
        start = rng.randrange(max(1, len(chosen) - 40))
        part = [*chosen[:2], *chosen[max(2, start) : start + 40]]
        for _ in range(rng.randrange(6)):
            at = rng.randrange(len(part))
            mark = next((sign for sign in ("|", ",", "\t") if sign in part[at]), " ")
            cells = part[at].split(mark)
            cells[rng.randrange(len(cells))] = rng.choice(_JUNK)
            part[at] = mark.join(cells) if rng.random() < 0.9 else part[at][: len(part[at]) // 2]
        lines += ["", f"## Qwen3-{rng.choice((4, 8, 27))}B Q4_K_M", "", *part]
    return "\n".join(lines) + "\n"


def run() -> Iterator[Result]:
    texts, refused, crashed = sources(), list[str](), list[str]()
    telling = Counter[bool]()
    with tempfile.TemporaryDirectory() as name:
        path, began = Path(name) / "page.md", time.process_time()
        for first in range(0, N_PAGES, AT_ONCE):
            contexts = list[AuditContext]()
            for seed in range(first, first + AT_ONCE):
                path.write_text(page(seed, texts), encoding="utf-8")
                try:
                    contexts += table_contexts(path)
                except MlsdError as error:
                    (refused if isinstance(error, TableError) else crashed).append(f"page {seed}: {error}")
            audit("pages", *contexts)
        whole_s = time.process_time() - began
    for saved in sorted((_SAVED / "pasted").iterdir()):
        contexts = table_contexts(saved)
        rows = [row for context in contexts for row in context.rows]
        for row, judged in zip(rows, audit(saved.name, *contexts).rows, strict=True):
            if sum(getattr(row, figure) is not None for figure in _TELLING) > 1:
                telling[judged.verdict != "not judged"] += 1
    yield Result(
        f"{N_PAGES} pages, judged {AT_ONCE} at once",
        whole_s,
        whole_s,
        whole_s,
        "s",
        f"<= {MOST_S:g}",
        whole_s <= MOST_S,
    )
    yield counted(
        f"pages that end otherwise than read or refused in words ({len(refused)} refused)",
        len(crashed),
        "= 0",
        not crashed,
    )
    share = 100 * telling[True] / telling.total()
    yield Result(
        f"{telling.total()} rows kept aside that print two figures: judged",
        share,
        share,
        share,
        "%",
        ">= 60",
        share >= 60,
    )
