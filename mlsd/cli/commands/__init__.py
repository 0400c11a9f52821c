"""One file a command, each with the options and the printing of that command alone."""
