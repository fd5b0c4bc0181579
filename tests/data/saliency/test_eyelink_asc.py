"""EyeLink ASC: when a picture goes, whose place a fixation has, files without samples, positions
that are no gaze, and bytes that are no text."""

import numpy as np
import pytest

from vergence.data.gaze_video.gaze import Event
from vergence.data.saliency import eyelink_asc
from vergence.data.saliency.eyelink_asc import read_asc
from vergence.data.saliency.stimuli import Stimuli
from vergence.errors import DataError

HEAD = "MSG 0 GAZE_COORDS 0 0 999 799"
LOAD = "MSG 100 !V IMGLOAD FILL a.png"


def trial(*lines, samples="SAMPLES GAZE LEFT RATE 100", events="EVENTS GAZE LEFT RATE 100"):
    return "\n".join(
        ["MSG 90 TRIALID 1", "START 90 LEFT SAMPLES EVENTS", HEAD, events, samples, *lines]
    )


def asc(folder, text):
    path = folder / "p1.asc"
    path.write_bytes((text if isinstance(text, bytes) else text.encode()) + b"\n")
    return path


def looks(start, end, x=200, y=300):
    return [f"{t} {x}.0 {y}.0 900.0 ..." for t in range(start, end, 10)]


@pytest.mark.parametrize(
    "gone",
    [
        "MSG 200 !V CLEAR 128 128 128",
        "MSG 210 10 !V CLEAR 0 0 0",
        "MSG 200 !V DRAW_LIST graphics\\blank.vcl",
        "MSG 200 TRIAL_RESULT 0",
        "END 195 SAMPLES EVENTS RES 38.1 31.2",
        "MSG 200 !V IMGLOAD FILL blank.png",
        "MSG 200 TRIALID 2",
    ],
)
def test_a_picture_ends_where_it_goes(tmp_path, gone):
    """Ten samples from 100 to 190 are on the picture, the ten after it are not."""
    text = trial("MSG 95 !V CLEAR 9 9 9", LOAD, *looks(100, 200), gone, *looks(200, 300, 500, 400))
    rows, _ = read_asc(asc(tmp_path, text))
    on = rows.stimulus == "a.png"
    assert rows.ticks[on].tolist() == list(range(100, 200, 10))
    assert set(rows.x[on]) == {200.0}


@pytest.mark.parametrize("at", ["MSG 95 !V CLEAR 9 9 9", "MSG 104 !V DRAW_LIST a.vcl"])
def test_what_is_drawn_with_a_picture_does_not_end_it(tmp_path, at):
    lines = sorted([at, LOAD], key=lambda line: int(line.split()[1]))
    rows, _ = read_asc(asc(tmp_path, trial(*lines, *looks(110, 200))))
    assert len(rows) == 9


def test_a_picture_that_comes_again_after_a_blank_screen(tmp_path):
    text = trial(
        *(LOAD, *looks(100, 150), "MSG 150 !V CLEAR 0 0 0", *looks(150, 200)),
        *("MSG 200 !V IMGLOAD FILL a.png", *looks(200, 250)),
    )
    rows, _ = read_asc(asc(tmp_path, text))
    assert rows.ticks.tolist() == [*range(100, 150, 10), *range(200, 250, 10)]


def test_a_picture_named_by_a_variable_ends_too(tmp_path):
    text = trial(
        *("MSG 100 SYNCTIME", *looks(100, 150), "MSG 150 !V CLEAR 0 0 0", *looks(150, 200)),
        "MSG 200 !V TRIAL_VAR image a.png",
    )
    rows, _ = read_asc(asc(tmp_path, text))
    assert rows.ticks.max() == 140


BOTH = {"samples": "SAMPLES GAZE LEFT RIGHT RATE 100", "events": "EVENTS GAZE LEFT RIGHT RATE 100"}


