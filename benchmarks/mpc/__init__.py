"""Compared systems of private inference: SPU and MP-SPDZ.

`vergence predict --private` needs none of them.
"""
