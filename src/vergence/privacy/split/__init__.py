"""Defences of split learning."""
