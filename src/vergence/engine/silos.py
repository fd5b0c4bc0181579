"""People in labs: who is in which, and what a lab is where clients are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from vergence.core.federation import Federation, without_data
from vergence.core.identifiers import check_ids
from vergence.errors import ConfigError, DataError

SHOWN = 5
"""Names that a refusal repeats."""


@dataclass(frozen=True)
class Silos:
    """Labs that are one client each, with many people inside; without labs everybody is a client.

    Attributes:
        labs: name of a lab -> the people in it, in the order in which they take their turns.

    Raises:
        ConfigError: a lab is empty, somebody is in two, or a name cannot be a client's.
    """

    labs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        people = [person for members in self.labs.values() for person in members]
        for lab, members in self.labs.items():
            if not members:
                raise ConfigError(f"silos: lab '{lab}' has nobody in it; name its people")
        twice = next((person for person in people if people.count(person) > 1), None)
        if twice is not None:
            raise ConfigError(f"silos: '{twice}' is in two labs, or twice in one; keep one of them")
        try:
            check_ids((*self.labs, *people), "silos")
        except DataError as error:  # a lab that is called as a person is, too
            raise ConfigError(str(error)) from None

    def __bool__(self) -> bool:
        return bool(self.labs)

    @cached_property
    def lab_of(self) -> Mapping[str, str]:
        """Person -> lab."""
        return {person: lab for lab, members in self.labs.items() for person in members}

    def home(self, person: str) -> str:
        """Client that a person's replies come from: the lab, or the person."""
        return self.lab_of.get(person, person)

    def clients(self, people: Sequence[str]) -> Sequence[str]:
        """Clients of a run with these people: the labs, or the people themselves."""
        return tuple(self.labs) if self.labs else people

    def count(self, people: int) -> int:
        """Number of clients where there are so many people, or of labs where there are any."""
        return len(self.labs) or people

    def inside(self, person: str) -> int:
        """Number of people in a person's lab; 1 where they are in none."""
        return len(self.labs[self.lab_of[person]]) if person in self.lab_of else 1

    def size(self, client: str) -> int:
        """Number of people in a client: of a lab its people, else 1."""
        return len(self.labs.get(client, (client,)))

    def together(self, clients: int) -> int:
        """Most people that so many clients have together: those of the largest labs."""
        sizes = sorted(map(len, self.labs.values()), reverse=True)
        return sum(sizes[:clients]) if self.labs else clients

    @property
    def most(self) -> int:
        """People in the largest lab; 1 without labs."""
        return max(map(len, self.labs.values()), default=1)

    @property
    def fewest(self) -> int:
        """People in the smallest lab; 1 without labs."""
        return min(map(len, self.labs.values()), default=1)

    def check(self, people: Sequence[str]) -> None:
        """Check that everybody of the data is in a lab, and that nobody else is.

        Raises:
            ConfigError: names who is not, and what to do.
        """
        if not self.labs:
            return
        known = set(people)
        if strangers := [person for person in self.lab_of if person not in known]:
            raise ConfigError(
                f"silos: nobody is called {_some(strangers)} in the data; there are {_some(people)}"
            )
        if left := [person for person in people if person not in self.lab_of]:
            raise ConfigError(
                f"silos: {_some(left)} of the data are in no lab: name everybody in one, or read "
                "fewer people (federation)"
            )

    def grouped(self, federation: Federation) -> Federation:
        """Federation of labs that have as many training samples as their people together, no data.

        Without labs the federation as it is.
        """
        if not self.labs:
            return federation
        people = federation.people
        counts = {
            lab: sum(len(people[person].train) for person in members)
            for lab, members in self.labs.items()
        }
        return without_data(federation.name, counts)


NO_LABS = Silos()
"""Everybody is a client."""


def _some(names: Sequence[str]) -> str:
    """First names of a row of them, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:SHOWN]) + more
