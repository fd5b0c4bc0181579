"""Methods that keep a model per group of clients."""
