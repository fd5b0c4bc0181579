"""Forgetting a person: unlearning, and what a run remembers."""
