"""A server that lies, over the circle of homes: each client's real code, keys and disk."""

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tests.conformance.test_methods import build
from tests.engine.circle import Circle
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message
from vergence.core.serialization import pack, unpack, unpack_file
from vergence.deployment.protocol import ClientRequest, unframed
from vergence.deployment.secure_sum_client import StoredRow
from vergence.engine.plan import Plan
from vergence.engine.secure_sum_attempts import SumAnswer, hold
from vergence.engine.secure_sums import SumQuestion, sums_for
from vergence.errors import StateError
from vergence.privacy.config import SecureAggregationConfig, UserLevelConfig
from vergence.privacy.secure_aggregation.pairwise import PairwiseServer, converse

ADAM = LocalTraining(
    epochs=1, batch=8, optimizer="adamw", lr=1e-3, weight_decay=0.01, schedule="cosine"
)
"""Local training whose learning rate follows the rounds, as in most experiments."""


def circle(
    method: Any,
    folder: Path,
    people: int,
    policy: SecureAggregationConfig | None = None,
    user: UserLevelConfig | None = None,
    inputs: int = 4,
    rounds: int = 3,
    **plan: Any,
) -> Circle:
    """Homes whose own plan has so many rounds."""
    made = Circle(
        method, folder, people, policy or SecureAggregationConfig(), inputs=inputs, user=user
    )
    made.plan = Plan(privacy=made.privacy, **{"rounds": rounds, "evaluate_every": 0, **plan})
    made.sums = sums_for(made.plan, method, people)
    return made


def question(made: Circle, round: int, verb: str = "train") -> Message:
    """What a server asks everybody in a round: with the model that the method begins with."""
    server = made.method.server(made.task)
    return Message(verb, made.method.offer(server, ""), round=round)


def method(name: str = "fedavg", local: LocalTraining = ADAM, **more: Any) -> Any:
    return replace(build(name), local=local, **more)


def turns(made: Circle, round: int) -> dict[str, ClientRequest]:
    """The turns that clients were asked for in a round."""
    return {c: e for c, e, _ in made.asked if e.kind == "turn" and e.message.round == round}


def turn(made: Circle, client: str, request: ClientRequest) -> Any:
    """The note that a client answers a request with."""
    note, _ = unframed(made.home(client).answer(pack(request)))
    return note


def refusals(made: Circle, requests: dict[str, ClientRequest]) -> dict[str, str]:
    """Why clients refuse what they are asked; who answers is not there."""
    found = {}
    for client, request in requests.items():
        try:
            turn(made, client, request)
        except StateError as error:
            found[client] = str(error)
    return found


def row(made: Circle, client: str) -> np.ndarray:
    """What a client gave last, which no server sees."""
    return (
        unpack_file(made.place(client) / "sum.row", StoredRow, SumQuestion)
        .words.numpy()
        .view(np.uint64)
    )


def opened(made: Circle, message: Message, stamps: dict[str, str]) -> Any:
    """The layout and the sum of the rows that lie under these stamps, held under pads.

    Raises:
        StateError: a client refuses.
    """
    names = sorted(stamps)
    form = made.home(names[0]).runner.layout(message, {})
    assert made.sums is not None
    terms = made.sums.terms(form, message, "run", secrets.randbits(62), len(names))
    facts = {name: getattr(terms, name) for name in ("attempt", "threshold", "cipher")}

    def ask(asked: Any) -> Any:
        found = {}
        for name, said in asked.items():
            told = Message("say", {}, facts, message.round)
            request = ClientRequest("say", name, told, stamps[name], sum_message=said)
            answer = made.home(name).answer(pack(request))
            found[name] = unpack(unframed(answer)[1], *get_args(SumAnswer))
        return found

    register = made.identity().register
    return form, hold(converse(PairwiseServer(terms, {n: register[n] for n in names})), ask)


def model(form: Any, words: np.ndarray, people: int = 1) -> np.ndarray:
    """The model's entries that words hold."""
    return form.aggregate(words, people).totals["model"].flat.numpy().astype(float)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
