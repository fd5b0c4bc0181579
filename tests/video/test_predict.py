"""`vergence predict`: whose model draws the maps."""

import numpy as np
import pytest

from tests.cli.commands import run
from vergence.errors import ConfigError
from vergence.experiment.trained_run import read_run
from vergence.models.glc import glc_vit
from vergence.video.predict_maps import heat_maps, samples, stream_maps

CLIPS = """
task       = { name = "gaze_map", personal_prior = 0.0 }
model      = { name = "glc_vit", preset = "tiny64" }
federation = { name = "ego_synthetic", people = 2, clips = 10, windows = 1 }
method     = { name = "reptile", episodes = 1, inner_steps = 1, steps = 1 }
local      = { optimizer = "sgd", batch = 4, lr = 0.05 }
run        = { rounds = 1, workers = 1, evaluate_every = 0 }
"""


def test_a_person_s_maps_are_of_the_model_that_their_training_data_gave(tmp_path, monkeypatch):
    """The video holds no labels: a model that was adapted to it would be made of nothing."""
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glc_vit, "BLOCKS", 1)
    trained = read_run(run(tmp_path, CLIPS))
    one, other = trained.ready.clients[:2]
    video = trained.loaded.raw.people[one].test
    video.columns["points"].fill_(float("nan"))

    def maps(params):
        logits = trained.outputs(params, video)
        heat = (logits.double() / trained.task.temperature).flatten(2).softmax(-1)
        return heat.view(-1, *logits.shape[2:]).numpy()

    own, common = maps(trained.model(one)), maps(trained.server.model)
    assert np.array_equal(heat_maps(trained, video, one), own)
    assert np.array_equal(heat_maps(trained, video, other), maps(trained.model(other)))
    assert np.array_equal(heat_maps(trained, video, None), common)
    assert not np.array_equal(own, common)


def test_a_newcomer_s_cluster_is_not_chosen_by_a_video_without_labels(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glc_vit, "BLOCKS", 1)
    method = 'method     = { name = "ifca", clusters = 2 }'
    text = "\n".join(method if row.startswith("method") else row for row in CLIPS.splitlines())
    trained = read_run(run(tmp_path, text))
    video = trained.loaded.raw.people[trained.ready.clients[0]].test
    video.columns["points"].fill_(float("nan"))
    with pytest.raises(ConfigError, match="'ifca' chooses a newcomer's model by labelled samples"):
        heat_maps(trained, video, None)
    assert (
        heat_maps(trained, video, trained.ready.clients[0]).shape[0]
        == video.columns["points"].shape[0] * video.columns["points"].shape[1]
    )


@pytest.mark.parametrize(
    "options",
    ["", "motion = true, ", 'reference = "motion", '],
    ids=["still", "motion", "reference"],
)
def test_a_causal_model_streams_through_the_whole_video(tmp_path, monkeypatch, options):
    """Frame by frame it gives what the video as one sample gives, and never looks ahead.

    Features of samples are rounded to half precision; those of a stream are not.
    """
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    text = CLIPS.replace(
        '"glc_vit", preset = "tiny64"',
        f'"glc_causal", {options}grid = [4, 4], width = 8, heads = 2',
    ).replace("windows = 1", "windows = 1, size = 32")
    text = text.replace(
        '{ name = "reptile", episodes = 1, inner_steps = 1, steps = 1 }', '"fedper"'
    )
    with_prior = '"gaze_map", temperature = 2.0, personal_prior = 0.5 }'
    text = text.replace('"gaze_map", personal_prior = 0.0 }', with_prior)
    trained = read_run(run(tmp_path, text))
    one, other = trained.clients
    frames = trained.loaded.raw.people[one].test.banks["frames"].rows[:7].numpy()
    found = stream_maps(trained, iter(frames), one)
    whole = heat_maps(trained, samples(frames, len(frames)), one)
    assert np.abs(found - whole).max() < 0.01 * whole.max()
    assert np.array_equal(stream_maps(trained, iter(frames[:4]), one), found[:4])
    assert np.abs(found - stream_maps(trained, iter(frames), other)).max() > 1e-4
    np.testing.assert_allclose(found.sum((1, 2)), np.ones(7), rtol=1e-5)
