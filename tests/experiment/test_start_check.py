"""One check before training looks at everybody: targets, losses, metrics, kinds of outputs."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

import vergence as vg
from tests.experiment.made_up import regression, trained
from vergence.core.federation import Population
from vergence.data.synthetic.toy import Toy
from vergence.experiment.schema import check
from vergence.experiment.validation import check_people
from vergence.models.linear import Linear
from vergence.models.small_cnn import SmallCnn
from vergence.tasks.images import Images
from vergence.tasks.toy import ToyTask

PEOPLE = ("first", "middle", "last")


def accuracy(outputs, target):
    return (outputs.argmax(1) == target).float().mean()


def columns(rows=20):
    """Everybody's rows in three parts, as `Federation.from_arrays` takes them."""
    draw = np.random.default_rng(0)
    return {
        person: {
            part: {"x": draw.normal(size=(rows, 4)), "y": np.arange(rows) % 3}
            for part in ("train", "val", "test")
        }
        for person in PEOPLE
    }


def classes(loss=cross_entropy, metric=accuracy, outputs=3):
    return vg.task_from(lambda: nn.Linear(4, outputs), loss, {"metric": metric}, False)


def run(task, people, **options):
    method = vg.methods.FedAvg()
    return trained(method=method, task=task, people=vg.Federation.from_arrays(people), **options)


def whole_loss(outputs, target):
    return cross_entropy(outputs["logits"], target)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return {"logits": self.layer(x)}


@pytest.mark.parametrize("person", PEOPLE)
@pytest.mark.parametrize("part", ["train", "val", "test"])
@pytest.mark.parametrize("value", [7, -1])
def test_a_class_without_an_output(person, part, value):
    people, rounds = columns(), []
    people[person][part]["y"][5] = value
    for task, outputs in (
        (classes(), "3 outputs"),
        (vg.task_from(Whole, whole_loss, {"m": lambda *_: 0.0}, False), "no output for it"),
    ):
        with pytest.raises(vg.DataError) as refused:
            run(task, people, on_round=rounds.append)
        says = f"person {person!r}, {part}: 'y' is {value} in row 5, and the network has {outputs}"
        assert str(refused.value).startswith(says)
    assert not rounds


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_a_class_without_an_output_of_a_packaged_task(part):
    def images():
        image = torch.randint(256, (12, 1, 28, 28), dtype=torch.uint8)
        return {"image": image, "label": torch.arange(12) % 10}

    people = {p: {part: images() for part in ("train", "val", "test")} for p in PEOPLE}
    people["middle"][part]["label"][3] = 12
    with pytest.raises(vg.DataError, match=rf"person 'middle', {part}: 'label' is 12 in row 3, .*"):
        run(Images(SmallCnn(image=(1, 28, 28), classes=10)), people)


def half(outputs, target):
    return cross_entropy(outputs, target.clamp(max=2))


@pytest.mark.parametrize(
    ("loss", "value"),
    [
        (cross_entropy, -100),
        (nn.CrossEntropyLoss(ignore_index=255), 255),
        (half, 9),
    ],
)
def test_numbers_that_a_loss_takes_are_taken(loss, value):
    people = columns()
    for part in people["middle"].values():
        part["y"][[0, 4]] = value  # the first row's loss alone is NaN where it is left out
    assert run(classes(loss), people, rounds=1).scores.metric.notna().all()


def test_whole_numbers_that_are_no_classes_are_taken():
    people = columns()
    for part in people["middle"].values():
        part["y"][0] = 1000
    counts = vg.task_from(lambda: nn.Linear(4, 1), nn.PoissonNLLLoss())
    assert run(counts, people, rounds=1).scores.notna().all(axis=None)


@pytest.mark.parametrize("person", PEOPLE)
def test_a_loss_that_is_finite_for_nothing(person):
    people = columns()
    for columns_of_part in people[person].values():
        columns_of_part["x"][:] = 1e30
    loss = vg.task_from(lambda: nn.Linear(4, 3), lambda o, t: cross_entropy(o * o, t))
    with pytest.raises(vg.DataError, match=rf"person '{person}': the loss .* is NaN or infinite"):
        run(loss, people)


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (nn.MSELoss(reduction="none"), r"\[2, 4\]"),
        (lambda o, t: functional.mse_loss(o, t).item(), "float"),
    ],
)
def test_a_loss_that_is_no_number(loss, got):
    task = vg.task_from(lambda: nn.Linear(4, 4), loss, target="x")
    with pytest.raises(vg.ConfigError, match=rf"'first': the loss must be one number.*{got}"):
        run(task, columns())


