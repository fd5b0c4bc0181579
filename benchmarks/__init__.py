"""Measurements that no user of the package needs: `python -m benchmarks.NAME` in a checkout.

A package, since other distributions install a package of this name, before which only a package in
the working directory is found.
"""
