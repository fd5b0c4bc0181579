"""What may be combined in a run: every rule in one table, looked at before anything runs.

A row names two things that do not go together, and says why. What follows from the number of
people is looked at once they are known: `jury.check`, `sums_for`, `check_privacy`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from vergence.core.method import Method
from vergence.core.splitting import Cutting, Splitting
from vergence.core.task import Task
from vergence.engines.cut import BACK
from vergence.engines.rehearsal import unprotected
from vergence.errors import ConfigError
from vergence.privacy.rule import WHOLE

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
        return type(self.method).__module__.rpartition(".")[2]

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
    "a defence at the cut": lambda s: s.plan.privacy.cut,
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
    "weights of single entries": lambda c: c.weighed,
    "several sums a round": lambda c: c.sums > 1,
    "trees that belong together": lambda c: c.trees,
    "rounds that cannot be taken apart": lambda c: c.torn,
    "no cut": lambda c: not isinstance(c.method, Cutting),
    "no client's smashed data": lambda c: not isinstance(c.method, Splitting),
    "layers that learn in another way": lambda c: (
        not isinstance(c.method, Splitting) or BACK not in (c.method.exposure["train"].down or ())
    ),
    "training samples used in other ways": lambda c: c.unprotected,
}


class Clash(NamedTuple):
    """Two things that do not go together; `why` may name what a `Case` knows."""

    one: str
    other: str
    why: str


AMONG_SETTINGS = (
    Clash("Ray", "GPUs",
          'run: engine = "ray" trains on CPUs, not on device = "{plan.device}"; leave out one of '
          "them"),
    Clash("poison", "a lossy codec",
          "poison.attack = '{attack}' replaces updates, which wire.codec has packed already; leave "
          "out wire"),
    Clash("asynchronous delivery", "all replies lost",
          "delivery: '{delivery}' waits for replies, and presence.lost = 1 loses all of them; lose "
          "fewer"),
    Clash("asynchronous delivery", "a robust rule",
          "delivery: '{delivery}' takes replies as they arrive, one by one, and privacy.robust "
          "needs those of a round side by side; leave out one of them"),
    Clash("asynchronous delivery", "poison",
          "delivery: '{delivery}' takes replies as they arrive, one by one, and poison.attack "
          "needs those of a round side by side; leave out one of them"),
    Clash("asynchronous delivery", "pruning while training",
          "delivery: '{delivery}' has no rounds that people share, by which pruning could grow; "
          "leave out pruning, and prune afterwards with `vergence prune`"),
    Clash("secure sums", "a robust rule without groups",
          "privacy.aggregation: a robust rule looks at single replies; let it judge the sums of "
          "groups of k people (privacy.aggregation.groups = k), or leave out privacy.robust"),
    Clash("sums of groups", "no robust rule",
          "privacy.aggregation: groups are for a robust rule to judge; leave out groups, or set "
          "privacy.robust"),
    Clash("sums of groups", "bytes or Ray",
          "privacy.aggregation: sums of groups are simulated only; leave out run.engine = "
          '"{plan.engine}"'),
    Clash("sums of groups", "a rule with a root",
          "privacy.aggregation: a rule that trusts a root looks at that person's single update; "
          "take another rule"),
    Clash("secure sums", "poison",
          "privacy.aggregation: whoever poisons updates looks at single replies; leave out poison"),
    Clash("secure sums", "asynchronous delivery",
          "privacy.aggregation: by '{delivery}' replies arrive one by one, and each would be a sum "
          'of its own; use delivery.name = "all"'),
    Clash("secure sums", "a quorum that is too small",
          "privacy.aggregation: delivery.replies = {plan.delivery.replies} is fewer than the "
          "{least} that a sum needs"),
    Clash("secure sums", "a lossy codec",
          'privacy.aggregation: words of a sum travel as they are, not by wire.codec = "{codec}"'),
    Clash("secure sums", "a cohort that is too small",
          "privacy.aggregation: presence.cohort = {plan.presence.cohort} is fewer than the {least} "
          "people a sum needs"),
    Clash("DP for people", "asynchronous delivery",
          "privacy.user bounds what one person adds to a round's sum, and delivery '{delivery}' "
          "weighs updates by their age; use all, quorum or deadline"),
    Clash("DP for people", "a lossy codec",
          "privacy.user: wire.codec '{codec}' may make an update longer than its bound again; "
          "leave out the codec"),
    Clash("DP for people", "a robust rule",
          "privacy.user adds noise to a plain sum of bounded updates, and privacy.robust replaces "
          "updates or their sum; use one of the two"),
    Clash("DP for people", "liars",
          "privacy.user adds noise to a plain sum of bounded updates, and poison replaces updates "
          "or their sum; use one of the two"),
    Clash("noise of a tree", "secure sums",
          "privacy.user.turns: the server adds one tree of noise to the sums of rounds, and "
          "privacy.aggregation hides it from the server; leave out one of the two"),
    Clash("a defence at the cut", "Ray",
          "privacy.cut keeps its secret and books on this machine; leave out run.engine"),
    Clash("DP-SGD", "GPUs, Ray, other precisions, stacks",
          "privacy.solver trains clients one by one, on this machine's CPUs and in fp32; leave out "
          "run.{elsewhere}"),
)  # fmt: skip
"""What a plan refuses whatever its method is."""

WITH_METHODS = (
    Clash("sums of groups", "masks that differ",
          "privacy.aggregation: replies of {name} differ in which entries they share, and groups "
          "would show whose"),
    Clash("secure sums", "pooled data",
          "privacy.aggregation: {name} collects everybody's data, and nothing is summed"),
    Clash("secure sums", "a server that sees single updates",
          "privacy.aggregation: the server of {name} looks at every single reply to '{single}'"),
    Clash("pads without DP for people", "masks that differ",
          "privacy.aggregation: replies of {name} differ in which entries they share, and under "
          "pads the server would see entries that one person shares; use privacy.aggregation = "
          '{{ name = "additive" }}'),
    Clash("DP for people", "pooled data",
          "privacy.user bounds updates, and this method collects everybody's data"),
    Clash("DP for people", "single replies or samples on their way",
          "privacy.user hides people in sums, and '{unbounded}' shows every single reply; use "
          "privacy.solver, or another method"),
    Clash("DP for people", "weights of single entries",
          "privacy.user counts everybody once, and '{weighed}' weighs every entry by itself; use "
          "another method"),
    Clash("noise of a tree", "several sums a round",
          "privacy.user.turns is one tree of noise for one sum a round, and {name} shows {sums}; "
          "leave out turns, or use another method"),
    Clash("DP-SGD", "training samples used in other ways", "{unprotected}"),
    Clash("liars", "pooled data",
          "poison.attack = '{attack}' cannot change what {name} sends: everybody's data lies in "
          "one place, and nobody sends an update; poison training data instead (gaze_offset, "
          "noisy_data)"),
    Clash("liars", "split learning",
          "poison.attack = '{attack}' cannot change what {name} sends: its clients are served "
          "batch by batch, and no update of theirs is all they did; poison training data instead "
          "(gaze_offset, noisy_data)"),
    Clash("liars", "a server that sees single replies",
          "poison.attack = '{attack}' cannot change what {name} sends: its own server looks at "
          "every single reply to '{each}', which no sum replaces; poison training data instead "
          "(gaze_offset, noisy_data)"),
    Clash("a robust rule", "pooled data",
          "privacy.robust = '{rule}' cannot judge {name}: everybody's data lies in one place, and "
          "nobody sends an update"),
    Clash("a robust rule", "split learning",
          "privacy.robust = '{rule}' cannot judge {name}: its clients are served batch by batch, "
          "and no update of theirs is all they did"),
    Clash("a robust rule", "a server that sees single replies",
          "privacy.robust = '{rule}' cannot judge {name}: its own server looks at every single "
          "reply to '{each}', which no sum replaces"),
    Clash("a robust rule", "trees that belong together",
          "privacy.robust = '{rule}' cannot judge {name}: its updates of {trees} belong together, "
          "and clients keep what the server must add up in full"),
    Clash("a rule of whole updates", "masks that differ",
          f"privacy.robust = '{{rule}}' cannot judge {{name}}: the rule {WHOLE}"),
    Clash("a range of smashed data", "no client's smashed data",
          "privacy.output_range looks at every client's smashed data, and the server of '{module}' "
          "sees none; use split, splitfed, splitfed_v2 or splitfed_u"),
    Clash("a defence at the cut", "no cut",
          "privacy.cut stands where a network is cut, and '{module}' cuts none; use split, "
          "splitfed, splitfed_v2 or splitfed_u"),
    Clash("a defence at the cut", "layers that learn in another way",
          "privacy.cut defends layers that learn from the gradient that comes back, and those of "
          "'{module}' do not; use split, splitfed, splitfed_v2 or splitfed_u"),
    Clash("a clock", "split learning",
          "{name} serves clients batch by batch, and the virtual clock knows whole turns only; "
          "leave out delivery"),
    Clash("asynchronous delivery", "rounds that cannot be taken apart",
          "{name} cannot be delivered by '{delivery}': {torn}"),
    Clash("pruning while training", "split learning",
          "{name} trains batch by batch, and only whole fits are pruned; leave out pruning, and "
          "prune afterwards with `vergence prune`"),
    Clash("GPUs, other precisions", "split learning",
          "{name} serves clients batch by batch, on the CPU and in fp32; leave out "
          "run.{elsewhere}"),
    Clash("a lossy codec", "split learning",
          "{name} serves clients batch by batch, on the CPU and in fp32; leave out wire, and set "
          "the method's `number`"),
)  # fmt: skip
"""What a plan refuses of some methods."""


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
