"""Arms of a chosen speedup, as if a session had measured them."""

from typing import Any

from mlsd.records import DRAFT_MODEL, Case, DrafterSpec, ModelRef, PromptRef
from mlsd.stats import Interval
from mlsd.trials.decisions import Standing, effect_of
from mlsd.trials.results import ArmResult, SessionPlan
from tests.analysis.studies import as_measured, trial


def result(
    low: float | None, value: float | None, high: float | None, *, drafter: str = DRAFT_MODEL, n: int = 6, **more: Any
) -> ArmResult:
    """An arm with this interval; `more` are fields of the case, of the record, or the prompt's `text`."""
    text = more.pop("text", "code")
    draft = ModelRef(id="small") if drafter == DRAFT_MODEL else None
    spec = more.pop("spec", DrafterSpec(name=drafter, draft=draft))
    fields = {name: more.pop(name) for name in ("gamma", "target", "n_predict", "suite") if name in more}
    case = Case(**{
        "suite": "bench", "target": ModelRef(id="moe"), "n_predict": 64, "gamma": 4,
        "prompt": PromptRef(key=text, sha256="a" * 64, workload=text),
        "drafter": spec, **fields,
    })  # fmt: skip
    ratio = None if value is None else Interval(value=value, low=low, high=high, n=n)
    standing = None
    if ratio is not None:
        effect = effect_of(ratio)
        open_ = 5 if effect == "not decided yet" else None
        standing = Standing(
            name="", ratio=ratio, effect=effect, more_blocks=open_, control=drafter in ("oracle", "random")
        )
    (one,) = as_measured([(case, trial(case, 0, 0, 0))])
    made: dict[str, Any] = {
        "question": SessionPlan().question(case), "session": 1, "name": "sd", "case": case, "trials": (one,),
        "pairs": (), "whole": one.whole, "timed_whole": one.whole, "client_tok_s": None, "spread": 0.01,
        "tok_s": None if value is None else 50.0 * value, "plain_tok_s": None if value is None else 50.0,
        "ratio": ratio, "standing": standing, "statuses": {"valid": n},
    }  # fmt: skip
    return ArmResult(**{**made, **more})
