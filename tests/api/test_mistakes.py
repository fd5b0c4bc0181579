"""Mistakes with one's own network, data and loop: each message says what to write instead."""

import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import vergence as vg
from tests.cli.commands import vergence
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


def fails_late(done):
    if done > 0.3:
        raise KeyError("warmup")
    return 1.0


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (fails_late, r"schedule\(0\.5\) failed with KeyError: 'warmup' \(test_mistakes\.py:\d+\)"),
        (lambda done: 1 / done, r"schedule\(0\) failed with ZeroDivisionError: float division"),
        (lambda done: 1.0 if done < 0.3 else np.nan, r"schedule\(0\.5\) must be .*; got nan"),
    ],
)
def test_a_schedule_is_tried_for_every_round_before_the_run(schedule, says):
    def never(_):
        raise AssertionError("the run began")

    with pytest.raises(vg.ConfigError, match=says) as refused:
        trained(
            local=vg.LocalTraining(optimizer="sgd", schedule=schedule), rounds=4, on_round=never
        )
    assert "as lambda done: 0.9 ** (20 * done)" in str(refused.value)


@pytest.mark.slow
def test_a_schedule_that_fails_in_a_worker_alone_says_the_same():
    here = os.getpid()

    def elsewhere(done):
        if os.getpid() != here:
            raise OSError("no file here")
        return 1.0 - 0.5 * done

    with pytest.raises(
        vg.ConfigError, match=r"schedule\(0\) failed with OSError: no file .*, as l"
    ):
        trained(local=vg.LocalTraining(optimizer="sgd", schedule=elsewhere), workers=2)


@pytest.mark.parametrize("least", ["10", 2.5, -1, True])
def test_min_samples_is_a_whole_number(least):
    with pytest.raises(vg.ConfigError, match=rf"whole number, 0 or more, .*; got {least!r}"):
        vg.Federation.from_arrays(arrays(), min_samples=least)
    vg.Federation.from_arrays(arrays(), min_samples=np.int64(10))


def test_labs_name_people_as_the_data_do():
    """A mapping is enough; whoever is misspelt is named with whom it could be."""
    for people, says in (
        (["p03", "p044"], r"'p044' .*\(did you mean 'p04'\?\)"),
        (["p03"], "no l"),
    ):
        plan = vg.Plan(silos={"north": ["p00", "p01", "p02"], "south": people})
        with pytest.raises(vg.ConfigError, match=rf"silos: .*{says}"):
            trained(method=vg.methods.FedAvg(), plan=plan)


@pytest.mark.parametrize("make", [DataLoader, RandomSampler, lambda data: iter(DataLoader(data))])
def test_loaders_and_samplers_are_told_to_give_their_data_set(make):
    data = TensorDataset(torch.ones(20, 4), torch.ones(20))
    people = {"a": make(data)}
    for give in (vg.Federation.from_datasets, vg.Federation.from_arrays):
        with pytest.raises(vg.DataError, match=r"person 'a' has a .*itself, loader\.dataset"):
            give(people)
    for given in (people, people["a"]):
        with pytest.raises(vg.ConfigError, match=r"from_arrays\(.*itself, loader\.dataset"):
            vg.train(vg.methods.FedAvg(), regression(), given)
    with pytest.raises(vg.ConfigError, match=r"write Federation\.from_datasets\(people\)"):
        vg.train(vg.methods.FedAvg(), regression(), {"a": data})


@pytest.mark.parametrize(
    ("label", "write"),
    [("my run", "my_run"), ("v1.0", "v1_0"), ("-x", "x"), ("", "mine"), (1, "1")],
)
def test_labels_say_what_they_may_hold(label, write):
    says = f"label {label!r} must be letters, digits, _ and -, .*: write '{write}'"
    with pytest.raises(vg.ConfigError, match=says):
        vg.train_all(
            {label: vg.methods.FedAvg()}, regression(), vg.Federation.from_arrays(arrays())
        )


@pytest.mark.slow
def test_a_mapping_s_keys_name_the_runs_of_a_comparison():
    runs = [trained(rounds=1, method=vg.methods.FedAvg()), trained(rounds=1)]
    table = vg.compare({"my run v1.0": runs[0]}, runs[1]).table
    assert list(table.index) == ["best constant", "my run v1.0", "fedper"]
    alike = vg.compare({"a": runs[0]}, {"a": runs[1]}).table
    assert list(alike.index) == ["best constant", "fedavg", "fedper"]


def test_predictions_for_samples_without_numbers_are_refused():
    run, x = trained(rounds=1), np.ones((6, 4), "float32")
    x[1, 2], x[3, 0] = np.nan, np.inf
    for samples in (x, {"x": x}):
        with pytest.raises(vg.DataError, match=r"'x' is nan in row 1 \(2 of 6 rows .*: mend these"):
            run.predict("p00", samples)
    x[1, 2], x[3, 0] = 0, 0
    assert run.predict("p00", x).isfinite().all()


