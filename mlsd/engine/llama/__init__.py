"""The one door to llama.cpp: contexts of every kind over its low-level bindings."""
