"""Methods in which the target drafts for itself with some of its blocks."""
