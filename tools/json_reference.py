"""Writes docs/schemas.json: what every command prints with --json, as JSON Schema. Run: python -m tools.json_reference.

Schemas come from the records that commands print, with the comments behind fields as descriptions. What a command puts
together from several records is written down here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from mlsd.analysis.advise.prospects import Recommendation
from mlsd.analysis.audit.record_check import RecordVerification
from mlsd.analysis.claims.claims import ClaimVerdict
from mlsd.analysis.compare.gate import Finding
from mlsd.analysis.compare.sessions import Comparison
from mlsd.analysis.experts.coverage import CoverageTable
from mlsd.analysis.fits.bandwidth import BandwidthVerdict, BytesLine
from mlsd.analysis.fits.calibration import PassTime, TargetCurve
from mlsd.analysis.fits.study_fits import CurveFit, PairFit
from mlsd.analysis.predict.prediction_error import Validation
from mlsd.analysis.results.round_split import RoundSplit
from mlsd.analysis.study.earlier import EarlierStudy
from mlsd.audits.rows import RowAudit
from mlsd.cli.answers import AnswerObject
from mlsd.columns import Kind, flat
from mlsd.drafters.lookup.suffix_store import StoreHeader
from mlsd.drafters.method import MethodInfo, Unavailable
from mlsd.engine.parts import Part
from mlsd.formats.tables import TRIALS
from mlsd.gguf_tools.synthetic.tiny import TinyFile
from mlsd.lab.machine import Card, Doing
from mlsd.lab.study import LabStudyResult
from mlsd.measure.messages import LayersFound, Probed, Spent
from mlsd.measure.parent.builds import BuildVerdict
from mlsd.measure.parent.doctor import Diagnosis, SelfCheck
from mlsd.measure.parent.forecast import Forecast
from mlsd.measure.parent.race import Stop
from mlsd.measure.parent.requests import StudyResult
from mlsd.models.library import Listing
from mlsd.planning.plan import LeftOut
from mlsd.records import (
    ArmKind,
    Case,
    Environment,
    Losslessness,
    ModelFacts,
    OptionValue,
    QualityWarning,
    Round,
    Trial,
)
from mlsd.report.page import Written
from mlsd.stats import Interval, Percentiles
from mlsd.store.rows import DraftDistance, PassShares, Run, StoredWarning, TimedPass, WidthExactness
from mlsd.trials.fields import ARM
from mlsd.trials.stages import StageTime
from tools.data_reference import comments

FILE = Path(__file__).parent.parent / "docs" / "schemas.json"


def _with(record: type[msgspec.Struct], title: str, **more: Any) -> Any:
    """The fields of a record and further ones beside them."""
    fields = [(field.encode_name, field.type) for field in msgspec.structs.fields(record)]
    return msgspec.defstruct(title, [*fields, *more.items()], kw_only=True)


def _object(title: str, meaning: str, **fields: Any) -> Any:
    """An object of these fields, as a command puts it together."""
    made = TypedDict(title, fields)  # type: ignore[operator]  # mypy wants it written out
    made.__doc__ = meaning
    return made


_TYPES: dict[Kind, Any] = {
    "string": str, "Int64": int, "float64": float, "boolean": bool,
    "object": dict[str, OptionValue] | list[dict[str, float | None]],
}  # fmt: skip


def _arm(title: str, **more: Any) -> Any:
    """An arm as every command prints it, and further fields beside them."""
    own = {f.name: Annotated[_TYPES[f.dtype] | None, msgspec.Meta(description=f.meaning)] for f in flat(ARM)}
    return msgspec.defstruct(title, list((own | more).items()), kw_only=True)


ArmObject = _arm("ArmObject")


_LISTED = [(column.name, _TYPES[column.dtype] | None) for column in TRIALS]  # a row of `mlsd results trials`
BenchTrial = msgspec.defstruct(
    "BenchTrial",
    [*_LISTED, ("tokens", list[int]), ("losslessness", Losslessness | None), ("stats", dict[str, float]),
     ("round_records", list[Round])],
)  # fmt: skip
Bench = _object(
    "Bench", "`stopped` is there where the bench had a goal.",
    database=str, stages=tuple[StageTime, ...], trials=list[BenchTrial], summary=list[ArmObject],
    answers=list[AnswerObject], stopped=NotRequired[Stop],
)  # fmt: skip


_OF_SERVERS: dict[str, Any] = {
    "name": str, "client_tok_s": float | None, "first_token_ms": Percentiles | None, "token_ms": Percentiles | None,
    "by_category": dict[str, float], "impossible": str, "output": str | None, "margin": str,
}  # fmt: skip


Server = _object(
    "Server", "Two servers, or one with and without drafting.",
    database=str, summary=list[_arm("ServerArm", **_OF_SERVERS)], answers=NotRequired[list[AnswerObject]],
    notes=list[str], engine=list[str], advice=list[str], deterministic=bool, stopped=NotRequired[Stop],
    stages=tuple[StageTime, ...],
)  # fmt: skip
Advise = _object(
    "Advise", "A prediction and what it rests on.",
    answer=str, flags=list[str], measured=list[AnswerObject], advice=Recommendation, quant=str | None,
    chip=str | None, validation=Validation | None, untimed=list[str], draft_sources=dict[str, str],
    draft_file=str | None, notes=tuple[str, ...], weight_bytes=int | None, limit_bytes=int | None,
    widths=str, databases=list[str],
)  # fmt: skip
PlannedCase = _object(
    "PlannedCase", "A configuration and how many trials it has.",
    id=str, arm=ArmKind, role=str, trials=int, case=Case,
)  # fmt: skip
Planned = _object(
    "Planned", "What suites would measure and need.",
    profile=str, suites=dict[str, int], study_trials=int, paired_baselines=int, seed=int, needs=Forecast,
    left_out=list[LeftOut], cases=list[PlannedCase],
)  # fmt: skip


Arms = _object(
    "Arms", "What became of each arm of a study.",
    runs=list[Run], arms=list[ArmObject], widths=list[str], warnings=list[QualityWarning],
)  # fmt: skip
Trials = _object(
    "Trials", "The trials of a study database.",
    runs=list[Run], trials=list[msgspec.defstruct("ListedTrial", _LISTED)], warnings=list[StoredWarning],
)  # fmt: skip
ShownTrial = _object("ShownTrial", "A trial with its configuration.", id=int, case=Case, trial=Trial)
Fitted = _object(
    "Fitted", "Cost models and curves.",
    pairs=list[PairFit], arms=list[ArmObject], curves=list[CurveFit],
    equations=list[dict[str, str | int | float | None]],
)  # fmt: skip
Audited = _object(
    "Audited", "The verdicts on a table.",
    source=str, counts=dict[str, int], notes=list[str], rows=list[RowAudit],
)  # fmt: skip
Calibrated = _object(
    "Calibrated", "T(k), other costs, experts.",
    database=str, model=ModelFacts, draft=ModelFacts | None, half_width=float | None,
    not_timed=dict[str, list[int]], spent=Spent | None, exactness=list[WidthExactness],
    curves=list[TargetCurve], costs=dict[str, list[PassTime]],
    experts=CoverageTable | None, time_a_token=dict[str, Interval] | None, figure=str | None,
)  # fmt: skip
Bandwidth = _object(
    "Bandwidth", "What the memory gives.",
    stream_gb_s=dict[str, Interval], n_threads=int, lines=list[BytesLine], passes=list[TimedPass],
    verdict=BandwidthVerdict, peak_gb_s=float | None, environment=Environment, database=str,
)  # fmt: skip
PartShares = _object(
    "PartShares", "The parts of one pass of one network.",
    network=str, record=PassShares, shares=dict[Part, float | None], inflation=float, agreement=float,
    in_doubt=bool, head_by_difference=float | None,
)  # fmt: skip
Broken = _object(
    "Broken", "Parts of passes and of rounds.",
    shares=list[PartShares], rounds=RoundSplit | None, profiling=bool, database=str,
)  # fmt: skip
Methods = _object("Methods", "Every drafting method.", methods=list[MethodInfo], unavailable=list[Unavailable])
Tuned = _object(
    "Tuned", "What a search found; the fastest setting first.",
    database=str, settings=list[ArmObject], answers=list[AnswerObject], stopped=str, failed=dict[str, str],
    stages=tuple[StageTime, ...],
)  # fmt: skip
ModelFile = _object(
    "ModelFile", "A file and whether it is what it should be.",
    path=str, bytes=int, sha256=str | None, expected=str | None, stated_by=str | None, right=bool | None,
)  # fmt: skip
CheckedModel = _object(
    "CheckedModel", "The files of a model.",
    id=str, paths=NotRequired[list[str]], files=list[ModelFile],
)  # fmt: skip
Cleaned = _object("Cleaned", "What was removed.", folder=str, freed_bytes=int)
Synthetic = _object(
    "Synthetic", "A model of an exact shape with random weights; without path and size where it was not written.",
    shape=str, architecture=str, quant=str, n_layers=int, n_layers_full=int, n_parameters=int,
    always_read_parameters=int, active_parameters=int, expert_parameters=int, n_bytes=int, always_read_bytes=int,
    active_bytes=int, expert_bytes=int, n_experts=int | None, n_experts_used=int | None, n_expert_layers=int | None,
    tensor_types=dict[str, int], excluded=list[str], path=NotRequired[str], file_bytes=NotRequired[int],
)  # fmt: skip
TinySet = _object("TinySet", "Random models of every architecture.", files=list[TinyFile])
Noisy = _object("Noisy", "A model with noise on its weights.", path=str, n_bytes=int, sha256=str, noise=float, seed=int)
Cut = _object(
    "Cut", "A draft cut out of a model.",
    path=str, sha256=str, layers=list[int], n_layers_model=int | None, label=str, n_parameters=int,
    weight_bytes=int, weight_bytes_model=int, calibration=LayersFound | None, drafter=str | None,
)  # fmt: skip
LabMachine = _object("LabMachine", "A machine of a lab and what it measures.", card=Card, doing=Doing | None)
LabStatus = _object("LabStatus", "A lab.", machines=dict[str, LabMachine])
Failure = _object("Failure", "Why a command failed.", kind=str, message=str, hint=str | None, exit_code=int)
Failed = _object("Failed", "What any command prints in place of its answer when it fails.", error=Failure)


_FINDING = _with(Finding, "ComparedMeasure", sentence=str, percent=float | None)
PRINTED: dict[str, Any] = {  # by command; several where an option or an argument decides
    "doctor machine": Diagnosis,
    "doctor model": Probed,
    "doctor builds": list[BuildVerdict],
    "doctor self-check": SelfCheck,
    "bench": Bench,
    "search": Tuned,
    "server": Server,
    "advise": Advise,
    "run": (StudyResult, LabStudyResult, Planned),
    "report": (Written,),
    "results arms": Arms,
    "results against": EarlierStudy,
    "results trials": Trials,
    "results trial": list[ShownTrial],
    "results claims": list[ClaimVerdict],
    "results fits": Fitted,
    "lab status": LabStatus,
    "record check": list[RecordVerification],
    **dict.fromkeys(("audit table", "audit study", "audit published", "audit speed"), Audited),
    "compare": _with(
        Comparison,
        "Compared",
        database=str,
        answer=str,
        failures=list[str],
        findings=list[_FINDING],
        stages=tuple[StageTime, ...],
    ),
    "calibrate passes": Calibrated,
    "calibrate memory": Bandwidth,
    "calibrate parts": Broken,
    "models list": list[Listing],
    "models show": dict[str, Any],  # what is known of Listing and of the manifest's entry
    "models pull": list[CheckedModel],
    "models verify": list[CheckedModel],
    "models clean": Cleaned,
    "models distance": DraftDistance,
    "models make synth": Synthetic,
    "models make tiny": TinySet,
    "models make noise": Noisy,
    "models make subset": Cut,
    "models make store": _with(StoreHeader, "MadeStore", path=str),
    "models methods": (Methods, MethodInfo),
}


def document() -> dict[str, Any]:
    """Every schema in one document; `commands` names those of each command, `failure` that of an error."""
    kinds = {name: kind if isinstance(kind, tuple) else (kind,) for name, kind in PRINTED.items()}
    found, parts = msgspec.json.schema_components(
        [*(kind for several in kinds.values() for kind in several), Failed], ref_template="#/$defs/{name}"
    )
    schemas = iter(found)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What mlsd prints with --json",
        "commands": {name: {"anyOf": [next(schemas) for _ in several]} for name, several in kinds.items()},
        "failure": next(schemas),
        "$defs": {name: _described(name, part) for name, part in parts.items()},
    }


def _described(name: str, part: dict[str, Any]) -> dict[str, Any]:
    """A record's schema with its comments, and with no room for fields that it does not have."""
    fields = set(part.get("properties", ()))
    named = [c for c in _records(msgspec.Struct) if name in (c.__name__, f"{c.__module__}.{c.__name__}")]
    record = max(named, key=lambda c: len(fields.intersection(c.__struct_encode_fields__)), default=None)
    comments = {} if record is None else _comments(record)
    for field, schema in part.get("properties", {}).items():
        schema |= {"description": comments[field]} if field in comments else {}
    closed = {"additionalProperties": False} if "properties" in part else {}
    return _nullable({key: value for key, value in part.items() if key != "title"} | closed)


def _comments(record: type) -> dict[str, str]:
    try:
        return comments(record)
    except OSError:  # made above, of another record's fields
        return {}


def _records(base: type) -> Iterator[type]:
    for record in base.__subclasses__():
        yield record
        yield from _records(record)


def _nullable(schema: Any) -> Any:
    """Numbers that are not finite are printed as null."""
    if isinstance(schema, list):
        return [_nullable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: ["number", "null"] if (k, one) == ("type", "number") else _nullable(one) for k, one in schema.items()}


def text() -> str:
    """The file, a line for each command and record."""
    lines = []
    for key, value in document().items():
        shown = json.dumps(value, ensure_ascii=False)
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(one, ensure_ascii=False)}" for k, one in value.items())
            shown = f"{{\n{inner}\n }}"
        lines.append(f" {json.dumps(key)}: {shown}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Write the file."""
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
