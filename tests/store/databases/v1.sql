PRAGMA application_id = 1835823972;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
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
INSERT INTO "case" VALUES('37b2517f4cf9cbf5',1,'B','ar','tiny-moe','none',NULL,0,'code-1',8,'{"suite":"B","target":{"id":"tiny-moe","sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","n_bytes":1000},"prompt":{"key":"code-1","sha256":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc","n_tokens":64,"workload":"code"},"n_predict":8,"drafter":{"name":"none","options":{},"draft":null},"gamma":0,"rollback":"auto","sampling":{"temperature":0.0,"top_k":0,"top_p":1.0,"seed":0},"engine":{"n_ctx":null,"n_batch":2048,"n_ubatch":512,"n_threads":1,"n_gpu_layers":-1,"flash_attention":"auto"},"ignore_eog":true}');
INSERT INTO "case" VALUES('649e1725f7d70acc',1,'B','sd','tiny-moe','draft-model','tiny',4,'code-1',8,'{"suite":"B","target":{"id":"tiny-moe","sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","n_bytes":1000},"prompt":{"key":"code-1","sha256":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc","n_tokens":64,"workload":"code"},"n_predict":8,"drafter":{"name":"draft-model","options":{"p_min":0.5},"draft":{"id":"tiny","sha256":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","n_bytes":null}},"gamma":4,"rollback":"auto","sampling":{"temperature":0.0,"top_k":0,"top_p":1.0,"seed":0},"engine":{"n_ctx":null,"n_batch":2048,"n_ubatch":512,"n_threads":1,"n_gpu_layers":-1,"flash_attention":"auto"},"ignore_eog":true}');
INSERT INTO "case" VALUES('e9a437198fb25da6',1,'B','sd','tiny-moe','draft-model','tiny',8,'code-1',8,'{"suite":"B","target":{"id":"tiny-moe","sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","n_bytes":1000},"prompt":{"key":"code-1","sha256":"cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc","n_tokens":64,"workload":"code"},"n_predict":8,"drafter":{"name":"draft-model","options":{"p_min":0.5},"draft":{"id":"tiny","sha256":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","n_bytes":null}},"gamma":8,"rollback":"auto","sampling":{"temperature":0.0,"top_k":0,"top_p":1.0,"seed":0},"engine":{"n_ctx":null,"n_batch":2048,"n_ubatch":512,"n_threads":1,"n_gpu_layers":-1,"flash_attention":"auto"},"ignore_eog":true}');
CREATE TABLE model (
    key TEXT PRIMARY KEY,
    id TEXT NOT NULL,
    sha256 TEXT,
    architecture TEXT NOT NULL,
    facts TEXT NOT NULL
);
INSERT INTO "model" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','tiny-moe','aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','qwen35moe','{"ref":{"id":"tiny-moe","sha256":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","n_bytes":1000},"architecture":"qwen35moe","name":null,"n_layers":4,"n_vocab":null,"n_embd":null,"n_experts":8,"n_experts_used":2,"n_parameters":null,"n_parameters_active":null,"weight_bytes":null,"active_bytes":null,"tensor_types":{"F32":12,"Q8_0":20},"synthetic":false}');
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
INSERT INTO "round" VALUES(1,0,0,0,1,1,0,376,0,4,4);
INSERT INTO "round" VALUES(1,1,0,0,1,1,0,376,0,4,3);
INSERT INTO "round" VALUES(1,2,0,0,1,1,0,376,0,4,3);
INSERT INTO "round" VALUES(1,3,0,0,1,1,0,376,0,4,3);
INSERT INTO "round" VALUES(1,4,0,0,1,1,0,376,0,4,3);
INSERT INTO "round" VALUES(1,5,0,0,1,1,0,376,0,4,3);
INSERT INTO "round" VALUES(1,6,0,0,1,1,0,376,0,4,3);
INSERT INTO "round" VALUES(3,0,4,2,3,5,400,1000,50,10,5);
INSERT INTO "round" VALUES(3,1,3,3,4,4,300,900,0,11,6);
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
INSERT INTO "run" VALUES(1,'finished','2026-11-21T04:53:44.236+00:00','2026-11-21T04:53:44.237+00:00',7,'56bc29fec84ecd6c','{"host":"0123456789abcdef","os":"macOS 26.5 (25F71)","machine":"arm64","chip":"Apple M2 Ultra","hardware_model":null,"performance_cores":null,"efficiency_cores":null,"logical_cores":null,"gpu_cores":null,"memory_bytes":null,"wired_limit_bytes":null,"peak_bandwidth_gb_s":null,"peak_bandwidth_source":null,"backend":"Metal","device":"Apple M2 Ultra","power_source":null,"low_power_mode":null,"thermal_state":null,"mlsd_version":"0.1.0","llama_cpp_python_version":"0.3.36","llama_cpp_build":"b8240","python_version":null}','{"suites":["B"],"profile":"tiny"}');
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
INSERT INTO "trial" VALUES(1,1,'56bc29fec84ecd6c','37b2517f4cf9cbf5','ar',0,1,2,3,'ok','2026-03-01T12:00:00.000+00:00','none at all',64,8,10000,2000,2682,30000,'snapshots','checkpoint',1,NULL,NULL,1,'nothing',123456,'{"lookup_ns":17.0}','{"load_1min":0.5,"on_battery":false,"low_power_mode":false,"thermal_state":"nominal","available_bytes":8000000000,"swap_used_bytes":0}','a ’quoted’ output 😀','[5,6,7,8,9,10,11,12]');
INSERT INTO "trial" VALUES(2,1,'56bc29fec84ecd6c','649e1725f7d70acc','sd',4,1,2,3,'failed','2026-03-01T12:00:00.000+00:00','the worker was killed',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'{}',NULL,NULL,'[]');
INSERT INTO "trial" VALUES(3,1,'56bc29fec84ecd6c','649e1725f7d70acc','sd',4,1,2,3,'ok','2026-03-01T12:00:00.000+00:00','none at all',64,8,10000,2000,2682,30000,'snapshots','checkpoint',1,'near_tie','{"verdict":"near_tie","first_difference":5,"top2_gap":0.001,"worst_gap":0.002,"tolerance":0.004}',1,'nothing',123456,'{"lookup_ns":17.0}','{"load_1min":0.5,"on_battery":false,"low_power_mode":false,"thermal_state":"nominal","available_bytes":8000000000,"swap_used_bytes":0}','a ’quoted’ output 😀','[5,6,7,8,9,10,11,12]');
INSERT INTO "trial" VALUES(4,1,'56bc29fec84ecd6c','e9a437198fb25da6','sd',8,1,2,3,'failed','2026-03-01T12:00:00.000+00:00','the worker was killed',NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,0,NULL,NULL,'{}',NULL,NULL,'[]');
CREATE TABLE warning (
    id INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES run (id),
    case_id TEXT REFERENCES "case" (id),
    code TEXT NOT NULL,
    message TEXT NOT NULL,
    advice TEXT NOT NULL
);
INSERT INTO "warning" VALUES(1,1,NULL,'on_battery','On battery.','Plug in.');
CREATE INDEX case_suite ON "case" (suite);
CREATE UNIQUE INDEX trial_once ON trial (environment_key, case_id, block, repeat, position) WHERE status = 'ok';
CREATE INDEX trial_key ON trial (environment_key, case_id, block, repeat, status);
CREATE INDEX trial_run ON trial (run_id);
CREATE VIEW current_trial AS
SELECT * FROM trial AS this
WHERE status = 'ok' OR NOT EXISTS (
    SELECT 1 FROM trial AS other
    WHERE other.environment_key = this.environment_key AND other.case_id = this.case_id
      AND other.block = this.block AND other.repeat = this.repeat
      AND (other.status = 'ok' OR other.id > this.id)
);
CREATE VIEW trial_summary AS
SELECT
    trial.id AS trial_id, trial.run_id, trial.environment_key, trial.case_id, "case".suite, trial.arm, "case".target,
    "case".drafter, "case".draft, trial.gamma, "case".prompt, "case".n_predict, trial.block, trial.repeat,
    trial.position, trial.status, trial.error, trial.started_at, trial.n_prompt, trial.n_tokens, trial.prefill_ns,
    trial.draft_prefill_ns, trial.decode_ns, trial.load_ns, trial.rollback_target, trial.rollback_draft,
    trial.failed_native_calls, trial.verdict, trial.valid, trial.invalid_reason, trial.peak_rss_bytes,
    sums.rounds, sums.proposed, sums.accepted, sums.committed, sums.rows, sums.draft_ns, sums.verify_ns,
    sums.rollback_ns, sums.sample_ns, sums.other_ns
FROM current_trial AS trial
JOIN "case" ON "case".id = trial.case_id
LEFT JOIN (
    SELECT
        trial_id, count(*) AS rounds, sum(proposed) AS proposed, sum(accepted) AS accepted,
        sum(committed) AS committed, sum(rows) AS rows, sum(draft_ns) AS draft_ns, sum(verify_ns) AS verify_ns,
        sum(rollback_ns) AS rollback_ns, sum(sample_ns) AS sample_ns, sum(other_ns) AS other_ns
    FROM round GROUP BY trial_id
) AS sums ON sums.trial_id = trial.id;
COMMIT;
