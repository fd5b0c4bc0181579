"""Kernel corrections of gaze angles: against the textbook formula, and in a run's network."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import vergence as vg
from vergence.adaptation.fine_tuning import PersonalModel
from vergence.core.randomness import RandomStream
from vergence.errors import DataError
from vergence.models.kernel_eye import SIDE
from vergence.models.personal_eye import PersonalEye, linear_terms, person_inputs
from vergence.models.small_eye import SmallEye
from vergence.training.residual_kernel import (
    DEFAULT,
    RATIOS,
    ResidualKernel,
    evidence,
    fit_alone,
)
from vergence.training.ridge import alone


def person(count: int, seed: int):
    """Predictions, true angles and inputs of one person, from random crops."""
    draw = RandomStream("residual kernel", seed).torch()
    image = torch.randn(count, 1, 9, 15, generator=draw)
    pose = 0.1 * torch.randn(count, 2, generator=draw)
    side = torch.arange(count) % 2
    inputs = person_inputs(image, pose, side.float())
    predicted = 0.1 * torch.randn(count, 2, generator=draw, dtype=torch.float64)
    return SimpleNamespace(
        image=image, pose=pose, side=side, inputs=inputs.double(), predicted=predicted, draw=draw
    )


def covariance(one, two, variances):
    """Return the covariance of two people's samples for one angle, term by term."""
    signs = [2.0 * each.side.double()[:, None] - 1 for each in (one, two)]
    poses = [each.inputs[:, -3:-1] for each in (one, two)]
    distance = torch.cdist(one.inputs, two.inputs) ** 2
    return (
        variances[0]
        + variances[1] * signs[0] @ signs[1].T
        + variances[2] * poses[0] @ poses[1].T
        + variances[3] * one.predicted @ two.predicted.T
        + variances[4] * torch.exp(-2.0 * distance)
    )


def test_the_correction_is_the_mean_of_the_posterior():
    own, new = person(7, 0), person(4, 1)
    variances = torch.rand(6, 2, generator=own.draw, dtype=torch.float64)
    true = torch.randn(7, 2, generator=own.draw, dtype=torch.float64)
    made = ResidualKernel(variances).fit(own.predicted, true, own.inputs)
    for angle in (0, 1):
        v = variances[:, angle]
        among = covariance(own, own, v) + v[5] * torch.eye(7)
        residual = (true - own.predicted)[:, angle]
        expected = covariance(new, own, v) @ torch.linalg.inv(among) @ residual
        change = (made(new.predicted, new.inputs) - new.predicted)[:, angle]
        assert torch.allclose(change, expected, atol=1e-6)


def test_alone_takes_the_prediction_away():
    own, new = person(7, 0), person(4, 1)
    true = torch.randn(7, 2, generator=own.draw, dtype=torch.float64)
    made = fit_alone(own.predicted, true, own.inputs)
    assert torch.allclose(made(new.predicted, new.inputs), alone(own.inputs, true, new.inputs))


def test_a_term_in_which_others_do_not_differ_is_never_fitted():
    """Residuals of others differ by eye and have noise: 0.06 radians by person, and 0.02."""
    others = []
    for seed in range(8):
        each = person(40, seed)
        sign = 2.0 * each.side.double()[:, None] - 1
        noise = 0.02 * torch.randn(40, 2, generator=each.draw, dtype=torch.float64)
        own = 0.06 * torch.randn(1, 2, generator=each.draw, dtype=torch.float64)
        others.append(evidence(each.predicted, each.predicted + own * sign + noise, each.inputs))
    variances = ResidualKernel.of(torch.stack(others).sum(0)).variances
    assert variances[1].tolist() == pytest.approx([0.0036, 0.0036], rel=0.7)
    # Random crops are nearly orthogonal, so that the kernel between them is noise, too.
    assert variances[4:].sum(0).tolist() == pytest.approx([4e-4, 4e-4], rel=0.2)
    assert float(variances[0].max()) < 1e-4


