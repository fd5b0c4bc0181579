"""Scores of gaze maps and gaze angles."""
