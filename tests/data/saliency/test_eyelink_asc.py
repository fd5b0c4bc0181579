"""EyeLink ASC: when a picture goes, whose place a fixation has, files without samples, positions
that are no gaze, and bytes that are no text."""

import numpy as np
import pytest

from vergence.data.gaze_video.gaze import Event
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
