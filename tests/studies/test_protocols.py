"""`vergence study evaluate` on the toy task: folds, strangers, late people, matrices, scores."""

import csv
import io
import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.cli.commands import TOY, vergence, write
from vergence.core.data import Samples
from vergence.core.params import Params
from vergence.errors import ConfigError, PartialRun, StateError
from vergence.experiment.newcomers import find_held_out
from vergence.experiment.schema import load
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import validate
from vergence.results.read import read
from vergence.studies import protocols
from vergence.studies.compare import gather
from vergence.studies.conditions import levels
from vergence.studies.merge_folds import code_of
from vergence.studies.protocols import combined, evaluate
from vergence.studies.split_runs import data_splits
from vergence.tasks.toy import ToyTask

METHODS = 'methods = ["local_only", "fedavg", "centralised", { name = "fedcpf", rate = 0.2 }]'
TEXT = TOY.replace("METHODS", METHODS)
NAMES = ("local_only", "fedavg", "centralised", "fedcpf")
PEOPLE = ("p00", "p01", "p02")


def go(folder, protocol, out, text=TEXT, *sets, **options):
    said = io.StringIO()
    experiment = load(write(folder, text), sets)
    evaluate(protocol, experiment, out, Console(file=said, width=160), **options)
    return said.getvalue()


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """The combined score: a run within people and one without each of them; and what was said."""
    folder = tmp_path_factory.mktemp("score")
    return folder / "out", go(folder, "score", folder / "out")


@pytest.mark.slow
def test_a_left_out_person_took_no_part(scored):
    out, _ = scored
    for person in PEOPLE:
        rest = [p for p in PEOPLE if p != person]
        fold = out / "leave-one-out" / "folds" / person
        for label in NAMES:
            assert read(fold / label).runs[0].people == rest
            turns = {r["client"] for r in rows(fold / label / "turns.csv")}
            assert person not in turns


def test_strangers_are_scored_by_hand(scored):
    """fedavg: the server's line on the stranger's test part; local-only: the mean of two lines."""
    out, _ = scored
    whole = validate(load(out / "within" / "config.toml"))
    test = whole.ready.people["p00"].test

    def error(params: Params) -> float:
        found = test.columns["x"] @ params["weight"][0] + params["bias"]
        return float((found - test.columns["y"]).square().mean().sqrt())

    fold = out / "leave-one-out" / "folds" / "p00"
    server = read_run(fold / "fedavg").server
    mine = read(out / "leave-one-out" / "fedavg").runs[0].scores("error")
    assert mine["p00"] == pytest.approx(error(server.model), rel=1e-5)
    alone = read_run(fold / "local_only").clients
    mean = np.mean([error(alone[p].params) for p in ("p01", "p02")])
    run = read(out / "leave-one-out" / "local_only").runs[0]
    assert run.scores("error")["p00"] == pytest.approx(mean, rel=1e-5)
    assert run.scores("error", "others") == run.scores("error")
    assert not run.scores("error", "newcomer")


def test_a_data_centre_never_sees_the_stranger(scored):
    """The pooled model of a fold is not that of everybody."""
    out, _ = scored
    within = read_run(out / "within" / "centralised").server.model
    without = read_run(out / "leave-one-out" / "folds" / "p00" / "centralised").server.model
    assert not torch.equal(within.flat, without.flat)


def test_merged_runs_can_be_compared_among_themselves_only(scored):
    out, _ = scored
    study = gather([out / "leave-one-out"])
    assert [run.label for run in study.runs] == list(NAMES)
    assert study.runs[0].people == list(PEOPLE)
    assert study.runs[0].results["harmed_vs_local"] == 0
    assert study.priors["global mean"]
    with pytest.raises(ConfigError, match="split differs"):
        gather([out / "leave-one-out" / "fedavg", out / "within" / "fedavg"])


def test_everybody_is_in_the_merged_turns_once(scored):
    out, _ = scored
    for label in ("fedavg", "local_only"):
        turns = rows(out / "leave-one-out" / label / "turns.csv")
        trained = [(r["round"], r["client"]) for r in turns if r["verb"] == "train"]
        assert len(trained) == len(set(trained)) == 3 * len(PEOPLE)


