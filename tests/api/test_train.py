"""Training from Python: the bits of `vergence run`, also when it goes on after Ctrl-C."""

import gc
import math

import numpy as np
import pytest
import tomli_w
import torch
from torch import nn
from torch.nn.functional import mse_loss

import vergence as vg
from tests.experiment.made_up import arrays, network, regression, trained
from vergence.data.synthetic.toy import Toy

LOCAL = {"batch": 8, "lr": 0.02, "optimizer": "adam"}
CASES = {
    "fedavg": (lambda: vg.methods.FedAvg(), {"name": "fedavg"}),
    "fedcpf": (lambda: vg.methods.FedCPF(rate=0.2), {"name": "fedcpf", "rate": 0.2}),
    "scaffold": (lambda: vg.methods.Scaffold(option="I"), {"name": "scaffold", "option": "I"}),
}


def bits(folder):
    """What a run folder holds of results: states' fingerprints and everybody's scores."""
    run = vg.open_run(folder)
    return run.fingerprint, (run.folder / "people.csv").read_bytes()


def by_file(folder, method, **more):
    """The run that `vergence run` makes of an experiment file."""
    table = {
        "task": {"name": "toy"},
        "model": {"name": "linear", "inputs": 4},
        "federation": {"name": "toy", "people": 4},
        "method": method,
        "local": LOCAL,
        "run": {"rounds": 3, "seeds": [5], "workers": 1, "evaluate_every": 2},
        **more,
    }
    folder.mkdir()
    (folder / "experiment.toml").write_text(tomli_w.dumps(table))
    vg.run_experiment(folder / "experiment.toml", folder / "out")
    return folder / "out"


