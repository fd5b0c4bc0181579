"""Tasks from functions: losses and metrics as given, and factories that cannot work refused."""

import copy
import math
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

import vergence as vg
from tests.experiment.made_up import arrays, network, regression, trained
from vergence.api.function_digest import qualified_name
from vergence.api.task_from import is_importable
from vergence.engine.workers import pools

OUTPUTS, TARGETS = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 4.0, 1.0])


def samples(**columns):
    return vg.Samples({"x": torch.zeros(3, 4), "y": TARGETS, **columns})


def worst(outputs, targets):
    return (outputs - targets).abs().max()


def test_without_metrics_the_loss_on_the_test_samples_is_the_score():
    """Errors 0, 2 and 3: their squares have the mean 13 / 3."""
    task = regression()
    assert (task.headline, task.lower_is_better) == ("test_loss", {"test_loss"})
    found = task.metrics(OUTPUTS, samples())
    assert found["test_loss"] == pytest.approx(13 / 3)
    assert set(found) == {"test_loss"}
    assert task.score(OUTPUTS, samples()) == pytest.approx(0.5 - math.atan(13 / 3) / math.pi)
    assert float(task.loss(OUTPUTS, samples().columns)) == pytest.approx(13 / 3)


def test_metrics_of_ones_own():
    task = regression(
        metrics={"worst": worst, "mae": l1_loss, "hits": lambda o, t: np.float64((o == t).sum())},
        lower_is_better=["worst", "mae"],
    )
    assert (task.headline, task.lower_is_better) == ("worst", {"worst", "mae"})
    found = task.metrics(OUTPUTS, samples())
    assert found == {
        "worst": 3.0,
        "mae": pytest.approx(5 / 3),
        "hits": 1.0,
    }
    better = regression(metrics={"hits": lambda o, t: (o == t).sum()}, lower_is_better=False)
    assert better.score(OUTPUTS, samples()) == pytest.approx(0.75)


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def classes(seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for person in ("a", "b", "c"):
        x = rng.normal(size=(60, 2))
        found[person] = {"x": x, "y": (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)}
    return vg.Federation.from_arrays(found)


def test_classes_are_learned_by_cross_entropy():
    task = vg.task_from(lambda: nn.Linear(2, 3), cross_entropy, {"accuracy": accuracy}, False)
    method = vg.methods.FedAvg(vg.LocalTraining(optimizer="sgd"))
    run = trained(method=method, task=task, people=classes(), rounds=30)
    assert run.headline == "accuracy"
    assert run.summary.loc["accuracy", "mean"] > 0.6
    assert run.history["accuracy"].iloc[0] < run.history["accuracy"].iloc[-1]
    assert task.class_of({"y": torch.tensor([2, 0])}).tolist() == [2, 0]
    with pytest.raises(vg.ConfigError, match="has no classes"):
        regression().class_of({"y": TARGETS})


def test_several_inputs_and_other_names():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.of = nn.Linear(3, 1)

        def forward(self, eye, head):
            return self.of(torch.cat([eye, head], 1))

    task = vg.task_from(Both, mse_loss, inputs=("eye", "head"), target="angle")
    people = {
        p: {"eye": c["x"][:, :2], "head": c["x"][:, 2:3], "angle": c["y"]}
        for p, c in arrays(2).items()
    }
    run = trained(method=vg.methods.FedAvg(), task=task, people=vg.Federation.from_arrays(people))
    assert run.predict("p00", {"eye": np.zeros((2, 2)), "head": np.ones((2, 1))}).shape == (2, 1)


def test_the_head_that_stays_at_home_may_be_named():
    run = trained(task=vg.task_from(network, mse_loss, head=["0.*"]))
    one, other = run.model("p00"), run.model("p01")
    assert not torch.equal(one[0].weight, other[0].weight)
    assert torch.equal(one[2].weight, other[2].weight)


def test_one_name_of_the_head_may_be_a_text():
    assert vg.task_from(network, mse_loss, head="0.*").network.head == ("0.*",)


def test_outputs_of_another_shape_than_targets_are_not_paired_with_all_of_them():
    task = vg.task_from(lambda: nn.Linear(4, 2), mse_loss)
    with pytest.raises(vg.ConfigError, match=r"puts out \[32, 2\] for targets \[32\] \('y'\)"):
        task.loss(torch.zeros(32, 2), {"x": torch.zeros(32, 4), "y": torch.zeros(32)})
    with pytest.raises(vg.ConfigError, match=r"puts out \[1, 2\] for targets \[1\]"):
        trained(method=vg.methods.FedAvg(), task=task)


def whole_targets(shape):
    return {
        p: {"x": c["x"], "y": (c["y"] > 0).astype(int).reshape(shape)} for p, c in arrays().items()
    }


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("squeezed", [False, True])
def test_an_output_of_one_number_is_not_paired_with_every_whole_number(shape, squeezed):
    """Outputs 1, 2 and 4 for 1, 4 and 1: errors 0, 2 and 3."""
    task = vg.task_from(lambda: nn.Linear(4, 1), nn.L1Loss())
    outputs = OUTPUTS[:, 0] if squeezed else OUTPUTS
    given = samples(y=TARGETS.long().reshape(shape))
    assert float(task.loss(outputs, given.columns)) == pytest.approx(5 / 3)
    assert task.metrics(outputs, given)["test_loss"] == pytest.approx(5 / 3)


def test_classes_with_an_output_each_are_left_as_they_are():
    task = vg.task_from(lambda: nn.Linear(4, 3), cross_entropy)
    targets = torch.tensor([0, 2, 1])
    outputs = torch.eye(3)[targets] * 20
    assert float(task.loss(outputs, samples(y=targets).columns)) < 1e-6
    with pytest.raises(vg.ConfigError, match=r"classes are whole numbers, y.astype\('int64'\)"):
        task.loss(outputs, samples(y=targets.float()).columns)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_a_loss_that_takes_no_whole_numbers_says_how_to_give_others(shape):
    task = vg.task_from(lambda: nn.Linear(4, 1), nn.BCEWithLogitsLoss())
    people = vg.Federation.from_arrays(whole_targets(shape))
    with pytest.raises(vg.ConfigError) as refused:
        trained(method=vg.methods.FedAvg(), task=task, people=people)
    assert "the loss does not take 'y', which is int64 (" in str(refused.value)
    assert "give floating-point numbers, y.astype('float32')" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["int64", "bool", "uint8"])