def test_a_fixation_of_one_eye_has_the_place_of_that_eye(tmp_path):
    """The eyes are 150 pixels apart: samples are their mean (275), EFIX says 200 of the left."""
    both = [f"{t} 200.0 300.0 900.0 350.0 300.0 900.0 ....." for t in range(100, 200, 10)]
    ends = ["EFIX L 100 150 51 200.0 300.0 900", "EFIX R 100 150 51 350.0 300.0 900"]
    rows, _ = read_asc(asc(tmp_path, trial(LOAD, *both, *ends, **BOTH)))
    fixated = rows.event == Event.FIXATION
    assert set(rows.x[fixated]) == {200.0}
    assert set(rows.x[~fixated]) == {275.0}
    lost = [end.replace("200.0", ".") for end in ends]
    rows, _ = read_asc(asc(tmp_path, trial(LOAD, *both, *lost, **BOTH)))
    assert set(rows.x) == {275.0}


def test_places_behind_those_of_the_head_referenced_frame(tmp_path):
    both = [f"{t} 200.0 300.0 900.0 350.0 300.0 900.0 ....." for t in range(100, 200, 10)]
    kinds = {**BOTH, "events": "EVENTS HREF GAZE LEFT RIGHT RATE 100"}
    text = trial(LOAD, *both, "EFIX L 100 150 51 -2160.0 1908.0 200.0 300.0 900", **kinds)
    rows, _ = read_asc(asc(tmp_path, text))
    assert set(rows.x[rows.event == Event.FIXATION]) == {200.0}


FIXATIONS = ["EFIX L 90 120 30 1 2 900", "EFIX L 130 160 30 200 300 900", "EFIX L 170 220 50 4 5 9"]


def test_a_file_without_samples_has_its_fixations(tmp_path):
    """The first one ends on the picture, the last one begins on it, another one after it."""
    text = trial(
        *(LOAD, *FIXATIONS, "MSG 220 !V CLEAR 0 0 0", "EFIX L 230 260 30 8 9 900"), samples=""
    )
    rows, _ = read_asc(asc(tmp_path, text))
    assert rows.ticks.tolist() == [100, 130, 170]
    assert rows.x.tolist() == [1, 200, 4]
    assert rows.fixation.tolist() == [0, 1, 2]
    assert (rows.event == Event.FIXATION).all()


@pytest.mark.parametrize(("kind", "option"), [("HREF", "-sh"), ("PUPIL", "-sp")])
def test_positions_that_are_no_gaze_are_named(tmp_path, kind, option):
    said = f"line 5: 'SAMPLES {kind}' .* is {kind} .*edf2asc without {option}".replace(" is ", ".*")
    with pytest.raises(DataError, match=said):
        read_asc(asc(tmp_path, trial(LOAD, *looks(100, 200), samples=f"SAMPLES {kind} LEFT")))
    with pytest.raises(DataError, match=f"line 4: 'EVENTS {kind}'"):
        read_asc(asc(tmp_path, trial(LOAD, *FIXATIONS, samples="", events=f"EVENTS {kind} LEFT")))


def test_times_of_fixations_are_enough_beside_samples(tmp_path):
    """Events in the head-referenced frame tell when, samples where: as before."""
    text = trial(
        LOAD, *looks(100, 200), "EFIX L 100 150 51 -2160 1908 9", events="EVENTS HREF LEFT"
    )
    rows, _ = read_asc(asc(tmp_path, text))
    assert set(rows.x) == {200.0}
    assert np.isfinite(rows.fixation).sum() == 6


@pytest.mark.parametrize("late", [0, 3000])
def test_a_message_in_another_encoding(tmp_path, late):
    """GBK, whose bytes no encoding of Windows has, in a message that nobody needs."""
    message = b"MSG 101 \x81\x30\xd5\xc5\xc8\xfd \x8d" * 20
    pad = "\n".join(f"MSG {t} pad" for t in range(late))
    text = b"\n".join([pad.encode(), trial(LOAD).encode(), message])
    rows, _ = read_asc(asc(tmp_path, text + "\n".join(["", *looks(110, 200)]).encode()))
    assert len(rows) == 9


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_encodings_and_ends_of_lines(tmp_path, encoding):
    text = trial(LOAD, *looks(100, 200)).replace("\n", "\r\n").encode(encoding)
    path = tmp_path / "p1.asc"
    path.write_bytes(text)
    assert len(read_asc(path)[0]) == 10


