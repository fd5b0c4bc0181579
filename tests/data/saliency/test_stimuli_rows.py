"""Gaze on stimuli: points of a trial, showings, places on the screen and files, by hand."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vergence.data.gaze_video.gaze import Event
from vergence.data.saliency import stimuli
from vergence.data.saliency.stimuli import Stimuli, StimulusTrial
from vergence.errors import ConfigError, DataError

NAN = np.nan


def trial(x, fixation, event=None, valid=None):
    n = len(x)
    rows = SimpleNamespace(
        valid=np.full(n, True) if valid is None else np.array(valid),
        event=np.full(n, Event.UNKNOWN) if event is None else np.array(event),
        fixation=np.array(fixation, float),
    )
    x = np.array(x, float)
    return StimulusTrial("p", Path("a.png"), rows, x, x / 2)


def test_points_are_means_of_fixations_whose_number_may_begin_anew():
    made = trial([0.1, 0.3, 0.5, 0.7, 0.9], [1, 1, 2, 1, NAN])
    np.testing.assert_allclose(made.points(1), [[0.2, 0.1], [0.5, 0.25], [0.7, 0.35]])
    assert made.points(1).dtype == np.float32


def test_points_of_samples_are_at_most_so_many_at_even_spacing():
    made = trial(np.arange(10) / 10, [NAN] * 10)
    for most, picked in ((10, range(10)), (11, range(10)), (4, [0, 3, 6, 9]), (1, [0])):
        np.testing.assert_allclose(made.points(most)[:, 0], np.array([*picked]) / 10)


def test_points_leave_out_saccades_lost_gaze_and_places_beyond_the_edges():
    event = [Event.FIXATION, Event.SACCADE, Event.UNKNOWN, Event.UNTRACKED, *[Event.FIXATION] * 4]
    x = [0.0, 0.1, 0.2, 0.3, -1e-9, 1.0, 1 + 1e-9, 0.4]
    made = trial(x, [NAN] * 8, event, [True] * 7 + [False])
    np.testing.assert_allclose(made.points(9)[:, 0], [0, 0.2, 1])
    assert made.shown.tolist() == [True] * 4 + [False, True, False, False]


MEDIA = np.full((2, 4), NAN)


def place(options, x, y, media=MEDIA, screen=None, unit="px", names=None):
    """Where the options put gaze in a picture of 200 x 100 pixels."""
    rows = SimpleNamespace(
        unit=unit,
        media=media,
        names=names or {},
        x=np.array([x, x], float),
        y=np.array([y, y], float),
        path=Path("a.csv"),
        line=np.array([2, 3]),
    )
    found = Stimuli(**options)._fractions(rows, Path("a.png"), screen)
    return pytest.approx((float(found[0][0]), float(found[1][0])))


@pytest.fixture(autouse=True)
def size(monkeypatch):
    monkeypatch.setattr(stimuli, "stimulus_size", lambda _: (200, 100))


SCREEN = {"screen": (1000, 800)}


@pytest.mark.parametrize(
    ("options", "at", "found"),
    [
        ({"place": "picture"}, (50, 75), (0.25, 0.75)),
        ({"place": "fill", **SCREEN}, (250, 600), (0.25, 0.75)),
        ({"place": "centre", **SCREEN}, (450, 425), (0.25, 0.75)),
        # Five times as large fits the width: 1000 x 500, from 150 px on.
        ({"place": "fit", **SCREEN}, (250, 525), (0.25, 0.75)),
        ({"place": "fit", "screen": (1000, 200)}, (400, 150), (0.25, 0.75)),
        ({"offset": (100, 50), **SCREEN}, (150, 125), (0.25, 0.75)),
        ({"offset": (100, 50), "shown_size": (400, 200), **SCREEN}, (200, 200), (0.25, 0.75)),
        ({"place": "picture", "origin": "bottom_left"}, (50, 25), (0.25, 0.75)),
        ({"place": "fill", "origin": "centre", **SCREEN}, (-250, 200), (0.25, 0.75)),
    ],
)
def test_places_on_the_screen_and_in_the_picture(options, at, found):
    assert found == place(options, *at)


def test_places_that_the_table_states_and_degrees():
    media = np.array([[100.0, 50, 400, 200]] * 2)
    assert place({}, 200, 200, media) == (0.25, 0.75)
    assert place(SCREEN, 0.2, 0.25, media, unit="fraction") == (0.25, 0.75)
    assert place({"place": "picture"}, 50, 75, media) == (0.25, 0.75)
    own = np.array([[100.0, 50, 0, 0]] * 2)
    assert place({}, 50, 75, own) == (0.25, 0.75)
    own[:, 2:] = -1
    assert place({}, 150, 125, own) == (0.25, 0.75)
    options = {"screen_cm": (40.0, 30.0), "distance_cm": 50.0, "origin": "centre"}
    angle = np.degrees(np.arctan([-10 / 50, 7.5 / 50]))
    assert place({"place": "fill", **options}, *angle, unit="deg") == (0.25, 0.75)
    for lacking in ("screen_cm", "distance_cm"):
        some = {name: value for name, value in options.items() if name != lacking}
        with pytest.raises(ConfigError, match="unit = 'deg' needs screen_cm"):
            place({"place": "fill", **some}, 1, 1, unit="deg")


def test_places_that_are_not_known_are_asked_for():
    media = np.array([[100.0, 50, 400, 200]] * 2)
    with pytest.raises(ConfigError, match="in fraction from origin = 'top_left': set screen"):
        place({}, 0.2, 0.2, media, unit="fraction")
    with pytest.raises(DataError, match="row 2: 'left' is empty"):
        place({}, 1, 1, names={"media": ["left", "top"]})
    with pytest.raises(ConfigError, match="gaze counts on the screen: set screen"):
        place({"place": "centre"}, 1, 1)
    with pytest.raises(ConfigError, match="where was the picture on the screen"):
        place(SCREEN, 1, 1)


def test_showings_are_runs_of_one_trial_and_one_stimulus():
    class Rows(SimpleNamespace):
        def __len__(self):
            return len(self.trial)

        def select(self, rows):
            return rows.tolist()

    rows = Rows(
        trial=np.array(["1", "1", "1", "2", "2", "1"]),
        stimulus=np.array(["a", "a", "b", "b", "b", "b"]),
        conditions=np.full((6, 0), ""),
    )
    assert stimuli._showings(rows) == [[0, 1], [2], [3, 4], [5]]
    rows.conditions = np.array([["x", "y", "y", "y", "z", "z"]]).T
    assert stimuli._showings(rows) == [[0], [1], [2], [3], [4], [5]]
    none = np.array([], str)
    assert stimuli._showings(Rows(trial=none, stimulus=none, conditions=np.empty((0, 0)))) == []


def test_files_by_their_names_in_tables(tmp_path):
    for name in ("a.PNG", "x/b.jpg", "y/b.jpg", "c.mp4", "d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    find = stimuli._StimulusFiles(tmp_path)
    for name, file in (
        ("a.png", "a.PNG"),
        ("A", "a.PNG"),
        ("C:\\pictures\\A.png", "a.PNG"),
        ("a.jpg", "a.PNG"),
        ("x/b.jpg", "x/b.jpg"),
        ("all\\Y\\B.jpg", "y/b.jpg"),
        ("c", "c.mp4"),
    ):
        assert find(name) == tmp_path / file, name
    assert find("d.txt") is None
    with pytest.raises(DataError, match=r"stimulus 'b' may be x/b\.jpg or y/b\.jpg"):
        find("b")
    with pytest.raises(DataError, match="no folder"):
        stimuli._StimulusFiles(tmp_path / "no")


@pytest.mark.parametrize(("outside", "fine"), [(9, True), (10, False)])
def test_gaze_that_is_mostly_beside_the_pictures_is_refused(outside, fine):
    """Of ten valid samples nine may lie beside them."""
    x = [2.0] * outside + [0.5] * (10 - outside)
    made = trial([0.5, *x], [NAN] * 11, valid=[False, *[True] * 10])
    made.rows.line, made.rows.x, made.rows.y = np.arange(2, 13), made.x * 10, made.y * 10
    made.rows.path = Path("a.csv")
    if fine:
        Stimuli()._check_place([made])
    else:
        with pytest.raises(DataError, match=r"10 of 10 valid .* in row 3 \(20, 10\)"):
            Stimuli()._check_place([made])
    Stimuli()._check_place([])
