"""Gaze from a few samples: by hand, against scipy and torch's own layers, and the known faults."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn

from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError
from vergence.metrics.angles import to_vector
from vergence.training.few_shot import STRENGTHS, Estimator, error_deg, ridge

STREAM = RandomStream("few")


def shots(draws=2, n=60, seed=0):
    """Codes of which two values are the gaze, the others noise."""
    rng = torch.Generator().manual_seed(seed)
    gaze = 0.2 * torch.randn(draws, n, 2, generator=rng)
    noise = 0.1 * torch.randn(draws, n, 4, generator=rng)
    return torch.cat([gaze, noise], 2), gaze


def test_the_error_is_of_vectors_of_any_length():
    """Fault 3: twice the vector of (0.1, 0.2) is no error; read as (pitch, yaw) it would be."""
    gaze = torch.tensor([[0.1, 0.2], [-0.3, 0.0]])
    assert float(error_deg(2 * to_vector(gaze), gaze)) == pytest.approx(0, abs=1e-4)
    ahead = torch.tensor([[0.0, 0.0, -1.0]])
    yaw = torch.tensor([[0.0, np.deg2rad(7.0)]])
    assert float(error_deg(ahead, yaw)) == pytest.approx(7.0, abs=1e-4)


@pytest.mark.parametrize("fit", [lambda x, y: Estimator().fit(x, y, STREAM), ridge])
def test_gaze_in_the_code_is_found_and_is_a_unit_vector(fit):
    features, gaze = shots()
    read = fit(features, gaze)
    test, true = shots(draws=1, n=40, seed=1)
    found = read(test[0])
    assert tuple(found.shape) == (2, 40, 3)
    assert found.norm(dim=2).flatten().tolist() == pytest.approx([1.0] * 80, abs=1e-5)
    assert error_deg(found, true[0]).max() < 3.5


@pytest.mark.parametrize("fit", [lambda x, y: Estimator(epochs=1).fit(x, y, STREAM), ridge])
def test_codes_of_two_eyes_side_by_side_are_refused(fit):
    """Fault 2: 24 values do not go into an estimator of 12."""
    features, gaze = shots()
    read = fit(features, gaze)
    with pytest.raises(ConfigError, match="an estimator of 6 values was given 12"):
        read(torch.zeros(5, 12))
    with pytest.raises(ConfigError, match="one eye is one shot"):
        fit(features.reshape(2, 30, 12), gaze)


def test_nothing_but_the_shots_can_choose_an_epoch():
    """Fault 4: the estimator is given no test data and returns what its last epoch left."""
    assert list(inspect.signature(Estimator.fit).parameters) == [
        "self",
        "features",
        "gaze",
        "stream",
    ]
    features, gaze = shots()
    few = Estimator(epochs=3, halve=100)
    first = few.fit(features, gaze, STREAM)(features[0])
    assert torch.equal(first, few.fit(features, gaze, STREAM)(features[0]))
    assert not torch.equal(
        first, Estimator(epochs=4, halve=100).fit(features, gaze, STREAM)(features[0])
    )


def test_the_network_is_that_of_two_linear_layers_and_adam():
    """One draw, one batch of all shots: the same steps with torch's layers and Adam by hand.

    Kingma & Ba 2015, Algorithm 1; the rate is halved after two of four epochs.
    """
    features, gaze = shots(draws=1, n=8)
    found = Estimator(hidden=3, epochs=4, batch=8, halve=2).fit(features, gaze, STREAM)(features[0])
    source = STREAM.torch()
    network = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 3))
    with torch.no_grad():
        for layer, width in ((network[0], 6), (network[2], 3)):
            shape = (width, 3)
            layer.weight.copy_((width**-0.5 * (2 * torch.rand(shape, generator=source) - 1)).T)
            layer.bias.copy_(width**-0.5 * (2 * torch.rand(3, generator=source) - 1))
    weights = list(network.parameters())
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    for count in range(1, 5):
        rate = 1e-2 * 0.5 ** ((count - 1) // 2)
        loss = (network(features[0]) - to_vector(gaze[0])).abs().mean()
        slopes = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, g, m, v in zip(weights, slopes, first, second, strict=True):
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.999).add_(0.001 * g * g)
                scale = (v / (1 - 0.999**count)).sqrt() + 1e-8
                w.sub_(rate * m / (1 - 0.9**count) / scale)
    wanted = nn.functional.normalize(network(features[0]).detach(), dim=1)
    assert torch.allclose(found[0], wanted, atol=1e-5)


def test_draws_do_not_touch_each_other():
    """The first draw beside a second one with other gaze is what it is beside itself."""
    features, gaze = shots()
    other = torch.stack([gaze[0], -gaze[1]])
    few = Estimator(epochs=2)
    one, two = (few.fit(features, y, STREAM)(features[0]) for y in (gaze, other))
    assert torch.allclose(one[0], two[0], atol=1e-6)
    assert not torch.allclose(one[1], two[1], atol=1e-2)


def test_ridge_takes_the_penalty_that_leaving_one_out_likes_best():
    """Brute force: every penalty, every shot left out, normal equations on fixed scaled features.

    The mean of the others changes with the one left out: the intercept is a column of its own,
    without penalty.
    """
    features, gaze = shots(draws=1, n=12)
    x, y = features[0].double().numpy(), to_vector(gaze[0].double()).numpy()
    x = (x - x.mean(0)) / x.std(0, ddof=1)
    design = np.c_[np.ones(len(x)), x]

    def solve(rows, strength):
        penalty = strength * len(x) * np.diag([0.0] + [1.0] * x.shape[1])
        part = design[rows]
        return np.linalg.solve(part.T @ part + penalty, part.T @ y[rows])

    def missed(strength):
        rows = np.arange(len(x))
        return np.mean([(y[i] - design[i] @ solve(rows != i, strength)) ** 2 for i in rows])

    best = min(STRENGTHS, key=missed)
    wanted = design @ solve(np.arange(len(x)), best)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.allclose(ridge(features, gaze)(features[0])[0].numpy(), wanted, atol=1e-8)
