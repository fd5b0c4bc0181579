"""vsLSTM: two LSTMs predict a frame's importance from the frames before and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from vergence.core.task import Model


@dataclass(frozen=True)
class VsLSTM(Model):
    """Two LSTMs that read a clip forwards and backwards, and an MLP on both and the frame.

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
        """Return the network, initialised from torch's global generator."""
        return VsLSTMNet(self.features, self.hidden)


class VsLSTMNet(nn.Module):
    """Network from features `[B, T, d]` and numbers of steps `[B]` to scores `[B, T]` (logits)."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(features, hidden, batch_first=True)
        self.backwards = nn.LSTM(features, hidden, batch_first=True)
        self.mix = nn.Linear(2 * hidden + features, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        """Return the scores; those beyond a clip's end have no meaning and no effect."""
        # Turned clip by clip: read as a whole, the padding of a short clip would come first.
        after = self.backwards(turned(x, steps))[0]
        both = torch.cat([self.forwards(x)[0], turned(after, steps), x], 2)
        return self.score(torch.sigmoid(self.mix(both))).squeeze(2)


def turned(x: Tensor, steps: Tensor) -> Tensor:
    """Return `[B, T, d]` with every clip's steps reversed, and the padding after them unmoved."""
    at = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    back = steps[:, None] - 1 - at
    return x.gather(1, torch.where(back >= 0, back, at)[..., None].expand_as(x))
