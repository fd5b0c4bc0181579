"""Runs that differ in what no method chooses are refused, field by field."""

import json
import shutil

import pytest
import tomli_w

from tests.cli.commands import vergence
from vergence.errors import ConfigError, StateError
from vergence.experiment.schema import override
from vergence.studies.comparability import ANYTHING, check_comparable
from vergence.studies.compare import gather

CONFIG = {
    "task": {"name": "gaze_map", "sigma": 0.02},
    "model": {"name": "glc_features", "width": 32},
    "federation": {"name": "osie", "root": "osie"},
    "local": {"optimizer": "sgd", "epochs": 1, "batch": 20, "lr": 0.001},
    "presence": {"cohort": 0.8},
    "run": {"rounds": 6, "seeds": [0, 1]},
}
DATA = {"name": "osie", "sha256": "00ff", "split": "by image"}


def write(folder, sets=(), results=(), data=()):
    """Change a fixture run: `--set` words of its config, keys of results and provenance."""
    table = {**json.loads(json.dumps(CONFIG)), "method": {"name": "fedavg"}}
    for item in sets:
        override(table, item)
    (folder / "config.toml").write_text(tomli_w.dumps(table))
    told = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps({**told, **dict(results)}))
    path = folder / "provenance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": {**DATA, **dict(data)}}))
    return folder


@pytest.fixture
def two(out, tmp_path):
    """Two runs of one configuration, the second to be changed."""
    one, other = (shutil.copytree(out / name, tmp_path / name) for name in ("fedavg", "fedcpf"))
    return write(one), write(other)


def test_alike_runs_agree(two):
    assert check_comparable(gather(two).runs) == []


