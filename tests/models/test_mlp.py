"""The perceptron on pixels is that on as many features, and says what images it takes."""

import pytest
import torch

from vergence.errors import ConfigError
from vergence.models.mlp import Mlp
from vergence.tasks.images import Images


def test_pixels_are_features_in_a_row():
    torch.manual_seed(0)
    pixels = Mlp(image=(3, 4, 5), hidden=(7,), classes=2)
    net = pixels.build()
    torch.manual_seed(0)
    features = Mlp(inputs=60, hidden=(7,), classes=2).build()
    images = torch.rand(6, 3, 4, 5)
    assert net(images).equal(features(images.flatten(1)))
    with pytest.raises(ConfigError, match=r"\[6, 3, 4, 5\]"):
        features(images)
    with pytest.raises(ConfigError, match="60"):
        net(images[:, :1])
    assert Images(pixels).input_range() == ((3, 4, 5), 0.0, 1.0)