def by_call(folder, method, people=None, **options):
    return vg.train(
        method,
        vg.tasks.ToyTask(vg.models.Linear(inputs=4)),
        people or vg.data.Toy(people=4),
        rounds=3,
        seed=5,
        workers=1,
        evaluate_every=2,
        local=vg.LocalTraining(**LOCAL),
        out=folder,
        progress=False,
        **options,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_call_and_a_file_give_the_same_bits_and_config(name, tmp_path):
    make, table = CASES[name]
    by_call(tmp_path / "call", make())
    there = by_file(tmp_path / "file", table)
    assert bits(tmp_path / "call") == bits(there)
    same = [vg.load_experiment(folder / "config.toml") for folder in (tmp_path / "call", there)]
    assert same[0].methods == same[1].methods
    assert same[0].plan == same[1].plan
    assert same[0].task(5) == same[1].task(5)


def test_settings_around_the_method_are_those_of_the_file_too(tmp_path):
    plan = vg.Plan(engine="bytes", points=("P0", "P1"))
    by_call(
        tmp_path / "call",
        vg.methods.FedAvg(),
        plan=plan,
        participation=vg.Participation(cohort=3, lost=0.2),
        privacy={"robust": "trimmed_mean"},
    )
    there = by_file(
        tmp_path / "file",
        {"name": "fedavg"},
        presence={"cohort": 3, "lost": 0.2},
        privacy={"robust": "trimmed_mean"},
        run={
            "rounds": 3,
            "seeds": [5],
            "engine": "bytes",
            "points": ["P0", "P1"],
            "evaluate_every": 2,
        },
    )
    assert bits(tmp_path / "call") == bits(there)
    assert vg.load_experiment(tmp_path / "call" / "config.toml").plan.privacy.robust is not None


def test_the_same_people_as_arrays_give_the_same_bits(tmp_path):
    """Python objects take another way to the engine than names, and arrive at the same numbers."""
    whole = {}
    for person, splits in Toy(people=4).load().people.items():
        each = [part.columns for part in vars(splits).values()]
        whole[person] = {name: torch.cat([c[name] for c in each]) for name in ("x", "y")}
    by_call(tmp_path / "arrays", vg.methods.FedCPF(rate=0.2), vg.Federation.from_arrays(whole))
    assert bits(tmp_path / "arrays") == bits(by_file(tmp_path / "file", CASES["fedcpf"][1]))


def test_a_run_as_frames():
    run = trained(rounds=4, evaluate_every=2, seeds=[0, 1])
    assert list(run.scores.index) == run.people == [f"p{n:02d}" for n in range(5)]
    assert list(run.scores.columns) == ["test_loss"]
    assert run.scores.columns.name == "metric"
    mean, low, high = run.summary.loc["test_loss", ["mean", "ci95_low", "ci95_high"]]
    assert mean == pytest.approx(run.scores["test_loss"].mean())
    assert low < mean < high
    assert list(run.history.index.names) == ["seed", "round"]
    assert list(run.history.loc[1].index) == [0, 1, 2, 3, 4]
    told = run.history.loc[0]["test_loss"]
    assert told[[0, 2, 4]].notna().all()
    assert told[[1, 3]].isna().all()
    assert told[4] < told[0]
    assert set(run.fingerprint) == {0, 1}
    assert run.verify() == run.fingerprint
    assert "5 people" in repr(run)
    assert "<table" in run._repr_html_()


def test_a_private_run_says_its_epsilon():
    run = trained(method=vg.methods.FedAvg(), privacy={"user": {"clip": 1.0, "noise": 1.0}})
    epsilon = run.privacy["person"]["epsilon"]
    assert epsilon > 0
    for shown in (repr(run), run._repr_html_()):
        assert f"privacy of fedavg: epsilon {epsilon:.3g} at delta" in shown
    plain = trained()
    assert plain.privacy == {}
    assert "epsilon" not in repr(plain)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_divergence_is_said_with_the_number_of_people():
    wild = vg.LocalTraining(optimizer="sgd", lr=10.0, clip=0)
    run = trained(method=vg.methods.FedAvg(), rounds=6, local=wild)
    said = (
        "fedavg diverged: the test_loss of 5 of 5 people is not finite at the end; lower local.lr"
    )
    assert said in repr(run)
    assert said in run._repr_html_()
    assert "diverged" not in repr(trained())


def test_a_cohort_of_more_people_than_there_are_is_told(capsys):
    trained(participation=vg.Participation(cohort=10), rounds=1)
    assert "presence: cohort asks 10 of 5 people: everybody is asked" in capsys.readouterr().err
    trained(participation=vg.Participation(cohort=5), rounds=1)
    assert capsys.readouterr().err == ""


def test_one_person_is_not_people():
    people = vg.Federation.from_arrays(arrays(people=1))
    run = trained(people=people, method=vg.methods.LocalOnly(), rounds=1)
    assert repr(run).startswith("Run local_only: 1 person, in ")


def test_one_persons_module_is_what_was_scored():
    people = vg.Federation.from_arrays(arrays())
    run = trained(people=people)
    test = people.people["p03"].test.columns
    net = run.model("p03")
    assert isinstance(net, nn.Sequential)
    assert not net.training
    with torch.no_grad():
        own = mse_loss(net(test["x"])[:, 0], test["y"])
    assert float(own) == pytest.approx(run.scores.loc["p03", "test_loss"], rel=1e-5)
    other = run.model("p04")
    assert not torch.equal(net[2].weight, other[2].weight), "FedPer's last layer is one's own"
    assert torch.equal(net[0].weight, other[0].weight), "and the rest is everybody's"
    for samples in (people.people["p03"].test, {"x": test["x"].numpy()}, test["x"]):
        assert torch.equal(run.predict("p03", samples), net(test["x"]).detach())
    with pytest.raises(vg.ConfigError, match=r"nobody called 'p33' took part \(did you mean 'p03'"):
        run.model("p33")


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (np.ones((2, 4), int), "'x' is int64, and the run was trained on float32: give x.astype('"),
        ({"x": np.ones((2, 4), bool)}, "'x' is bool, and the run was trained on float32"),
        (np.ones((0, 4)), "there are 0 rows to predict; give at least one"),
        ({"x": [], "y": []}, "there are 0 rows to predict; give at least one"),
    ],
)
def test_samples_that_cannot_be_predicted_are_refused(samples, says):
    run = trained(rounds=1)
    with pytest.raises(vg.DataError) as refused:
        run.predict("p00", samples)
    assert says in str(refused.value)
    labelled = {"x": np.ones((2, 4)), "y": np.ones(2, int)}
    assert run.predict("p00", labelled).shape == (2, 1), "labels are not looked at"


