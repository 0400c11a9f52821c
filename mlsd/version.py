"""The version of mlsd: lower modules read it here, `mlsd.__version__` is the public name."""

__version__ = "0.2.0"
