"""Commands around a study and its database."""
