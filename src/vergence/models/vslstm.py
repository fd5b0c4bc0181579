"""vsLSTM: a frame's importance from the frames before and after it, by two LSTMs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from vergence.core.task import Model


@dataclass(frozen=True)
class VsLSTM(Model):
    """One LSTM reads a clip forwards, one backwards; an MLP makes a score of both and the frame.

    2.9 million parameters as published.

    Attributes:
        features: numbers per frame.
        hidden: units of either LSTM and of the MLP's hidden layer.

    Source: Zhang et al., "Video summarization with long short-term memory", ECCV 2016, section
    3.3; baseline of the Durham thesis, chapter 4.
    """

    features: Annotated[int, Ge(1)] = 1024
    hidden: Annotated[int, Ge(1)] = 256

    head: ClassVar[tuple[str, ...]] = ("score.*",)

    def build(self) -> VsLSTMNet:
        """Return the network."""
        return VsLSTMNet(self.features, self.hidden)


class VsLSTMNet(nn.Module):
    """Features `[B, T, d]` and numbers of steps `[B]` to scores `[B, T]`, logits of importance."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(features, hidden, batch_first=True)
        self.backwards = nn.LSTM(features, hidden, batch_first=True)
        self.mix = nn.Linear(2 * hidden + features, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        """Return the scores; beyond a clip's end they mean nothing, and change no others."""
        after = self.backwards(turned(x, steps))[0]
        both = torch.cat([self.forwards(x)[0], turned(after, steps), x], 2)
        return self.score(torch.sigmoid(self.mix(both))).squeeze(2)


def turned(x: Tensor, steps: Tensor) -> Tensor:
    """Return `[B, T, d]` with the steps of every clip in reverse order, what is beyond unmoved."""
    at = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    back = steps[:, None] - 1 - at
    return x.gather(1, torch.where(back >= 0, back, at)[..., None].expand_as(x))
