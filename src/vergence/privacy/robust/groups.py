"""Sums of groups for robust rules, where secure aggregation hides single replies.

Clients are dealt into groups of at least k, each group's replies are added up under secure
aggregation, and the rule takes every sum for one reply. The server learns one sum per group instead
of one in all: nobody hides among fewer than k. One liar spoils the sum of a group, so that a rule
that stands f attackers among n needs more than 2 f groups, however large they are.

Used by `engine.protections.robust_aggregation`.
"""

from __future__ import annotations

from collections.abc import Sequence

from vergence.core.aggregation import Aggregate
from vergence.core.messages import SealedReply, SealedTree
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError


def deal(clients: Sequence[str], k: int, stream: RandomStream) -> list[tuple[str, ...]]:
    """Deal clients at random into as many groups of at least k as possible.

    Groups are new in every round (`stream`). Secure aggregation alone does not prevent anybody from
    subtracting the sums of different groups of the same people.

    Raises:
        ConfigError: k is less than 2, or there are fewer than k clients.
    """
    if k < 2 or len(clients) < k:
        raise ConfigError(
            f"groups of at least {k} cannot be dealt from {len(clients)} clients; take k from 2 to "
            f"{len(clients)}"
        )
    order = stream.child("groups").numpy().permutation(len(clients)).tolist()
    shuffled = [sorted(clients)[i] for i in order]
    count = len(clients) // k
    return [tuple(shuffled[g::count]) for g in range(count)]


def check(clients: int, k: int, liars: int) -> None:
    """Refuse groups so large that malicious clients could spoil half of the groups' sums.

    Raises:
        ConfigError: says how many groups there are and how many it takes.
    """
    groups = clients // k
    if groups < 2 * liars + 1:
        raise ConfigError(
            f"{clients} clients in groups of {k} are {groups} sums, and {liars} liars may spoil as "
            f"many: a robust rule needs at least {2 * liars + 1}; take smaller groups or expect "
            "fewer liars"
        )


def as_reply(whole: Aggregate, round: int) -> SealedReply:
    """Return a group's sum as one reply: entries that nobody contributed to have weight 0.

    Robust aggregation treats it as a client's.
    """
    trees = {}
    for name, total in whole.totals.items():
        weight = whole.weights[name]
        if isinstance(weight, Params):
            weight = weight.like(weight.flat.to(total.flat.dtype))
        trees[name] = SealedTree(total, weight)
    return SealedReply(round, trees, whole.metrics)
