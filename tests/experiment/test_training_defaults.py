"""Defaults of training: AdamW, a rate for each optimiser, and when a run ends."""

import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch

import vergence as vg
from tests.conftest import ROOT
from vergence.deployment.joined_node import deployable, with_fixed_rounds
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.plan import until_no_gain
from vergence.experiment.privacy.schema import build_privacy
from vergence.experiment.provenance import config_digest
from vergence.experiment.record_tables import method_table as method_entry
from vergence.experiment.schema import check, load, method_tables, read
from vergence.results.run_files import read_config, with_former_defaults
from vergence_papers.data_sets import GROUNDS

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


@pytest.mark.slow
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


def rules(path: Path) -> dict[str, str]:
    """Return the rule of each FedSelect in an experiment file, by label."""
    return {label: method.rule for label, method in load(path).methods.items()}


def test_an_older_run_of_fedselect_keeps_the_rule_that_it_was_made_with(tmp_path: Path):
    """Its default was what is `restated` now, under the name `paper`."""
    path = tmp_path / "config.toml"
    named = [{"name": "fedselect", "label": rule, "rule": rule} for rule in ("paper", "code")]
    packaged = {"name": "vergence.methods.fedselect:FedSelect", "label": "packaged"}
    methods = ["fedselect", packaged, *named]
    path.write_text(tomli_w.dumps({**TOY, "methods": methods, "local": NAMED}))
    with pytest.warns(FutureWarning, match="'paper' in method .fedselect. rule is called"):
        assert rules(path)["fedselect"] == rules(path)["packaged"] == "published"
    (tmp_path / "results.json").write_text("{}")
    with pytest.warns(FutureWarning, match="is called 'restated' now"):
        old = rules(path)
    was = {"fedselect": "restated", "packaged": "restated", "paper": "restated", "code": "code"}
    assert old == was


def test_the_method_that_another_extends_keeps_its_rule_too():
    base = {"name": "ap_fl", "base": {"name": "fedselect", "rate": 0.1}}
    assert with_former_defaults({**TOY, "method": base})["method"]["base"] == {
        "name": "fedselect",
        "rate": 0.1,
        "rule": "restated",
    }


def test_the_config_of_a_run_names_the_rule_of_fedselect():
    made = check({**TOY, "methods": ["fedavg", "fedselect"], "local": NAMED})
    assert made.table["methods"] == ["fedavg", {"name": "fedselect", "rule": "published"}]
    assert check(made.table).methods == made.methods
    assert method_entry(vg.methods.FedSelect(), vg.LocalTraining()) == {
        "name": "fedselect",
        "rule": "published",
    }


def test_every_shipped_file_names_the_rule_of_fedselect():
    files = [*ROOT.glob("experiments/*.toml"), *ROOT.glob("src/vergence/experiments/*.toml")]
    entries = [entry for path in files for entry in method_tables(read(path))]
    papers = tomllib.loads((ROOT / "papers/fedcpf/experiment.toml").read_text())["parts"]
    entries += [entry for part in papers.values() for entry in part["methods"]]
    chosen = [entry for entry in entries if entry["name"] == "fedselect"]
    assert len(chosen) > 20
    assert all("rule" in entry for entry in chosen)


def test_every_shipped_file_names_optimiser_rate_and_rounds():
    """Their numbers must not move with a default; templates may leave out rounds."""
    silent = []
    for path in [*ROOT.glob("experiments/*.toml"), *ROOT.glob("src/vergence/experiments/*.toml")]:
        table = read(path)
        for entry in method_tables(table):
            local = {**table.get("local", {}), **entry.get("local", {})}
            if not {"optimizer", "lr"} <= local.keys() or "rounds" not in table["run"]:
                silent.append((path.name, entry["name"]))
    for name, ground in GROUNDS.items():
        if not {"optimizer", "lr"} <= ground.table["local"].keys():
            silent.append((name, ""))
    assert not silent


# --- how long a run trains where nobody says it


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"privacy": build_privacy({"aggregation": "secure"})}, "secure sums are to hide"),
        ({"privacy": build_privacy({"user": {"clip": 1.0, "noise": 1.0}})}, "no budget of"),
        ({"evaluate_every": 0}, "evaluates at the end only"),
        ({"delivery": Delivery("fedasync")}, "one by one"),
    ],
)
def test_where_validation_may_not_end_a_run_it_has_twenty_rounds(settings: dict, why: str):
    plan, length = until_no_gain(vg.Plan(**settings))
    assert (plan.rounds, plan.early_stopping.patience) == (20, 0)
    assert length.startswith("20 rounds, as run.rounds names no number")
    assert why in length


def test_elsewhere_it_trains_until_validation_stops_gaining():
    plan, length = until_no_gain(vg.Plan())
    assert (plan.rounds, plan.early_stopping.patience) == (200, 8)
    assert "has not gained for 8 evaluations (one every 5 rounds; the models of" in length
    assert "the models of the best one stay), 200 rounds at most" in length
    last = vg.EarlyStopping(patience=2, restore_best=False)
    assert (
        "2 evaluations (one every 5 rounds), 200" in until_no_gain(vg.Plan(early_stopping=last))[1]
    )
    own = vg.EarlyStopping(patience=2)
    assert until_no_gain(vg.Plan(early_stopping=own))[0].early_stopping == own
    assert until_no_gain(vg.Plan(), closed_form=True)[0] == vg.Plan(rounds=1)
    assert until_no_gain(vg.Plan(), validated=False)[0] == vg.Plan()


