"""Models by name: the manifest, the hub, where files lie on this machine."""