def eyes():
    """Three people's crops of 9 x 15, their gaze and head poses."""
    rng = np.random.default_rng(0)
    return {
        person: {
            "image": rng.integers(0, 256, (30, 1, 9, 15), np.uint8),
            "gaze": rng.normal(size=(30, 2)) * 0.1,
            "pose": rng.normal(size=(30, 2)) * 0.1,
        }
        for person in ("p1", "p2", "p3")
    }


def test_a_task_with_two_inputs_says_which_arrays_it_takes():
    task = vg.tasks.GazeAngle(vg.models.SmallEye(channels=(2, 2), hidden=4))
    run = trained(
        method=vg.methods.FedAvg(), task=task, people=vg.Federation.from_arrays(eyes()), rounds=1
    )
    image, pose = (eyes()["p2"][name] for name in ("image", "pose"))
    found = run.predict("p2", {"image": image, "pose": pose})
    assert found.shape == (30, 2)
    assert torch.equal(run.predict("p2", (image, pose)), found)
    for given, got in (
        (image, "one array"),
        ({"image": image}, "image"),
        ((image,), "image"),
        (vg.Samples({"image": torch.as_tensor(image)}), "image"),
    ):
        with pytest.raises(vg.DataError) as refused:
            run.predict("p2", given)
        assert str(refused.value) == (
            f"predict: task gaze_angle takes arrays by name: image, pose; got {got}"
        )


class EyesAlone(vg.tasks.GazeAngle):
    """Reads no head poses, and says nothing of it."""

    def forward(self, module, batch):
        return super().forward(module, {**batch, "pose": torch.zeros(len(batch["image"]), 2)})


def test_a_task_of_ones_own_that_reads_fewer_columns_than_its_parent_predicts(tmp_path):
    people = {
        person: {"image": columns["image"], "gaze": columns["gaze"]}
        for person, columns in eyes().items()
    }
    run = trained(
        method=vg.methods.FedAvg(),
        task=EyesAlone(vg.models.SmallEye(channels=(2, 2), hidden=4)),
        people=vg.Federation.from_arrays(people),
        rounds=1,
    )
    image = people["p2"]["image"]
    found = run.predict("p2", vg.Samples({"image": torch.as_tensor(image)}))
    assert found.shape == (30, 2)
    assert torch.equal(run.predict("p2", {"image": image}), found)
    with pytest.raises(vg.DataError, match="takes arrays by name: image, pose; got gaze"):
        run.predict("p2", {"gaze": people["p2"]["gaze"]})
    # Without head poses there are no ways to adapt by kernels.
    someone = {"image": 255 - image, "gaze": people["p2"]["gaze"]}
    new = vg.Federation.from_arrays({"new": someone})
    ways = run.calibrate(new, counts=(0, 2)).index.get_level_values("way")
    assert "offset" in ways
    assert not {"residual kernel", "kernel ridge alone"} & {*ways}
    samples = {name: column[:3] for name, column in someone.items()}
    assert run.adapt(samples, out=tmp_path / "me").predict("me", {"image": image}).shape == (30, 2)


def test_people_without_a_column_that_the_task_reads_are_told_which():
    people = eyes()
    for columns in people.values():
        del columns["pose"]
    with pytest.raises(vg.ConfigError) as refused:
        trained(
            task=vg.tasks.GazeAngle(vg.models.SmallEye()), people=vg.Federation.from_arrays(people)
        )
    assert str(refused.value) == (
        "federation 'arrays' has no column 'pose' (it has gaze, image); task 'gaze_angle' reads "
        "image, pose, gaze; without head poses give zeros, float32 [n, 2]"
    )


def test_a_packaged_task_with_one_input_takes_it_alone(tmp_path):
    run = by_call(tmp_path / "run", vg.methods.FedAvg())
    x = np.ones((2, 4), np.float32)
    assert torch.equal(run.predict("p00", x), run.predict("p00", {"x": x}))


def test_a_run_that_learned_nothing_says_where_its_numbers_are(tmp_path):
    nobody = vg.Participation(lost=1.0)
    with pytest.raises(vg.PartialRun, match="nothing was learned") as gone:
        trained(participation=nobody)
    assert "nothing of it is kept: mend this, and train again; out=FOLDER" in str(gone.value)
    assert "--out" not in str(gone.value)
    assert "vergence-" not in str(gone.value), "the folder is gone"
    with pytest.raises(vg.PartialRun, match="nothing was learned") as kept:
        trained(tmp_path / "out", participation=nobody)
    assert f"kept in {tmp_path / 'out'}: mend this, and train into another out" in str(kept.value)


