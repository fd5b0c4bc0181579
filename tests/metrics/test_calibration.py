"""Offsets and slopes worked by hand, what shrinkage does, and the curve on real predictions."""

import math

import numpy as np
import pytest
import torch

from tests.conftest import research_data
from vergence.errors import ConfigError
from vergence.metrics.angles import angular_error_deg
from vergence.metrics.calibration import (
    COUNTS,
    KINDS,
    Calibration,
    FittedCalibration,
    errors_deg,
    orders,
)

PREDICTED = torch.tensor([[0.0, 0.0], [0.2, 0.0], [0.0, 0.1], [0.2, 0.1]], dtype=torch.float64)


def made(n=60, seed=0):
    rng = np.random.default_rng(seed)
    true = torch.from_numpy(rng.normal(0, 0.15, (n, 2)))
    return true + torch.tensor([0.05, -0.03]) + 0.02 * torch.from_numpy(
        rng.normal(size=(n, 2))
    ), true


def test_offset_is_the_mean_residual():
    """Residuals (0.1, 0.2), (0.3, 0): mean (0.2, 0.1)."""
    true = PREDICTED[:2] + torch.tensor([[0.1, 0.2], [0.3, 0.0]])
    got = Calibration().fit(PREDICTED[:2], true)
    torch.testing.assert_close(got.offset, torch.tensor([0.2, 0.1], dtype=torch.float64))
    assert not got.slope.any()
    torch.testing.assert_close(got(PREDICTED), PREDICTED + got.offset)


def test_shrunk_offset_counts_samples_without_error():
    """Three samples without error beside one of 0.4: a quarter is left."""
    got = Calibration(offset_prior=3).fit(PREDICTED[:1], PREDICTED[:1] + 0.4)
    torch.testing.assert_close(got.offset, torch.full((2,), 0.1, dtype=torch.float64))


def test_slope_of_a_ridge_by_hand():
    """Pitch x = -0.1, 0.1, -0.1, 0.1 and residual 0.5 x: x'x = 0.04, x'r = 0.02.

    slope = 0.02 / (0.04 + penalty); with slope_prior 0.04 it is 0.25, with ridge 0.01 for each of
    four samples as well.
    """
    true = PREDICTED.clone()
    true[:, 0] += 0.5 * (PREDICTED[:, 0] - 0.1)
    for calibration in (Calibration(slope_prior=0.04), Calibration(slope_prior=0, ridge=0.01)):
        got = calibration.fit(PREDICTED, true)
        assert got.slope[0, 0] == pytest.approx(0.25)
        assert got.slope[1].abs().max() < 1e-12
        assert got.offset.abs().max() < 1e-12


def test_affine_finds_an_affine_map():
    predicted, _ = made()
    turn = torch.tensor([[1.1, 0.05], [-0.1, 0.9]], dtype=torch.float64)
    true = predicted @ turn + 0.02
    got = Calibration(slope_prior=1e-12).fit(predicted, true)
    torch.testing.assert_close(got(predicted), true)


def test_a_weight_of_zero_leaves_a_sample_out():
    predicted, true = made(5)
    weight = torch.tensor([1.0, 1, 1, 0, 0], dtype=torch.float64)
    for calibration in KINDS.values():
        some, all_ = (
            calibration.fit(predicted[:3], true[:3]),
            calibration.fit(predicted, true, weight),
        )
        torch.testing.assert_close(some(predicted), all_(predicted))
        none = calibration.fit(predicted, true, 0 * weight)
        torch.testing.assert_close(none(predicted), predicted)


