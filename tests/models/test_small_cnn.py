"""The small image classifier: its size, a pass by hand, and every place to cut it."""

import pytest
import torch

from vergence.core.params import Layout
from vergence.core.stages import PULL, SMASHED, pieces, stages_of
from vergence.errors import ConfigError
from vergence.models.small_cnn import SmallCnn
from vergence.tasks.images import Images

TASKS = {
    "grey": Images(SmallCnn((1, 8, 9), 3, (2, 3), 4), seed=3),
    "colour": Images(SmallCnn((3, 8, 8), 3, (2, 3), 4), seed=3),
}
STAGES = ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2")
CUTS = [(name, stage) for name in TASKS for stage in STAGES]


def batch_of(task):
    image = torch.randint(
        256, (4, *task.network.image), dtype=torch.uint8, generator=torch.Generator().manual_seed(7)
    )
    return {"image": image, "label": torch.arange(4) % 3}


def test_parameter_count():
    """208 + 3,216 + (16 * 7 * 7 * 64 + 64 = 50,240) + 650 = 54,314; the source counts 1,663,370."""
    assert Layout.of(SmallCnn().build()).n == 54_314
    assert Layout.of(SmallCnn(channels=(32, 64), hidden=512).build()).n == 1_663_370


@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32), (2, 5, 7), (1, 4, 4)])
def test_every_size_of_image_gives_a_score_per_class(image):
    assert SmallCnn(image, 5).build()(torch.rand(3, *image)).shape == (3, 5)


@pytest.mark.parametrize(
    ("first", "second", "hidden", "scores"),
    [
        (1.0, 2.0, 3.0, [2.4, -1.4]),
        (-1.0, 2.0, 3.0, [0, 1]),
        (1.0, -2.0, 3.0, [0, 1]),
        (1.0, 2.0, -3.0, [0, 1]),
    ],
)
def test_a_pass_by_hand(first, second, hidden, scores):
    """Kernels have their centre alone: of 0.9 at most, less 0.5, times 2, times 3: 2.4.

    The scores are that, and 1 less it. Every layer but the last turns what is negative into 0.
    """
    net = SmallCnn((1, 4, 4), 2, (1, 1), 1).build()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.conv1.weight[0, 0, 2, 2] = first
        net.conv1.bias[0] = -0.5
        net.conv2.weight[0, 0, 2, 2] = second
        net.fc1.weight[:] = hidden
        net.fc2.weight[:] = torch.tensor([[1.0], [-1.0]])
        net.fc2.bias[1] = 1
        image = torch.full((1, 1, 4, 4), 0.1)
        image[0, 0, 3, 0] = 0.9
        torch.testing.assert_close(net(image), torch.tensor([scores]).float())


def test_stages_stand_in_order_and_the_first_pooling_is_the_cut():
    assert stages_of(SmallCnn()) == STAGES
    front, back = pieces(Images(SmallCnn()), "")
    assert (front.init().layout.n, back.init().layout.n) == (208, 54_106)
    assert front.network.of == ("conv1", "pool1")


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_a_cut_changes_no_bit_of_outputs_and_gradients(name, cut):
    task = TASKS[name]
    batch, module = batch_of(task), task.module()
    whole = task.forward(module, batch)
    task.loss(whole, batch).backward()
    wanted = {n: p.grad for n, p in module.named_parameters()}
    assert all(gradient.any() for gradient in wanted.values())

    front, back = pieces(task, cut)
    assert torch.equal(torch.cat([front.init().flat, back.init().flat]), task.init().flat)
    first, second = front.module(), back.module()
    smashed = front.forward(first, batch).detach().requires_grad_()
    sent = {**batch, SMASHED: smashed}
    output = back.forward(second, sent)
    assert torch.equal(output, whole)
    back.loss(output, sent).backward()
    front.loss(front.forward(first, batch), {**batch, PULL: smashed.grad}).backward()
    found = {n: p.grad for part in (first, second) for n, p in part.named_parameters()}
    assert found.keys() == wanted.keys()
    for parameter, gradient in wanted.items():
        assert torch.equal(found[parameter], gradient), parameter


def test_bad_options_and_images_are_named():
    for options in ({"image": (1, 28, 3)}, {"image": (28, 28)}, {"classes": 1}):
        with pytest.raises(ConfigError, match="at least 1 x 4 x 4, and classes at least 2"):
            SmallCnn(**options).build()
    for options in ({"channels": (8, 0)}, {"channels": (8,)}, {"hidden": 0}):
        with pytest.raises(ConfigError, match=r"small_cnn: (channels|hidden) must be"):
            SmallCnn(**options).build()
    with pytest.raises(ConfigError, match=r"\[B, 1, 28, 28\], got \[2, 3, 32, 32\]"):
        SmallCnn().build()(torch.zeros(2, 3, 32, 32))
