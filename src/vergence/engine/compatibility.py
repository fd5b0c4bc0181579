"""Table of what may not be combined in a run, with the reason for every rule.

A row names two things that do not go together, and says why. Below the rows, `SETTINGS` says when a
plan has such a thing; `METHODS` in `compatibility_check` says it for methods.

Used by `deployment.flower_app`, `engine.compatibility_check`, `engine.plan` and
`reports.compatibility_matrix`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vergence.engine.plan import Plan
from vergence.errors import ConfigError, nearest
from vergence.privacy.hooks import Protection
from vergence.privacy.robust.base import WHOLE
from vergence.privacy.split.defense import NoPeekCut


class Incompatibility(NamedTuple):
    """Two things that cannot be combined.

    Attributes:
        one: name of a setting, a key of `SETTINGS`.
        other: name of another setting; or name of a property that some learning methods have.
        why: the message, in which `{...}` may name attributes of `CheckedSettings`.
    """

    one: str
    other: str
    why: str


AMONG_SETTINGS = (
    Incompatibility(
        "Ray",
        "GPUs",
        'run: engine = "ray" trains on CPUs, not on device = "{plan.device}"; leave out one of '
        "them",
    ),
    Incompatibility(
        "a defence at the cut",
        "GPUs",
        "privacy.cut constrains the clients' layers on the CPU, not on device = "
        '"{plan.device}"; leave out one of them',
    ),
    Incompatibility(
        "poison",
        "a lossy codec",
        "poison.attack = '{attack}' replaces updates, which wire.codec has packed already; leave "
        "out wire",
    ),
    Incompatibility(
        "asynchronous delivery",
        "all replies lost",
        "delivery: '{delivery}' waits for replies, and presence.lost = 1 loses all of them; lose "
        "fewer",
    ),
    Incompatibility(
        "asynchronous delivery",
        "a robust rule",
        "delivery: '{delivery}' takes replies as they arrive, one by one, and privacy.robust "
        "needs those of a round side by side; leave out one of them",
    ),
    Incompatibility(
        "asynchronous delivery",
        "poison",
        "delivery: '{delivery}' takes replies as they arrive, one by one, and poison.attack "
        "needs those of a round side by side; leave out one of them",
    ),
    Incompatibility(
        "asynchronous delivery",
        "pruning while training",
        "delivery: '{delivery}' has no rounds that people share, by which pruning could grow; "
        "leave out pruning, and prune afterwards with `vergence model prune`",
    ),
    Incompatibility(
        "early stopping",
        "a protection with a budget",
        "early_stopping: the round after which a run ends would tell of people's validation "
        "samples, and no budget of [privacy] pays for that; leave it out, and choose run.rounds "
        "beforehand",
    ),
    Incompatibility(
        "early stopping",
        "secure sums",
        "early_stopping: it reads the score of each client, and secure sums are to hide what "
        "single clients have; leave it out, and choose run.rounds beforehand",
    ),
    Incompatibility(
        "early stopping that goes back",
        "pruning while training",
        "early_stopping: the best evaluation may be of models that are not pruned yet; set "
        "early_stopping.restore_best = false, or leave it out and choose run.rounds",
    ),
    Incompatibility(
        "secure sums",
        "a robust rule without groups",
        "privacy.aggregation: a robust rule looks at single replies; let it judge the sums of "
        "groups of k people (privacy.aggregation.groups = k), or leave out privacy.robust",
    ),
    Incompatibility(
        "sums of groups",
        "no robust rule",
        "privacy.aggregation: groups are for a robust rule to judge; leave out groups, or set "
        "privacy.robust",
    ),
    Incompatibility(
        "sums of groups",
        "bytes or Ray",
        "privacy.aggregation: sums of groups are simulated only; leave out run.engine = "
        '"{plan.engine}"',
    ),
    Incompatibility(
        "sums of groups",
        "a rule with a root",
        "privacy.aggregation: a rule that trusts a root looks at that person's single update; "
        "take another rule",
    ),
    Incompatibility(
        "secure sums",
        "poison",
        "privacy.aggregation: whoever poisons updates looks at single replies; leave out poison",
    ),
    Incompatibility(
        "secure sums",
        "asynchronous delivery",
        "privacy.aggregation: by '{delivery}' replies arrive one by one, and each would be a sum "
        'of its own; use delivery.name = "all"',
    ),
    Incompatibility(
        "secure sums",
        "a quorum that is too small",
        "privacy.aggregation: delivery.replies = {plan.delivery.replies} is fewer than the "
        "{least} that a sum needs",
    ),
    Incompatibility(
        "secure sums",
        "a lossy codec",
        'privacy.aggregation: words of a sum travel as they are, not by wire.codec = "{codec}"',
    ),
    Incompatibility(
        "secure sums",
        "a cohort that is too small",
        "privacy.aggregation: presence.cohort = {plan.presence.cohort} is fewer than the {least} "
        "people a sum needs",
    ),
    Incompatibility(
        "sums with room for more clients",
        "DP for people",
        "privacy.aggregation.clients: the noise of privacy.user is made for the clients of the "
        "start; leave out one of the two",
    ),
    Incompatibility(
        "DP for labs",
        "nobody in labs",
        "privacy.user.unit = 'lab' hides labs, and no silos say who is in one; add silos, or leave "
        "out unit",
    ),
    Incompatibility(
        "people in labs",
        "a lossy codec",
        'silos: a lab adds up replies as they are, and wire.codec = "{codec}" is of single ones; '
        "leave out wire",
    ),
    Incompatibility(
        "people in labs",
        "Ray, stacks",
        "silos: the people of a lab are trained one after the other, on this machine; leave out "
        "run.{together}",
    ),
    Incompatibility(
        "people in labs",
        "asynchronous delivery",
        "silos: by '{delivery}' replies count by their age, one by one, and a lab's is a sum; use "
        "all, quorum or deadline",
    ),
    Incompatibility(
        "people in labs",
        "a robust rule",
        "silos: privacy.robust compares replies of single people, and those of labs are sums over "
        "many or few; leave out one of them",
    ),
    Incompatibility(
        "people in labs",
        "poison",
        "silos: poison.attack = '{attack}' replaces single people's replies, which a lab adds up; "
        "poison training data instead (gaze_offset, noisy_data)",
    ),
    Incompatibility(
        "DP for people",
        "asynchronous delivery",
        "privacy.user bounds what one person adds to a round's sum, and delivery '{delivery}' "
        "weighs updates by their age; use all, quorum or deadline",
    ),
    Incompatibility(
        "DP for people",
        "a lossy codec",
        "privacy.user: wire.codec '{codec}' may make an update longer than its bound again; "
        "leave out the codec",
    ),
    Incompatibility(
        "DP for people",
        "a robust rule",
        "privacy.user adds noise to a plain sum of bounded updates, and privacy.robust replaces "
        "updates or their sum; use one of the two",
    ),
    Incompatibility(
        "DP for people",
        "liars",
        "privacy.user adds noise to a plain sum of bounded updates, and poison replaces updates "
        "or their sum; use one of the two",
    ),
    Incompatibility(
        "noise of a tree",
        "secure sums",
        "privacy.user.turns: the server adds one tree of noise to the sums of rounds, and "
        "privacy.aggregation hides it from the server; leave out one of the two",
    ),
    Incompatibility(
        "a defence at the cut",
        "Ray",
        "privacy.cut keeps its secret and books on this machine; leave out run.engine",
    ),
    Incompatibility(
        "SplitGuard",
        "Ray",
        "privacy.split_guard keeps its secret and books on this machine; leave out run.engine",
    ),
    Incompatibility(
        "a private choice of masks",
        "Ray",
        "privacy.mask keeps its secret and books on this machine; leave out run.engine",
    ),
    Incompatibility(
        "a private choice of masks",
        "DP for people",
        "privacy.mask hides a person in the choice of a mask, and under privacy.user masks stay "
        "at home, where nobody sees them; leave out privacy.mask",
    ),
    Incompatibility(
        "a protection of one's own",
        "Ray",
        "privacy.own is known on this machine alone; leave out run.engine",
    ),
    Incompatibility(
        "DP-SGD",
        "Ray, other precisions, stacks",
        "privacy.solver trains clients one by one, on this machine and in fp32; leave out "
        "run.{elsewhere}",
    ),
    Incompatibility(
        "DP-SGD",
        "a defence that clients' layers learn",
        "privacy.solver bounds what each sample adds, and privacy.cut = 'nopeek' is a term of a "
        "whole batch; use bottleneck or pixel_dp",
    ),
    Incompatibility(
        "DP-SGD",
        "SplitGuard",
        "privacy.solver bounds what each sample adds, and privacy.split_guard moves the labels of "
        "a batch by their spread; leave out one of them",
    ),
    Incompatibility(
        "DP-SGD",
        "a range of smashed data",
        "privacy.solver hides samples, and privacy.output_range silences a client for what one of "
        "them gives; leave out one of them",
    ),
    Incompatibility(
        "secure sums",
        "a stock Flower app",
        "privacy.aggregation: clients believe each other by keys that `vergence deploy init` hands "
        "out, and a Flower app has none; deploy with `init`, or leave it out",
    ),
    Incompatibility(
        "DP for people",
        "a stock Flower app",
        "privacy.user: that everybody counts once, in one run alone, rests on the keys and the run "
        "that `vergence deploy init` hands out; deploy with `init`, or leave it out",
    ),
    Incompatibility(
        "DP-SGD",
        "a stock Flower app",
        "privacy.solver: its budget is one run's, and who starts runs of a Flower app may start "
        "any number; deploy with `vergence deploy init`, or leave it out",
    ),
    Incompatibility(
        "a private choice of masks",
        "a stock Flower app",
        "privacy.mask: its budget is one run's, and who starts runs of a Flower app may start "
        "any number; deploy with `vergence deploy init`, or leave it out",
    ),
    Incompatibility(
        "a defence at the cut",
        "a stock Flower app",
        "privacy.cut: its budget and secret are one run's, and who starts runs of a Flower app may "
        "start any number; deploy with `vergence deploy init`, or leave it out",
    ),
    Incompatibility(
        "SplitGuard",
        "a stock Flower app",
        "privacy.split_guard: who starts runs of a Flower app also sends the code that would watch "
        "him; deploy with `vergence deploy init`, or leave it out",
    ),
)
"""Pairs that a plan refuses, whatever its method is."""

WITH_METHODS = (
    Incompatibility(
        "sums of groups",
        "masks that differ",
        "privacy.aggregation: replies of {name} differ in which entries they share, and groups "
        "would show whose",
    ),
    Incompatibility(
        "secure sums",
        "pooled data",
        "privacy.aggregation: {name} collects everybody's data, and nothing is summed",
    ),
    Incompatibility(
        "secure sums",
        "a server that sees single updates",
        "privacy.aggregation: the server of {name} looks at every single reply to '{single}'",
    ),
    Incompatibility(
        "pads without DP for people",
        "masks that differ",
        "privacy.aggregation: replies of {name} differ in which entries they share, and under "
        "pads the server would see entries that one person shares; use privacy.aggregation = "
        '{{ name = "additive", aggregators = ["a", "b", "c"] }}',
    ),
    Incompatibility(
        "DP for people",
        "pooled data",
        "privacy.user bounds updates, and this method collects everybody's data",
    ),
    Incompatibility(
        "DP for people",
        "single replies or samples on their way",
        "privacy.user hides people in sums, and '{unbounded}' shows every single reply; use "
        "privacy.solver, or another method",
    ),
    Incompatibility(
        "DP for people",
        "weights of single entries",
        "privacy.user counts everybody once, and '{weighed}' weighs every entry by itself; use "
        "another method",
    ),
    Incompatibility(
        "noise of a tree",
        "several sums a round",
        "privacy.user.turns is one tree of noise for one sum a round, and {name} shows {sums}; "
        "leave out turns, or use another method",
    ),
    Incompatibility(
        "people in labs",
        "pooled data",
        "silos: {name} collects everybody's data, and no lab would add anything up; leave out one "
        "of them",
    ),
    Incompatibility(
        "people in labs",
        "single replies or samples on their way",
        "silos: a lab sends the sum of its people's replies, and the server of '{module}' looks at "
        "every single one to '{unbounded}'; take a method whose replies are averaged (fedavg, "
        "fedprox, fedcpf, ...), or leave out silos",
    ),
    Incompatibility("DP-SGD", "training samples used in other ways", "{unprotected}"),
    Incompatibility(
        "DP for people",
        "BatchNorm with averaged statistics",
        "privacy.user adds noise to all that is sent, and BatchNorm's running variances "
        "({counted}, ...) could become negative; use vergence.group_norm(network)",
    ),
    Incompatibility(
        "a lossy codec",
        "BatchNorm with averaged statistics",
        'wire.codec = "{codec}" rounds all that is sent, and BatchNorm\'s running variances '
        "({counted}, ...) could become negative; leave out wire, or use "
        "vergence.group_norm(network)",
    ),
    Incompatibility(
        "asynchronous delivery",
        "BatchNorm with averaged statistics",
        "delivery: '{delivery}' adds changes of old models to new ones, and BatchNorm's running "
        "variances ({counted}, ...) could become negative; use all, quorum or deadline, or "
        "vergence.group_norm(network)",
    ),
    Incompatibility(
        "a rule with a root",
        "BatchNorm with averaged statistics",
        "privacy.robust = '{rule}' lengthens updates, and BatchNorm's running variances "
        "({counted}, ...) could become negative; take another rule, or use "
        "vergence.group_norm(network)",
    ),
    Incompatibility(
        "liars",
        "pooled data",
        "poison.attack = '{attack}' cannot change what {name} sends: everybody's data lies in "
        "one place, and nobody sends an update; poison training data instead (gaze_offset, "
        "noisy_data)",
    ),
    Incompatibility(
        "liars",
        "split learning",
        "poison.attack = '{attack}' cannot change what {name} sends: its clients are served "
        "batch by batch, and no update of theirs is all they did; poison training data instead "
        "(gaze_offset, noisy_data)",
    ),
    Incompatibility(
        "liars",
        "a server that sees single replies",
        "poison.attack = '{attack}' cannot change what {name} sends: its own server looks at "
        "every single reply to '{each}', which no sum replaces; poison training data instead "
        "(gaze_offset, noisy_data)",
    ),
    Incompatibility(
        "a robust rule",
        "pooled data",
        "privacy.robust = '{rule}' cannot judge {name}: everybody's data lies in one place, and "
        "nobody sends an update",
    ),
    Incompatibility(
        "a robust rule",
        "split learning",
        "privacy.robust = '{rule}' cannot judge {name}: its clients are served batch by batch, "
        "and no update of theirs is all they did",
    ),
    Incompatibility(
        "a robust rule",
        "a server that sees single replies",
        "privacy.robust = '{rule}' cannot judge {name}: its own server looks at every single "
        "reply to '{each}', which no sum replaces",
    ),
    Incompatibility(
        "a robust rule",
        "trees that belong together",
        "privacy.robust = '{rule}' cannot judge {name}: its updates of {trees} belong together, "
        "and clients keep what the server must add up in full",
    ),
    Incompatibility(
        "a rule of whole updates",
        "masks that differ",
        f"privacy.robust = '{{rule}}' cannot judge {{name}}: the rule {WHOLE}",
    ),
    Incompatibility(
        "a range of smashed data",
        "no client's smashed data",
        "privacy.output_range looks at every client's smashed data, and the server of '{module}' "
        "sees none; use split, splitfed, splitfed_v2 or splitfed_u",
    ),
    Incompatibility(
        "a defence at the cut",
        "no cut",
        "privacy.cut stands where a network is cut, and '{module}' cuts none; use split, "
        "splitfed, splitfed_v2, splitfed_u or smashed_average",
    ),
    Incompatibility(
        "a defence at the cut",
        "layers that learn in another way",
        "privacy.cut defends layers that learn from the gradient that comes back, and those of "
        "'{module}' do not; use split, splitfed, splitfed_v2, splitfed_u or smashed_average",
    ),
    Incompatibility(
        "a defence that clients' layers learn",
        "layers that never learn",
        "privacy.cut = 'nopeek' is a part of what clients' layers learn, and those of '{module}' "
        "stay as they were drawn; use bottleneck or pixel_dp",
    ),
    Incompatibility(
        "SplitGuard",
        "no answers to labels",
        "privacy.split_guard sends false labels and looks at the answers, and the server of "
        "'{module}' is sent no labels, or answers none; use split, splitfed or splitfed_v2",
    ),
    Incompatibility(
        "a private choice of masks",
        "no masks that data choose",
        "privacy.mask is for masks that a person's data choose, and '{module}' has none; use "
        "fedcpf or fedselect",
    ),
    Incompatibility(
        "a clock",
        "split learning",
        "{name} serves clients batch by batch, and the virtual clock knows whole turns only; "
        "leave out delivery",
    ),
    Incompatibility(
        "asynchronous delivery",
        "rounds that cannot be taken apart",
        "{name} cannot be delivered by '{delivery}': {torn}",
    ),
    Incompatibility(
        "pruning across layers",
        "split learning",
        "{name} has a network in two hands, each of which prunes its own layers; use pruning with "
        "scope = 'local' and structured = false",
    ),
    Incompatibility(
        "other precisions",
        "split learning",
        "{name} serves clients batch by batch, in fp32; leave out run.{elsewhere}",
    ),
    Incompatibility(
        "a lossy codec",
        "split learning",
        "{name} serves clients batch by batch; leave out wire, and set the method's `number`",
    ),
    Incompatibility(
        "a stock Flower app",
        "answers of a teacher",
        "{name} asks a teacher, whose owner's limits stand in a folder that `vergence deploy init` "
        "makes, and not in a Flower app; deploy with `init`, or simulate",
    ),
    Incompatibility(
        "DP-SGD",
        "an optimiser of one's own",
        "privacy.solver takes steps of its own, with noise; use the optimiser sgd, adam or adamw",
    ),
    Incompatibility(
        "Ray, stacks",
        "an optimiser of one's own",
        "an optimiser of one's own trains clients one by one, on this machine; use sgd, adam or "
        "adamw, or leave out run.{together}",
    ),
    Incompatibility(
        "any plan",
        "an optimiser of one's own in split learning",
        "{name} takes steps batch by batch; use the optimiser sgd, adam or adamw",
    ),
    Incompatibility(
        "DP-SGD",
        "draws with replacement",
        "privacy.solver draws every batch by chances on which epsilon rests, and local.sampler = "
        "'{method.local.sampler}' has others; leave out sampler",
    ),
    Incompatibility(
        "noise at the cut",
        "draws with replacement",
        "privacy.cut counts that a picture is sent once an epoch, and local.sampler = "
        "'{method.local.sampler}' may send it more often; leave out sampler",
    ),
)
"""Pairs that a plan refuses with some methods."""


@dataclass(frozen=True)
class CheckedSettings:
    """Settings of a plan, under the names in the table of incompatibilities.

    Attributes:
        plan: the plan.
        app: whether the plan runs as an app of Flower's own programs, without the keys, folders and
            checks of Vergence's own deployment.
    """

    plan: Plan
    app: bool = field(default=False, kw_only=True)

    @property
    def delivery(self) -> str:
        """The name of the rule for the replies that a round waits for."""
        return self.plan.delivery.name

    @property
    def codec(self) -> str:
        """The name of the codec that compresses updates."""
        return self.plan.wire.codec

    @property
    def rule(self) -> str:
        """The name of the robust aggregation rule."""
        return self.plan.privacy.judged

    @property
    def attack(self) -> str:
        """The name of the malicious clients' attack; "" without malicious clients."""
        return "" if self.plan.poison is None else self.plan.poison.attack

    @property
    def least(self) -> int:
        """Smallest number of people in a secure sum; 1 without secure sums."""
        return self.plan.privacy.least or 1

    @property
    def together(self) -> str:
        """First key of `run` that asks for Ray or batched clients; "" if none does."""
        asked = {"engine": self.plan.engine == "ray", "solver": self.plan.solver == "stacked"}
        return next((key for key, bad in asked.items() if bad), "")

    @property
    def elsewhere(self) -> str:
        """The first key of `run` with a setting that DP-SGD or split learning does not support."""
        plan = self.plan
        asked = {"precision": plan.precision not in ("fp32", "auto")}
        if plan.privacy.solver is not None:
            asked |= {"engine": plan.engine == "ray", "solver": plan.solver == "stacked"}
        return next((key for key, bad in asked.items() if bad), "")


