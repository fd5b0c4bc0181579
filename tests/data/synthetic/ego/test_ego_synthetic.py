import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vergence.data.gaze_video.gaze import Event
from vergence.data.synthetic.ego.ego_synthetic import EgoSynthetic
from vergence.data.synthetic.ego.gaze_behavior import chances
from vergence.data.synthetic.ego.people import PRESETS, person
from vergence.data.synthetic.ego.scene import Lens
from vergence.errors import ConfigError, DataError

SMALL = EgoSynthetic(people=2, clips=10, windows=2, size=32, seed=3)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def wearers():
    """Twelve default wearers, gaze only: person -> clips."""
    data = EgoSynthetic(people=12, clips=12)
    return [[data.simulate(i, n) for n in range(10)] for i in range(12)]


def same(a, b):
    for part in ("train", "val", "test"):
        x, y = getattr(a, part), getattr(b, part)
        for name in x.columns:
            torch.testing.assert_close(
                x.columns[name], y.columns[name], rtol=0, atol=0, equal_nan=True
            )
        assert torch.equal(x.banks["frames"].rows, y.banks["frames"].rows)


@pytest.mark.slow
def test_same_seed_same_bytes_and_person_independent_of_number_of_people(cache, monkeypatch):
    first = SMALL.load()
    monkeypatch.setenv("VERGENCE_CACHE", str(cache / "other"))
    more = replace(SMALL, people=3).load()
    assert first.clients == ("p00", "p01")
    assert more.clients == ("p00", "p01", "p02")
    for name in first.clients:
        same(first.people[name], more.people[name])
    moved = replace(SMALL, people=1, seed=4).load().people["p00"].train.banks["frames"].rows
    assert not torch.equal(moved[:8], first.people["p00"].train.banks["frames"].rows[:8])


def test_columns_follow_the_gaze_map_contract():
    """Clips of 120 frames, two windows of four: each split holds 2 samples per clip."""
    splits = SMALL.load().people["p00"]
    clips = SMALL.clip_count(0)
    total = 0
    for part in (splits.train, splits.val, splits.test):
        n = len(part)
        total += n
        points, rows = part.columns["points"], part.banks["frames"].rows
        assert n >= 4
        assert part.columns["frame_ids"].shape == (n, 4)
        assert part.columns["frame_ids"].dtype == torch.int64
        assert points.shape == (n, 4, 1, 2)
        assert points.dtype == torch.float32
        assert torch.equal(part.columns["scene"], torch.full((n,), -1))
        assert rows.shape == (4 * n, 32, 32, 3)
        assert rows.dtype == torch.uint8
        assert part.columns["frame_ids"].max() == 4 * n - 1
        seen = points[~points.isnan()]
        assert 0.5 < len(seen) / points.numel() < 0.95
        assert 0 <= seen.min() <= seen.max() < 1
    assert total == 2 * clips
    batch = splits.train.take(torch.tensor([0, 1]))
    assert batch["frames"].shape == (2, 4, 32, 32, 3)


def test_windows_interleave_over_the_clip_or_span_64_frames():
    """windows=2, window=4 over 120 frames: steps of 15; glc: starts 0 and 56, steps of 16."""
    assert SMALL._windows(120).tolist() == [[7, 37, 67, 97], [22, 52, 82, 112]]
    glc = replace(SMALL, span="glc")._windows(120)
    assert glc.tolist() == [[0, 16, 32, 48], [56, 72, 88, 104]]


def test_a_drawn_frame_is_the_stored_one_and_the_world_moves():
    stored = SMALL.load().people["p00"].train.banks["frames"].rows[:8].numpy()
    index = SMALL._windows(120).ravel()
    assert np.array_equal(SMALL.simulate(0, 0).draw(index), stored)
    frames, gaze = SMALL.render_clip(0, 0)
    assert frames.shape == (120, 32, 32, 3)
    assert gaze.point.shape == (120, 2)
    # The head and the hands move, so that no two frames a second apart are alike.
    assert np.abs(frames[24:].astype(int) - frames[:-24]).mean((1, 2, 3)).min() > 1