FIELDS = {
    "task": ((), {"task": "gaze_angle"}, {}, "gaze_map", "gaze_angle"),
    "task.sigma": (["task.sigma=0.03"], {}, {}, "0.02", "0.03"),
    "task.criterion": (['task.criterion="ce"'], {}, {}, "kl", "ce"),
    "model": (["model.name=glc_vit"], {}, {}, "glc_features", "glc_vit"),
    "model.width": (["model.width=64"], {}, {}, "32", "64"),
    "federation": ((), {"federation": "gazecom"}, {}, "osie", "gazecom"),
    "federation.people": (['federation.people=["v00"]'], {}, {}, "none", r"\['v00'\]"),
    "people": ((), {"people": ["p1", "p2", "p9"]}, {}, "'p4'", "'p9'"),
    "split": ((), {}, {"split": "by person"}, "by image", "by person"),
    "data": ((), {}, {"sha256": "11ee"}, "00ff", "11ee"),
    "seeds": ((), {"seeds": [0, 2]}, {}, r"\[0, 1\]", r"\[0, 2\]"),
    "headline": ((), {"headline": "kld"}, {}, "nss", "kld"),
    "rounds": ((), {"rounds": 12}, {}, "6", "12"),
    "local.epochs": (["local.epochs=3"], {}, {}, "1", "3"),
    "local.batch": (["local.batch=40"], {}, {}, "20", "40"),
    "presence.lost": (["presence.lost=0.3"], {}, {}, "0.0", "0.3"),
    "presence.cohort": (["presence.cohort=5"], {}, {}, "0.8", "5"),
    "points": (['run.points=["P0", "P1"]'], {}, {}, r"\['P0'\]", r"\['P0', 'P1'\]"),
    "evaluate_people": (["run.evaluate_people=3"], {}, {}, "0", "3"),
    "precision": (["run.precision=bf16"], {}, {}, "fp32", "bf16"),
    "wire.codec": (["wire.codec=int8"], {}, {}, "fp32", "int8"),
    "wire.feedback": (["wire.feedback=true"], {}, {}, "False", "True"),
    "pruning.amount": (["pruning.amount=0.9"], {}, {}, "0.0", "0.9"),
    "tuning.trials": (["tuning.trials=20"], {}, {}, "0", "20"),
    "local.lr": (["local.lr=0.01"], {}, {}, "0.001", "0.01"),
    "local.optimizer": (["local.optimizer=adam"], {}, {}, "sgd", "adam"),
    "local.schedule": (["method.local.schedule=cosine"], {}, {}, "constant", "cosine"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_the_field_that_differs_is_named_with_both_values(two, field):
    sets, results, data, here, there = FIELDS[field]
    write(two[1], sets, results, data)
    with pytest.raises(ConfigError) as refused:
        gather(two)
    refused.match(f"{field} differs, fedavg has .*{here}.*, fedcpf has .*{there}.*; ")
    refused.match(rf'compare all the same: --allow {field}, or allow=\["{field}"\] in Python$')


def test_all_fields_that_differ_are_named_at_once(two):
    write(two[1], ["wire.codec=int8"], {"rounds": 12})
    with pytest.raises(ConfigError, match=r"--allow rounds --allow wire.codec, or allow=\["):
        gather(two)
    assert gather(two, allow=["rounds", "wire.codec"])


@pytest.mark.parametrize("field", FIELDS)
def test_what_is_allowed_is_noted(two, field):
    sets, results, data, *_ = FIELDS[field]
    write(two[1], sets, results, data)
    notes = check_comparable(gather(two, [field]).runs, [field])
    assert len(notes) == 1
    assert notes[0].startswith(f"{field} differs: fedavg has ")
    assert gather(two, [field.partition(".")[0]])


def test_auto_is_the_precision_that_it_chose(two):
    solver = {"solver": "plain", "chunk": 0, "device": "cpu"}
    for folder, chosen in zip(two, ("half", "fp32"), strict=True):
        write(folder, ["run.precision=auto"], {"solver": {**solver, "precision": chosen}})
    with pytest.raises(ConfigError, match="precision differs, fedavg has half, fedcpf has fp32"):
        gather(two)
    write(two[1], ["run.precision=half"], {"solver": {**solver, "precision": "half"}})
    assert check_comparable(gather(two).runs) == []


def test_steps_instead_of_epochs_is_another_budget_and_epochs_are_moot_then(two):
    write(two[1], ["local.steps=7"])
    with pytest.raises(ConfigError, match=r"local.epochs differs, fedavg has 1, fedcpf has none"):
        gather(two)
    write(two[0], ["local.steps=9"])
    write(two[1], ["local.steps=7", "local.epochs=5"])
    with pytest.raises(ConfigError, match=r"local.steps differs, fedavg has 9, fedcpf has 7"):
        gather(two)


def test_a_methods_own_local_wins_over_the_common_one(two):
    write(two[1], ["local.epochs=4", "method.local.epochs=1"])
    assert gather(two)
    write(two[1], ["method.local.epochs=4"])
    with pytest.raises(ConfigError, match=r"local.epochs differs, fedavg has 1, fedcpf has 4"):
        gather(two)


def test_equally_tuned_methods_have_their_own_rate_but_the_same_budget(two):
    write(two[0], ["tuning.trials=20"])
    write(two[1], ["tuning.trials=20", "method.local.lr=0.3"])
    assert gather(two)
    write(two[1], ["tuning.trials=20", "tuning.people=['p1']"])
    with pytest.raises(ConfigError, match=r"tuning.people differs, fedavg has none, .*'p1'"):
        gather(two)
    write(two[1], ["tuning.trials=20", "method.local.batch=3"])
    with pytest.raises(ConfigError, match=r"local\.batch differs"):
        gather(two)


def test_allowed_tuning_lets_rates_differ(two):
    write(two[1], ["tuning.trials=20", "method.local.lr=0.3"])
    assert check_comparable(gather(two, ["tuning"]).runs, ["tuning"]) == [
        "tuning.trials differs: fedavg has 0; fedcpf has 20",
        "local.lr differs: fedavg has 0.001; fedcpf has 0.3",
    ]
    write(two[1], ["tuning.trials=20", "method.local.epochs=3"])
    with pytest.raises(ConfigError, match=r"local\.epochs differs"):
        gather(two, ["tuning"])


def test_what_belongs_to_a_method_or_changes_no_result_may_differ(two):
    """Options of the method, where the data lies, workers, and a default that is spelled out."""
    write(
        two[1],
        [
            "method.tune_epochs=9",
            "federation.root=elsewhere",
            "run.workers=3",
            "run.evaluate_every=1",
            "presence.lost=0.0",
            "local.momentum=0.9",
            'run.points=["P0"]',
            'sweep.search="random"',
            "run.evaluate_people=0",
            "run.precision=fp32",
            "wire.codec=fp32",
        ],
    )
    assert gather(two)


def test_data_that_neither_run_names_is_not_the_same_data(two):
    for folder in two:
        write(folder, data={"sha256": None})
    with pytest.raises(StateError, match=r"data is not known, .*fedavg and of fedcpf do not say"):
        gather(two)
    notes = check_comparable(gather(two, ["data"]).runs, ["data"])
    assert notes == ["data is not known: fedavg and 1 more have none"]


def test_hidden_fields_get_no_note(two):
    write(two[1], results={"rounds": 12}, data={"sha256": "11ee"})
    assert check_comparable(gather(two, ANYTHING).runs, ANYTHING, ["data"]) == [
        "rounds differs: fedavg has 6; fedcpf has 12"
    ]


def test_long_lists_tell_what_the_other_lacks(two):
    names = [f"q{i}" for i in range(9)]
    write(two[0], results={"people": names})
    write(two[1], results={"people": [*names[:8], "new"]})
    with pytest.raises(ConfigError, match=r"has 9 of them, only here: q8, .*only here: new;"):
        gather(two)


def test_allow_names_fields_that_exist(two):
    with pytest.raises(ConfigError, match=r"allow round: no such field.*did you mean 'rounds'"):
        gather(two, ["round"])


def test_an_experiment_may_be_shown_as_it_was_run(two):
    write(two[1], ["method.local.epochs=4", "method.local.lr=0.3"])
    assert check_comparable(gather(two, ANYTHING).runs, ANYTHING) == [
        "local.epochs differs: fedavg has 1; fedcpf has 4",
        "local.lr differs: fedavg has 0.001; fedcpf has 0.3",
    ]


def test_notes_gather_runs_of_one_value(out, tmp_path):
    three = [shutil.copytree(out / n, tmp_path / n) for n in ("fedavg", "fedcpf", "local_only")]
    for folder, rounds in zip(three, (6, 9, 9), strict=True):
        write(folder, results={"rounds": rounds})
    notes = check_comparable(gather(three, ["rounds"]).runs, ["rounds"])
    assert notes == ["rounds differs: fedavg has 6; fedcpf and 1 more have 9"]


@pytest.mark.parametrize(
    ("style", "told"),
    [
        ("table", "Note: rounds differs: fedavg has 6; fedcpf has 12\n"),
        ("markdown", "> Note: rounds differs: fedavg has 6; fedcpf has 12\n"),
        ("csv", "# rounds differs: fedavg has 6; fedcpf has 12\n"),
    ],
)
def test_the_command_refuses_and_says_what_it_let_through(two, style, told):
    write(two[1], results={"rounds": 12})
    vergence("compare", *two).complains(2, "rounds differs", "6", "12", "--allow rounds")
    said = vergence("compare", *two, "--allow", "rounds", "--allow", "data", "--format", style)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(told)


def test_a_damaged_config_is_named(two):
    (two[1] / "config.toml").write_text("task = {")
    with pytest.raises(StateError, match=r"config\.toml is damaged"):
        gather(two)
