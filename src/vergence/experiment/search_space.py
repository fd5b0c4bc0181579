"""Search spaces of a sweep (hyperparameter search): every method gets equally many trials.

Used by `experiment.schema`, `studies.sweep`, `studies.sweep_figure` and `studies.trials`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt

from vergence.core.federation import MANY
from vergence.core.naming import dotted
from vergence.core.options import check_ranges
from vergence.core.randomness import RandomStream
from vergence.engine.participation import round_half_up, suggest
from vergence.engine.plan import check_seeds
from vergence.errors import ConfigError

ROOTS = ("method", "local")
"""First parts of the dotted names of settings that a sweep can vary, such as `local.lr`."""
NO_OPTIONS = ("name", "label", "local", "sweep")
"""Keys in a method's table of an experiment that are not options of the method."""
Search = Literal["grid", "random"]
Point = dict[str, Any]
"""One combination of settings: values by dotted name, such as `method.limit` or `local.lr`."""


@dataclass(frozen=True)
class SearchRange:
    """Range of numbers from `low` to `high`, both included, in a search space.

    If both ends are whole numbers, only whole numbers are drawn.

    Attributes:
        low: the smallest number.
        high: the largest number.
        log: whether the logarithm of the number is drawn uniformly, instead of the number.
    """

    low: int | float
    high: int | float
    log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"low must be below high, both finite; got {self.low}, {self.high}")
        if self.log and self.low <= 0:
            raise ConfigError(f"low must be > 0 where log is true; got {self.low}")

    @property
    def whole(self) -> bool:
        """True if only whole numbers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def count(self) -> float:
        """Number of values in the range; infinity for real numbers."""
        return self.high - self.low + 1 if self.whole else math.inf

    def draw(self, rng: np.random.Generator) -> int | float:
        """Draw a number at random; real numbers are rounded to four significant digits."""
        low, high = self.low, self.high + self.whole
        if self.log:
            low, high = math.log(low), math.log(high)
        number = rng.uniform(low, high)
        number = math.exp(number) if self.log else number
        number = math.floor(number) if self.whole else float(f"{number:.4g}")
        # Rounding may step over an end of the range.
        return min(max(number, self.low), self.high)


DRAWS = 1000
"""Largest number of random draws per trial; a space with too few different results is refused."""
Space = Mapping[str, "tuple[Any, ...] | SearchRange"]


@dataclass(frozen=True)
class SweepSettings:
    """Settings of a sweep, the search for each method's hyperparameters.

    A trial is one combination of settings of a method.

    Args:
        search: `grid` tries every combination of listed values; `random` draws `trials`
            combinations.
        trials: number of trials of each method. None: all combinations of a grid.
        seed: seed for drawing combinations and people.
        people: people to train and score: a fraction (float), a number (int), or names of people.
        unseen: people among them on whom no trial trains, a number (int) or names. Trials are then
            scored on these people's validation data alone, as on unseen clients.
        seeds: every trial runs once with each of these seeds; empty: the seeds of `run`.
        metric: metric by which the best trial is chosen, on validation data.
        spaces: search space of each method, by the method's label (name in tables).
    """

    search: Search = "grid"
    trials: Annotated[int, Ge(1)] | None = None
    seed: int = 0
    people: Annotated[int | float, Gt(0)] | tuple[str, ...] = 1.0
    unseen: Annotated[int, Ge(0)] | tuple[str, ...] = 0
    seeds: tuple[int, ...] = ()
    metric: Literal["headline", "score"] = "headline"
    spaces: Mapping[str, Space] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_ranges(self, "sweep")
        check_seeds(self.seeds, "sweep")
        if len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"sweep: seeds must be different numbers; got {self.seeds}")
        if isinstance(self.people, float) and not self.people <= 1:
            raise ConfigError(
                "sweep: people must be a share in (0, 1], a whole number, or a list of names; got "
                f"{self.people:g}"
            )
        for key in ("people", "unseen"):
            names = getattr(self, key)
            if isinstance(names, tuple) and (not names or len(set(names)) != len(names)):
                raise ConfigError(
                    f"sweep: {key} must be different names, at least one; got {names}"
                )

    def points(self) -> dict[str, list[Point]]:
        """Return the trials (combinations of settings) of every method, by the method's label.

        All methods have equally many trials.

        Raises:
            ConfigError: the search spaces have too few or unequal numbers of combinations, no
                settings at all, or a range in a grid.
        """
        counts = {label: size(space) for label, space in self.spaces.items()}
        if not any(self.spaces.values()):
            raise ConfigError('sweep: nothing to try: give sweep.space = { "local.lr" = [...] }')
        sizes = ", ".join(f"{label} {count:g}" for label, count in counts.items())
        if self.search == "random":
            if self.trials is None:
                raise ConfigError("sweep: a random search needs trials = NUMBER, of every method")
            if min(counts.values()) < self.trials:
                raise ConfigError(
                    f"sweep: {self.trials} different trials of every method are asked for, and "
                    f"the spaces have {sizes} points; give fewer trials, or more values"
                )
            return {
                label: self._random_points(space, self.trials)
                for label, space in self.spaces.items()
            }
        ranged = [
            (m, key) for m, s in self.spaces.items() for key in s if isinstance(s[key], SearchRange)
        ]
        if ranged:
            raise ConfigError(
                f"sweep: {ranged[0][1]} of '{ranged[0][0]}' is a range, of which there is no grid: "
                'list its values, or set search = "random"'
            )
        if {self.trials or max(counts.values())} != set(counts.values()):
            asked = f", and trials is {self.trials}" if self.trials else ""
            raise ConfigError(
                f"sweep: every method must have the same number of trials, the grids have {sizes} "
                f'points{asked}; list more or fewer values, or set search = "random"'
            )
        return {label: grid(space) for label, space in self.spaces.items()}

    def _random_points(self, space: Space, trials: int) -> list[Point]:
        """Draw `trials` different combinations of settings.

        Methods with the same setting and the same values for it get the same draws of it.
        """
        points: dict[str, Point] = {}
        for number in itertools.count():
            point = {
                key: draw(choices, RandomStream("sweep", self.seed, key, number))
                for key, choices in space.items()
            }
            points.setdefault(json.dumps(point, default=str), point)
            if len(points) == trials:
                break
            if number > DRAWS * trials:
                raise ConfigError(
                    f"sweep: {DRAWS * trials} draws gave {len(points)} different points, {trials} "
                    "are asked for; widen a range, or give fewer trials"
                )
        return list(points.values())

    def participants(self, clients: Sequence[str]) -> list[str]:
        """Return the people to train and score, in the order of `clients`.

        Raises:
            ConfigError: a name is unknown, or `people` asks for more people than there are, or for
                more than fit into memory.
        """
        if isinstance(self.people, tuple):
            return self._named("people", self.people, clients)
        share = isinstance(self.people, float)
        count = max(round_half_up(self.people * len(clients)), 1) if share else int(self.people)
        if count > min(len(clients), MANY):
            raise ConfigError(
                f"sweep: people asks for {count:,} of {len(clients):,} people, and at most "
                f"{min(len(clients), MANY):,} are allowed; give fewer"
            )
        return self._draw("people", count, clients)

    def unseen_people(self, people: Sequence[str]) -> list[str]:
        """Return those of `people` on whom no trial trains, in their order.

        Raises:
            ConfigError: a name is unknown, or nobody is left to train on.
        """
        unseen = (
            self._named("unseen", self.unseen, people)
            if isinstance(self.unseen, tuple)
            else self._draw("unseen", min(self.unseen, len(people)), people)
        )
        if len(unseen) == len(people):
            raise ConfigError(
                f"sweep: unseen takes all {len(people)} people of the sweep, and trials need "
                "others to train on; name fewer, or more sweep.people"
            )
        return unseen

    def _named(self, key: str, names: Sequence[str], people: Sequence[str]) -> list[str]:
        for name in names:
            if name not in people:
                raise ConfigError(f"sweep: {key}: nobody is '{name}'{suggest(name, people)}")
        return sorted(names, key=people.index)

    def _draw(self, key: str, count: int, people: Sequence[str]) -> list[str]:
        rng = RandomStream("sweep", self.seed, key).numpy()
        return [people[int(i)] for i in sorted(rng.choice(len(people), count, False))]

    def digest(self) -> str:
        """Return the SHA-256 of `search` and all search spaces, as hexadecimal text."""
        spaces = {
            label: {key: asdict(c) if isinstance(c, SearchRange) else c for key, c in space.items()}
            for label, space in self.spaces.items()
        }
        text = json.dumps([self.search, spaces], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Tuning:
    """Record of how a sweep chose an experiment's settings; the sweep writes it into best.toml.

    Attributes:
        trials: number of combinations of settings that were tried for each method.
        search: `grid` or `random`.
        people: people on whose data the settings were chosen.
        seed: seed for drawing combinations and people.
        space: digest of the search spaces.
        chosen_on: data on which the best trial was chosen: `validation` data of the people who
            trained, or that of `unseen` people on whom no trial trained.
        seeds: seeds with which every trial ran.
        metric: metric by which the best trial was chosen.
    """

    trials: Annotated[int, Ge(1)]
    search: Search
    people: tuple[str, ...]
    seed: int
    space: str
    chosen_on: Literal["validation", "unseen"]
    seeds: tuple[int, ...] = ()
    metric: str = "headline"

    def __post_init__(self) -> None:
        check_ranges(self, "tuning")
        if not self.people:
            raise ConfigError("tuning: people must name those the settings were chosen on; got ()")


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of nested tables by dotted name, such as `local.lr`.

    `local = { lr = [...] }` becomes `"local.lr" = [...]`. A table with `low` or `high` is a range,
    and stays a value.
    """
    # A table with an end of a range is a range, and no table of settings.
    return dict(
        dotted(
            table,
            # The type comes first: an array has no truth value.
            nested=lambda v: isinstance(v, dict) and bool(v) and {"low", "high"}.isdisjoint(v),
        )
    )