def test_evidence_is_the_likelihood_of_the_textbook_under_every_setting():
    """Of random settings; the largest likelihood over the noise is found by trying many."""
    each = person(9, 3)
    true = torch.randn(9, 2, generator=each.draw, dtype=torch.float64)
    made = evidence(each.predicted, true, each.inputs)
    settings = torch.cartesian_prod(*map(torch.tensor, RATIOS)).double()
    assert made.shape == (3 * len(settings) + 1,)
    assert made[-1] == 9
    pitch, yaw, determinant = made[:-1].reshape(3, -1)
    for at in (0, 7, 500, len(settings) - 1):
        whole = covariance(each, each, settings[at]) + torch.eye(9)
        for angle, square in enumerate((pitch, yaw)):
            residual = (true - each.predicted)[:, angle]
            normal = torch.distributions.MultivariateNormal(torch.zeros(9).double(), 0.3 * whole)
            expected = -2 * normal.log_prob(residual) - 9 * math.log(2 * math.pi)
            value = square[at] / 0.3 + 9 * math.log(0.3) + determinant[at]
            assert float(value) == pytest.approx(float(expected), rel=1e-5)


def test_variances_of_a_sum_are_those_with_the_largest_likelihood():
    """The residuals are drawn from the process itself, with ratios that are among those tried."""
    ratios = torch.tensor([3.0, 0, 4, 16, 4], dtype=torch.float64)
    people = []
    for seed in range(30):
        each = person(60, seed)
        whole = covariance(each, each, ratios) + torch.eye(60)
        draws = torch.linalg.cholesky(whole) @ torch.randn(60, 2, generator=each.draw).double()
        people.append(evidence(each.predicted, each.predicted + 0.05 * draws, each.inputs))
    variances = ResidualKernel.of(torch.stack(people).sum(0)).variances
    expected = 0.05**2 * torch.tensor([3, 0, 4, 16, 4, 1.0])
    for angle in (0, 1):
        assert variances[0, angle] == pytest.approx(float(expected[0]), rel=0.7)
        assert float(variances[1, angle]) < 3e-4
        # Random crops are nearly orthogonal: the kernel between them is noise, too.
        assert float(variances[4:, angle].sum()) == pytest.approx(5 * 0.05**2, rel=0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_sums_that_are_no_numbers_are_refused(bad):
    total = evidence(*(getattr(person(5, 0), name) for name in ("predicted",) * 2 + ("inputs",)))
    total[3] = bad
    with pytest.raises(DataError, match="finite"):
        ResidualKernel.of(total)
    with pytest.raises(DataError, match="0 samples"):
        ResidualKernel.of(torch.zeros_like(total))


@pytest.mark.parametrize("far", [math.nan, 7.0, 1e10, 1e200])
def test_predictions_beyond_all_directions_say_nothing_of_people(far):
    each = person(60, 0)
    predicted = torch.full((60, 2), 0.1, dtype=torch.float64)
    assert evidence(predicted, predicted + 0.1, each.inputs).isfinite().all()
    predicted[7, 1] = far
    made = evidence(predicted, torch.zeros(60, 2), each.inputs)
    assert made.isnan().all()
    assert made.shape == evidence(each.predicted, each.predicted, each.inputs).shape


def test_unknown_sides_change_no_distance_and_no_term():
    each = person(5, 0)
    inputs = person_inputs(each.image, each.pose)
    assert inputs.shape == each.inputs.shape
    assert linear_terms(each.predicted, inputs.double())[:, 1].abs().max() < 1e-6
    known = person_inputs(each.image, each.pose, torch.zeros(5))
    assert torch.allclose(torch.cdist(inputs, inputs), torch.cdist(known, known), atol=1e-5)
    assert float((known[0] - inputs[0]).abs().max()) == pytest.approx(SIDE / 2)


def test_the_network_of_an_adapted_run_corrects_as_the_correction_does():
    each = person(6, 0)
    shared = SmallEye(standardize=True)
    task = vg.tasks.GazeAngle(shared)
    start = task.init()
    predicted = task.module()(each.image, each.pose).detach()
    true = torch.randn(6, 2, generator=each.draw, dtype=torch.float64)
    made = DEFAULT.fit(predicted.double(), true, each.inputs)
    model = PersonalEye(shared, samples=6, inputs=each.inputs.shape[1])
    module = replace(task, network=model).module()
    params = made.params(PersonalModel(start).params)
    assert [name for name, _ in module.named_parameters()] == list(params)
    module.load_state_dict({name: params[name] for name in params})
    answer = module(each.image, each.pose, each.side.float()).detach().double()
    assert torch.allclose(answer, made(predicted.double(), each.inputs), atol=1e-5)
    assert not torch.allclose(answer, predicted.double(), atol=0.01)
