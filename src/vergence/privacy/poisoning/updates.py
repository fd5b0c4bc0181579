"""Poisoned updates: what chosen clients send instead of what they learned.

An attack sees the replies of the clients it holds, and, if it `knows` them, everybody's: the
strongest attacker of the papers. It changes values alone: weights, masks and metrics stay, so that
the guards find nothing wrong. Attacks on data are in `vergence.privacy.poisoning.data`.
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
    """An attack on updates and the share of people who carry it out.

    Args:
        attack: `sign_flip` sends -`factor` u, `scaling` sends `factor` u (u: what was learned);
            `alie`, `min_max` and `min_sum` send one update for all liars, made from many.
        share: of the people; 0 for nobody. A larger share has the liars of a smaller one too.
        factor: of sign flip and scaling.
        direction: of min-max and min-sum: away from the mean (`unit`), from its signs (`sign`), or
            by the standard deviations (`std`).
        knows: updates the attack is made from: everybody's, or the liars' own.
        seed: of who lies.
    """

    attack: Literal["sign_flip", "scaling", "alie", "min_max", "min_sum"] = "sign_flip"
    share: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    factor: Annotated[float, Gt(0)] = 1.0
    direction: Direction = "std"
    knows: Literal["everyone", "liars"] = "everyone"
    seed: Annotated[int, Interval(ge=0, le=2**32 - 1)] = 0

    def chosen(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Return the liars, `share * clients` of them rounded up, in client order."""
        return chosen(clients, self.share, self.seed)

    def apply(
        self, replies: Mapping[str, SealedReply], liars: Sequence[str]
    ) -> dict[str, SealedReply]:
        """Return the round's replies with those of the liars replaced.

        An entry that somebody does not share counts as the mean of those who do, in everything
        that is computed from many replies.

        Raises:
            ConfigError: a lossy codec packed the replies already.
        """
        held = [client for client in liars if client in replies]
        if not held:
            return dict(replies)
        if self.attack in ("sign_flip", "scaling"):
            by = self.factor if self.attack == "scaling" else -self.factor
            one = {client: UpdateMatrix.of({client: replies[client]}) for client in held}
            with np.errstate(over="ignore"):  # infinity is for the guards to refuse
                told = {c: by * v.values[0] for c, v in one.items() if len(v)}
        else:
            honest = [client for client in replies if client not in held]
            known = held if self.knows == "liars" or not honest else honest
            votes = UpdateMatrix.of({c: replies[c] for c in known})
            if not len(votes):  # nobody shares anything
                return dict(replies)
            told = dict.fromkeys(held, self._crafted(votes, len(replies), len(held)))
        return {c: rewritten(r, told[c]) if c in told else r for c, r in replies.items()}

    def _crafted(self, votes: UpdateMatrix, everybody: int, liars: int) -> NDArray[np.floating]:
        values = filled(votes)
        if self.attack == "alie":
            return alie(values, alie_z(everybody, liars))
        find = min_max if self.attack == "min_max" else min_sum
        return find(values, towards(values, self.direction))


def chosen(clients: Sequence[str], share: float, seed: int) -> tuple[str, ...]:
    """Return `share * clients` clients rounded up, in client order; more hold those of fewer."""
    ranked = sorted(clients, key=lambda c: RandomStream("poison", seed, c).number())
    liars = set(ranked[: math.ceil(share * len(ranked) - 1e-9)])
    return tuple(client for client in clients if client in liars)


def filled(votes: UpdateMatrix) -> NDArray[np.float64]:
    """Return the rows as numbers, entries that a client does not share as the others' mean."""
    values = votes.values.astype(np.float64)
    return values if votes.present is None else np.where(votes.present, values, votes.mean())


def alie_z(clients: int, liars: int) -> float:
    """Return z_max: so many honest updates lie further out than mean - z std that liars pass.

    z_max = max z with Phi(z) < (n - m - s) / (n - m), s = floor(n / 2 + 1) - m; 0 where no z > 0
    has so many honest supporters.

    Source: Baruch et al., "A little is enough", NeurIPS 2019, Algorithm 3.
    """
    supporters = math.floor(clients / 2 + 1) - liars
    share = (clients - liars - supporters) / max(clients - liars, 1)
    return float(ndtri(min(max(share, 0.5), 1 - 1e-12)))


def alie(values: NDArray[np.floating], z: float) -> NDArray[np.floating]:
    """Return mean - z std of every entry, over `[clients, entries]`: a little is enough."""
    return values.mean(axis=0) - z * values.std(axis=0)


def towards(values: NDArray[np.floating], direction: Direction) -> NDArray[np.floating]:
    """Return the perturbation that min-max and min-sum take as far as they can.

    Source: Shejwalkar and Houmansadr, NDSS 2021, Section IV-A.
    """
    mean = values.mean(axis=0)
    if direction == "std":
        return -values.std(axis=0)
    if direction == "sign":
        return -np.sign(mean)
    return -mean / max(float(np.linalg.norm(mean)), np.finfo(float).tiny)


def min_max(values: NDArray[np.floating], way: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return mean + gamma `way`, as far as no update is further from it than two are apart.

    max_i ||mean + gamma way - u_i|| <= max_ij ||u_i - u_j||. Every i bounds gamma by the positive
    root of a quadratic equation, and holds for all smaller gamma: the least root is the answer.

    Source: Shejwalkar and Houmansadr, NDSS 2021, Equation 6 (their search halves steps).
    """
    mean = values.mean(axis=0)
    apart, length = mean - values, float(way @ way)
    if not length:
        return mean
    widest = float(scipy.spatial.distance.pdist(values, "sqeuclidean").max(initial=0))
    half, rest = apart @ way, widest - np.einsum("ij,ij->i", apart, apart)
    roots = (-half + np.sqrt(half**2 + length * np.maximum(rest, 0))) / length
    return mean + max(float(roots.min()), 0.0) * way


def min_sum(values: NDArray[np.floating], way: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return mean + gamma `way`, as far as its squared distances sum to no more than an update's.

    sum_i ||mean + gamma way - u_i||^2 = sum_i ||mean - u_i||^2 + n gamma^2 ||way||^2, which may
    reach max_i sum_j ||u_i - u_j||^2.

    Source: Shejwalkar and Houmansadr, NDSS 2021, Equation 7.
    """
    mean, length = values.mean(axis=0), float(way @ way)
    if not length:
        return mean
    distance = scipy.spatial.distance
    apart = distance.squareform(distance.pdist(values, "sqeuclidean"))
    most = float(apart.sum(axis=1).max(initial=0))
    room = max(most - float(((values - mean) ** 2).sum()), 0.0)
    return mean + math.sqrt(room / (len(values) * length)) * way
