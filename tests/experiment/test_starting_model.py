"""`model.start`: a run that begins from another run's common model."""

import json
import shutil

import pytest

import vergence as vg
from tests.cli.commands import TOY, vergence, write
from vergence.core.serialization import equal_states
from vergence.errors import ConfigError, StateError
from vergence.experiment.schema import load
from vergence.experiment.starting_model import FILE, common_model
from vergence.experiment.trained_run import one_run, read_run, verify

MANY = TOY.replace("METHODS", 'methods = ["local_only", "fedavg"]')
EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 4 }
federation = { name = "eye_synthetic", people = 2, samples = 40, size = "9x15" }
method     = { name = "METHOD" }
local      = { optimizer = "sgd", steps = 1, batch = 8, lr = 0.01 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


@pytest.fixture
def begun(tmp_path):
    vergence("run", write(tmp_path, MANY), "--out", tmp_path / "first")
    return tmp_path / "first" / "fedavg"


def from_(run):
    return ["--set", f"model.start={run}"]


def test_it_starts_from_the_common_model_of_the_run(tmp_path, begun):
    wanted = read_run(begun).newcomer()
    experiment = load(write(tmp_path, MANY), [f"model.start={begun}"])
    assert equal_states(experiment.task(7).init(), wanted)
    assert not equal_states(experiment.task(0).init(), load(write(tmp_path, MANY)).task(0).init())
    start = experiment.model.start
    assert (start.data, start.people) == ("toy", ("p00", "p01", "p02"))


def test_the_run_says_so_and_outlives_the_other(tmp_path, begun):
    """Its model is in stamp and provenance; read, verified and resumed without the first run."""
    out = tmp_path / "second"
    file = write(tmp_path, MANY)
    assert "start: the common model of" in vergence("explain", file, *from_(begun)).out
    vergence("run", file, "--out", out, *from_(begun))
    sha = common_model(str(begun), one_run(begun)).sha
    told = json.loads((out / "fedavg" / "provenance.json").read_text())["start"]
    assert told == {"run": str(begun), "sha256": sha, "data": "toy", "people": 3}
    assert json.loads((out / "stamp.json").read_text())["start"] == sha
    shutil.rmtree(begun.parent)
    assert verify(out / "fedavg")[0][0] == 0
    vergence("resume", out)
    vergence("verify", out)
    vergence("run", file, "--out", tmp_path / "c", *from_(begun)).complains(2, "no finished run")


@pytest.mark.parametrize("methods", ['methods = ["local_only", "fedavg"]', 'method = "fedavg"'])
def test_a_run_over_splits_outlives_the_other(tmp_path, begun, methods):
    """Interrupted, the other gone, and resumed; once merged it names its parts as a start."""
    file, out = write(tmp_path, TOY.replace("METHODS", methods)), tmp_path / "out"
    sets, seen = [f"model.start={begun}", "run.split_seeds=[0, 1]"], []

    def stop(report):
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(report)

    with pytest.raises(vg.PartialRun):
        vg.run_experiment(load(file, sets), out, on_round=stop, progress=False)
    shutil.rmtree(begun.parent)
    assert vergence("resume", out).code == 0
    assert vergence("resume", out).code == 0, "finished"
    vergence("verify", out)
    again = vergence("run", file, "--out", tmp_path / "n", *from_(out / "fedavg"))
    again.complains(2, "has no model of its own", "split0/fedavg")


def test_a_study_that_starts_from_it_goes_on(tmp_path, begun):
    """Whoever gives the same command again: runs that are finished are left as they are."""
    study = ["study", "evaluate", "within", write(tmp_path, MANY), "--out", tmp_path / "s"]
    for _ in range(2):
        assert vergence(*study, *from_(begun)).code == 0
    vergence("run", tmp_path / "toy.toml", "--out", tmp_path / "o", "--set", "run.seeds=[5]")
    other = from_(tmp_path / "o" / "fedavg")
    vergence(*study, *other).complains(2, "begun with other")


def test_another_model_than_it_began_with_is_refused(tmp_path, begun):
    """Of an interrupted run, whose copy of the model was exchanged for another one."""
    file, other, out = write(tmp_path, MANY), tmp_path / "other", tmp_path / "out"
    vergence("run", file, "--out", other, "--set", "run.seeds=[5]")
    vergence("run", file, "--out", tmp_path / "o", *from_(other / "fedavg"))

    def stop(_):
        raise KeyboardInterrupt

    experiment = load(file, [f"model.start={begun}"])
    with pytest.raises(vg.PartialRun):
        vg.run_experiment(experiment, out, on_round=stop, progress=False)
    shutil.copy(tmp_path / "o" / FILE, out / FILE)
    vergence("resume", out).complains(2, "begun with other start")


def test_a_damaged_run_is_no_start(tmp_path, begun):
    path = begun / "results.json"
    path.write_text(path.read_text().replace("toy", "toi"))
    vergence("run", write(tmp_path, MANY), "--out", tmp_path / "b", *from_(begun)).complains(
        2, "results.json is damaged"
    )


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("model.start=3",), "must be the folder of a run"),
        (("model.start=nowhere",), "no finished run of one method at 'nowhere'"),
    ],
)
def test_what_is_no_run(tmp_path, sets, said):
    with pytest.raises(ConfigError, match=said):
        load(write(tmp_path, MANY), sets)