def test_inputs_of_a_kind_that_the_network_does_not_take_are_named_with_the_mend(kind):
    people = {p: {"x": c["x"].astype(kind), "y": c["y"]} for p, c in arrays().items()}
    with pytest.raises(vg.ConfigError) as refused:
        trained(people=vg.Federation.from_arrays(people))
    assert f"the network does not take 'x', which is {kind} (" in str(refused.value)
    assert "give floating-point numbers, x.astype('float32')" in str(refused.value)


def test_bfloat16_becomes_float32():
    people = {
        p: {"x": torch.tensor(c["x"]).to(torch.bfloat16), "y": c["y"]} for p, c in arrays().items()
    }
    made = vg.Federation.from_arrays(people)
    assert made.people["p00"].test.columns["x"].dtype == torch.float32


SHARED = nn.Linear(4, 1)


def failing():
    raise RuntimeError("no such weights\nsecond line")


def calling_wrongly():
    return nn.Linear(4)


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (SHARED, "got a Linear: write task_from(lambda: ...) around what built it, or task_from("),
        (
            lambda: SHARED,
            "gives the same network at every call: build a new one in it, or copy yours",
        ),
        (nn.Linear, "torch.nn.modules.linear.Linear cannot be called without arguments"),
        (
            failing,
            "failing, called to build the network, failed with RuntimeError: no such weights;",
        ),
        (calling_wrongly, "calling_wrongly, called to build the network, failed with TypeError: "),
        (lambda: torch.zeros(3), "must build a torch.nn.Module; it gives a Tensor"),
        ("Net", "takes a function that builds the network, as lambda: nn.Linear(4, 1); got 'Net'"),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
            "running statistics are not param",
        ),
        (nn.ReLU, "builds a network without parameters to train"),
        (lambda: nn.Linear(4, 1).requires_grad_(False), "without parameters to train"),
    ],
)
def test_factories_that_are_refused(factory, says):
    with pytest.raises(vg.ConfigError) as refused:
        vg.task_from(factory, mse_loss)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_failed_in_a_factory_is_chained():
    with pytest.raises(vg.ConfigError) as refused:
        vg.task_from(failing, mse_loss)
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_a_factory_that_draws_elsewhere_is_refused():
    def unseeded():
        layer = nn.Linear(4, 1)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(np.random.default_rng().normal(size=(1, 4))))
        return layer

    with pytest.raises(vg.ConfigError, match="builds other parameters at every call"):
        vg.task_from(unseeded, mse_loss)
    with pytest.raises(vg.ConfigError, match="builds other parameters at every call"):
        vg.task_from(
            lambda: nn.Sequential(unseeded().requires_grad_(False), nn.Linear(1, 1)), mse_loss
        )
    kept = nn.Linear(4, 1)
    task = vg.task_from(lambda: copy.deepcopy(kept), mse_loss)
    assert torch.equal(task.init()["weight"], kept.weight)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"metrics": {"mae": l1_loss}}, "say of which metrics (mae) less is better, as lower"),
        (
            {"metrics": {"mae": l1_loss}, "lower_is_better": "mse"},
            "names 'mse', which is no metric",
        ),
        ({"metrics": {}}, "metrics must be functions by name"),
        (
            {"lower_is_better": False},
            "without metrics the score is the loss, of which less is better",
        ),
        (
            {"metrics": {"score": l1_loss}, "lower_is_better": True},
            "call this metric something else",
        ),
        (
            {"metrics": {"mae": l1_loss}, "lower_is_better": 1},
            "lower_is_better must be True, False or names of metrics, as ['mae']; got 1",
        ),
        ({"inputs": 3}, "inputs must be names, as ['x']; got 3"),
        ({"metrics": {"mae": "l1"}, "lower_is_better": True}, "metric 'mae' must be a function of"),
    ],
)
def test_metrics_that_are_refused(options, says):
    with pytest.raises(vg.ConfigError) as refused:
        regression(**options)
    assert says in str(refused.value)


