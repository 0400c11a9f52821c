"""The tables of a study database and its history; one step of SQL from each version to the next.

History (`PRAGMA user_version`):
    1  run, model, case, trial, round, warning; views current_trial and trial_summary
    2  calibration (timed passes), coverage and expert_load (expert choice), imported (tables of others)
    3  trial.retired: a success that was measured again on purpose stays, but no longer counts
    4  stream_read, known_pass: what the memory gives
    5  draft_distance (perplexity ratio, total variation); trial.earlier: the target's answers inside the prompt
    6  pass_share (profiled passes); times of a trial whose times are not its method's are not there
    7  trial.timed and trial.fell_back, which stood in stats and in rollback_draft; what decided a near tie, in the view
    8  trial.disturbed, which was the beginning of invalid_reason

A released step never changes: a new shape is a new step, and `tests/measure/databases/later.sql` gets rows of it.
"""

from __future__ import annotations

FROM_RECORD = "record"  # in the plan of a run that came with a record: nobody measured it into this file
APPLICATION_ID = 0x6D6C7364  # "mlsd", in the header of the file

_WHERE_TIMED = "CASE WHEN trial.decode_ns IS NOT NULL THEN sums.{part} END"


def _trial_summary(part: str, more: str = "") -> str:
    """The view with one row a trial; `part` gives the sum of a part of its rounds, `more` further columns."""
    names = ("draft_ns", "verify_ns", "rollback_ns", "sample_ns", "other_ns")
    sums = ", ".join(f"{part.format(part=name)} AS {name}" for name in names)
    return f"""
CREATE VIEW trial_summary AS
SELECT
    trial.id AS trial_id, trial.run_id, trial.environment_key, trial.case_id, "case".suite, trial.arm, "case".target,
    "case".drafter, "case".draft, trial.gamma, "case".prompt, "case".n_predict, trial.block, trial.repeat,
    trial.position, trial.status, trial.error, trial.started_at, trial.n_prompt, trial.n_tokens, trial.prefill_ns,
    trial.draft_prefill_ns, trial.decode_ns, trial.load_ns, trial.rollback_target, trial.rollback_draft,
    trial.failed_native_calls, trial.verdict, trial.valid, trial.invalid_reason, trial.peak_rss_bytes,
    {more} sums.rounds, sums.proposed, sums.accepted, sums.committed, sums.rows,
    {sums}
FROM current_trial AS trial
JOIN "case" ON "case".id = trial.case_id
LEFT JOIN (
    SELECT
        trial_id, count(*) AS rounds, sum(proposed) AS proposed, sum(accepted) AS accepted,
        sum(committed) AS committed, sum(rows) AS rows, sum(draft_ns) AS draft_ns, sum(verify_ns) AS verify_ns,
        sum(rollback_ns) AS rollback_ns, sum(sample_ns) AS sample_ns, sum(other_ns) AS other_ns
    FROM round GROUP BY trial_id
) AS sums ON sums.trial_id = trial.id;
"""


_VERSION_1 = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    status TEXT NOT NULL CHECK (status IN ('started', 'finished', 'interrupted')),
    started_at TEXT NOT NULL,
    ended_at TEXT,
    seed INTEGER NOT NULL,
    environment_key TEXT NOT NULL,
    environment TEXT NOT NULL,
    plan TEXT NOT NULL
);

CREATE TABLE model (
    key TEXT PRIMARY KEY,
    id TEXT NOT NULL,
    sha256 TEXT,
    architecture TEXT NOT NULL,
    facts TEXT NOT NULL
);

