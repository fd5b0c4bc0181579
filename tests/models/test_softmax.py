"""Logistic regression: size, start, one gradient by hand, and what it learns."""

import pytest
import torch
from torch.nn import functional

from vergence.core.params import Layout
from vergence.errors import ConfigError
from vergence.models.softmax import Softmax


def test_parameter_count_start_and_shape():
    """784 * 10 + 10 = 7,850, all zero: equal scores for every class."""
    net = Softmax().build()
    layout = Layout.of(net)
    assert layout.n == 7850
    out = net(torch.rand(3, 1, 28, 28))
    assert out.shape == (3, 10)
    assert not out.any()


def test_first_gradient_is_class_share_minus_label_times_pixel():
    """At zero every class has probability 1/2: gradient (1/2 - [label]) * pixel."""
    net = Softmax(image=(1, 1, 2), classes=2).build()
    image = torch.tensor([0.25, 1.0]).view(1, 1, 1, 2)
    functional.cross_entropy(net(image), torch.tensor([1])).backward()
    assert net.linear.weight.grad.tolist() == [[0.125, 0.5], [-0.125, -0.5]]
    assert net.linear.bias.grad.tolist() == [0.5, -0.5]


def test_colour_images_and_other_sizes():
    assert Softmax(image=(3, 4, 5), classes=2).build()(torch.rand(2, 3, 4, 5)).shape == (2, 2)


def test_bad_options_and_images_are_named():
    for options in ({"image": (1, 0, 28)}, {"image": (28, 28)}, {"classes": 1}):
        with pytest.raises(ConfigError, match=r"softmax: (image|classes) must be"):
            Softmax(**options).build()
    with pytest.raises(ConfigError, match=r"\[B, 1, 28, 28\], got \[2, 1, 32, 32\]"):
        Softmax().build()(torch.zeros(2, 1, 32, 32))
