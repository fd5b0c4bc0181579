"""Poisoned data: malicious clients train on gaze that is off by an angle, or on noisy pictures.

Validation and test data stay as they are, so that the tables measure the harm done to others.
Noisy pictures are made by `vergence.data.noise`, for the malicious clients only:
`change_clients(federation, liars, Noise(share=1.0, std=0.5).apply)`.

Used by `experiment.privacy.schema`, `experiment.schema` and `reports.explain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

import torch
from annotated_types import Interval

from vergence.core.data import Splits
from vergence.core.federation import Federation
from vergence.core.options import NamedOptions
from vergence.errors import DataError
from vergence.privacy.poisoning.updates import malicious_clients


class Change(Protocol):
    """Change that malicious clients make to their training data."""

    def apply(self, federation: Federation) -> Federation:
        """Return a federation in which the training data of all people are changed."""
        ...


@dataclass(frozen=True)
class DataPoison(NamedOptions, label="poison"):
    """An attack on training data, and the fraction of people who are malicious.

    Args:
        attack: name of the attack.
        change: change of a malicious person's training data.
        share: fraction of people who are malicious. With equal seeds, the people of a smaller
            fraction are among those of a larger one.
        seed: seed for choosing the malicious people. A seed chooses the same people as in an attack
            on updates.
    """

    attack: str
    change: Change
    share: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0

    def malicious_clients(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Return the malicious clients in the order of `clients`; their number is rounded up."""
        return malicious_clients(clients, self.share, self.seed)

    def apply(self, federation: Federation) -> Federation:
        """Return the federation, in which the malicious clients' training data are changed."""
        return change_clients(
            federation, self.malicious_clients(federation.clients), self.change.apply
        )


def change_clients(
    federation: Federation, clients: Sequence[str], change: Callable[[Federation], Federation]
) -> Federation:
    """Return the federation with the data of some people changed; the order of people stays.

    `DataPoison.apply` calls this.

    Args:
        federation: the people.
        clients: names of the people whose data are changed.
        change: function that changes the data of all people of a federation.

    Raises:
        ConfigError: there are more than 100,000 people, whose data are generated on demand.
    """
    federation.refuse_many("poisoning people's data")
    if not clients:
        return federation
    changed = change(federation.only(clients))
    people = {
        client: changed.people.get(client, federation.people[client])
        for client in federation.clients
    }
    return replace(federation, people=people, about={**federation.about, **changed.about})


@dataclass(frozen=True)
class GazeOffset(NamedOptions, label="gaze_offset"):
    """Adds fixed angles to the pitch and yaw of people's training targets.

    The pitch is limited to -90 to 90 degrees afterwards. A change of yaw turns the gaze direction
    about the vertical axis; at pitch p it moves the direction by about cos p times the angle.

    Args:
        pitch: angle that is added to the pitch (up), in degrees.
        yaw: angle that is added to the yaw (to the side), in degrees.
    """

    pitch: Annotated[float, Interval(ge=-90, le=90)] = 10.0
    yaw: Annotated[float, Interval(ge=-180, le=180)] = 0.0

    def apply(self, federation: Federation) -> Federation:
        """Return the federation, with the angles added to all training targets.

        Raises:
            DataError: somebody has no column `gaze`, float `[samples, 2]`, (pitch, yaw) in radians.
        """
        people = {client: self._turned(client, s) for client, s in federation.people.items()}
        text = f"training gaze off by {self.pitch:g} pitch, {self.yaw:g} yaw (degrees)"
        about = {**federation.about, "gaze_offset": f"{text}: {', '.join(people)}"}
        return replace(federation, people=people, about=about)

    def _turned(self, client: str, splits: Splits) -> Splits:
        gaze = splits.train.columns.get("gaze")
        if gaze is None or gaze.ndim != 2 or gaze.shape[1] != 2:
            raise DataError(
                f"a gaze offset needs targets 'gaze' of pitch and yaw; '{client}' has "
                f"{', '.join(splits.train.columns)}: choose another attack"
            )
        offset = torch.tensor([math.radians(self.pitch), math.radians(self.yaw)], dtype=gaze.dtype)
        turned = gaze + offset
        pitch = turned[:, 0].clamp(-math.pi / 2, math.pi / 2)
        yaw = torch.remainder(turned[:, 1] + math.pi, 2 * math.pi) - math.pi
        columns = {**splits.train.columns, "gaze": torch.stack([pitch, yaw], dim=1)}
        return replace(splits, train=replace(splits.train, columns=columns))
