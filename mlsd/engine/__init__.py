"""One lossless, honestly timed run of a model: contexts, rollback, probe, loops."""
