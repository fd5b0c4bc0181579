"""One file per federated method; a method's name is its module's name."""

import warnings
from typing import Any

from vergence.core.exports import lazy

KIND = "Method"
"""The class whose descendants the package shows."""

_shown, __dir__ = lazy(__name__)


def __getattr__(name: str) -> Any:
    """Import a method's class at its first use; a class's former name works, and warns."""
    if name == "Earned":
        warnings.warn("the method Earned is called Interpolation now", FutureWarning, 2)
    return _shown("Interpolation" if name == "Earned" else name)