@pytest.mark.parametrize("end", ["ImageStimulusEnd", "VideoStimulusEnd", "MediaEnd"])
def test_an_event_of_pro_lab_ends_a_stimulus(tmp_path, end):
    """Rows after it may still name the stimulus; its next showing begins with an event."""
    from PIL import Image

    (tmp_path / "stimuli").mkdir()
    for name in "ab":
        Image.new("RGB", (40, 40)).save(tmp_path / "stimuli" / f"{name}.png")
    head = (
        "Recording timestamp [us]\tParticipant name\tRecording name\tSensor\tEvent\t"
        "Gaze point X [MCS norm]\tGaze point Y [MCS norm]\tPresented Media name"
    )
    start = end.replace("End", "Start")
    rows, t = [head], 0
    for name in "aab":
        for event, x, count in ((start, 0.2, 5), (end, 0.8, 5)):
            rows.append(f"{t}\tann\tr1\t\t{event}\t\t\t{name}.png")
            for _ in range(count):
                t += 20_000
                rows.append(f"{t}\tann\tr1\tEye Tracker\t\t{x}\t0.5\t{name}.png")
    (tmp_path / "ann.tsv").write_text("\n".join(rows) + "\n")
    trials, _ = Stimuli(preset="tobii_pro_lab").read(tmp_path)
    assert {x for trial in trials for x in trial.x.tolist()} == {0.2}
    assert sum(len(trial.rows) for trial in trials) == 15


@pytest.mark.parametrize(
    ("how", "numbers", "place"),
    [
        ("FILL", (), (0, 0, 1000, 800)),
        ("FILL", (1.0, 2.0), (0, 0, 1000, 800)),
        ("CENTER", (500.0, 400.0), (500, 400, 0, 0)),
        ("TOP_LEFT", (50.0, 40.0), (50, 40, -1, -1)),
        ("CENTER", (500.0, 400.0, 200.0, 100.0), (400, 350, 200, 100)),
        ("TOP_LEFT", (50.0, 40.0, 200.0, 100.0), (50, 40, 200, 100)),
        ("CENTER", (), None),
        ("CENTER", (1.0,), None),
        ("CENTER", (1.0, 2.0, 3.0), None),
        ("TOP_LEFT", (1.0, 2.0, 3.0, 4.0, 5.0), None),
        ("WHERE", (1.0, 2.0), None),
        ("WHERE", (1.0, 2.0, 3.0, 4.0), None),
        ("", (), None),
    ],
)
def test_the_place_that_a_message_states(how, numbers, place):
    picture = eyelink_asc._AscPicture(0, "a.png", how, numbers)
    wanted = eyelink_asc.NOWHERE if place is None else place
    np.testing.assert_array_equal(eyelink_asc._media(picture, (1000, 800)), wanted)
    if how == "FILL":
        assert np.isnan(eyelink_asc._media(picture, None)).all()


@pytest.mark.parametrize(
    ("rest", "name", "numbers"),
    [
        ("a.png 1 2", "a.png", (1, 2)),
        ("a b.png 1.5 -2 3 4", "a b.png", (1.5, -2, 3, 4)),
        ("1 2 3 4 5", "1", (2, 3, 4, 5)),
        ("9 1 2 3 4 5", "9 1", (2, 3, 4, 5)),
        ("7", "7", ()),
        ("a.png 1. 2", "a.png 1.", (2,)),
        ("a.png", "a.png", ()),
    ],
)
def test_up_to_four_numbers_behind_a_name_are_its_place(tmp_path, rest, name, numbers):
    reader = eyelink_asc._AscReader(tmp_path / "a.asc", "")
    reader.line(1, f"MSG 100 -5 !V IMGLOAD CENTER {rest}")
    (picture,) = reader.trial.pictures
    assert (picture.name, picture.numbers, picture.how) == (name, numbers, "CENTER")
    assert (picture.onset_ms, picture.end_ms) == (105, np.inf)


