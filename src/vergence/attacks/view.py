"""Inputs of an attack: the data that one party saw in a run, and the attacker's prior knowledge.

An attack gets an `AttackerView` and `AttackerKnowledge` and nothing else, so that it cannot use
data that a real attacker would not have. A defence is judged by the attacker who knows most.

Used by `attacks.defended_clients`, `attacks.inverse_network`, `audit.replay`, `audit.smashed_data`
and `audit.updates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from vergence.core.masks import Mask
from vergence.core.params import Params
from vergence.errors import ConfigError

Party = Literal["server", "network", "client"]
Imitate = Callable[[Tensor, Generator], Tensor]
"""An attacker's simulation of a defence: from clean smashed data to data as a client sends them."""


@dataclass(frozen=True)
class ObservedMessages:
    """A batch of smashed data as it left a client.

    Attributes:
        sender: the client that sent it.
        round: round in which it was sent.
        smashed: smashed data with their noise, `[samples, ...]`.
        images: indices of the sender's images, int64 `[samples]`. A server can recognise an image
            that comes again by order, labels or pose.
        labels: labels sent with them, `[samples, ...]` each; none in a U-shaped network.
    """

    sender: str
    round: int
    smashed: Tensor
    images: Tensor
    labels: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ObservedUpdate:
    """An update, that is the change of a model by a client's training, as it was sent.

    Attributes:
        sender: the client that sent it.
        round: round in which it was sent.
        change: the change of the parameters; zero where `mask` is false.
        mask: which entries were sent, where clients share different ones.
    """

    sender: str
    round: int
    change: Params
    mask: Mask | None = None


@dataclass(frozen=True)
class AttackerView:
    """Data of a run that one party saw.

    Attributes:
        party: the party that sees the data. An observer of the network sees only sizes under TLS.
        sent: smashed data, in order.
        updates: single clients' updates; none under secure aggregation.
        sums: sum of all clients' updates by round, under secure aggregation.
        models: the shared model after each round.
    """

    party: Party
    sent: tuple[ObservedMessages, ...] = ()
    updates: tuple[ObservedUpdate, ...] = ()
    sums: Mapping[int, Params] = field(default_factory=dict)
    models: Mapping[int, Params] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for batch in self.sent:
            if len(batch.smashed) != len(batch.images):
                raise ConfigError(
                    f"view: {batch.sender} sent {len(batch.smashed)} samples with "
                    f"{len(batch.images)} numbers of images; give one number per sample"
                )

    def updates_of_round(self, round: int) -> dict[str, ObservedUpdate]:
        """Return the updates of a round by sender, in the order of their names.

        The audit of updates attacks them.
        """
        updates = {update.sender: update for update in self.updates if update.round == round}
        return dict(sorted(updates.items()))

    def averaged(self, sender: str) -> tuple[Tensor, Tensor]:
        """Return the indices of a sender's images, and the mean of all sends of each.

        Noise that is new with every send averages out, if the client's layers did not change
        between the sends.

        Raises:
            ConfigError: nothing was seen of this sender.
        """
        if not (batches := [batch for batch in self.sent if batch.sender == sender]):
            raise ConfigError(f"view: the {self.party} saw no smashed data of '{sender}'")
        smashed = torch.cat([batch.smashed for batch in batches])
        images, at = torch.cat([b.images for b in batches]).unique(return_inverse=True)
        total = torch.zeros(len(images), *smashed.shape[1:]).index_add_(0, at, smashed)
        times = torch.bincount(at).view(-1, *[1] * (smashed.ndim - 1))
        return images, total / times


@dataclass(frozen=True)
class AttackerKnowledge:
    """Knowledge that an attacker has before the attack.

    Attributes:
        images: images of shadow people, `[samples, channels, height, width]` in [0, 1]; none of a
            victim.
        people: owner of each image, int64 `[samples]`.
        front: the clients' layers with their weights, where they are known.
        defence: simulation of the clients' defence, where it is known.
    """

    images: Tensor | None = None
    people: Tensor | None = None
    front: nn.Module | None = None
    defence: Imitate | None = None
