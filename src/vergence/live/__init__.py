"""Gaze models on a camera: maps or directions drawn as the frames come."""