def test_combined_score(scored):
    out, said = scored
    assert combined(2.0, 6.0, lower_is_better=True) == 4
    assert combined(2.0, 6.0, lower_is_better=False) == pytest.approx(3)
    assert combined(-0.1, 6.0, lower_is_better=False) == 0
    told = {
        (r["label"], r["protocol"], r["person"]): float(r["value"])
        for r in rows(out / "protocols.csv")
    }
    for label in NAMES:
        for person in PEOPLE:
            parts = [told[label, p, person] for p in ("within", "leave-one-out")]
            assert told[label, "combined", person] == pytest.approx(np.mean(parts))
    assert "combined" in said


def test_what_is_done_is_not_done_again(scored, tmp_path):
    out, _ = scored
    before = {p: p.stat().st_mtime_ns for p in out.rglob("results.json")}
    go(tmp_path, "score", out)
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("results.json")}
    with pytest.raises(StateError, match="other config"):
        go(tmp_path, "leave-one-out", out, TEXT, "local.lr=0.01")


@pytest.mark.slow
def test_an_interrupted_protocol_goes_on(scored, tmp_path, monkeypatch):
    """Stopped in the second fold, then given again: the same bytes as in one go."""
    out, _ = scored
    from vergence.experiment import run as app_run

    real, calls = app_run.run_rounds, []

    def stopped(*args, **more):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*args, **more)

    monkeypatch.setattr(app_run, "run_rounds", stopped)
    with pytest.raises(PartialRun, match="the same command again"):
        go(tmp_path, "leave-one-out", tmp_path / "out")
    assert not (tmp_path / "out" / "leave-one-out" / "fedavg").exists()
    monkeypatch.setattr(app_run, "run_rounds", real)
    go(tmp_path, "leave-one-out", tmp_path / "out")
    for label in NAMES:
        mine, theirs = (o / "leave-one-out" / label / "people.csv" for o in (tmp_path / "out", out))
        assert mine.read_bytes() == theirs.read_bytes()


def test_matrix(scored, tmp_path):
    """The diagonal is what the run itself measured; one model for all gives equal rows."""
    out, _ = scored
    said = go(tmp_path, "matrix", out)
    assert "others' data" in said
    for label in NAMES:
        own = read(out / "within" / label).runs[0].scores("error")
        listed = [r for r in rows(out / "matrix" / f"{label}.csv") if r["metric"] == "error"]
        found = {(r["model_of"], r["person"]): float(r["value"]) for r in listed}
        assert len(found) == len(PEOPLE) ** 2
        for person in PEOPLE:
            assert found[person, person] == pytest.approx(own[person], rel=1e-6)
        shared = found["p00", "p02"] == found["p01", "p02"]
        assert shared == (label in ("fedavg", "centralised"))
        assert (out / "matrix" / f"{label}.png").stat().st_size > 5000


def test_late_people_take_part_in_the_second_half_only(tmp_path):
    methods = TOY.replace("METHODS", 'methods = ["fedavg", "centralised", "local_only"]')
    said = go(tmp_path, "late", tmp_path / "out", methods, "run.rounds=4")
    assert "without centralised" in said
    assert not (tmp_path / "out" / "late" / "centralised").exists()
    fold = tmp_path / "out" / "late" / "folds" / "p01" / "fedavg"
    asked = {}
    for row in rows(fold / "turns.csv"):
        asked.setdefault(row["client"], []).append(int(row["round"]))
    assert asked == {"p00": [1, 2, 3, 4], "p01": [3, 4], "p02": [1, 2, 3, 4]}
    merged = read(tmp_path / "out" / "late" / "fedavg").runs[0].scores("error")
    assert merged["p01"] == read(fold).runs[0].scores("error")["p01"]
    assert len(rows(tmp_path / "out" / "protocols.csv")) == 2 * len(PEOPLE)


