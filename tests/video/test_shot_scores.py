"""Scores that a run learned: whose model gives them, on which features, and what they decide."""

import numpy as np
import pytest
import torch

from tests.cli.commands import TOY, vergence
from vergence.data.gaze_video.aria import SAMPLE
from vergence.data.io.video import Video
from vergence.data.video_summaries.tvsum import KEYFRAME_FEATURES, KEYFRAMES
from vergence.errors import ConfigError
from vergence.experiment.trained_run import read_run
from vergence.methods.clustered.base import model_of_group
from vergence.models import pretrained
from vergence.video.shot_scores import load_scorer
from vergence.video.summarise import choose_shots

FEATURES = 6
EXPERIMENT = """
task       = { name = "summary" }
model      = { name = "mixture_transformer", features = 6, width = 4, blocks = 1 }
federation = { name = "tvsum", root = "ROOT", keyframes = true, people = 2 }
methods    = ["fedavg", "local_only", "ifca", { name = "cfedvs", clusters = 2 }]
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 1, evaluate_every = 0, workers = 1 }
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Ten videos of twelve key frames, rated by three people."""
    folder, rng = tmp_path_factory.mktemp("scores"), np.random.default_rng(0)
    np.savez(
        folder / KEYFRAMES,
        features=rng.normal(size=(120, FEATURES)).astype(np.float16),
        video=np.repeat([f"v{i}" for i in range(10)], 12),
        frame=np.arange(120),
        user_anno=rng.integers(1, 6, (120, 3)),
    )
    experiment = folder / "a.toml"
    experiment.write_text(EXPERIMENT.replace("ROOT", str(folder)))
    done = vergence("run", experiment, "--out", folder / "runs")
    assert done.code == 0, done.err
    return folder / "runs"


def test_features_of_key_frames_are_those_of_videos():
    assert KEYFRAME_FEATURES == pretrained.VECTOR


@pytest.mark.slow
def test_scores_are_the_models_importance(runs):
    """A newcomer of groups has the largest group's model, a participant its own."""
    x = np.random.default_rng(1).normal(size=(5, FEATURES)).astype(np.float32)

    def by_hand(task, params):
        module = task.module()
        torch.nn.utils.vector_to_parameters(params.flat, module.parameters())
        return module(torch.from_numpy(x)[None], torch.tensor([5]))[0].sigmoid().tolist()

    plain = read_run(runs / "fedavg")
    expected = by_hand(plain.task, plain.server.model)
    assert load_scorer(runs / "fedavg")(x).tolist() == pytest.approx(expected, rel=1e-5)
    saved = read_run(runs / "cfedvs")
    assert sorted(saved.server.groups.values()) == [0, 1]
    for person, group in saved.server.groups.items():
        expected = by_hand(saved.task, model_of_group(saved.server.models, group))
        found = load_scorer(runs / "cfedvs", person)(x)
        assert found.tolist() == pytest.approx(expected, rel=1e-5)
    own = load_scorer(runs / "local_only", "p01")(x)
    assert not np.allclose(own, load_scorer(runs / "local_only", "p00")(x))


@pytest.mark.slow
def test_what_has_no_scores_is_refused(runs, tmp_path, monkeypatch):
    for method, person, says in (
        ("local_only", None, "no model for a newcomer; choose --person"),
        ("fedavg", "p2", "no person 'p2'"),
        ("ifca", "p00", "rated videos of their own"),
    ):
        with pytest.raises(ConfigError, match=says):
            load_scorer(runs / method, person)
    (tmp_path / "toy.toml").write_text(TOY.replace("METHODS", 'method = "fedavg"'))
    assert vergence("run", tmp_path / "toy.toml", "--out", tmp_path / "toy").code == 0
    with pytest.raises(ConfigError, match="name a run of task 'summary'"):
        load_scorer(tmp_path / "toy")
    monkeypatch.setattr(pretrained, "VECTOR", "others")
    with pytest.raises(ConfigError, match="features 'efficientnet-lite0 head, 128 px', videos are"):
        load_scorer(runs / "fedavg")
    told = vergence("video", "summarise", "a.mp4", tmp_path / "b.mp4", "--person", "p00")
    told.complains(2, "give --model")


@pytest.mark.slow
def test_the_best_scored_shots_are_kept():
    """Eight frames, room for four; a shot is worth the mean of its frames."""
    clip = Video.open(SAMPLE / "aea" / "rgb_upright.mp4")
    for scores, kept in ((np.arange(8.0), [4, 5, 6, 7]), (-np.arange(8.0) + 7, [0, 1, 2, 3])):
        found = choose_shots(clip, 0.5, lambda x, scores=scores: scores[: len(x)] / 8)
        assert found.frames == kept
    assert found.scores.max() == pytest.approx(7 / 8)
