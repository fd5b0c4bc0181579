"""Scores of gaze maps and gaze angles."""

from vergence.core.exports import lazy

__getattr__, __dir__ = lazy(__name__, functions=True)
