"""Poisoning through smashed data: false features that a dishonest split-learning client sends.

A server that serves a client batch by batch trains on what the client says its layers gave. The
label beside is true, the protocol is kept, and the reply is finite: the guards find nothing. How
much harm a lie does depends on how much of the network learns from it: the layers behind the cut.

Source of the question: SplitFed thesis, section 5.1, "Robustness to model poisoning attacks".
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from vergence.attacks.malicious_parties import Lie


def noise(smashed: Tensor, draws: Generator) -> Tensor:
    """Return Gaussian numbers of the batch's mean and deviation: nothing of any image."""
    return smashed.mean() + smashed.std() * torch.randn(smashed.shape, generator=draws)


def exchanged(smashed: Tensor, _: Generator) -> Tensor:
    """Return the smashed data of the batch's other images: real, beside another's label."""
    return smashed.roll(1, 0)


def mirrored(smashed: Tensor, _: Generator) -> Tensor:
    """Return every feature mirrored at the batch's mean of it: the label's opposite, so to say."""
    return 2 * smashed.mean(0) - smashed


def scaled(smashed: Tensor, _: Generator) -> Tensor:
    """Return ten times the smashed data: loud, and outside of any honest range."""
    return 10 * smashed


LIES: Mapping[str, Lie] = {
    "noise": noise,
    "exchanged": exchanged,
    "mirrored": mirrored,
    "scaled": scaled,
}
