"""The AP-FL chapter's classifier: its sizes, a pass by hand, and what it refuses."""

import pytest
import torch
from torch import nn

from vergence.core.params import Layout
from vergence.core.stages import stages_of
from vergence.errors import ConfigError
from vergence.models.apfl_cnn import ApflCnn


def test_what_enters_the_first_linear_layer():
    """832 + 51,264 + (1600 * 512 + 512) + 5,130 = 876,938; 1600 more with three colours.

    28 x 28 pixels leave 64 * 4 * 4 = 1024: 576 * 512 = 294,912 parameters fewer.
    """
    for image, entering, count in [
        ((1, 32, 32), 1600, 876_938),
        ((3, 32, 32), 1600, 878_538),
        ((1, 28, 28), 1024, 582_026),
    ]:
        net = ApflCnn(image).build()
        assert (net.fc1.in_features, net.fc1.out_features) == (entering, 512)
        assert Layout.of(net).n == count
        assert net(torch.rand(2, *image)).shape == (2, 10)


def test_there_is_nothing_but_convolutions_and_linear_layers():
    assert {type(m) for m in ApflCnn().build().children()} == {nn.Conv2d, nn.Linear}
    assert stages_of(ApflCnn()) == ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2")


def test_a_pass_by_hand():
    """One bright pixel 0.5 at (6, 6) of 16 x 16. A kernel that is 1 in its middle loses two rows
    and columns at each edge: (4, 4), pooled (2, 2), again (0, 0), pooled (0, 0), the only place.

    Weights 2, 3 and 4 of the other layers: 0.5 * 2 * 3 * 4 = 12, and of -4 nothing.
    """
    net = ApflCnn((1, 16, 16), 2).build()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.conv1.weight[0, 0, 2, 2] = 2
        net.conv2.weight[0, 0, 2, 2] = 3
        net.fc1.weight[0, 0], net.fc1.weight[1, 0] = 4, -4
        net.fc2.weight[0, 0] = net.fc2.weight[1, 1] = 1
        image = torch.zeros(1, 1, 16, 16)
        image[0, 0, 6, 6] = 0.5
        assert net(image).tolist() == [[12.0, 0.0]]


def test_centred_pixels_are_those_of_pfllib():
    """PFLlib normalises by mean 0.5 and deviation 0.5: pixels 0 to 1 become -1 to 1."""
    image = torch.rand(3, 1, 28, 28)
    torch.manual_seed(0)
    centred = ApflCnn((1, 28, 28), centred=True).build()
    torch.manual_seed(0)
    plain = ApflCnn((1, 28, 28)).build()
    torch.testing.assert_close(centred(image), plain((image - 0.5) / 0.5))


def test_bad_options_and_images_are_named():
    for options in ({"image": (1, 15, 28)}, {"image": (32, 32)}, {"classes": 1}):
        with pytest.raises(ConfigError, match=r"apfl_cnn: image must be .* at least 1 x 16 x 16"):
            ApflCnn(**options).build()
    with pytest.raises(ConfigError, match=r"\[B, 1, 32, 32\], got \[2, 3, 32, 32\]"):
        ApflCnn().build()(torch.zeros(2, 3, 32, 32))
