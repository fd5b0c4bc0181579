"""What the words of the table of clashes mean, and the looking up before anything runs.

What follows from the number of people is looked at once they are known: `jury.check`, `sums_for`,
`check_privacy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from vergence.core.method import Method
from vergence.core.naming import called
from vergence.core.splitting import Cutting, Splitting
from vergence.core.task import Task
from vergence.engines.clashes import AMONG_SETTINGS, WITH_METHODS, Clash
from vergence.engines.cut import BACK
from vergence.engines.rehearsal import unprotected
from vergence.errors import ConfigError
from vergence.privacy.cut import NoPeekCut

if TYPE_CHECKING:
    from vergence.engines.plan import Plan


@dataclass(frozen=True)
class Settings:
    """What a plan asks for, in the words of the table."""

    plan: Plan

    @property
    def delivery(self) -> str:
        """The name of the delivery."""
        return self.plan.delivery.name

    @property
    def codec(self) -> str:
        """The name of the codec."""
        return self.plan.wire.codec

    @property
    def rule(self) -> str:
        """The name of the robust rule."""
        return "" if self.plan.privacy.robust is None else self.plan.privacy.robust.name

    @property
    def attack(self) -> str:
        """The name of the attack."""
        return "" if self.plan.poison is None else self.plan.poison.attack

    @property
    def least(self) -> int:
        """How many people a secure sum needs."""
        secrecy = self.plan.privacy.aggregation
        return 1 if secrecy is None else secrecy.min_contributors

    @property
    def elsewhere(self) -> str:
        """The key of `run` that asks for what DP-SGD and service batch by batch do not do."""
        plan = self.plan
        asked = {
            "device": plan.device not in ("auto", "cpu"),
            "precision": plan.precision != "fp32",
        }
        if plan.privacy.solver is not None:
            asked |= {"engine": plan.engine == "ray", "solver": plan.solver == "stacked"}
        return next((key for key, bad in asked.items() if bad), "")


@dataclass(frozen=True)
class Case(Settings):
    """A plan beside a method; without a `task`, what only a network tells is not looked at."""

    method: Method
    task: Task | None = None

    @property
    def name(self) -> str:
        """The method's class."""
        return type(self.method).__name__

    @property
    def module(self) -> str:
        """What an experiment calls the method."""
        return called(self.method)

    @cached_property
    def each(self) -> str:
        """The first verb whose replies the method's server sees one by one."""
        return next((v for v, e in self.method.exposure.items() if e.reveal == "each"), "")

    @cached_property
    def single(self) -> str:
        """The first verb that shows single updates.

        What a split method shows its server sample by sample is not summed with or without.
        """
        table = self.method.exposure
        summed = any(e.trees for e in table.values() if e.reveal == "aggregate")
        shown = (v for v, e in table.items() if e.reveal == "each" and not (e.raw and summed))
        return next(shown, "")

    @cached_property
    def unbounded(self) -> str:
        """The first verb that shows single replies, or what is made from single samples."""
        table = self.method.exposure.items()
        return next((verb for verb, e in table if e.reveal == "each" or e.raw), "")

    @cached_property
    def trees(self) -> str:
        """Trees that one reply holds side by side."""
        several = [e.trees for e in self.method.exposure.values() if len(e.trees) > 1]
        return " and ".join(several[0]) if several else ""

    @cached_property
    def weighed(self) -> str:
        """The first verb in which every entry has a weight of its own."""
        table = self.method.exposure.items()
        return next((verb for verb, e in table if e.trees and e.weight == "per entry"), "")

    @cached_property
    def sums(self) -> int:
        """How many sums of trees the server learns in a round."""
        return sum(1 for exposed in self.method.exposure.values() if exposed.trees)

    @cached_property
    def torn(self) -> str:
        """Why the method's rounds cannot be taken apart."""
        return "" if self.task is None else self.plan.delivery.torn(self.method, self.task)

    @cached_property
    def unprotected(self) -> str:
        """Why DP-SGD does not protect what the method sends."""
        return "" if self.task is None else unprotected(self.method, self.task)


