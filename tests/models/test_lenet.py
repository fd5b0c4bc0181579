"""LeNet as eyeimages design note, 1.1 states it."""

import math

import pytest
import torch

from vergence.core.params import Layout, Params
from vergence.errors import ConfigError
from vergence.models.lenet import LeNet, LeNetNet


def build(seed: int = 0) -> LeNetNet:
    torch.manual_seed(seed)
    return LeNet().build()


@pytest.mark.parametrize(("channels", "count"), [((20, 50), 1_827_076), ((20, 80), 2_922_106)])
def test_parameter_count(channels: tuple[int, int], count: int) -> None:
    """20/50: 520 + 25,050 + 1,800,500 + 1,006. 20/80: 520 + 40,080 + 2,880,500 + 1,006.

    The thesis cuts its wide network behind conv1 and pooling: 520 and 2,921,586.
    """
    with torch.device("meta"):
        layout = Layout.of(LeNet(channels).build())
    assert layout.n == count
    assert layout.slices["conv2.weight"].start == 520


def test_shape() -> None:
    assert build()(torch.rand(3, 1, 36, 60), torch.zeros(3, 2)).shape == (3, 2)


def test_initialisation() -> None:
    """Normal(0, 0.1), normal(0, 0.01): the deviation of n draws is within 4/sqrt(2n) of its own.

    Xavier-uniform: bound sqrt(6 / (in + out)), deviation bound / sqrt(3); biases zero.
    """
    net = build()
    for layer, deviation in ((net.conv1, 0.1), (net.conv2, 0.01)):
        slack = 4 / math.sqrt(2 * layer.weight.numel())
        assert float(layer.weight.detach().std()) == pytest.approx(deviation, rel=slack)
    for layer, ends in ((net.fc1, 3600 + 500), (net.fc2, 502 + 2)):
        bound, weight = math.sqrt(6 / ends), layer.weight.detach()
        assert 0.98 * bound < float(weight.abs().max()) <= bound
        assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()


def test_pose_enters_at_the_last_layer() -> None:
    """d gaze / d pose is then the last two columns of that layer, whatever the image."""
    net, image = build(), torch.rand(1, 1, 36, 60)
    jacobian = torch.autograd.functional.jacobian(
        lambda pose: net(image, pose)[0], torch.ones(1, 2)
    )
    torch.testing.assert_close(jacobian[:, 0], net.fc2.weight[:, 500:])


def test_there_is_no_activation_after_the_convolutions() -> None:
    """Two kernels of -1 at the centre turn 0.5 into -0.5 and back; a ReLU between gives 0.

    fc1's first row sums the first map of 6 x 12 = 72 cells: 36; fc2 passes it on.
    """
    net = build()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.conv1.weight[0, 0, 2, 2] = -1
        net.conv2.weight[0, 0, 2, 2] = -1
        net.fc1.weight[0, :72] = 1
        net.fc2.weight[:, 0] = 1
        out = net(torch.full((1, 1, 36, 60), 0.5), torch.zeros(1, 2))
    torch.testing.assert_close(out, torch.full((1, 2), 36.0))


def test_the_seed_decides_the_parameters() -> None:
    first, same, other = (Params.of(build(seed)).flat for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_bad_options_and_patches_are_named() -> None:
    with pytest.raises(ConfigError, match=r"channels .* got \(20, 0\)"):
        LeNet((20, 0)).build()
    with pytest.raises(ConfigError, match=r"\[B, 1, 36, 60\], got \[2, 1, 9, 15\]"):
        build()(torch.zeros(2, 1, 9, 15), torch.zeros(2, 2))