@pytest.mark.slow
def test_a_late_protocol_goes_on_where_it_was_moved_to(tmp_path, monkeypatch):
    """Stopped in the second fold, moved, given again: the same bytes as in one go."""
    from vergence.experiment import run as app_run

    one, real, calls = TOY.replace("METHODS", 'methods = ["fedavg"]'), app_run.run_rounds, []
    go(tmp_path, "late", tmp_path / "whole", one)

    def stopped(*args, **more):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **more)

    monkeypatch.setattr(app_run, "run_rounds", stopped)
    with pytest.raises(PartialRun, match="the same command again"):
        go(tmp_path, "late", tmp_path / "out", one)
    monkeypatch.setattr(app_run, "run_rounds", real)
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    go(tmp_path, "late", moved, one)
    for config in moved.rglob("config.toml"):
        assert str(tmp_path) not in config.read_text()
    fold = moved / "late" / "folds" / "p01" / "fedavg" / "config.toml"
    assert 'trace = "late_p01.csv"' in fold.read_text()
    ours, theirs = (o / "late" / "fedavg" / "people.csv" for o in (moved, tmp_path / "whole"))
    assert ours.read_bytes() == theirs.read_bytes()


@dataclass(frozen=True)
class Choosing(ToyTask):
    """A task whose metric is chosen on validation data: the number of its samples."""

    def evaluate(self, outputs, samples, val_outputs, val_samples):
        assert len(val_outputs) == len(val_samples)
        return {**self.metrics(outputs, samples), "chosen": float(len(val_samples))}


def test_what_is_chosen_for_a_stranger_is_chosen_on_the_people_who_took_part(scored):
    """A third of the validation samples of three people each; somebody known has their own."""
    out, _ = scored
    ready = validate(load(out / "within" / "config.toml")).ready
    own = {person: len(splits.val) for person, splits in ready.people.items()}
    for label in ("fedavg", "local_only"):
        saved = read_run(out / "leave-one-out" / "folds" / "p00" / label)
        trained = replace(saved, task=Choosing(saved.task.network)).on_data(ready)
        for found in trained.unseen_client("p00", PEOPLE[1:]).values():
            assert found["chosen"] == own["p01"] + own["p02"]
        assert trained.measure(trained.model("p01"), "p01")["chosen"] == own["p01"]
    trained = find_held_out(out / "leave-one-out" / "fedavg").run("p00").participants
    assert trained is not None
    assert trained.clients == PEOPLE[1:]


def test_number_of_people(tmp_path):
    """Trained on one and two of the first two of four, measured on the last two as newcomers."""
    one = TOY.replace("METHODS", 'method = "fedavg"')  # a single method does as well
    one = one.replace('"fedavg"', '{ name = "fedavg" }').replace("people = 3", "people = 4")
    out = tmp_path / "out"
    said = go(tmp_path, "people", out, one, sizes=(1, 2), unseen=2)
    assert "people in training" in said
    found = {
        (r["person"], int(r["count"])): float(r["value"])
        for r in rows(out / "people" / "people.csv")
    }
    assert set(found) == {(p, n) for p in ("p02", "p03") for n in (1, 2)}
    assert "newcomers; local-only: others' models; 1 seed" in said
    folder = out / "people" / "n02" / "seed0" / "fedavg"
    assert read(folder).runs[0].people == ["p00", "p01"]
    trained = read_run(folder).on_data(validate(load(write(tmp_path, one))).ready)
    assert found["p03", 2] == trained.measure(trained.server.model, "p03")["error"]
    with pytest.raises(ConfigError, match="takes 5 people, the data has 4"):
        go(tmp_path, "people", out, one, sizes=(1, 3), unseen=2)


@pytest.mark.slow
def test_every_seed_draws_its_own_people_and_the_strangers_stay(tmp_path):
    """Two of four, four seeds: not all alike, and one person is among the two of that seed."""
    one = TOY.replace("METHODS", 'methods = ["fedavg"]').replace("people = 3", "people = 5")
    out, seeds = tmp_path / "out", range(4)
    go(
        tmp_path,
        "people",
        out,
        one,
        "run.seeds=[0, 1, 2, 3]",
        "run.rounds=1",
        sizes=(1, 2),
        unseen=1,
    )
    drawn = {
        (n, seed): set(read(out / "people" / f"n{n:02d}" / f"seed{seed}").runs[0].people)
        for n in (1, 2)
        for seed in seeds
    }
    assert len({frozenset(drawn[2, seed]) for seed in seeds}) > 1
    for seed in seeds:
        assert drawn[1, seed] < drawn[2, seed] <= {"p00", "p01", "p02", "p03"}
        runs = read(out / "people" / "n02" / f"seed{seed}").runs
        assert [run.seeds for run in runs] == [[seed]]
    assert {r["person"] for r in rows(out / "people" / "people.csv")} == {"p04"}