SETTINGS: Mapping[str, Callable[[CheckedSettings], object]] = {
    "people in labs": lambda s: s.plan.silos.labs,
    "nobody in labs": lambda s: not s.plan.silos.labs,
    "DP for labs": lambda s: s.plan.privacy.user and s.plan.privacy.user.unit == "lab",
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
    "sums with room for more clients": lambda s: (
        s.plan.privacy.aggregation and s.plan.privacy.aggregation.clients
    ),
    "sums of groups": lambda s: s.plan.privacy.aggregation and s.plan.privacy.aggregation.groups,
    "a rule with a root": lambda s: s.plan.privacy.robust and s.plan.privacy.robust.rooted,
    "a private choice of masks": lambda s: s.plan.privacy.mask,
    "a defence at the cut": lambda s: s.plan.privacy.cut,
    "a defence that clients' layers learn": lambda s: isinstance(s.plan.privacy.cut, NoPeekCut),
    "noise at the cut": lambda s: (
        s.plan.privacy.cut and not isinstance(s.plan.privacy.cut, NoPeekCut)
    ),
    "SplitGuard": lambda s: s.plan.privacy.split_guard,
    "a protection of one's own": lambda s: s.plan.privacy.own,
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
    "early stopping": lambda s: s.plan.early_stopping.patience,
    "early stopping that goes back": lambda s: s.plan.early_stopping.restores,
    "a protection with a budget": lambda s: s.plan.privacy.spends or s.plan.privacy.cut,
    "pruning while training": lambda s: s.plan.pruning.amount,
    "pruning across layers": lambda s: (
        s.plan.pruning.amount and (s.plan.pruning.scope == "global" or s.plan.pruning.structured)
    ),
    "other precisions": lambda s: s.elsewhere == "precision",
    "Ray, other precisions, stacks": lambda s: s.elsewhere,
    "Ray, stacks": lambda s: s.together,
    "bytes or Ray": lambda s: s.plan.engine != "simulator",
    "Ray": lambda s: s.plan.engine == "ray",
    "GPUs": lambda s: s.plan.device not in ("auto", "cpu"),
    "any plan": lambda s: s.plan,
    "a stock Flower app": lambda s: s.app,
}


