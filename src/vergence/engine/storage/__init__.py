"""A run's folder on disk: tables, checkpoints and client states."""
