"""Check of a method against the table of incompatibilities, before anything runs.

`check_privacy` checks what depends on the number of people, once this number is known.

Used by `audit.updates`, `deployment.flower_app`, `engine.round_loop` and `experiment.schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from vergence.core.method import Method
from vergence.core.naming import registry_name
from vergence.core.task import Task
from vergence.engine.compatibility import (
    SETTINGS,
    WITH_METHODS,
    CheckedSettings,
    InvalidCombination,
)
from vergence.engine.plan import Plan
from vergence.engine.protections.dry_run import unprotected
from vergence.engine.protections.split_defense import BACK
from vergence.methods.split.base import BatchwiseSplit, Cutting


@dataclass(frozen=True)
class Combination(CheckedSettings):
    """A method and the plan that it is to run under, for the table of incompatibilities.

    Attributes:
        method: the method.
        task: the task; None: rules that need a network are not checked.
    """

    method: Method
    task: Task | None = None

    @property
    def name(self) -> str:
        """The name of the method's class."""
        return type(self.method).__name__

    @property
    def module(self) -> str:
        """Name of the method in an experiment file."""
        return registry_name(self.method)

    @cached_property
    def each(self) -> str:
        """First kind of request whose replies the server sees one by one; "" if none."""
        return next((v for v, e in self.method.exposure.items() if e.reveal == "each"), "")

    @cached_property
    def single(self) -> str:
        """First kind of request with which the server sees single updates; "" if none.

        Outputs of clients' layers (split learning) do not count if replies to other requests are
        summed.
        """
        # The smashed data of split learning are no updates: no sum would hide them. Its updates of
        # clients' layers may be summed.
        table = self.method.exposure
        summed = any(e.trees for e in table.values() if e.reveal == "aggregate")
        shown = (v for v, e in table.items() if e.reveal == "each" and not (e.raw and summed))
        return next(shown, "")

    @cached_property
    def unbounded(self) -> str:
        """First kind of request that reveals single replies or data of one sample; "" if none."""
        table = self.method.exposure.items()
        return next((verb for verb, e in table if e.reveal == "each" or e.raw), "")

    @cached_property
    def trees(self) -> str:
        """Names of the trees in the first reply with several trees; "" if no reply has several."""
        several = [e.trees for e in self.method.exposure.values() if len(e.trees) > 1]
        return " and ".join(several[0]) if several else ""

    @cached_property
    def weighed(self) -> str:
        """First kind of request whose replies have one weight per parameter entry; "" if none."""
        table = self.method.exposure.items()
        return next((verb for verb, e in table if e.trees and e.weight == "per entry"), "")

    @cached_property
    def sums(self) -> int:
        """Number of sums of trees that the server learns in a round."""
        return sum(1 for exposed in self.method.exposure.values() if exposed.trees)

    @cached_property
    def torn(self) -> str:
        """Why asynchronous delivery cannot sum the method's updates one by one; "" if it can."""
        return "" if self.task is None else self.plan.delivery.torn(self.method, self.task)

    @cached_property
    def counted(self) -> str:
        """First of BatchNorm's running statistics that clients send; "" if they send none."""
        if self.task is None or self.method.keeps_statistics:
            return ""
        return next(iter(self.task.averaged_statistics()), "")

    @cached_property
    def unprotected(self) -> str:
        """Why DP-SGD does not protect what the method sends; "" if it does."""
        return "" if self.task is None else unprotected(self.method, self.task)


METHODS: Mapping[str, Callable[[Combination], object]] = {
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
    "no client's smashed data": lambda c: not isinstance(c.method, BatchwiseSplit),
    "layers that learn in another way": lambda c: (
        not (isinstance(c.method, Cutting) and c.method.fixed)
        and not (
            isinstance(c.method, BatchwiseSplit) and BACK in (c.method.exposure["train"].down or ())
        )
    ),
    "no answers to labels": lambda c: (
        not isinstance(c.method, BatchwiseSplit)
        or "labels" not in c.method.exposure["train"].trees
        or BACK not in (c.method.exposure["train"].down or ())
    ),
    "answers of a teacher": lambda c: any(e.blind for e in c.method.exposure.values()),
    "layers that never learn": lambda c: isinstance(c.method, Cutting) and c.method.fixed,
    "BatchNorm with averaged statistics": lambda c: c.counted,
    "training samples used in other ways": lambda c: c.unprotected,
    "draws with replacement": lambda c: c.method.local.sampler != "shuffle",
    "an optimiser of one's own": lambda c: callable(c.method.local.optimizer),
    "an optimiser of one's own in split learning": lambda c: (
        callable(c.method.local.optimizer) and isinstance(c.method, Cutting)
    ),
}


def check(plan: Plan, method: Method, task: Task | None = None, app: bool = False) -> None:
    """Refuse a method that cannot run under a plan.

    `app` says whether the plan runs as an app of Flower's own programs.

    Raises:
        InvalidCombination: has the message of the first row of the table that forbids it.
    """
    case = Combination(plan, method, task, app=app)
    for clash in WITH_METHODS:
        if SETTINGS[clash.one](case) and METHODS[clash.other](case):
            raise InvalidCombination.of(clash, case)
