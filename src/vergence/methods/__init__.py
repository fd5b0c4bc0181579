"""One file per federated method; a method's name is its module's name."""

from vergence.core.exports import lazy

KIND = "Method"
"""The class whose descendants the package shows."""

__getattr__, __dir__ = lazy(__name__)
