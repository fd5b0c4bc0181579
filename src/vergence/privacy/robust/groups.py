"""Sums of groups for robust rules, where secure aggregation hides single replies.

Clients are divided at random into groups of at least k. Each group's replies are added up under
secure aggregation, and the robust rule treats every sum as one reply. The server learns one sum for
each group, so that a client's reply is hidden among at least k replies. One malicious client spoils
the sum of its group. So a rule needs more than 2 f groups for f malicious clients, whatever the
size of the groups.

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
    """Divide clients at random into as many groups of at least k as possible.

    Groups are new in every round. Secure aggregation alone does not prevent anybody from
    subtracting sums over different groups of the same people.

    Args:
        clients: names of the clients.
        k: fewest clients in a group.
        stream: random numbers of this round.

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
    """Raise an error if malicious clients could spoil half of the groups' sums.

    Args:
        clients: number of clients in a round.
        k: number of clients in a group.
        liars: number of malicious clients.

    Raises:
        ConfigError: there are fewer than 2 `liars` + 1 groups.
    """
    groups = clients // k
    if groups < 2 * liars + 1:
        raise ConfigError(
            f"{clients} clients in groups of {k} are {groups} sums, and {liars} liars may spoil as "
            f"many: a robust rule needs at least {2 * liars + 1}; take smaller groups or expect "
            "fewer liars"
        )


def as_reply(whole: Aggregate, round: int) -> SealedReply:
    """Return the sum of a group's replies as one reply, for a robust rule.

    Entries to which nobody contributed have weight 0.
    """
    trees = {}
    for name, total in whole.totals.items():
        weight = whole.weights[name]
        if isinstance(weight, Params):
            weight = weight.like(weight.flat.to(total.flat.dtype))
        trees[name] = SealedTree(total, weight)
    return SealedReply(round, trees, whole.metrics)
