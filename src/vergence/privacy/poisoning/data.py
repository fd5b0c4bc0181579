"""Poisoned data: malicious clients train on gaze that is off by an angle, or on noisy pictures.

Validation and test data stay as they are, so that the tables measure the harm done to others.
Noisy pictures are those of `vergence.data.noise`, for these people alone:
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
        """Return a federation with everybody's training data changed."""
        ...


@dataclass(frozen=True)
class DataPoison(NamedOptions, label="poison"):
    """An attack on training data and the share of people who carry it out.

    Args:
        attack: name of the attack.
        change: change of a malicious client's data.
        share: share of malicious people, or 0. A larger share includes the people of a smaller one.
        seed: seed for the draw of people, the same as in attacks on updates.
    """

    attack: str
    change: Change
    share: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0

    def malicious_clients(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Return `share * clients` malicious clients, rounded up, in client order."""
        return malicious_clients(clients, self.share, self.seed)

    def apply(self, federation: Federation) -> Federation:
        """Return the federation with the malicious clients' training data changed."""
        return change_clients(
            federation, self.malicious_clients(federation.clients), self.change.apply
        )


def change_clients(
    federation: Federation, clients: Sequence[str], change: Callable[[Federation], Federation]
) -> Federation:
    """Return the federation with these people's data changed, and everybody in the same place.

    Raises:
        ConfigError: there are more than 100,000 people, made on demand.
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
    """Turns the gaze on which people train by a fixed angle: up or down, left or right.

    A new pitch is exactly `pitch` degrees away from the old direction. A new yaw turns it by `yaw`
    degrees about the vertical axis, which at pitch p moves the direction by about cos p times as
    much. Pitch stays within a quarter turn.

    Args:
        pitch: degrees up.
        yaw: degrees to the side.
    """

    pitch: Annotated[float, Interval(ge=-90, le=90)] = 10.0
    yaw: Annotated[float, Interval(ge=-180, le=180)] = 0.0

    def apply(self, federation: Federation) -> Federation:
        """Return the federation with everybody's training targets turned.

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
