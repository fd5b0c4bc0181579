"""A line to homes in this process that take part in secure sums, and who vanishes when.

Aggregators, where there are any, are asked over the same line.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines.toys import CHAIN, STAMP
from tests.privacy.sums import ends, register
from vergence.core.state import unpack
from vergence.core.stream import Stream
from vergence.data.toy import Toy as People
from vergence.engines.adding import Adding
from vergence.engines.conduct import Outcome, Plan, conduct
from vergence.engines.desk import Desk
from vergence.engines.errand import Errand
from vergence.engines.home import Home
from vergence.engines.remote import Lost, absent, hired
from vergence.engines.shelf import Shelf
from vergence.engines.store import Folder
from vergence.engines.sum_talks import Voice
from vergence.engines.sums import SERVER, sums_for
from vergence.engines.turn import Worker
from vergence.errors import StateError
from vergence.models.linear import Linear
from vergence.privacy.policy import Privacy, Secrecy, User
from vergence.tasks.toy import Toy

PADS = Privacy(aggregation=Secrecy())
SHARES = Privacy(aggregation=Secrecy("additive"))
STEPS = ("Invitation", "Roster", "Delivery", "Survivors", "Agreements")
ON_SHARES = ("Invitation", "Openings", "Parts", "Helds", "Relayed", "Lookups")


class Circle:
    """Homes of so many people, a new one for every errand; `asked` holds errands and answers.

    `gone(client, step, round)` tells who does not answer a message of a sum any more.
    """

    def __init__(
        self, method: Any, folder: Path, people: int = 5, policy: Secrecy | None = None,
        inputs: int = 4, user: User | None = None,
    ) -> None:  # fmt: skip
        self.method, self.folder = method, folder
        self.task = CHAIN if method.served else Toy(Linear(inputs))
        self.federation = People(people=people, inputs=inputs).load()
        self.workers: dict[str, Worker] = {}
        self.names = tuple(self.federation.clients)
        self.privacy = Privacy(aggregation=policy or Secrecy(), user=user)
        self.sums = sums_for(Plan(privacy=self.privacy), method, people)
        self.asked: list[tuple[str, Errand, bytes]] = []
        self.gone: Callable[[str, int, int], bool] = lambda *_: False
        self.adding: dict[str, Adding] = {}

    def voice(self, client: str | None = None) -> Voice:
        sign = None if client is None else ends(client)[0]
        known = (*self.names, *self.privacy.aggregators, SERVER)
        return Voice("run", register(known), sign)

    def aggregator(self, name: str) -> Adding:
        """Return an aggregator, as it was left; taken out of `adding` it is started anew."""
        if name not in self.adding:
            assert self.sums is not None
            self.place(name).mkdir(parents=True, exist_ok=True)
            offered = self.method.offer(self.method.server(self.task), "")
            self.adding[name] = Adding(self.place(name), name, self.sums, self.voice(name),
                                       self.method, offered)  # fmt: skip
        return self.adding[name]

    def place(self, client: str) -> Path:
        return self.folder / "homes" / client

    def home(self, client: str) -> Home:
        if client not in self.workers:
            own = self.federation.only((client,))
            self.workers[client] = Worker(
                self.method, self.task, own, own, Stream("run", 0), privacy=self.privacy
            )
        worker, folder = self.workers[client], self.place(client)
        folder.mkdir(parents=True, exist_ok=True)
        desk = Desk(worker, Shelf(folder, 0, worker.records), self.sums)
        return Home(desk, client, folder, voice=self.voice(client))

    def ask(self, client: str, errand: bytes) -> bytes:
        what = unpack(errand, Errand)
        if what.said is not None:
            steps = ON_SHARES if self.privacy.aggregators else STEPS
            step = steps.index(type(what.said).__name__)
            if self.gone(client, step, what.message.round):
                raise Lost("vanished")
        shared = client in self.privacy.aggregators
        try:
            end = self.aggregator(client) if shared else self.home(client)
            answer = end.answer(errand)
        except StateError as error:
            raise Lost(str(error)) from None
        self.asked.append((client, what, answer))
        return answer

    def conduct(self, **plan: Any) -> Outcome:
        """Run the method; the server has nobody's data, and no key but its own."""
        folder = Folder(self.folder / "server", STAMP, elsewhere=True)
        folder.open()
        plan = {"rounds": 3, "evaluate_every": 0, "solver": "sequential",
                "privacy": self.privacy, **plan}  # fmt: skip
        counts = {client: len(s.train) for client, s in self.federation.people.items()}
        hire = hired(self, voice=self.voice(SERVER))
        return conduct(self.method, self.task, absent("toy", counts), Plan(**plan),
                       folder, hire=hire)  # fmt: skip
