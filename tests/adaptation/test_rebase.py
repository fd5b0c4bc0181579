"""`vergence adapt --rebase`: another common model for a wearer, never worse on the kept samples."""

import json
import shutil

import numpy as np
import onnx
import pytest
import torch

from tests.cli.commands import run, vergence
from tests.refusals import refuses
from vergence.adaptation import rebase as rebasing
from vergence.adaptation.adapted_run import adapt
from vergence.adaptation.choice import block_numbers, is_better
from vergence.adaptation.rebase import CROSS_VALIDATED, VIDEO_BLOCKS, next_folder, rebase
from vergence.core.data import Samples
from vergence.data.own_samples import FILE, pack_samples
from vergence.data.synthetic.eyes.eye_synthetic import EyeSynthetic
from vergence.errors import ConfigError
from vergence.experiment import checksums
from vergence.experiment.trained_run import read_run
from vergence.results.read import read

EYES = """
task       = { name = "gaze_angle" }
model      = { name = "small_eye", channels = [4, 4], hidden = 8 }
federation = { name = "eye_synthetic", people = 3, samples = 60, days = [3, 3], size = "9x15" }
method     = "fedavg"
local      = { optimizer = "adamw", epochs = 1, batch = 16, lr = 3e-3 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Two versions of a common model: after one round, and after twelve."""
    folder = tmp_path_factory.mktemp("versions")
    more = EYES.replace("rounds = 1,", "rounds = 12,")
    return [run(folder, EYES, out="v1"), run(folder, more, out="v2")]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Samples of a fourth person, whose gaze is turned by 0.2 radians in pitch."""
    parts = EyeSynthetic(people=4, samples=60, days=(3, 3), size="9x15").load().people["p03"]
    every = Samples.concatenate([parts.train, parts.val, parts.test])
    gaze = every.columns["gaze"] + torch.tensor([0.2, 0.0])
    path = tmp_path_factory.mktemp("mine") / "mine.npz"
    path.write_bytes(pack_samples(Samples({**every.columns, "gaze": gaze})))
    return path


@pytest.fixture(scope="module")
def me(versions, file, tmp_path_factory):
    """Adapted to the first version; its errors are raised, as of a model that was far worse.

    Twenty samples of generated eyes never show a gain of two standard errors between real versions.
    """
    out = tmp_path_factory.mktemp("adapted") / "me"
    adapt(versions[0], file, out, samples=20)
    checksums.unseal(out)
    record = json.loads((out / "provenance.json").read_text())
    adapted = record["adapted"]
    adapted["held_out"] = [error + 5.0 for error in adapted["held_out"]]
    adapted["errors"][adapted["way"]] += 5.0
    (out / "provenance.json").write_text(json.dumps(record))
    checksums.seal(out)
    return out


def record_of(folder):
    return json.loads((folder / "provenance.json").read_text())["adapted"]


def test_a_better_common_model_takes_the_person_s_samples(versions, me, tmp_path):
    made = rebase(me, versions[1], tmp_path / "me-2")
    assert made.adapted is not None
    assert set(made.scores) == {CROSS_VALIDATED, "on the other 40 samples"}
    assert all(after <= before for before, after in made.scores.values())
    # The same samples, with the same ones learned from, as in a fresh adaptation.
    folder = made.adapted.folder
    assert (folder / FILE).read_bytes() == (me / FILE).read_bytes()
    old, new = record_of(me), record_of(folder)
    assert (old["version"], new["version"]) == (1, 2)
    assert new["fingerprint"] == read_run(versions[1]).fingerprint
    assert new["before"]["fingerprint"] == old["fingerprint"] == read_run(versions[0]).fingerprint
    assert new["before"]["model"] == read_run(me).fingerprint
    assert new["samples"] == 20
    # What was promised is what the written run scores.
    (scored,) = read(folder).runs[0].scores("angle_error_deg").values()
    assert scored == pytest.approx(made.scores["on the other 40 samples"][1], abs=1e-4)


def test_a_worse_common_model_is_not_taken(versions, me, tmp_path):
    better = rebase(me, versions[1], tmp_path / "me-2").adapted
    assert better is not None
    made = rebase(better.folder, versions[0], tmp_path / "me-3")
    assert made.adapted is None
    assert any(after > before for before, after in made.scores.values())
    assert not (tmp_path / "me-3").exists()


def test_all_samples_learned_from_are_judged_by_cross_validation_alone(versions, file, tmp_path):
    adapt(versions[0], file, tmp_path / "all")
    assert set(rebase(tmp_path / "all", versions[1]).scores) == {CROSS_VALIDATED}


def test_without_cross_validated_errors_on_the_same_samples_nothing_is_taken(
    versions, me, file, tmp_path
):
    """A mean that is not worse may be chance."""
    adapt(versions[0], file, tmp_path / "one", samples=1)
    # The earlier record has no errors of single samples, or those of others; its mean is worse.
    for name, errors in (("old", None), ("other", [90.0] * 19)):
        folder = tmp_path / name
        shutil.copytree(me, folder)
        checksums.unseal(folder)
        record = json.loads((folder / "provenance.json").read_text())
        record["adapted"]["held_out"] = errors
        if errors is None:
            del record["adapted"]["held_out"]
        (folder / "provenance.json").write_text(json.dumps(record))
        checksums.seal(folder)
    for name in ("one", "old", "other"):
        made = rebase(tmp_path / name, versions[1])
        if name != "one":
            assert all(after <= before for before, after in made.scores.values())
        assert (made.comparable, made.adapted) == (False, None)
        assert not (tmp_path / f"{name}-2").exists()
    assert set(rebase(tmp_path / "one", versions[1]).scores) == {"on the other 59 samples"}
    said = vergence("adapt", tmp_path / "one", "--rebase", versions[1])
    assert said.code == 0, said.err
    assert "from two or more samples: vergence adapt" in said.out


def test_the_command_says_both_scores_and_what_is_next(versions, me, tmp_path):
    folder = tmp_path / "me"
    shutil.copytree(me, folder)
    said = vergence("adapt", folder, "--rebase", versions[1])
    assert said.code == 0, said.err
    assert "before" in said.out
    assert f"next: vergence export {tmp_path / 'me-2'}" in said.out
    said = vergence("export", tmp_path / "me-2", "--out", tmp_path / "me.onnx")
    assert said.code == 0, said.err
    about = {p.key: p.value for p in onnx.load(tmp_path / "me.onnx").metadata_props}
    assert about["common_version"] == "2"
    assert about["common_fingerprint"] == read_run(versions[1]).fingerprint
    back = vergence("adapt", tmp_path / "me-2", "--rebase", versions[0])
    assert back.code == 0
    assert "stays as it is" in back.out
    assert not (tmp_path / "me-3").exists()


def test_what_is_no_earlier_adaptation_is_refused(versions, me, tmp_path):
    with refuses("setting", "no run of `vergence adapt`", kind=ConfigError):
        rebase(versions[0], versions[1], tmp_path / "x")
    with refuses("setting", "already", kind=ConfigError):
        rebase(me, versions[0], tmp_path / "x")
    with refuses("setting", "one person's", kind=ConfigError):
        rebase(me, me, tmp_path / "x")
    for options, noun in (((), "none"), (("--rebase", "v", "--data", "d"), "--data and --rebase")):
        said = vergence("adapt", me, *options)
        assert said.code == 2
        assert noun in said.err
    said = vergence("adapt", me, "--rebase", versions[1], "--samples", "3")
    assert "--samples" in said.err


def test_deleted_samples_are_named_with_what_to_do(versions, me, tmp_path):
    copy = shutil.copytree(me, tmp_path / "copy")
    (copy / FILE).unlink()
    said = vergence("adapt", copy, "--rebase", versions[1], "--out", tmp_path / "x")
    said.complains(2, FILE, "is gone", "another network's features", "--data")
    assert not (tmp_path / "x").exists()


def test_a_model_that_answers_nan_changes_nothing(versions, me, tmp_path, monkeypatch):
    monkeypatch.setattr(rebasing, "_scores", lambda *_: {CROSS_VALIDATED: (1.0, float("nan"))})
    assert rebase(me, versions[1], tmp_path / "x").adapted is None
    assert not (tmp_path / "x").exists()


def test_a_gain_by_chance_changes_nothing(versions, me, tmp_path, monkeypatch):
    """A mean that fell by less than two standard errors is no reason for another model."""
    monkeypatch.setattr(rebasing, "is_better", lambda *_: False)
    made = rebase(me, versions[1], tmp_path / "x")
    assert made.adapted is None
    assert all(after <= before for before, after in made.scores.values())


def test_a_mean_must_fall_by_more_than_two_standard_errors():
    """Differences 4, 4, 4, 8: mean 5, error 1; Student's quantile at 3 degrees is 3.307.

    Differences 2, 2, 2, 6: mean 3, error 1: not more than 3.307.
    """
    assert is_better([0, 0, 0, 0], [4, 4, 4, 8])
    assert not is_better([0, 0, 0, 0], [2, 2, 2, 6])
    assert not is_better([4, 4, 4, 8], [0, 0, 0, 0])
    assert not is_better([0, 0], [float("nan"), 1])
    assert not is_better([1, 1], [1, 1])


def test_blocks_count_by_their_size_and_no_more_than_once():
    """Differences 4, 4, 4, 8 in blocks of two: means 4 and 6, error 1, quantile 13.97."""
    assert is_better([0] * 4, [4, 4, 4, 8])
    assert not is_better([0] * 4, [4, 4, 4, 8], np.array([0, 0, 1, 1]))
    # Blocks of one and of three samples: the mean is over samples, so the large loss decides.
    assert not is_better([0] * 4, [9, -4, -4, -4], np.array([0, 1, 1, 1]))


def test_equal_models_of_a_video_are_rarely_judged_better():
    """Losses of neighbours are alike: 200 frames know far less than 200 independent samples."""
    stream, count, draws = np.random.default_rng(0), 200, 2000
    change = [stream.standard_normal(draws) / (1 - 0.95**2) ** 0.5]
    for _ in range(count - 1):
        change.append(0.95 * change[-1] + stream.standard_normal(draws))
    block = block_numbers(count, True, VIDEO_BLOCKS)
    alarms = [is_better([0.0] * count, each, block) for each in np.stack(change, 1).tolist()]
    assert np.mean(alarms) <= 0.08


def test_blocks_of_a_video_reach_the_comparison(versions, me, tmp_path, monkeypatch):
    blocks = []
    monkeypatch.setattr(rebasing, "is_better", lambda *given: bool(blocks.append(given[2])))
    rebase(me, versions[1], tmp_path / "x")
    monkeypatch.setattr(rebasing, "of_video", lambda _: True)
    rebase(me, versions[1], tmp_path / "x")
    assert blocks[0].tolist() == list(range(20))
    assert sorted(set(blocks[1].tolist())) == list(range(6))


def test_folders_are_numbered_by_the_version_and_not_by_the_name(tmp_path):
    """A number that is not the version may be another person's, or a date."""
    names = [
        ("me", 1, "me-2"),
        ("me-2", 2, "me-3"),
        ("anna-left", 1, "anna-left-2"),
        ("wearer-12", 1, "wearer-12-2"),
        ("wearer-12-2", 2, "wearer-12-3"),
        ("wearer-12", 2, "wearer-12-2"),
        ("wearer-1", 1, "wearer-1-2"),
        ("2026-11-30", 1, "2026-11-30-2"),
    ]
    for name, version, after in names:
        assert next_folder(tmp_path / name, version) == tmp_path / after


def test_the_default_folder_of_a_numbered_person_is_their_own(versions, me, tmp_path):
    shutil.copytree(me, tmp_path / "wearer-12")
    made = rebase(tmp_path / "wearer-12", versions[1])
    assert made.adapted is not None
    assert made.adapted.folder == tmp_path / "wearer-12-2"
