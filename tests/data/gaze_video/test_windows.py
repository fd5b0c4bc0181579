"""Windows of recordings and their clips in lists, at the limits of both."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from vergence.data.gaze_video.gaze import Event, Gaze
from vergence.data.gaze_video.official_split import (
    HALF_FRAME_S,
    ListedClip,
    OfficialClips,
    OfficialOptions,
)
from vergence.data.gaze_video.recording import (
    GazeWindow,
    Recording,
    WindowOptions,
    cut_windows,
    id_and_person,
    recording_folders,
    windows_on_one_clock,
)
from vergence.data.gaze_video.temporal_splits import TEST, TRAIN
from vergence.data.io.video import Footage
from vergence.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class Times(Footage):
    def frames(self, rows=None, width=None, height=None):
        raise NotImplementedError


def footage(times):
    return Times(Path("a.mp4"), np.asarray(times, float), 8, 8)


def looked(times, start_s=0.0, **more):
    gaze = Gaze.build("g", times, np.arange(len(times)) / 1000, 0.5, **more)
    return Recording("r", "p", gaze, Path("a.mp4"), start_s=start_s)


def starts(times, **options):
    found = cut_windows(looked(times), footage(times), WindowOptions(**options))
    return [window.rows.tolist() for window in found]


def test_windows_begin_every_stride_and_end_within_the_video():
    """Frames 0.1 s apart from 2 s on: three frames 0.2 s apart span 0.4 s."""
    times = 2 + np.arange(11) / 10
    assert starts(times, window=3, step_s=0.2, stride_s=0.3) == [[0, 2, 4], [3, 5, 7], [6, 8, 10]]
    assert starts(times[:-1], window=3, step_s=0.2, stride_s=0.3) == [[0, 2, 4], [3, 5, 7]]
    early = times.copy()
    early[-1] -= 4e-4
    assert len(starts(early, window=3, step_s=0.2, stride_s=0.3)) == 3
    early[-1] -= 2e-4
    assert len(starts(early, window=3, step_s=0.2, stride_s=0.3)) == 2
    assert starts(times[:5], window=3, step_s=0.2) == [[0, 2, 4]]
    assert starts(times, window=1, step_s=0.2, stride_s=0.5) == [[0], [5], [10]]


def test_a_window_knows_its_gaze_and_its_times():
    times = 2 + np.arange(5) / 10
    event = [Event.FIXATION, Event.SACCADE, Event.UNKNOWN, Event.FIXATION, Event.FIXATION]
    recording = looked(times, start_s=7.0, event=event)
    options = WindowOptions(window=3, step_s=0.1, stride_s=0.2)
    one, two = cut_windows(recording, footage(times), options)
    assert (one.start_s, one.end_s) == (7, pytest.approx(7.2))
    assert (two.start_s, two.end_s) == (pytest.approx(7.2), pytest.approx(7.4))
    assert one.points.shape == (3, 1, 2)
    np.testing.assert_allclose(one.points[:, 0, 0], [0, np.nan, 0.002])
    np.testing.assert_allclose(two.points[:, 0, 0], [0.002, 0.003, 0.004])
    lost = replace(recording, gaze=looked(times, event=[Event.SACCADE] * 3 + event[3:]).gaze)
    assert [w.rows[0] for w in cut_windows(lost, footage(times), options)] == [2]


def test_recordings_that_are_too_short():
    times = np.arange(4) / 10
    for options, said in (
        ({"window": 5, "step_s": 0.05}, "4 frames, 0.30 s, and a window takes 5 frames, 0.20 s"),
        ({"window": 3, "step_s": 0.2}, "a window takes 3 frames, 0.40 s; lower window or step_s"),
        ({"clip_s": 0.5}, "4 frames, 0.40 s, and a window takes 4 frames, 0.50 s; lower clip_s"),
    ):
        with pytest.raises(DataError, match=said.replace(".", r"\.")):
            cut_windows(looked(times), footage(times), WindowOptions(**options))
        short = WindowOptions(**options, short="skip")
        assert cut_windows(looked(times), footage(times), short) == []
    with pytest.raises(DataError, match=r"1 frames, 0\.00 s"):
        cut_windows(looked(times[:1]), footage(times[:1]), WindowOptions(clip_s=0.5))
    with pytest.raises(ConfigError, match=r"step_s = 0\.04 .* of 'r'; use 0\.100 or more"):
        cut_windows(looked(times), footage(times), WindowOptions(window=2, step_s=0.04))
    assert len(starts(times, clip_s=0.4)) == 1


def test_paces_and_limits_of_options():
    plain = WindowOptions(window=5, step_s=0.2, stride_s=0.7)
    assert plain.pace_s == (0.2, 0.7)
    assert plain.span_s == pytest.approx(0.8)
    assert plain.frame_step_s == 0.2
    clips = WindowOptions(window=5, clip_s=2)
    assert clips.pace_s == (0.4, 2)
    assert clips.span_s == pytest.approx(1.6)
    WindowOptions(clip_s=1e-3)
    for wrong in (9e-4, -1, np.inf):
        with pytest.raises(ConfigError, match="clip_s must be 0"):
            WindowOptions(clip_s=wrong)


def test_names_of_recordings_and_folders(tmp_path):
    (tmp_path / "ann" / "day").mkdir(parents=True)
    for name in ("ann/a.mp4", "ann/b.txt", "ann/day/c.vrs", "d.mp4"):
        (tmp_path / name).touch()
    assert recording_folders(tmp_path, "*.mp4", "*.vrs") == [
        tmp_path,
        tmp_path / "ann",
        tmp_path / "ann" / "day",
    ]
    assert recording_folders(tmp_path, "*.vrs") == [tmp_path / "ann" / "day"]
    assert id_and_person(tmp_path / "ann" / "day", tmp_path) == ("ann/day", "ann")
    assert id_and_person(tmp_path / "ann", tmp_path / "ann") == ("ann", "ann")
    assert id_and_person(tmp_path / "ann", None) == ("ann", "ann")


def window(start, end, name="r", session="s"):
    recording = Recording(name, "p", Gaze.build("g", [0.0], [0.5], [0.5]), session=session)
    return GazeWindow(recording, np.zeros(1, int), np.zeros((1, 1, 2), np.float32), start, end)


def test_windows_of_sessions_on_one_clock():
    cut = [window(3, 4, session="b"), window(1, 2, session="a"), window(0, 1, "c", "")]
    start, end = windows_on_one_clock(cut, 5)
    assert start.tolist() == [6, 0, 12]
    assert end.tolist() == [7, 1, 13]


CLIPS = OfficialClips(
    ("train.csv", "test.csv"),
    [
        ListedClip("b", "p", "s", 10.0, 15.0, TEST),
        ListedClip("a", "p", "s", 0.0, 5.0, TRAIN),
        ListedClip("c", "q", "r", 0.0, 1.0, TRAIN),
        ListedClip("d", "q", "t", 0.0, 1.0, TRAIN),
    ],
)


@pytest.mark.parametrize(
    ("start", "end", "name"),
    [
        (0, 5, "a"),
        (-HALF_FRAME_S, 5 + HALF_FRAME_S, "a"),
        (-HALF_FRAME_S - 1e-9, 5, None),
        (0, 5 + HALF_FRAME_S + 1e-9, None),
        (5, 6, None),
        (10, 12, "b"),
        (10 - HALF_FRAME_S, 15, "b"),
        (10 - HALF_FRAME_S - 1e-9, 15, None),
        (14, 16, None),
    ],
)
def test_a_window_lies_in_a_clip_but_for_half_a_frame(start, end, name):
    found = CLIPS.of(window(start, end, "x"))
    assert (found and found.name) == name


def test_clips_by_recording_come_before_those_of_its_session():
    assert CLIPS.of(window(0, 1)).name == "c"
    assert CLIPS.of(window(2, 3)) is None
    assert CLIPS.of(window(0, 1, "x", "none")) is None
    assert CLIPS.people(TRAIN) == {"p": 1, "q": 2}
    assert CLIPS.people(TEST) == {"p": 1}
    with pytest.raises(DataError, match=r"clip a is twice in train\.csv and test\.csv"):
        OfficialClips(CLIPS.lists, [CLIPS.clips[1], CLIPS.clips[1]])


def test_a_split_by_lists_and_its_sentence():
    """Of four training windows the last is held out; one tests, and one lies in no clip."""
    train = [ListedClip(f"t{i}", "p", "s", 20.0 * i, 20.0 * i + 5, TRAIN) for i in range(4)]
    clips = OfficialClips(("one", "two"), [*train, ListedClip("x", "p", "s", 90, 95, TEST)])
    cut = [window(20 * i, 20 * i + 1, "x") for i in range(4)]
    cut += [window(91, 92, "x"), window(50, 51, "x")]
    options = OfficialOptions(shares=(0.6, 0.2, 0.2))
    assert options.validation_share == pytest.approx(0.25)
    parts = clips.split("p", cut, options)
    assert [[w.start_s for w in part] for part in parts] == [[0, 20, 40], [60], [91]]
    assert clips.split("p", cut[4:], options) == [[], [], [cut[4]]]
    said = clips.description([parts], options.validation_share)
    assert "one (samples of 4 of 4 clips) and two (samples of 1 of 1 clips)" in said
    assert "the last 25% of each" in said
    assert "one (samples of 3 of 4 clips)" in clips.description([parts[:1]], 0.1)


@pytest.mark.parametrize("clients", [1, 3, 7])
def test_people_are_dealt_evenly_and_those_with_tests_too(clients):
    people = [f"p{i}" for i in range(7)]
    tested = {"p1", "p4", "p5", "p6"}
    groups = OfficialOptions(clients=clients, deal_seed=3).deal(reversed(people), tested)
    assert list(groups) == [f"group{i}" for i in range(1, clients + 1)]
    assert sorted(who for group in groups.values() for who in group) == people
    for count in (
        [len(group) for group in groups.values()],
        [len(tested & set(group)) for group in groups.values()],
    ):
        assert max(count) - min(count) <= 1
    order = np.random.default_rng(3).permutation(7)
    first = [people[i] for i in order if people[i] in tested]
    last = [people[i] for i in order if people[i] not in tested]
    hands = [sorted((first + last)[i::clients]) for i in range(clients)]
    assert [list(group) for group in groups.values()] == hands
    assert OfficialOptions().deal(["b", "a"], ()) == {"a": ("a",), "b": ("b",)}
    with pytest.raises(DataError, match="clients = 8 are more than the 7 people"):
        OfficialOptions(clients=8).deal(people, tested)
