"""How a run protects people beyond what its method does: the table `privacy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from vergence.core.ranges import check_ranges
from vergence.errors import ConfigError
from vergence.privacy.rule import Rule
from vergence.privacy.terms import FEWEST


@dataclass(frozen=True)
class Secrecy:
    """How replies are added up so that nobody sees one of them; numbers above a limit are refused.

    Args:
        name: `pairwise`: clients hide their replies under pads that cancel out; `additive`: they
            split them among `aggregators`.
        min_contributors: a sum of fewer people is opened to nobody; where masks differ, nor is an
            entry that fewer people share.
        aggregators: 2 to 4 names, of different owners.
        range: the largest entry of an update.
        weight: the largest weight of a reply.
        metric: the largest metric of a reply.
    """

    name: Literal["pairwise", "additive"] = "pairwise"
    min_contributors: Annotated[int, Ge(FEWEST)] = FEWEST
    aggregators: tuple[str, ...] = ("one", "two")
    range: Annotated[float, Gt(0)] = 64.0
    weight: Annotated[float, Ge(1)] = 1e5
    metric: Annotated[float, Gt(0)] = 1e6

    def __post_init__(self) -> None:
        check_ranges(self, "privacy.aggregation")
        if not 2 <= len(set(self.aggregators)) == len(self.aggregators) <= 4:
            raise ConfigError(
                f"privacy.aggregation: aggregators must be 2 to 4 different names; got "
                f"{list(self.aggregators)}"
            )
        if self.name == "pairwise" and self.aggregators != type(self)("additive").aggregators:
            raise ConfigError("privacy.aggregation: aggregators are for 'additive'; leave them out")


@dataclass(frozen=True)
class Privacy:
    """One field for every means; nothing is done that is not asked for.

    Attributes:
        robust: stands in for the weighted sum of a round; None: the sum.
        aggregation: how replies are added up; None: whoever runs the server sees each of them.
    """

    robust: Rule | None = None
    aggregation: Secrecy | None = None
