"""The gaze angle task: scaling, losses, scores and constants, by hand."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.task import Model
from vergence.errors import ConfigError, DataError
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle


class Echo(nn.Module):
    """Returns the image's mean as pitch and the first pose value as yaw."""

    def forward(self, image, pose):
        return torch.stack([image.mean((1, 2, 3)), pose[:, 0]], 1)


class Wide(nn.Module):
    def forward(self, image, _pose):
        return torch.zeros(len(image), 3)


@dataclass(frozen=True)
class EchoModel(Model):
    def build(self):
        return Echo()


def samples(*degrees):
    gaze = torch.deg2rad(torch.tensor(degrees, dtype=torch.float32).view(-1, 2))
    n = len(gaze)
    return Samples(
        {"image": torch.zeros(n, 1, 2, 3, dtype=torch.uint8), "gaze": gaze, "pose": 0 * gaze}
    )


def test_images_are_scaled_before_the_network():
    """(x/255 - 0.5) / 0.25: 0 becomes -2, 255 becomes 2, 51 (0.2) becomes -1.2."""
    image = torch.tensor([0, 255, 51], dtype=torch.uint8).view(3, 1, 1, 1)
    pose = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    out = GazeAngle(EchoModel()).forward(Echo(), {"image": image, "pose": pose})
    assert out.flatten().tolist() == pytest.approx([-2, 0.1, 2, 0.3, -1.2, 0.5], abs=1e-6)


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [("l1", 0.3 / 4), ("mse", (0.1**2 + 0.2**2) / 4), ("angular", 0.3 / 2)],
)
def test_losses_by_hand(criterion, expected):
    """Two samples, off by 0.1 rad in pitch and by 0.2 rad in yaw (at pitch 0: angles too)."""
    output = torch.tensor([[0.1, 0.0], [0.0, -0.2]])
    loss = GazeAngle(EchoModel(), criterion=criterion).loss(output, {"gaze": torch.zeros(2, 2)})
    assert float(loss) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("criterion", ["l1", "mse", "angular"])
def test_gradient_of_a_right_prediction_is_finite(criterion):
    output = torch.tensor([[0.3, -0.1]], requires_grad=True)
    batch = {"gaze": torch.tensor([[0.3, -0.1]])}
    GazeAngle(EchoModel(), criterion=criterion).loss(output, batch).backward()
    assert output.grad is not None
    assert output.grad.isfinite().all()


def test_metrics_by_hand():
    """Errors 4 (pitch), 8 (yaw at pitch 0) and 0 degrees: mean 4, two of three within 5."""
    truth = samples([0, 0], [0, 0], [10, 20])
    outputs = torch.deg2rad(torch.tensor([[4.0, 0.0], [0.0, -8.0], [10.0, 20.0]]))
    found = GazeAngle(EchoModel()).metrics(outputs, truth)
    assert found == pytest.approx(
        {
            "angle_error_deg": 4,
            "hit5": 2 / 3,
            "pitch_error_deg": 4 / 3,
            "yaw_error_deg": 8 / 3,
            "score": 2 / 3,
        },
        abs=1e-4,
    )
    strict = GazeAngle(EchoModel(), hit_deg=3.5).metrics(outputs, truth)
    assert strict["hit3.5"] == strict["score"] == pytest.approx(1 / 3)


def test_headline_and_score_are_among_the_metrics():
    found = GazeAngle(EchoModel()).metrics(torch.zeros(1, 2), samples([0, 0]))
    assert {GazeAngle.headline, "score"} <= set(found)
    assert set(found) >= GazeAngle.lower_is_better


def test_constants_come_from_training_data():
    """A trains at yaw 0, B at yaw 20; both are tested at 0: pooled constant off by 10 degrees.

    A has as many samples as B, so the mean direction of all is yaw 10.
    """
    people = {
        "a": Splits(samples([0, 0]), samples([50, 50]), samples([0, 0])),
        "b": Splits(samples([0, 20]), samples([50, 50]), samples([0, 0])),
    }
    rows = GazeAngle(EchoModel()).priors(Federation("two", people))
    error = {n: {p: m["angle_error_deg"] for p, m in row.items()} for n, row in rows.items()}
    assert error["mean gaze"] == pytest.approx({"a": 10, "b": 10}, abs=1e-4)
    assert error["personal mean"] == pytest.approx({"a": 0, "b": 20}, abs=1e-4)


def test_bad_options_and_shapes_are_named():
    with pytest.raises(ConfigError, match="criterion must be one of l1, mse, angular; got 'l2'"):
        GazeAngle(EchoModel(), criterion="l2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="hit_deg"):
        GazeAngle(EchoModel(), hit_deg=0.0)
    batch = {"image": torch.zeros(4, 1, 2, 2, dtype=torch.uint8), "pose": torch.zeros(4, 2)}
    with pytest.raises(ConfigError, match=r"Wide returned \[4, 3\]"):
        GazeAngle(EchoModel()).forward(Wide(), batch)
    with pytest.raises(ConfigError, match=r"images are torch\.float32"):
        GazeAngle(EchoModel()).forward(Echo(), {**batch, "image": torch.zeros(4, 1, 2, 2)})


def test_error_of_opposite_directions_is_180_degrees():
    found = GazeAngle(EchoModel()).metrics(torch.tensor([[0.0, math.pi]]), samples([0, 0]))
    assert found["angle_error_deg"] == pytest.approx(180, abs=1e-3)


@pytest.mark.parametrize(
    ("column", "number", "words"),
    [
        ("gaze", 12.0, r"eyes: p1: gaze reaches 12\.0, and angles must be radians"),
        ("pose", -30.0, r"eyes: p1: pose reaches 30\.0, and angles must be radians"),
        ("side", 2, r"eyes: p1: side is 2, and must be 0 for a left and 1 for a right eye"),
        ("side", -1, "eyes: p1: side is -1"),
    ],
)
@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_degrees_and_other_numbers_of_sides_are_refused(part, column, number, words, capsys):
    """Of one sample of one person; a gaze straight backwards is a note, and not refused."""
    columns = {
        "gaze": torch.tensor([[0.1, 0.2], [0.0, torch.pi]]),
        "pose": torch.zeros(2, 2),
        "side": torch.tensor([0, 1]),
    }
    fine = Samples(columns)
    whole = Splits(fine, fine, fine)
    GazeAngle(SmallEye()).check(Federation("eyes", {"p0": whole, "p1": whole}))
    assert capsys.readouterr().err.startswith("vergence: eyes: p0: yaw of gaze reaches 3.14, and")
    changed = columns[column].clone()
    changed.view(-1)[-1] = number
    other = replace(whole, **{part: Samples({**columns, column: changed})})
    with pytest.raises(DataError, match=words):
        GazeAngle(SmallEye()).check(Federation("eyes", {"p0": whole, "p1": other}))


def test_a_pitch_beyond_straight_up_is_refused():
    up = Samples({"gaze": torch.tensor([[torch.pi / 2, 0.0], [-torch.pi / 2, 0.0]])})
    whole = Splits(up, up, up)
    GazeAngle(SmallEye()).check(Federation("eyes", {"p0": whole}))
    beyond = replace(whole, val=Samples({"gaze": torch.tensor([[-1.7, 0.0]])}))
    with pytest.raises(DataError, match=r"eyes: p0: pitch of gaze reaches 1\.70, and straight up"):
        GazeAngle(SmallEye()).check(Federation("eyes", {"p0": beyond}))
