"""The page book and the prompt tree as integers in arrays, and compiled code that moves them."""
