"""Live output of a run beside its tables: whole rows, TensorBoard events, owners of locks."""
