"""`vergence model prune`: the table against the run's own numbers, what is stored, who is asked."""

import csv
import io

import pytest
import torch
from rich.console import Console

from tests.cli.commands import run
from vergence.core.params import Params
from vergence.errors import ConfigError
from vergence.experiment.newcomers import PersonPart, find_held_out
from vergence.experiment.run import start
from vergence.experiment.schema import load
from vergence.experiment.validation import validate
from vergence.model_tools.latency import medians
from vergence.model_tools.pruning_report import PruningRow
from vergence.model_tools.pruning_study import PrunedModel, PruningOptions, measure, prune, subjects
from vergence.results.read import read
from vergence.studies.protocols import evaluate
from vergence.training.pruning import Pruning, stored_bytes, unpack_pruned

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 60, days = [3, 3], size = "9x15" }
methods    = ["fedavg", "fedper", "local_only"]
local      = { optimizer = "sgd", epochs = 2, batch = 16, lr = 0.05 }
run        = { rounds = 2, evaluate_every = 0, workers = 1 }
"""
NAMES = [
    "as trained",
    "linear 0.5",
    "linear 1",
    "conv 0.9",
    "both 0.9",
    "global 0.9",
    "filters and neurons 0.5",
]


def quiet():
    return Console(file=io.StringIO(), width=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory.mktemp("prune"), EYES)


@pytest.fixture(scope="module")
def shared(folder, tmp_path_factory):
    """FedAvg's model pruned, with a cut and training afterwards: the folder and what was said."""
    out, said = tmp_path_factory.mktemp("pruned"), io.StringIO()
    options = PruningOptions(amounts=(0.5, 1.0), tune=3, cut="conv2", rounds=3)
    prune(folder / "fedavg", out, Console(file=said, width=300), options)
    with (out / "prune.csv").open(newline="") as file:
        return out, {r["pruning"]: r for r in csv.DictReader(file)}, said.getvalue()


@pytest.mark.slow
def test_the_first_row_is_the_run(folder, shared):
    out, rows, said = shared
    assert list(rows) == NAMES
    told = read(folder / "fedavg").runs[0].results["metrics"]["angle_error_deg"]["mean"]
    assert float(rows["as trained"]["value"]) == pytest.approx(told, abs=1e-5)
    assert (out / "prune.png").stat().st_size > 5000
    assert (out / "prune.md").read_text().count("\n| linear") == 2
    assert "3 people, 1 seed" in said


def test_sizes_and_zeros_are_those_of_the_arithmetic(shared):
    """small_eye (4, 4), 8: linear 4 * 3 * 6 * 8 + 10 * 2 = 596, conv 36 + 144 + 144, biases 22."""
    _, rows, _ = shared
    assert {int(r["parameters"]) for n, r in rows.items() if "filters" not in n} == {942}
    assert float(rows["linear 1"]["zeros"]) == pytest.approx(596 / 942)
    assert float(rows["linear 0.5"]["zeros"]) == pytest.approx(298 / 942)
    # 32.4, 129.6 and 129.6 of the three convolutions.
    assert float(rows["conv 0.9"]["zeros"]) == pytest.approx((32 + 130 + 130) / 942)
    assert float(rows["global 0.9"]["zeros"]) == pytest.approx(828 / 942)
    for row in rows.values():
        assert int(row["stored_bytes"]) <= int(row["dense_bytes"]) == 4 * int(row["parameters"])
        parts = int(row["client_stored_bytes"]) + int(row["server_stored_bytes"])
        assert parts == int(row["stored_bytes"])
        assert min(float(row["dense_ms"]), float(row["sparse_ms"])) > 0
    assert float(rows["linear 1"]["client_zeros"]) == 0
    assert int(rows["as trained"]["client_stored_bytes"]) == 4 * (36 + 4 + 144 + 4)


def test_filters_and_neurons_are_taken_out(shared):
    """2, 2, 2 filters and 4 neurons: 18 + 2, 36 + 2, 36 + 2, 36 * 4 + 4, 6 * 2 + 2."""
    _, rows, said = shared
    left = rows["filters and neurons 0.5"]
    assert int(left["parameters"]) == 20 + 38 + 38 + 148 + 14
    assert "filters and neurons 0.5: taken out; " in said


def test_what_is_stored_is_read_back(shared):
    out, rows, _ = shared
    assert {p.stem.replace("_", " ") for p in out.glob("*.safetensors")} == set(NAMES)
    kept = unpack_pruned((out / "linear_0.5.safetensors").read_bytes())
    assert sum(t.numel() for t in kept.values()) == 942
    assert sum(int((t == 0).sum()) for t in kept.values()) == 298
    assert stored_bytes(kept) == int(rows["linear 0.5"]["stored_bytes"])


def test_training_afterwards_is_training_under_the_mask(folder, shared):
    _, rows, said = shared
    assert "after 3 batches" in said
    assert rows["both 0.9"]["value"] != rows["both 0.9"]["value_after_tuning"]
    (subject,) = subjects(folder / "fedavg", "all")
    line = PruningRow("linear 1", Pruning(1.0))
    measure(line, subject, 3)
    after = float(rows["linear 1"]["value_after_tuning"])
    values = [value for person in line.tuned.values() for value in person]
    assert sum(values) / 3 == pytest.approx(after)
    assert len(subject.train()) == sum(
        len(splits.train) for splits in subject.trained.ready.people.values()
    )