def test_a_slope_needs_a_penalty():
    with pytest.raises(ConfigError, match="slope_prior or ridge"):
        Calibration(slope_prior=0)
    with pytest.raises(ConfigError, match="offset_prior"):
        Calibration(offset_prior=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_error_is_that_of_the_samples_not_drawn(kind):
    """A plain loop over draws, without batches or masks, gives the same."""
    predicted, true = made()
    order = orders(60, 4, np.random.default_rng(1))
    got = errors_deg(KINDS[kind], predicted, true, order, (0, 5))
    assert got[0].tolist() == [float(angular_error_deg(predicted, true).mean())] * 4
    for draw in range(4):
        near, far = order[draw, :5], order[draw, 5:]
        fixed = KINDS[kind].fit(predicted[near], true[near])(predicted[far])
        assert float(got[1, draw]) == pytest.approx(
            float(angular_error_deg(fixed, true[far]).mean())
        )


def test_eyes_apart_or_each_get_their_own_offset():
    """Biases of +0.1 and -0.1 cancel together, and go once eyes are told apart."""
    _, true = made()
    side = torch.arange(60) // 30
    predicted = true + torch.where(side == 0, 0.1, -0.1)[:, None]
    order = orders(60, 3, np.random.default_rng(2))
    curve = {
        e: errors_deg(Calibration(), predicted, true, order, (20,), side, e).mean()
        for e in ("together", "apart", "each")
    }
    assert curve["together"] > 5
    assert max(curve["apart"], curve["each"]) < 1e-6
    # One sample each: both eyes are right; one sample in all: the other eye stays wrong.
    few = {
        e: errors_deg(Calibration(), predicted, true, order, (1,), side, e).mean()
        for e in ("apart", "each")
    }
    assert few["each"] < 1e-6
    half = 0.5 * float(angular_error_deg(predicted, true).mean())
    assert float(few["apart"]) == pytest.approx(half, rel=0.1)


def test_errors_say_what_is_wrong():
    predicted, true = made(10)
    order = orders(10, 2, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="10 calibration samples of 10 leave none"):
        errors_deg(Calibration(), predicted, true, order, (10,))
    with pytest.raises(ConfigError, match="which eye"):
        errors_deg(Calibration(), predicted, true, order, (1,), eyes="apart")
    with pytest.raises(ConfigError, match="6 calibration samples of each eye"):
        errors_deg(Calibration(), predicted, true, order, (6,), torch.arange(10) // 5, "each")


def public():
    folder = research_data("eyes/mpiigaze_9x15")
    with np.load(folder / "mpiigaze_9x15.npz") as file:
        arrays = {
            n: torch.from_numpy(file[n].astype(np.float64))
            for n in ("gaze", "pred_lenet", "pred_resnet_preact8")
        }
    return arrays.pop("gaze"), arrays


@pytest.mark.data
def test_people_of_the_public_runs():
    """eyeimages note 1.5, second public runs, p00 to p10, to the last digit printed."""
    gaze, predictions = public()
    errors = {n: angular_error_deg(p, gaze).mean(1).numpy() for n, p in predictions.items()}
    lenet = [4.20, 5.86, 6.21, 6.56, 5.82, 6.35, 5.87, 7.97, 6.65, 7.96, 6.88]
    resnet = [4.04, 4.76, 6.22, 5.10, 6.02, 6.41, 5.68, 6.35, 6.11, 5.91, 5.64]
    np.testing.assert_allclose(errors["pred_lenet"], lenet, atol=0.0051)
    np.testing.assert_allclose(errors["pred_resnet_preact8"], resnet, atol=0.0051)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "counts", "published"),
    [
        ("pred_lenet", "offset", COUNTS, [6.33, 7.80, 5.97, 5.74, 5.55, 5.47, 5.45]),
        ("pred_lenet", "affine", (9, 20, 50, 100), [6.18, 5.66, 5.47, 5.40]),
        pytest.param(
            "pred_resnet_preact8",
            "offset",
            COUNTS,
            [5.73, 6.64, 5.12, 4.95, 4.78, 4.72, 4.69],
            marks=pytest.mark.nightly,
        ),
        ("pred_resnet_preact8", "affine", (9, 20, 50, 100), [5.32, 4.88, 4.67, 4.61]),
    ],
)
def test_curve_of_the_note_within_a_tenth_of_a_degree(name, kind, counts, published):
    """eyeimages note 1.6: 20 draws x 15 people there, the 11 people present here.

    One sample is noisy: the mean of 20 draws has a deviation of 0.2, so it gets ten times as many.
    """
    gaze, predictions = public()
    curve = []
    for k in counts:
        rng = np.random.default_rng([k, 5])
        draws = [orders(3000, 200 if k == 1 else 20, rng) for _ in gaze]
        curve.append(
            np.mean(
                [
                    errors_deg(KINDS[kind], p, g, order, (k,)).mean()
                    for p, g, order in zip(predictions[name], gaze, draws, strict=True)
                ]
            )
        )
    np.testing.assert_allclose(curve, published, atol=0.1)


@pytest.mark.data
def test_shrinkage_helps_where_one_sample_harms():
    gaze, predictions = public()
    order = orders(3000, 50, np.random.default_rng(0))
    one = {
        kind: np.mean(
            [
                errors_deg(KINDS[kind], p, g, order, (0, 1)).mean(1).numpy()
                for p, g in zip(predictions["pred_lenet"], gaze, strict=True)
            ],
            axis=0,
        )
        for kind in ("offset", "shrunk offset")
    }
    assert one["offset"][1] > one["offset"][0] + 1
    assert one["shrunk offset"][1] < one["offset"][0] - 0.1


