"""What an audit proves: against closed forms, then of DP-SGD as a run takes it."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from vergence.core.fitting import Fit, Local
from vergence.core.site import Samples, Site
from vergence.core.stream import Stream
from vergence.errors import ConfigError
from vergence.models.linear import Linear
from vergence.privacy import dp_solver
from vergence.privacy.accounting import gaussian_epsilon
from vergence.privacy.canary import audit, lower_bound
from vergence.privacy.dp_solver import DpSolver, Lesson
from vergence.privacy.keyed import Secret
from vergence.privacy.policy import DpSgd
from vergence.tasks.toy import Toy

DELTA, STEPS = 1e-5, 2
CANARY = torch.tensor([9.0, 9.0, 1.0]) / 163**0.5
"""Where the canary, x = (9, 9) and a target far above, pulls weights and bias."""


def claimed(noise):
    """Every sample in every step: mu = sqrt(steps) / noise."""
    return gaussian_epsilon(math.sqrt(STEPS) / noise, DELTA)


def test_the_bound_is_that_of_clopper_and_pearson():
    """All of 400 right, none of 400 wrong: log(0.025^(1/400) / (1 - 0.025^(1/400)))."""
    found = lower_bound(np.ones(800), np.zeros(800), 0.0)
    low = 0.025 ** (1 / 400)
    assert found.epsilon == pytest.approx(math.log(low / (1 - low)))
    exact = binomtest(400, 400).proportion_ci(0.95, "exact")
    assert low == pytest.approx(exact.low)
    assert lower_bound(np.zeros(800), np.ones(800), 0.0).epsilon == 0


@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_gaussian_noise_is_never_found_to_spend_more_than_it_does(mu):
    """With mu = 3, epsilon 16.7 at this delta, more than 1.2 is found."""
    generator = np.random.default_rng(0)
    for _ in range(5):
        found = lower_bound(generator.normal(mu, 1, 2000), generator.normal(0, 1, 2000), DELTA)
        assert found.epsilon <= (gaussian_epsilon(mu, DELTA) if mu else 0.05)
        assert mu < 3 or found.epsilon > 1.2


def test_too_few_runs_are_refused():
    with pytest.raises(ConfigError, match="4 runs"):
        lower_bound(np.ones(3), np.ones(9), DELTA)


def trained(tmp_path, monkeypatch, noise):
    """Sixteen ordinary samples and one place, of the canary or of a sample that pulls nowhere."""
    task = Toy(Linear(2))
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 2, generator=generator), torch.randn(16, generator=generator)
    local = Local(steps=STEPS, batch=17, lr=0.1, momentum=0.0, weight_decay=0.0)
    solver = DpSolver(task, DpSgd(noise=noise), tmp_path, 0, [Lesson(local, 1.0, 1)])
    monkeypatch.setattr(solver, "_spend", lambda *_: None)  # two thousand runs are no run's budget
    kinds = {
        present: Samples({"x": torch.cat([x, torch.full((1, 2), 9.0 * present)]),
                          "y": torch.cat([y, torch.tensor([1e6 * present])])})
        for present in (True, False)
    }  # fmt: skip

    def train(present, run):
        solver.secret = Secret(bytes(32)).child(present, run)
        data = kinds[present]
        site = Site("p00", data, data, task, 0, Stream("audit"))
        got = solver.train(site, Fit(task.init(), data, local), Stream("audit", run))
        order = torch.cat([got.params["weight"].flatten(), got.params["bias"]])
        return float(order @ CANARY)

    return train


def test_what_is_found_is_at_most_what_is_claimed(tmp_path, monkeypatch):
    """mu = 2 sqrt(2), epsilon 15.5: a canary that is seen in three of four runs or so."""
    found = audit(trained(tmp_path, monkeypatch, 0.5), 100, DELTA)
    assert 0.5 < found.epsilon <= claimed(0.5)


def test_noise_that_is_left_out_is_found(tmp_path, monkeypatch):
    """Epsilon 1.99 is claimed; 50 counted runs of either kind, all guessed right, prove 2.57."""
    train = trained(tmp_path, monkeypatch, 8**0.5)
    monkeypatch.setattr(dp_solver, "noised", lambda flat, _, n, __: flat.div_(n))
    assert audit(train, 100, DELTA).epsilon > claimed(8**0.5)
