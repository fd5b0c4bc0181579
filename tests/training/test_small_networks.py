"""Networks of few channels train: oneDNN's strided 1 x 1 convolution must not be asked there."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from vergence.errors import ConfigError
from vergence.models.resnet_preact import SAFE_CHANNELS, Shortcut
from vergence.models.small_eye import SmallEye

TRAIN = """
import torch
from tests.engine.learners import eyes
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.models.resnet18 import ResNet18
from vergence.models.resnet_preact import ResNetPreact
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.sequential import Solver

torch.set_num_threads(1)
for network in (ResNetPreact(4, 2), ResNetPreact(8, 4), ResNet18(4, 4, 1)):
    task = GazeAngle(network)
    solver, params = Solver(task), task.init()
    for turn in range(3):
        local = LocalTraining(batch=16, optimizer="adamw", lr=1e-3)
        params = solver.fit(Fit(params, eyes(32, turn), local), RandomStream("few", turn)).params
    print(network.channels, bool(params.flat.isfinite().all()), flush=True)
"""


def trained(layer: nn.Conv2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a layer's output, and the weight's gradient of the sum of its squares."""
    output = layer(x)
    return output, torch.autograd.grad(output.square().sum(), layer.weight)[0]


@pytest.mark.slow
def test_networks_of_few_channels_train() -> None:
    """In a process of its own: where the heap is overwritten that process ends by a signal. Four
    channels are below the block of AVX2 kernels (8), eight below that of AVX-512 kernels (16)."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "4 True\n8 True\n4 True\n"), done.stderr[-2000:]


@pytest.mark.parametrize("before", [1, 3, SAFE_CHANNELS - 1])
def test_a_narrow_shortcut_never_strides_a_convolution(before: int) -> None:
    """Output and gradient are those of the plain convolution in double precision, to 1e-5 of the
    largest entry: sums of at most 2 * 4 * 8 products in single precision."""
    torch.manual_seed(before)
    layer = Shortcut(before, 24, 2)
    x = torch.randn(2, before, 8, 15).to(memory_format=torch.channels_last)
    weight = layer.weight.detach().double().requires_grad_()
    wanted = functional.conv2d(x.double(), weight, stride=2)
    gradient = torch.autograd.grad(wanted.square().sum(), weight)[0]
    assert layer(x).grad_fn._saved_stride == (1, 1)
    for found, exact in zip(trained(layer, x), (wanted, gradient), strict=True):
        limit = 1e-5 * float(exact.detach().abs().max())
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=limit)


def test_a_wide_shortcut_is_the_plain_convolution() -> None:
    """Bit by bit, so that results of networks of usual width stay what they were."""
    torch.manual_seed(0)
    layer, plain = Shortcut(SAFE_CHANNELS, 32, 2), nn.Conv2d(SAFE_CHANNELS, 32, 1, 2, bias=False)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(4, SAFE_CHANNELS, 9, 15)
    for found, wanted in zip(trained(layer, x), trained(plain, x), strict=True):
        assert torch.equal(found, wanted)


def test_small_eye_names_the_option_for_patches() -> None:
    with pytest.raises(ConfigError, match=r"got \[2, 1, 36, 60\]; set model\.size to the height"):
        SmallEye().build()(torch.zeros(2, 1, 36, 60), torch.zeros(2, 2))
