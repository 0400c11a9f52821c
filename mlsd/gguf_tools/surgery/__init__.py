"""Drafts cut out of a target's own file."""
