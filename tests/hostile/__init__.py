"""Mutated inputs of every kind through the command line; benchmarks/hostile.py makes thousands of them."""