def test_an_experiment_without_rounds_says_what_it_does_in_its_table():
    table = {key: part for key, part in TOY.items() if key != "run"}
    made = check({**table, "methods": ["fedavg", "local_only"]})
    assert (made.table["run"], made.table["early_stopping"]) == (
        {"rounds": 200},
        {"patience": 8, "restore_best": True},
    )
    assert made.default_length.startswith("until the score on validation samples")
    again = check(made.table)
    assert (again.table, again.plan, again.default_length) == (made.table, made.plan, "")
    secret = check({**table, "method": "fedavg", "privacy": {"aggregation": "secure"}})
    assert (secret.plan.rounds, "early_stopping" in secret.table) == (20, False)


def test_a_deployment_has_a_number_of_rounds():
    table = {key: part for key, part in TOY.items() if key != "run"}
    made = with_fixed_rounds(check({**table, "method": {"name": "fedavg"}}))
    assert (made.plan.rounds, made.plan.early_stopping.patience) == (20, 0)
    assert check(made.table).plan == made.plan
    assert deployable(check({**table, "method": {"name": "fedavg"}})).plan.rounds == 20
    assert made.default_length.startswith("20 rounds, as run.rounds names no number and clients of")
    named = check({**TOY, "method": {"name": "fedavg"}})
    assert with_fixed_rounds(named) is named


def tiny(*parts: str) -> vg.Federation:
    """Two people with two samples in each of these parts."""
    one = {part: (torch.eye(2), torch.ones(2)) for part in parts}
    return vg.Federation.from_arrays({"a": one, "b": one})


def still(parts: tuple[str, ...], capsys: pytest.CaptureFixture, **options) -> tuple[dict, str]:
    """Train without a number of rounds by steps that change nothing; return results and lines."""
    task = vg.task_from(lambda: torch.nn.Linear(2, 1), torch.nn.functional.mse_loss)
    method = vg.methods.FedAvg(vg.LocalTraining(lr=1e-30))
    run = vg.train(method, task, tiny(*parts), workers=1, **options)
    return run.record.results, capsys.readouterr().err


def test_train_without_rounds_ends_when_validation_does_not_gain(capsys):
    results, lines = still(("train", "val", "test"), capsys)
    assert (results["rounds"], results["stopped"]["0"]["round"]) == (200, 40)
    assert "trains until the score on validation samples" in lines
    assert "fedavg ended after round 40 of 200 (40 steps a person): test_loss on" in lines


def test_without_validation_samples_it_has_twenty_rounds(capsys):
    results, lines = still(("train", "test"), capsys)
    assert (results["rounds"], "stopped" in results) == (20, False)
    assert "nobody has validation samples" in lines


def test_a_plan_has_its_own_number_of_rounds(capsys):
    results, lines = still(("train", "val", "test"), capsys, plan=vg.Plan(rounds=3))
    assert results["rounds"] == 3
    assert "vergence: trains" not in lines


def test_a_run_that_never_stopped_gaining_says_so(capsys):
    task = vg.task_from(lambda: torch.nn.Linear(2, 1), torch.nn.functional.mse_loss)
    rule = vg.EarlyStopping(patience=2)
    how = {"rounds": 6, "evaluate_every": 1, "early_stopping": rule, "workers": 1}
    run = vg.train(vg.methods.FedAvg(), task, tiny("train", "val", "test"), **how)
    said = (
        "fedavg trained all 6 rounds (6 steps a person) before validation had been without a gain "
        "for 2 evaluations: more rounds"
    )
    assert said in capsys.readouterr().err
    assert said in repr(run)


def test_a_run_that_does_not_beat_a_constant_says_so(capsys):
    """All targets are 1, which the best constant predicts without an error."""
    _, lines = still(("train", "val", "test"), capsys)
    assert "fedavg does not beat a constant: its test_loss is" in lines
    assert "always giving the one answer that the loss likes best for everybody, has 0" in lines


def test_a_run_that_beats_every_constant_says_nothing(capsys):
    """Targets are the inputs: the best constant has the loss 1/4, a linear network less."""
    x = torch.tensor([[0.0], [1.0]]).repeat(8, 1)
    parts = dict.fromkeys(("train", "val", "test"), (x, x[:, 0].clone()))
    people = vg.Federation.from_arrays({"a": parts, "b": parts})
    task = vg.task_from(lambda: torch.nn.Linear(1, 1), torch.nn.functional.mse_loss)
    method = vg.methods.FedAvg(vg.LocalTraining(optimizer="sgd", lr=0.1))
    run = vg.train(method, task, people, rounds=30, workers=1)
    assert run.scores.test_loss.max() < 0.1
    assert "constant" not in capsys.readouterr().err + repr(run)


def test_explain_says_how_long_and_by_what_clients_train(capsys):
    task = vg.task_from(lambda: torch.nn.Linear(2, 1), torch.nn.functional.mse_loss)
    people = tiny("train", "val", "test")
    vg.explain(vg.methods.FedAvg(), task, people)
    text = " ".join(capsys.readouterr().out.split())
    assert "trains until the score on validation samples has not gained" in text
    assert "local training: adamw, lr 0.001, 1 x all samples a turn in batches of 32" in text
    assert "every person's score on validation samples" in text
    vg.explain(vg.methods.FedAvg(), task, people, plan=vg.Plan(rounds=3))
    text = " ".join(capsys.readouterr().out.split())
    assert "trains 3 rounds" in text
    assert "by which the run ends" not in text
