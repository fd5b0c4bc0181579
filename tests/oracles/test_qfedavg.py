"""q-FedAvg on one number: Li et al. 2020, Algorithm 2, worked by hand.

f1 = x^2 / 2 and f2 = (x - 3)^2, two steps of 0.1 from x = 1: losses F = 0.5 and 4, moves
d = -0.19 and 0.72, L = 10, so L d = -1.9 and 7.2. For q = 1 the moves count F L = 5 and 40, and
h = (L d)^2 + L F = 3.61 + 5 and 51.84 + 40; x moves by (5 * -0.19 + 40 * 0.72) / 100.45.
For q = 2: L F^2 = 2.5 and 160, h = 2 F (L d)^2 + L F^2 = 3.61 + 2.5 and 414.72 + 160.
"""

from dataclasses import replace

import pytest
import torch

from tests.oracles.quadratics import F1, F2, PLAIN, begin, play
from tests.scripts import aggregate, params, site
from vergence.core.conversation import Fit, drive
from vergence.core.local_training import LocalTraining
from vergence.core.messages import Message, seal
from vergence.core.method import Global
from vergence.core.requests import FitResult
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.methods.fedavg import FedAvg
from vergence.methods.qfedavg import QFedAvg
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask


@pytest.mark.parametrize(
    ("q", "moved"),
    [(0.0, 0.265), (1.0, 27.85 / 100.45), (2.0, 114.725 / 580.83)],
)
def test_two_clients_by_hand(q, moved):
    method = QFedAvg(local=PLAIN, q=q)
    x = play(method, begin(method)).server.model
    assert float(x.flat) == pytest.approx(1 + moved, abs=1e-9)


def test_one_step_of_one_client_is_a_step_on_f_to_the_q_plus_1():
    """K = 1: L d = -grad F. From x = 1 on f1: d = -0.1, q = 1: 5 * -0.1 / (1 + 5)."""
    method = QFedAvg(local=replace(PLAIN, steps=1), q=1.0)
    x = play(method, begin(method, "1"), {"1": F1}).server.model
    assert float(x.flat) == pytest.approx(1 - 0.5 / 6, abs=1e-9)


def test_l_follows_the_schedule():
    """At a tenth of the rate, one step: d = -0.01, L = 100: 50 * -0.01 / (1 + 50)."""
    method = QFedAvg(local=replace(PLAIN, steps=1, schedule="step"), q=1.0)
    x = play(method, begin(method, "1"), {"1": F1}, progress=0.5).server.model
    assert float(x.flat) == pytest.approx(1 - 0.5 / 51, abs=1e-9)


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_who_has_no_loss_left_stands_aside(q):
    """x = 3 is the optimum of f2: F2 = 0, d2 = 0; the step is that of f1 alone (F 4.5, d -0.57)."""
    method = QFedAvg(local=PLAIN, q=q)
    at = replace(begin(method), server=Global(params(3.0)))
    counts = 10 * 4.5**q
    alone = counts * -0.57 / (q * 4.5 ** (q - 1) * 5.7**2 + counts)
    x = play(method, at, {"1": F1, "2": F2}).server.model
    assert float(x.flat) == pytest.approx(3 + alone, abs=1e-4)


def pull(q, losses):
    """Return how far each of two clients, who move along an axis each, pulls the model."""
    method, start = QFedAvg(local=PLAIN, q=q), params(0, 0)
    sealed = []
    for loss, end in zip(losses, (params(1, 0), params(0, 1)), strict=True):
        place = site(0)
        place.progress = 0.0

        def answer(ask, loss=loss, end=end):
            return FitResult(end, 1.0, 1, None) if isinstance(ask, Fit) else loss

        _, reply = drive(method.on_train(None, Message("train", {"model": start}), place), answer)
        sealed.append(seal(reply, 0))
    return aggregate(method, Global(start), sealed).model.flat.tolist()


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 2.0, 4.0])
def test_the_worse_off_pulls_harder(q):
    """Losses 1 and 2, equal moves: pulls are as 1 to 2^q."""
    better, worse = pull(q, (1.0, 2.0))
    assert worse / better == pytest.approx(2**q)


def test_q_0_is_uniform_fedavg(tmp_path):
    """Whole runs, people of unequal size; to rounding, as L is multiplied in and divided out."""
    local, models = LocalTraining(optimizer="sgd", epochs=2, batch=8, lr=0.05), []
    people = People(people=4).load()
    for method in (QFedAvg(local=local, q=0.0), FedAvg(local=local, weights="equal")):
        folder = RunDirectory(tmp_path / type(method).__name__, {"config": "a"})
        folder.open()
        plan = Plan(rounds=5, evaluate_every=0, workers=1)
        models.append(
            run_rounds(
                method, ToyTask(Linear()), federation=people, plan=plan, folder=folder
            ).server.model.flat
        )
    assert torch.allclose(*models, atol=1e-5)


def test_larger_q_comes_to_rest_nearer_to_the_worse_off():
    """At FedAvg's rest, 1.96, f1 costs 1.9 and f2 1.1: larger q moves x towards f1's optimum, 0.

    At rest F1^q d1 + F2^q d2 = 0, with d1 = -0.19 x and d2 = 0.36 (3 - x); for q = 0,
    x = 1.08 / 0.55.
    """
    rests = []
    for q in (0.0, 0.5, 1.0):
        method = QFedAvg(local=PLAIN, q=q)
        at = replace(begin(method), server=Global(params(1.9)))
        for _ in range(80):
            at = play(method, at)
        x = float(at.server.model.flat)
        pulls = (x**2 / 2) ** q * 0.19 * x, (3 - x) ** (2 * q) * 0.36 * (3 - x)
        assert pulls[0] == pytest.approx(pulls[1], abs=1e-6)
        rests.append(x)
    assert rests[0] == pytest.approx(1.08 / 0.55, abs=1e-6)
    assert rests[0] > rests[1] + 0.01 > rests[2] + 0.02
