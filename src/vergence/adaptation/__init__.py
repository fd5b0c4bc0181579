"""Adaptation of a finished run to a new person, from a few labelled samples of that person."""
