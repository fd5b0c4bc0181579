"""A line to homes in this process that take part in secure sums, and who vanishes when.

Aggregators, where there are any, are asked over the same line.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engine.toys import CHAIN, STAMP
from tests.lines import Line
from tests.privacy.sums import ends, register
from vergence.core.randomness import RandomStream
from vergence.core.serialization import unpack
from vergence.core.tags import tag
from vergence.data.synthetic.toy import Toy as People
from vergence.deployment.client_node import ClientNode
from vergence.deployment.protocol import ClientRequest
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.deployment.secure_sum_aggregator import SecureSumAggregator
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.protections.setup import client_hooks
from vergence.engine.round_loop import Plan, RunOutcome, run_rounds
from vergence.engine.secure_sum_attempts import PartyIdentity
from vergence.engine.secure_sums import SERVER, sums_for
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import StateError
from vergence.models.linear import Linear
from vergence.privacy.config import Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.privacy.folder_marks import FolderMark
from vergence.tasks.toy import ToyTask

PADS = Privacy(aggregation=SecureAggregationConfig())
SHARES = Privacy(aggregation=SecureAggregationConfig("additive"))
STEPS = ("Invitation", "Roster", "Delivery", "Survivors", "Agreements")
ON_SHARES = ("Invitation", "Openings", "Parts", "Helds", "Relayed", "Lookups")


class Circle(Line):
    """Homes of so many people, a new one for every request; `asked` holds requests and answers.

    `told` is what its operator hears. `gone(client, step, round)` tells who does not answer a
    message of a sum any more.
    """

    def __init__(
        self,
        method: Any,
        folder: Path,
        people: int = 5,
        policy: SecureAggregationConfig | None = None,
        inputs: int = 4,
        user: UserLevelConfig | None = None,
    ) -> None:
        self.method, self.folder = method, folder
        self.task = CHAIN if method.served else ToyTask(Linear(inputs))
        self.federation = People(people=people, inputs=inputs).load()
        self.workers: dict[str, ClientExecutor] = {}
        self.names = tuple(self.federation.clients)
        self.privacy = Privacy(aggregation=policy or SecureAggregationConfig(), user=user)
        self.plan = Plan(privacy=self.privacy, evaluate_every=0)
        self.sums = sums_for(self.plan, method, people)
        self.asked: list[tuple[str, ClientRequest, bytes]] = []
        self.gone: Callable[[str, int, int], bool] = lambda *_: False
        self.adding: dict[str, SecureSumAggregator] = {}
        self.told: list[tuple[str, str, str]] = []
        self.marks = folder / "marks"

    def tell(self, line: str, event: str, client: str = "") -> None:
        """Write down what the server tells its operator."""
        self.told.append((event, client, line))

    def identity(self, client: str | None = None) -> PartyIdentity:
        sign = None if client is None else ends(client)[0]
        known = (*self.names, *self.privacy.aggregators, SERVER)
        mark = None
        if client not in (None, SERVER):
            mark = FolderMark(self.place(client), "run", client, self.marks)
        return PartyIdentity("run", register(known), sign, mark)

    def aggregator(self, name: str) -> SecureSumAggregator:
        """Return an aggregator, as it was left; taken out of `adding` it is started anew."""
        if name not in self.adding:
            assert self.sums is not None
            self.place(name).mkdir(parents=True, exist_ok=True)
            trees = self.method.known_trees(self.method.server(self.task))
            self.adding[name] = SecureSumAggregator(
                self.place(name), name, self.sums, self.identity(name), self.method, trees
            )
        return self.adding[name]

    def place(self, client: str) -> Path:
        return self.folder / "homes" / client

    def home(self, client: str) -> ClientNode:
        if client not in self.workers:
            own = self.federation.only((client,))
            self.workers[client] = ClientExecutor(
                self.method,
                self.task,
                LocalData(own, own),
                RandomStream("run", 0),
                hooks=client_hooks(
                    self.plan, self.method, self.task, own, self.place(client), here=False
                ),
            )
        worker, folder = self.workers[client], self.place(client)
        folder.mkdir(parents=True, exist_ok=True)
        runner = ClientRunner(worker, ClientStateStore(folder, 0, worker.records), self.sums)
        return ClientNode(runner, client, identity=self.identity(client), plan=self.plan)

    def ask(self, client: str, request: bytes) -> bytes:
        what = unpack(request, ClientRequest)
        if what.sum_message is not None:
            policy = self.privacy.aggregation
            on_ring = policy is not None and policy.colluders is not None
            pads = (*STEPS[:2], "Numbers", *STEPS[2:]) if on_ring else STEPS
            steps = ON_SHARES if self.privacy.aggregators else pads
            step = steps.index(tag(type(what.sum_message)))
            if self.gone(client, step, what.message.round):
                raise ClientLost("vanished")
        shared = client in self.privacy.aggregators
        try:
            end = self.aggregator(client) if shared else self.home(client)
            answer = end.answer(request)
        except StateError as error:
            raise ClientLost(str(error)) from None
        self.asked.append((client, what, answer))
        return answer

    def run_rounds(self, **plan: Any) -> RunOutcome:
        """Run the method; the server has nobody's data, and no key but its own."""
        folder = RunDirectory(self.folder / "server", STAMP, elsewhere=True)
        folder.open()
        plan = {
            "rounds": 3,
            "evaluate_every": 0,
            "solver": "sequential",
            "privacy": self.privacy,
            **plan,
        }
        counts = {client: len(s.train) for client, s in self.federation.people.items()}
        pool_factory, self.plan = (
            remote_pool(self, identity=self.identity(SERVER), tell=self.tell),
            Plan(**plan),
        )
        return run_rounds(
            self.method,
            self.task,
            federation=remote_people("toy", counts),
            plan=self.plan,
            folder=folder,
            pool_factory=pool_factory,
        )
