"""The GLM family on CPU ranks: its program, its memory, its sums."""