def test_conditions_of_eyes(tmp_path):
    text = """
    task       = { name = "gaze_angle" }
    model      = { name = "small_eye", channels = [2, 2], hidden = 4 }
    federation = { name = "eye_synthetic", people = 2, samples = 60, days = [3, 3], size = "9x15" }
    methods    = ["fedavg"]
    run        = { rounds = 1, evaluate_every = 0, workers = 1 }
    """
    out = tmp_path / "out"
    said = go(tmp_path, "conditions", out, text)
    assert "head turn low" in said
    told = [r for r in rows(out / "conditions.csv") if r["condition"] == "head turn"]
    run = read(out / "within" / "fedavg").runs[0].scores("angle_error_deg")
    for person in ("p00", "p01"):
        mine = [r for r in told if r["person"] == person]
        weights = [int(r["samples"]) for r in mine]
        mean = np.average([float(r["value"]) for r in mine], weights=weights)
        assert mean == pytest.approx(run[person], rel=1e-6)


def test_recorded_levels():
    """Few whole numbers are levels of their own; real ones are cut into everybody's thirds."""
    tests = {
        "a": Samples({"glasses": torch.tensor([0, 0, 0]), "light": torch.tensor([0.0, 1, 2])}),
        "b": Samples({"glasses": torch.tensor([1, 1, 1]), "light": torch.tensor([3.5, 4, 5])}),
    }
    found = {(p, c, level): at.tolist() for p, c, level, at in levels(tests, {})}
    assert found["a", "glasses", "0"] == found["b", "glasses", "1"] == [0, 1, 2]
    assert found["a", "light", "low"] == [0, 1]
    assert found["a", "light", "middle"] == [2]
    assert found["b", "light", "middle"] == [0]
    assert found["b", "light", "high"] == [1, 2]
    with pytest.raises(ConfigError, match="records none of glasses"):
        list(levels({"a": Samples({"x": torch.zeros(3)})}, {}))


def test_protocols_that_do_not_suit(tmp_path):
    with pytest.raises(ConfigError, match="no protocol 'lopo'; known: within"):
        go(tmp_path, "lopo", tmp_path / "a")
    with pytest.raises(ConfigError, match="--people is for protocol people"):
        go(tmp_path, "within", tmp_path / "a", sizes=(1, 2))
    with pytest.raises(ConfigError, match="--unseen is for protocol people"):
        go(tmp_path, "late", tmp_path / "a", unseen=5)
    said = vergence(
        "study",
        "evaluate",
        "score",
        write(tmp_path, TEXT),
        "--out",
        tmp_path / "a",
        "--people",
        1,
        2,
    )
    said.complains(2, "--people is for protocol people", "score")
    with pytest.raises(ConfigError, match="no method is left"):
        go(tmp_path, "late", tmp_path / "a", TOY.replace("METHODS", 'methods = ["centralised"]'))
    with pytest.raises(ConfigError, match="presence trace of its own"):
        go(tmp_path, "late", tmp_path / "a", TEXT, "presence.rhythm=true")
    with pytest.raises(ConfigError, match="two people or more"):
        go(tmp_path, "leave-one-out", tmp_path / "a", TEXT, "federation.people=1")
    with pytest.raises(ConfigError, match="records none"):
        go(tmp_path, "conditions", tmp_path / "b")


def test_folds_of_different_code_are_not_merged(scored):
    out, _ = scored
    folds = {p: out / "leave-one-out" / "folds" / p / "fedavg" for p in PEOPLE}
    parts = {p: read(fold).runs[0] for p, fold in folds.items()}
    assert len(code_of(parts)) == 64
    parts["p02"].provenance["code"]["sha256"] = "another"
    with pytest.raises(StateError, match="run by different code"):
        code_of(parts)


def test_folds_are_named_in_the_results(scored):
    out, _ = scored
    told = json.loads((out / "leave-one-out" / "fedavg" / "results.json").read_text())
    assert told["folds"]["p01"] == "../folds/p01/fedavg"
    assert told["clients"] == 3


