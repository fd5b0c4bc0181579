"""Numbers of the small generated data sets, as they were stored, and the sums that tell them."""

import numpy as np
import pytest
import torch

from tests.data.synthetic import stored_sums
from tests.data.synthetic.stored_sums import assert_stored, sums
from vergence.data.synthetic import clip_synthetic
from vergence.data.synthetic.clip_synthetic import COMMUNITIES, ClipSynthetic
from vergence.data.synthetic.crowd import Crowd
from vergence.data.synthetic.toy import Toy
from vergence.data.synthetic.zsl_synthetic import NAMES, UNSEEN, ZslSynthetic


def parts(splits):
    return [part.columns for part in (splits.train, splits.val, splits.test)]


@pytest.mark.parametrize("communities", COMMUNITIES)
def test_generated_clips_stay(communities):
    data = ClipSynthetic(
        people=3, classes=2, clips=5, features=3, communities=communities, strength=0.5
    )
    people = [data._person(number) for number in range(3)]
    assert [len(people[0][part]) for part in ("train", "val", "test")] == [3, 1, 1]
    assert_stored(f"clips, {communities}", people, 1e-6)


def test_where_importance_is_around_a_frame_it_alone_says_nothing():
    """A line of a frame's features and their squares explains little."""
    data = ClipSynthetic(people=1, clips=200, importance="cut")
    clips = [clip for part in data._person(0).values() for clip in part]
    features = np.concatenate([clip.features for clip in clips])
    targets = np.concatenate([clip.target for clip in clips])
    level = np.concatenate([np.ones((len(features), 1)), features, features**2], 1)
    fitted = level @ np.linalg.lstsq(level, targets, rcond=None)[0]
    assert abs(np.corrcoef(fitted, targets)[0, 1]) < 0.1


def test_the_step_from_the_frame_before_says_how_recent_a_scene_is():
    """Scenes have 8 to 24 frames, of which the first is the most important."""
    data = ClipSynthetic(people=1, clips=40, importance="cut")
    clips = [clip for part in data._person(0).values() for clip in part]
    steps = [np.linalg.norm(np.diff(clip.features, axis=0), axis=1) for clip in clips]
    after = np.concatenate([clip.target[1:] for clip in clips])
    assert np.corrcoef(np.concatenate(steps), after)[0, 1] > 0.4
    ages = clip_synthetic.scene_ages(np.random.default_rng(0), 1000)
    assert ages[0] == 0
    assert ages.max() == 23
    starts = np.flatnonzero(ages == 0)
    assert np.diff(starts).min() >= 8
    assert np.array_equal(np.diff(ages) == 1, ages[1:] > 0)


def test_clips_of_many_people_have_names_of_one_length(monkeypatch):
    monkeypatch.setattr(ClipSynthetic, "_person", lambda *_: {})
    monkeypatch.setattr(clip_synthetic, "samples_of", lambda made: made)
    monkeypatch.setattr(clip_synthetic, "Federation", lambda _, people, __: list(people))
    assert ClipSynthetic(people=2).load() == ["p00", "p01"]
    for people, last in ((100, "p99"), (101, "p100")):
        made = ClipSynthetic(people=people).load()
        assert made[-1] == last
        assert {len(name) for name in made} == {len(last)}


def test_toy_data_stay():
    """Person i has 5 (1 + i % 3) samples: 5, 10, 15 and 5 again; proxies are of one more person."""
    made = Toy(people=4, samples=5, inputs=3, strength=0.7, seed=2).load()
    sizes = [[len(p) for p in (s.train, s.val, s.test)] for s in made.people.values()]
    assert sizes == [[3, 1, 1], [6, 2, 2], [9, 3, 3], [3, 1, 1]]
    assert (len(made.proxies.train), len(made.proxies.val)) == (60, 20)
    held = [made.proxies.train.columns, made.proxies.val.columns]
    assert_stored("toy", [*map(parts, made.people.values()), held], 1e-5)


def test_a_crowd_stays():
    people = Crowd(people=3, samples=10, inputs=2, strength=0.5, seed=1).load().people
    assert_stored("crowd", [parts(people[name]) for name in people], 1e-5)


def test_generated_features_stay():
    data = ZslSynthetic(features=5, images=10, noise=0.8, seed=2)
    made, means = data.made()
    (owner,) = made.people.values()
    assert_stored("zero shot", [parts(owner), means], 1e-5)
    assert_stored("means of features", data._means(np.eye(3), 4), 1e-6)


def test_classes_of_words_meet_once():
    """Two words of different kinds are together in one name; each word is in one unseen name."""
    assert len(set(NAMES)) == 16
    words = [tuple(name.split()) for name in NAMES]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert len({(name[a], name[b]) for name in words}) == 16
    unseen = [word for name in UNSEEN for word in name.split()]
    assert len(unseen) == len(set(unseen)) == 12


def test_sums_notice_a_number_its_place_and_what_is_missing():
    value = {"a": np.arange(5.0), "b": [torch.tensor([1.5]), None]}
    before = sums(value)
    assert before[:2] == [7, 7]
    near = np.array([0, 1, 2, 3, 4.001])
    assert sums({"a": near, "b": value["b"]})[2] != pytest.approx(before[2], rel=1e-6)
    assert sums({"a": np.arange(5.0)[::-1], "b": value["b"]})[2] != pytest.approx(before[2])
    assert sums({"a": np.array([0, 1, 2, np.nan, 4]), "b": value["b"]})[:2] == [7, 11]


def test_a_stored_sum_refuses_other_values(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_sums, "STORED", tmp_path / "sums.json")
    monkeypatch.setenv("VERGENCE_GOLDEN", "write")
    assert_stored("here", [1.0, 2.0])
    monkeypatch.delenv("VERGENCE_GOLDEN")
    assert_stored("here", [1.0, 2.0 + 1e-9])
    with pytest.raises(AssertionError, match="here: other values"):
        assert_stored("here", [1.0, 2.1])
    with pytest.raises(AssertionError, match="here: another number of values"):
        assert_stored("here", [1.0, 2.0, 0.0])
