"""Re-identification: one of several known people as the owner of masks, updates or smashed data.

Masks, updates and mean smashed data are long vectors, one per person and session: what everybody
has in common is taken off, and the nearest by angle is named (`nearest`). Gaze labels are a few
numbers each, but many: every known person is a Gaussian, and whoever makes the asked labels
likeliest is named (`IdentifiedSamples`). Single frames of smashed data are named by a network
(`score.Recogniser`), and the frames of a session vote (`votes`). Chance is one in the people known.

Source of the question: Steil et al., "Privacy-aware eye tracking using differential privacy", ETRA
2019, for gaze; Wang et al., "Beyond inferring class representatives", INFOCOM 2019, for updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.attacks.score import Rate
from vergence.errors import ConfigError

RIDGE = 1e-4
"""Added to variances of gaze, in square radians: about half a degree, the noise of labels."""


def nearest(known: Tensor, asked: Tensor) -> Tensor:
    """Return for every asked vector which known one it is nearest to by angle, int64 `[asked]`.

    Args:
        known: `[people, entries]`, one per person; masks as 0 and 1.
        asked: `[asked, entries]`, of the same layout, from another round or session. The mean is
            taken off each side by itself: what a round did to everybody names nobody.

    Raises:
        ConfigError: fewer than two on a side, from which nothing in common can be taken off.
    """
    if min(len(known), len(asked)) < 2:
        raise ConfigError(
            f"identity: vectors of two people at least on both sides, got {len(known)} known and "
            f"{len(asked)} asked"
        )
    own = [
        torch.nn.functional.normalize(side.double() - side.double().mean(0), dim=1)
        for side in (known, asked)
    ]
    return (own[1] @ own[0].T).argmax(1)


def in_place(guesses: Tensor) -> Rate:
    """Rate at which the person asked at place i was named as the one known at place i."""
    return Rate(int((guesses == torch.arange(len(guesses))).sum()), len(guesses))


def votes(guesses: Tensor, session: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sessions, int64 `[sessions]`, and whom most of their frames name.

    Args:
        guesses: int64 `[frames]`, a name per frame; of equal counts the smallest wins.
        session: int64 `[frames]`, which session a frame is of.
    """
    known = session.unique()
    most = [torch.bincount(guesses[session == one]).argmax() for one in known]
    return known, torch.stack(most)


@dataclass(frozen=True)
class IdentifiedSamples:
    """People as Gaussians of where they look: `mean` `[people, 2]`, `spread` `[people, 2, 2]`."""

    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, gaze: list[Tensor]) -> IdentifiedSamples:
        """Return the Gaussians of known people's labels, `[samples, 2]` in radians each.

        Raises:
            ConfigError: somebody has fewer than two labels.
        """
        if min(map(len, gaze)) < 2:
            raise ConfigError("identity: two labels at least of every known person")
        ridge = RIDGE * torch.eye(2, dtype=torch.float64)
        return cls(
            torch.stack([labels.double().mean(0) for labels in gaze]),
            torch.stack([labels.double().T.cov() + ridge for labels in gaze]),
        )

    def likelihood(self, gaze: Tensor) -> Tensor:
        """Return the mean log likelihood of labels `[samples, 2]` under everybody, `[people]`."""
        each = torch.distributions.MultivariateNormal(self.mean, self.spread)
        return each.log_prob(gaze.double()[:, None]).mean(0)

    def named(self, gaze: Tensor) -> int:
        """Index of the person whose Gaussian makes these labels most likely."""
        return int(self.likelihood(gaze).argmax())
