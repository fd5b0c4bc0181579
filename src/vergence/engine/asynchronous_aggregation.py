"""Delivery rules: which replies a round waits for. The virtual clock applies them.

A round waits for all replies, for a number of replies or for a time; or it takes the next reply.

Used by `engine.plan`, `engine.virtual_clock`, `experiment.record_tables`,
`experiment.schema` and `studies.comparability`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from vergence.core.aggregation import Sum
from vergence.core.method import Method
from vergence.core.options import check_ranges
from vergence.core.requests import Request
from vergence.core.task import Task
from vergence.engine.participation import suggest
from vergence.errors import ConfigError, DataError

# An update from a model that is more versions old is dropped: else a checkpoint would have to hold
# every model that some slow client still works with.
OLDEST = 16
SUITS: Mapping[str, tuple[str, ...]] = {
    "replies": ("quorum", "fedbuff"),
    "seconds": ("deadline",),
    "a": ("fedasync",),
    "staleness": ("fedasync",),
}
"""Option of `Delivery` -> names of the rules that use it."""


@dataclass(frozen=True)
class Delivery:
    """Rule for the replies that a round waits for.

    Without a virtual clock, a round waits for all replies.

    On the virtual clock, the time of a client's turn is the number of samples that it trains on,
    divided by the client's speed. This number is samples x epochs (or steps x batch), where
    `local` sets epochs, steps and batch. Speeds, in samples per virtual second, are log-normal over
    clients.

    Args:
        name: `all` waits for every reply, `quorum` for `replies` replies, `deadline` for `seconds`
            virtual seconds. `fedbuff` and `fedasync` are asynchronous: clients do not wait for the
            end of a round.
        replies: how many replies end a round (`quorum`, `fedbuff`).
        seconds: virtual seconds after which a round ends (`deadline`).
        a: weight with which an update of age 0 is added to the model (`fedasync`). An update's age
            is the number of newer model versions.
        staleness: how the weight `a` shrinks with age (`fedasync`). `poly`: by (1 + age)^-.5.
            `hinge`: by 1 up to age 4, then by 1 / (10 (age - 4) + 1). `constant`: not at all.
        clock: whether `all` keeps virtual time, as the other rules always do.
        pace: samples per virtual second of the median client; inf: training takes no time.
        sigma: standard deviation of the logarithm of speeds over clients.
        slow: client -> factor by which its turns take longer.
        bandwidth: bytes per virtual second. In a turn, a client downloads its message and uploads
            as many bytes. 0: transfers take no time.
        replay: path of an earlier run's events.csv, relative to the current folder. Turns take as
            long as in this file, and no speed is drawn.

    Source: Xie et al. 2019, "Asynchronous federated optimization" (FedAsync), Algorithm 1 and
    section 5.2; Nguyen et al. 2022, "Federated learning with buffered asynchronous aggregation"
    (FedBuff), Algorithm 1. Differs: `poly` has exponent .5, and `hinge` bends at age 4 with slope
    10. Updates from models more than 16 versions old are dropped.
    """

    name: Literal["all", "quorum", "deadline", "fedbuff", "fedasync"] = "all"
    replies: Annotated[int, Gt(0)] = 10
    seconds: Annotated[float, Gt(0)] = 60.0
    a: Annotated[float, Interval(gt=0, le=1)] = 0.6
    staleness: Literal["poly", "hinge", "constant"] = "poly"
    clock: bool = False
    pace: Annotated[float, Gt(0)] = 100.0
    sigma: Annotated[float, Ge(0)] = 0.5
    slow: Mapping[str, float] = field(default_factory=dict)
    bandwidth: Annotated[float, Ge(0)] = 0.0
    replay: str | None = None

    def __post_init__(self) -> None:
        check_ranges(self, "delivery")
        for client, times in self.slow.items():
            if not 0 < times < math.inf:
                raise ConfigError(f"delivery: slow.{client} must be > 0 and finite; got {times:g}")
        # An option without an effect would look as if it had one, so it is refused.
        for f in fields(self):
            default = f.default if f.default_factory is MISSING else f.default_factory()
            if getattr(self, f.name) == default:
                continue
            suits = SUITS.get(f.name)
            if suits and self.name not in suits:
                raise ConfigError(
                    f"delivery: {f.name} is for {' and '.join(suits)}; leave it out with "
                    f"'{self.name}'"
                )
            if not self.timed and f.name != "name":
                raise ConfigError(f"delivery: with 'all', {f.name} needs clock = true")

    @property
    def timed(self) -> bool:
        """Whether there is a virtual clock."""
        return self.clock or self.name != "all"

    @property
    def asynchronous(self) -> bool:
        """Whether clients go on without waiting for the end of a round."""
        return self.name in ("fedbuff", "fedasync")

    def scale(self, age: int) -> float:
        """Return the weight of an update that was trained from a model `age` versions old.

        Examples:
            >>> Delivery("fedbuff").scale(3), Delivery("fedasync", staleness="hinge").scale(6)
            (0.5, 0.02857142857142857)
        """
        if self.name == "fedbuff":
            return (1 + age) ** -0.5
        match self.staleness:
            case "poly":
                return self.a * (1 + age) ** -0.5
            case "hinge":
                return self.a if age <= 4 else self.a / (10 * (age - 4) + 1)
            case _:
                return self.a

    def check_clients(self, clients: Sequence[str]) -> None:
        """Check that every client named in `slow` exists.

        Raises:
            ConfigError: `slow` names a client that does not exist.
        """
        for client in self.slow:
            if client not in clients:
                raise ConfigError(f"delivery: slow: no client '{client}'{suggest(client, clients)}")

    def check(self) -> None:
        """Refuse a replay whose log is missing, before anything is trained.

        Raises:
            DataError: the log to replay does not exist.
        """
        if self.replay is not None and not Path(self.replay).is_file():
            raise DataError(f"delivery: no log to replay at {self.replay}")

    def torn(self, method: Method, task: Task) -> str:
        """Return why asynchronous delivery cannot sum a method's updates one by one.

        The result is empty if it can.
        """
        if method.pooled:
            return "everybody's data lies in one place, and nothing arrives late"
        # A round is tried with two clients that do not exist: only what it asks for matters.
        server, client = method.server(task), "a"
        conversation = method.round(server, (client, "b"))
        asked = next(conversation, None)
        while isinstance(asked, Request) and method.exposure[asked.verb].joining:
            asked = conversation.send({})
        if not isinstance(asked, Request):
            return "its rounds do not begin by asking clients for turns"
        if asked.reveal == "each":
            return "its server looks at every single reply of a round"
        trees = method.exposure[asked.verb].trees
        if len(trees) > 1:
            return (
                f"its updates of {' and '.join(trees)} belong together, and clients keep what the "
                "server must add up in full; scaled by their age, the two drift apart"
            )
        if values := [tree for tree in trees if method.tree(tree).kind == "values"]:
            return (
                f"its clients send {values[0]} in place of updates, and those of one client would "
                "replace what the others sent before"
            )
        message = asked.to.get(client)
        offered = method.offer(server, client) if message is None else message.trees
        sent = {**asked.like, **offered}
        if absent := [tree for tree in trees if tree not in sent]:
            return f"its clients send '{absent[0]}', which they are not sent"
        # A round that ends with the first sum is one that can go on whenever updates arrive.
        try:
            conversation.send(Sum().aggregate({tree: sent[tree] for tree in trees}, {}))
        except StopIteration:
            return ""
        return "its rounds ask clients more than once"
