"""The machine: state, decide and apply, families, kernels, and what it asks of devices."""
