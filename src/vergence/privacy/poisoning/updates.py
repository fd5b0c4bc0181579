"""Poisoned updates, which malicious clients send in place of their own.

An attack sees the replies of the clients that it controls. With `knows = "everyone"` it sees the
other clients' replies too, like the strongest attacker in the literature. It changes only values;
weights, masks and metrics stay as they are, so that no check refuses the reply. Attacks on data are
in `vergence.privacy.poisoning.data`.

Used by `engine.plan`, `engine.protections.robust_aggregation`,
`experiment.privacy.schema`, `experiment.schema` and `privacy.poisoning.data`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import scipy
from annotated_types import Gt, Interval
from numpy.typing import NDArray
from scipy.special import ndtri

from vergence.core.messages import SealedReply
from vergence.core.options import NamedOptions
from vergence.core.randomness import RandomStream
from vergence.privacy.robust.update_matrix import UpdateMatrix, rewritten

Direction = Literal["unit", "sign", "std"]


@dataclass(frozen=True)
class Poison(NamedOptions, label="poison"):
    """An attack on updates, and the fraction of people who are malicious.

    Args:
        attack: the update that a malicious client sends. For `sign_flip` it is -`factor` u, and for
            `scaling` `factor` u, where u is the client's honest update. For `alie`, `min_max` and
            `min_sum` all malicious clients send the same update, computed from many honest updates.
        share: fraction of people who are malicious. With equal seeds, the people of a smaller
            fraction are among those of a larger one.
        factor: factor of sign flip and scaling.
        direction: direction of min-max and min-sum: against the mean (`unit`), against its signs
            (`sign`), or against the standard deviations (`std`).
        knows: the updates from which the attack is computed: those of honest people (`everyone`),
            or the malicious people's own (`liars`).
        seed: seed for choosing the malicious people.
    """

    attack: Literal["sign_flip", "scaling", "alie", "min_max", "min_sum"] = "sign_flip"
    share: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    factor: Annotated[float, Gt(0)] = 1.0
    direction: Direction = "std"
    knows: Literal["everyone", "liars"] = "everyone"
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0

    def malicious_clients(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Return the malicious clients in the order of `clients`; their number is rounded up."""
        return malicious_clients(clients, self.share, self.seed)

    def apply(
        self, replies: Mapping[str, SealedReply], liars: Sequence[str]
    ) -> dict[str, SealedReply]:
        """Return the replies of a round, with poisoned replies for the malicious clients.

        If an attack is computed from many replies, an entry that is absent from a client's reply is
        replaced by the mean over the clients that have it.

        Args:
            replies: honest replies, by client.
            liars: names of the malicious clients.

        Raises:
            ConfigError: a lossy codec has already packed the replies.
        """
        senders = [client for client in liars if client in replies]
        if not senders:
            return dict(replies)
        if self.attack in ("sign_flip", "scaling"):
            by = self.factor if self.attack == "scaling" else -self.factor
            single = {client: UpdateMatrix.of({client: replies[client]}) for client in senders}
            # An infinite entry stays: the checks on replies must refuse it, not NumPy.
            with np.errstate(over="ignore"):
                poisoned = {c: by * v.values[0] for c, v in single.items() if len(v)}
        else:
            honest = [client for client in replies if client not in senders]
            known = senders if self.knows == "liars" or not honest else honest
            votes = UpdateMatrix.of({c: replies[c] for c in known})
            # Without a row nobody shares an entry, and there is nothing to imitate.
            if not len(votes):
                return dict(replies)
            poisoned = dict.fromkeys(senders, self._crafted(votes, len(replies), len(senders)))
        return {c: rewritten(r, poisoned[c]) if c in poisoned else r for c, r in replies.items()}

    def _crafted(self, votes: UpdateMatrix, everybody: int, liars: int) -> NDArray[np.floating]:
        values = filled(votes)
        if self.attack == "alie":
            return alie(values, alie_z(everybody, liars))
        find = min_max if self.attack == "min_max" else min_sum
        return find(values, towards(values, self.direction))


def malicious_clients(clients: Sequence[str], share: float, seed: int) -> tuple[str, ...]:
    """Return a random fraction `share` of the clients, rounded up, in the order of `clients`.

    With equal seeds, the clients of a smaller fraction are among those of a larger one.
    """
    ranked = sorted(clients, key=lambda c: RandomStream("poison", seed, c).number())
    liars = set(ranked[: math.ceil(share * len(ranked) - 1e-9)])
    return tuple(client for client in clients if client in liars)