def test_noise_is_added_once(tmp_path, monkeypatch):
    """A fold's training data is the noisy person's as loaded, not noisy twice over."""
    experiment = load(write(tmp_path, TEXT), ["noise.share=1.0"])
    loaded = validate(experiment)
    seen = []

    def held(experiment, *_):
        seen.append(experiment.federation())

    monkeypatch.setattr(protocols, "start_or_resume", held)
    scene = protocols.StudyScene(experiment, loaded, tmp_path, Console())
    people = loaded.raw.clients[:2]
    protocols.run_on_people(scene, experiment, tmp_path / "fold", people)
    for person in people:
        ours, theirs = seen[0].people[person].train, loaded.raw.people[person].train
        assert torch.equal(ours.columns["x"], theirs.columns["x"])


def test_learning_curves(tmp_path):
    """Everybody's score at each number of samples is that of a run with this few."""
    out = tmp_path / "out"
    one = TOY.replace("METHODS", 'methods = ["local_only", "fedavg"]')
    said = go(tmp_path, "samples", out, one, "run.seeds=[0, 1]", samples=(8, 4))
    assert "error by number of training samples, mean over 3 people" in said
    assert "FedAvg " in said, "methods are shown by their titles"
    found = rows(out / "samples" / "samples.csv")
    assert {(r["kind"], r["person"], int(r["count"])) for r in found} == {
        (label, person, n)
        for label in ("local_only", "fedavg")
        for person in PEOPLE
        for n in (4, 8)
    }
    other = tmp_path / "alone"
    sets = ("--set", "run.seeds=[0, 1]", "--set", "few_data.samples_per_person=4")
    assert vergence("run", write(tmp_path, one), "--out", other, *sets).code == 0
    alone = read(other / "fedavg").runs[0].scores("error")
    mine = [r for r in found if r["kind"] == "fedavg" and r["count"] == "4"]
    assert {r["person"]: float(r["value"]) for r in mine} == alone
    with pytest.raises(ConfigError, match="different numbers"):
        go(tmp_path, "samples", out, one, samples=(4, 4))
    with pytest.raises(ConfigError, match="--samples is for protocol samples"):
        go(tmp_path, "within", out, one, samples=(4,))


def test_learning_curves_are_measured_on_every_split(tmp_path):
    """With run.split_seeds; of generated people each split has others."""
    out = tmp_path / "out"
    one = TOY.replace("METHODS", 'methods = ["fedavg"]')
    said = go(tmp_path, "samples", out, one, "run.split_seeds=[0, 1]", samples=(4, 8))
    assert "2 splits" in said
    for count in (4, 8):
        folder = out / "samples" / f"n{count:03d}"
        each = [read(folder / f"split{s}" / "fedavg").runs[0].scores("error") for s in (0, 1)]
        found = {
            r["person"]: float(r["value"])
            for r in rows(out / "samples" / "samples.csv")
            if r["kind"] == "fedavg" and int(r["count"]) == count
        }
        assert found == {f"{person}@{s}": x for s in (0, 1) for person, x in each[s].items()}


def test_learning_curves_are_of_the_people_who_are_measured(tmp_path):
    one = TOY.replace("METHODS", 'methods = ["fedavg"]')
    sets = ("run.evaluate_people=2", "run.rounds=1")
    said = go(tmp_path, "samples", tmp_path / "out", one, *sets, samples=(4, 8))
    assert "mean over 2 people" in said
    run = read(tmp_path / "out" / "samples" / "n004").runs[0]
    assert {*run.turns.client} == {*PEOPLE}  # everybody trains
    found = rows(tmp_path / "out" / "samples" / "samples.csv")
    told = {r["person"]: float(r["value"]) for r in found if r["count"] == "4"}
    assert len(told) == 2
    assert told == run.scores("error")


PICTURES = """
task       = { name = "gaze_map", criterion = "kl", sigma = 0.05 }
model      = { name = "glc_features", grid = [6, 8], width = 8 }
federation = { name = "osie", images = 20, viewers = [0, 1, 2], size = [64, 48] }
methods    = ["fedavg"]
local      = { optimizer = "sgd", steps = 1, batch = 8, lr = 0.01 }
run        = { rounds = 1, seeds = [0, 1], evaluate_every = 0, workers = 1 }
"""


