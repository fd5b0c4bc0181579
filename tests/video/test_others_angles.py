"""Eye images of others with degrees for radians, and with pixels of 0 and 1."""

import numpy as np
import pytest

import vergence as vg
from tests.cli.commands import vergence
from vergence.models.small_eye import SmallEye

DATA = vg.data.EyeSynthetic(people=3, samples=60, days=(3, 3), size="9x15")
TASK = vg.tasks.GazeAngle(SmallEye(channels=(2, 2), hidden=4))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("angles") / "run"
    options = {"rounds": 1, "out": folder, "workers": 1, "progress": False}
    return vg.train(vg.methods.FedAvg(), TASK, DATA, **options)


def images(**changes):
    own = {name: values.numpy() for name, values in DATA.load().people["p02"].test.columns.items()}
    return own | {name: change(own[name]) for name, change in changes.items()}


def degrees(angles):
    return np.degrees(angles) + 20


@pytest.mark.parametrize("column", ["pose", "gaze"])
def test_predictions_refuse_degrees(run, tmp_path, column):
    """Without the check, errors are of true angles that are 57 times too large."""
    own = images(**{column: degrees})
    with pytest.raises(vg.DataError, match=rf"{column} reaches .* radians"):
        run.predict("p00", own)
    np.savez(tmp_path / "own.npz", **own)
    said = vergence("predict", run.folder, tmp_path / "own.npz", "--out", tmp_path / "a.csv")
    said.complains(3, "own.npz", f"{column} reaches", "radians")


def test_images_of_zeros_and_ones_are_refused(run):
    own = images(image=lambda image: (image / 255).astype(np.uint8))
    with pytest.raises(vg.DataError, match="images are 0 and 1"):
        run.predict("p00", own)
    people = vg.Federation.from_arrays({"anna": images(), "ben": own})
    with pytest.raises(vg.DataError, match="ben: images are 0 and 1"):
        vg.train(vg.methods.FedAvg(), TASK, people, rounds=1)
