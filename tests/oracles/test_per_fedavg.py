"""Per-FedAvg on one number, trained by the real solver.

f1 = x^2 / 2 with gradient x and second derivative 1, f2 = (x - 3)^2 with 2 (x - 3) and 2. From
w = 1, alpha = 0.5 and beta = 0.1, one episode:
f1: near = 1 - 0.5 = 0.5, g' = 0.5; FO: w = 0.95; HF: d = 0.5, w = 1 - 0.1 (0.5 - 0.25) = 0.975.
f2, alpha = 0.25: near = 1 + 0.25 * 4 = 2, g' = -2; FO: w = 1.2;
HF: d = 2 * -2 = -4, w = 1 - 0.1 (-2 + 1) = 1.1.
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
from vergence.core.requests import Compute, Fit
from vergence.methods.per_fedavg import PerFedAvg
from vergence.training.sequential import Solver

ONE = replace(PLAIN, steps=1, epochs=1)
RECEIVED = {"model": params(1.0)}


def moved(method, data, asked=None):
    _, sealed = taught(method, TASK, NoState(), RECEIVED, data, asked=asked)
    return values(sealed.trees["model"].total)


@pytest.mark.parametrize(
    ("variant", "data", "alpha", "expected"),
    [
        ("fo", F1, 0.5, -0.05),
        ("hf", F1, 0.5, -0.025),
        ("fo", F2, 0.25, 0.2),
        ("hf", F2, 0.25, 0.1),
    ],
)
def test_one_episode(variant, data, alpha, expected):
    assert moved(PerFedAvg(local=ONE, variant=variant, alpha=alpha), data) == [expected]


@pytest.mark.parametrize("delta", [0.01, 1.0, 30.0])
def test_on_a_quadratic_the_difference_is_exact_for_any_reach(delta):
    assert moved(PerFedAvg(local=ONE, variant="hf", alpha=0.25, delta=delta), F2) == [0.1]


@pytest.mark.parametrize(("variant", "factor"), [("fo", 0.95), ("hf", 0.975)])
def test_episodes_follow_each_other(variant, factor):
    method = PerFedAvg(local=replace(ONE, steps=3), variant=variant, alpha=0.5)
    assert moved(method, F1) == [round(factor**3 - 1, 6)]


def test_the_server_takes_the_mean_and_predictions_one_step_more():
    """Ends 0.95 and 1 + 0.1 * 0 = 1 (alpha 0.5 leads f2 to its minimum): mean 0.975.

    A prediction: 0.975 / 2 = 0.4875, two steps 0.24375; f2: 3 at once.
    """
    method = PerFedAvg(local=ONE, alpha=0.5)
    after = play(method, begin(method))
    assert values(after.server.model) == [0.975]
    solver = Solver(TASK)

    def predicted(data, steps):
        site = ClientContext("new", data, data, TASK, 1, RandomStream("test"))
        message = Message("evaluate", {"model": after.server.model})
        asked = replace(method, steps=steps).model_on(NoState(), message, site)
        return values(drive(asked, lambda ask: solver.fit(ask, RandomStream("t"))))

    assert predicted(F1, 0) == [0.975]
    assert predicted(F1, 1) == [0.4875]
    assert predicted(F1, 2) == [0.24375]
    assert predicted(F2, 1) == [3.0]
    assert predicted(F1.subset([]), 1) == [0.975]


def test_the_step_of_w_is_the_local_optimisers_and_keeps_its_momentum():
    """Momentum 0.5 on f1, alpha 0.5: g' = 0.5, w = 0.95; g' = 0.475, w = 0.95 - 0.1 * 0.725."""
    local = replace(ONE, steps=2, momentum=0.5)
    assert moved(PerFedAvg(local=local, alpha=0.5), F1) == [-0.1225]


def test_what_is_asked():
    """Ten samples, two episodes: D and D'' of three, D' of five; the step on D is a plain one."""
    ten, asked = Samples({n: c.repeat(10) for n, c in F1.columns.items()}), []
    local = replace(ONE, steps=2, batch=5, momentum=0.5)
    moved(PerFedAvg(local=local, variant="hf", shots=3), ten, asked)
    sizes = [(type(ask), len(ask.data)) for ask in asked]
    assert sizes == [(Fit, 3), (Compute, 5), (Compute, 3), (Compute, 3), (Fit, 5)] * 2
    assert asked[0].local.momentum == 0
    assert asked[0].local.lr == 0.01
    assert asked[0].correction is None
    assert asked[4].local.momentum == 0.5


def test_batches_are_drawn_anew():
    """Of a hundred different samples, D, D' and D'' of an episode, and those of two, differ."""
    many, asked = Samples({n: c.repeat(100) for n, c in F1.columns.items()}), []
    many = Samples(
        {**many.columns, "b": many.columns["b"] + many.columns["b"].new_tensor(range(100))}
    )
    local = replace(ONE, steps=2, batch=5)
    moved(PerFedAvg(local=local, variant="hf", shots=5, alpha=1e-6), many, asked)
    rows = [tuple(sorted(asked[at].data.columns["b"].tolist())) for at in (0, 1, 2, 5, 6, 7)]
    assert len(set(rows)) == 6
    again = []
    moved(PerFedAvg(local=local, variant="hf", shots=5, alpha=1e-6), many, again)
    assert [a.data.columns["b"].tolist() for a in again] == [
        a.data.columns["b"].tolist() for a in asked
    ]


@pytest.mark.parametrize(("weights", "weight"), [("equal", 1.0), ("samples", 3.0)])
def test_weights(weights, weight):
    three = Samples({n: c.repeat(3) for n, c in F2.columns.items()})
    _, sealed = taught(PerFedAvg(local=ONE, weights=weights), TASK, NoState(), RECEIVED, three)
    assert sealed.trees["model"].weight == weight
