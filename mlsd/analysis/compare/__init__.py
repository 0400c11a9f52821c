"""What a comparison of builds, settings or databases says, behind a gate that this machine's noise sets."""
