"""Tasks: inputs, losses, metrics and one score each."""

from typing import Any

from vergence.core.exports import exported, public_names

KIND = "Task"
"""The class whose descendants the package shows."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    return exported(__name__, name)


def __dir__() -> list[str]:
    return public_names(__name__)
