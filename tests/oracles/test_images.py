"""The image task: scaling, cross-entropy, accuracy and constants, by hand."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.task import Model
from vergence.errors import ConfigError
from vergence.models.softmax import Softmax
from vergence.tasks.images import Images


class Pixels(nn.Module):
    """Returns the first three pixels as scores of three classes."""

    def forward(self, image):
        return image.flatten(1)[:, :3]


@dataclass(frozen=True)
class PixelsModel(Model):
    def build(self):
        return Pixels()


TASK = Images(PixelsModel())


def samples(*labels):
    n = len(labels)
    return Samples(
        {"image": torch.zeros(n, 1, 2, 2, dtype=torch.uint8), "label": torch.tensor(labels)}
    )


def scores(*shares):
    """Log-probabilities plus 5: scores are unnormalised."""
    return torch.tensor(shares).log() + 5


def test_pixels_are_scaled_to_one():
    image = torch.tensor([0, 51, 255, 7], dtype=torch.uint8).view(1, 1, 2, 2)
    batch = {"image": image}
    assert TASK.forward(Pixels(), batch).tolist() == [pytest.approx([0, 0.2, 1])]
    assert image.flatten().tolist() == [0, 51, 255, 7]  # the data itself is left alone


def test_loss_is_the_mean_cross_entropy():
    """-(ln 1/2 + ln 1/8) / 2 = (ln 2 + 3 ln 2) / 2 = 2 ln 2."""
    output = scores([0.5, 0.25, 0.25], [0.125, 0.375, 0.5])
    loss = TASK.loss(output, samples(0, 0).columns)
    assert float(loss) == pytest.approx(2 * math.log(2))


def test_metrics():
    """Highest: 0, 2, 1, and of equal ones the lowest, 0. Right: the first and the third.

    -(ln 1/2 + ln 1/8 + ln 1/2 + ln 1/4) / 4 = (1 + 3 + 1 + 2) ln 2 / 4.
    """
    output = scores([0.5, 0.25, 0.25], [0.125, 0.375, 0.5], [0.25, 0.5, 0.25], [0.375, 0.25, 0.375])
    found = TASK.metrics(output, samples(0, 0, 1, 1))
    assert found == {"accuracy": 0.5, "log_loss": pytest.approx(7 / 4 * math.log(2)), "score": 0.5}
    assert TASK.headline in found
    pooled = TASK.pooled(output, samples(0, 0, 1, 1))
    assert pooled == {f"pooled_{n}": v for n, v in found.items() if n != "score"}
    assert TASK.lower_is_better < {*found, *pooled}


def test_priors():
    """a trains on 0 0 0 1, b on 2: in all 3 1 1, plus one each 4 2 2 of 8; class 0 wins.

    a alone 3 1 0, plus one 4 2 1 of 7; b alone 0 0 1, plus one 1 1 2 of 4: its own is 2.
    Tests: a 0 1, b 2 2. Log losses: -ln of the shares of the tested classes. Of all four tests
    class 0 is one and class 2 is two; (1 + 2 + 2 + 2) ln 2 / 4 for everybody's shares.
    """
    people = {
        "a": Splits(samples(0, 0, 0, 1), samples(0), samples(0, 1)),
        "b": Splits(samples(2), samples(0), samples(2, 2)),
    }
    found = TASK.priors(Federation("f", people))
    expected = {
        ("most frequent class", "a"): (0.5, (math.log(2) + math.log(4)) / 2),
        ("most frequent class", "b"): (0.0, math.log(4)),
        ("own most frequent", "a"): (0.5, (math.log(7 / 4) + math.log(7 / 2)) / 2),
        ("own most frequent", "b"): (1.0, math.log(2)),
    }
    assert {(name, p) for name, rows in found.items() for p in rows} == expected.keys()
    for (name, person), (accuracy, log_loss) in expected.items():
        row = found[name][person]
        assert row["accuracy"] == row["score"] == accuracy
        assert row["log_loss"] == pytest.approx(log_loss, rel=1e-6)
        own_of_b = (name, person) == ("own most frequent", "b")
        assert row["pooled_accuracy"] == (0.5 if own_of_b else 0.25)
    common = {p: row["pooled_log_loss"] for p, row in found["most frequent class"].items()}
    assert common == dict.fromkeys(people, pytest.approx(7 / 4 * math.log(2)))


def test_a_class_nobody_trained_on_is_unlikely_not_impossible():
    """Train 0 0, test 2: shares 3 1 1 of 5, so -ln 1/5."""
    people = {"a": Splits(samples(0, 0), samples(0), samples(2))}
    rows = TASK.priors(Federation("f", people))
    assert rows["own most frequent"]["a"]["log_loss"] == pytest.approx(math.log(5))


def test_other_images_or_networks_are_refused():
    with pytest.raises(ConfigError, match=r"images are torch.float32; give uint8, 0 to 255"):
        TASK.forward(Pixels(), {"image": torch.zeros(2, 1, 2, 2)})
    with pytest.raises(ConfigError, match=r"Flatten returned \[8\] for 2 images"):
        TASK.forward(nn.Flatten(0), {"image": torch.zeros(2, 1, 2, 2, dtype=torch.uint8)})


def test_names_are_those_of_all_classes():
    task = Images(Softmax((1, 2, 2), classes=3))
    assert task.class_names() == ("class 0", "class 1", "class 2")
    with pytest.raises(ConfigError, match="must name the network's 3 classes, got 2"):
        replace(task, names=("a", "b")).class_names()
