"""Networks; a model's name is its module's name."""
