"""Arithmetic: the meaning of each kernel, its CPU twin, and the registry that lists them."""
