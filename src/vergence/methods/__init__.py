"""One file per federated method; a method's name is its module's name."""

from typing import Any

from vergence.core.exports import exported, public_names

KIND = "Method"
"""The class whose descendants the package shows."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    return exported(__name__, name)


def __dir__() -> list[str]:
    return public_names(__name__)
