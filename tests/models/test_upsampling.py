"""Upsampling by two: what a GPU computes is what torch's interpolation gives on a CPU."""

import pytest
import torch
from torch.nn import functional

from vergence.models.glc import upsampling
from vergence.models.glc.upsampling import between, double


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((2, 3, 5, 4), (2, 3)),
        ((2, 3, 2, 5, 4), (3, 4)),
        ((2, 3, 4, 5, 1), (2,)),
        ((1, 1, 1, 1), (3,)),
    ],
)
def test_sums_of_neighbours_are_linear_interpolation(shape, dims):
    """Values and gradients, in double precision."""
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, found = double(one, *dims), other
    for dim in dims:
        found = between(found, dim)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-14)


def test_by_hand():
    x = torch.tensor([[[[0.0, 4.0]]]])
    assert double(x, 3).tolist() == [[[[0.0, 1.0, 3.0, 4.0]]]]
    assert between(x, 3).tolist() == [[[[0.0, 1.0, 3.0, 4.0]]]]


def test_torchs_interpolation_is_left_to_cpus(monkeypatch):
    """Elsewhere its gradient is summed in an order of its own."""
    monkeypatch.setattr(functional, "interpolate", None)
    made = double(torch.empty(2, 3, 2, 5, 4, device="meta"), 2, 3, 4)
    assert made.shape == (2, 3, 4, 10, 8)
    with pytest.raises(TypeError):
        double(torch.empty(1, 1, 2, 2), 2)
    assert upsampling.functional is functional
