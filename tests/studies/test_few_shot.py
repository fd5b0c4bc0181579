"""The few-shot table of runs without labels, and the picture of swaps, on tiny synthetic people."""

import csv
import io

import numpy as np
import pytest
import torch
from rich.console import Console

from vergence.core.data import Samples
from vergence.errors import ConfigError
from vergence.experiment.newcomers import find_held_out
from vergence.experiment.schema import load
from vergence.metrics.angles import angular_error_deg, mean_direction
from vergence.studies.few_shot import (
    MEAN,
    RANDOM,
    SUPERVISED,
    CodeRows,
    FewShotOptions,
    FewShotScene,
    unlabelled,
)
from vergence.studies.protocols import evaluate
from vergence.studies.swaps import DRAWN, EYE, GAZE, GIVEN, OTHER, TWIN_GAZE, swapped_images, swaps

CROSS = """
task       = { name = "cross_encoder" }
model      = { name = "cross_encoder", size = "9x15", width = 4 }
federation = { name = "eye_glances", people = 4, samples = 100, days = [3, 3], size = "9x15" }
methods    = ["fedavg", "fedper"]
local      = { epochs = 1, batch = 16, optimizer = "adam", lr = 2e-3, weight_decay = 0.0 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""
BYOL = (
    CROSS.replace('name = "cross_encoder" }', 'name = "siamese", objective = "byol" }', 1)
    .replace(
        '"cross_encoder", size = "9x15", width = 4',
        '"siamese", target = true, options = { size = "9x15", width = 4 }',
    )
    .replace(', "fedper"', "")
)
FEW = FewShotOptions(shots=20, draws=2, epochs=2, steps=3)


def quiet():
    return Console(file=io.StringIO(), width=160)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two people trained on, two left out."""
    folder = tmp_path_factory.mktemp("unlabelled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERGENCE_CACHE", str(tmp_path_factory.mktemp("cache")))
        names = ("cross", "byol")
        for name, text in zip(names, (CROSS, BYOL), strict=True):
            (folder / f"{name}.toml").write_text(text)
            evaluate("people", load(folder / f"{name}.toml"), folder / name, quiet(), [2], 2)
        yield {name: folder / name / "people" / "n02" / "seed0" for name in names}


@pytest.mark.slow
def test_the_table_has_every_row_on_the_same_unseen_people(runs, tmp_path):
    """Fault 1 was a script that did not run: this one goes from saved runs to the table."""
    said, out = io.StringIO(), tmp_path / "few.csv"
    folders = [runs["cross"] / "fedavg", runs["byol"]]
    found = unlabelled(folders, out, FEW, Console(file=said, width=160))
    assert found.people == ("p02", "p03")
    names = {name for name, _, _ in found.errors}
    assert names == {"cross_encoder FedAvg", "byol FedAvg", RANDOM, SUPERVISED, MEAN}
    assert all(np.isfinite(errors).all() for errors in found.errors.values())
    for name in names:
        assert name in said.getvalue()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["person"] for row in rows} == {"p02", "p03"}
    # Two codes and two readers of three encoders, two rows of neither, two people.
    assert len(rows) == (3 * 4 + 2) * 2
    again = unlabelled(folders, out, FEW, quiet())
    assert all(np.array_equal(again.errors[k], v) for k, v in found.errors.items())


def scene(runs, **options):
    strangers = find_held_out(runs["cross"] / "fedavg")
    chosen = FewShotOptions(**{"shots": 20, "draws": 2, "epochs": 2, "steps": 3, **options})
    return FewShotScene(strangers.run("p02"), ("p02", "p03"), chosen)


@pytest.mark.parametrize(("source", "people"), [("first", {"p00"}), ("all", {"p00", "p01"})])
def test_shots_are_both_eyes_of_glances_of_people_trained_on(runs, source, people):
    found = scene(runs, source=source)
    assert tuple(found.shots.gaze.shape) == (2, 20, 2)
    assert found.shots.side.sum(1).tolist() == [10, 10]
    left, right = found.shot_rows[:, :10], found.shot_rows[:, 10:]
    assert torch.equal(left + 1, right)
    assert bool((left % 2 == 0).all())
    assert not torch.equal(found.shot_rows[0], found.shot_rows[1])
    trained = found.trained.participants.people
    known = {tuple(g) for p in people for g in CodeRows.of(trained[p].train).gaze.tolist()}
    assert {tuple(g) for g in found.shots.gaze.flatten(0, 1).tolist()} <= known


