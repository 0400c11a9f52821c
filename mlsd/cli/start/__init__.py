"""The first commands: demo, doctor, bench, advise."""
