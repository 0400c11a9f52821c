"""The study database: its tables, its history, its values."""
