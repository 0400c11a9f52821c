"""What to measure: suites, prompts and tasks turned into an ordered plan."""
