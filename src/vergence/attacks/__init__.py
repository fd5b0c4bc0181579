"""Attacks on federated and split learning, and scores of how much they find out."""

from typing import Any

from vergence.core.exports import exported, public_names


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    return exported(__name__, name)


def __dir__() -> list[str]:
    return public_names(__name__)
