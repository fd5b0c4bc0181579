"""Reptile on one number, trained by the real solver.

f1 = x^2 / 2, eta 0.1, two steps: U(w) = 0.81 w; f2 = (x - 3)^2: U(w) = 3 + 0.64 (w - 3). From w = 1
with rate 0.5 an episode ends at 0.905 and 1.36, a second one at 0.905^2 and 3 - 2 * 0.82^2.
"""

from dataclasses import replace

import pytest

from tests.oracles.quadratics import F1, F2, PLAIN, TASK, begin, play
from tests.scripts import params, taught, values
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.data import Samples
from vergence.core.messages import Message
from vergence.core.method import NoState
from vergence.core.randomness import RandomStream
from vergence.methods.fedavg import FedAvg
from vergence.methods.reptile import Reptile
from vergence.training.sequential import Solver

BASE = Reptile(local=PLAIN, episodes=1, inner_steps=2, rate=0.5)
RECEIVED = {"model": params(1.0)}


def ends(method):
    sent = [taught(method, TASK, NoState(), RECEIVED, data)[1] for data in (F1, F2)]
    return [round(1 + values(sealed.trees["model"].total)[0], 6) for sealed in sent]


@pytest.mark.parametrize(
    ("episodes", "expected"), [(1, [0.905, 1.36]), (2, [0.819025, round(3 - 2 * 0.82**2, 6)])]
)
def test_episodes_follow_each_other(episodes, expected):
    assert ends(replace(BASE, episodes=episodes)) == expected


@pytest.mark.parametrize(("server_lr", "expected"), [(1.0, 1.1325), (0.5, 1.06625), (2.0, 1.265)])
def test_the_server_moves_by_a_rate_to_the_mean(server_lr, expected):
    method = replace(BASE, server_lr=server_lr)
    assert values(play(method, begin(method)).server.model) == [expected]


def test_one_episode_of_everything_at_rate_one_is_fedavg():
    ours, theirs = replace(BASE, rate=1.0), FedAvg(local=replace(PLAIN, steps=2))
    assert values(play(ours, begin(ours)).server.model) == values(
        play(theirs, begin(theirs)).server.model
    )


def test_predictions_are_adapted_at_the_whole_rate():
    """From 1 on f1: 0.9 and 0.81, also after the last round of a schedule."""
    solver = Solver(TASK)
    method = replace(BASE, local=replace(PLAIN, schedule="cosine"))

    def predicted(data, steps):
        site = ClientContext("new", data, data, TASK, 1, RandomStream("test"))
        asked = replace(method, steps=steps).model_on(NoState(), Message("", RECEIVED), site)
        return values(drive(asked, lambda ask: solver.fit(ask, RandomStream("t"), 1.0)))

    assert predicted(F1, 0) == [1.0]
    assert predicted(F1, 1) == [0.9]
    assert predicted(F1, 2) == [0.81]
    assert predicted(F1.subset([]), 2) == [1.0]


def test_episodes_are_drawn_anew():
    numbers = F1.columns["b"].new_tensor(range(100))
    many, asked = Samples({"a": F1.columns["a"].repeat(100), "b": numbers}), []
    method = replace(BASE, episodes=3, shots=4, inner_steps=7)
    taught(method, TASK, NoState(), RECEIVED, many, asked=asked)
    assert [(len(a.data), a.local.steps) for a in asked] == [(4, 7)] * 3
    assert len({tuple(sorted(a.data.columns["b"].tolist())) for a in asked}) == 3


@pytest.mark.parametrize(("weights", "weight"), [("equal", 1.0), ("samples", 3.0)])
def test_weights(weights, weight):
    three = Samples({n: c.repeat(3) for n, c in F2.columns.items()})
    _, sealed = taught(replace(BASE, weights=weights), TASK, NoState(), RECEIVED, three)
    assert sealed.trees["model"].weight == weight
