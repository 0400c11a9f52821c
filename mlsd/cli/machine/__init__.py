"""Commands that measure the machine itself."""