def test_lens_projects_back_where_it_came_from():
    lens = Lens(scale=1.2, roll=0.06, radial=-0.25)
    points = np.random.default_rng(0).uniform(0, 1, (50, 2))
    np.testing.assert_allclose(lens.project(lens.unproject(points)), points, atol=1e-12)
    # The division model at the corner: 0.5 / (1 - 0.25) from the centre, without scale and roll.
    corner = Lens(1, 0, -0.25).unproject(np.array([1.0, 1.0]))
    np.testing.assert_allclose(corner, [2 / 3, 2 / 3])


@pytest.mark.slow
def test_gaze_statistics_match_recorded_people(wearers):
    """Bands of egovideo note 6.4 (4 for the recorded people): spreads, fixation share and run."""
    points = [np.concatenate([c.gaze.point[c.scored] for c in clips]) for clips in wearers]
    within = np.mean([p.std(0) for p in points], 0)
    between = np.std([p.mean(0) for p in points], 0, ddof=1)
    scored = np.array([[c.scored for c in clips] for clips in wearers])
    assert ((within > 0.09) & (within < 0.14)).all()
    assert ((between > 0.04) & (between < 0.07)).all()
    assert 0.70 < scored.mean() < 0.88
    turns = np.diff(np.pad(scored.astype(int), [(0, 0), (0, 0), (1, 1)]), axis=2)
    run = np.nonzero(turns == -1)[2] - np.nonzero(turns == 1)[2]
    assert 5 <= np.median(run) <= 9


def test_gaze_lands_on_what_was_chosen(wearers):
    """Tracker noise 1 %, offset 1.2 %, pursuit lag: within 3 % of the frame half of the time."""
    gaps = [
        np.linalg.norm(c.gaze.point - c.gaze.target, axis=1)[c.scored]
        for clips in wearers
        for c in clips
    ]
    assert np.median(np.concatenate(gaps)) < 0.03


def test_raw_samples_run_on_their_own_clock(wearers):
    """Through the clock the raw track meets the frames; 2 frames off it does not."""
    clip = next(c for clips in wearers for c in clips if c.gaze.clock_offset > 0.02)
    gaze = clip.gaze
    assert np.median(np.diff(gaze.raw.t_s)) == pytest.approx(1 / 120, rel=1e-3)
    frame_times = np.arange(120) / 24
    on_clock = frame_times * (1 + gaze.clock_drift) + gaze.clock_offset

    def error(times):
        found = gaze.raw.at(times)
        both = found.valid & clip.scored
        gap = np.stack([found.x, found.y], 1)[both] - gaze.point[both]
        return np.linalg.norm(gap, axis=1).mean()

    assert error(on_clock) < 0.006
    assert error(on_clock + 2 / 24) > 3 * error(on_clock)


def test_untracked_frames_have_no_point(wearers):
    events = np.concatenate([c.gaze.event for clips in wearers for c in clips])
    points = np.concatenate([c.gaze.point for clips in wearers for c in clips])
    assert np.array_equal(np.isnan(points).any(1), events == Event.UNTRACKED)
    inside = ((points >= 0) & (points < 1)).all(1)
    assert np.array_equal(inside, (events != Event.UNTRACKED) & (events != Event.OUT_OF_RANGE))
    assert {Event.FIXATION, Event.SACCADE, Event.OUT_OF_RANGE} <= {Event(e) for e in events}


def test_iid_people_are_one_person_and_default_people_are_not():
    iid = [person(0, i, PRESETS["iid"]) for i in range(3)]
    for other in iid[1:]:
        assert np.array_equal(other.habits.rest, [0.50, 0.55])
        assert np.array_equal(other.habits.preference, iid[0].habits.preference)
        assert np.array_equal(other.looks.palette, iid[0].looks.palette)
        assert other.quantity == 1
    own = [person(0, i, PRESETS["default"]) for i in range(3)]
    assert not np.array_equal(own[0].habits.preference, own[1].habits.preference)
    assert own[0].looks.field_of_view != own[1].looks.field_of_view


