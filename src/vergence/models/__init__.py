"""Networks; a model's name is its module's name."""

from vergence.core.exports import lazy

KIND = "Model"
"""The class whose descendants the package shows."""

SPELLINGS = {
    "GLCFeatures": "GlcFeatures",
    "GLCViT": "GlcVit",
    "MLP": "Mlp",
    "SmallCNN": "SmallCnn",
}
"""Public names of classes that are spelled otherwise in their modules."""

__getattr__, __dir__ = lazy(__name__)
