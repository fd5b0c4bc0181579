"""Harm in a study, from scores of test samples that are written by hand or by a small run."""

import csv
import shutil

import numpy as np
import pytest
import torch

from tests.cli.commands import run
from tests.made_up_runs import METHODS
from vergence.core.data import Samples
from vergence.experiment.sample_scores import blocks_of
from vergence.metrics.harm import Loss, loss_of
from vergence.results.harm import (
    PRIORS,
    RUNS,
    SAMPLES,
    Harm,
    bootstrap_units,
    harms,
    read_sample_scores,
    sample_scores,
)
from vergence.results.read import StudyResults, read
from vergence.studies.compare import blocks, gather, rows, to_csv, without_tuning_people
from vergence.studies.merge_splits import blocks as merged

GIVEN = {"local_only": 2.0, "fedavg": 2.2, "fedcpf": 2.1}
PRIOR = {"p1": 1.0, "p2": 1.0, "p3": 3.0, "p4": 1.0}


def write(path, head, lines):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(","), *lines])


def scored(out, folder, without=()):
    """The made-up study with ten pictures of everybody, all alike, seeds 0.1 apart."""
    copy = shutil.copytree(out, folder)
    for method in METHODS:
        if method not in without:
            lines = [
                (s, p, f"picture {i}", 1, GIVEN[method] + 0.1 * s)
                for s in (0, 1)
                for p in PRIOR
                for i in range(10)
            ]
            write(copy / method / SAMPLES, "seed,person,block,counted,value", lines)
    lines = [("own map", p, f"picture {i}", 1, v) for p, v in PRIOR.items() for i in range(10)]
    write(copy / PRIORS, "prior,person,block,counted,value", lines)
    return copy


def test_harm_is_against_the_best_of_alone_fedavg_and_the_own_prior(out, tmp_path):
    """Seeds averaged 2.05, 2.25, 2.15: FedCPF loses 0.1 / 2.25 = 4.4 % to FedAvg.

    p3 loses more to the own map.

    FedAvg loses to nobody but p3's own map, 0.75 / 3.
    """
    found = harms(gather([scored(out, tmp_path / "OUT")]))
    assert str(found["fedcpf"]) == "4 of 4"
    loss = found["fedcpf"].losses["p1"]
    assert (loss.against, loss.loss) == ("FedAvg", pytest.approx(0.1 / 2.25))
    assert found["fedcpf"].losses["p3"].against == "own map"
    assert found["fedcpf"].references == ("local-only", "FedAvg", "own map")
    assert found["fedavg"].references == ("local-only", "own map")
    assert found["fedavg"].people == ["p3"]
    assert found["fedavg"].worst()[0][1].loss == pytest.approx(0.25)


def test_the_table_says_how_many_of_whom_and_against_what(out, tmp_path):
    study = gather([scored(out, tmp_path / "OUT")])
    by_label = {row.label: row for row in rows(study)}
    assert str(by_label["fedavg"].harm) == "1 of 4"
    line = next(csv.DictReader(to_csv([by_label["fedavg"]]).splitlines()))
    assert (line["harmed"], line["harm_judged"], line["harmed_people"]) == ("1", "4", "p3")
    assert line["harm_references"] == "local-only, own map"
    table = blocks(study)["fairness"][1]
    assert table.lines[1] == ["FedAvg", "1 of 4", "p3", "25.0% p3 (own map)", "local-only, own map"]


def test_a_run_without_a_reference_says_which_it_used(out, tmp_path):
    copy = scored(out, tmp_path / "OUT", without=("local_only",))
    (copy / PRIORS).unlink()
    found = harms(gather([copy]))
    assert found["fedcpf"].references == ("FedAvg",)
    assert found["local_only"].losses == {}
    assert str(found["fedavg"]) == "", "nobody beside it: nothing is said, not 0 of 4"


def test_a_test_that_shows_no_loss_below_everything_is_none():
    """Beside a reference near 0 every relative loss and its interval are huge."""
    assert str(Harm(("own map",), {"p0": Loss("own map", -3.0, -117.0)})) == "0 of 1 (no test)"
    assert str(Harm(("FedAvg",), {"p0": Loss("FedAvg", -0.2, -0.3)})) == "0 of 1 (from 11%)"


