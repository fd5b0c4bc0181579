"""Options of the table `privacy`: protections of people that a run adds to its method.

Used in most packages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from vergence.core.messages import Reply, SealedReply
from vergence.core.options import NamedOptions, check_ranges
from vergence.errors import ConfigError
from vergence.privacy.dp.budget import Budget
from vergence.privacy.dp.mask_budget import MaskBudget
from vergence.privacy.dp.tree_aggregation import squared
from vergence.privacy.dp.user_level import UserLevel
from vergence.privacy.hooks import Protection
from vergence.privacy.robust.base import RobustRule
from vergence.privacy.secure_aggregation.masking import PadCipher
from vergence.privacy.secure_aggregation.session import FEWEST
from vergence.privacy.split.defense import SplitDefense
from vergence.privacy.split.output_range import OutputRange
from vergence.privacy.split.split_guard import SplitGuardConfig


@dataclass(frozen=True)
class SecureAggregationConfig:
    """Options of secure aggregation: the server sees the sum of replies and no single reply.

    A number above a limit is refused, never clipped.

    Args:
        name: `pairwise`: clients hide their replies under pads that cancel out; `additive`: they
            split them among `aggregators`.
        min_contributors: fewest people in a sum that is opened; where masks differ, also the fewest
            who share an entry that is opened. None: more than half of the people whose replies a
            round waits for (with `groups`, more than half of a group), and at least 3 (`among`).
            For `pairwise` with `privacy.user` it is more than half of all people, and a smaller
            number is refused (`most_of`).
        aggregators: 2 to 4 names, of different owners, for `additive`; 3 or 4 where masks differ in
            a deployment.
        range: the largest entry of an update.
        weight: the largest weight of a reply, such as a person's number of samples; a smaller limit
            leaves more bits for values that are weighted by samples.
        metric: the largest metric of a reply.
        groups: people in a group whose sum a robust rule judges; 0: all people are in one sum.
        entry_bits: 64, or 32: half is sent and hidden, which needs a smaller `range` and `weight`;
            steps above 2^-16 are refused.
        cipher: cipher with which pads are drawn, the same for all parties; `chacha20` suits
            processors without instructions for AES. The sum does not depend on the cipher.
    """

    name: Literal["pairwise", "additive"] = "pairwise"
    min_contributors: Annotated[int, Ge(FEWEST)] | None = None
    aggregators: tuple[str, ...] = ("one", "two")
    range: Annotated[float, Gt(0)] = 64.0
    weight: Annotated[float, Ge(1)] = 1e5
    metric: Annotated[float, Gt(0)] = 1e6
    groups: Annotated[int, Ge(0)] = 0
    entry_bits: Literal[32, 64] = 64
    cipher: PadCipher = "aes-256-ctr"

    def __post_init__(self) -> None:
        check_ranges(self, "privacy.aggregation")
        least, names = self.min_contributors or FEWEST, self.aggregators
        for wrong, why in (
            # An aggregator that is listed twice would hold two shares: of two, the whole reply.
            (
                not 2 <= len(set(names)) == len(names) <= 4,
                f"aggregators must be 2 to 4 different names; got {list(names)}",
            ),
            (
                0 < self.groups < least,
                f"groups of {self.groups} are smaller than the {least} (min_contributors) that a "
                "sum needs; take larger groups",
            ),
            (
                self.name == "pairwise" and names != type(self).aggregators,
                "aggregators are for 'additive'; leave them out",
            ),
        ):
            if wrong:
                raise ConfigError(f"privacy.aggregation: {why}")

    def among(self, people: int) -> SecureAggregationConfig:
        """Fill in `min_contributors`, where it is None, for sums over at most `people` people.

        With 0 people the result has the smallest number that any sum may have.
        """
        if self.min_contributors is not None:
            return self
        # More than half: no two sums of a round can then be over disjoint sets of people.
        return replace(self, min_contributors=max(FEWEST, (self.groups or people) // 2 + 1))

    def most_of(self, people: int, asked: int) -> SecureAggregationConfig:
        """Require more than half of all `people` in every sum under pairwise pads.

        A client helps to open one sum of its words. If half of the federation sufficed, two
        disjoint sets of helpers could open two sums that both contain a third person. That person
        pays for one release, and the mean of the two sums has less noise than was promised.

        Raises:
            ConfigError: `min_contributors` is smaller, or fewer people are `asked` at once.
        """
        least = max(FEWEST, people // 2 + 1) if people else FEWEST
        if (fewest := self.min_contributors) is not None and fewest < least:
            raise ConfigError(
                f"privacy.aggregation: min_contributors = {fewest} of {people} people: with "
                f"privacy.user one person would be in several sums of a round; take {least} or "
                "more, or name = 'additive'"
            )
        needed = fewest or least
        if people and asked < needed:
            raise ConfigError(
                f"privacy.aggregation: {asked} of {people} people are asked at once, and with "
                f"privacy.user a sum under pads is of at least {needed}; ask more (presence.cohort "
                "or delivery), or take name = 'additive'"
            )
        return replace(self, min_contributors=needed)

    @property
    def threshold(self) -> int:
        """Fewest people in a sum.

        Raises:
            ConfigError: the number depends on how many people there are, which is not known here.
        """
        if self.min_contributors is None:
            raise ConfigError("privacy.aggregation: how many people there are is not known here")
        return self.min_contributors


@dataclass(frozen=True)
class UserLevelConfig(Budget):
    """Bound on one person's whole update, and noise on every sum; see `UserLevel`.

    Where people are in labs (`silos`), a lab sends the sum of its people's bounded updates. The
    same noise hides a person and a whole lab, with different epsilons; `unit` says whose epsilon is
    given here.

    Args:
        clip: largest L2 norm of one person's update, over all trees.
        epsilon: budget of a run (of one seed and method); the noise follows from it.
        noise: standard deviation of the noise on a sum, as a multiple of `clip`; if `epsilon` is
            given too, a plan that would spend more than it is refused.
        delta: the delta at which epsilon is computed.
        bits: bits of the grid to which updates are rounded; sums of 2^(24 - bits) people are exact.
        turns: largest number of rounds that one person may be in. If it is given, noise is added by
            a tree over rounds (DP-FTRL), which assumes nothing about who takes part when.
        restart: rounds of such a tree, after which another begins; 0: one tree for all rounds.
        unit: whom `epsilon`, `noise` and `clip` refer to. `lab`: each lab counts once, with the
            mean of its people's bounded updates, which is no longer than `clip`.
    """

    where = "privacy.user"
    unit: Literal["person", "lab"] = "person"
    bits: Annotated[int, Interval(ge=4, le=40)] = 16
    turns: Annotated[int, Ge(1)] | None = None
    restart: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restart and self.turns is None:
            raise ConfigError("privacy.user.restart is of a tree of noise; give turns, too")

    def squared(self, rounds: int) -> int:
        """Largest sum of squares of one person in a tree of `rounds` rounds; see `tree.squared`."""
        return squared(rounds, min(self.turns or 0, rounds), self.restart)

    def level(self, noise: float = 0.0, shares: int = 1, most: int = 1) -> UserLevel:
        """Return the bound and noise that hide a person or a lab.

        The noise is drawn in `shares` shares, and a reply adds up at most `most` people.
        """
        people = most if self.unit == "person" else 1
        return UserLevel(self.clip, noise, self.bits, shares, people)

    def leaving(self, answer: Reply, inside: int = 1) -> Reply:
        """Bound a reply's trees together and drop its metrics, to which no noise is added.

        Args:
            answer: one person's reply.
            inside: number of people in that person's lab, 1 without labs.
        """
        among = inside if self.unit == "lab" else 1
        return replace(self.level().bounded(answer, among), metrics={})

    def fault(self, sealed: SealedReply, most: int = 1) -> str | None:
        """Return why a reply of at most `most` people must not count; None if it is bounded."""
        level = self.level(most=most)
        # The noise is scaled to the bound, and no robust rule need look at single replies: a longer
        # update of a malicious client would move the sum without limit. Off the grid it would end
        # the round with an error, as noise is drawn on integers.
        if level.unbounded({name: tree.total for name, tree in sealed.trees.items()}):
            each = f" for each of {level.people} people" if level.people > 1 else ""
            return f"bound: it is longer than privacy.user.clip = {self.clip:g}{each}, or off grid"
        return None


@dataclass(frozen=True)
class DpSgd(Budget):
    """Options of DP-SGD, which clips the gradient of every sample and adds noise to their sum.

    Args:
        name: `dp_sgd`.
        clip: largest L2 norm of one sample's gradient; it replaces `local.clip`.
        epsilon: budget of one client over a run (of one seed and method); each client's noise
            follows from it and from its number of samples.
        noise: standard deviation of the noise on a sum of gradients, as a multiple of `clip`; if
            `epsilon` is given too, a client stops before it spends more than it.
        delta: the delta at which epsilon is computed.
    """

    where = "privacy.solver"
    name: Literal["dp_sgd"] = "dp_sgd"

    def leaving(self, answer: Reply) -> Reply:
        """Drop the metrics of a reply, as no noise is added to them."""
        # A loss is computed from the raw samples: sent as it is, it would bypass the guarantee.
        return replace(answer, metrics={})


@dataclass(frozen=True)
class Privacy(NamedOptions):
    """All protections of a run, with one field for each; None means that the protection is off.

    Attributes:
        robust: robust rule that replaces the weighted sum of a round; None: replies are summed.
        aggregation: how replies are added up; None: whoever runs the server sees each of them.
        user: hides people in sums.
        solver: hides samples in a client's training.
        mask: hides a person in the choice of a mask.
        cut: defence at the cut of split learning.
        output_range: range in which the server of split learning expects smashed data.
        split_guard: how its clients find out whether the server listens to labels.
        own: the user's own protections, see `vergence.privacy.hooks.Protection`.
    """

    robust: RobustRule | None = None
    aggregation: SecureAggregationConfig | None = None
    user: UserLevelConfig | None = None
    solver: DpSgd | None = None
    mask: MaskBudget | None = None
    cut: SplitDefense | None = None
    output_range: OutputRange | None = None
    split_guard: SplitGuardConfig | None = None
    own: tuple[Protection, ...] = ()

    @property
    def spends(self) -> bool:
        """True if a budget is spread over a run's rounds."""
        return self.differential or self.mask is not None

    @property
    def differential(self) -> bool:
        """True if data that are sent have an epsilon guarantee, so metrics stay with clients."""
        return self.user is not None or self.solver is not None

    @property
    def bounded(self) -> bool:
        """True if every person's update is bounded and counts once, without weight or mask."""
        return self.user is not None

    @property
    def judged(self) -> str:
        """Name of the robust rule that reads single replies; "" if the server only adds them up."""
        return "" if self.robust is None else self.robust.name

    @property
    def least(self) -> int:
        """Fewest people in any secure sum; 0 if single replies are seen."""
        return 0 if self.aggregation is None else self.aggregation.among(0).threshold

    @property
    def aggregators(self) -> tuple[str, ...]:
        """Names of the aggregators that get shares of replies; empty without additive sharing."""
        policy = self.aggregation
        return () if policy is None or policy.name != "additive" else policy.aggregators

    def leaving(self, answer: Reply) -> Reply:
        """Return the part of a reply that leaves a client: bounded, without unprotected metrics."""
        # Clients do this on their own machine: a server cannot be asked to forget what it saw.
        for policy in (self.user, self.solver):
            answer = answer if policy is None else policy.leaving(answer)
        return answer
