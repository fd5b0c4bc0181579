"""Networks; a model's name is its module's name."""

from typing import Any

from vergence.core.exports import exported, public_names

KIND = "Model"
"""The class whose descendants the package shows."""

SPELLINGS = {
    "GLCFeatures": "GlcFeatures",
    "GLCViT": "GlcVit",
    "MLP": "Mlp",
    "SmallCNN": "SmallCnn",
}
"""Public names of classes that are spelled otherwise in their modules."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    return exported(__name__, name)


def __dir__() -> list[str]:
    return public_names(__name__)