def test_people_that_settings_were_chosen_on_are_not_judged(out, tmp_path):
    copy = scored(out, tmp_path / "OUT")
    for method in METHODS:
        with (copy / method / "config.toml").open("a") as file:
            file.write('\n[tuning]\npeople = ["p3"]\n')
    study, _ = without_tuning_people(gather([copy]))
    assert str(harms(study)["fedavg"]) == "0 of 3 (from 1%)"


def test_other_samples_are_no_reference(out, tmp_path):
    """Where FedAvg was measured on other pictures, nobody can be paired with it."""
    copy = scored(out, tmp_path / "OUT")
    path = copy / "fedavg" / SAMPLES
    path.write_text(path.read_text().replace("picture 9", "picture 99"))
    losses = harms(read(copy))["fedcpf"].losses
    assert losses["p1"].against == "local-only"


def test_a_reference_of_other_data_is_none(out, tmp_path):
    """Compared all the same (`--allow data`); `part 3` of other data is of other samples."""
    copy, other = (scored(out, tmp_path / name) for name in ("OUT", "OTHER"))
    path = other / "fedavg" / "provenance.json"
    for sha, named in (
        ("00ff", ("local-only", "FedAvg", "own map")),
        ("aa", ("local-only", "own map")),
    ):
        path.write_text(path.read_text().replace("00ff", sha))
        there = next(run for run in read(other).runs if run.label == "fedavg")
        runs = (*(run for run in read(copy).runs if run.label != "fedavg"), there)
        assert harms(StudyResults(copy, runs, {}))["fedcpf"].references == named


def test_a_run_that_is_made_anew_is_read_anew(out, tmp_path):
    copy = scored(out, tmp_path / "OUT")
    assert str(harms(read(copy))["fedcpf"]) == "4 of 4"
    path = copy / "fedcpf" / SAMPLES
    path.write_text(path.read_text().replace(",2.1", ",9.1").replace(",2.2", ",9.2"))
    assert str(harms(read(copy))["fedcpf"]) == "0 of 4 (from 1%)"


def test_splits_share_pictures_and_scenes_and_no_other_blocks(tmp_path):
    """The same picture in two splits is one block of both; a run of neighbours is of its split."""
    for split in ("1", "2"):
        (tmp_path / split).mkdir()
        names = ("picture 7", "scene 2008", "part 0")
        lines = [(0, "a", name, 4, 2.0) for name in names]
        write(tmp_path / split / SAMPLES, "seed,person,block,counted,value", lines)
    found = merged({split: tmp_path / split for split in ("1", "2")}, SAMPLES)
    names = [row[2] for row in found]
    known = ["picture 7", "scene 2008"]
    assert names == [*known, "split 1 part 0", *known, "split 2 part 0"]
    (tmp_path / "2" / SAMPLES).unlink()
    assert merged({split: tmp_path / split for split in ("1", "2")}, SAMPLES) == []


def interval(folder, kind, splits):
    """Loss of FedCPF against FedAvg over splits of fifty samples each, its bound and the units."""
    found = {}
    for method in ("fedavg", "fedcpf"):
        parts = {}
        for place, split in enumerate(splits):
            drawn = np.random.default_rng([split, len(method), ord(method[-1])])
            lines = [(0, "a", f"{kind} {split * 40 + i}", 2, drawn.normal(2)) for i in range(50)]
            at = folder / f"{kind} {splits} {place} {method}"
            at.mkdir()
            write(at / SAMPLES, "seed,person,block,counted,value", lines)
            parts[str(place)] = at
        whole = folder / f"{kind} {splits} {method}" / SAMPLES
        whole.parent.mkdir()
        write(whole, "seed,person,block,counted,value", merged(parts, SAMPLES))
        found[method] = read_sample_scores(whole)["a"]
    mine, other = (
        bootstrap_units(found[method], found["fedcpf"]) for method in ("fedcpf", "fedavg")
    )
    loss = loss_of(mine, {"FedAvg": other}, False)
    return loss.loss, loss.bound, len(mine)


