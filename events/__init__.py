"""The vocabulary of a run: commands, facts, their one byte form, and the tape that keeps them."""