def test_more_shots_than_samples_are_refused(runs):
    with pytest.raises(ConfigError, match="5000 shots, but there are"):
        _ = scene(runs, shots=5000).shot_rows


def test_the_constant_is_each_eyes_mean_of_the_shots(runs):
    found = scene(runs, draws=1)
    rows, shots = found.tests["p02"], found.shots
    errors = []
    for side in (0, 1):
        mean = mean_direction(shots.gaze[0][shots.side[0] == side].double())
        true = rows.gaze[rows.side == side].double()
        errors.append(angular_error_deg(mean.expand_as(true), true))
    assert found.constant()["p02"] == pytest.approx(float(torch.cat(errors).mean()), rel=1e-6)


def test_the_supervised_row_does_not_depend_on_what_was_trained(runs):
    """It begins with the initial network, not with the run's."""
    found = scene(runs, draws=1)
    other = FewShotScene(
        find_held_out(runs["cross"] / "fedper").run("p02"), found.people, found.options
    )
    assert found.supervised() == other.supervised()


def test_the_left_out_persons_labels_change_no_estimator(runs):
    """Fault 4: with other labels of the test person the same gaze is predicted.

    A turn of all true directions by a half circle (yaw + pi, pitch negated) makes every error its
    complement to 180 degrees, if and only if the predictions stay.
    """
    found = scene(runs)
    params = found.trained.model("p02", known=False)
    before = {(c, r): errors for c, r, errors in found.encoder(params)}
    rows = found.tests["p02"]
    turned = CodeRows(
        rows.image,
        rows.pose,
        rows.gaze * torch.tensor([-1.0, 1.0]) + torch.tensor([0.0, torch.pi]),
        rows.side,
    )
    vars(found)["tests"] = {**found.tests, "p02": turned}
    for code, reader, errors in found.encoder(params):
        assert errors["p02"] == pytest.approx(180 - before[code, reader]["p02"], abs=1e-3)


def test_parts_trained_for_nobody_are_refused(runs, tmp_path):
    with pytest.raises(ConfigError, match="'fedper' shares no whole model"):
        unlabelled([runs["cross"] / "fedper"], tmp_path / "few.csv", FEW, quiet())


def test_rows_of_single_eyes_keep_their_side():
    columns = {
        "eyes": torch.zeros(3, 1, 1, 2, 3, dtype=torch.uint8),
        "whose": torch.tensor([8, 9, 8]),
        "gaze": torch.zeros(3, 1, 2),
        "pose": torch.zeros(3, 1, 2),
    }
    assert CodeRows.of(Samples(columns)).side.tolist() == [0, 1, 0]


class Written(torch.nn.Module):
    """Codes that can be read off the picture: eye code pixel 0, gaze code pixel 1."""

    def encode(self, eyes):
        return eyes[:, :, 0, 0, :2]

    def decode(self, codes):
        return codes[:, :, None, None, :]


def test_swapped_rows_on_codes_that_are_pixels():
    """Three glances; pixels (eye, gaze) of left and right eyes. Column 0 borrows from column 2."""
    left = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    right = left + 0.3
    rows = swapped_images(Written(), torch.stack([left, right], 1)[:, :, None, None], gaze=1)
    first = {name: images[0, 0].tolist() for name, images in rows.items()}
    assert first[GIVEN] == pytest.approx([0.1, 0.2])
    assert first[DRAWN] == pytest.approx([0.1, 0.2])
    assert first[OTHER] == pytest.approx([0.5, 0.6])
    assert first[EYE] == pytest.approx([0.5, 0.2])
    assert first[GAZE] == pytest.approx([0.1, 0.6])
    assert first[TWIN_GAZE] == pytest.approx([0.1, 0.5])


def test_the_picture_is_of_a_stranger(runs, tmp_path):
    rows = swaps(runs["cross"] / "fedavg", tmp_path / "swaps.png", columns=4, person="p03")
    assert (tmp_path / "swaps.png").stat().st_size > 5000
    assert {images.shape for images in rows.values()} == {(4, 9, 15)}
    with pytest.raises(ConfigError, match="only a cross_encoder has codes to swap"):
        swaps(runs["byol"] / "fedavg", tmp_path / "byol.png")
    with pytest.raises(ConfigError, match="'p00' was not left out"):
        swaps(runs["cross"] / "fedavg", tmp_path / "x.png", person="p00")