@pytest.mark.parametrize("kind", ["picture", "scene"])
def test_the_same_split_twice_has_the_interval_of_one(tmp_path, kind):
    once, twice = (interval(tmp_path, kind, splits) for splits in ([0], [0, 0]))
    assert twice == pytest.approx(once, rel=1e-12)
    assert interval(tmp_path, kind, [0, 1])[0] != pytest.approx(once[0])


def test_without_numbers_of_the_data_set_s_own_it_is_narrower(tmp_path):
    once, twice = (interval(tmp_path, "part", splits) for splits in ([0], [0, 0]))
    assert twice[2] == 2 * once[2]
    assert twice[1] > once[1]


def test_windows_of_clips_are_drawn_in_runs_of_neighbours():
    """Fifty windows are twenty units of two or three that follow each other, in any order."""
    rows = {f"scene {8 * i}": (float(i), 1.0) for i in range(50)}
    found = bootstrap_units(rows, dict(reversed(rows.items())))
    assert found[0].tolist() == [0 + 1 + 2, 3]
    assert found.sum(0).tolist() == [sum(range(50)), 50]
    assert len(found) == RUNS


def test_windows_that_others_saw_have_numbers_and_others_are_runs():
    def named(scene, fixations=1):
        points = torch.zeros(len(scene), 2, fixations, 2)
        return blocks_of(Samples({"scene": torch.tensor(scene), "points": points}))

    assert named([3008, 3016]) == ["scene 3008", "scene 3016"]
    assert named([3, 4], fixations=2) == ["picture 3", "picture 4"]
    assert named([-1, -1]) == ["part 0", "part 1"]


EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 2, samples = 60, days = [3, 3], size = "9x15" }
methods    = ["local_only", "fedavg"]
local      = { optimizer = "sgd", epochs = 1, batch = 16, lr = 0.05 }
run        = { rounds = 1, seeds = [0, 1], evaluate_every = 0, workers = 1 }
"""
MAPS = """
task       = { name = "gaze_map" }
model      = { name = "glc_features", grid = [6, 8], width = 8, heads = 1 }
federation = { name = "osie", size = [64, 48], viewers = [0, 1] }
methods    = ["fedavg"]
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


@pytest.mark.parametrize("text", [EYES, MAPS])
def test_blocks_of_a_run_add_up_to_the_headline_of_its_people_and_priors(text, tmp_path):
    folder = run(tmp_path, text)
    study = read(folder)
    for each in study.runs:
        told = each.scores(each.headline)
        for person, kept in sample_scores(each).items():
            total, counted = np.sum([*kept.values()], axis=0)
            assert total / counted == pytest.approx(told[person], rel=1e-9)
    with (folder / PRIORS).open(newline="") as file:
        found = [*csv.DictReader(file)]
    prior = found[0]["prior"]
    for person, metrics in study.priors[prior].items():
        own = [r for r in found if r["person"] == person]
        weights = [int(r["counted"]) for r in own]
        mean = np.average([float(r["value"]) for r in own], weights=weights)
        assert mean == pytest.approx(metrics[study.headline], rel=1e-9)


def test_images_by_sample_are_their_accuracy():
    from vergence.models.softmax import Softmax
    from vergence.tasks.images import Images

    task = Images(Softmax())
    samples = Samples({"label": torch.tensor([0, 1, 1, 2])})
    scores = torch.eye(3)[torch.tensor([0, 1, 2, 2])]
    sums = task.per_sample(scores, samples)
    assert sums.tolist() == [[1, 1], [1, 1], [0, 1], [1, 1]]
    assert float(sums[:, 0].sum() / sums[:, 1].sum()) == task.metrics(scores, samples)["accuracy"]


def test_scores_that_are_no_numbers_are_no_gain(out, tmp_path):
    """A sum that leaves NaN out would count such a method as better than any error."""
    copy = scored(out, tmp_path / "OUT")
    lines = [(s, p, f"picture {i}", 1, "nan") for s in (0, 1) for p in PRIOR for i in range(10)]
    write(copy / "fedcpf" / SAMPLES, "seed,person,block,counted,value", lines)
    found = harms(gather([copy]))
    assert str(found["fedcpf"]) == "4 of 4"
    assert found["fedavg"].references == ("local-only", "own map")
