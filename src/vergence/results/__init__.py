"""Results of a run: written, read and compared."""