def one_class_fails(_, target):
    """As the area under a curve does of one class."""
    if len(target.unique()) < 2:
        raise ValueError("only one class")
    return 0.5


@pytest.mark.parametrize("person", PEOPLE)
def test_a_metric_that_fails_for_one_person_is_refused_with_the_line(person):
    people, rounds = columns(), []
    people[person]["test"]["y"][:] = 1
    with pytest.raises(vg.ConfigError) as refused:
        run(classes(metric=one_class_fails), people, on_round=rounds.append)
    assert str(refused.value).startswith("test_start_check.py:")
    said = "one_class_fails: ValueError: only one class (on the samples of person"
    assert f"{said} {person!r})" in str(refused.value)
    assert not rounds


@pytest.mark.parametrize("value", [None, "good", torch.ones(3)])
def test_a_metric_that_gives_no_number_is_refused_before_training(value):
    rounds = []
    with pytest.raises(vg.ConfigError, match=r"person 'first': metric 'metric' must give one num"):
        run(classes(metric=lambda *_: value), columns(), on_round=rounds.append)
    assert not rounds


def precision(outputs, target):
    """Fails where nothing is predicted to be of class 1, as of an untrained network."""
    found = outputs.argmax(1) == 1
    return int((found & (target == 1)).sum()) / int(found.sum())


def test_a_metric_that_fails_for_the_untrained_network_alone_is_taken():
    class Timid(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.layer.bias.data = torch.tensor([9.0, -9.0])
            self.layer.weight.data *= 0

        def forward(self, x):
            return self.layer(x)

    people = {
        p: {n: {**c, "y": np.ones(20, int)} for n, c in s.items()} for p, s in columns().items()
    }
    task = vg.task_from(Timid, cross_entropy, {"precision": precision}, False)
    local = vg.LocalTraining(optimizer="sgd", lr=5.0, epochs=5)
    made = run(task, people, rounds=3, evaluate_every=0, local=local)
    assert (made.scores.precision == 1).all()


def test_a_metric_that_fails_later_is_refused_with_the_persons_name():
    calls = []

    def late(*_):
        calls.append(0)
        return 1 / (len(calls) != 11)  # after the start check and the constant: the second person

    with pytest.raises(vg.ConfigError, match=r"late: ZeroDivisionError: .* person 'middle'\)"):
        run(classes(metric=late), columns(), rounds=1)


def test_of_people_made_on_demand_the_first_and_the_last_are_looked_at():
    (person,), made = Toy(people=1).load().people.values(), []

    def make(number):
        made.append(number)
        return person

    many = vg.Federation("many", Population(10_000, make, "toy"))
    task, batch = ToyTask(Linear()), person.train.take(torch.arange(1))
    parts = {"task": {"name": "toy"}, "model": {"name": "linear"}, "federation": {"name": "toy"}}
    experiment = check({**parts, "methods": ["fedavg"], "local": {"sampler": "balanced"}})
    check_people(experiment, task, many, task.module(), task.forward(task.module(), batch))
    assert made == [0, 9_999]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def test_tied_weights_are_called_so():
    with pytest.raises(vg.ConfigError, match=r"tied weights: 'first.weight' and 'second.weight'"):
        vg.task_from(Tied, functional.mse_loss)


@dataclass(frozen=True)
class ModelOfMyOwn(vg.Model):
    """A network for a packaged task that returns a dict."""

    def build(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(16, 10)

            def forward(self, image):
                return {"logits": self.layer(image.flatten(1))}

        return Net()


def test_a_packaged_task_says_what_a_network_of_ones_own_returns():
    image = torch.zeros(10, 1, 4, 4, dtype=torch.uint8)
    people = {p: {"image": image, "label": torch.arange(10)} for p in PEOPLE}
    with pytest.raises(vg.ConfigError, match=r"network returns a dict \(logits\).* a tensor"):
        run(Images(ModelOfMyOwn()), people)


def test_the_check_is_over_in_time(monkeypatch):
    """Networks are tried until the time is up; targets of everybody are read all the same."""
    monkeypatch.setattr("vergence.experiment.validation.PATIENCE_S", -1)
    people = columns()
    people["last"]["test"]["y"][0] = 3
    with pytest.raises(vg.DataError, match="person 'last', test: 'y' is 3 in row 0"):
        run(classes(metric=lambda *_: None), people)
    assert regression().whole == {}
