"""Starts the process of a machine: ``python -m mlsd.lab``; see `cluster`."""

from mlsd.lab.cluster import main

main()
