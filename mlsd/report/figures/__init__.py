"""Figures of a study, one function a figure."""
