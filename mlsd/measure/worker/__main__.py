"""``python -m mlsd.measure.worker``: the child process that measures."""

from mlsd.measure.worker.serve import main

main()
