"""Models of a few numbers, scripted training, and drivers: how tests hold a conversation."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from vergence.core.conversation import Request
from vergence.core.fitting import Fit, Fitted, OptimiserState
from vergence.core.mask import Mask
from vergence.core.params import Layout, Params
from vergence.core.stream import Stream
from vergence.core.wire import Message, add_up, seal


def layout(n: int, name: str = "weight") -> Layout:
    return Layout((name,), ((n,),))


def params(*values: float) -> Params:
    return Params(torch.tensor(values, dtype=torch.float64), layout(len(values)))


def mask(*values: int) -> Mask:
    return Mask(torch.tensor(values, dtype=torch.bool), layout(len(values)))


@dataclass(frozen=True)
class Numbers:
    """A task whose model is a list of numbers."""

    start: tuple[float, ...]

    def init(self) -> Params:
        return params(*self.start)


def site(round: int, client: str = "a", examples: int = 1):
    """A site whose data nobody looks at."""
    return SimpleNamespace(
        id=client, train=[None] * examples, val=[None], round=round, rng=Stream("test", client)
    )


def turn(method, state, received: Params, ends, round=0, client="a", examples=1.0, score=0.0):
    """Take one training turn; every fit it asks for ends at the next of `ends`."""
    ends = iter([ends] if isinstance(ends, Params) else ends)
    conversation = method.on_train(
        state, Message("train", {"model": received}, round=round), site(round, client)
    )
    answer = None
    while True:
        try:
            ask = conversation.send(answer)
        except StopIteration as end:
            state, reply = end.value
            return state, seal(reply, round)
        assert isinstance(ask, Fit)
        answer = Fitted(
            next(ends), examples, 1, OptimiserState({}, 0), {"loss": 0.0, "score": score}
        )


def aggregate(method, server, sealed):
    """Hold one round whose cohort replied this."""
    conversation = method.round(server, [f"c{i}" for i in range(len(sealed))])
    request = conversation.send(None)
    assert isinstance(request, Request)
    try:
        conversation.send(add_up(sealed, {"model": server.model}))
    except StopIteration as end:
        return end.value
    raise AssertionError("one request per round expected")


def values(got: Params) -> list[float]:
    return [round(float(v), 6) for v in got.flat]
