"""Starts the process of a machine: ``python -m mlsd.measure.lab``; see `cluster`."""

from mlsd.measure.lab.cluster import main

main()