@pytest.mark.slow
def test_iid_preset_leaves_nothing_to_a_personal_prior():
    """Likelihood of test gaze under a Gaussian: a person's own fit must not beat everybody's."""

    def gain(preset):
        data = EgoSynthetic(people=6, clips=12, preset=preset, seed=1)
        seen = [[data.simulate(i, n) for n in range(10)] for i in range(6)]
        points = [[c.gaze.point[c.scored] for c in clips] for clips in seen]
        train = [np.concatenate(p[:7]) for p in points]
        test = [np.concatenate(p[7:]) for p in points]
        whole = np.concatenate(train)

        def fit(sample, at):
            z = (at - sample.mean(0)) / sample.std(0)
            return -(np.log(sample.std(0)) + z * z / 2).sum(1).mean()

        return np.mean([fit(a, b) - fit(whole, b) for a, b in zip(train, test, strict=True)])

    assert gain("iid") < 0.02
    assert gain("default") > 0.05


def test_strong_preset_deals_disjoint_classes_and_opposite_hands():
    people = [person(0, i, PRESETS["strong"]) for i in range(4)]
    owned = [set(np.flatnonzero(p.looks.classes)) for p in people]
    assert [len(s) for s in owned] == [2, 2, 2, 2]
    assert set.union(*owned) == set(range(8))
    assert [p.habits.other_hand for p in people] == [False, True, False, True]


def test_chances_are_the_policy_probabilities(wearers):
    """They add up to 1, and being acted on makes an object three times as likely."""
    clip = wearers[0][0]
    habits, head = clip.person.habits, clip.gaze.head[60]
    found = chances(habits, clip.lens, clip.scene, head, 60, 24)
    count = len(clip.scene.kinds)
    assert found.probability.sum() == pytest.approx(1)
    item = clip.scene.active[60]
    other = replace(clip.scene, active=np.full(120, (item + 1) % count))
    calm = chances(habits, clip.lens, other, head, 60, 24).probability
    third = next(i for i in range(count) if i not in (item, (item + 1) % count))
    before, after = calm[item] / calm[third], found.probability[item] / found.probability[third]
    assert after == pytest.approx(3 * before)


def test_cache_is_used_mended_and_optional(cache, monkeypatch):
    data = replace(SMALL, people=1)
    first = data.load().people["p00"]
    (file,) = cache.glob("ego_synthetic-*.safetensors")
    intact = file.read_bytes()
    monkeypatch.setattr(EgoSynthetic, "_generate", lambda *_: pytest.fail("generated again"))
    same(first, data.load().people["p00"])
    monkeypatch.undo()
    monkeypatch.setenv("VERGENCE_CACHE", str(cache))
    file.write_bytes(intact[:-100] + bytes(100))
    same(first, data.load().people["p00"])
    assert file.read_bytes() == intact
    blocked = cache / "file"
    blocked.write_text("")
    monkeypatch.setenv("VERGENCE_CACHE", str(blocked))
    same(first, data.load().people["p00"])
    assert not [p for p in Path(cache).iterdir() if p.suffix == ".part"]
    assert os.environ["VERGENCE_CACHE"] == str(blocked)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"preset": "srong"}, ("srong", "iid, mild, default, strong")),
        ({"people": 0}, ("people", "0", ">= 1")),
        ({"clips": 3}, ("clips", "3", ">= 10")),
        ({"size": 63}, ("size", "63", "even")),
        ({"span": "all"}, ("span", "all", "clip, glc")),
        ({"seconds": 2.0, "span": "glc"}, ("48 frames", "64", "longer clips")),
        ({"shares": (0.5, 0.5, 0.5)}, ("shares", "sum 1")),
    ],
)
def test_bad_options_say_what_is_allowed(options, parts):
    with pytest.raises(ConfigError) as caught:
        EgoSynthetic(**options)
    for part in parts:
        assert part in str(caught.value)


def test_shares_that_leave_a_part_empty_are_a_data_error():
    with pytest.raises(DataError, match="p00"):
        replace(SMALL, people=1, shares=(0.96, 0.02, 0.02)).load()
