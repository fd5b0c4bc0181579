"""EyeCrowd: pictures named 001 to 500, the centre start, bad files, a run, and the real folder."""

import numpy as np
import pytest
import torch

import vergence
from tests.cli.commands import vergence as command
from tests.cli.commands import write
from tests.conftest import research_data
from tests.data.saliency.small_pictures import (
    entry,
    fixations,
    gone,
    shorten,
    without,
    write_fixations,
    write_pictures,
)
from vergence.data.saliency.eyecrowd import Eyecrowd
from vergence.data.saliency.osie import _points, read_fixations
from vergence.errors import DataError
from vergence.metrics.gaze_maps import fixation_counts, smoothed
from vergence.metrics.saliency import nss

NUMBERS = range(1, 21)
SMALL = Eyecrowd(size=(32, 24))
FILE = "fixations.npz"


@pytest.fixture
def root(tmp_path):
    write_fixations(tmp_path / FILE, fixations(NUMBERS, 3))
    write_pictures(tmp_path / "stimuli", [f"{i:03}.jpg" for i in NUMBERS])
    return tmp_path


def test_a_picture_has_the_fixations_of_its_number_without_the_first(root):
    """Picture 009 is row 8 of the bank; a sample holds the viewer's orders 1 to 3."""
    federation = SMALL.load(str(root))
    assert federation.name == "eyecrowd"
    assert federation.clients == ("v00", "v01", "v02")
    columns = fixations(NUMBERS, 3)
    own = (columns["image"] == 9) & (columns["viewer"] == 1) & (columns["order"] > 0)
    person = federation.people["v01"]
    parts = (person.train, person.val, person.test)
    assert [len(part) for part in parts] == [14, 2, 4]
    (part,) = (part for part in parts if (part.columns["scene"] == 8).any())
    (row,) = (part.columns["scene"] == 8).nonzero()
    expected = np.stack([columns["x"][own], columns["y"][own]], 1)
    np.testing.assert_array_equal(part.columns["points"][row][0, 0], expected)
    assert abs(int(part.take(row)["frames"][0, 0, ..., 0].float().mean()) - 80) <= 2
    assert "viewing" not in part.columns
    assert federation.about["licence"].startswith("MIT")


def test_a_split_is_a_permutation_of_its_500_pictures(root):
    order = 1 + np.random.default_rng(3).permutation(500)
    order = order[np.isin(order, NUMBERS)]
    federation = Eyecrowd(size=(32, 24), split_seed=3).load(str(root))
    for person in federation.people.values():
        assert set((person.test.columns["scene"] + 1).tolist()) == set(order[:4].tolist())


def blind(folder):
    """All fixations of viewer 1 but the first of each trial are gone."""
    columns = fixations(NUMBERS, 3)
    rows = (columns["viewer"] != 1) | (columns["order"] == 0)
    write_fixations(folder / FILE, {name: column[rows] for name, column in columns.items()})


def of_another_set(folder):
    write_fixations(folder / FILE, fixations(range(1001, 1021), 3))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (gone(FILE), "missing file .*fixations.npz"),
        (gone("stimuli/007.jpg"), "missing file .*007.jpg"),
        (shorten(FILE), "cannot read .*fixations.npz"),
        (shorten("stimuli/007.jpg"), "cannot decode .*007.jpg"),
        (without(FILE, "viewer"), "another version, it lacks viewer"),
        (without(FILE, "totals"), "20 images with fixations instead of 500"),
        (entry(FILE, "x", np.nan), "fixation x is NaN or infinite in 1 of 240 rows"),
        (entry(FILE, "y", 1.2), r"fixation y lies outside \[0, 1\].* 1 of 240 rows, .* row 7"),
        (entry(FILE, "x", -0.1), r"fixation x lies outside \[0, 1\]"),
        (entry(FILE, "image", 501), "image numbers must be 1 to 500"),
        (entry(FILE, "image", 0), "image numbers must be 1 to 500"),
        (entry(FILE, "viewer", 12), "viewer numbers must be 0 to 11"),
        (entry(FILE, "viewer", -1), "viewer numbers must be 0 to 11"),
        (entry(FILE, "order", -1), "order numbers must be 0 to"),
        (of_another_set, "image numbers must be 1 to 500"),
        (blind, r"viewer 1 has scored fixations on \[0, 0, 0\].*leave the viewer out"),
    ],
)
def test_bad_files_give_one_clear_line(root, change, says):
    change(root)
    with pytest.raises(DataError, match=says) as caught:
        SMALL.load(str(root))
    assert "\n" not in str(caught.value)


