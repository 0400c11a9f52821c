"""Decode tok/s predicted from what passes cost and how rounds end."""
