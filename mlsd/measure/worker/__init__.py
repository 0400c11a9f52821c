"""The child process: everything that touches native code while it measures."""