def test_missing_inputs_may_be_missing_in_predictions_too():
    class Filled(nn.Linear):
        def forward(self, x):
            return super().forward(x.nan_to_num())

    people = arrays()
    people["p00"]["x"][3, 1] = np.nan
    federation = vg.Federation.from_arrays(people, missing="x")
    task = vg.task_from(lambda: Filled(4, 1), mse_loss)
    run = trained(task=task, people=federation, method=vg.methods.FedAvg(), rounds=1)
    x = np.full((2, 4), np.nan, "float32")
    assert run.predict("p01", x).isfinite().all()
    x[0, 0] = np.inf
    with pytest.raises(vg.DataError, match=r"'x' is inf in row 0 \(1 of 2 rows"):
        run.predict("p01", x)


@pytest.mark.slow
def test_f1_of_a_task_without_classes():
    run = trained(rounds=1)
    for ask in (run.classes, run.confusion):
        with pytest.raises(
            vg.ConfigError, match=r"F1 .* need class numbers .*run\.predictions\(\)"
        ):
            ask()
    with pytest.raises(
        vg.ConfigError, match="no run has the metric 'F1'; measured: test_loss: choo"
    ):
        vg.compare(run, metric="F1")
    with pytest.raises(vg.ConfigError, match=r"'Test-Loss' \(did you mean 'test_loss'\?\)"):
        vg.compare(run, metric="Test-Loss")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda y: y,
            r"'F1' is one of classes \(.*\), and outputs .*: give it outputs\.argmax\(1\)",
        ),
        (lambda y: 1.5 * y, "'F1' is one of classes .*, and 'y' has no class numbers: take a"),
    ],
)
def test_a_metric_of_classes_with_other_outputs_or_targets(change, says):
    def f1(outputs, _):
        """Words of scikit-learn, which is no dependency."""
        if outputs.ndim > 1:
            raise ValueError("can't handle a mix of multiclass and continuous-multioutput targets")
        raise ValueError("continuous is not supported")

    people = {p: {"x": own["x"], "y": change(own["y"])} for p, own in classes().items()}
    whole = people["p00"]["y"].dtype.kind == "i"
    network = (
        (lambda: nn.Linear(4, 4))
        if whole
        else (lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)))
    )
    loss = cross_entropy if whole else mse_loss
    task = vg.task_from(network, loss, {"F1": f1}, lower_is_better=False)
    with pytest.raises(vg.ConfigError, match=says):
        trained(task=task, people=vg.Federation.from_arrays(people), method=vg.methods.FedAvg())


@pytest.mark.slow
def test_names_are_found_whatever_their_capitals():
    for name in ("Fashion-MNIST", "fashion mnist", "fashion_mnst"):
        with pytest.raises(
            vg.ConfigError, match=r"no data set .*\(did you mean 'fashion_mnist'\?\)"
        ):
            vg.load_experiment("toy", [f"federation.name={name}"])
    with pytest.raises(AttributeError, match=r"did you mean 'FedAvg'\?"):
        _ = vg.methods.FedAVG


FACES = """
task = {{ name = "gaze_angle" }}
model = {{ name = "lenet" }}
method = {{ name = "fedavg" }}

[federation]
name = "face_pictures"
root = "{root}"
columns = {{ left = "left_eyes", right = "right_eye", gaze = ["pitch", "yaw"] }}
"""
SCREEN = """
task = {{ name = "gaze_map" }}
model = {{ name = "glc_vit", preset = "tiny64" }}
method = {{ name = "fedavg" }}

[federation]
name = "stimuli"
root = "{root}"
stimuli = "images"
place = "centre"
screen = [1920, 1080]
columns = {{ t = "time", x = "x", y = "y", person = "people", stimulus = "images", {units} }}
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FACES, "missing columns left_eyes (did you mean 'left_eye'?); found person, left_eye"),
        (SCREEN, "no column 'images' (columns.stimulus) (did you mean 'image'?); its header has"),
    ],
)
def test_a_misspelt_column_of_a_table_is_named_with_those_there_are(text, says, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "targets.csv").write_text("person,left_eye,right_eye,pitch,yaw\np,a,b,1,2\n")
    if text == SCREEN:
        (tmp_path / "targets.csv").write_text("people,image,time,x,y\np1,a.png,0,1,1\n")
    file = tmp_path / "made.toml"
    file.write_text(text.format(root=tmp_path.as_posix(), units='unit = "px", t_unit = "ms"'))
    vergence("run", file, "--out", tmp_path / "out").complains(3, says)
