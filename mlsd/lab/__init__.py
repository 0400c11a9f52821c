"""Several machines as one lab: each runs the same suites as it would alone, and their databases become one."""
