"""Attacks on federated and split learning, and scores of how much they find out."""

from vergence.core.exports import lazy

__getattr__, __dir__ = lazy(__name__)
