"""Checks on what leaves a client, and statements of who learns what."""
