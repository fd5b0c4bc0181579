"""Folders of runs from Python: commands read them as far as they can, and say why no further."""

import shutil
import tomllib

import pytest
import torch

import vergence as vg
from tests.api.test_train import Interrupting
from tests.cli.commands import vergence as command
from tests.experiment.made_up import arrays, regression, trained


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("made") / "out").folder


def test_config_says_what_was_python_and_describes_it(out):
    text = (out / "config.toml").read_text()
    assert text.startswith("# the task, model, federation of this run are Python objects")
    table = tomllib.loads(text)
    assert table["python"] == ["task", "model", "federation"]
    assert table["task"]["loss"] == "torch.nn.functional.mse_loss"
    assert table["model"]["factory"] == "tests.experiment.made_up.network"
    assert table["model"]["parameters"] == 49
    assert table["federation"] == {"name": "arrays", "object": "a Federation of 5 people"}
    assert table["method"] == {"name": "fedper"}
    told = vg.open_run(out).record.provenance
    assert told["command"] == "vergence.train(...), in Python"
    assert told["data"]["split"] == "60/20/20 in the order given"


def test_commands_that_look_on_work(out):
    assert command("compare", out).code == 0
    status = command("status", out)
    assert status.code == 0
    assert "finished" in status.out
    assert command("report", out).code == 0


def test_an_unfinished_run_is_told_of_too(tmp_path):
    with pytest.raises(vg.PartialRun):
        trained(tmp_path / "out", on_round=Interrupting((0, 2)))
    status = command("status", tmp_path / "out")
    assert status.code == 0, status.err
    assert "interrupted" in status.out


@pytest.mark.parametrize(
    "words",
    [
        ("resume",),
        ("explain",),
        ("privacy", "ethics"),
        ("privacy", "audit"),
        ("export",),
        ("privacy", "forget"),
    ],
    ids=" ".join,
)
def test_commands_that_would_build_it_are_refused_in_one_line(words, out, tmp_path):
    folder = shutil.copytree(out, tmp_path / "out")
    target = folder / "config.toml" if words[0] == "explain" else folder
    more = {
        "export": ("--person", "p00", "--out", tmp_path / "p.onnx"),
        "forget": ("--person", "p00", "--out", tmp_path / "f"),
    }.get(words[-1], ())
    said = command(*words, target, *more)
    said.complains(2, "the task, model, federation of this run are Python objects", "resume=True")


def test_verify_compares_what_needs_no_code_and_says_what_was_not(out, tmp_path):
    said = command("verify", out)
    assert said.code == 2
    assert "seed 0: tables and states are those of its digests" in said.out
    assert "not wholly verified: the task, model, federation of this run" in said.err
    broken = shutil.copytree(out, tmp_path / "broken")
    file = next((broken / "state").glob("*server*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    command("verify", broken).complains(2, "is damaged")


def test_a_run_by_names_is_whole_for_every_command(tmp_path):
    run = vg.train(
        vg.methods.FedAvg(),
        vg.tasks.ToyTask(vg.models.Linear(4)),
        vg.data.Toy(),
        rounds=2,
        out=tmp_path / "out",
        workers=1,
        progress=False,
    )
    said = command("verify", run.folder)
    assert said.code == 0
    assert run.fingerprint[0] in said.out
    assert "python" not in (run.folder / "config.toml").read_text()
    assert command("explain", run.folder / "config.toml").code == 0
    assert vg.open_run(run.folder).model("p01").weight.shape == (1, 4)


def test_a_run_is_read_back(out):
    run = vg.open_run(out)
    assert run.people == [f"p{n:02d}" for n in range(5)]
    assert run.scores.shape == (5, 1)
    with pytest.raises(
        vg.BuiltInPython, match=r"vergence.open_run\(FOLDER, task=..., people=...\)"
    ):
        run.model("p00")


def test_models_are_read_back_with_the_objects_that_made_them(out):
    people = vg.Federation.from_arrays(arrays())
    run = vg.open_run(out, task=regression(), people=people)
    assert run.verify() == run.fingerprint
    again = trained()
    for person in run.people:
        pairs = zip(run.model(person).parameters(), again.model(person).parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    with pytest.raises(vg.ConfigError, match="its people came from Python: give open_run that too"):
        vg.open_run(out, task=regression())
    with pytest.raises(vg.StateError, match="was made by another task"):
        vg.open_run(
            out, task=regression(metrics={"a": torch.dist}, lower_is_better=True), people=people
        )
    wrong = vg.open_run(out, task=regression(), people=vg.Federation.from_arrays(arrays(seed=1)))
    with pytest.raises(vg.StateError, match="was trained on other data than is read now"):
        wrong.model("p00")


def test_several_runs_are_opened_one_by_one(tmp_path):
    table = {"task": {"name": "toy"}, "model": {"name": "linear"}, "federation": {"name": "toy"}}
    import tomli_w

    (tmp_path / "e.toml").write_text(
        tomli_w.dumps(
            {**table, "methods": ["fedavg", "local_only"], "run": {"rounds": 1, "workers": 1}}
        )
    )
    runs = vg.run_experiment(tmp_path / "e.toml", tmp_path / "out", progress=False)
    assert list(runs) == ["fedavg", "local_only"]
    assert runs["fedavg"].folder == tmp_path / "out" / "fedavg"
    with pytest.raises(vg.StateError, match=r"holds several runs; open one of .*out/fedavg"):
        vg.open_run(tmp_path / "out")
    assert len(vg.compare(tmp_path / "out").table) == 3
    assert len(vg.compare(runs).table) == 3
    with pytest.raises(vg.StateError, match="holds a run already"):
        vg.run_experiment(tmp_path / "e.toml", tmp_path / "out")
    with pytest.raises(vg.StateError, match="there is no folder"):
        vg.open_run(tmp_path / "nothing")


def test_explain_prints_who_learns_what(capsys):
    vg.explain(vg.methods.FedAvg(), regression(), vg.Federation.from_arrays(arrays()))
    said = capsys.readouterr().out
    assert "the weighted sum over people of model updates" in " ".join(said.split())
    vg.explain(trained())
    assert "fedper" in capsys.readouterr().out
    with pytest.raises(vg.ConfigError, match="explain takes a run, an experiment or its file"):
        vg.explain(vg.methods.FedAvg())
