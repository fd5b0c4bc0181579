"""Tasks: inputs, losses, metrics and one score each."""

from vergence.core.exports import lazy

KIND = "Task"
"""The class whose descendants the package shows."""

__getattr__, __dir__ = lazy(__name__)
