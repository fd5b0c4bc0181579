"""The way back from smashed data: what it finds, what noise leaves, and what averaging undoes."""

import pytest
import torch
from torch import nn

from vergence.attacks.inverse_network import (
    SHADOW,
    InverseNet,
    InverseNetworkAttack,
    outputs_without_graph,
)
from vergence.attacks.score import mean_image, mse
from vergence.attacks.view import AttackerKnowledge, AttackerView, ObservedMessages
from vergence.errors import ConfigError
from vergence.models.lenet import LeNet
from vergence.models.small_eye import SmallEye


def blobs(count, seed, height=9, width=15):
    """Bright discs somewhere on a grey ground: toy eyes."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    at = torch.rand(count, 2, 1, 1, generator=rng)
    near = (y - at[:, 0] * height) ** 2 + (x - at[:, 1] * width) ** 2 < (height / 4) ** 2
    return 0.2 + 0.6 * near[:, None].float()


def front(seed=0):
    torch.manual_seed(seed)
    network = SmallEye(pose=False).build()
    network.stages = {"conv1": ("conv1",)}
    return network


SHADOWS, VICTIM = blobs(200, 0), blobs(40, 1)
FRONT = front()
SCALE = 0.7


def noised(smashed, generator):
    return smashed + SCALE * torch.randn(smashed.shape, generator=generator)


def averaged_16(smashed, generator):
    return smashed + SCALE / 4 * torch.randn(smashed.shape, generator=generator)


def view(sends, defence=None, shadow=False):
    generator = torch.Generator().manual_seed(9)
    batches = []
    for round_ in range(sends):
        for sender, images in [("p00", VICTIM)] + [(SHADOW, SHADOWS)] * shadow:
            smashed = outputs_without_graph(FRONT, images)
            smashed = defence(smashed, generator) if defence else smashed
            batches.append(ObservedMessages(sender, round_, smashed, torch.arange(len(images))))
    return AttackerView("server", tuple(batches))


def error(view, prior, epochs=10):
    numbers, found = InverseNetworkAttack(epochs).attack(view, prior, "p00")
    assert numbers.tolist() == list(range(len(VICTIM)))
    return float(mse(VICTIM, found).mean())


BASELINE = float(mse(VICTIM, mean_image(SHADOWS, len(VICTIM))).mean())


@pytest.mark.slow
def test_undefended_eyes_come_back_from_pairs_that_were_sent():
    assert error(view(1, shadow=True), AttackerKnowledge(SHADOWS)) < 0.15 * BASELINE


@pytest.mark.slow
def test_the_adaptive_attacker_beats_the_plain_one_and_averaging_beats_both():
    """The same noise; trained on clean data, through the noise, and through averages of 16."""
    seen = view(1, noised)
    plain = error(seen, AttackerKnowledge(SHADOWS, front=FRONT))
    adaptive = error(seen, AttackerKnowledge(SHADOWS, front=FRONT, defence=noised))
    averaging = error(
        view(16, noised), AttackerKnowledge(SHADOWS, front=FRONT, defence=averaged_16)
    )
    assert averaging < 0.8 * adaptive
    assert adaptive < plain
    assert adaptive < 1.05 * BASELINE


def test_smashed_data_of_nothing_leave_the_mean_image():
    """Pure noise: the attacker who trains on it ends at the mean image and no better."""

    def alone(smashed, generator):
        return torch.randn(smashed.shape, generator=generator)

    found = error(view(1, alone), AttackerKnowledge(SHADOWS, front=FRONT, defence=alone), epochs=3)
    assert 0.9 * BASELINE < found < 1.3 * BASELINE


def test_the_same_seed_finds_the_same_image():
    one, other = (
        InverseNetworkAttack(1).attack(view(1), AttackerKnowledge(SHADOWS, front=FRONT), "p00")[1]
        for _ in range(2)
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("after", ["conv1", "pool1", "pool2", "fc1"])
def test_any_cut_of_a_lenet_has_an_inverse_of_the_right_shape(after):
    network = LeNet(channels=(4, 6), pose=False).build()
    names = list(network.stages)
    network.stages = {n: network.stages[n] for n in names[: names.index(after) + 1]}
    images = blobs(3, 0, 36, 60)
    smashed = outputs_without_graph(network, images)
    inverse = InverseNet(smashed, images, width=4, rank=2)
    assert inverse.reconstruct(smashed).shape == images.shape
    assert isinstance(inverse, nn.Module)


def test_without_anything_to_learn_from_it_says_so():
    with pytest.raises(ConfigError, match="needs images of shadow people"):
        InverseNetworkAttack().attack(view(1), AttackerKnowledge(), "p00")
    with pytest.raises(ConfigError, match="saw no smashed data of 'shadow'"):
        InverseNetworkAttack().attack(view(1), AttackerKnowledge(SHADOWS), "p00")
