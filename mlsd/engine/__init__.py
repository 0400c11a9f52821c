"""One lossless, honestly timed run of a model: sessions, rollback, probe, loops."""
