"""Base of robust rules, which combine clients' replies into one aggregate and leave some out.

Used in `engine`, `experiment` and `privacy`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from vergence.core.aggregation import Aggregate
from vergence.core.messages import SealedReply
from vergence.core.naming import by_key, registry_name
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError
from vergence.privacy.robust.update_matrix import UpdateMatrix, split

Attackers = Annotated[float, Interval(ge=0, lt=0.5)]
"""Fraction of malicious clients; no rule gives a guarantee if half of the clients are malicious."""
WHOLE = (
    "compares whole updates, and clients share different entries; use median, trimmed_mean or "
    "norm_bound, or a method without masks"
)
"""Why a rule refuses masks that differ."""


@dataclass(frozen=True)
class Decision:
    """Result of a robust rule: one update, made from the clients' updates.

    Attributes:
        row: the update `[entries]`, with all trees one after the other as in
            `UpdateMatrix.values`.
        weight: number of clients from which the update was made; an array `[entries]` if the number
            differs between entries.
        left_out: clients whose updates were not used, each with the reason.
    """

    row: NDArray[np.floating]
    weight: float | NDArray[np.number]
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Verdict:
    """The aggregate for the method, and the clients that were left out.

    Attributes:
        aggregate: the combined replies.
        left_out: clients whose replies were not used, each with the reason.
    """

    aggregate: Aggregate
    left_out: Mapping[str, str]


@dataclass(frozen=True)
class RobustRule(NamedOptions, ABC):
    """Base of robust aggregations: one subclass per module of `vergence.privacy.robust`.

    A rule replaces the weighted sum of clients' replies. It compares single replies, so that
    whoever runs the rule sees them. Under secure aggregation it can only compare the sums of groups
    of clients (`vergence.privacy.robust.groups`). Rules ignore the weights that clients claim.

    With masks or weights per entry, clients may contribute to different entries. A rule that treats
    each entry alone (`entrywise`) then computes an entry from the clients that contribute to it. A
    rule that compares whole updates raises an error: a distance of two updates would mostly be a
    distance of their masks.
    """

    entrywise: ClassVar[bool] = False
    """Whether the rule treats each entry alone, so that clients may share different entries."""
    rooted: ClassVar[bool] = False
    """Whether the rule needs the server's own update, made from data that the server trusts."""

    @property
    def name(self) -> str:
        """Name of the rule in experiment files."""
        return registry_name(self)

    @property
    def trusted(self) -> str:
        """Name of the person whose update a `rooted` rule takes as the server's own; else ""."""
        return ""

    @property
    def assumes(self) -> str:
        """Condition under which the rule gives a guarantee, in words."""
        share = getattr(self, "attackers", 0.0)
        return f"no more than {share:.0%} of a round's replies, rounded up, come from liars"

    @abstractmethod
    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Return the update that the server adds to its model; `combine` calls this.

        Args:
            votes: the clients' updates, one row per client, at least `fewest` rows.
            stream: random numbers of this round, for rules that sample.
            root: the server's own update `[entries]` for `rooted` rules, else None.
        """

    def fewest(self, clients: int) -> int:
        """Return the fewest replies that the rule needs if a round has `clients` clients."""
        return 1

    def check(self, cohort: int) -> None:
        """Raise an error if a round asks too few clients for this rule.

        Args:
            cohort: number of clients that a round asks.

        Raises:
            ConfigError: the rule needs more clients; the error says how many.
        """
        need = self.fewest(cohort)
        if cohort < need:
            raise ConfigError(
                f"privacy.robust = '{self.name}' needs {need} replies of a cohort of {cohort}: ask "
                "more clients, or expect fewer attackers"
            )

    def combine(
        self,
        replies: Mapping[str, SealedReply],
        like: Mapping[str, Params],
        stream: RandomStream,
        root: Mapping[str, Params] | None = None,
    ) -> Verdict:
        """Combine a round's replies into one aggregate by this rule.

        If there are too few replies, every weight of the aggregate is 0, and all clients are left
        out. Metrics are plain means over all replies, which a malicious client can shift.

        Args:
            replies: replies that passed the checks, by client.
            like: trees with the names and shapes of the result.
            stream: random numbers of this round and request.
            root: the server's own update of the trees in `like`, for a `rooted` rule: the change of
                the model by a training on data that the server trusts.

        Raises:
            ConfigError: the rule compares whole updates and clients share different entries; or
                `root` is missing or has another shape; or a user's rule returns invalid values.
        """
        votes = UpdateMatrix.of(replies)
        # An absent entry is 0 in `values`, so that a distance would compare masks: an attacker who
        # takes somebody's mask would seem nearer to that client than honest clients do.
        if not self.entrywise and not votes.same_support:
            raise ConfigError(f"privacy.robust = '{self.name}' {WHOLE}")
        need = self.fewest(len(votes))
        if len(votes) < need:
            reason = f"too few: {self.name} needs {need} replies, {len(votes)} came"
            # With fewer replies the rule promises nothing, and attackers could decide the step.
            return empty_verdict(replies, like, reason)
        decision = self.decide(votes, stream, self._root(root, like))
        self._check_decision(decision, votes.entries)
        return _verdict(decision, replies, like, decision.left_out)

    def _check_decision(self, decision: object, entries: int) -> None:
        """Raise an error if a rule's result has a wrong type or shape, or is not finite."""
        if not isinstance(decision, Decision):
            raise ConfigError(
                f"privacy.robust = '{self.name}': decide() must return Decision(row, weight), got "
                f"{type(decision).__name__}"
            )
        if np.shape(decision.row) != (entries,):
            raise ConfigError(
                f"privacy.robust = '{self.name}': decide() must return a row of {entries} numbers, "
                f"one per entry of an update, got shape {np.shape(decision.row)}"
            )
        for what in ("row", "weight"):
            numbers = np.asarray(getattr(decision, what))
            real = np.issubdtype(numbers.dtype, np.number)
            wrong = int((~np.isfinite(numbers)).sum()) if real else numbers.size
            if wrong:
                raise ConfigError(
                    f"privacy.robust = '{self.name}': decide() returned a {what} of which {wrong} "
                    f"of {numbers.size} are NaN, infinite or no number, of updates that are all "
                    "finite; look in decide() for a division by 0 or a power that overflows"
                )

    def _root(
        self, root: Mapping[str, Params] | None, like: Mapping[str, Params]
    ) -> NDArray[np.floating] | None:
        if not self.rooted:
            return None
        if root is None or any(n not in root or root[n].layout != like[n].layout for n in like):
            raise ConfigError(
                f"privacy.robust = '{self.name}' needs the server's own update of {sorted(like)}, "
                "from data that it trusts; name such data, or use a rule that needs none"
            )
        return np.concatenate([root[n].flat.numpy() for n in sorted(like)])


