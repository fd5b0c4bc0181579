"""Privacy and robustness: differential privacy, secure aggregation, robust rules, defences."""

from vergence.core.exports import lazy

__getattr__, __dir__ = lazy(__name__)
