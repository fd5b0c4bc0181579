"""What a run computes from samples, what it costs, and how private means are made: by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.engine.toys import CHAIN as TASK
from tests.engine.toys import LOCAL
from vergence.core.client import ClientContext
from vergence.core.data import Samples
from vergence.core.randomness import RandomStream
from vergence.core.requests import Mean
from vergence.privacy.config import DpSgd
from vergence.privacy.dp.accounting import noise_for
from vergence.privacy.dp.dp_sgd_solver import (
    DpSgdBudgetSpent,
    DpSolver,
    TrainingPass,
    TrainingSchedule,
    rate_of,
    steps_of,
    training_schedule,
)
from vergence.privacy.release_log import Release, ReleaseLog

BATCH = replace(LOCAL, batch=8, epochs=3)
MIXED = [TrainingPass(BATCH, 1.0, 4), TrainingPass(None, 1.0, 2), TrainingPass(BATCH, 0.5, 5)]


@pytest.mark.parametrize(
    ("samples", "steps", "rate"), [(7, 3, 1.0), (8, 3, 1.0), (9, 6, 8 / 9), (24, 9, 1 / 3)]
)
def test_steps_and_rates_of_a_training_by_hand(samples, steps, rate):
    """Three epochs in batches of 8, the last one of an epoch smaller; a number of steps wins."""
    assert (steps_of(BATCH, samples), rate_of(BATCH, samples)) == (steps, rate)
    assert steps_of(replace(BATCH, steps=5), samples) == 5


def test_a_schedule_counts_trainings_and_means_apart():
    """Of 24 samples 4 trainings of 9 steps, 5 of 12 samples of 6, whose rate is the higher."""
    assert training_schedule(MIXED, 24) == TrainingSchedule(8 / 12, 4 * 9 + 5 * 6, 2)
    means = [TrainingPass(None, 1.0, 3), TrainingPass(None, 0.5, 4)]
    assert training_schedule(means, 24) == TrainingSchedule(1.0, 0, 7)
    assert training_schedule([], 24) == TrainingSchedule(1.0, 0, 0)
    # A share of less than half a sample is one sample.
    assert training_schedule([TrainingPass(BATCH, 0.01, 1)], 24) == TrainingSchedule(1.0, 3, 0)


def test_the_charges_of_a_schedule_by_hand():
    """With noise given, means get ten times as much; of a budget they get a fifth."""
    given = DpSgd(noise=1.5)
    whole = TrainingSchedule(0.25, 6, 2)
    charges = whole.ledger(given).charges
    assert [(c.noise, c.rate, c.steps) for c in charges] == [(1.5, 0.25, 6), (15.0, 1.0, 2)]
    (alone,) = TrainingSchedule(0.25, 6).ledger(given).charges
    assert (alone.noise, alone.rate, alone.steps) == (1.5, 0.25, 6)
    budget, full = DpSgd(epsilon=2.0), TrainingSchedule(1.0, 6, 2)
    assert full.mean_noise(budget) == noise_for(2.0 * 0.2, budget.delta, 1.0, 2)
    assert full.ledger(budget).epsilon(budget.delta) == pytest.approx(2.0, rel=1e-3)
    without = replace(full, means=0)
    assert without.noise(budget) == noise_for(2.0, budget.delta, 1.0, 6) < full.noise(budget)
    both = DpSgd(epsilon=2.0, noise=3.0)
    assert (full.noise(both), full.mean_noise(both)) == (3.0, 30.0)


def solver(folder, policy, *passes):
    return DpSolver(TASK, policy, folder, 0, passes)


def site(count):
    data = Samples({"x": torch.zeros(count, 2)})
    return ClientContext("p", data, data, TASK, 0, RandomStream("x"))


def test_a_private_mean_is_of_rows_cut_to_the_bound_and_nothing_else(tmp_path):
    """With next to no noise: (3, 4) is cut to the bound 1, NaN and infinity count as 0."""
    policy = DpSgd(noise=1e-9)
    trainer = solver(tmp_path, policy, TrainingPass(None, 1.0, 1))
    rows = [[3.0, 4.0], [0.5, 0.0], [math.nan, 0.1], [math.inf, 0.0]]
    found = trainer.mean(site(4), Mean(torch.tensor(rows), 1.0))
    np.testing.assert_allclose(found, [(0.6 + 0.5) / 4, 0.8 / 4], atol=1e-6)
    (entry,) = ReleaseLog(tmp_path / "privacy" / "seed0.client.p.csv").entries
    assert (entry.noise, entry.rate, entry.steps) == (1e-8, 1.0, 1)


def test_the_noise_of_a_mean_is_as_wide_as_said(tmp_path):
    """Noise 10 times 0.2 times the bound 3 over 5 samples, on 4000 columns of nothing."""
    trainer = solver(tmp_path, DpSgd(noise=0.2), TrainingPass(None, 1.0, 1))
    found = trainer.mean(site(5), Mean(torch.zeros(5, 4000), 3.0))
    assert float(found.std()) == pytest.approx(2.0 * 3 / 5, rel=0.05)
    assert abs(float(found.mean())) < 0.1
    again = trainer.mean(site(5), Mean(torch.zeros(5, 4000), 3.0))
    assert torch.equal(found, again)
    assert len(ReleaseLog(tmp_path / "privacy" / "seed0.client.p.csv").entries) == 1


def test_what_a_budget_foresees_is_not_counted_and_what_it_does_not_is(tmp_path):
    """Two means and eight steps are foreseen; a third mean, ninth step or less noise is not."""
    passes = [TrainingPass(replace(LOCAL, batch=64, epochs=8), 1.0, 1), TrainingPass(None, 1.0, 2)]
    policy = DpSgd(epsilon=2.0)
    trainer, whole = solver(tmp_path, policy, *passes), training_schedule(passes, 16)
    step, mean = whole.noise(policy), whole.mean_noise(policy)
    assert step < mean
    steps = Release("s", "s", step, 1.0, 8)
    means = [Release(n, n, mean, 1.0, 1) for n in "ab"]
    assert trainer._foreseen([steps], 16)
    # A mean has more noise than a step, so it may stand in a step's place.
    assert trainer._foreseen([steps._replace(steps=7), means[0]], 16)
    assert not trainer._foreseen([steps._replace(steps=9)], 16)
    assert not trainer._foreseen([steps._replace(noise=step * (1 - 1e-9))], 16)
    assert not trainer._foreseen([steps, means[0]], 16)
    assert not solver(tmp_path, DpSgd(epsilon=2.0, noise=9.0), *passes)._foreseen([], 16)
    trainer.spend("p", steps, 16)
    trainer.spend("p", steps, 16)
    book = ReleaseLog(tmp_path / "privacy" / "seed0.client.p.csv")
    assert book.entries == [steps]
    with pytest.raises(DpSgdBudgetSpent, match=r"would make epsilon .*, and 2 is allowed"):
        trainer.spend("p", Release("t", "t", step, 1.0, 8), 16)
    assert ReleaseLog(tmp_path / "privacy" / "seed0.client.p.csv").entries == [steps]
