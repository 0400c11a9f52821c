"""Whether a number can be true: rows that people publish are read, bounded, doubted and judged by arithmetic alone."""
