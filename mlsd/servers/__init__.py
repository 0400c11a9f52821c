"""Inference servers that others wrote: asked, launched, measured in pairs, and held to the same truth as our engine."""
