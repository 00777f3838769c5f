"""What must be true, and what shows that it is."""
