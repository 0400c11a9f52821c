-- Rows of the tables that came after version 1, behind the version that brought them.
-- version 2
INSERT INTO "calibration" VALUES(1,1,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','target_pass',5,64,0,1000);
INSERT INTO "coverage" VALUES(1,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','text',2,2,10,3.4,'{"2":1,"3":4,"4":5}');
INSERT INTO "expert_load" VALUES(1,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','text',2,'[7,0,3,10]');
INSERT INTO "imported" VALUES(1,'2026-11-21T05:21:23.074+00:00','runs.csv','dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd','study-csv',1,'ok','{"source":"runs.csv","source_sha256":"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd","format":"study-csv","row":1,"status":"ok","job_id":"A-1","measured_at":null,"machine":null,"chip":null,"target_model":"moe","draft_model":null,"gamma":null,"n_prompt":null,"n_predict":null,"repeat":null,"prompt_key":null,"decode_tok_s":61.7,"prefill_ns":null,"decode_ns_per_token":null,"acceptance_rate":null,"speedup":null,"raw":{}}');
-- version 4
INSERT INTO "known_pass" VALUES(1,1,'Q8_0',20000000,0,2.5);
INSERT INTO "stream_read" VALUES(1,1,1,0,10.5);
-- version 5
INSERT INTO "draft_distance" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb','dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd',511,'2026-01-01T00:00:00.000+00:00','{"target_key":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","drafting_key":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","text_sha256":"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd","n_tokens":511,"perplexity":4.0,"draft_perplexity":8.0,"ratio":2.0,"ratio_low":1.9,"ratio_high":2.1,"total_variation":0.3,"total_variation_error":0.01,"agreement":0.6}');
-- version 6
INSERT INTO "pass_share" VALUES(1,1,'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',NULL,5,64,'{"model_key":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","drafting_key":null,"rows":5,"depth":64,"n_passes":10,"plain_ns":1000,"profiled_ns":1200,"headless_ns":800,"parts_ns":{"attention":400,"ffn":300,"head":250,"rest":50}}');