@pytest.mark.parametrize(("cleared", "end"), [(119, np.inf), (120, 120), (150, 150), (90, np.inf)])
def test_a_screen_that_is_cleared_at_once_ends_nothing(cleared, end):
    trial = eyelink_asc._AscTrial()
    trial.load(eyelink_asc._AscPicture(100, "a.png"))
    trial.clear(cleared)
    assert trial.pictures[-1].end_ms == end
    trial.clear(200)
    assert trial.pictures[-1].end_ms == min(end, 200)
    without = eyelink_asc._AscTrial(onset_ms=100)
    without.clear(cleared)
    assert without.end_ms == end
    never = eyelink_asc._AscTrial()
    never.clear(cleared)
    assert never.end_ms == np.inf


def test_a_picture_loaded_again_goes_on_and_another_one_ends_it():
    trial = eyelink_asc._AscTrial()
    for onset, name in ((100, "a"), (130, "a"), (160, "b"), (190, "a")):
        trial.load(eyelink_asc._AscPicture(onset, name))
    shown = [(p.name, p.onset_ms, p.end_ms) for p in trial.pictures]
    assert shown == [("a", 100, 160), ("b", 160, 190), ("a", 190, np.inf)]


def test_the_eye_with_more_fixations_counts_and_of_two_the_left_one():
    one, two = (1, 0.0, 9.0, 1.0, 1.0), (2, 5.0, 9.0, 2.0, 2.0)
    trial = eyelink_asc._AscTrial(fixations={"R": [one], "L": [two]})
    assert trial.of_one_eye == [two]
    trial = eyelink_asc._AscTrial(fixations={"R": [one, two], "L": [two]})
    assert trial.of_one_eye == [one, two]
    picture = eyelink_asc._AscPicture(9, "a", end_ms=10)
    assert trial.rows(picture) == [(1, 9, 1.0, 1.0), (2, 9, 2.0, 2.0)]
    assert trial.rows(eyelink_asc._AscPicture(9.5, "a")) == []
    assert trial.rows(eyelink_asc._AscPicture(0, "a", end_ms=5)) == [one[:2] + one[3:]]
    trial.samples = [(t, float(t), 0.0, 0.0) for t in (8, 9, 10)]
    assert [row[0] for row in trial.rows(picture)] == [9]


@pytest.mark.parametrize(("second", "fine"), [(119, False), (120, True)])
def test_two_pictures_at_once_are_refused_by_name(tmp_path, second, fine):
    trial = eyelink_asc._AscTrial(number="7")
    for onset, name in ((100, "a.png"), (second, "b.png")):
        trial.load(eyelink_asc._AscPicture(onset, name))
    path = tmp_path / "a.asc"
    if fine:
        assert [p.name for p in trial.showings(path, False)] == ["a.png", "b.png"]
    else:
        with pytest.raises(DataError, match=r"trial 7 shows a\.png and b\.png at once"):
            trial.showings(path, False)
        trial.named = "B"
        assert [p.name for p in trial.showings(path, True)] == ["b.png"]
    trial.named = ""
    assert trial.showings(path, True) == []
    trial.named = "c"
    if fine:
        (found,) = trial.showings(path, True)
        assert (found.name, found.onset_ms) == ("c", second)


def test_samples_of_both_eyes_are_means_of_those_that_were_found(tmp_path):
    reader = eyelink_asc._AscReader(tmp_path / "a.asc", "")
    reader.line(1, "SAMPLES GAZE LEFT RIGHT RATE 100")
    reader.line(2, "100 10.0 20.0 9 30.0 60.0 9 ...")
    reader.line(3, "110 . . 0 30.0 60.0 9 ...")
    reader.line(4, "120 10.0 . 9 . 60.0 9 ...")
    assert reader.trial.samples[:2] == [(2, 100, 20, 40), (3, 110, 30, 60)]
    assert np.isnan(reader.trial.samples[2][2:]).all()
    with pytest.raises(DataError, match=r"line 5 is '130 1\.0 2\.0 9 3\.0'"):
        reader.line(5, "130 1.0 2.0 9 3.0")
