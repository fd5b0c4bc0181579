"""Inputs of an attack: data that one party saw in a run, and the attacker's prior knowledge.

An attack takes a view and `AttackerKnowledge` and nothing else, so that it cannot use data that a
real attacker would not have. A defence is judged against the attacker who knows most.
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
"""Imitation of a defence by an attacker: clean smashed data to data as a client sends them."""


@dataclass(frozen=True)
class ObservedMessages:
    """A batch of smashed data as it left a client.

    Attributes:
        sender: of the batch.
        round: in which it was sent.
        smashed: `[samples, ...]`, noise and all.
        images: int64 `[samples]`, which of the sender's images; how a server tells that an image
            came again: from order, labels or pose.
        labels: what came beside, `[samples, ...]` each; nothing in the U-shape.
    """

    sender: str
    round: int
    smashed: Tensor
    images: Tensor
    labels: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ObservedUpdate:
    """Change that a client's training made to the model it was given, as it was sent.

    Attributes:
        sender: of the update.
        round: in which it was sent.
        change: zero where `mask` is false.
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
        party: who looks. A network sees ciphertext where TLS is on: then nothing here but sizes.
        sent: smashed data, in order.
        updates: single clients' updates; none under secure aggregation.
        sums: what was opened of everybody's updates in a round, where that is all there is.
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

    def of(self, *senders: str) -> AttackerView:
        """View of the data that these clients gave away."""
        return AttackerView(
            self.party,
            tuple(batch for batch in self.sent if batch.sender in senders),
            tuple(update for update in self.updates if update.sender in senders),
            self.sums,
            self.models,
        )

    def together(self, round: int) -> dict[str, ObservedUpdate]:
        """Return the updates of a round by sender, in the order of their names."""
        updates = {update.sender: update for update in self.updates if update.round == round}
        return dict(sorted(updates.items()))

    def averaged(self, sender: str) -> tuple[Tensor, Tensor]:
        """Return a sender's images by number, and the mean of all that was sent of each.

        Noise that is new with every send averages away; the client's layers must not have changed
        between the sends.

        Raises:
            ConfigError: nothing was seen of this sender.
        """
        batches = [batch for batch in self.sent if batch.sender == sender]
        if not batches:
            raise ConfigError(f"view: the {self.party} saw no smashed data of '{sender}'")
        smashed = torch.cat([batch.smashed for batch in batches])
        images, at = torch.cat([b.images for b in batches]).unique(return_inverse=True)
        total = torch.zeros(len(images), *smashed.shape[1:]).index_add_(0, at, smashed)
        times = torch.bincount(at).view(-1, *[1] * (smashed.ndim - 1))
        return images, total / times


@dataclass(frozen=True)
class AttackerKnowledge:
    """Knowledge of an attacker before anything was seen.

    Attributes:
        images: of shadow people, `[samples, channels, height, width]` in [0, 1]; none of a victim.
        people: int64 `[samples]`, whose they are.
        front: the clients' layers with their weights, where they are known.
        defence: how smashed data are changed before they are sent, where that is known.
    """

    images: Tensor | None = None
    people: Tensor | None = None
    front: nn.Module | None = None
    defence: Imitate | None = None
