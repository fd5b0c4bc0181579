"""Unlearning: forgetting a person, and what a run remembers of them."""
