"""Networks of few channels train: oneDNN's strided 1 x 1 convolution must not be asked there."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from vergence.models.resnet_preact import SAFE_CHANNELS, Shortcut

SIZES = ((4, 2), (8, 4), (12, 4))
"""Channels and groups: below the block of AVX2 kernels (8) and of AVX-512 kernels (16)."""
TRAIN = """
import sys, torch
from tests.engines.learners import eyes
from vergence.core.fitting import Fit, Local, Solver
from vergence.core.stream import Stream
from vergence.models.resnet_preact import ResNetPreact
from vergence.tasks.gaze_angle import GazeAngle

torch.set_num_threads(1)
channels, groups = map(int, sys.argv[1:])
task = GazeAngle(ResNetPreact(channels, groups))
solver, params = Solver(task), task.init()
for turn in range(6):
    ask = Fit(params, eyes(32, turn), Local(batch=16, optimiser="adamw", lr=1e-3))
    params = solver.fit(ask, Stream("few", turn)).params
print(bool(params.flat.isfinite().all()))
"""


@pytest.mark.parametrize(("channels", "groups"), SIZES)
def test_few_channels_train(channels: int, groups: int) -> None:
    """In a process of its own: where the heap is overwritten that process ends by a signal."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(channels), str(groups)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-2000:]


@pytest.mark.parametrize("before", [1, 3, SAFE_CHANNELS - 1])
def test_a_narrow_shortcut_never_strides_a_convolution(before: int) -> None:
    """Its result and gradient are those of the plain convolution in double precision, to 1e-5 of
    the largest: sums of 2 * 4 * 8 products of float32; and no convolution in it has a stride."""
    layer = Shortcut(before, 24, 2).to(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(before)
    x = torch.randn(2, before, 8, 15, generator=generator)
    weight = layer.weight.detach().double().requires_grad_()
    wanted = functional.conv2d(x.double(), weight, stride=2)
    wanted.square().sum().backward()
    found = layer(x)
    assert found.grad_fn.name() == "ConvolutionBackward0"
    assert tuple(found.grad_fn._saved_stride) == (1, 1)
    found.square().sum().backward()
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)
    scale = float(weight.grad.abs().max())
    torch.testing.assert_close(layer.weight.grad.double(), weight.grad, rtol=0, atol=1e-5 * scale)


def test_a_wide_shortcut_is_the_plain_convolution() -> None:
    """Bit by bit, so that results of networks of usual width stay what they were."""
    layer, plain = Shortcut(SAFE_CHANNELS, 32, 2), nn.Conv2d(SAFE_CHANNELS, 32, 1, 2, bias=False)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(4, SAFE_CHANNELS, 9, 15, generator=torch.Generator().manual_seed(0))
    for network in (layer, plain):
        network(x).square().sum().backward()
    assert torch.equal(layer(x), plain(x))
    assert torch.equal(layer.weight.grad, plain.weight.grad)