def test_another_network_is_refused_with_its_shapes(tmp_path):
    out = tmp_path / "eyes"
    vg.run_experiment(load(write(tmp_path, EYES.replace("METHOD", "fedavg"))), out, progress=False)
    file = write(tmp_path, EYES.replace("METHOD", "fedavg").replace("[4, 4]", "[6, 4]"))
    said = r"conv1.weight is \[4, 1, 3, 3\] in the run, \[6, 1, 3, 3\] here"
    with pytest.raises(ConfigError, match=said):
        load(file, [f"model.start={out}"]).task(0).init()
    vergence("run", file, "--out", tmp_path / "b", *from_(out)).complains(2, "another network")


def test_split_learning_starts_from_it_too(tmp_path):
    out = tmp_path / "eyes"
    vg.run_experiment(load(write(tmp_path, EYES.replace("METHOD", "fedavg"))), out, progress=False)
    split = load(write(tmp_path, EYES.replace("METHOD", "splitfed")), [f"model.start={out}"])
    (method,) = split.methods.values()
    parts = method.server(split.task(3))
    wanted = read_run(out).newcomer()
    for part in (parts.front, parts.tail):
        assert all(part[name].equal(wanted[name]) for name in part.layout.names)


def test_what_it_does_not_go_together_with(tmp_path, begun):
    file = write(tmp_path, MANY)
    clients = ["--clients", "p00,p01,p02", "--address", "a.example:1"]
    where = ["--out", tmp_path / "d", "--set", 'methods=["fedavg"]']
    vergence("deploy", "init", file, *clients, *where, *from_(begun)).complains(2, "model.start")
    ifca = ["--set", 'methods=["ifca"]']
    vergence("run", file, "--out", tmp_path / "i", *ifca, *from_(begun)).complains(2, "ifca")
    alone = from_(begun.parent / "local_only")
    vergence("run", file, "--out", tmp_path / "l", *alone).complains(2, "shares no whole model")
    leave = ["study", "evaluate", "leave-one-out", file, "--out", tmp_path / "x"]
    vergence(*leave, *from_(begun)).complains(2, "'p00' of toy, who would be no unseen client")


def test_in_python(tmp_path, begun):
    start = vg.open_run(begun).common_model()
    task = vg.tasks.ToyTask(vg.models.Linear(start=start))
    run = vg.train(
        vg.methods.FedAvg(),
        task,
        vg.data.Toy(people=3),
        rounds=1,
        out=tmp_path / "p",
        progress=False,
    )
    assert "start.safetensors" in {path.name for path in run.folder.iterdir()}
    assert vg.open_run(run.folder).experiment.model.start == start
    with pytest.raises(StateError):
        vg.open_run(begun.parent)
