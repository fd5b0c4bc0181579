"""Mistakes with one's own network, data and loop: each message says what to write instead."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import vergence as vg
from tests.experiment.made_up import arrays, network, regression, trained
from vergence.training.fused_optimizers import try_functions


class Grows(nn.Module):
    """A network that makes a layer in its first forward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), None

    def forward(self, x):
        self.last = self.last or nn.Linear(8, 1)
        return self.last(self.first(x))


class Normed(nn.Sequential):
    def __init__(self):
        norm = nn.BatchNorm1d(8, track_running_stats=False)
        super().__init__(nn.Linear(4, 8), norm, nn.Linear(8, 1))


class Mixed(nn.Sequential):
    """A network that returns one row for a whole batch."""

    def forward(self, x):
        return super().forward(x).mean(0)


def classes():
    """People with one of four classes for each sample."""
    rng = np.random.default_rng(0)
    return {p: {"x": own["x"], "y": rng.integers(0, 4, 40)} for p, own in arrays().items()}


def own_loss(**options):
    return lambda outputs, targets: mse_loss(outputs, targets, **options)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        ((network, own_loss(reduction="none")), r"got a tensor \[2\]: take its mean"),
        ((network, lambda o, t: mse_loss(o, t).item()), "got <class 'float'>: take its mean"),
        ((network, lambda o, t: mse_loss(o.detach(), t)), r"got a tensor \[\] without one: take"),
        ((Grows, mse_loss), "makes layers in forward, .*: make them in __init__"),
        ((Normed, mse_loss), r"takes no sample alone, so use vergence\.group_norm"),
        ((lambda: nn.Linear(7, 1), mse_loss), r"as many inputs as it gets .*x \[4\]"),
        ((lambda: network().double(), mse_loss), "parameters of the same type"),
    ],
)
def test_a_network_and_a_loss_that_cannot_train_are_refused_before_the_run(make, says):
    with pytest.raises(vg.ConfigError, match=says):
        trained(task=vg.task_from(*make))


@pytest.mark.parametrize(
    ("build", "change", "says"),
    [
        (lambda: nn.Linear(4, 4), lambda y: np.eye(4)[y], r"metric 'accuracy' .*y\.argmax\(1\)"),
        (lambda: nn.Linear(4, 4), lambda y: y[:, None], r"one whole number .*y\[:, 0\]"),
        (lambda: Mixed(nn.Linear(4, 4)), lambda y: y, "must return a row for each sample"),
    ],
)
def test_targets_of_another_shape_say_what_classes_look_like(build, change, says):
    def accuracy(outputs, targets):
        return (outputs.argmax(1) == targets).float().mean()

    people = {p: {"x": own["x"], "y": change(own["y"])} for p, own in classes().items()}
    task = vg.task_from(build, cross_entropy, {"accuracy": accuracy}, lower_is_better=False)
    with pytest.raises(vg.ConfigError, match=says):
        trained(task=task, people=vg.Federation.from_arrays(people), method=vg.methods.FedAvg())


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ([mse_loss], r"metrics must be functions by name, as \{'accuracy': accuracy\}"),
        (mse_loss, "metrics must be functions by name"),
        ({"a": network}, r"metric 'a' must be a function of \(outputs, targets\)"),
    ],
)
def test_metrics_without_names_or_targets_are_refused(metrics, says):
    with pytest.raises(vg.ConfigError, match=says):
        vg.task_from(network, mse_loss, metrics, lower_is_better=True)


def test_a_network_elsewhere_than_on_the_cpu_is_refused():
    with pytest.raises(vg.ConfigError, match="on meta: build it on the CPU, and give train device"):
        vg.task_from(lambda: network().to("meta"), mse_loss)


def test_a_transform_of_labels_is_refused():
    with pytest.raises(vg.ConfigError, match="it gets x, and no labels"):
        regression().with_transform(lambda x, y: (x, y))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"optimizer": "rmsprop"}, r"in Python a class of torch\.optim, as torch\.optim\.RMSprop"),
        (
            {"optimizer": torch.optim.SGD([torch.ones(1)])},
            "give the class, optimizer=torch.optim.SGD",
        ),
        ({"schedule": "linear"}, "a function of the share of rounds that are finished"),
        ({"schedule": lambda _: None}, "must be a factor of lr, above 0, as lambda done"),
        (
            {"schedule": torch.optim.lr_scheduler.StepLR},
            "schedulers of torch, which change an optimiser",
        ),
        ({"lr": "0.1"}, "lr must be a number > 0"),
    ],
)
def test_optimizers_and_schedules_say_what_else_they_may_be(options, says):
    with pytest.raises(vg.ConfigError, match=says) as refused:
        try_functions(vg.LocalTraining(**options))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("methods", "options", "says"),
    [
        ([vg.methods.FedAvg, vg.methods.Ditto], {}, r"the class FedAvg: write FedAvg\(\.\.\.\)"),
        (["fedavg", "ditto"], {}, r"got a str: write vergence\.methods\.FedAvg"),
        ([vg.methods.FedAvg()], {"label": "mine"}, r"\{'mine': FedAvg\(\)\}, in place of label="),
    ],
)
def test_train_all_says_what_it_takes(methods, options, says):
    with pytest.raises(vg.ConfigError, match=says):
        vg.train_all(methods, regression(), vg.Federation.from_arrays(arrays()), **options)


@pytest.mark.parametrize("callback", [network, np.testing.assert_equal])
def test_a_callback_of_other_arguments_is_refused_before_the_run(callback):
    with pytest.raises(vg.ConfigError, match="must be a function of a RoundReport"):
        trained(on_round=callback)


def test_what_a_callback_returns_besides_true_is_told():
    with pytest.warns(UserWarning, match="returned a str, which changes nothing: return True"):
        run = trained(on_round=lambda _: "stop", rounds=2)
    assert max(run.history.index) == 2
    stopped = trained(on_round=lambda report: np.bool_(report.round == 1), rounds=3)
    assert max(stopped.history.index) == 1


def test_early_stopping_without_patience_is_refused():
    with pytest.raises(vg.ConfigError, match="patience is 0, with which a run never ends early"):
        trained(early_stopping=vg.EarlyStopping())


def test_one_sample_in_place_of_several_is_refused():
    run = trained(rounds=1)
    with pytest.raises(vg.DataError, match=r"is 1-dimensional, .*: give x\[None\] for one sample"):
        run.predict("p00", np.zeros(4))


def test_a_data_set_that_fails_names_person_and_item():
    class Short(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, at):
            return (torch.ones(4), [1.0] * 7)[0], torch.tensor([1.0] * 7)[at]

    with pytest.raises(vg.DataError, match=r"'a': item 7 of the Short cannot be read \(IndexErr"):
        vg.Federation.from_datasets({"a": Short()})


def test_too_large_a_min_samples_says_the_largest():
    with pytest.raises(vg.DataError, match="give at most 40"):
        vg.Federation.from_arrays(arrays(), min_samples=99)
