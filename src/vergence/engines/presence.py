"""Who is there: availability, charging rules, clients lost in a round, clients gone for good."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt

from vergence.core.ranges import Share, check_ranges
from vergence.core.stream import Stream
from vergence.errors import ConfigError, DataError, nearest

COLUMNS = ("client", "round", "idle", "charging")


@dataclass(frozen=True)
class Presence:
    """When clients take part; a data centre (pooled data) is always there.

    Args:
        cohort: clients asked per round: a share of those present (float) or a number (int).
        lost: share of asked clients whose reply never arrives; their state stays as it was.
        gone: clients that leave for good, and the round from which on.
        trace: CSV `client,round,idle,charging` (0 or 1), valid from that round until the client's
            next row; without it and without `rhythm` everybody is always there.
        rhythm: made-up days instead of a trace: each client sleeps, idle and on the charger, for
            about a third of `day` rounds, at its own hour.
        require: what a device must be to take part.
    """

    cohort: Annotated[int | float, Gt(0)] = 1.0
    lost: Share = 0.0
    gone: Mapping[str, int] = field(default_factory=dict)
    trace: str | None = None
    rhythm: bool = False
    day: Annotated[int, Gt(1)] = 24
    require: tuple[Literal["idle", "charging"], ...] = ("idle", "charging")

    def __post_init__(self) -> None:
        check_ranges(self, "presence")
        for client, since in self.gone.items():
            if since < 0:
                raise ConfigError(
                    f"presence: gone.{client} must be a round, 0 or more; got {since}"
                )
        if self.trace and self.rhythm:
            raise ConfigError("presence: give a trace or a rhythm, not both")
        if isinstance(self.cohort, float) and self.cohort > 1:
            raise ConfigError(
                f"presence: cohort must be a share in (0, 1] or a whole number; got {self.cohort:g}"
            )

    def check(self, clients: Sequence[str]) -> None:
        """Check that every client named here exists, and that a trace covers all of them.

        Raises:
            ConfigError: `gone` names a stranger.
            DataError: the trace cannot be read or has no row for a client.
        """
        for client in self.gone:
            if client not in clients:
                raise ConfigError(f"presence: gone: no client '{client}'{nearest(client, clients)}")
        missing = [c for c in clients if self.trace and c not in self._trace]
        if missing:
            raise DataError(
                f"{self.trace}: no row for client '{missing[0]}'; add one (idle 0 keeps it away)"
            )

    @cached_property
    def _trace(self) -> dict[str, list[tuple[int, bool]]]:
        if self.trace is None:
            return {}
        path = Path(self.trace)
        if not path.is_file():
            raise DataError(f"presence: no trace file at {path}")
        found: dict[str, list[tuple[int, bool]]] = {}
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise DataError(f"{path}: the columns must be {','.join(COLUMNS)}")
            for line, row in enumerate(reader, start=2):
                try:
                    fit = all(int(row[rule]) for rule in self.require)
                    found.setdefault(row["client"], []).append((int(row["round"]), fit))
                except (TypeError, ValueError):
                    raise DataError(f"{path}, line {line}: not numbers: {row}") from None
        return {client: sorted(rows) for client, rows in found.items()}

    def here(self, client: str, round: int, stream: Stream) -> bool:
        """Tell whether a client may be asked in this round."""
        if not self.stays(client, round):
            return False
        if self.trace:
            rows = [fit for since, fit in self._trace.get(client, []) if since <= round]
            return bool(rows and rows[-1])
        if self.rhythm:
            bedtime = stream.child("bedtime", client).numpy().uniform(0, self.day)
            return (round - bedtime) % self.day < self.day / 3
        return True

    def stays(self, client: str, round: int) -> bool:
        """Tell whether a client has not left for good by this round."""
        return round < self.gone.get(client, math.inf)

    def ask(self, clients: Sequence[str], round: int, stream: Stream) -> list[str]:
        """Draw the cohort of a round from those present, in client order."""
        present = [c for c in clients if self.here(c, round, stream)]
        if isinstance(self.cohort, int):
            size = min(self.cohort, len(present))
        else:
            size = min(max(round_half_up(self.cohort * len(present)), 1), len(present))
        if size == len(present):
            return present
        drawn = stream.child("cohort", round).numpy().choice(len(present), size, replace=False)
        return [present[i] for i in sorted(drawn)]

    def loses(self, client: str, round: int, stream: Stream) -> bool:
        """Tell whether a client's reply gets lost in this round."""
        return bool(stream.child("lost", client, round).numpy().random() < self.lost)


def round_half_up(x: float) -> int:
    """Round to the nearest whole number, halves up."""
    return math.floor(x + 0.5)
