"""Tables of a study as values."""
