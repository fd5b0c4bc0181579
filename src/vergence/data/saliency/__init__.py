"""Data sets of pictures with gaze of many viewers."""
