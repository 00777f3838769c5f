"""Weights on disk: where a model's files are, and float32 rows of its tensors on demand."""