def test_somebody_new_gets_the_shared_model():
    run = trained(method=vg.methods.FedAvg())
    assert torch.equal(run.model()[0].weight, run.model("p00")[0].weight)
    alone = trained(method=vg.methods.LocalOnly(), rounds=1)
    with pytest.raises(vg.ConfigError, match="local_only shares no model"):
        alone.model()


def test_rounds_are_reported():
    told = []
    run = trained(on_round=told.append, rounds=3, evaluate_every=1)
    assert [(r.label, r.seed, r.round, r.rounds) for r in told] == [
        ("fedper", 0, n, 3) for n in range(4)
    ][: len(told)]
    assert told[1].metrics["test_loss"] == pytest.approx(run.history.loc[1, "test_loss"])


class Interrupting:
    """Presses Ctrl-C after a round."""

    def __init__(self, at):
        self.at = at

    def __call__(self, report):
        if (report.seed, report.round) == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("people", [None, vg.data.Toy(people=4)], ids=["arrays", "by name"])
def test_an_interrupted_run_goes_on_to_the_same_bits(people, tmp_path):
    out = tmp_path / "out"

    def run(folder, **options):
        options |= {"rounds": 4, "seeds": [0, 1]}
        if people is None:
            return trained(folder, **options)
        toy = vg.tasks.ToyTask(vg.models.Linear(4))
        return trained(folder, vg.methods.FedCPF(rate=0.2), task=toy, people=people, **options)

    with pytest.raises(
        vg.PartialRun, match=r"interrupted; the rounds done are kept in .*resume=Tr"
    ):
        run(out, on_round=Interrupting((1, 2)))
    with pytest.raises(vg.StateError, match=r"no results"):
        vg.open_run(out)
    with pytest.raises(vg.StateError, match="holds a run already: go on with it by resume=True"):
        run(out)
    run(out, resume=True)
    run(tmp_path / "whole")
    assert bits(out) == bits(tmp_path / "whole")
    again = run(out, resume=True)
    assert again.fingerprint == vg.open_run(out).fingerprint, "a finished run is left as it is"
    assert again.model("p01") is not None


def test_resume_begins_where_there_is_nothing_yet(tmp_path):
    assert trained(tmp_path / "new", resume=True).fingerprint == trained().fingerprint
    with pytest.raises(vg.ConfigError, match="resume=True needs out"):
        trained(resume=True)


def deeper():
    return nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 1))


CHANGED = {
    "rounds": ({"rounds": 3}, "run.rounds: 4, now 3"),
    "network": ({"task": vg.task_from(deeper, loss=mse_loss)}, "model.factory: '"),
    "loss": ({"task": vg.task_from(network, loss=nn.functional.l1_loss)}, "task.loss: '"),
    "local": (
        {"local": vg.LocalTraining(optimizer="sgd", lr=0.01)},
        "local.optimizer: 'adamw', now 'sgd'; local.lr: 0.001, now 0.01",
    ),
    "method": ({"method": vg.methods.FedAvg()}, "method.name: 'fedper', now 'fedavg'"),
    "privacy": (
        {"privacy": {"robust": "trimmed_mean"}},
        "privacy.robust.name: the default, now 'trimmed_mean'",
    ),
    "seed": ({"seed": 1}, "run.seeds: [0], now [1]"),
    "data": ({"people": vg.Federation.from_arrays(arrays(seed=1))}, "made with other data"),
}


