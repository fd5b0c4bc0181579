"""Images with classes."""