def test_others_load_without_a_viewer_who_has_no_fixations(root):
    blind(root)
    assert Eyecrowd(size=(32, 24), viewers=(2, 0)).load(str(root)).clients == ("v02", "v00")


def test_no_root_is_refused_as_nothing_is_packaged():
    with pytest.raises(DataError, match="'eyecrowd' is not packaged: name its folder as root"):
        SMALL.load()


EXPERIMENT = """
task       = { name = "gaze_map" }
model      = { name = "glc_features", grid = [6, 8], width = 8 }
federation = { name = "eyecrowd", root = "ROOT", size = [64, 48] }
method     = "fedavg"
local      = { optimizer = "sgd", steps = 1, batch = 2 }
run        = { rounds = 1, workers = 1 }
"""


@pytest.mark.slow
def test_commands_and_python_know_the_set(root, tmp_path):
    """`data list`, `data check`, `explain`, `data skew`, `run`, and the same from Python."""
    assert "eyecrowd" in command("data", "list").out
    said = command("data", "check", "eyecrowd", "--root", root)
    assert said.code == 3
    assert "94,390" in said.out
    file = write(tmp_path, EXPERIMENT.replace("ROOT", str(root)))
    assert "fedavg" in command("explain", file).out
    assert command("data", "skew", file).code == 0
    assert command("run", file, "--out", tmp_path / "out").code == 0
    own = vergence.data.EyeCrowd(size=(32, 24)).load(str(root))
    assert list(own.clients) == vergence.open_run(tmp_path / "out").people


@pytest.mark.data
@pytest.mark.slow
def test_the_real_folder_is_complete_and_viewers_agree_on_a_picture():
    """PROVENANCE.md: 94,390 fixations of 12 viewers; NSS of a viewer on the others 2.24 (2.08 to
    2.38) on the same picture and .50 on another, for the 16 viewers of the source. Of the 12 here
    it is 2.21 and .45. Viewer 5 has .76, as this gaze lies too far right by about .14: moved left
    by .10 and scaled by .9 it has 2.4. The others have 2.02 to 2.60."""
    folder = research_data("crowd")
    lines = Eyecrowd().check(folder)
    assert all(line.ok for line in lines)
    assert [line.actual for line in lines[:4]] == ["500", "500", "12", "94,390"]
    table, _ = read_fixations(folder, Eyecrowd.facts)
    rows = {name: column[table["order"] > 0] for name, column in table.items()}
    points = torch.from_numpy(_points(rows, np.arange(1, 501), Eyecrowd.facts))
    counts = fixation_counts(points, 48, 64)

    def agreement(viewer, own, shift):
        seen = (~own.isnan().any(-1)).sum(-1) >= 2
        others = smoothed(counts.sum(0) - counts[viewer], 0.03).roll(shift, 0)
        return float(nss(others[seen], own[seen]).mean())

    same = np.array([agreement(v, points[v], 0) for v in range(12)])
    assert same.mean() == pytest.approx(2.214, abs=0.005)
    assert np.mean([agreement(v, points[v], 1) for v in range(12)]) == pytest.approx(0.45, abs=0.01)
    rest = np.delete(same, 5)
    assert (round(rest.min(), 2), round(rest.max(), 2)) == (2.02, 2.6)
    assert same[5] == pytest.approx(0.763, abs=0.005)
    means = torch.nanmean(points[..., 0], (1, 2))
    assert float(means[5] - means[torch.arange(12) != 5].mean()) == pytest.approx(0.14, abs=0.01)
    moved = points[5] * torch.tensor([0.9, 1.0]) - torch.tensor([0.1, 0.0])
    assert agreement(5, moved.where((moved >= 0).all(-1, keepdim=True), torch.nan), 0) > 2.3