@pytest.mark.parametrize("finished", [False, True], ids=["interrupted", "finished"])
@pytest.mark.parametrize("what", CHANGED)
def test_another_run_is_not_gone_on_with(what, finished, request, tmp_path):
    changed, says = CHANGED[what]
    if finished:
        out = request.getfixturevalue("four_rounds")
    else:
        out = tmp_path / "out"
        with pytest.raises(vg.PartialRun):
            trained(out, rounds=4, on_round=Interrupting((0, 1)))
    with pytest.raises(vg.StateError) as refused:
        trained(out, **{"rounds": 4, **changed}, resume=True)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def four_rounds(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "out"
    trained(out, rounds=4)
    return out


def test_a_finished_experiment_of_several_methods_is_compared_too(tmp_path):
    toy = "src/vergence/experiments/toy.toml"
    short = ["run.rounds=2", "run.workers=1"]
    vg.run_experiment(vg.load_experiment(toy, short), tmp_path / "out", progress=False)
    again = vg.load_experiment(toy, [*short, "local.lr=0.011"])
    with pytest.raises(vg.StateError, match=r"other settings \(local\.lr: .*, now 0\.011\)"):
        vg.run_experiment(again, tmp_path / "out", resume=True, progress=False)
    same = vg.load_experiment(toy, [*short[:1], "run.workers=2"])
    vg.run_experiment(same, tmp_path / "out", resume=True, progress=False)


def test_an_interrupted_run_without_a_folder_leaves_nothing():
    with pytest.raises(vg.PartialRun, match="nothing of it is kept: give out=FOLDER"):
        trained(on_round=Interrupting((0, 1)))


def test_a_temporary_run_goes_with_its_object_unless_saved(tmp_path):
    run = trained()
    folder = run.folder
    kept = run.save(tmp_path / "kept")
    with pytest.raises(vg.StateError, match="is there already"):
        run.save(tmp_path / "kept")
    scores = run.scores
    del run
    gc.collect()
    assert not folder.exists()
    assert kept.scores.equals(scores)
    assert kept.model("p00") is not None
    assert vg.open_run(tmp_path / "kept").scores.equals(scores)


def test_threads_and_random_numbers_are_left_as_they_were():
    torch.set_num_threads(2)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    trained(rounds=1)
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.rand(3), expected)
    torch.set_num_threads(1)


