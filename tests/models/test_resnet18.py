"""ResNet-18 for eye patches: counts against the published network, shapes, blocks by hand."""

import math

import pytest
import torch

from vergence.core.params import Layout, Params
from vergence.errors import ConfigError
from vergence.models.resnet18 import BasicBlock, ResNet18, ResNet18Net


def build(seed: int = 0, **options: int) -> ResNet18Net:
    torch.manual_seed(seed)
    return ResNet18(**options).build()


def test_parameter_count_and_the_last_layer() -> None:
    """The published ResNet-18 for ImageNet has 11,689,512 parameters. Without its last layer
    (512 * 1000 + 1000) and its stem (7 * 7 * 3 * 64), with 3 * 3 * 64 and 514 * 2 + 2."""
    with torch.device("meta"):
        layout = Layout.of(ResNet18().build())
    assert layout.n == 11_689_512 - 513_000 - 9_408 + 576 + 1_030 == 11_168_710
    assert layout.names[-2:] == ("fc.weight", "fc.bias")


@pytest.mark.parametrize(
    ("size", "stride", "last"),
    [((36, 60), 2, (3, 4)), ((9, 15), 1, (2, 2)), ((9, 15), 2, (1, 1)), ((36, 60), 1, (5, 8))],
)
def test_shapes_of_patches_and_crops(
    size: tuple[int, int], stride: int, last: tuple[int, int]
) -> None:
    """36 x 60 over stride 2: 18 x 30, then 9 x 15, 5 x 8, 3 x 4."""
    net, image = build(channels=4, groups=2, stride=stride), torch.randn(2, 1, *size)
    assert net(image, torch.zeros(2, 2)).shape == (2, 2)
    assert net.blocks(net.conv(image)).shape == (2, 32, *last)


def test_there_are_18_layers_with_weights_beside_three_projections() -> None:
    net = build(channels=4, groups=2)
    convolutions = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d)]
    projections = [m for m in convolutions if m.kernel_size == (1, 1)]
    assert (len(convolutions) - len(projections) + 1, len(projections)) == (18, 3)
    for conv in convolutions:
        out, _, rows, columns = conv.weight.shape
        slack = 4 / math.sqrt(2 * conv.weight.numel())
        wanted = math.sqrt(2 / (out * rows * columns))
        assert float(conv.weight.detach().std()) == pytest.approx(wanted, rel=slack)


def test_a_block_by_hand() -> None:
    """Values 1 and 3 become -1 and 1, rectified 0 and 1, then again -1 and 1: 0 and 4 with x."""
    block = BasicBlock(1, 1, 1, 1)
    with torch.no_grad():
        for conv in (block.conv1, block.conv2):
            conv.weight.zero_()
            conv.weight[0, 0, 1, 1] = 1
        out = block(torch.tensor([[[[1.0, 3.0]]]]))
    torch.testing.assert_close(out, torch.tensor([[[[0.0, 4.0]]]]), atol=1e-4, rtol=0)


def test_pose_enters_at_the_last_layer() -> None:
    net, image = build(channels=4, groups=2), torch.randn(1, 1, 36, 60)
    jacobian = torch.autograd.functional.jacobian(
        lambda pose: net(image, pose)[0], torch.ones(1, 2)
    )
    torch.testing.assert_close(jacobian[:, 0], net.fc.weight[:, 32:])


def test_the_seed_decides_the_parameters() -> None:
    first, same, other = (Params.of(build(seed, channels=4, groups=2)).flat for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_bad_options_and_pictures_are_named() -> None:
    with pytest.raises(ConfigError, match="channels must be a multiple of groups, got 48 and 32"):
        ResNet18(48)
    with pytest.raises(ConfigError, match="stride"):
        ResNet18(stride=3)
    with pytest.raises(ConfigError, match="resnet18 takes grey eye patches"):
        build(channels=4, groups=2)(torch.zeros(2, 3, 36, 60), torch.zeros(2, 2))