def test_everybody_s_own_model_is_pruned(folder):
    found = subjects(folder / "fedper", "all")
    assert [subject.people for subject in found] == [("p00",), ("p01",), ("p02",)]
    assert all(isinstance(subject, PrunedModel) for subject in found)
    assert not torch.equal(found[0].params.flat, found[1].params.flat)
    line = PruningRow("as trained", None)
    for subject in found:
        measure(line, subject, 0)
    told = read(folder / "fedper").runs[0].scores("angle_error_deg")
    assert {p: v[0] for p, v in line.error.items()} == pytest.approx(told, abs=1e-5)
    own = len(found[1].trained.ready.people["p01"].train)
    assert len(found[1].train()) == own


@pytest.mark.slow
def test_people_left_out_are_the_test(tmp_path):
    (tmp_path / "eyes.toml").write_text(EYES)
    evaluate("leave-one-out", load(tmp_path / "eyes.toml"), tmp_path / "out", quiet())
    merged = tmp_path / "out" / "leave-one-out"
    found = subjects(merged / "fedavg", "all")
    assert [subject.people for subject in found] == [("p00",), ("p01",), ("p02",)]
    fold = subjects(merged / "folds" / "p01" / "fedavg", "all")
    assert [subject.people for subject in fold] == [("p01",)]
    line = PruningRow("as trained", None)
    measure(line, fold[0], 0)
    told = read(merged / "fedavg").runs[0].scores("angle_error_deg")
    assert line.error["p01"][0] == pytest.approx(told["p01"], abs=1e-5)
    assert isinstance(fold[0].params, Params)
    people = fold[0].trained.participants.people
    assert set(people) == {"p00", "p02"}
    assert len(fold[0].train()) == sum(len(splits.train) for splits in people.values())
    with pytest.raises(ConfigError, match="no whole model that an unseen client could use"):
        subjects(merged / "local_only", "all")


@pytest.mark.slow
def test_networks_whose_sums_need_every_channel_say_so(tmp_path):
    text = EYES.replace(
        '"small_eye", channels = [4, 4], hidden = 8', '"resnet_preact", channels = 4, groups = 2'
    )
    out, said = run(tmp_path, text.replace(', "fedper", "local_only"', "")), io.StringIO()
    options = PruningOptions("p01", amounts=(0.9,), rounds=3)
    lines = prune(out / "fedavg", tmp_path / "t", Console(file=said, width=300), options)
    assert (
        "set to zero, not taken out: ResNetPreactNet is no row of plain layers" in said.getvalue()
    )
    assert lines[-1].zeros > 0.4
    assert list(lines[0].error) == ["p01"]


def test_strangers_are_scored_with_the_common_prior(tmp_path):
    text = EYES.replace('"gaze_angle"', '"gaze_angle", personal_prior = 1.0')
    text = text.replace(', "fedper", "local_only"', "")
    (tmp_path / "eyes.toml").write_text(text)
    whole = load(tmp_path / "eyes.toml")
    start(whole.on_dataset(PersonPart(validate(whole).raw, ("p00", "p01"))), tmp_path / "out")
    out = tmp_path / "out" / "fedavg"
    (subject,) = subjects(out, "p02")
    line = PruningRow("as trained", None)
    measure(line, subject, 0)
    saved = find_held_out(out, "p02").run("p02")
    served = saved.unseen_client("p02", ["p00", "p01"])["P0"]["angle_error_deg"]
    own = saved.measure(saved.newcomer(), "p02")["angle_error_deg"]
    assert line.error["p02"] == [pytest.approx(served, abs=1e-5)]
    assert abs(own - served) > 1e-3


def test_bad_options_are_named(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"amount must be >= 0 and <= 1; got 1\.5"):
        prune(folder / "fedavg", tmp_path, quiet(), PruningOptions(amounts=(1.5,)))
    with pytest.raises(ConfigError, match="no person 'ann'"):
        prune(folder / "fedavg", tmp_path, quiet(), PruningOptions("ann"))
    with pytest.raises(ConfigError, match="a cut must be after stages of this network"):
        prune(folder / "fedavg", tmp_path, quiet(), PruningOptions(cut="pool9"))
    with pytest.raises(ConfigError, match="tune must be >= 0"):
        PruningOptions(tune=-1)
    assert not list(tmp_path.iterdir())


def test_medians_are_of_calls_in_turn():
    seen = []
    times = medians([lambda: seen.append("a"), lambda: seen.append("b")], rounds=4)
    assert "".join(seen) == "ab" + "abba" * 2
    assert len(times) == 2
    assert all(time > 0 for time in times)
    seen.clear()
    medians([lambda: seen.append("a")], rounds=100, seconds=0)
    assert len(seen) == 4


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local_only"])
def test_a_run_that_was_pruned_is_shown_as_it_was_measured(method, tmp_path):
    out = run(tmp_path, EYES, "pruning.amount=0.5", "pruning.layers=both", f'methods=["{method}"]')
    out = next(p.parent for p in out.rglob("people.csv"))
    found = subjects(out, "all")
    assert len(found) == (1 if method == "fedavg" else 3)
    line = PruningRow("as trained", None)
    for subject in found:
        measure(line, subject, 0)
    told = read(out).runs[0]
    assert {p: v[0] for p, v in line.error.items()} == pytest.approx(
        told.scores("angle_error_deg"), abs=1e-5
    )
    assert line.zeros == pytest.approx(told.results["metrics"]["zeros"]["mean"])
    assert line.zeros == (18 + 72 + 72 + 288 + 10) / 942
