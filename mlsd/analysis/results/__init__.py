"""What was measured, as pairs, rates and splits: the one pairing of speculative with plain trials."""
