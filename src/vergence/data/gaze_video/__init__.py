"""Data sets of first-person and screen video with gaze."""
