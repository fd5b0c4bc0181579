"""Options of the table `privacy`: protections of people that a run adds to its method.

Used in most packages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from vergence.core.messages import Reply, SealedReply
from vergence.core.options import NamedOptions, check_ranges
from vergence.core.tags import LATER
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
        name: `pairwise`: clients hide their replies under pads that cancel out in the sum.
            `additive`: each client splits its reply into shares, one for each of `aggregators`.
        min_contributors: fewest people in a sum that is opened. If clients' masks differ, also the
            fewest people who must share an entry before it is opened. None: more than half of the
            people whose replies a round waits for, and at least 3; with `groups`, more than half of
            a group (`among`). With `pairwise` and `privacy.user` it is always more than half of all
            people, and a smaller number is refused (`most_of`).
        aggregators: 2 to 4 names of aggregators, which belong to different owners; only for
            `additive`. A deployment in which masks differ needs 3 or 4.
        range: the largest absolute value of an entry of an update.
        weight: the largest weight of a reply, such as a person's number of samples; a smaller limit
            leaves more bits for values that are weighted by samples.
        metric: the largest absolute value of a metric.
        groups: number of people in a group; a robust rule compares the sums of the groups. 0: all
            people are in one sum.
        entry_bits: bits of an entry: 64, or 32, which halves the traffic and needs a smaller
            `range` and `weight`. A rounding step above 2^-16 is refused.
        cipher: cipher that generates the pads, the same for all parties; `chacha20` suits
            processors without instructions for AES. The sum does not depend on the cipher.
        colluders: largest number of people who may collude with a server that lies. With it each
            client has pads with some dozens of neighbours in place of everybody, which is cheaper
            from about fifty people on; only for `pairwise`. None: pads with everybody.
        dropouts: with `colluders`, the share of people who may vanish during a sum. If more do, it
            may not be opened; nothing is revealed.
        clients: largest number of clients that a deployment may grow to (`vergence deploy add`).
            Replies are encoded for sums of so many, and `min_contributors = None` is more than half
            of them. None: no client comes later.
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
    colluders: Annotated[int, Ge(1)] | None = field(default=None, metadata={LATER: True})
    dropouts: Annotated[float, Interval(ge=0, lt=1 / 3)] = field(
        default=0.05, metadata={LATER: True}
    )
    clients: Annotated[int, Ge(FEWEST)] | None = field(default=None, metadata={LATER: True})

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
            (
                self.colluders is not None and self.name != "pairwise",
                "colluders are for 'pairwise', where pads are shared with neighbours; leave it out",
            ),
        ):
            if wrong:
                raise ConfigError(f"privacy.aggregation: {why}")

    def among(self, people: int) -> SecureAggregationConfig:
        """Return these options with a number in place of `min_contributors = None`.

        The number is more than half of `people`, or of a group, and at least 3. If
        `min_contributors` is a number already, the options are unchanged.

        Args:
            people: largest number of people in a sum; 0 gives the smallest number that any sum may
                have.
        """
        if self.min_contributors is not None:
            return self
        # More than half: no two sums of a round can then be over disjoint sets of people.
        return replace(self, min_contributors=max(FEWEST, (self.groups or people) // 2 + 1))

    def most_of(self, people: int, asked: int) -> SecureAggregationConfig:
        """Return these options with more than half of all people as `min_contributors`.

        Runs with pairwise pads and `privacy.user` need this. A client helps to open only one sum.
        If half of the people were enough, two disjoint sets of clients could open two sums that
        both contain the reply of another person. This person's budget is charged for one sum, and
        the mean of two sums has less noise than was promised.

        Args:
            people: number of people in the federation; 0: not known here.
            asked: number of people whom the server asks at once.

        Raises:
            ConfigError: `min_contributors` is at most half of all people, or `asked` is below the
                returned number.
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
        """Fewest people in a sum: `min_contributors`.

        Raises:
            ConfigError: `min_contributors` is None; `among` or `most_of` returns options in which
                it is a number.
        """
        if self.min_contributors is None:
            raise ConfigError("privacy.aggregation: how many people there are is not known here")
        return self.min_contributors


