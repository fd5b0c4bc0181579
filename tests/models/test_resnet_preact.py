"""ResNet-preact-8 as eyeimages design note, 1.2 states it, with GroupNorm."""

import math

import pytest
import torch
from torch.nn import functional

from tests.engine.learners import eyes
from vergence.core.local_training import LocalTraining
from vergence.core.params import Layout, Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.errors import ConfigError
from vergence.models.resnet_preact import PreactBlock, ResNetPreact, ResNetPreactNet
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.stacked import Stacked, Unstackable


def build(seed: int = 0) -> ResNetPreactNet:
    torch.manual_seed(seed)
    return ResNetPreact().build()


def test_parameter_count_and_the_last_layer() -> None:
    """Stem 9 * 16 = 144. Blocks: norms 2 (a + b), 9 (a b + b b), projection a b: 16 -> 16: 64 +
    4,608; 16 -> 32: 96 + 13,824 + 512; 32 -> 64: 192 + 55,296 + 2,048. Norm 128, linear 134."""
    layout = Layout.of(build())
    assert layout.n == 144 + 4_672 + 14_432 + 57_536 + 128 + 134 == 77_046
    assert layout.names[-2:] == ("fc.weight", "fc.bias")


@pytest.mark.parametrize("size", [(36, 60), (9, 15)])
def test_shapes_of_patches_and_crops(size: tuple[int, int]) -> None:
    net = build()
    image = torch.randn(3, 1, *size)
    assert net(image, torch.zeros(3, 2)).shape == (3, 2)
    maps = net.stage3(net.stage2(net.stage1(net.conv(image))))
    assert maps.shape == (3, 64, math.ceil(size[0] / 4), math.ceil(size[1] / 4))


def test_initialisation() -> None:
    """Kaiming-normal over the fan-out: deviation sqrt(2 / (k k out)), within 4/sqrt(2n) of it."""
    net = build()
    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d):
            weight = module.weight.detach()
            out, _, rows, columns = weight.shape
            slack = 4 / math.sqrt(2 * weight.numel())
            wanted = math.sqrt(2 / (out * rows * columns))
            assert float(weight.std()) == pytest.approx(wanted, rel=slack)
            assert module.bias is None
        if isinstance(module, torch.nn.GroupNorm):
            assert bool((module.weight == 1).all())
            assert not module.bias.any()
    assert not net.fc.bias.any()
    assert 0 < float(net.fc.weight.detach().abs().max()) <= 1 / math.sqrt(66)


def test_a_block_by_hand() -> None:
    """One channel, values 1 and 3 normalised to -1 and 1, after ReLU 0 and 1. The first kernel is
    its centre: normed to -1 and 1 and rectified again; the second doubles: 2 x + x = 0 and 3."""
    block = PreactBlock(1, 1, 1, 1)
    with torch.no_grad():
        for conv, centre in ((block.conv1, 1.0), (block.conv2, 2.0)):
            conv.weight.zero_()
            conv.weight[0, 0, 1, 1] = centre
        out = block(torch.tensor([[[[1.0, 3.0]]]]))
    torch.testing.assert_close(out, torch.tensor([[[[0.0, 3.0]]]]), atol=1e-4, rtol=0)


def test_the_shortcut_starts_behind_the_first_relu() -> None:
    block = PreactBlock(4, 8, 2, 2)
    image = torch.randn(2, 4, 9, 15)
    with torch.no_grad():
        block.conv2.weight.zero_()
        ahead = functional.relu(block.norm1(image))
        torch.testing.assert_close(block(image), block.project(ahead))


def test_pose_enters_at_the_last_layer() -> None:
    net, image = build(), torch.randn(1, 1, 36, 60)
    jacobian = torch.autograd.functional.jacobian(
        lambda pose: net(image, pose)[0], torch.ones(1, 2)
    )
    torch.testing.assert_close(jacobian[:, 0], net.fc.weight[:, 64:])


def test_a_picture_is_judged_alone() -> None:
    """GroupNorm: who else is in the batch, and whether it trains, does not matter."""
    net, image, pose = build(), torch.randn(4, 1, 9, 15), torch.zeros(4, 2)
    together, alone = net(image, pose), net.eval()(image[:1], pose[:1])
    torch.testing.assert_close(together[:1], alone)


def test_the_seed_decides_the_parameters() -> None:
    first, same, other = (Params.of(build(seed)).flat for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_clients_are_not_stacked_but_say_so() -> None:
    """Torch cannot map GroupNorm over clients; the solver of one client after the other is used."""
    task = GazeAngle(ResNetPreact(4, 2))
    asks = [
        Fit(task.init(), eyes(4, client), LocalTraining(optimizer="sgd", batch=4, steps=1))
        for client in range(2)
    ]
    with pytest.raises(Unstackable, match="use the sequential solver"):
        Stacked(task).fit_all(asks, [RandomStream("a", 0), RandomStream("a", 1)])


def test_bad_options_and_pictures_are_named() -> None:
    with pytest.raises(ConfigError, match="channels must be a multiple of groups, got 6 and 4"):
        ResNetPreact(6)
    with pytest.raises(ConfigError, match="channels"):
        ResNetPreact(0)
    for shape in ((2, 3, 36, 60), (2, 1, 8, 15), (2, 36, 60)):
        with pytest.raises(ConfigError, match="at least 9 x 15, got"):
            build()(torch.zeros(shape), torch.zeros(2, 2))
