"""Commands around models and drafting methods."""