SETTINGS: Mapping[str, Callable[[Settings], object]] = {
    "secure sums": lambda s: s.plan.privacy.aggregation,
    "pads without DP for people": lambda s: (
        s.plan.privacy.aggregation is not None
        and s.plan.privacy.aggregation.name == "pairwise"
        and s.plan.privacy.user is None
    ),
    "DP for people": lambda s: s.plan.privacy.user,
    "noise of a tree": lambda s: s.plan.privacy.user and s.plan.privacy.user.turns is not None,
    "DP-SGD": lambda s: s.plan.privacy.solver,
    "a robust rule": lambda s: s.plan.privacy.robust,
    "a robust rule without groups": lambda s: (
        s.plan.privacy.robust is not None
        and not (s.plan.privacy.aggregation and s.plan.privacy.aggregation.groups)
    ),
    "no robust rule": lambda s: s.plan.privacy.robust is None,
    "sums of groups": lambda s: s.plan.privacy.aggregation and s.plan.privacy.aggregation.groups,
    "a rule with a root": lambda s: s.plan.privacy.robust and s.plan.privacy.robust.rooted,
    "a private choice of masks": lambda s: s.plan.privacy.mask,
    "a defence at the cut": lambda s: s.plan.privacy.cut,
    "a defence that clients' layers learn": lambda s: isinstance(s.plan.privacy.cut, NoPeekCut),
    "SplitGuard": lambda s: s.plan.privacy.split_guard,
    "a range of smashed data": lambda s: s.plan.privacy.output_range,
    "a rule of whole updates": lambda s: (
        s.plan.privacy.robust is not None and not s.plan.privacy.robust.entrywise
    ),
    "poison": lambda s: s.plan.poison is not None,
    "liars": lambda s: s.plan.poison is not None and s.plan.poison.share > 0,
    "a clock": lambda s: s.plan.delivery.timed,
    "asynchronous delivery": lambda s: s.plan.delivery.asynchronous,
    "a quorum that is too small": lambda s: (
        s.delivery == "quorum" and s.plan.delivery.replies < s.least
    ),
    "a cohort that is too small": lambda s: (
        isinstance(s.plan.presence.cohort, int) and s.plan.presence.cohort < s.least
    ),
    "all replies lost": lambda s: s.plan.presence.lost == 1,
    "a lossy codec": lambda s: not s.plan.wire.lossless,
    "pruning while training": lambda s: s.plan.pruning.amount,
    "GPUs, other precisions": lambda s: s.elsewhere in ("device", "precision"),
    "GPUs, Ray, other precisions, stacks": lambda s: s.elsewhere,
    "bytes or Ray": lambda s: s.plan.engine != "simulator",
    "Ray": lambda s: s.plan.engine == "ray",
    "GPUs": lambda s: s.plan.device not in ("auto", "cpu"),
}
METHODS: Mapping[str, Callable[[Case], object]] = {
    "pooled data": lambda c: c.method.pooled,
    "split learning": lambda c: c.method.served,
    "a server that sees single replies": lambda c: c.each,
    "a server that sees single updates": lambda c: c.single,
    "single replies or samples on their way": lambda c: c.unbounded,
    "masks that differ": lambda c: any(
        e.trees and e.weight != "number" for e in c.method.exposure.values()
    ),
    "no masks that data choose": lambda c: (
        not any(e.weight == "mask" for e in c.method.exposure.values())
    ),
    "weights of single entries": lambda c: c.weighed,
    "several sums a round": lambda c: c.sums > 1,
    "trees that belong together": lambda c: c.trees,
    "rounds that cannot be taken apart": lambda c: c.torn,
    "no cut": lambda c: not isinstance(c.method, Cutting),
    "no client's smashed data": lambda c: not isinstance(c.method, Splitting),
    "layers that learn in another way": lambda c: (
        not (isinstance(c.method, Cutting) and c.method.fixed)
        and not (
            isinstance(c.method, Splitting) and BACK in (c.method.exposure["train"].down or ())
        )
    ),
    "no answers to labels": lambda c: (
        not isinstance(c.method, Splitting)
        or "labels" not in c.method.exposure["train"].trees
        or BACK not in (c.method.exposure["train"].down or ())
    ),
    "layers that never learn": lambda c: isinstance(c.method, Cutting) and c.method.fixed,
    "training samples used in other ways": lambda c: c.unprotected,
}


class Unsound(ConfigError):
    """A refusal, with the row it comes from."""

    def __init__(self, clash: Clash, asked: Settings) -> None:
        self.clash = clash
        super().__init__(clash.why.format_map(_Words(asked)))


class _Words(dict[str, object]):
    """What a sentence may name."""

    def __init__(self, asked: Settings) -> None:
        self.asked = asked

    def __missing__(self, key: str) -> object:
        return getattr(self.asked, key)


def agree(plan: Plan) -> None:
    """Refuse settings that do not go together, whatever the method.

    Raises:
        Unsound: the sentence of the first row that they break.
    """
    asked = Settings(plan)
    for clash in AMONG_SETTINGS:
        if SETTINGS[clash.one](asked) and SETTINGS[clash.other](asked):
            raise Unsound(clash, asked)


def check(plan: Plan, method: Method, task: Task | None = None) -> None:
    """Refuse a method that does not go with a plan.

    Raises:
        Unsound: the sentence of the first row that they break.
    """
    case = Case(plan, method, task)
    for clash in WITH_METHODS:
        if SETTINGS[clash.one](case) and METHODS[clash.other](case):
            raise Unsound(clash, case)