class InvalidCombination(ConfigError):
    """A refused combination, with the row of the table that forbids it."""

    clash: Incompatibility

    @classmethod
    def of(cls, clash: Incompatibility, settings: CheckedSettings) -> InvalidCombination:
        """Make the error for settings that a row of the table forbids."""
        # Like every other error it is made of its text alone, so that it can be pickled.
        error = cls(clash.why.format_map(_Words(settings)))
        error.clash = clash
        return error


class _Words(dict[str, object]):
    """Maps names in a message template to attributes of the checked settings."""

    def __init__(self, settings: CheckedSettings) -> None:
        self.settings = settings

    def __missing__(self, key: str) -> object:
        return getattr(self.settings, key)


def agree(plan: Plan, app: bool = False) -> None:
    """Refuse settings that do not go together, whatever the method.

    Raises:
        InvalidCombination: has the message of the first row of the table that forbids them.
    """
    settings = CheckedSettings(plan, app=app)
    for clash in AMONG_SETTINGS:
        if SETTINGS[clash.one](settings) and SETTINGS[clash.other](settings):
            raise InvalidCombination.of(clash, settings)
    for own in plan.privacy.own:
        _agree_with(own, settings)


def _agree_with(own: Protection, settings: CheckedSettings) -> None:
    """Refuse settings that a protection of the user's own declares incompatible."""
    name = type(own).__name__
    for setting, why in own.refuses.items():
        if setting not in SETTINGS:
            near = nearest(setting, SETTINGS)
            raise ConfigError(f"privacy.own: {name} refuses '{setting}', no setting{near}")
        if SETTINGS[setting](settings):
            raise InvalidCombination.of(
                Incompatibility(name, setting, f"privacy.own: {why}"), settings
            )
