"""The tables of a study database. There is one version of them; a file of another one is refused."""

from mlsd.records import Round

FROM_RECORD = "record"  # in the plan of a run that came with a record: nobody measured it into this file
APPLICATION_ID = 0x6D6C7364  # "mlsd", in the header of the file
VERSION = 11  # `user_version`; whoever changes the tables raises it, and writes the shipped files anew

_SUMS = Round.__struct_fields__
_SUM_COLUMNS = " ".join(f"{name} INTEGER," for name in _SUMS)
_EACH_ROUND = ", ".join(f"json_extract(each.value, '$[{i}]') AS {name}" for i, name in enumerate(_SUMS))
_TIMES = ", ".join(f"iif(trial.decode_ns IS NOT NULL, trial.{name}, NULL) AS {name}" for name in _SUMS[4:])

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
    number INTEGER NOT NULL, repeat INTEGER NOT NULL, process TEXT, superseded INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX block_key ON block (environment_key, number, repeat);
CREATE INDEX block_run ON block (run_id);

CREATE TABLE trial (
    id INTEGER PRIMARY KEY, block_id INTEGER NOT NULL REFERENCES block (id),
    case_id TEXT NOT NULL REFERENCES "case" (id), position INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('valid', 'hot', 'disturbed', 'invalid', 'failed')), reason TEXT,
    started_at TEXT NOT NULL, n_prompt INTEGER, prompt_sha256 TEXT, n_tokens INTEGER NOT NULL, prefill_ns INTEGER,
    draft_prefill_ns INTEGER, decode_ns INTEGER, load_ns INTEGER, rollback_target TEXT, rollback_draft TEXT,
    timed INTEGER NOT NULL, fell_back TEXT, failed_native_calls INTEGER NOT NULL,
    verdict TEXT CHECK (verdict IN ('lossless', 'near_tie', 'not_judged', 'diverged')), losslessness TEXT,
    peak_rss_bytes INTEGER, stats TEXT NOT NULL, conditions TEXT, text TEXT, tokens TEXT NOT NULL,
    earlier TEXT NOT NULL, rounds INTEGER, {_SUM_COLUMNS} each_round TEXT NOT NULL
);
CREATE INDEX trial_block ON trial (block_id, case_id, status);
CREATE INDEX trial_case ON trial (case_id);

CREATE TABLE warning (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), case_id TEXT REFERENCES "case" (id),
    code TEXT NOT NULL, message TEXT NOT NULL, advice TEXT NOT NULL
);
CREATE TABLE calibration (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), model_key TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('target_pass', 'draft_step', 'prefill', 'rollback', 'checkpoint', 'sample')),
    rows INTEGER NOT NULL, depth INTEGER NOT NULL, repeat INTEGER NOT NULL, span_ns INTEGER NOT NULL,
    UNIQUE (run_id, model_key, kind, rows, depth, repeat)
);
CREATE TABLE coverage (
    run_id INTEGER NOT NULL REFERENCES run (id), model_key TEXT NOT NULL,
    source TEXT NOT NULL CHECK (source IN ('text', 'draft')), layer INTEGER NOT NULL, window INTEGER NOT NULL,
    n_windows INTEGER NOT NULL, distinct_mean REAL NOT NULL, "distinct" TEXT NOT NULL,
    PRIMARY KEY (run_id, model_key, source, layer, window)
) WITHOUT ROWID;
CREATE TABLE expert_load (
    run_id INTEGER NOT NULL REFERENCES run (id), model_key TEXT NOT NULL,
    source TEXT NOT NULL CHECK (source IN ('text', 'draft')), layer INTEGER NOT NULL, chosen TEXT NOT NULL,
    PRIMARY KEY (run_id, model_key, source, layer)
) WITHOUT ROWID;
CREATE TABLE stream_read (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), n_threads INTEGER NOT NULL,
    repeat INTEGER NOT NULL, gb_s REAL NOT NULL, UNIQUE (run_id, n_threads, repeat)
);
CREATE TABLE known_pass (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), quant TEXT NOT NULL,
    n_bytes INTEGER NOT NULL, block INTEGER NOT NULL, ms REAL NOT NULL, UNIQUE (run_id, quant, n_bytes, block)
);
CREATE TABLE draft_distance (
    target_key TEXT NOT NULL, drafting_key TEXT NOT NULL, text_sha256 TEXT NOT NULL, n_tokens INTEGER NOT NULL,
    measured_at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (target_key, drafting_key, text_sha256, n_tokens)
) WITHOUT ROWID;
CREATE TABLE pass_share (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), model_key TEXT NOT NULL, drafting_key TEXT,
    rows INTEGER NOT NULL, depth INTEGER NOT NULL, record TEXT NOT NULL
);
CREATE INDEX pass_share_model ON pass_share (model_key, drafting_key);

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
    trial.rounds, trial.proposed, trial.accepted, trial.committed, trial.rows, {_TIMES}
FROM current_trial AS trial
JOIN "case" ON "case".id = trial.case_id;
"""
