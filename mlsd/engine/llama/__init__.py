"""The one door to llama.cpp: sessions of every kind over its low-level bindings."""
