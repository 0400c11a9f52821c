"""The ground every reader of trials stands on: sums and rates of a trial, identities between them, names, pairs.

Pure functions over records; nothing here reads a file or knows where a trial came from.
"""
