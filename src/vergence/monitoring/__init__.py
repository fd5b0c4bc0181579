"""Monitoring of a run: its state, its progress by method, on a screen, a page or MLflow."""
