"""Whatever has a clock, memory or a will of its own."""
