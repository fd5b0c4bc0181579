"""Gaze directions: the convention, its inverse, and the angle between two of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vergence.metrics.angles import angular_error_deg, mean_direction, to_angles, to_vector

PITCH = st.floats(-1.5, 1.5)
YAW = st.floats(-3.1, 3.1)


def test_reported_vector_has_the_reported_angles():
    """A GazeML issue gives g = (-0.01114, 0.25135, -0.9678): pitch -14.56, yaw +0.66 degrees.

    By hand: asin(-0.25135) = -14.557 deg, atan2(0.01114, 0.9678) = 0.6595 deg.
    """
    g = torch.tensor([-0.01114, 0.25135, -0.9678], dtype=torch.float64)
    pitch, yaw = torch.rad2deg(to_angles(g)).tolist()
    assert pitch == pytest.approx(-14.56, abs=0.005)
    assert yaw == pytest.approx(0.66, abs=0.005)


def test_axes_point_where_the_convention_says():
    """Straight ahead is (0, 0, -1); up is negative y; positive yaw is to the left, negative x."""
    quarter = math.pi / 2
    found = to_vector(torch.tensor([[0.0, 0.0], [quarter, 0.0], [0.0, quarter]]))
    expected = torch.tensor([[0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [-1.0, 0.0, 0.0]])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@settings(deadline=None, derandomize=True)
@given(PITCH, YAW)
def test_angles_survive_the_way_through_vectors(pitch, yaw):
    angles = torch.tensor([pitch, yaw], dtype=torch.float64)
    torch.testing.assert_close(to_angles(to_vector(angles)), angles, atol=1e-9, rtol=0)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0,)])
def test_angles_of_several_vectors_are_in_the_last_dimension(shape):
    dice = torch.Generator().manual_seed(0)
    angles = torch.rand(*shape, 2, generator=dice, dtype=torch.float64)
    torch.testing.assert_close(to_angles(3 * to_vector(angles)), angles, atol=1e-9, rtol=0)


@settings(deadline=None, derandomize=True)
@given(PITCH, YAW, PITCH, YAW)
def test_error_is_the_arccos_of_the_dot_product(p, y, q, z):
    one, other = (torch.tensor(a, dtype=torch.float64) for a in ([p, y], [q, z]))
    dot = float((to_vector(one) * to_vector(other)).sum())
    expected = math.degrees(math.acos(max(-1.0, min(1.0, dot))))
    assert float(angular_error_deg(one, other)) == pytest.approx(expected, abs=1e-5)


def test_error_is_no_difference_of_angles():
    """At pitch 60 degrees a yaw of 10 degrees is an angle of only 4.995 degrees.

    cos = sin^2 60 + cos^2 60 cos 10 = 0.75 + 0.25 * 0.984808 = 0.996202, arccos = 4.995 deg.
    """
    one, other = torch.deg2rad(torch.tensor([[60.0, 0.0], [60.0, 10.0]], dtype=torch.float64))
    expected = math.degrees(math.acos(0.75 + 0.25 * math.cos(math.radians(10))))
    assert expected == pytest.approx(4.995, abs=5e-4)
    assert float(angular_error_deg(one, other)) == pytest.approx(expected, abs=1e-9)


def test_slope_is_finite_where_the_prediction_is_right():
    predicted = torch.tensor([[0.1, -0.2], [0.0, 0.0]], requires_grad=True)
    angular_error_deg(predicted, torch.tensor([[0.1, -0.2], [0.3, 0.0]])).sum().backward()
    assert predicted.grad is not None
    assert predicted.grad.isfinite().all()
    assert predicted.grad[1, 0] == pytest.approx(-180 / math.pi, rel=1e-4)


def test_mean_direction_is_taken_on_the_sphere():
    """Yaw +170 and -170 degrees lie around yaw 180, not around their arithmetic mean 0."""
    angles = torch.deg2rad(torch.tensor([[0.0, 170.0], [0.0, -170.0]], dtype=torch.float64))
    assert abs(math.degrees(float(mean_direction(angles)[1]))) == pytest.approx(180)
