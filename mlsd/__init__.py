"""mlsd measures speculative decoding of GGUF models through llama.cpp and reports only numbers that can be true."""

__version__ = "0.1.0"
