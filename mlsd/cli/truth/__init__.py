"""Commands that ask whether a number or a rollback can be trusted."""
