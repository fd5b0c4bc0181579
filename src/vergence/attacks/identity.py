"""Re-identification: which of several known people masks, updates or smashed data belong to.

Masks, updates and mean smashed data are long vectors, one per person and session: the mean of all
people is subtracted, and the nearest by angle is named (`nearest`). Gaze labels are short but many:
a Gaussian is fitted to every known person, and the person under whom the labels in question are
likeliest is named (`IdentifiedSamples`). Single frames of smashed data are named by a network
(`score.Classifier`), and the frames of a session vote (`votes`). Chance is one in the people known.

Source of the question: Steil et al., "Privacy-aware eye tracking using differential privacy", ETRA
2019, for gaze; Wang et al., "Beyond inferring class representatives", INFOCOM 2019, for updates.

Used by `audit.disclosed_statistics`, `audit.identity` and `audit.updates`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.attacks.score import Rate
from vergence.errors import ConfigError

# Added to variances of gaze, in square radians: about half a degree, the noise of labels. Without
# it two labels, or labels on a line, would have a singular covariance.
RIDGE = 1e-4


def nearest(known: Tensor, asked: Tensor) -> Tensor:
    """Return the known vector nearest to every asked one by angle, int64 `[asked]`.

    Args:
        known: `[people, entries]`, one per person; masks as 0 and 1.
        asked: `[asked, entries]`, of the same layout, from another round or session.

    Raises:
        ConfigError: a side has fewer than two vectors, whose mean could be subtracted.
    """
    if min(len(known), len(asked)) < 2:
        raise ConfigError(
            "identity: at least two people's vectors are needed on both sides, got "
            f"{len(known)} known and {len(asked)} asked"
        )
    # Each side loses its own mean: a round's change to everybody would hide who is who.
    own = [
        torch.nn.functional.normalize(side.double() - side.double().mean(0), dim=1)
        for side in (known, asked)
    ]
    return (own[1] @ own[0].T).argmax(1)


def matching_rate(guesses: Tensor) -> Rate:
    """Return the rate of right guesses, where the i-th asked vector is of the i-th known person.

    Audits report it as the rate at which people are named.
    """
    return Rate(int((guesses == torch.arange(len(guesses))).sum()), len(guesses))


def votes(guesses: Tensor, session: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sessions, int64 `[sessions]`, and the person whom most of their frames name.

    Args:
        guesses: the person named for each frame, int64 `[frames]`; of equal counts the smallest
            number wins.
        session: the session of each frame, int64 `[frames]`.
    """
    known = session.unique()
    most = [torch.bincount(guesses[session == one]).argmax() for one in known]
    return known, torch.stack(most)


@dataclass(frozen=True)
class IdentifiedSamples:
    """Gaussians of known people's gaze: `mean` `[people, 2]`, covariance `spread` `[people, 2, 2]`.

    Attributes:
        mean: in radians.
        spread: in square radians.
    """

    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, gaze: list[Tensor]) -> IdentifiedSamples:
        """Return the Gaussians of known people's labels, `[samples, 2]` in radians each.

        Raises:
            ConfigError: somebody has fewer than two labels.
        """
        if min(map(len, gaze)) < 2:
            raise ConfigError("identity: at least two labels of every known person are needed")
        ridge = RIDGE * torch.eye(2, dtype=torch.float64)
        return cls(
            torch.stack([labels.double().mean(0) for labels in gaze]),
            torch.stack([labels.double().T.cov() + ridge for labels in gaze]),
        )

    def likelihood(self, gaze: Tensor) -> Tensor:
        """Return the mean log likelihood of labels `[samples, 2]` under each person, `[people]`."""
        people = torch.distributions.MultivariateNormal(self.mean, self.spread)
        return people.log_prob(gaze.double()[:, None]).mean(0)

    def named(self, gaze: Tensor) -> int:
        """Return the index of the person under whose Gaussian these labels are likeliest."""
        return int(self.likelihood(gaze).argmax())
