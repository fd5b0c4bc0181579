"""Compared systems of private inference: SPU, MP-SPDZ, and a slow reference of checked triples.

`vergence predict --private` needs none of them.
"""
