"""What a view keeps, leaves out and averages, by hand."""

import pytest
import torch

from vergence.attacks.view import AttackerView, ObservedMessages, ObservedUpdate
from vergence.core.params import Params
from vergence.errors import ConfigError


def sent(sender, round_, values, images):
    return ObservedMessages(sender, round_, torch.tensor(values), torch.tensor(images))


VIEW = AttackerView(
    "server",
    (
        sent("p00", 1, [[1.0, 2.0], [5.0, 5.0]], [7, 3]),
        sent("p01", 1, [[9.0, 9.0]], [0]),
        sent("p00", 2, [[3.0, 6.0]], [7]),
    ),
    (ObservedUpdate("p01", 4, Params.named(w=torch.ones(2))),),
)


def test_sends_of_one_image_are_averaged_whatever_their_order():
    images, mean = VIEW.averaged("p00")
    assert images.tolist() == [3, 7]
    assert mean.tolist() == [[5.0, 5.0], [2.0, 4.0]]


def test_what_was_not_seen_cannot_be_attacked():
    with pytest.raises(ConfigError, match="the server saw no smashed data of 'p05'"):
        VIEW.averaged("p05")
    with pytest.raises(ConfigError, match="2 samples with 1 numbers"):
        AttackerView("network", (sent("p00", 1, [[1.0], [2.0]], [1]),))
