"""Random changes of eye crops in training, worked by hand."""

import pytest
import torch

from vergence.errors import ConfigError
from vergence.models.eye_changes import BLACK, EyeChanges
from vergence.models.small_eye import FAINT, SmallEye, standardized
from vergence.tasks.gaze_angle import GazeAngle


def crops(count=4):
    torch.manual_seed(0)
    return torch.rand(count, 1, 9, 15) * 4 - 2


def changed(**strength):
    images = crops()
    torch.manual_seed(1)
    return images, EyeChanges(**strength).apply(images)


def test_nothing_is_changed_by_default():
    images = crops()
    assert EyeChanges().apply(images) is images
    assert not EyeChanges()
    assert EyeChanges(shade=0.1)


def test_brightness_adds_one_number_to_each_crop():
    images, got = changed(brightness=0.5)
    torch.manual_seed(1)
    wanted = images + 0.5 * torch.randn(4, 1, 1, 1)
    assert torch.equal(got, wanted)


def test_contrast_leaves_black_black_and_keeps_the_order():
    images, got = changed(contrast=0.5)
    factor = (got - BLACK) / (images - BLACK)
    assert torch.allclose(factor, factor[:, :, :1, :1].expand_as(factor), rtol=1e-3)
    assert factor.min() > 0
    assert len({round(float(f), 4) for f in factor[:, 0, 0, 0]}) == 4


def test_shade_is_a_plane_that_is_zero_in_the_middle():
    images, got = changed(shade=0.5)
    plane = (got - images)[:, 0]
    assert torch.allclose(plane[:, 4, 7], torch.zeros(4), atol=1e-5)
    assert torch.allclose(plane[:, 0], plane[:, 4] + plane[:, 0, 7:8], atol=1e-5)
    assert plane.abs().amax() > 0.1


def test_shift_moves_by_as_many_pixels_as_drawn():
    """A ramp of slope 1 a pixel across and 10 down tells where the middle came from."""
    ramp = torch.arange(15.0)[None, :] + 10 * torch.arange(9.0)[:, None]
    images = ramp[None, None].repeat(200, 1, 1, 1)
    torch.manual_seed(1)
    moved = EyeChanges(shift=0.5).apply(images)[:, 0, 4, 7] - ramp[4, 7]
    torch.manual_seed(1)
    across, down = 0.5 * torch.randn(200, 2).T
    near = (across.abs() < 3) & (down.abs() < 3)
    assert torch.allclose(moved[near], (across + 10 * down)[near], atol=1e-3)


def test_only_training_sees_changes():
    task = GazeAngle(SmallEye(), augment=EyeChanges(shift=1.0))
    batch = {
        "image": torch.randint(256, (4, 1, 9, 15), dtype=torch.uint8),
        "pose": torch.zeros(4, 2),
    }
    module = task.module().eval()
    assert torch.equal(task.forward(module, batch), GazeAngle(SmallEye()).forward(module, batch))
    module.train()
    assert not torch.equal(task.forward(module, batch), task.forward(module, batch))


def test_a_cut_network_refuses_changes():
    task = GazeAngle(SmallEye(), augment=EyeChanges(shift=1.0))
    with pytest.raises(ConfigError, match=r"task\.augment"):
        task.inputs(
            {"image": torch.zeros(1, 1, 9, 15, dtype=torch.uint8), "pose": torch.zeros(1, 2)}
        )


def test_a_strength_out_of_range():
    with pytest.raises(ConfigError, match="shift"):
        EyeChanges(shift=-1.0)


def test_standardized_by_hand():
    one = torch.tensor([0.0, 2.0]).repeat(1, 1, 1, 1)
    deviation = 2**0.5
    wanted = torch.tensor([-1.0, 1.0]) / (deviation + FAINT)
    assert torch.allclose(standardized(one)[0, 0, 0], wanted)
    assert torch.equal(standardized(torch.full((1, 1, 9, 15), 3.0)), torch.zeros(1, 1, 9, 15))


def test_dropout_is_of_training_and_starts_from_the_same_parameters():
    plain, dropping = GazeAngle(SmallEye()), GazeAngle(SmallEye(dropout=0.5, standardize=False))
    assert torch.equal(plain.init().flat, dropping.init().flat)
    module, images = dropping.module().eval(), crops()
    pose = torch.zeros(4, 2)
    assert torch.equal(module(images, pose), plain.module().eval()(images, pose))
    module.train()
    assert not torch.equal(module(images, pose), module(images, pose))
