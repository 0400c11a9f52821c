"""The tables of a study database and their history: a step of SQL from each version (`user_version`) to the next.

A released step never changes: a new shape is a new step, and `tests/store/databases/later.sql` gets rows of it. Only
the views of today are made here: those of before step 9 (`OLD_VIEWS`) are dropped by it, whatever they say.
"""

FROM_RECORD = "record"  # in the plan of a run that came with a record: nobody measured it into this file
APPLICATION_ID = 0x6D6C7364  # "mlsd", in the header of the file

_SUMS = ("proposed", "accepted", "committed", "rows", "draft_ns", "verify_ns", "rollback_ns", "sample_ns", "other_ns")

# Step i leads from version i to version i + 1; a new database takes all of them.
MIGRATIONS: tuple[str, ...] = (
    # 1: run, model, case, trial, round, warning
    """
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

CREATE TABLE trial (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), environment_key TEXT NOT NULL,
    case_id TEXT NOT NULL REFERENCES "case" (id), arm TEXT NOT NULL CHECK (arm IN ('ar', 'sd')),
    gamma INTEGER NOT NULL, block INTEGER NOT NULL, repeat INTEGER NOT NULL, position INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('ok', 'failed')), started_at TEXT NOT NULL, error TEXT, n_prompt INTEGER,
    n_tokens INTEGER NOT NULL, prefill_ns INTEGER, draft_prefill_ns INTEGER, decode_ns INTEGER, load_ns INTEGER,
    rollback_target TEXT, rollback_draft TEXT, failed_native_calls INTEGER NOT NULL,
    verdict TEXT CHECK (verdict IN ('lossless', 'near_tie', 'diverged')), losslessness TEXT, valid INTEGER NOT NULL,
    invalid_reason TEXT, peak_rss_bytes INTEGER, stats TEXT NOT NULL, conditions TEXT, text TEXT, tokens TEXT NOT NULL
);
CREATE UNIQUE INDEX trial_once ON trial (environment_key, case_id, block, repeat, position) WHERE status = 'ok';
CREATE INDEX trial_key ON trial (environment_key, case_id, block, repeat, status);
CREATE INDEX trial_run ON trial (run_id);

CREATE TABLE round (
    trial_id INTEGER NOT NULL REFERENCES trial (id), number INTEGER NOT NULL, proposed INTEGER NOT NULL,
    accepted INTEGER NOT NULL, committed INTEGER NOT NULL, rows INTEGER NOT NULL, draft_ns INTEGER NOT NULL,
    verify_ns INTEGER NOT NULL, rollback_ns INTEGER NOT NULL, sample_ns INTEGER NOT NULL, other_ns INTEGER NOT NULL,
    PRIMARY KEY (trial_id, number)
) WITHOUT ROWID;

CREATE TABLE warning (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), case_id TEXT REFERENCES "case" (id),
    code TEXT NOT NULL, message TEXT NOT NULL, advice TEXT NOT NULL
);
""",
    # 2: calibration (timed passes), coverage and expert_load (expert choice), imported (tables of others)
    """
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

CREATE TABLE imported (
    id INTEGER PRIMARY KEY, imported_at TEXT NOT NULL, source TEXT NOT NULL, source_sha256 TEXT NOT NULL,
    format TEXT NOT NULL, row INTEGER NOT NULL, status TEXT NOT NULL, record TEXT NOT NULL,
    UNIQUE (source_sha256, format, row)
);
""",
    # 3: trial.retired: a success that was measured again on purpose stays, but no longer counts
    """
ALTER TABLE trial ADD COLUMN retired INTEGER NOT NULL DEFAULT 0;
DROP INDEX trial_once;
DROP INDEX trial_key;
CREATE UNIQUE INDEX trial_once ON trial (environment_key, case_id, block, repeat, position)
    WHERE status = 'ok' AND NOT retired;
CREATE INDEX trial_key ON trial (environment_key, case_id, block, repeat, status, retired);
""",
    # 4: stream_read, known_pass: what the memory gives
    """
CREATE TABLE stream_read (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), n_threads INTEGER NOT NULL,
    repeat INTEGER NOT NULL, gb_s REAL NOT NULL, UNIQUE (run_id, n_threads, repeat)
);

CREATE TABLE known_pass (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), quant TEXT NOT NULL,
    n_bytes INTEGER NOT NULL, block INTEGER NOT NULL, ms REAL NOT NULL, UNIQUE (run_id, quant, n_bytes, block)
);
""",
    # 5: draft_distance (perplexity ratio, total variation); trial.earlier: the target's answers inside the prompt
    """
CREATE TABLE draft_distance (
    target_key TEXT NOT NULL, drafting_key TEXT NOT NULL, text_sha256 TEXT NOT NULL, n_tokens INTEGER NOT NULL,
    measured_at TEXT NOT NULL, record TEXT NOT NULL, PRIMARY KEY (target_key, drafting_key, text_sha256, n_tokens)
) WITHOUT ROWID;

ALTER TABLE trial ADD COLUMN earlier TEXT NOT NULL DEFAULT '[]';
""",
    # 6: pass_share (profiled passes); times of a trial whose times are not its method's are not there
    """
CREATE TABLE pass_share (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), model_key TEXT NOT NULL, drafting_key TEXT,
    rows INTEGER NOT NULL, depth INTEGER NOT NULL, record TEXT NOT NULL
);
CREATE INDEX pass_share_model ON pass_share (model_key, drafting_key);

UPDATE trial SET decode_ns = NULL WHERE json_extract(stats, '$.timed') = 0;
""",
    # 7: trial.timed and trial.fell_back, which stood in stats and in rollback_draft
    """
ALTER TABLE trial ADD COLUMN timed INTEGER NOT NULL DEFAULT 1;
ALTER TABLE trial ADD COLUMN fell_back TEXT;

UPDATE trial SET timed = 0 WHERE json_extract(stats, '$.timed') = 0;
UPDATE trial SET rollback_draft = 'inplace' WHERE rollback_draft = 'inplace, not timed';
UPDATE trial SET
    rollback_draft = substr(rollback_draft, 1, instr(rollback_draft, ', not sync: ') - 1),
    fell_back = substr(rollback_draft, instr(rollback_draft, ', not sync: ') + length(', not sync: '))
WHERE instr(rollback_draft, ', not sync: ');
UPDATE trial SET stats = json_remove(stats, '$.timed', '$.sync_fallback');
""",
    # 8: trial.disturbed, which was the beginning of invalid_reason
    """
ALTER TABLE trial ADD COLUMN disturbed INTEGER NOT NULL DEFAULT 0;
UPDATE trial SET disturbed = 1 WHERE NOT valid AND invalid_reason LIKE 'disturbed%';
""",
    # 9: block, and trial.block_id: trials of different runs are never in one block; a trial has one status and reason;
    # its rounds are one column, and their sums are stored; round became a view; imported stays where it is, unread.
    # A block of before is what one run measured of it; of what was superseded each trial is a block by itself.
    f"""
DROP VIEW IF EXISTS trial_summary;
DROP VIEW IF EXISTS current_trial;

CREATE TABLE block (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (id), environment_key TEXT NOT NULL,
    number INTEGER NOT NULL, repeat INTEGER NOT NULL, process TEXT, superseded INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE new_trial (
    id INTEGER PRIMARY KEY, block_id INTEGER NOT NULL REFERENCES block (id),
    case_id TEXT NOT NULL REFERENCES "case" (id), position INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('valid', 'hot', 'disturbed', 'invalid', 'failed')), reason TEXT,
    started_at TEXT NOT NULL, n_prompt INTEGER, n_tokens INTEGER NOT NULL, prefill_ns INTEGER,
    draft_prefill_ns INTEGER, decode_ns INTEGER, load_ns INTEGER, rollback_target TEXT, rollback_draft TEXT,
    timed INTEGER NOT NULL, fell_back TEXT, failed_native_calls INTEGER NOT NULL,
    verdict TEXT CHECK (verdict IN ('lossless', 'near_tie', 'not_judged', 'diverged')), losslessness TEXT,
    peak_rss_bytes INTEGER, stats TEXT NOT NULL, conditions TEXT, text TEXT, tokens TEXT NOT NULL,
    earlier TEXT NOT NULL, rounds INTEGER, {" INTEGER, ".join(_SUMS)} INTEGER, each_round TEXT NOT NULL
);

CREATE TABLE placed AS
SELECT this.id AS trial_id, this.run_id, this.environment_key, this.block, this.repeat, (
    this.retired OR (this.status = 'failed' AND EXISTS (
        SELECT 1 FROM trial AS other
        WHERE other.environment_key = this.environment_key AND other.case_id = this.case_id
          AND other.block = this.block AND other.repeat = this.repeat AND NOT other.retired
          AND (other.status = 'ok' OR other.id > this.id)
    ))
) AS superseded
FROM trial AS this;

INSERT INTO block (id, run_id, environment_key, number, repeat, superseded)
SELECT min(trial_id), run_id, environment_key, block, repeat, superseded FROM placed
GROUP BY run_id, environment_key, block, repeat, CASE WHEN superseded THEN trial_id END;

CREATE INDEX block_key ON block (environment_key, number, repeat);

INSERT INTO new_trial
SELECT
    trial.id, block.id, trial.case_id, trial.position,
    CASE
        WHEN trial.status = 'failed' THEN 'failed'
        WHEN trial.disturbed AND (trial.verdict = 'diverged' OR trial.failed_native_calls
            OR trial.rollback_target LIKE 'sabotage%' OR trial.rollback_target LIKE 'unchecked%') THEN 'invalid'
        WHEN trial.disturbed AND trial.valid THEN 'hot'
        WHEN trial.disturbed THEN 'disturbed'
        WHEN trial.valid THEN 'valid'
        ELSE 'invalid'
    END,
    CASE
        WHEN trial.status = 'failed' THEN coalesce(trial.error, 'no reason given')
        WHEN NOT trial.valid THEN coalesce(trial.invalid_reason, 'no reason given')
        WHEN trial.disturbed THEN 'passes were slower than before'
    END,
    trial.started_at, trial.n_prompt, trial.n_tokens, trial.prefill_ns, trial.draft_prefill_ns, trial.decode_ns,
    trial.load_ns, trial.rollback_target, trial.rollback_draft, trial.timed, trial.fell_back,
    trial.failed_native_calls,
    coalesce(trial.verdict, iif(json_valid(trial.losslessness), json_extract(trial.losslessness, '$.verdict'), NULL)),
    trial.losslessness, trial.peak_rss_bytes, trial.stats,
    trial.conditions, trial.text, trial.tokens, trial.earlier,
    sums.rounds, {", ".join(f"sums.{name}" for name in _SUMS)}, coalesce(sums.each_round, '[]')
FROM trial
JOIN placed ON placed.trial_id = trial.id
JOIN block ON block.run_id IS placed.run_id AND block.environment_key IS placed.environment_key
    AND block.number IS placed.block AND block.repeat IS placed.repeat AND block.superseded = placed.superseded
    AND (NOT block.superseded OR block.id = trial.id)
LEFT JOIN (
    SELECT
        trial_id, count(*) AS rounds, {", ".join(f"CAST(total({name}) AS INTEGER) AS {name}" for name in _SUMS)},
        json_group_array(json_array({", ".join(f"iif(typeof({name}) = 'integer', {name}, NULL)" for name in _SUMS)}))
            AS each_round
    FROM (SELECT * FROM round ORDER BY trial_id, number) GROUP BY trial_id
) AS sums ON sums.trial_id = trial.id
ORDER BY trial.id;

DROP TABLE placed;
DROP TABLE round;
DROP TABLE trial;
ALTER TABLE new_trial RENAME TO trial;
CREATE INDEX block_run ON block (run_id);
CREATE INDEX trial_block ON trial (block_id, case_id, status);
CREATE INDEX trial_case ON trial (case_id);

-- What was not measured again.
CREATE VIEW current_trial AS
SELECT trial.*, block.run_id, block.environment_key, block.number AS block, block.repeat, "case".arm, "case".gamma,
    trial.status IN ('valid', 'hot') AS valid
FROM trial
JOIN block ON block.id = trial.block_id
JOIN "case" ON "case".id = trial.case_id
WHERE NOT block.superseded;

CREATE VIEW round AS
SELECT trial.id AS trial_id, each.key AS number,
    {", ".join(f"json_extract(each.value, '$[{place}]') AS {name}" for place, name in enumerate(_SUMS))}
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
    trial.rounds, trial.proposed, trial.accepted, trial.committed, trial.rows,
    {", ".join(f"CASE WHEN trial.decode_ns IS NOT NULL THEN trial.{name} END AS {name}" for name in _SUMS[4:])}
FROM current_trial AS trial
JOIN "case" ON "case".id = trial.case_id;
""",
    # 10: trial.prompt_sha256: the tokens that the target read
    "ALTER TABLE trial ADD COLUMN prompt_sha256 TEXT;",
)
OLD_VIEWS = ("view current_trial", "view trial_summary")
WITH_BLOCKS = 9  # the version from which on a block, not a trial, says of which run it is
CURRENT_VERSION = len(MIGRATIONS)
