"""Scores of gaze maps and gaze angles."""

from typing import Any

from vergence.core.exports import exported, public_names


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    return exported(__name__, name, functions=True)


def __dir__() -> list[str]:
    return public_names(__name__, functions=True)
