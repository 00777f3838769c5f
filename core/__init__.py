"""The machine: state, decide and apply, model families, kernels, and what it asks of devices and links."""
