"""Runs opened again: the objects that made one are taken, whatever way it says so; others not."""

import importlib
import sys

import pytest
import tomli_w
import torch
from torch.nn.functional import l1_loss

import vergence as vg
from tests.experiment.made_up import arrays, network, regression, trained

TABLE = {
    "task": {"name": "toy"},
    "model": {"name": "linear", "inputs": 4},
    "federation": {"name": "toy", "people": 3},
    "method": "fedavg",
    "local": {"optimizer": "sgd", "lr": 0.02, "batch": 8},
    "run": {"rounds": 1, "seeds": [5], "workers": 1},
}


def by_file(folder, **tables):
    (folder / "e.toml").write_text(tomli_w.dumps({**TABLE, **tables}))
    return next(iter(vg.run_experiment(folder / "e.toml", folder / "out", progress=False).values()))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return by_file(tmp_path_factory.mktemp("file"))


def toy(inputs=4):
    return vg.tasks.ToyTask(vg.models.Linear(inputs=inputs))


@pytest.mark.parametrize(
    "given",
    [
        {"people": vg.data.Toy(people=3)},
        {"people": vg.data.Toy()},
        {"method": vg.methods.FedAvg()},
        {"method": vg.methods.FedAvg(vg.LocalTraining(optimizer="sgd", lr=0.02, batch=8))},
        {"task": toy()},
        {"task": toy(), "people": vg.data.Toy(), "method": vg.methods.FedAvg()},
    ],
)
def test_the_objects_that_a_file_names_are_taken(given, ran):
    opened = vg.open_run(ran.folder, **given)
    assert torch.equal(opened.model("p01").weight, ran.model("p01").weight)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"people": vg.data.Toy(people=4)}, "federation"),
        ({"people": vg.Federation.from_arrays(arrays())}, "federation"),
        ({"method": vg.methods.FedPer()}, "method"),
        ({"method": vg.methods.FedAvg(vg.LocalTraining(optimizer="sgd", lr=0.5))}, "method"),
        ({"task": toy(inputs=5)}, "model"),
        ({"task": regression()}, "model"),
    ],
)
def test_other_objects_are_refused(given, part, ran):
    with pytest.raises(vg.StateError, match=f"was made by another {part}: its config") as refused:
        vg.open_run(ran.folder, **given)
    assert len(str(refused.value)) < 600
    assert "\n" not in str(refused.value)


def test_what_a_file_says_beside_them_is_kept(tmp_path):
    run = by_file(tmp_path, proxy={"name": "toy", "seed": 3})
    opened = vg.open_run(run.folder, people=vg.data.Toy())
    assert opened.loaded.sha == run.loaded.sha
    assert opened.loaded.ready.proxies is not None


def test_a_method_over_another_is_the_one_that_a_file_names(tmp_path):
    tuned = {"name": "fedavg_ft", "local": {"optimizer": "sgd", "lr": 0.05}}
    run = by_file(tmp_path, method=tuned)
    local = vg.LocalTraining(optimizer="sgd", lr=0.05, batch=8)
    assert vg.open_run(run.folder, method=vg.methods.FedAvgFT(local)).model("p00") is not None


def test_the_folder_of_the_data_is_read_from_the_run(tmp_path):
    task = vg.task_from(lambda: torch.nn.Linear(4, 1), l1_loss)
    method, people = vg.methods.FedAvg(), vg.data.Toy()
    made = trained(tmp_path / "out", method, task=task, people=people, root=str(tmp_path))
    opened = vg.open_run(tmp_path / "out", task=task, people=people)
    assert torch.equal(opened.model("p00").weight, made.model("p00").weight)
    assert vg.open_run(tmp_path / "out", task=task).model("p00") is not None
    with pytest.raises(vg.StateError, match="made by another federation"):
        vg.open_run(tmp_path / "out", task=task, people=vg.data.Toy(people=5))


def test_another_loss_is_another_task(tmp_path):
    run = trained(tmp_path / "out", task=vg.task_from(network, lambda o, t: 2 * l1_loss(o, t)))
    people = vg.Federation.from_arrays(arrays())
    with pytest.raises(vg.StateError, match="made by another task"):
        vg.open_run(
            run.folder, task=vg.task_from(network, lambda o, t: l1_loss(o, t)), people=people
        )


OTHER = """
import vergence as vg


class Other(vg.methods.FedAvg):
    pass
"""


RULE = """
from vergence.core.method import RobustRule


class Mine(RobustRule):
    pass
"""


def test_training_says_how_code_in_a_table_may_run(tmp_path):
    (tmp_path / "rule.py").write_text(RULE)
    with pytest.raises(vg.UntrustedCode) as refused:
        trained(privacy={"robust": str(tmp_path / "rule.py")})
    assert str(refused.value).endswith(
        "name it in an experiment FILE, and "
        "`vergence.run_experiment(vergence.load_experiment(FILE, trust_code=True), OUT)`"
    )


