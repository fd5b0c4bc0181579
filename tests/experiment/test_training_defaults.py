"""Defaults of local training: AdamW, and for each optimiser its own learning rate."""

from pathlib import Path

import pytest
import tomli_w
import torch

import vergence as vg
from vergence.experiment.provenance import config_digest
from vergence.experiment.schema import check, load
from vergence.results.run_files import read_config

TOY = {
    "task": {"name": "toy"},
    "model": {"name": "linear", "inputs": 4},
    "federation": {"name": "toy", "people": 3},
    "run": {"rounds": 2},
}
NAMED = {"epochs": 1, "optimizer": "sgd", "lr": 0.05}


@pytest.mark.parametrize(
    ("options", "optimizer", "lr"),
    [
        ({}, "adamw", 1e-3),
        ({"lr": 0.2}, "adamw", 0.2),
        ({"optimizer": "sgd"}, "sgd", 0.05),
        ({"optimizer": "sgd", "lr": 0.2}, "sgd", 0.2),
        ({"optimizer": "adam"}, "adam", 1e-3),
        ({"optimizer": torch.optim.RMSprop}, torch.optim.RMSprop, 1e-3),
    ],
)
def test_every_optimiser_has_its_own_rate(options: dict, optimizer: object, lr: float):
    local = vg.LocalTraining(**options)
    assert (local.optimizer, local.lr) == (optimizer, lr)


def test_methods_whose_formulas_need_sgd_have_it_as_default():
    assert vg.methods.FedAvg().local.optimizer == "adamw"
    for method in (vg.methods.Scaffold(), vg.methods.QFedAvg()):
        assert (method.local.optimizer, method.local.lr) == ("sgd", 0.05)


def test_an_experiment_names_the_optimiser_and_rate_of_each_of_its_methods():
    methods = ["fedavg", "scaffold", {"name": "fedprox", "local": {"optimizer": "sgd"}}]
    made = check({**TOY, "methods": methods, "local": {"batch": 4}})
    assert made.table["local"] == {"batch": 4, "optimizer": "adamw", "lr": 1e-3}
    sgd = {"optimizer": "sgd", "lr": 0.05}
    assert made.table["methods"] == [
        "fedavg",
        {"name": "scaffold", "local": sgd},
        {"name": "fedprox", "local": sgd},
    ]
    again = check(made.table)
    assert (again.table, again.methods) == (made.table, made.methods)


def test_a_table_that_names_both_stays_as_it_is():
    table = {**TOY, "method": {"name": "fedavg"}, "local": NAMED}
    assert config_digest(check(table).table) == config_digest(table)


def test_the_config_of_a_python_run_names_both(tmp_path: Path):
    task = vg.tasks.ToyTask(vg.models.Linear())
    how = {"rounds": 1, "workers": 1, "progress": False}
    vg.train(vg.methods.FedAvg(), task, vg.data.Toy(people=2), out=tmp_path / "a", **how)
    local = read_config(tmp_path / "a" / "config.toml")["local"]
    assert local == {"optimizer": "adamw", "lr": 1e-3}
    assert vg.open_run(tmp_path / "a").experiment.methods["fedavg"].local.lr == 1e-3


@pytest.mark.parametrize(
    ("local", "optimizer", "lr"),
    [({}, "sgd", 0.05), ({"lr": 0.2}, "sgd", 0.2), ({"optimizer": "adam"}, "adam", 0.05)],
)
def test_an_older_run_keeps_the_defaults_that_it_was_made_with(
    local: dict, optimizer: str, lr: float, tmp_path: Path
):
    table = {key: part for key, part in TOY.items() if key != "run"}
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps({**table, "method": {"name": "fedavg"}, "local": local}))
    assert load(path).methods["fedavg"].local.optimizer == local.get("optimizer", "adamw")
    (tmp_path / "results.json").write_text("{}")
    old = load(path)
    assert (old.methods["fedavg"].local.optimizer, old.methods["fedavg"].local.lr) == (
        optimizer,
        lr,
    )
    assert old.plan.rounds == read_config(path)["run"]["rounds"] == 20
