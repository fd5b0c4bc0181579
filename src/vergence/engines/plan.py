"""How a run goes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from vergence.core.codec import Compression
from vergence.core.fitting import Precision
from vergence.core.pruning import Gradual
from vergence.core.ranges import check_ranges
from vergence.engines.composition import agree
from vergence.engines.delivery import Delivery
from vergence.engines.presence import Presence
from vergence.errors import ConfigError
from vergence.privacy.poison import Poison
from vergence.privacy.policy import Privacy

Point = Literal["P0", "P1", "P2"]


@dataclass(frozen=True)
class Plan:
    """How a run goes: rounds, seeds, who evaluates when, how often to save.

    `evaluate_people` measures so many people, the same ones each time, instead of everybody.
    `checkpoint_every` 0 saves at the end only. `solver` "auto" tries before the first round whether
    training clients in stacks is faster; what was chosen is kept with the run and is part of its
    fingerprint.

    `points` adds P1 (after local training) and P2 (the server's model) to P0 (what a client
    predicts with after the round's download). `workers` 0 means one per core, under the engine
    "ray" one per CPU that Ray has; Ray's workers train on CPUs.
    """

    rounds: Annotated[int, Ge(1)] = 20
    seeds: tuple[int, ...] = (0,)
    engine: Literal["simulator", "bytes", "ray"] = "simulator"
    solver: Literal["auto", "sequential", "stacked"] = "auto"
    precision: Precision = "fp32"
    device: str = "auto"
    workers: Annotated[int, Ge(0)] = 0
    evaluate_every: Annotated[int, Ge(0)] = 5
    evaluate_people: Annotated[int, Ge(0)] = 0
    checkpoint_every: Annotated[int, Ge(0)] = 1
    points: tuple[Point, ...] = ("P0",)
    presence: Presence = field(default_factory=Presence)
    delivery: Delivery = Delivery()
    wire: Compression = field(default_factory=Compression)
    pruning: Gradual = Gradual(0.0)
    privacy: Privacy = Privacy()
    poison: Poison | None = None

    def __post_init__(self) -> None:
        check_ranges(self, "run")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(
                f"run: seeds must be different numbers, at least one; got {self.seeds}"
            )
        unknown = [p for p in self.points if p not in ("P0", "P1", "P2")]
        if unknown or "P0" not in self.points:
            raise ConfigError(f"run: points must hold P0 and may add P1, P2; got {self.points}")
        self.pruning.check(self.rounds)
        agree(self)

    @property
    def hands(self) -> int:
        """Number of worker processes."""
        return self.workers or max(len(os.sched_getaffinity(0)), 1)
