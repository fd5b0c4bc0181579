"""Experiments: reading their files, trust in the code they name, running, reading results back."""
