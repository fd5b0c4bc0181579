"""A small network for private prediction."""

import torch

from vergence.models.small_cnn import SmallCnnNet

IMAGE = (1, 20, 22)


class PlainCnn(SmallCnnNet):
    """Two convolutions without activations, as LeNet's, a hidden layer of 6, two numbers beside."""

    def __init__(self):
        super().__init__(IMAGE, 2, (3, 4), 6, pad=False, side_inputs=2)

    def stage(self, name, x, *beside):
        if name in ("conv1", "conv2"):
            return self.get_submodule(name)(x)
        return super().stage(name, x, *beside)


def plain_cnn():
    torch.manual_seed(3)
    return PlainCnn().eval()
