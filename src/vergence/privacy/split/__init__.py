"""Defenses of split learning."""
