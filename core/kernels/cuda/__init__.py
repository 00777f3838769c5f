"""Kernels for CUDA devices: one file a kernel, with the name of the CPU's; none is loaded here."""
