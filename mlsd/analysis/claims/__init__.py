"""The published claims, each decided on one's own trials."""
