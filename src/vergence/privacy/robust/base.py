"""Base of robust rules: replies in, one `Aggregate` out, and reasons for clients left out.

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
from vergence.core.naming import registry_name
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError
from vergence.privacy.robust.update_matrix import UpdateMatrix, split

Attackers = Annotated[float, Interval(ge=0, lt=0.5)]
"""Share of malicious clients; no rule promises anything where half of the clients are."""
WHOLE = (
    "compares whole updates, and clients share different entries; use median, trimmed_mean or "
    "norm_bound, or a method without masks"
)
"""Why a rule refuses masks that differ."""


@dataclass(frozen=True)
class Decision:
    """A rule's result: values to add, the number of clients behind them, and who was left out.

    Attributes:
        row: one number per entry of an update, with all trees in a row as in `UpdateMatrix.values`.
        weight: the number of clients behind the row; an array if it differs between entries.
        left_out: the reason, for each client that did not count.
    """

    row: NDArray[np.floating]
    weight: float | NDArray[np.number]
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Verdict:
    """Aggregate for the method, and the clients that did not count, each with the reason."""

    aggregate: Aggregate
    left_out: Mapping[str, str]


@dataclass(frozen=True)
class RobustRule(NamedOptions, ABC):
    """Base of robust aggregations: one subclass per module of `vergence.privacy.robust`.

    A rule replaces the weighted sum of an `aggregate` request. It reads single replies, so that
    whoever runs it sees them; under secure aggregation, only sums of groups can be judged
    (`vergence.privacy.robust.groups`). Rules ignore the weights that clients claim.

    With masks or weights per entry, a rule of single entries (`entrywise`) computes an entry's
    statistic over the clients that contribute to it. A rule that compares whole updates refuses
    clients that share different entries, whose distance would be one between masks.
    """

    entrywise: ClassVar[bool] = False
    """Whether clients may contribute to different entries."""
    rooted: ClassVar[bool] = False
    """Whether the server must bring an update of its own, made from data that it trusts."""

    @property
    def name(self) -> str:
        """Name of the rule in experiment files."""
        return registry_name(self)

    @property
    def trusted(self) -> str:
        """The person whose update replaces the server's own, for `rooted` rules; else ""."""
        return ""

    @property
    def assumes(self) -> str:
        """Condition on a round's replies without which the rule guarantees nothing, in words."""
        share = getattr(self, "attackers", 0.0)
        return f"no more than {share:.0%} of a round's replies, rounded up, come from liars"

    @abstractmethod
    def decide(
        self, votes: UpdateMatrix, stream: RandomStream, root: NDArray[np.floating] | None
    ) -> Decision:
        """Decide on the values that the server should add.

        Args:
            votes: one row per client, at least `fewest` of them.
            stream: random numbers of this round, for rules that sample.
            root: the server's own update, for `rooted` rules.
        """

    def fewest(self, clients: int) -> int:
        """Return the fewest replies that the rule needs in a cohort of this size."""
        return 1

    def check(self, cohort: int) -> None:
        """Refuse a cohort in which the rule could never decide.

        Raises:
            ConfigError: says how many clients the rule needs.
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
        """Aggregate replies that passed the checks.

        A round with too few replies adds nothing: every weight is 0, and every client is listed
        with the reason. Metrics are plain means over all replies, which a malicious client can
        shift.

        Args:
            replies: replies by client; they have different trees only if the checks allow it.
            like: trees with the shapes of the result.
            stream: random numbers of this round and request.
            root: for a `rooted` rule, the server's own update of the same trees: `like` after
                training as clients do, on data that the server holds, minus `like`.

        Raises:
            ConfigError: the rule compares whole updates and clients share different entries; or a
                root update is missing or has another shape.
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
        """Refuse a decision that cannot be added, such as one from a user's faulty rule."""
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
    """Return f, the number of clients that may be malicious: their share, rounded up."""
    # 1e-9: 0.07 * 100 is 7.000000000000001 in floating point, and must not become 8.
    return math.ceil(share * clients - 1e-9)


def empty_verdict(
    replies: Mapping[str, SealedReply], like: Mapping[str, Params], reason: str
) -> Verdict:
    """Return a verdict that adds nothing: every weight is 0, and all clients have this reason."""
    decision = Decision(np.zeros(sum(p.layout.n for p in like.values())), 0.0)
    return _verdict(decision, replies, like, dict.fromkeys(replies, reason))


def _verdict(
    decision: Decision,
    replies: Mapping[str, SealedReply],
    like: Mapping[str, Params],
    left_out: Mapping[str, str],
) -> Verdict:
    """Return a decision as a weighted sum, with the clients left out.

    The sum's weight is the number of clients behind the row, and its total divided by this weight
    is the row.
    """
    rows = split(decision.row, like)
    if isinstance(decision.weight, np.ndarray):
        weights = split(decision.weight, like)
    else:
        weights = dict.fromkeys(like, decision.weight)
    totals = {name: row * weights[name] for name, row in rows.items()}
    metrics_of: dict[str, list[float]] = {}
    for client in sorted(replies):
        for name, value in replies[client].metrics.items():
            metrics_of.setdefault(name, []).append(value)
    metrics = {name: float(np.mean(values)) for name, values in metrics_of.items()}
    count = len(replies) - len(left_out)
    return Verdict(Aggregate(totals, weights, count, metrics), left_out)
