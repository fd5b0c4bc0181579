"""`vergence adapt` on gaze maps: a person's own prior is inside what the adapted run predicts."""

import numpy as np
import pytest
import torch

import vergence as vg
from tests.cli.commands import run
from vergence.adaptation import choice
from vergence.adaptation.adapted_run import adapt
from vergence.adaptation.choice import (
    candidates,
    choose,
    errors_by_sample,
    fold_numbers,
    held_out_errors,
)
from vergence.adaptation.fine_tuning import SHARED, Adapter, prior_name
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.randomness import RandomStream
from vergence.data.own_samples import pack_samples
from vergence.experiment.trained_run import read_run
from vergence.models.glc import glc_vit
from vergence.video.predict_maps import heat_maps

CLIPS = """
task       = { name = "gaze_map" }
model      = { name = "glc_vit", preset = "tiny64" }
federation = { name = "ego_synthetic", people = 2, clips = 10, windows = 1 }
method     = "fedavg"
local      = { optimizer = "sgd", batch = 4, lr = 0.01 }
run        = { rounds = 1, workers = 1, evaluate_every = 0 }
"""


@pytest.fixture
def corner(tmp_path, monkeypatch):
    """A run, and six clips of somebody who always looks into a corner."""
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glc_vit, "BLOCKS", 1)
    monkeypatch.setattr(choice, "SIMPLEST_FIRST", (prior_name(0.5), prior_name(1.0)))
    trained = read_run(run(tmp_path, CLIPS)).without_tuned_prior()
    clips = trained.loaded.raw.people[trained.ready.clients[0]].train.subset(torch.arange(6))
    points = torch.full_like(clips.columns["points"], 0.12)
    return trained, Samples({**clips.columns, "points": points}, clips.banks)


def test_a_person_who_looks_into_a_corner_gets_a_prior_that_predictions_hold(corner, tmp_path):
    trained, clips = corner
    (tmp_path / "mine.npz").write_bytes(pack_samples(clips))
    made = adapt(trained.folder, tmp_path / "mine.npz", tmp_path / "me")
    assert made.choice.way.startswith("own prior, exponent ")
    assert made.choice.errors[made.choice.way] > made.choice.errors[SHARED], "NSS: more is better"
    me = read_run(made.folder)
    assert me.owner == "me"
    assert read_run(trained.folder).owner is None
    shared, mine = heat_maps(trained, clips, None), heat_maps(me, clips, me.owner)
    rows, columns = (size // 4 for size in mine.shape[1:])
    assert mine[:, :rows, :columns].sum() > 2 * shared[:, :rows, :columns].sum()
    outputs = vg.open_run(made.folder).predict(None, clips)
    assert torch.equal(outputs, vg.open_run(made.folder).predict("me", clips))
    heat = outputs.double().flatten(2).softmax(-1).view(mine.shape).numpy()
    np.testing.assert_allclose(heat, mine, atol=1e-6)


def test_what_is_chosen_is_what_the_adapted_run_gives(corner, tmp_path):
    """Outputs of the model that was fitted, and of the run directory: the same to float32."""
    trained, clips = corner
    ready = trained.task.prepare(Federation("adapt", {"me": Splits(clips, clips, clips)}))
    stream = RandomStream("adapt", 0)
    adapter = Adapter(trained.on_data(ready, stream=stream), "me")
    every = torch.arange(6)
    way = choose(adapter, candidates(adapter), every, stream).way
    assert way != SHARED
    (tmp_path / "mine.npz").write_bytes(pack_samples(clips))
    made = adapt(trained.folder, tmp_path / "mine.npz", tmp_path / "me")
    assert made.choice.way == way
    wanted = adapter.outputs(adapter.fit(way, every, stream), clips)
    assert torch.allclose(vg.open_run(made.folder).predict(None, clips), wanted, atol=1e-5)


def test_a_sample_is_scored_by_a_prior_that_never_saw_it(corner):
    """The last clip's gaze is elsewhere: a prior of all clips knows it, one of the others not."""
    trained, clips = corner
    points = clips.columns["points"].clone()
    points[5] = 0.9
    clips = Samples({**clips.columns, "points": points}, clips.banks)
    ready = trained.task.prepare(Federation("adapt", {"me": Splits(clips, clips, clips)}))
    stream = RandomStream("adapt", 0)
    adapter, every = Adapter(trained.on_data(ready, stream=stream), "me"), torch.arange(6)
    prior = held_out_errors(adapter, prior_name(1.0), every, fold_numbers(6), stream)
    known = adapter.outputs_at(adapter.fit(prior_name(1.0), every, stream), every)
    assert prior[5] < errors_by_sample(trained.task, known, clips)[5] - 0.5
    shared = held_out_errors(adapter, SHARED, every, fold_numbers(6), stream)
    assert (prior[:5] > shared[:5]).all()
