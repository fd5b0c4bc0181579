"""Parts of the probe for networks that mix samples, by hand."""

import math

import pytest
import torch
from torch import nn

import vergence as vg
from vergence.core.data import Samples
from vergence.privacy.dp import mixing_probe
from vergence.privacy.dp.mixing_probe import (
    MixingProbe,
    by_sample,
    opened,
    refuse_mixing,
    replaced,
    same,
    slopes,
    with_second_as_first,
)

TASK = vg.task_from(lambda: nn.Linear(2, 1), nn.MSELoss())


def data(count):
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    return Samples({"x": x, "y": x.sum(1, keepdim=True)})


@pytest.mark.parametrize(
    ("size", "many"), [(1, 4), (3, 4), (4, 4), (5, 5), (63, 63), (64, 64), (65, 64)]
)
def test_batches_are_of_three_and_of_as_many_as_train_between_four_and_64(size, many, monkeypatch):
    """Samples are spread evenly over a client's: of 10, the small batch has 0, 3 and 6."""
    seen, take = [], Samples.take
    monkeypatch.setattr(
        Samples, "take", lambda own, rows: seen.append(rows.tolist()) or take(own, rows)
    )
    refuse_mixing(TASK, data(10), size)
    assert [len(rows) for rows in seen] == [3, many]
    assert seen[0] == [0, 3, 6]
    assert seen[1] == [at * 10 // many for at in range(many)]


def test_every_check_sees_the_large_batch_and_replacement_both(monkeypatch):
    calls = []
    for name in ("check_replaced", "check_smaller_batch", "check_loss"):
        monkeypatch.setattr(
            MixingProbe, name, lambda _, batch, name=name: calls.append((name, len(batch["y"])))
        )
    refuse_mixing(TASK, data(10), 7)
    assert calls == [
        ("check_replaced", 3),
        ("check_replaced", 7),
        ("check_smaller_batch", 7),
        ("check_loss", 7),
    ]


def test_a_replaced_sample_by_hand():
    """Sample 2 of three becomes the first, wrapped around: (1 + 1) * 5, 255 - 7, and 4."""
    batch = {
        "real": torch.tensor([1.0, 2.0, 3.0]),
        "byte": torch.tensor([7, 8, 9], dtype=torch.uint8),
        "class": torch.tensor([4, 5, 6]),
    }
    found = {name: column.tolist() for name, column in replaced(batch, 2, 5.0).items()}
    assert found == {"real": [1, 2, 10], "byte": [7, 8, 248], "class": [4, 5, 4]}
    copied = {name: column.tolist() for name, column in replaced(batch, 0, 0.0).items()}
    assert copied == {"real": [2, 2, 3], "byte": [8, 8, 9], "class": [5, 5, 6]}
    assert batch["real"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("one", "other", "rounding", "equal"),
    [
        ([1.0, 8.0], [1.0, 8.0], 0.0, True),
        ([1.0, 8.0], [1.0, 8.000001], 0.0, False),
        ([1.0, 8.0], [1.5, 8.0], 1 / 16, True),
        ([1.0, 8.0], [1.5001, 8.0], 1 / 16, False),
        ([1.0, -8.0], [0.5, -8.0], 1 / 16, True),
        ([math.nan, 8.0], [0.0, 8.0], 0.0, True),
        ([math.nan, 8.0], [math.nan, 8.0], 0.0, True),
    ],
)
def test_equal_up_to_a_share_of_the_largest_entry(one, other, rounding, equal):
    assert same(torch.tensor(one), torch.tensor(other), rounding) is equal


def test_parameters_that_are_nearly_constant_are_opened_and_others_stay():
    """A deviation of 1e-3 counts as constant and 2e-3 does not; noise has a deviation of 0.1."""
    net = nn.Linear(100, 20)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([-1e-3, 1e-3]).repeat(1000).view(20, 100) + 3)
        net.bias.copy_(torch.tensor([-2e-3, 2e-3]).repeat(10))
    bias = net.bias.detach().clone()
    with torch.no_grad():
        net.weight.sub_(net.weight.mean())
    assert opened(net) is net
    assert torch.equal(net.bias, bias)
    assert float(net.weight.detach().std()) == pytest.approx(0.1, rel=0.05)
    drawn = torch.randn(20, 100, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net.weight.detach(), 0.1 * drawn, atol=2e-3, rtol=0)


def test_rows_of_an_output_by_hand():
    """Tensors with a row for each sample, at any depth; numbers and other tensors are none."""
    rows, other, single = torch.arange(6.0).view(3, 2), torch.zeros(2, 3), torch.tensor(3.0)
    found = by_sample({"a": rows, "b": (other, single, rows[:, 0])}, 3)
    assert [part.tolist() for part in found] == [rows.tolist(), rows[:, 0].tolist()]
    assert with_second_as_first(rows, 3).tolist() == [[2, 3], [2, 3], [4, 5]]
    assert rows[0].tolist() == [0, 1]
    assert torch.equal(with_second_as_first(other, 3), other)
    assert torch.equal(with_second_as_first(single, 3), single)


def test_slopes_by_hand():
    """Of sum(a^2) + 3 sum(b): 2 a, and 3, in the order of the output; integers have none."""
    a, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0])
    output = (a, torch.tensor([7, 8]), b)
    found = slopes(output, 2, lambda o: (o[0] ** 2).sum() + 3 * o[2].sum())
    assert found.tolist() == [[2, 4, 3], [6, 8, 3]]
    assert found.dtype == torch.float64


def test_an_outlier_that_is_no_input_is_replaced_by_another_sample():
    """A network that refuses large numbers is probed with copies of real samples instead."""

    class Narrow(nn.Module):
        def __init__(self, mixing):
            super().__init__()
            self.out, self.mixing = nn.Linear(2, 1), mixing

        def forward(self, x):
            if x.abs().max() > 100:
                raise ValueError("no input")
            h = self.out(x)
            return h - h.mean(0) if self.mixing else h

    refuse_mixing(vg.task_from(lambda: Narrow(False), nn.MSELoss()), data(9), 4)
    with pytest.raises(vg.ConfigError, match="one sample of a batch changes"):
        refuse_mixing(vg.task_from(lambda: Narrow(True), nn.MSELoss()), data(9), 4)


def test_what_breaks_on_every_batch_is_told_in_a_line():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(2, 1)

        def forward(self, x):
            raise ValueError("first line\nsecond line")

    with pytest.raises(vg.ConfigError, match=r"fails on a batch of training: .*first line$"):
        refuse_mixing(vg.task_from(Broken, nn.MSELoss()), data(9), 4)
    assert mixing_probe.FEW < mixing_probe.MANY