@dataclass(frozen=True)
class UserLevelConfig(Budget):
    """Bound on one person's whole update, and noise on every sum; see `UserLevel`.

    If each client is a lab with many people inside (`silos`), a lab sends the sum of its people's
    bounded updates. The noise then hides both a person and a whole lab, with an epsilon for each.
    `unit` says which of the two epsilons is given here.

    Args:
        clip: largest L2 norm of one person's update, over all its parameter trees.
        epsilon: budget of a run (of one seed and method); the noise follows from it.
        noise: standard deviation of the noise on a sum, as a multiple of `clip`; if `epsilon` is
            given too, a run that would spend more than `epsilon` is refused.
        delta: the delta at which epsilon is computed.
        bits: bits of the grid to which updates are rounded. In float32, sums of up to
            2^(24 - bits) people are exact.
        turns: largest number of rounds that one person may take part in. If it is given, noise is
            added by tree aggregation over rounds (DP-FTRL). This makes no assumption about who
            takes part in which round.
        restart: number of rounds after which a new tree begins; 0: one tree for all rounds.
        unit: the unit that `epsilon`, `noise` and `clip` refer to: `person` or `lab`. With `lab`
            each lab counts once: it sends the mean of its people's bounded updates, whose norm is
            at most `clip`.
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
        """Return the squared sensitivity to one person of a tree over `rounds` rounds.

        The unit is `clip` squared; see `vergence.privacy.dp.tree_aggregation.squared`.
        """
        return squared(rounds, min(self.turns or 0, rounds), self.restart)

    def level(self, noise: float = 0.0, shares: int = 1, most: int = 1) -> UserLevel:
        """Return the bound and noise that hide a person or a lab.

        Args:
            noise: standard deviation of the noise on a sum, as a multiple of `clip`.
            shares: number of clients that each draw a share of the noise.
            most: largest number of people whose updates a reply adds up; unused if the unit is a
                lab.
        """
        people = most if self.unit == "person" else 1
        return UserLevel(self.clip, noise, self.bits, shares, people)

    def leaving(self, answer: Reply, inside: int = 1) -> Reply:
        """Return a reply without metrics, whose update is clipped over all its parameter trees.

        Metrics are dropped because no noise is added to them.

        Args:
            answer: one person's reply.
            inside: number of people in that person's lab, 1 without labs.
        """
        among = inside if self.unit == "lab" else 1
        return replace(self.level().bounded(answer, among), metrics={})

    def fault(self, sealed: SealedReply, most: int = 1) -> str | None:
        """Return why a client's reply must not count; None if it is clipped and rounded correctly.

        Args:
            sealed: the reply; it adds up the updates of at most `most` people.
            most: number of people in a lab, 1 without labs.
        """
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
            `epsilon` is given too, a client stops before it spends more than `epsilon`.
        delta: the delta at which epsilon is computed.
        halves: of a network that is cut for split learning: `both` halves get noise, or the
            `client` half alone, as in the SplitFed thesis, section 3.3.2. The latter promises
            nothing, because the server's half is trained without noise.
    """

    where = "privacy.solver"
    name: Literal["dp_sgd"] = "dp_sgd"
    halves: Literal["both", "client"] = field(default="both", metadata={LATER: True})

    def leaving(self, answer: Reply) -> Reply:
        """Return a reply without its metrics, because no noise is added to metrics."""
        # A loss is computed from the raw samples: sent as it is, it would bypass the guarantee.
        return replace(answer, metrics={})


HIDING = ("aggregation", "user", "solver", "mask", "cut", "output_range", "split_guard")
"""Protections that hide single people, whose scores by round are then not written."""


@dataclass(frozen=True)
class Privacy(NamedOptions):
    """All protections of a run, with one field for each; None means that the protection is off.

    Attributes:
        robust: robust rule that replaces the weighted sum of a round; None: replies are summed.
        aggregation: secure aggregation of replies; None: whoever runs the server sees each reply.
        user: clipping and noise that hide a person, or a lab, in sums of replies.
        solver: DP-SGD, which hides single samples in a client's training.
        mask: privacy budget for choosing a client's mask, which hides the client's data.
        cut: defence of the smashed data (the front's activations) at the cut of split learning.
        output_range: the server of split learning refuses smashed data outside of this range.
        split_guard: test by which a client of split learning notices a server that ignores labels.
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
    def hiding(self) -> tuple[str, ...]:
        """Names of the protections of this run that hide single people."""
        return tuple(name for name in HIDING if getattr(self, name) is not None)

    @property
    def spends(self) -> bool:
        """True if the run spends epsilon: `user`, `solver` or `mask` is set."""
        return self.differential or self.mask is not None

    @property
    def differential(self) -> bool:
        """True if updates have an epsilon guarantee: `user` or `solver` is set.

        Then no metrics are sent.
        """
        return self.user is not None or self.solver is not None

    @property
    def bounded(self) -> bool:
        """True if every person's update is clipped and sent with weight 1 and without a mask."""
        return self.user is not None

    @property
    def judged(self) -> str:
        """Name of the robust rule that compares replies; "" if the server only adds replies up."""
        return "" if self.robust is None else self.robust.name

    @property
    def least(self) -> int:
        """Fewest people in any secure sum; 0 without secure aggregation."""
        return 0 if self.aggregation is None else self.aggregation.among(0).threshold

    @property
    def aggregators(self) -> tuple[str, ...]:
        """Names of the aggregators that get shares of replies; empty without additive sharing."""
        policy = self.aggregation
        return () if policy is None or policy.name != "additive" else policy.aggregators

    def leaving(self, answer: Reply) -> Reply:
        """Return a reply as it leaves the client.

        With `user` it is clipped; with `user` or `solver` it has no metrics.
        """
        # Clients do this on their own machine: a server cannot be asked to forget what it saw.
        for policy in (self.user, self.solver):
            answer = answer if policy is None else policy.leaving(answer)
        return answer
