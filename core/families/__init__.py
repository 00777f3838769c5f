"""Model families: what each one keeps, and its forward pass as calls on a device."""