def listed(values: Any, where: str) -> tuple[Any, ...]:
    """Return the values of a setting as a tuple, if they are a list.

    Args:
        values: what the experiment file has for the setting.
        where: name of the setting, for messages.

    Raises:
        ConfigError: it is not a list, or is empty, or its values are not all different.
    """
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{where} must be a list of values or {{ low, high }}; got {values!r}")
    if any(value in values[:i] for i, value in enumerate(values)):
        raise ConfigError(f"{where}: values must be different; got {values!r}")
    return tuple(values)


def setting(key: str, where: str) -> str:
    """Return the dotted name of a setting, if a sweep can vary this setting.

    Args:
        key: the name.
        where: name of its table, for messages.

    Raises:
        ConfigError: it is neither an option of a method nor a setting of `local`.
    """
    root, _, rest = key.partition(".")
    if root not in ROOTS or not rest or (root == "method" and rest.partition(".")[0] in NO_OPTIONS):
        raise ConfigError(
            f"{where}: '{key}' cannot be varied: what can is a method's options, \"method.limit\", "
            'and its training, "local.lr"; the rest is the same for all that is compared'
        )
    return key


def size(space: Space) -> float:
    """Return the number of combinations in a search space; infinity if it has a range of reals."""
    return math.prod(c.count if isinstance(c, SearchRange) else len(c) for c in space.values())


def grid(space: Space) -> list[Point]:
    """Return every combination of listed values; the last setting varies fastest."""
    values = [c for c in space.values() if isinstance(c, tuple)]
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*values)]


def draw(choices: tuple[Any, ...] | SearchRange, stream: RandomStream) -> Any:
    """Draw one value of a setting from its listed values or its range."""
    rng = stream.numpy()
    return (
        choices.draw(rng)
        if isinstance(choices, SearchRange)
        else choices[rng.integers(len(choices))]
    )


def edges(space: Space, point: Point) -> list[str]:
    """Return texts on settings whose chosen value is the smallest or largest listed number.

    Args:
        space: the search space.
        point: the chosen combination of settings.
    """
    lines = []
    for key, value in point.items():
        choices = space[key]
        if isinstance(choices, SearchRange) or len(choices) < 2 or not all(map(is_number, choices)):
            continue
        if value in (min(choices), max(choices)):
            which = "smallest" if value == min(choices) else "largest"
            lines.append(f"{key} = {value} is the {which} value tried")
    return lines


def is_number(value: Any) -> bool:
    """Return whether a value is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
