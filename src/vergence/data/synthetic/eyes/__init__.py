"""Generated eye images."""
