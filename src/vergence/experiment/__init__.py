"""Experiments: files and names bound to records, trust in code, running and reading back."""
