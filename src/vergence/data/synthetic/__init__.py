"""Data sets that are generated, without files."""