def filled(votes: UpdateMatrix) -> NDArray[np.float64]:
    """Return updates `[clients, entries]`; absent entries become means over the other clients."""
    values = votes.values.astype(np.float64)
    return values if votes.present is None else np.where(votes.present, values, votes.mean())


def alie_z(clients: int, liars: int) -> float:
    """Return z_max of the attack ALIE: the largest z with enough honest supporters.

    A supporter is an honest client whose value is even further from the mean than the attack's. For
    n clients with m malicious ones, z_max is the largest z with Phi(z) < (n - m - s) / (n - m),
    where s = floor(n / 2 + 1) - m supporters are needed. It is 0 if no z > 0 has enough supporters.
    `Poison` calls this.

    Source: Baruch et al., "A little is enough", NeurIPS 2019, Algorithm 3.
    """
    supporters = math.floor(clients / 2 + 1) - liars
    share = (clients - liars - supporters) / max(clients - liars, 1)
    return float(ndtri(min(max(share, 0.5), 1 - 1e-12)))


def alie(values: NDArray[np.floating], z: float) -> NDArray[np.floating]:
    """Return the update of the attack ALIE: mean - z std of every entry, `[entries]`.

    `values` are updates `[clients, entries]`.
    """
    return values.mean(axis=0) - z * values.std(axis=0)


def towards(values: NDArray[np.floating], direction: Direction) -> NDArray[np.floating]:
    """Return the direction `[entries]` in which min-max and min-sum move the mean update.

    Args:
        values: updates `[clients, entries]`.
        direction: `unit`: the negative mean, of norm 1. `sign`: the negative signs of the mean.
            `std`: the negative standard deviations.

    Source: Shejwalkar and Houmansadr, NDSS 2021, Section IV-A.
    """
    mean = values.mean(axis=0)
    if direction == "std":
        return -values.std(axis=0)
    if direction == "sign":
        return -np.sign(mean)
    return -mean / max(float(np.linalg.norm(mean)), np.finfo(float).tiny)


def min_max(values: NDArray[np.floating], direction: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the min-max attack: mean + gamma d with the largest allowed gamma, `[entries]`.

    Its distance from every update must be at most the largest distance of two updates: max_i ||mean
    + gamma d - u_i|| <= max_ij ||u_i - u_j||. Each update u_i gives an upper bound on gamma, the
    positive root of a quadratic equation. The smallest bound is used.

    Args:
        values: updates u_i, `[clients, entries]`.
        direction: d, `[entries]`.

    Source: Shejwalkar and Houmansadr, NDSS 2021, Equation 6 (they search with halved steps).
    """
    mean = values.mean(axis=0)
    offsets, length = mean - values, float(direction @ direction)
    if not length:
        return mean
    widest = float(scipy.spatial.distance.pdist(values, "sqeuclidean").max(initial=0))
    half, rest = offsets @ direction, widest - np.einsum("ij,ij->i", offsets, offsets)
    roots = (-half + np.sqrt(half**2 + length * np.maximum(rest, 0))) / length
    return mean + max(float(roots.min()), 0.0) * direction


def min_sum(values: NDArray[np.floating], direction: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the min-sum attack: mean + gamma d with the largest allowed gamma, `[entries]`.

    The sum of its squared distances from all updates must be at most the largest such sum of an
    update: sum_i ||mean + gamma d - u_i||^2 <= max_i sum_j ||u_i - u_j||^2. The left side is
    sum_i ||mean - u_i||^2 + n gamma^2 ||d||^2.

    Args:
        values: updates u_i, `[clients, entries]`.
        direction: d, `[entries]`.

    Source: Shejwalkar and Houmansadr, NDSS 2021, Equation 7.
    """
    mean, length = values.mean(axis=0), float(direction @ direction)
    if not length:
        return mean
    distance = scipy.spatial.distance
    squared = distance.squareform(distance.pdist(values, "sqeuclidean"))
    most = float(squared.sum(axis=1).max(initial=0))
    room = max(most - float(((values - mean) ** 2).sum()), 0.0)
    return mean + math.sqrt(room / (len(values) * length)) * direction