HALVED = """
from dataclasses import dataclass

import vergence as vg


@dataclass(frozen=True)
class Halved(vg.privacy.RobustRule):
    def decide(self, votes, stream, root):
        return vg.privacy.Decision(votes.values.mean(0) / 2, len(votes))
"""


@pytest.mark.parametrize("task", [toy(), regression()], ids=["packaged", "own"])
def test_a_rule_of_ones_own_is_trained_with_and_opened(task, tmp_path, monkeypatch):
    (tmp_path / "halved_rule.py").write_text(HALVED)
    monkeypatch.syspath_prepend(tmp_path)
    privacy = vg.Privacy(robust=importlib.import_module("halved_rule").Halved())
    given = {"task": task, "people": vg.data.Toy(people=3)}
    run = trained(tmp_path / "out", vg.methods.FedAvg(), privacy=privacy, **given)
    assert run.fingerprint != trained(None, vg.methods.FedAvg(), **given).fingerprint
    opened = vg.open_run(run.folder, task=task, trust_code=True)
    weights = [next(found.model("p00").parameters()) for found in (opened, run)]
    assert torch.equal(*weights)
    with pytest.raises(vg.UntrustedCode):
        vg.open_run(run.folder, task=task)


def test_a_run_that_names_code_is_opened_where_it_is_trusted(tmp_path, monkeypatch):
    (tmp_path / "mine_mod.py").write_text(OTHER)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "e.toml"
    file.write_text(tomli_w.dumps({**TABLE, "method": "mine_mod:Other"}))
    experiment = vg.load_experiment(file, trust_code=True)
    run = next(iter(vg.run_experiment(experiment, tmp_path / "out", progress=False).values()))
    untrusted = vg.open_run(run.folder)
    assert untrusted.scores.equals(run.scores)
    with pytest.raises(vg.UntrustedCode, match=r"`vergence.open_run\(FOLDER, trust_code=True\)`"):
        untrusted.model("p00")
    with pytest.raises(vg.UntrustedCode, match=r"open_run\(FOLDER, trust_code=True\)"):
        vg.open_run(run.folder, people=vg.data.Toy())
    for opened in (
        vg.open_run(run.folder, trust_code=True),
        vg.open_run(run.folder, trust_code=True, people=vg.data.Toy()),
        vg.open_run(run.folder, trust_code=True).save(tmp_path / "kept"),
    ):
        assert torch.equal(opened.model("p00").weight, run.model("p00").weight)
        assert opened.verify() == run.fingerprint
    sys.modules.pop("mine_mod", None)


def test_rows_of_another_shape_are_told_both_shapes(ran):
    said = r"a row of 'x' has the shape \[3\], and the run was trained on rows of \[4\]"
    with pytest.raises(vg.DataError, match=said):
        ran.predict("p01", torch.zeros(2, 3))
    assert len(ran.predict("p01", torch.zeros(2, 4))) == 2


class Strict(torch.nn.Linear):
    """It checks the shape of its input itself, and has a buffer of complex numbers."""

    def __init__(self):
        super().__init__(4, 1)
        self.register_buffer("turns", torch.ones(2, dtype=torch.complex64), persistent=False)

    def forward(self, x):
        if x.shape[1:] != (4,):
            raise ValueError("a shape of the network's own")
        return super().forward(x)


def test_a_networks_own_check_of_the_shape_is_told_both_shapes():
    run = trained(task=vg.task_from(Strict, l1_loss), method=vg.methods.FedAvg(), rounds=1)
    with pytest.raises(vg.DataError, match="rows of \\[4\\]"):
        run.predict("p01", torch.zeros(2, 3))


def test_a_run_is_not_opened_with_another_frozen_backbone(tmp_path):
    def task(value):
        def build():
            backbone = torch.nn.Linear(4, 3).requires_grad_(False)
            torch.nn.init.constant_(backbone.weight, value)
            return torch.nn.Sequential(backbone, torch.nn.Linear(3, 1))

        return vg.task_from(build, l1_loss)

    run = trained(tmp_path / "run", task=task(1.0), method=vg.methods.FedAvg(), rounds=1)
    people = vg.Federation.from_arrays(arrays())
    same = vg.open_run(run.folder, task=task(1.0), people=people)
    assert torch.equal(same.model("p01")[0].weight, torch.ones(3, 4))
    with pytest.raises(vg.StateError, match="another model"):
        vg.open_run(run.folder, task=task(2.0), people=people)
    with pytest.raises(vg.StateError):
        trained(run.folder, task=task(2.0), method=vg.methods.FedAvg(), rounds=2, resume=True)
