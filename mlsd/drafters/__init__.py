"""Drafting methods, one file a method."""
