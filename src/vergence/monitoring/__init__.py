"""A run as it goes: its state, its progress by method, on a screen, a page or MLflow."""