def test_learning_curves_have_a_line_of_people_s_own_prior(tmp_path):
    out = tmp_path / "out"
    go(tmp_path, "samples", out, PICTURES, "run.seeds=[0]", samples=(4, 8))
    found = rows(out / "samples" / "samples.csv")
    for count in (4, 8):
        told = read(out / "samples" / f"n{count:03d}").priors["personal prior"]
        line = {
            r["person"]: float(r["value"])
            for r in found
            if r["kind"] == "personal prior" and int(r["count"]) == count
        }
        assert line == {person: scores["nss"] for person, scores in told.items()}
        assert len(line) == 3


def test_several_splits(tmp_path):
    """A person counts once, by the mean over splits; the spread is that of the splits' means."""
    out = tmp_path / "out"
    said = go(tmp_path, "splits", out, PICTURES, split_seeds=(0, 3))
    assert "NSS over 2 splits" in said
    assert go(tmp_path, "splits", out, PICTURES, split_seeds=(0, 3)).count("NSS over") == 1
    parts = [read(out / "splits" / f"split{s}" / "fedavg").runs[0].scores("nss") for s in (0, 3)]
    merged = read(out / "splits" / "fedavg").runs[0]
    assert merged.people == ["v00", "v01", "v02"]
    for person, value in merged.scores("nss").items():
        assert value == pytest.approx((parts[0][person] + parts[1][person]) / 2)
    told = merged.results["splits"]["nss"]
    means = [float(np.mean([*part.values()])) for part in parts]
    assert [*told["means"].values()] == pytest.approx(means)
    assert told["std"] == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
    compared = vergence("compare", out / "splits").out
    assert "NSS over 2 splits" in compared
    assert "over 3 people, 2 seeds" in compared  # not six people, nor four seeds
    vergence("compare", out / "splits", out / "splits" / "split0").complains(2, "split differs")
    with pytest.raises(StateError, match="merged over the split seeds 0, 3, and 0, 3, 4"):
        go(tmp_path, "splits", out, PICTURES, split_seeds=(0, 3, 4))


def test_splits_state_the_people_who_are_measured(tmp_path):
    sets = ("run.evaluate_people=2", "run.seeds=[0]")
    go(tmp_path, "splits", tmp_path / "out", PICTURES, *sets, split_seeds=(0, 3))
    merged = read(tmp_path / "out" / "splits" / "fedavg").runs[0]
    assert merged.people == read(tmp_path / "out" / "splits" / "split3").runs[0].people
    assert merged.people == [*merged.scores("nss")]
    assert len(merged.people) == 2
    assert merged.results["clients"] == 3


def test_splits_that_there_are_not(tmp_path):
    lone = load(write(tmp_path, PICTURES), ['federation={name="pupil", root="nowhere"}'])
    with pytest.raises(ConfigError, match="'pupil' has no split_seed"):
        data_splits(lone, (0, 1))
    with pytest.raises(ConfigError, match="two or more different split seeds"):
        go(tmp_path, "splits", tmp_path / "out", PICTURES, split_seeds=(0, 0))


def test_people_left_out_in_folds_are_scored_by_the_fold_without_them(tmp_path):
    """Three people in two folds; turns of everybody are there once, also of the last and first."""
    experiment = load(write(tmp_path, TEXT), ['methods=["fedavg"]', "run.seeds=[0]"])
    scene = protocols.StudyScene(experiment, validate(experiment), tmp_path, Console(), folds=2)
    folder = protocols.leave_one_out(scene)
    run = read(folder / "fedavg").runs[0]
    ends = {"p00": "p00-p02", "p01": "p01", "p02": "p00-p02"}
    assert run.results["folds"] == {p: f"../folds/{end}/fedavg" for p, end in ends.items()}
    fold = read_run(folder / "folds" / "p00-p02" / "fedavg", 0).on_data(scene.loaded.ready)
    expected = fold.unseen_client("p02", ["p01"])["P0"]["error"]
    assert run.scores("error")["p02"] == expected
    turns = [(r["client"], r["round"]) for r in rows(folder / "fedavg" / "turns.csv")]
    assert len(turns) == len(set(turns))
    assert {client for client, _ in turns} == set(PEOPLE)
    with pytest.raises(ConfigError, match="2 to 3 folds"):
        protocols.leave_one_out(replace(scene, folds=5))