CREATE TABLE "case" (
    id TEXT PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES run (id),
    suite TEXT NOT NULL,
    arm TEXT NOT NULL CHECK (arm IN ('ar', 'sd')),
    target TEXT NOT NULL,
    drafter TEXT NOT NULL,
    draft TEXT,
    gamma INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    n_predict INTEGER NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX case_suite ON "case" (suite);

CREATE TABLE trial (
    id INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES run (id),
    environment_key TEXT NOT NULL,
    case_id TEXT NOT NULL REFERENCES "case" (id),
    arm TEXT NOT NULL CHECK (arm IN ('ar', 'sd')),
    gamma INTEGER NOT NULL,
    block INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    position INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('ok', 'failed')),
    started_at TEXT NOT NULL,
    error TEXT,
    n_prompt INTEGER,
    n_tokens INTEGER NOT NULL,
    prefill_ns INTEGER,
    draft_prefill_ns INTEGER,
    decode_ns INTEGER,
    load_ns INTEGER,
    rollback_target TEXT,
    rollback_draft TEXT,
    failed_native_calls INTEGER NOT NULL,
    verdict TEXT CHECK (verdict IN ('lossless', 'near_tie', 'diverged')),
    losslessness TEXT,
    valid INTEGER NOT NULL,
    invalid_reason TEXT,
    peak_rss_bytes INTEGER,
    stats TEXT NOT NULL,
    conditions TEXT,
    text TEXT,
    tokens TEXT NOT NULL
);
CREATE UNIQUE INDEX trial_once ON trial (environment_key, case_id, block, repeat, position) WHERE status = 'ok';
CREATE INDEX trial_key ON trial (environment_key, case_id, block, repeat, status);
CREATE INDEX trial_run ON trial (run_id);

CREATE TABLE round (
    trial_id INTEGER NOT NULL REFERENCES trial (id),
    number INTEGER NOT NULL,
    proposed INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    committed INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    draft_ns INTEGER NOT NULL,
    verify_ns INTEGER NOT NULL,
    rollback_ns INTEGER NOT NULL,
    sample_ns INTEGER NOT NULL,
    other_ns INTEGER NOT NULL,
    PRIMARY KEY (trial_id, number)
) WITHOUT ROWID;

CREATE TABLE warning (
    id INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES run (id),
    case_id TEXT REFERENCES "case" (id),
    code TEXT NOT NULL,
    message TEXT NOT NULL,
    advice TEXT NOT NULL
);

-- A failed trial counts until the same measurement is tried again.
CREATE VIEW current_trial AS
SELECT * FROM trial AS this
WHERE status = 'ok' OR NOT EXISTS (
    SELECT 1 FROM trial AS other
    WHERE other.environment_key = this.environment_key AND other.case_id = this.case_id
      AND other.block = this.block AND other.repeat = this.repeat
      AND (other.status = 'ok' OR other.id > this.id)
);

""" + _trial_summary("sums.{part}")

_VERSION_2 = """
CREATE TABLE calibration (
    id INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES run (id),
    model_key TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (
        kind IN ('target_pass', 'draft_step', 'prefill', 'rollback', 'checkpoint', 'sample')),
    rows INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    span_ns INTEGER NOT NULL,
    UNIQUE (run_id, model_key, kind, rows, depth, repeat)
);

CREATE TABLE coverage (
    run_id INTEGER NOT NULL REFERENCES run (id),
    model_key TEXT NOT NULL,
    source TEXT NOT NULL CHECK (source IN ('text', 'draft')),
    layer INTEGER NOT NULL,
    window INTEGER NOT NULL,
    n_windows INTEGER NOT NULL,
    distinct_mean REAL NOT NULL,
    "distinct" TEXT NOT NULL,
    PRIMARY KEY (run_id, model_key, source, layer, window)
) WITHOUT ROWID;

CREATE TABLE expert_load (
    run_id INTEGER NOT NULL REFERENCES run (id),
    model_key TEXT NOT NULL,
    source TEXT NOT NULL CHECK (source IN ('text', 'draft')),
    layer INTEGER NOT NULL,
    chosen TEXT NOT NULL,
    PRIMARY KEY (run_id, model_key, source, layer)
) WITHOUT ROWID;

CREATE TABLE imported (
    id INTEGER PRIMARY KEY,
    imported_at TEXT NOT NULL,
    source TEXT NOT NULL,
    source_sha256 TEXT NOT NULL,
    format TEXT NOT NULL,
    row INTEGER NOT NULL,
    status TEXT NOT NULL,
    record TEXT NOT NULL,
    UNIQUE (source_sha256, format, row)
);
"""

_VERSION_3 = """
ALTER TABLE trial ADD COLUMN retired INTEGER NOT NULL DEFAULT 0;
DROP INDEX trial_once;
DROP INDEX trial_key;
CREATE UNIQUE INDEX trial_once ON trial (environment_key, case_id, block, repeat, position)
    WHERE status = 'ok' AND NOT retired;
