"""Labs: clients that hold the data of several people each.

Used by `engine.lab_runner`, `engine.plan`, `engine.protections.user_level`
and `experiment.schema`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from vergence.core.federation import Federation, without_data
from vergence.core.identifiers import check_ids
from vergence.core.naming import list_names
from vergence.errors import ConfigError, DataError, meant

# A refusal with the names of a thousand people would hide what it says.
SHOWN = 5


@dataclass(frozen=True)
class Silos:
    """Division of people into labs, each of which is one client.

    Without labs, each person is a client.

    Attributes:
        labs: name of a lab -> the people in it, in the order in which they train.

    Raises:
        ConfigError: a lab is empty, a person is in two labs, or a name cannot be a client's name.
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
        # Labs and people must have different names, too: both name clients.
        except DataError as error:
            raise ConfigError(str(error)) from None

    def __bool__(self) -> bool:
        return bool(self.labs)

    @cached_property
    def lab_of(self) -> Mapping[str, str]:
        """The lab of each person."""
        return {person: lab for lab, members in self.labs.items() for person in members}

    def home(self, person: str) -> str:
        """Return the client that sends a person's replies: the person's lab, or the person."""
        return self.lab_of.get(person, person)

    def clients(self, people: Sequence[str]) -> Sequence[str]:
        """Return the clients of a run with these people: the labs, or the people themselves."""
        return tuple(self.labs) if self.labs else people

    def count(self, people: int) -> int:
        """Return the number of clients: of labs if there are any, else of people."""
        return len(self.labs) or people

    def inside(self, person: str) -> int:
        """Return the number of people in a person's lab; 1 if the person is in no lab."""
        return len(self.labs[self.lab_of[person]]) if person in self.lab_of else 1

    def size(self, client: str) -> int:
        """Return the number of people behind a client's replies: those in a lab, else 1."""
        return len(self.labs.get(client, (client,)))

    def together(self, clients: int) -> int:
        """Return the largest number of people that `clients` clients can have together."""
        sizes = sorted(map(len, self.labs.values()), reverse=True)
        return sum(sizes[:clients]) if self.labs else clients

    @property
    def most(self) -> int:
        """Number of people in the largest lab; 1 without labs."""
        return max(map(len, self.labs.values()), default=1)

    @property
    def fewest(self) -> int:
        """Number of people in the smallest lab; 1 without labs."""
        return min(map(len, self.labs.values()), default=1)

    def check(self, people: Sequence[str]) -> None:
        """Check that the people in labs are exactly the people of the data.

        Raises:
            ConfigError: people are missing or unknown; the message names them, and says what to do.
        """
        if not self.labs:
            return
        known = set(people)
        if unknown := [person for person in self.lab_of if person not in known]:
            raise ConfigError(
                f"silos: nobody is called {_some(unknown)} in the data"
                f"{meant(unknown[0], people)}; there are {_some(people)}: name people as the data "
                "do"
            )
        if missing := [person for person in people if person not in self.lab_of]:
            raise ConfigError(
                f"silos: {_some(missing)} of the data are in no lab: name everybody in one, or "
                "read fewer people (federation)"
            )

    def grouped(self, federation: Federation) -> Federation:
        """Return the labs as a federation without data, which knows their numbers of samples."""
        people = federation.people
        counts = {
            lab: sum(len(people[person].train) for person in members)
            for lab, members in self.labs.items()
        }
        return without_data(federation.name, counts)


NO_LABS = Silos()
"""The division without labs: each person is a client."""


def _some(names: Sequence[str]) -> str:
    """Return the first few names for a message, and how many more there are."""
    return list_names([f"'{name}'" for name in names], SHOWN)
