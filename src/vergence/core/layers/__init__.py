"""Layers of networks that torch has not."""
