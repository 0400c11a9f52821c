"""The tables of a study database. There is one version of them; a file of another one is refused."""

from mlsd.records import N_TOKENS, Round, Trial

FROM_RECORD = "record"  # in the plan of a run that came with a record: it was not measured into this file
APPLICATION_ID = 0x6D6C7364  # "mlsd", in the header of the file
VERSION = 13  # `user_version`; whoever changes the tables raises it, and writes the shipped files anew

# What a trial's record says, for SQL: each field is a column of its own name. Its place stands in other tables.
_PLACED = ("case_id", "arm", "gamma", "block", "repeat", "rounds")


def _column(name: str, value: str = "", kept: str = "VIRTUAL") -> str:
    return f"{name} GENERATED ALWAYS AS (iif(json_valid(record), {value or _said(name)}, NULL)) {kept}"


def _said(name: str) -> str:
    return f"json_extract(record, '$.{name}')"


_FIELDS = ", ".join(_column(name) for name in Trial.__struct_fields__ if name not in (*_PLACED, "status"))
_N_TOKENS = f"coalesce(nullif(json_array_length(record, '$.tokens'), 0), json_extract(record, '$.stats.{N_TOKENS}'), 0)"
_SUMS = Round.__struct_fields__
_EACH_ROUND = ", ".join(f"json_extract(each.value, '$[{i}]') AS {name}" for i, name in enumerate(_SUMS))
_SUMMED = ", ".join(f"json_extract(trial.sums, '$.{name}') AS {name}" for name in ("rounds", *_SUMS[:4]))
_TIMES = ", ".join(
    f"iif(trial.decode_ns IS NOT NULL, json_extract(trial.sums, '$.{name}'), NULL) AS {name}" for name in _SUMS[4:]
)

TABLES = f"""
CREATE TABLE run (
    id INTEGER PRIMARY KEY, status TEXT NOT NULL CHECK (status IN ('started', 'finished', 'interrupted')),
    started_at TEXT NOT NULL, ended_at TEXT, seed INTEGER NOT NULL, environment_key TEXT NOT NULL,
    environment TEXT NOT NULL, plan TEXT NOT NULL
);
CREATE TABLE model (
    key TEXT PRIMARY KEY, id TEXT NOT NULL, sha256 TEXT, architecture TEXT NOT NULL, facts TEXT NOT NULL
);
CREATE TABLE "case" (
    id TEXT PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), suite TEXT NOT NULL,
    arm TEXT NOT NULL CHECK (arm IN ('ar', 'sd')), target TEXT NOT NULL, drafter TEXT NOT NULL, draft TEXT,
    gamma INTEGER NOT NULL, prompt TEXT NOT NULL, n_predict INTEGER NOT NULL, record TEXT NOT NULL
);
CREATE INDEX case_suite ON "case" (suite);

-- What one process measured of its cases, one after the other; superseded where it was measured again.
CREATE TABLE block (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), environment_key TEXT NOT NULL,
    number INTEGER NOT NULL, repeat INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX block_key ON block (environment_key, number, repeat);
CREATE INDEX block_run ON block (run_id);

-- The record is the trial as JSON, its rounds aside: what they sum to, then a list of the fields of each.
CREATE TABLE trial (
    id INTEGER PRIMARY KEY, block_id INTEGER NOT NULL REFERENCES block (id),
    case_id TEXT NOT NULL REFERENCES "case" (id), {_column("status", kept="STORED")},
    sums TEXT NOT NULL, record TEXT NOT NULL, each_round TEXT NOT NULL, {_FIELDS},
    {_column("n_tokens", _N_TOKENS)},
    {_column("verdict", _said("losslessness.verdict"))}
);
CREATE INDEX trial_block ON trial (block_id, case_id, status);
CREATE INDEX trial_case ON trial (case_id);

CREATE TABLE warning (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), case_id TEXT REFERENCES "case" (id),
    code TEXT NOT NULL, message TEXT NOT NULL, advice TEXT NOT NULL
);
-- What was measured of the machine and its models: a record of `store/rows.py`, by kind.
CREATE TABLE figure (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), kind TEXT NOT NULL, record TEXT NOT NULL
);
CREATE INDEX figure_kind ON figure (kind);
CREATE TABLE draft_distance (
    target_key TEXT NOT NULL, drafting_key TEXT NOT NULL, text_sha256 TEXT NOT NULL, n_tokens INTEGER NOT NULL,
    measured_at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (target_key, drafting_key, text_sha256, n_tokens)
) WITHOUT ROWID;
-- What was not measured again.
CREATE VIEW current_trial AS
SELECT trial.*, block.run_id, block.environment_key, block.number AS block, block.repeat, "case".arm, "case".gamma,
    trial.status IN ('valid', 'hot') AS valid
FROM trial
JOIN block ON block.id = trial.block_id
JOIN "case" ON "case".id = trial.case_id
WHERE NOT block.superseded;

CREATE VIEW round AS
SELECT trial.id AS trial_id, each.key AS number, {_EACH_ROUND}
FROM trial, json_each(trial.each_round) AS each;

CREATE VIEW trial_summary AS
SELECT
    trial.id AS trial_id, trial.run_id, trial.environment_key, trial.case_id, "case".suite, "case".arm, "case".target,
    "case".drafter, "case".draft, "case".gamma, "case".prompt, "case".n_predict, trial.block_id, trial.block,
    trial.repeat, trial.position, trial.status, trial.valid, trial.reason, trial.started_at, trial.n_prompt,
    trial.n_tokens, trial.prefill_ns, trial.draft_prefill_ns, trial.decode_ns, trial.load_ns, trial.rollback_target,
    trial.rollback_draft, trial.failed_native_calls, trial.verdict, trial.peak_rss_bytes,
    trial.timed, trial.fell_back, json_extract(trial.losslessness, '$.tolerance') AS tolerance,
    json_extract(trial.losslessness, '$.worst_gap') AS worst_gap,
    1000.0 * json_extract(trial.losslessness, '$.n_different') / json_extract(trial.losslessness, '$.n_compared')
        AS differences_per_1000,
    {_SUMMED}, {_TIMES}
FROM current_trial AS trial
JOIN "case" ON "case".id = trial.case_id;
"""
