"""The SplitFed gaze thesis."""
