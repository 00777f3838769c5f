"""Runs, live or from a tape, and what reads tapes."""
