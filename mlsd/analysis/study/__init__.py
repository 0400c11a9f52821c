"""A whole study database read once, for reports and notebooks."""
