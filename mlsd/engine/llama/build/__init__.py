"""Builds of llama.cpp: layouts of structures, the files that a process loaded, which kernels a range of them has."""
