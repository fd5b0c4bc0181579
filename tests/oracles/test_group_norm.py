"""BatchNorm turned into GroupNorm: numbers of groups by hand, and a run with torch's own layer."""

import copy

import pytest
import torch
from torch import nn

import vergence as vg
from vergence.core.layers import group_norm as module
from vergence.privacy.dp.per_sample_gradients import refuse


@pytest.fixture(autouse=True)
def nothing_was_said():
    module._say.cache_clear()


def pictures():
    body = [nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12, eps=0.1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(48, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))


@pytest.mark.parametrize(
    ("channels", "most", "groups"), [(64, 32, 32), (48, 32, 24), (12, 5, 4), (7, 6, 1), (3, 32, 3)]
)
def test_as_many_groups_as_divide_the_channels(channels, most, groups):
    assert vg.group_norm(nn.BatchNorm2d(channels), most).num_groups == groups


def test_scales_and_shifts_stay_and_torch_does_the_rest():
    before = nn.BatchNorm2d(4, eps=0.5)
    nn.init.normal_(before.weight)
    nn.init.normal_(before.bias)
    after, x = vg.group_norm(copy.deepcopy(before), 2), torch.randn(3, 4, 5, 5)
    want = nn.functional.group_norm(x, 2, before.weight, before.bias, 0.5)
    assert torch.equal(after(x), want)
    assert not vg.group_norm(nn.BatchNorm2d(4, affine=False)).affine


def test_one_value_per_channel_is_not_turned_into_zeros():
    """A group of a single value would be 0 whatever it is."""
    layer = vg.group_norm(nn.BatchNorm1d(32))
    assert layer.num_groups == 1
    assert layer(torch.randn(5, 32)).abs().mean() > 0.5


def test_it_says_what_changed_and_says_it_once(capsys):
    network = vg.group_norm(pictures())
    vg.group_norm(pictures())
    said = "2 BatchNorm layers became GroupNorm: 1 (12 groups), 5 (1 group)"
    assert capsys.readouterr().err == f"vergence: {said}\n"
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())
    vg.group_norm(nn.Linear(2, 2))
    assert capsys.readouterr().err == "vergence: 0 BatchNorm layers\n"


@pytest.mark.parametrize("norm", [nn.LazyBatchNorm2d(), nn.BatchNorm1d(1)])
def test_layers_that_group_norm_cannot_replace(norm):
    with pytest.raises(vg.ConfigError, match=r"1 is .*BatchNorm.*at least 2 where inputs"):
        vg.group_norm(nn.Sequential(nn.Flatten(), norm))
    with pytest.raises(vg.ConfigError, match=r"groups = 0: .* the default is 32"):
        vg.group_norm(nn.BatchNorm2d(4), 0)


def test_it_trains_and_mixes_no_samples():
    refuse(vg.group_norm(pictures()))
    draw = torch.Generator().manual_seed(0)
    data = {}
    for name in ("p0", "p1"):
        x = torch.randn(24, 1, 4, 4, generator=draw)
        data[name] = (x.numpy(), x.flatten(1).sum(1, keepdim=True).numpy())
    task = vg.task_from(lambda: vg.group_norm(pictures()), nn.MSELoss())
    people = vg.Federation.from_arrays(data)
    run = vg.train(vg.methods.FedAvg(), task, people, rounds=2, progress=False)
    assert isinstance(run.model("p0")[1], nn.GroupNorm)