def test_a_loss_is_a_function_and_not_a_class():
    with pytest.raises(vg.ConfigError, match=r"loss must be a function of \(outputs, targets\)"):
        vg.task_from(network, nn.MSELoss)
    with pytest.raises(vg.ConfigError, match=r": write nn\.MSELoss\(\)$"):
        vg.task_from(network, nn.MSELoss)
    assert float(vg.task_from(network, nn.MSELoss()).loss(OUTPUTS, samples().columns)) > 4


def test_a_metric_that_is_no_number_is_refused_where_it_is_measured():
    task = regression(metrics={"errors": lambda o, t: o - t}, lower_is_better=True)
    with pytest.raises(
        vg.ConfigError, match=r"'errors' must give one number .* got a tensor \[3\]"
    ):
        task.metrics(OUTPUTS, samples())


def test_what_can_be_imported_by_name():
    assert is_importable(network)
    assert is_importable(mse_loss)
    assert is_importable(nn.MSELoss())
    assert not is_importable(lambda: 0)
    assert not is_importable(lambda: 0)

    def inside():
        return 0

    assert not is_importable(inside)
    assert qualified_name(network) == "tests.experiment.made_up.network"


def test_a_lambda_trains_in_several_processes_with_the_same_bits(tmp_path):
    """Each worker leaves a file of its own; no lambda can be imported."""

    def loss(output, target):
        (tmp_path / str(os.getpid())).touch()
        return mse_loss(output, target)

    local = vg.task_from(lambda: network(), loss)
    one, two = trained(task=local, workers=1), trained(task=local, workers=2)
    assert one.fingerprint == two.fingerprint
    processes = {int(path.name) for path in tmp_path.iterdir()}
    assert len(processes - {os.getpid()}) == 2


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (vg.task_from(lambda: nn.Linear(4, 1), mse_loss), "the network's factory, "),
        (vg.task_from(network, lambda o, t: mse_loss(o, t)), "the loss, "),
        (
            vg.task_from(network, mse_loss, {"mae": lambda o, t: l1_loss(o, t)}, True),
            "metric 'mae', ",
        ),
    ],
)
def test_ray_refuses_what_it_cannot_import_with_the_mend(task, what):
    with pytest.raises(vg.ConfigError) as refused:
        trained(task=task, plan=vg.Plan(engine="ray"), workers=None)
    assert what in str(refused.value)
    assert "cannot be imported by name, and Ray would have to: put it into a module" in str(
        refused.value
    )
    assert "\n" not in str(refused.value)


