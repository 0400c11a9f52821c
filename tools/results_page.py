"""Writes docs/results.md from the records in studies/. Run: python -m tools.results_page."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from mlsd.analysis.advise.answer import Question, answer
from mlsd.analysis.predict.arms import Known
from mlsd.analysis.results import comparability
from mlsd.analysis.results.best_setting import BestSetting, best_settings, words
from mlsd.analysis.results.speedups import baselines
from mlsd.analysis.study.study import Study, read_study
from mlsd.errors import MlsdError
from mlsd.measure.exchange.record import SUFFIX, import_record, read_record
from mlsd.measure.store.study import Store

ROOT = Path(__file__).parent.parent
PAGE, STUDIES = ROOT / "docs" / "results.md", ROOT / "studies"
_HEAD = """# Results

Written from the records in `studies/` by `python -m tools.results_page`; machines are compared, never pooled. Check a
record yourself: `mlsd record verify studies/NAME.record.json.gz`. To add one, open a pull request with the file: the
same command checks it there.

*Predicted* is what `mlsd advise --chip` says of the machine from the peak bandwidth of its memory alone, and *off by*
how far that is from what was measured; a dash where no peak or no shape is known.
"""


def page() -> str:
    """The page."""
    parts = [_HEAD]
    for path in sorted(STUDIES.glob(f"*{SUFFIX}")):
        with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "study.sqlite") as store:
            import_record(store, read_record(path))
            for key in comparability.machines(store):
                parts.append("\n".join(_machine(path.name, read_study(store, key, others=False))))
    return "\n".join(parts)


def _machine(name: str, study: Study) -> Iterator[str]:
    place = study.environment
    yield f"## {place.chip or place.machine}, {place.backend} ({name.removesuffix(SUFFIX)})\n"
    yield f"{place.os}, llama.cpp {place.llama_cpp_build}, {len(study.trials)} trials.\n"
    yield "| target | workload | best setting | speedup | plain tok/s | predicted | off by |"
    yield "|---|---|---|---|---|---|---|"
    plain = {found.target: found.mean_tok_s for found in baselines(study.trials)}
    for best in best_settings(study.by_workload):
        yield _row(best, plain[best.target], _predicted(study, best.target))
    yield f"\nClaims of the study: {_counted(str(v.decision) for v in study.claims)}."
    yield f"Audit of the rows: {_counted(v for v, n in study.audit.counts().items() for _ in range(n))}.\n"


def _row(best: BestSetting, measured: float, predicted: float | None) -> str:
    ratio = "-" if best.ratio is None else words(best.ratio)
    off = "-" if predicted is None else f"{100 * (predicted / measured - 1):+.0f} %"
    said = "-" if predicted is None else f"{predicted:.1f}"
    return f"| {best.target} | {best.workload} | {best.use} | {ratio} | {measured:.1f} | {said} | {off} |"


def _predicted(study: Study, target: str) -> float | None:
    """Plain tok/s by bandwidth alone: nothing that was timed is known to it."""
    if study.environment.peak_bandwidth_gb_s is None:
        return None
    known = Known(groups=(), passes={}, coverage={}, models={facts.ref.id: facts for facts in study.facts.values()})
    asked = Question(target=target, chip_gb_s=study.environment.peak_bandwidth_gb_s)
    try:
        prospects = answer(asked, known, None).recommendation.prospects
    except MlsdError:
        return None
    return next((p.tok_s.value for p in prospects if not p.gamma), None)


def _counted(said: Iterable[str]) -> str:
    return ", ".join(f"{n} {word}" for word, n in Counter(said).items()) or "none"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
