"""A comparison's answer is one sentence, however many passes were timed."""

from mlsd.analysis.compare.gate import Finding, Measure
from mlsd.analysis.compare.sessions import ComparedSide, Comparison
from mlsd.stats import Interval
from tests.analysis.studies import MACHINE


def finding(name: str, ratio: float) -> Finding:
    measure = Measure(name=name, unit="ms", sense="time")
    change = Interval(value=ratio, low=ratio - 0.01, high=ratio + 0.01, n=9)
    verdict = "not decided yet" if ratio == 1 else "faster" if ratio < 1 else "slower"
    return Finding(measure=measure, n=9, a=1.0, b=ratio, change=change, control=None, verdict=verdict, within=None)


def answer(*findings: Finding) -> str:
    side = ComparedSide(role="A", build=".", run_id=None, environment=MACHINE, settings="")
    return Comparison(
        session="s",
        a=side,
        b=side,
        n_blocks=9,
        findings=findings,
        outputs=(),
        changed_model=False,
        invalid=(),
    ).answer


def test_many_passes_are_one_clause_of_the_sentence() -> None:
    passes = [finding(f"T({k})", 1 if k == 9 else 0.8 + k / 100) for k in range(1, 10)]
    sentence = answer(finding("plain", 1.2), *passes)
    assert sentence == (
        "B against A: plain is slower by 20.0 %; 8 of 9 T(k) are faster by 12.0 to 19.0 %; 1 not decided yet. "
        "The plain output is the same."
    )


def test_a_few_are_named() -> None:
    assert "T(2) is faster by 10.0 %; T(1) is slower by 5.0 %" in answer(finding("T(1)", 1.05), finding("T(2)", 0.9))