def test_without_forks_a_lambda_trains_in_one_process(monkeypatch, capsys):
    pools.note_one_process.cache_clear()
    monkeypatch.setattr(pools, "can_fork", lambda: False)
    local = vg.task_from(lambda: network(), mse_loss)
    assert trained(task=local, workers=2).fingerprint == trained().fingerprint
    assert "this system cannot fork processes" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_while_training_names_the_line(workers, tmp_path):
    def loss(output, target):
        if output.requires_grad:
            output = output.reshape(7, 7)
        return mse_loss(output, target)

    with pytest.raises(vg.VergenceError, match=r"test_task_from\.py:\d+, loss"):
        trained(tmp_path / "run", task=vg.task_from(network, loss), workers=workers)


def test_a_function_of_a_module_trains_in_two_processes():
    assert trained(workers=2).fingerprint == trained().fingerprint


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 8}, r"'batch_size': write local=vergence\.LocalTraining\(batch=\.\.\.\)"),
        ({"learning_rate": 8}, r"write local=vergence\.LocalTraining\(lr=\.\.\.\)"),
        ({"callbacks": [print]}, r"write on_round=\.\.\., a function of a RoundReport"),
        ({"num_rounds": 8}, r"did you mean 'rounds'"),
        ({"callback": print}, r"did you mean 'on_round'"),
        ({"patience": 3}, r"write early_stopping=vergence\.EarlyStopping\(patience=\.\.\.\)"),
        ({"fraction_fit": 0.5}, r"write participation=vergence\.Participation\(cohort=\.\.\.\)"),
    ],
)
def test_words_of_other_libraries_name_what_to_write(options, says):
    with pytest.raises(TypeError, match=says):
        trained(**options)


def test_an_augmentation_is_given_to_the_task():
    with pytest.raises(TypeError, match=r"'transform': write task\.with_transform\(\.\.\.\)"):
        vg.task_from(network, mse_loss, transform=lambda x: x)


def test_several_methods_are_trained_one_after_the_other():
    with pytest.raises(vg.ConfigError, match=r"got a list: write vergence.train_all\(methods"):
        trained(method=[vg.methods.FedAvg(), vg.methods.FedPer()])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["train"], "nobody has test samples"),
        (["val", "test"], "has the parts 'val' and 'test': give 'train'"),
        (["x", "y"], "give one data set, which is split, or parts"),
    ],
)
def test_data_sets_in_place_of_columns_are_refused_at_once(parts, message):
    """One without a last item would be read for ever, as a list that never ends."""

    class Endless(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, at):
            return torch.ones(4) * at, torch.tensor(at % 4)

    person = dict.fromkeys(parts, Endless())
    with pytest.raises(vg.DataError, match=message):
        vg.Federation.from_datasets({"a": person, "b": person})
