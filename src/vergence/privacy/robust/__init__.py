"""Robust aggregations; a rule's name in an experiment is its module's name."""
