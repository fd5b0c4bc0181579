"""Rounds of a method on f1 = x^2 / 2 and f2 = (x - 3)^2, trained by the real solver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.oracles.test_fedavg import F1, F2, PLAIN, One, Quadratic
from vergence.core.aggregation import add_up
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.data import Samples
from vergence.core.messages import Message, seal
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.training.sequential import Solver

__all__ = ["F1", "F2", "PLAIN", "TASK", "Played", "Quadratic", "begin", "play"]
TASK = Quadratic(One())
"""One number x, 1 at the start."""


@dataclass(frozen=True)
class Played:
    """Where a method stands: its server, its clients' states, and what they sent last."""

    server: Any
    clients: Mapping[str, Any]
    sent: Mapping[str, Mapping[str, Params]]


def begin(method: Method, clients: Sequence[str] = ("1", "2")) -> Played:
    """Return the start, setup done."""
    server = drive(method.setup(method.server(TASK), clients), None)
    return Played(server, {c: method.client(TASK) for c in clients}, {})


def play(
    method: Method,
    at: Played,
    data: Mapping[str, Samples] | None = None,
    lost: Sequence[str] = (),
    progress: float = 0.0,
) -> Played:
    """Hold one round with these clients; `lost` ones train, but nobody hears of it."""
    data = data if data is not None else {"1": F1, "2": F2}
    solver, clients, sent, sealed = Solver(TASK), dict(at.clients), {}, []
    for client, samples in data.items():
        site = ClientContext(client, samples, samples, TASK, 0, RandomStream(client), progress)
        message = Message("train", method.offer(at.server, client))

        def answer(ask: Any) -> Any:
            return (
                solver.fit(ask, RandomStream(), progress)
                if isinstance(ask, Fit)
                else solver.compute(ask)
            )

        state, reply = drive(method.on_train(clients[client], message, site), answer)
        if client not in lost:
            clients[client], sent[client] = state, reply.trees
            sealed.append(seal(reply, 0))
    heard = add_up(sealed, method.offer(at.server, ""))
    server = drive(method.round(at.server, list(data)), lambda _: heard)
    return replace(at, server=server, clients=clients, sent=sent)
