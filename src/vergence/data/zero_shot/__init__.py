"""Data sets of features of seen and unseen classes, and vectors that describe classes."""