def test_no_slope_is_an_infinite_prior():
    assert math.isinf(KINDS["offset"].slope_prior)


def shifted(offset, noise, n=4000, slope=0.0, seed=0):
    """Predictions and true angles of somebody whose residuals are offset + slope * prediction."""
    rng = np.random.default_rng(seed)
    predicted = torch.from_numpy(rng.normal(0, 0.2, (n, 2)))
    residual = offset + slope * predicted + noise * torch.from_numpy(rng.normal(size=(n, 2)))
    return predicted, predicted + residual, None


def test_fitted_offset_is_that_of_a_normal_prior():
    """Offsets of .1 and -.1 and noise .05: k samples count k / (k + .05^2 / .1^2) = k / (k + .25).

    Three residuals of .2 come to .2 * 3 / 3.25.
    """
    others = [shifted(0.1, 0.05, seed=1), shifted(-0.1, 0.05, seed=2)]
    fitted = FittedCalibration.of(others)
    assert fitted.noise.tolist() == pytest.approx([0.0025] * 2, rel=0.05)
    assert fitted.spread[0].tolist() == pytest.approx([0.01] * 2, rel=0.05)
    assert not fitted.spread[1:].any()
    got = fitted.fit(PREDICTED[:3], PREDICTED[:3] + 0.2)
    assert got.offset.tolist() == pytest.approx([0.2 * 3 / 3.25] * 2, rel=0.02)
    assert not got.slope.any()


def test_nothing_is_corrected_without_samples_or_without_spread():
    others = [shifted(0.1, 0.05, seed=1), shifted(-0.1, 0.05, seed=2)]
    unsure = FittedCalibration.of(others, "slopes").fit(PREDICTED[:0], PREDICTED[:0])
    torch.testing.assert_close(unsure(PREDICTED), PREDICTED)
    flat = torch.ones(2).double()
    alike = FittedCalibration(0 * flat, flat, torch.zeros(4, 2).double())
    torch.testing.assert_close(alike.fit(PREDICTED, PREDICTED + 1)(PREDICTED), PREDICTED)


def test_fitted_slopes_of_many_samples_are_the_persons_own():
    others = [shifted(0.1, 0.05, slope=0.3, seed=1), shifted(-0.1, 0.05, slope=-0.3, seed=2)]
    fitted = FittedCalibration.of(others, "slopes")
    predicted, true, _ = shifted(0.05, 0.05, slope=0.2, seed=3)
    got = fitted.fit(predicted, true)
    assert got.slope.diagonal().tolist() == pytest.approx([0.2, 0.2], abs=0.01)
    assert float((got(predicted) - true).pow(2).mean()) == pytest.approx(0.05**2, rel=0.05)


def test_sampling_noise_is_no_difference_between_people():
    """Forty samples of people without any offset: their means differ by chance alone."""
    others = [shifted(0.0, 0.3, n=40, seed=seed) for seed in range(30)]
    spread = FittedCalibration.of(others).spread[0]
    assert (spread < 0.2 * 0.3**2 / 40 * 10).all()


def test_priors_need_two_people():
    with pytest.raises(ConfigError, match="two other people"):
        FittedCalibration.of([shifted(0.1, 0.05)])


def test_eyes_learn_from_each_other_and_apart():
    """Offsets .1 + .05 and .1 - .05 of the two eyes come out, from samples of both."""
    side = torch.arange(4000) % 2
    turn = 0.05 * (2 * side - 1)[:, None]
    (one, right, _), (two, left, _) = shifted(0.1, 0.02, seed=1), shifted(-0.1, 0.02, seed=2)
    fitted = FittedCalibration.of([(one, right + turn, side), (two, left - turn, side)], "eye")
    assert fitted.spread[:2].tolist() == [pytest.approx([v] * 2, rel=0.05) for v in (0.01, 0.0025)]
    got = fitted.fit(one, right + turn, side)
    assert (got.offset + got.eye).tolist() == pytest.approx([0.15] * 2, abs=0.002)
    moved = got(one[:2], side[:2]) - one[:2]
    assert moved[:, 0].tolist() == pytest.approx([0.05, 0.15], abs=0.002)
    assert not fitted.fit(one, right).eye.any()
