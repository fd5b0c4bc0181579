"""The `vergence` command."""
