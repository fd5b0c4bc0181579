"""Nearest neighbours: by hand, and one half where two sorts of samples are alike."""

import torch

from vergence.metrics.nearest_neighbours import nearest, own_kind_share

LINE = torch.tensor([[0.0], [1.0], [3.0], [3.5]])


def test_by_hand():
    """0 and 1 are nearest to each other, so are 3 and 3.5; among 1.2 and 9, 0 to 3.5 take 1.2."""
    assert own_kind_share(LINE, torch.tensor([0, 0, 1, 1])) == 1
    assert own_kind_share(LINE, torch.tensor([0, 1, 1, 1])) == 0.5
    others = torch.tensor([[1.2], [9.0]]), torch.tensor([1, 0])
    assert own_kind_share(LINE, torch.tensor([0, 1, 1, 1]), others) == 0.75
    far, which = nearest(LINE)
    assert far.tolist() == [1, 1, 0.5, 0.5]
    assert which.tolist() == [1, 0, 3, 2]


def test_two_sorts_that_are_alike_have_one_half_and_two_apart_have_one():
    rng = torch.Generator().manual_seed(0)
    x, sort = torch.randn(1000, 3, generator=rng), torch.arange(1000) % 2
    assert abs(own_kind_share(x, sort) - 0.5) < 0.06  # 3.8 standard errors
    assert own_kind_share(x + 20 * sort[:, None], sort) == 1
