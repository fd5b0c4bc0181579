"""SG-ZSL: what the comparison knows of real samples, what it costs, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch

from tests.engine.toys import run_toy
from vergence.core.client import ClientContext
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Mean
from vergence.data.synthetic.zsl_synthetic import ZslSynthetic
from vergence.engine.protections.dry_run import dry_run
from vergence.engine.round_loop import Plan
from vergence.errors import ConfigError
from vergence.experiment.privacy.spent import spent_block, uncovered_text
from vergence.methods.generative.losses import kl, kl_to_shares
from vergence.methods.generative.pe_zsl import PeZsl
from vergence.methods.generative.sg_zsl import SgZsl, longest, moments_of, squares
from vergence.models.mlp import Mlp
from vergence.privacy.config import DpSgd, Privacy
from vergence.privacy.dp.accounting import Charge, epsilon
from vergence.privacy.dp.dp_sgd_solver import DpSolver, TrainingPass, TrainingSchedule, book_of
from vergence.privacy.hooks import ProtectedRun
from vergence.privacy.release_log import FOLDER, ReleaseLog
from vergence.tasks.zero_shot import ZeroShot

LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=32, lr=0.05)
SMALL = SgZsl(
    LOCAL, generator_rounds=2, samples=20, batch=40, rate=0.01, noise=8, hidden=16, knows="all"
)
TASK = ZeroShot(Mlp(inputs=64, hidden=(8,), classes=16))
PEOPLE = ZslSynthetic(images=10).load()
POLICY = DpSgd(epsilon=8.0)
PLAN = Plan(rounds=3, privacy=Privacy(solver=POLICY))


def test_a_profile_is_the_mean_of_shares_and_kl_against_it():
    real = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    p = real.softmax(1).mean(0, keepdim=True)
    made = torch.tensor([[0.5, 0.5], [0.2, 0.8]])
    rows = [float((p * (p / made[i].softmax(0)).log()).sum()) for i in (0, 1)]
    assert float(kl_to_shares(p, made)) == pytest.approx(sum(rows) / 2, abs=1e-6)
    assert float(kl_to_shares(real.softmax(1), made)) == pytest.approx(
        float(kl(real, made)), abs=1e-7
    )


@pytest.mark.parametrize(("entries", "high"), [(64, 1.0), (50, 2.0), (2, 1.0), (3, 20.0)])
def test_no_row_of_shares_is_longer_than_its_bound(entries, high):
    """The longest are corners of the box; one of them comes near the bound where there are many."""
    corners = torch.tril(torch.full((entries, entries), high))
    inside = torch.rand(500, entries, generator=RandomStream("shares").torch()) * high
    found = torch.cat([corners, inside]).softmax(1).norm(dim=1)
    bound = longest(entries, 0.0, high)
    assert float(found.max()) <= bound + 1e-6
    assert entries < 50 or float(found.max()) > 0.999 * bound
    assert longest(entries, 5.0, 5.0 + high) == bound


def test_moments_are_those_of_features_that_lie_in_their_range():
    """0, 1, 1 and 2 of [0, 4]: mean 1, variance 1/2; and a feature that is 3 in every row."""
    x = torch.tensor([[0.0, 3.0], [1.0, 3.0], [1.0, 3.0], [2.0, 3.0]])
    rows, _ = squares(x, 0.0, 4.0)
    wanted = torch.tensor([[1.0, 3.0], [0.5**0.5, 0.0]])
    torch.testing.assert_close(moments_of(rows.mean(0), 0.0, 4.0), wanted, atol=1e-3, rtol=0)
    # Noise may push a mean out of the range, and a mean square below the squared mean.
    wrong = torch.tensor([-9.0, 0.5, 0.0, -9.0])
    mean, deviation = moments_of(wrong, 0.0, 4.0)
    assert mean.tolist() == [0.0, 2.5]
    assert deviation.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 1.0), (0.0, 20.0)])
def test_no_sample_moves_the_sum_of_moments_further_than_its_bound(low, high):
    """An adversary adds one sample to a sum: the corners move it as far as the bound says.

    So do samples out of range, which are cut; a tighter bound would be a lie.
    """
    entries = 40
    corners = torch.tril(torch.ones(entries, entries)) * (high - low) + low
    inside = torch.rand(500, entries, generator=RandomStream("moments").torch())
    rows, bound = squares(torch.cat([corners, inside * (high - low) + low]), low, high)
    assert float(rows.norm(dim=1).max()) == pytest.approx(bound, rel=1e-5)
    outside, _ = squares(torch.full((3, entries), 1e6), low, high)
    moved = Mean(torch.cat([rows, outside]), bound).shortened()
    assert float(moved.norm(dim=1).max()) <= bound * (1 + 1e-6)
    assert torch.allclose(moved[: len(rows)], rows), "what is in range is not cut"


def test_the_owner_keeps_moments_and_answers_by_them_alone(tmp_path):
    method = replace(SMALL, regulariser="moments")
    outcome = run_toy(tmp_path, method, task=TASK, federation=PEOPLE, rounds=2)
    x = PEOPLE.people["owner"].train.columns["x"]
    profile = outcome.clients["owner"].profile
    assert profile is not None
    mean, deviation = profile["moments"]
    assert torch.allclose(mean, x.mean(0), atol=0.05)
    assert torch.allclose(deviation, x.std(0, correction=0), atol=0.05)
    assert method.exposure["guide"].blind
    assert "beyond" not in uncovered_text(method)
    assert [one.local is None for one in dry_run(method, TASK, PEOPLE, 3)] == [False, True]


def test_the_owner_keeps_the_mean_and_answers_without_samples(tmp_path):
    outcome = run_toy(tmp_path, SMALL, task=TASK, federation=PEOPLE, rounds=2)
    x = PEOPLE.people["owner"].train.columns["x"]
    kept = outcome.clients["owner"].profile["shares"]
    rows = Mean(x.softmax(1), longest(64, 0.0, 1.0)).shortened()
    assert 0 < int((rows != x.softmax(1)).any(1).sum()) < len(x) / 10  # features above 1
    p = rows.mean(0, keepdim=True)
    assert torch.allclose(kept, p / p.sum(), atol=1e-6)
    assert SMALL.exposure["guide"].blind
    assert not PeZsl().exposure["guide"].blind


@pytest.mark.slow
def test_teacher_and_profile_are_of_one_budget(tmp_path):
    run_toy(tmp_path, SMALL, task=TASK, federation=PEOPLE, rounds=3, privacy=PLAN.privacy)
    run = ProtectedRun(SMALL, TASK, PEOPLE, PLAN.rounds, tmp_path / "state")
    told = spent_block(PLAN, run)["sample"]
    assert len(told["charges"]) == 2
    assert [1.0, 1] in [charge[1:] for charge in told["charges"]]
    assert told["epsilon"] <= 8.0
    assert told["epsilon"] == pytest.approx(8.0, rel=0.01)
    assert told["check"] == pytest.approx(told["epsilon"], rel=0.05)


@pytest.mark.slow
def test_the_noise_of_a_mean_spends_its_share_and_training_the_rest():
    whole = TrainingSchedule(0.05, 200, 1)
    noise = whole.mean_noise(POLICY)
    assert epsilon([Charge(noise, 1.0, 1)], POLICY.delta) == pytest.approx(8 * 0.2, rel=0.01)
    assert whole.noise(POLICY) > TrainingSchedule(0.05, 200).noise(POLICY)
    assert whole.ledger(POLICY).epsilon(POLICY.delta) == pytest.approx(8.0, rel=0.01)


def test_a_mean_has_the_noise_that_is_charged_and_is_told_once(tmp_path):
    n, d = 40, 5000
    policy = DpSgd(noise=1.5)
    solver = DpSolver(TASK, policy, tmp_path, 0, [TrainingPass(None, 1.0, 1)])
    train = PEOPLE.people["owner"].train.subset(torch.arange(n))
    site = ClientContext("owner", train, train, TASK, 0, RandomStream())
    ask = Mean(torch.full((n, d), 1.0), 2.0)  # rows of length 70, cut to 2
    found = solver.mean(site, ask)
    deviation = TrainingSchedule(1.0, 0, 1).mean_noise(policy) * 2.0 / n
    assert deviation == pytest.approx(1.5 * 10 * 2 / 40)
    off = found - 2.0 / d**0.5
    assert float(off.std()) == pytest.approx(deviation, rel=0.05)
    assert abs(float(off.mean())) < 4 * deviation / d**0.5
    assert torch.equal(solver.mean(site, ask), found)  # the same release again, with the same noise
    assert not torch.equal(solver.mean(site, Mean(ask.values + 1, 2.0)), found)
    other = DpSolver(TASK, DpSgd(noise=3.0), tmp_path, 0, [TrainingPass(None, 1.0, 1)])
    twice = (other.mean(site, ask) - 2.0 / d**0.5) / 2
    assert not torch.allclose(twice, off, atol=deviation)  # else two of them would cancel the noise
    entries = ReleaseLog(tmp_path / FOLDER / book_of(0, "owner")).entries
    assert [entry[2:] for entry in entries] == [(15.0, 1.0, 1)] * 2 + [(30.0, 1.0, 1)]


def test_comparing_with_samples_is_said_to_go_beyond_the_budget():
    printed = replace(SMALL, compare="samples")
    assert "beyond" not in uncovered_text(SMALL)
    assert "real ones, at every 'guide'" in uncovered_text(printed)
    assert dry_run(printed, TASK, PEOPLE, 3)
    with pytest.raises(ConfigError, match="training samples"):
        dry_run(PeZsl(LOCAL, knows="all"), TASK, PEOPLE, 3)
    assert [one.local is None for one in dry_run(SMALL, TASK, PEOPLE, 3)] == [False, True]


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="mmd compares with single real samples"):
        replace(SMALL, regulariser="mmd")
    with pytest.raises(ConfigError, match="the classes of training samples"):
        dry_run(replace(SMALL, knows="own"), TASK, PEOPLE, 3)


def test_a_row_that_is_not_finite_counts_as_zeros_in_a_private_mean(tmp_path):
    """Three rows of norm 1 and one with a NaN: with hardly any noise the mean is 3/4 of a row."""
    policy = DpSgd(noise=1e-9)
    solver = DpSolver(TASK, policy, tmp_path, 0, [TrainingPass(None, 1.0, 1)])
    train = PEOPLE.people["owner"].train.subset(torch.arange(4))
    site = ClientContext("owner", train, train, TASK, 0, RandomStream())
    values = torch.tensor([[0.6, 0.8]] * 4)
    for wrong in (math.nan, math.inf):
        values[2, 1] = wrong
        found = solver.mean(site, Mean(values, 1.0))
        torch.testing.assert_close(found, torch.tensor([0.45, 0.6]), atol=1e-4, rtol=0)
