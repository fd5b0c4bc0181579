"""Poisoned updates and data, for experiments with attackers."""
