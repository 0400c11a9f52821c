"""Servers: real ones on this machine, and a proxy that lies."""
