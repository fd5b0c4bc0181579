"""Eye images with gaze directions."""