def net_class():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x):
            return self.layer(x)

    return Net


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": vg.methods.FedAvg}, "got the class FedAvg: write FedAvg(...)"),
        (
            {"method": "fedavg"},
            "the method must be one of vergence.methods, as FedAvg(); got a str",
        ),
        ({"method": "fedper"}, "got a str: write vergence.methods.FedPer()"),
        ({"method": "fedperr"}, "no method named 'fedperr' (did you mean 'fedper'?)"),
        (
            {"task": network()},
            "got a Sequential: wrap the network, vergence.task_from(lambda: ..., lo",
        ),
        ({"task": net_class()}, "got the class Net: wrap the network"),
        ({"task": vg.models.Linear(4)}, "got a Linear: a network needs a loss"),
        ({"task": vg.tasks.ToyTask}, "got the class ToyTask: write ToyTask(...)"),
        (
            {"task": vg.tasks.ToyTask(network())},
            "class Own(vergence.Model) whose build() returns yours",
        ),
        ({"people": arrays()}, "got a dict: write Federation.from_arrays({person:"),
        ({"people": vg.data.Toy}, "got the class Toy: write Toy()"),
        (
            {"people": torch.utils.data.TensorDataset(torch.zeros(3))},
            "does not say whose samples are",
        ),
        (
            {"people": __import__("pandas").DataFrame({"a": [1]})},
            "write Federation.from_frame(frame,",
        ),
        ({"rounds": "8"}, "train: rounds must be a whole number; got '8'"),
        ({"rounds": 0}, "rounds must be >= 1; got 0"),
        ({"seed": 1, "seeds": [1]}, "give seed or seeds, not both"),
        ({"seeds": 3}, "seeds must be several whole numbers, as [0, 1, 2], one seed is seed=0; go"),
        ({"seeds": "012"}, "one seed is seed=0; got '012'"),
        ({"on_round": 3}, "on_round must be a function of a RoundReport, as on_round=print; got 3"),
        (
            {"local": {"optimizer": "sgd", "lr": 0.1}},
            "local must be a vergence.LocalTraining, as LocalTraining(lr=0.01);",
        ),
        (
            {
                "local": vg.LocalTraining(optimizer="sgd", lr=0.3),
                "method": vg.methods.FedAvg(vg.LocalTraining(optimizer="sgd", lr=0.1)),
            },
            "local is given twice, to FedAvg and to train",
        ),
        (
            {"participation": 0.5},
            "participation must be a vergence.Participation; got a float: write "
            "vergence.Participation(cohort=0.5)",
        ),
        ({"privacy": {"dp": 1}}, "privacy: unknown key 'dp'; differential privacy is privacy.user"),
        ({"rounds": int("f" * 6000, 16)}, "must be below 2^63 = 9223372036854775808; got 0xfff"),
        ({"rounds": 10**18}, "rounds must be >= 0 and <= 1e+07; got 1e+18"),
        ({"seeds": [int("f" * 6000, 16)]}, "must be below 2^63"),
        ({"label": "my run!"}, "method label 'my run!' must be letters, digits, _ and -"),
        ({"root": "data"}, "root is the folder of a data set's files; a Federation has no files"),
        ({"plan": {"rounds": 3}}, "plan must be a vergence.Plan; got a dict"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(given, says):
    with pytest.raises(vg.ConfigError) as refused:
        trained(**given)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_columns_that_do_not_fit_the_network_are_named(tmp_path):
    people = {p: {"x": c["x"][:, :3], "y": c["y"]} for p, c in arrays().items()}
    with pytest.raises(vg.ConfigError, match=r"task_from.*do not fit together: mat1 and mat2"):
        trained(people=vg.Federation.from_arrays(people), out=tmp_path / "out")
    assert not (tmp_path / "out" / "config.toml").exists()
    renamed = {p: {"inputs": c["x"], "y": c["y"]} for p, c in arrays().items()}
    with pytest.raises(
        vg.ConfigError, match=r"looks for a column 'x', and samples have inputs, y: "
    ):
        trained(people=vg.Federation.from_arrays(renamed))


def test_nan_that_comes_by_another_way_is_refused_too():
    made = vg.Federation.from_arrays(arrays())
    made.people["p02"].val.columns["x"][3, 1] = math.nan
    with pytest.raises(
        vg.DataError, match=r"person 'p02', validation samples: 'x' is nan in row 3"
    ):
        trained(people=made)


def test_local_training_is_spelled_as_the_libraries_do():
    assert vg.LocalTraining(optimizer="adamw").optimizer == "adamw"
    with pytest.raises(vg.ConfigError, match="optimizer must be one of sgd, adam, adamw"):
        vg.LocalTraining(optimizer="lion")
    with pytest.raises(vg.ConfigError, match=r"unknown key 'optimiser' \(did you mean 'optimizer'"):
        vg.load_experiment("src/vergence/experiments/toy.toml", ["local.optimiser=adam"])


def test_a_method_of_ones_own_trains_too(tmp_path):
    run = trained(method=Louder(), out=tmp_path / "own")
    assert run.label == "Louder"
    config = (tmp_path / "own" / "config.toml").read_text()
    assert '"method"' in config.split("[task]")[0]
    assert "test_train:Louder" in config
    again = vg.open_run(
        tmp_path / "own",
        method=Louder(),
        task=regression(),
        people=vg.Federation.from_arrays(arrays()),
    )
    assert torch.equal(again.model("p00")[0].weight, run.model("p00")[0].weight)


class Louder(vg.methods.FedAvg):
    """FedAvg under another name."""


def test_numbers_of_a_person_are_those_of_numpy():
    """The score of a model worked out without the engine."""
    people = vg.Federation.from_arrays(arrays())
    run = trained(method=vg.methods.FedAvg(), people=people)
    test = people.people["p01"].test.columns
    w = {name: value.numpy() for name, value in run.model("p01").state_dict().items()}
    hidden = np.maximum(test["x"].numpy() @ w["0.weight"].T + w["0.bias"], 0)
    out = (hidden @ w["2.weight"].T + w["2.bias"])[:, 0]
    error = float(np.mean((out - test["y"].numpy()) ** 2))
    assert error == pytest.approx(run.scores.loc["p01", "test_loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lr": 0.1}, r"argument 'lr': write local=vergence.LocalTraining\(lr=...\)"),
        ({"cohort": 3}, r"argument 'cohort': write participation=vergence.Participation\(cohort="),
        ({"round": 3}, r"argument 'round' \(did you mean 'rounds'\?\)"),
    ],
)
def test_an_option_of_a_record_is_told_its_place(given, says):
    with pytest.raises(TypeError, match=says):
        trained(**given)
