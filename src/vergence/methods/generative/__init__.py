"""Methods that learn from made-up samples."""
