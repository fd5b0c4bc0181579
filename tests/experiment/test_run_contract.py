"""What a run leaves behind: the contract that scripts outside the project rely on."""

import csv
import hashlib
import json

import numpy as np
import pytest
from scipy import stats

from tests.cli.commands import ALONE, METHODS, ONE, SEVERAL, run, vergence, write
from vergence.engine.client_executor import ClientExecutor
from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import validate
from vergence.methods.clustered.base import model_of_group
from vergence.methods.fedcpf import FedCPF
from vergence.results.write import write_harm
from vergence.training.sequential import Solver

SETS = ("run.seeds=[0, 5]", "run.evaluate_every=2")
LABELS = ["local_only", "fedavg", "fedcpf"]
FILES = {
    "config.toml",
    "provenance.json",
    "results.json",
    "people.csv",
    "rounds.csv",
    "turns.csv",
    "state",
    "SHA256SUMS",
    "tensorboard",
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    sets = [word for change in SETS for word in ("--set", change)]
    assert vergence("run", write(folder), "--out", folder / "out", *sets).code == 0
    return folder / "out"


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_several_methods_make_one_directory_each_and_an_index_beside_them(out):
    index = json.loads((out / "index.json").read_text())
    assert index["runs"] == [{"label": n, "method": n, "dir": n} for n in LABELS]
    assert (index["task"], index["headline"]) == ("toy", "error")
    assert (out / index["priors"]).read_text().startswith("prior,person,metric,value\n")
    assert {p.name for p in out.iterdir()} == {
        *LABELS,
        "index.json",
        "config.toml",
        "priors.csv",
        "report.html",
        "SHA256SUMS",
        ".lock",
        "stamp.json",
    }


@pytest.mark.parametrize("label", LABELS)
def test_files_of_a_run_directory(out, label):
    found = {p.name for p in (out / label).iterdir()} - {".lock"}
    assert found == FILES | {"curves.csv"} | ({"masks.safetensors"} if label == "fedcpf" else set())


def test_one_method_makes_out_itself_the_run_directory(tmp_path):
    assert vergence("run", write(tmp_path, ONE), "--out", tmp_path / "out").code == 0
    found = {p.name for p in (tmp_path / "out").iterdir()} - {".lock"}
    assert found == FILES | {"masks.safetensors", "priors.csv", "report.html"}
    assert results(tmp_path / "out")["harmed_vs_local"] is None


def test_columns(out):
    def head(name):
        return (out / "fedcpf" / name).read_text().splitlines()[0]

    assert head("people.csv") == "seed,person,evaluation,metric,value"
    assert head("curves.csv") == "seed,round,evaluation,person,metric,value"
    assert head("rounds.csv") == (
        "seed,round,evaluation,metric,value,bytes_up,bytes_down,seconds,personal_fraction"
    )


@pytest.mark.parametrize("label", LABELS)
def test_people_have_every_metric_once_per_seed(out, label):
    found = [
        (r["seed"], r["person"], r["evaluation"], r["metric"])
        for r in rows(out / label / "people.csv")
    ]
    people = ("p00", "p01", "p02")
    assert sorted(found) == sorted(
        (seed, p, "P0", m) for seed in ("0", "5") for p in people for m in ("error", "score")
    )


@pytest.mark.parametrize("label", LABELS)
def test_rounds_are_all_there_for_both_seeds(out, label):
    """Three rounds: P0 before training (0), after 2 and at the end (3); training in every one."""
    table = rows(out / label / "rounds.csv")
    for seed in ("0", "5"):
        mine = [r for r in table if r["seed"] == seed]
        measured = [r["round"] for r in mine if (r["evaluation"], r["metric"]) == ("P0", "error")]
        trained = [r["round"] for r in mine if (r["evaluation"], r["metric"]) == ("train", "loss")]
        assert measured == ["0", "2", "3"]
        assert trained == ["1", "2", "3"]
    shares = [r["personal_fraction"] for r in table if r["metric"] == "loss"]
    assert shares == (["0.200000", "0.400000", "0.400000"] * 2 if label == "fedcpf" else [""] * 6)


@pytest.mark.parametrize("label", LABELS)
def test_results_say_what_the_tables_say(out, label):
    """Mean, sample deviation, worst and Student-t interval over people, seeds averaged first."""
    told = results(out / label)
    assert {
        "method",
        "task",
        "seeds",
        "metrics",
        "bytes",
        "seconds",
        "peak_mb",
        "harmed_vs_local",
        "fingerprint",
    } <= set(told)
    assert (told["method"], told["task"], told["seeds"]) == (label, "toy", [0, 5])
    table = rows(out / label / "people.csv")
    assert set(told["metrics"]) == {"error", "score"}
    for metric, worst in (("error", max), ("score", min)):
        by_person = [
            np.mean(
                [float(r["value"]) for r in table if r["person"] == p and r["metric"] == metric]
            )
            for p in told["people"]
        ]
        found = told["metrics"][metric]
        assert set(found) == {"mean", "std", "worst", "ci95"}
        mean, std = np.mean(by_person), np.std(by_person, ddof=1)
        half = stats.t.ppf(0.975, 2) * std / np.sqrt(3)
        assert found["mean"] == pytest.approx(mean)
        assert found["std"] == pytest.approx(std)
        assert found["worst"] == pytest.approx(worst(by_person))
        assert found["ci95"] == pytest.approx([mean - half, mean + half])
    turns = rows(out / label / "turns.csv")
    assert len(turns) == 2 * 3 * 3
    for way in ("up", "down"):
        assert told["bytes"][way] == pytest.approx(np.mean([int(t[f"bytes_{way}"]) for t in turns]))
    assert told["seconds"] > 0
    assert told["peak_mb"] > 10


@pytest.mark.parametrize("label", LABELS)
def test_fingerprint_is_the_sha_256_of_server_and_client_digests_in_client_order(out, label):
    """Recomputed with hashlib alone from the files in state/."""
    folder = out / label
    manifest = json.loads((folder / "state" / "checkpoint.json").read_text())
    done = manifest["done"]
    told = results(folder)
    assert set(told["fingerprint"]) == {"0", "5"}
    for seed, sha in told["fingerprint"].items():
        files = {"server": done[seed]["files"]["server"][0]}
        for line in (folder / "state" / done[seed]["files"]["clients"][0]).read_text().splitlines():
            client, file, *_ = line.split(",")
            files[f"client.{client}"] = file

        def digest(name, files=files):
            return hashlib.sha256((folder / "state" / files[name]).read_bytes()).hexdigest()

        how = " ".join(map(str, manifest["solving"][:4])) + " "
        text = (
            how
            + digest("server")
            + "".join(
                f"{p}:{digest(f'client.{p}')}" for p in told["people"] if f"client.{p}" in files
            )
        )
        assert hashlib.sha256(text.encode()).hexdigest() == sha
    assert told["fingerprint"]["0"] != told["fingerprint"]["5"]


def test_config_reloads_to_the_same_experiment(out):
    first = load(write(out.parent), SETS)
    again = load(out / "config.toml")
    assert again == first
    one = load(out / "fedcpf" / "config.toml")
    assert not one.several
    assert one.methods == {"fedcpf": first.methods["fedcpf"]}
    assert (one.plan, one.model, one.dataset) == (first.plan, first.model, first.dataset)


def test_a_method_alone_from_its_own_config_gives_the_same_fingerprint(out, tmp_path):
    start(load(out / "fedcpf" / "config.toml"), tmp_path / "again")
    assert results(tmp_path / "again")["fingerprint"] == results(out / "fedcpf")["fingerprint"]


def test_set_overrides_the_file_and_adds_tables(tmp_path):
    sets = ("--set", "local.lr=0.01", "--set", "presence.lost=0.5", "--set", "method.rate=0.4")
    path = write(tmp_path, ONE)
    assert vergence("run", path, "--out", tmp_path / "out", *sets).code == 0
    experiment = load(tmp_path / "out" / "config.toml")
    (method,) = experiment.methods.values()
    assert isinstance(method, FedCPF)
    assert (method.local.lr, method.rate) == (0.01, 0.4)
    assert experiment.plan.presence.lost == 0.5
    assert results(tmp_path / "out")["personal_fraction"] > 0.2


def test_extends_merges_deeply_and_the_later_file_wins(tmp_path):
    write(tmp_path, SEVERAL, "base.toml")
    (tmp_path / "more.toml").write_text("local = { lr = 0.5 }\n")
    text = f'extends = ["base.toml", "more.toml"]\n{ALONE}\nlocal = {{ batch = 4 }}\n'
    experiment = load(write(tmp_path, text))
    assert list(experiment.methods) == ["fedcpf"]
    local = experiment.methods["fedcpf"].local
    assert (local.epochs, local.batch, local.lr) == (1, 4, 0.5)


def test_own_labels_name_the_directories(tmp_path):
    text = SEVERAL.replace(METHODS, 'methods = [{ name = "fedavg", label = "mine" }, "fedavg"]')
    out = run(tmp_path, text)
    assert {"mine", "fedavg"} <= {p.name for p in out.iterdir()}
    assert (results(out / "mine")["label"], results(out / "mine")["method"]) == ("mine", "fedavg")


def test_harm_is_the_share_of_people_worse_than_local_only_by_more_than_1_percent(out):
    """The same comparison, person by person, from the two people.csv; alone harms nobody."""

    def errors(label):
        table = [r for r in rows(out / label / "people.csv") if r["metric"] == "error"]
        return {
            p: np.mean([float(r["value"]) for r in table if r["person"] == p])
            for p in ("p00", "p01", "p02")
        }

    alone = errors("local_only")
    for label in LABELS:
        worse = [mine > alone[p] * 1.01 for p, mine in errors(label).items()]
        assert results(out / label)["harmed_vs_local"] == pytest.approx(np.mean(worse))
    assert results(out / "local_only")["harmed_vs_local"] == 0.0


@pytest.mark.parametrize(
    ("lower", "mine", "share"),
    [
        (["error"], (1.005, 1.02, 0.5, 2.0), 0.5),
        ([], (0.995, 0.98, 1.5, 0.1), 0.5),
        (["error"], (1.0, 1.0, 1.0, 1.0), 0.0),
    ],
)
def test_harm_by_hand(tmp_path, lower, mine, share):
    """Everybody has 1.0 alone; half a per cent is no harm, two per cent and more are."""
    for name, values in (("mine", mine), ("alone", (1.0, 1.0, 1.0, 1.0))):
        folder = tmp_path / name
        folder.mkdir()
        lines = [f"0,p{i},P0,error,{v}" for i, v in enumerate(values)]
        (folder / "people.csv").write_text(
            "\n".join(["seed,person,evaluation,metric,value", *lines])
        )
        told = {"mean": 1.0, "std": 0.0, "worst": 1.0, "ci95": [None, None]}
        about = {
            "headline": "error",
            "lower_is_better": lower,
            "harmed_vs_local": None,
            "method": name,
            "task": "toy",
            "federation": "toy",
            "seeds": [0],
            "people": ["p0", "p1", "p2", "p3"],
            "metrics": {"error": told},
            "fingerprint": {},
            "bytes": {"up": 0.0, "down": 0.0},
        }
        (folder / "results.json").write_text(json.dumps(about))
    write_harm(tmp_path / "mine", tmp_path / "alone")
    assert results(tmp_path / "mine")["harmed_vs_local"] == share


def test_without_local_only_nobody_can_be_called_harmed(tmp_path):
    out = run(tmp_path, SEVERAL.replace('"local_only", ', ""))
    assert results(out / "fedavg")["harmed_vs_local"] is None


def test_measurements_come_only_with_an_explicit_request(tmp_path, monkeypatch):
    """By default no turn carries a metric beyond the training loss; P1 and P2 are asked for."""
    turns, evaluations = [], []
    honest_turn, honest_evaluate = ClientExecutor.turn, ClientExecutor.evaluate

    def turn(self, task, kept, batch):
        turns.append((batch.points, *(taken := honest_turn(self, task, kept, batch))))
        return taken

    def evaluate(self, *asked):
        evaluations.append(result := honest_evaluate(self, *asked))
        return result

    monkeypatch.setattr(ClientExecutor, "turn", turn)
    monkeypatch.setattr(ClientExecutor, "evaluate", evaluate)
    run(tmp_path, ONE)
    assert len(turns) == 9
    assert all(points == () and result.measured == {} for points, result, *_ in turns)
    assert all(set(sealed.metrics) == {"loss"} for _, _, sealed, _ in turns)
    assert {tuple(result.measured) for result in evaluations} == {("P0",)}
    out = run(tmp_path, ONE, 'run.points=["P0", "P1", "P2"]', "run.evaluate_every=1", out="all")
    assert {r["evaluation"] for r in rows(out / "rounds.csv")} == {"train", "P0", "P1", "P2"}
    assert {r["evaluation"] for r in rows(out / "people.csv")} == {"P0", "P2"}


def test_provenance_names_code_data_environment_and_command(out):
    told = json.loads((out / "fedavg" / "provenance.json").read_text())
    assert set(told) == {"code", "data", "environment", "command"}
    assert len(told["code"]["sha256"]) == len(told["data"]["sha256"]) == 64
    assert {"licence", "citation", "split"} <= set(told["data"])
    assert "torch" in told["environment"]
    assert told["command"][:2] == ["vergence", "run"]


def test_sums_can_be_checked_with_coreutils_alone(out):
    for folder in (out, out / "fedcpf"):
        for line in (folder / "SHA256SUMS").read_text().splitlines():
            sha, name = line.split("  ")
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha


def test_methods_with_groups_say_who_is_in_which(tmp_path):
    """FedGroup's server knows; of IFCA it is the model of lowest loss on one's training data."""
    kinds = "methods = ['fedavg', {name='ifca',clusters=2}, {name='fedgroup',clusters=2}]"
    start(load(write(tmp_path, SEVERAL.replace(METHODS, kinds))), tmp_path / "out")
    assert not (tmp_path / "out/fedavg/groups.csv").exists()
    for label in ("ifca", "fedgroup"):
        saved = read_run(tmp_path / "out" / label)
        people, solver = validate(saved.experiment).ready.people, Solver(saved.task)
        if label == "fedgroup":
            wanted = {p: saved.server.groups[p] for p in people}
        else:
            models = [model_of_group(saved.server.models, j) for j in (0, 1)]
            losses = {p: [solver.loss(m, data.train) for m in models] for p, data in people.items()}
            wanted = {p: int(np.argmin(both)) for p, both in losses.items()}
        told = rows(tmp_path / "out" / label / "groups.csv")
        assert {r["person"]: int(r["group"]) for r in told if r["seed"] == "0"} == wanted
        assert "groups.csv" in (tmp_path / "out" / label / "SHA256SUMS").read_text()
