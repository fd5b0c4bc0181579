"""Arithmetic of the published tables: what they say against what follows from them."""