CREATE INDEX trial_key ON trial (environment_key, case_id, block, repeat, status, retired);

DROP VIEW current_trial;
CREATE VIEW current_trial AS
SELECT * FROM trial AS this
WHERE NOT this.retired AND (status = 'ok' OR NOT EXISTS (
    SELECT 1 FROM trial AS other
    WHERE other.environment_key = this.environment_key AND other.case_id = this.case_id
      AND other.block = this.block AND other.repeat = this.repeat AND NOT other.retired
      AND (other.status = 'ok' OR other.id > this.id)
));
"""

_VERSION_4 = """
CREATE TABLE stream_read (
    id INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES run (id),
    n_threads INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    gb_s REAL NOT NULL,
    UNIQUE (run_id, n_threads, repeat)
);

CREATE TABLE known_pass (
    id INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES run (id),
    quant TEXT NOT NULL,
    n_bytes INTEGER NOT NULL,
    block INTEGER NOT NULL,
    ms REAL NOT NULL,
    UNIQUE (run_id, quant, n_bytes, block)
);
"""

_VERSION_5 = """
CREATE TABLE draft_distance (
    target_key TEXT NOT NULL,
    drafting_key TEXT NOT NULL,
    text_sha256 TEXT NOT NULL,
    n_tokens INTEGER NOT NULL,
    measured_at TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (target_key, drafting_key, text_sha256, n_tokens)
) WITHOUT ROWID;

ALTER TABLE trial ADD COLUMN earlier TEXT NOT NULL DEFAULT '[]';
"""

_VERSION_6 = """
CREATE TABLE pass_share (
    id INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES run (id),
    model_key TEXT NOT NULL,
    drafting_key TEXT,
    rows INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX pass_share_model ON pass_share (model_key, drafting_key);

UPDATE trial SET decode_ns = NULL WHERE json_extract(stats, '$.timed') = 0;

DROP VIEW trial_summary;
""" + _trial_summary(_WHERE_TIMED)

_OF_LOSSLESSNESS = (
    "trial.timed, trial.fell_back, json_extract(trial.losslessness, '$.tolerance') AS tolerance, "
    "json_extract(trial.losslessness, '$.worst_gap') AS worst_gap, "
    "1000.0 * json_extract(trial.losslessness, '$.n_different') / json_extract(trial.losslessness, '$.n_compared') "
    "AS differences_per_1000,"
)

_VERSION_7 = """
ALTER TABLE trial ADD COLUMN timed INTEGER NOT NULL DEFAULT 1;
ALTER TABLE trial ADD COLUMN fell_back TEXT;

UPDATE trial SET timed = 0 WHERE json_extract(stats, '$.timed') = 0;
UPDATE trial SET rollback_draft = 'inplace' WHERE rollback_draft = 'inplace, not timed';
UPDATE trial SET
    rollback_draft = substr(rollback_draft, 1, instr(rollback_draft, ', not sync: ') - 1),
    fell_back = substr(rollback_draft, instr(rollback_draft, ', not sync: ') + length(', not sync: '))
WHERE instr(rollback_draft, ', not sync: ');
UPDATE trial SET stats = json_remove(stats, '$.timed', '$.sync_fallback');

DROP VIEW trial_summary;
""" + _trial_summary(_WHERE_TIMED, _OF_LOSSLESSNESS)

_VERSION_8 = """
ALTER TABLE trial ADD COLUMN disturbed INTEGER NOT NULL DEFAULT 0;
UPDATE trial SET disturbed = 1 WHERE NOT valid AND invalid_reason LIKE 'disturbed%';

DROP VIEW trial_summary;
""" + _trial_summary(_WHERE_TIMED, f"{_OF_LOSSLESSNESS} trial.disturbed,")

MIGRATIONS: tuple[str, ...] = (
    _VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5, _VERSION_6, _VERSION_7, _VERSION_8,
)  # fmt: skip
"""Step i leads from version i to version i + 1; a new database takes all of them."""

CURRENT_VERSION = len(MIGRATIONS)
