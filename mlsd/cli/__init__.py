"""The command line: parse, call one library function, print. The only place that prints and exits."""

from mlsd.cli.main import main

__all__ = ["main"]
