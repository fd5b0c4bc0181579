"""Participation of clients: availability, charging rules, losses in a round, final departures.

Used in `api`, `cli`, `engine`, `experiment` and `studies`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Gt

from vergence.core.federation import Federation
from vergence.core.method import Method
from vergence.core.naming import shown_integer
from vergence.core.options import NamedOptions, Share, check_ranges
from vergence.core.randomness import RandomStream
from vergence.data.io.delimited_text import detect_form, text_lines
from vergence.errors import ConfigError, DataError, nearest

COLUMNS = ("client", "round", "idle", "charging")
# A search for similar names compares with every client, which takes long among many.
SEARCHED = 1000


@dataclass(frozen=True)
class Participation(NamedOptions):
    """Presence of clients in rounds; a data centre with pooled data is always present.

    Args:
        cohort: clients asked per round: a fraction of those present (float), or their number (int).
        lost: probability that an asked client's reply never arrives in a round; the client's state
            then stays as it was. After the last round no reply is lost.
        gone: client -> round from which it is away for good.
        back: clients of `gone` that return after training, for the method's last exchange.
        trace: path of a CSV file `client,round,idle,charging`, where the last two are 0 or 1. A row
            is valid from its round until the client's next row. Without `trace` and `rhythm`, all
            clients are always present.
        rhythm: made-up days instead of a trace. Each client is present (idle and charging) for
            about a third of every `day` rounds. When this third begins is random for each client.
        day: rounds in a day of the rhythm.
        require: columns of the trace that must be 1 for a client to take part.
    """

    cohort: Annotated[int | float, Gt(0)] = 1.0
    lost: Share = 0.0
    gone: Mapping[str, int] = field(default_factory=dict)
    back: tuple[str, ...] = ()
    trace: str | None = None
    rhythm: bool = False
    day: Annotated[int, Gt(1)] = 24
    require: tuple[Literal["idle", "charging"], ...] = ("idle", "charging")

    def __post_init__(self) -> None:
        check_ranges(self, "presence")
        for client, since in self.gone.items():
            if since < 0:
                raise ConfigError(
                    f"presence: gone.{client} must be a round, 0 or more; got "
                    f"{shown_integer(int(since))}"
                )
        for client in self.back:
            if client not in self.gone:
                raise ConfigError(
                    f"presence: back: '{client}' never left; add gone.{client}, the round it "
                    "leaves in, or leave it out"
                )
        if self.trace and self.rhythm:
            raise ConfigError("presence: give a trace or a rhythm, not both")
        if isinstance(self.cohort, float) and self.cohort > 1:
            raise ConfigError(
                f"presence: cohort must be a share in (0, 1] or a whole number; got {self.cohort:g}"
            )

    def check(self, clients: Sequence[str]) -> None:
        """Check that the clients in `gone` exist, and that a trace covers all clients.

        Raises:
            ConfigError: `gone` names a client that does not exist.
            DataError: the trace cannot be read or has no row for a client.
        """
        for client in self.gone:
            if client not in clients:
                raise ConfigError(f"presence: gone: no client '{client}'{suggest(client, clients)}")
        missing = next((c for c in clients if c not in self._trace), None) if self.trace else None
        if missing is not None:
            raise DataError(
                f"{self.trace}: no row for client '{missing}'; add one (idle 0 keeps it away)"
            )

    @cached_property
    def _trace(self) -> dict[str, list[tuple[int, bool]]]:
        """The trace file: client -> (round, whether its device may take part from then on)."""
        if self.trace is None:
            return {}
        path = Path(self.trace)
        if not path.is_file():
            raise DataError(f"presence: no trace file at {path}")
        rows_of: dict[str, list[tuple[int, bool]]] = {}
        between = detect_form(path, "trace of presence").delimiter
        reader = csv.DictReader(text_lines(path, "trace of presence"), delimiter=between)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise DataError(f"{path}: the columns must be {','.join(COLUMNS)}")
        for line, row in enumerate(reader, start=2):
            try:
                fit = all(int(row[rule]) for rule in self.require)
                rows_of.setdefault(row["client"], []).append((int(row["round"]), fit))
            except (TypeError, ValueError):
                raise DataError(f"{path}, line {line}: not numbers: {row}") from None
        return {client: sorted(rows) for client, rows in rows_of.items()}

    def here(self, client: str, round: int, stream: RandomStream) -> bool:
        """Return whether a client is present in this round, so that it may be asked."""
        if not self.stays(client, round):
            return False
        if self.trace:
            rows = [fit for since, fit in self._trace.get(client, []) if since <= round]
            return bool(rows and rows[-1])
        # Computed, not stored: among millions of clients only those that are asked cost anything.
        if self.rhythm:
            bedtime = self.day * stream.child("bedtime", client).number() / 2**63
            return (round - bedtime) % self.day < self.day / 3
        return True

    def stays(self, client: str, round: int) -> bool:
        """Return whether a client has not left for good by this round."""
        return round < self.gone.get(client, math.inf)

    def staying(self, clients: Sequence[str], round: int) -> Sequence[str]:
        """Return the clients that have not left for good by this round."""
        # If nobody has left the same sequence is returned: a copy of millions of names takes time.
        departed = {client for client, since in self.gone.items() if since <= round}
        return [c for c in clients if c not in departed] if departed else clients

    def returned(self, clients: Sequence[str], rounds: int) -> Sequence[str]:
        """Return the clients that are present after the last of `rounds` rounds, in client order.

        Clients that left and come back are among them.
        """
        there = self.staying(clients, rounds)
        return [c for c in clients if c in there or c in self.back] if self.back else there

    def size(self, present: int) -> int:
        """Return the size of a cohort if `present` clients are present.

        It is at least 1 if `cohort` is a fraction. If `cohort` is a number, the size is this number
        even if fewer clients are present.
        """
        if isinstance(self.cohort, int):
            return self.cohort
        return max(round_half_up(self.cohort * present), 1)

    def ask(self, clients: Sequence[str], round: int, stream: RandomStream) -> list[str]:
        """Draw the cohort of a round from the clients that are present.

        The result is in client order. All cohorts of the same size are equally likely.
        """
        # For a cohort of fixed size, tries cost time by that size, however many clients there are.
        # Where few are present, and for a share of those present, each client is checked.
        present: Sequence[str] = clients
        if self.trace or self.rhythm or any(since <= round for since in self.gone.values()):
            if isinstance(self.cohort, int):
                tried = self._try(clients, round, stream)
                if tried is not None:
                    return tried
            present = [c for c in clients if self.here(c, round, stream)]
        size = min(self.size(len(present)), len(present))
        if size == len(present):
            return list(present)
        generator = stream.child("cohort", round).numpy()
        places: list[int] = generator.choice(len(present), size, replace=False).tolist()
        return [present[i] for i in sorted(places)]

    def _try(self, clients: Sequence[str], round: int, stream: RandomStream) -> list[str] | None:
        """Draw clients one after another until enough of them are present; None: too many tries.

        The result is in client order. All cohorts are equally likely, as the draws do not depend on
        who is present.
        """
        generator = stream.child("tries", round).numpy()
        tried: set[int] = set()
        present: list[int] = []
        # After tries of a quarter of all clients few can be present, and checking everybody costs
        # little more.
        size, limit = int(self.cohort), len(clients) // 4
        while size <= limit and len(tried) < limit:
            draws: list[int] = generator.integers(len(clients), size=max(size, 16)).tolist()
            for at in draws:
                if at in tried:
                    continue
                tried.add(at)
                if self.here(clients[at], round, stream):
                    present.append(at)
                    if len(present) == size:
                        return [clients[i] for i in sorted(present)]
        return None

    def loses(self, client: str, round: int, stream: RandomStream) -> bool:
        """Return whether a client's reply gets lost in this round."""
        if not self.lost:
            return False
        return bool(stream.child("lost", client, round).numpy().random() < self.lost)


def round_half_up(x: float) -> int:
    """Round to the nearest whole number, halves up."""
    return math.floor(x + 0.5)


def suggest(client: str, clients: Sequence[str]) -> str:
    """Return a hint for a wrong client id: a similar id, or the range of ids among many."""
    if len(clients) > SEARCHED:
        return f"; known: {clients[0]} to {clients[-1]}, {len(clients):,} clients"
    return nearest(client, clients)


def pooled_method(method: Method, people: Federation) -> Method:
    """Return a method that trains on these people's pooled data, as the only client."""
    # It is comparable only with as much training: it takes as many steps as all people together.
    if method.local.steps is None:
        return method
    steps = method.local.steps * len(people.people)
    return replace(method, local=replace(method.local, steps=steps))