def attackers(share: float, clients: int) -> int:
    """Return f, the number of clients that may be malicious: `share * clients`, rounded up."""
    # 1e-9: 0.07 * 100 is 7.000000000000001 in floating point, and must not become 8.
    return math.ceil(share * clients - 1e-9)


def empty_verdict(
    replies: Mapping[str, SealedReply], like: Mapping[str, Params], reason: str
) -> Verdict:
    """Return a verdict that leaves out all clients for this reason; every weight is 0.

    `like` has trees with the names and shapes of the result.
    """
    decision = Decision(np.zeros(sum(p.layout.n for p in like.values())), 0.0)
    return _verdict(decision, replies, like, dict.fromkeys(replies, reason))


def _verdict(
    decision: Decision,
    replies: Mapping[str, SealedReply],
    like: Mapping[str, Params],
    left_out: Mapping[str, str],
) -> Verdict:
    """Return a rule's decision as an aggregate, with the clients that were left out.

    The aggregate's weight is the number of clients behind the decision's row. Its total is the row
    times this weight.
    """
    rows = split(decision.row, like)
    weight = decision.weight
    weights = split(weight, like) if isinstance(weight, np.ndarray) else dict.fromkeys(like, weight)
    totals = {name: row * weights[name] for name, row in rows.items()}
    metrics_of = by_key(pair for who in sorted(replies) for pair in replies[who].metrics.items())
    metrics = {name: float(np.mean(values)) for name, values in metrics_of.items()}
    count = len(replies) - len(left_out)
    return Verdict(Aggregate(totals, weights, count, metrics), left_out)
