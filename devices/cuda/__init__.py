"""The CUDA device: one rank's memory on a GPU, and its program as captured graphs."""
