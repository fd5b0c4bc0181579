"""Gaze on stimuli: places on the picture by every way of saying them, trials, splits, bad input."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.fabricated_exports import EXPORTS, HZ, PEOPLE, PICTURES, SCREEN, look, pictures
from tests.data.footage import write_video
from vergence.data.saliency.eyelink_asc import read_asc
from vergence.data.saliency.osie import SAMPLE, Osie, read_fixations
from vergence.data.saliency.stimuli import Stimuli, StimulusTrial
from vergence.errors import ConfigError, DataError

COLUMNS = {"t": "t", "x": "x", "y": "y", "unit": "px", "t_unit": "ms", "stimulus": "picture"}
OPTIONS = {
    "tobii_pro_lab": {"unknown": "skip"},
    "gazepoint": {"place": "fill"},
    "smi_begaze": {"place": "centre", "screen": SCREEN},
    "imotions": {"place": "centre", "screen": SCREEN, "stimuli": "Stimuli"},
    "tobii_studio": {"stimuli": "Media"},
    "eyelink_fixation_report": {
        "columns": {"stimulus": "bild"},
        "place": "centre",
        "screen": SCREEN,
    },
    "eyelink_asc": {},
}


def folder(tmp_path, text):
    """One person's table, and one picture of 640 x 480 pixels."""
    pictures(tmp_path / "stimuli", 1)
    (tmp_path / "p1").mkdir()
    (tmp_path / "p1" / "gaze.csv").write_text(text)
    return tmp_path


def places(root, columns=COLUMNS, **options):
    trials, _ = Stimuli(columns=columns, **options).read(root)
    return np.concatenate([np.stack([t.x, t.y], 1) for t in trials])


@pytest.mark.parametrize("preset", [n for n in OPTIONS if n not in ("gazepoint", "imotions")])
def test_presets_put_gaze_where_it_was(tmp_path, preset):
    """Valid samples on the picture lie where the export was made from, within its rounding."""
    EXPORTS[preset](tmp_path)
    trials, _ = Stimuli(preset=preset, **OPTIONS[preset]).read(tmp_path)
    shown = PICTURES + (preset == "eyelink_fixation_report")
    assert len(trials) == PEOPLE * shown
    assert len({trial.person for trial in trials}) == PEOPLE
    for i, trial in enumerate(trials):
        p, number = divmod(i, shown)
        made = look(10 * p + number + 1, 2 * HZ)
        if preset == "eyelink_fixation_report":
            made = look(10 * p + number + 1, 6 * HZ)[::HZ]
        assert len(trial.rows) == len(made)
        got = np.stack([trial.x, trial.y], 1)[trial.shown]
        assert 0.6 * len(made) < len(got) < len(made)
        assert np.abs(got - made[trial.shown]).max() < 2e-3


def test_gazepoint_fixations_are_the_makers(tmp_path):
    """FPOGX and FPOGY are the mean so far; NAME_fixations.csv has the last row of each fixation."""
    EXPORTS["gazepoint"](tmp_path)
    trials, _ = Stimuli(preset="gazepoint", place="fill").read(tmp_path)
    assert {trial.person for trial in trials} == {"User 1", "User 2"}
    for trial in trials:
        path = trial.rows.path.with_name(f"{trial.person}_fixations.csv")
        with path.open(newline="") as file:
            own = [r for r in csv.DictReader(file) if r["MEDIA_NAME"] == trial.stimulus.stem]
        made = np.array([[float(row["FPOGX"]), float(row["FPOGY"])] for row in own], np.float32)
        np.testing.assert_allclose(trial.points(50), made, atol=1e-6)


def test_rows_of_other_sensors_of_imotions_are_no_gaze(tmp_path):
    """Every other row is of another sensor; some are lost (-1)."""
    EXPORTS["imotions"](tmp_path)
    trials, _ = Stimuli(preset="imotions", **OPTIONS["imotions"]).read(tmp_path)
    for i, trial in enumerate(trials):
        p, number = divmod(i, PICTURES)
        made = look(10 * p + number + 1, 2 * HZ).repeat(2, 0)
        assert 30 < trial.shown.sum() <= 40
        got = np.stack([trial.x, trial.y], 1)[trial.shown]
        assert np.abs(got - made[trial.shown]).max() < 2e-3


def test_pro_lab_fixations_are_the_makers(tmp_path):
    """The means of samples are the places that the maker wrote beside each of them."""
    EXPORTS["tobii_pro_lab"](tmp_path)
    samples, _ = Stimuli(preset="tobii_pro_lab", unknown="skip").read(tmp_path)
    columns = {"x": "Fixation point X [MCS norm]", "y": "Fixation point Y [MCS norm]"}
    columns["kind"] = "fixation"
    whole, _ = Stimuli(preset="tobii_pro_lab", unknown="skip", columns=columns).read(tmp_path)
    for one, other in zip(samples, whole, strict=True):
        np.testing.assert_allclose(one.points(50), other.points(50), atol=1e-4)


def test_each_row_of_a_table_of_fixations_is_one(tmp_path):
    """Of 80 rows without numbers none is left out, as samples would be."""
    rows = [f"{200 * i},{8 * i},48,scene_00.png" for i in range(80)]
    root = folder(tmp_path, "\n".join(["t,x,y,picture", *rows]))
    columns = {**COLUMNS, "kind": "fixation"}
    (trial,), _ = Stimuli(columns=columns, place="picture").read(root)
    assert len(trial.points(50)) == 80


def test_a_running_mean_needs_the_number_of_the_fixation(tmp_path):
    """Row 4 is the last valid one of fixation 1; fixation 2 has none."""
    rows = "0,64,48,a,1,1\n20,128,96,a,1,1\n40,192,144,a,1,1\n60,640,0,a,1,0\n80,0,0,a,2,0\n"
    root = folder(tmp_path, f"t,x,y,picture,n,v\n{rows}".replace(",a,", ",scene_00.png,"))
    columns = {**COLUMNS, "kind": "running mean"}
    with pytest.raises(ConfigError, match="kind = 'running mean' needs fixation"):
        Stimuli(columns=columns)
    columns |= {"fixation": "n", "valid": "v"}
    (trial,), _ = Stimuli(columns=columns, place="picture").read(root)
    assert trial.points(50) == pytest.approx(np.array([[0.3, 0.3]]))


OLD = {
    "Recording timestamp [μs]": "Recording timestamp",
    " [MCS norm]": " (gone)",
    "Gaze point X [DACS px]": "Gaze point X",
    " [px]": "",
    "Gaze point Y [DACS px]": "Gaze point Y",
    " [DACS px]": " (DACSpx)",
}


@pytest.mark.parametrize(
    "renamed",
    [
        {" [MCS norm]": " (MCSnorm)", "Presented Stimulus name": "Presented Media name"},
        {" [MCS norm]": " (gone)"},
        OLD,
    ],
    ids=["MCSnorm", "new DACS", "old DACS"],
)
def test_names_of_older_pro_lab_exports(tmp_path, renamed):
    """Other names of the columns, gaze in the picture or on the screen: the same places."""
    EXPORTS["tobii_pro_lab"](tmp_path)
    path = next(tmp_path.glob("Data export*.tsv"))
    text = path.read_bytes().decode("utf-16")
    before, _ = Stimuli(preset="tobii_pro_lab", unknown="skip").read(tmp_path)
    for old, new in renamed.items():
        text = text.replace(old, new)
    path.write_text(text)
    after, _ = Stimuli(preset="tobii_pro_lab", unknown="skip").read(tmp_path)
    assert [len(trial.rows) for trial in after] == [len(trial.rows) for trial in before]
    for one, other in zip(before, after, strict=True):
        assert (one.shown == other.shown).all()
        assert np.abs(one.x - other.x)[one.shown].max() < 2e-3
        assert one.rows.seconds() == pytest.approx(other.rows.seconds())


@pytest.mark.parametrize("preset", list(OPTIONS))
def test_presets_become_samples(tmp_path, preset):
    """Everybody is tested on the same two pictures of eight; scenes are the same for the same."""
    EXPORTS[preset](tmp_path)
    made = Stimuli(preset=preset, size=(64, 48), **OPTIONS[preset]).load(str(tmp_path))
    one, other = (splits for splits in made.people.values())
    assert [len(part) for part in (one.train, one.val, one.test)] == [5, 1, 2]
    assert torch.equal(one.test.columns["scene"], other.test.columns["scene"])
    assert one.train.columns["points"].shape[2] == other.test.columns["points"].shape[2]
    points = one.train.columns["points"]
    known = points[points.isfinite().all(-1)]
    assert ((known >= 0) & (known <= 1)).all()
    assert one.train.banks["frames"].rows.shape == (PICTURES, 48, 64, 3)


def test_pro_lab_on_the_screen_needs_the_place_of_the_media(tmp_path):
    """Without it neither the columns of the screen fit, nor are they taken for the picture's."""
    EXPORTS["tobii_pro_lab"](tmp_path)
    path = next(tmp_path.glob("Data export*.tsv"))
    text = path.read_bytes().decode("utf-16").replace("[MCS norm]", "(gone)")
    path.write_text(text.replace("Presented Media width [px]", "gone"))
    with pytest.raises(DataError, match=r"lacks 'Gaze point X \[MCS norm\]' or .* width \[px\]'"):
        Stimuli(preset="tobii_pro_lab", unknown="skip").read(tmp_path)
    path.write_text(text.replace("640\t480\t320\t272", "\t\t\t"))
    with pytest.raises(DataError, match=r"row \d+: 'Presented Media position X .* is empty: where"):
        Stimuli(preset="tobii_pro_lab", unknown="skip").read(tmp_path)


def test_real_fixations_written_as_a_table_are_those_of_osie(tmp_path):
    """Three viewers of the packaged OSIE sample: every fixation is where `osie` has it."""
    table, _ = read_fixations(SAMPLE)
    rows = ["viewer;number;start;gx;gy;picture"]
    own = (table["viewer"] < 3) & (table["order"] > 0)
    for viewer, image, order, x, y in zip(
        *(table[name][own] for name in ("viewer", "image", "order", "x", "y")), strict=True
    ):
        place = [str(float(side)).replace(".", ",") for side in (x, y)]
        cells = (f"v{viewer:02d}", order, 200 * int(order), *place, f"{image}.jpg")
        rows.append(";".join(map(str, cells)))
    (tmp_path / "all.csv").write_text("\n".join(rows))
    columns = {"t": "start", "t_unit": "ms", "x": "gx", "y": "gy", "unit": "fraction"}
    columns |= {"person": "viewer", "stimulus": "picture", "fixation": "number"}
    options = {"stimuli": str(SAMPLE / "stimuli"), "place": "picture", "size": (32, 24)}
    ours = Stimuli(columns=columns, **options).load(str(tmp_path))
    theirs = Osie(viewers=(0, 1, 2), size=(32, 24)).load()
    assert list(ours.people) == list(theirs.people)
    for person, splits in theirs.people.items():
        assert fixations_of(ours.people[person]) == fixations_of(splits)


def fixations_of(splits):
    """Fixations of a person, by picture, to four digits."""
    found = {}
    for part in (splits.train, splits.val, splits.test):
        for scene, points in zip(part.columns["scene"], part.columns["points"][:, 0], strict=True):
            known = points[points.isfinite().all(-1)]
            found[int(scene)] = (known * 1e4).round().int().tolist()
    return found


def test_fixations_are_the_means_of_their_rows(tmp_path):
    """Rows 1 and 2 are fixation 7, row 3 is a saccade, row 4 is fixation 8, row 5 is off."""
    text = (
        "t,x,y,picture,kind,n\n"
        "0,64,48,scene_00.png,Fixation,7\n20,192,48,scene_00.png,Fixation,7\n"
        "40,320,240,scene_00.png,Saccade,1\n60,320,240,scene_00.png,Fixation,8\n"
        "80,700,240,scene_00.png,Fixation,9\n"
    )
    columns = {**COLUMNS, "event": "kind", "fixation": "n"}
    (trial,), _ = Stimuli(columns=columns, place="picture").read(folder(tmp_path, text))
    assert trial.points(50) == pytest.approx(np.array([[0.2, 0.1], [0.5, 0.5]]))
    assert trial.shown.tolist() == [True] * 4 + [False]


def test_samples_without_fixations_are_thinned_evenly(tmp_path):
    rows = [f"{20 * i},{64 * (i % 10)},48,scene_00.png" for i in range(1000)]
    root = folder(tmp_path, "\n".join(["t,x,y,picture", *rows]))
    (trial,), _ = Stimuli(columns=COLUMNS, place="picture").read(root)
    assert trial.points(50).shape == (50, 2)
    assert trial.points(2000).shape == (1000, 2)


def test_places_on_the_screen(tmp_path):
    """A screen of 1280 x 1024 and a picture of 640 x 480: the screen's middle is the picture's.

    320, 272 is the picture's corner where it is centred; filled, it lies at a quarter across and
    272 / 1024 down; as large as fits, the picture is 1280 x 960 with 32 pixels above it.
    """
    text = "t,x,y,picture\n0,640,512,scene_00.png\n20,320,272,scene_00.png\n"
    root = folder(tmp_path, text)
    screen = {"screen": SCREEN}
    centre = places(root, place="centre", **screen)
    assert centre == pytest.approx(np.array([[0.5, 0.5], [0, 0]]))
    assert places(root, offset=(320, 272), **screen) == pytest.approx(centre)
    filled = places(root, place="fill", **screen)
    assert filled[1] == pytest.approx([0.25, 272 / 1024])
    assert places(root, place="fit", **screen)[1] == pytest.approx([0.25, 240 / 960])
    large = places(root, offset=(0, 0), shown_size=SCREEN, **screen)
    assert large == pytest.approx(filled)
    fraction = {**COLUMNS, "unit": "fraction"}
    (root / "p1" / "gaze.csv").write_text("t,x,y,picture\n0,0.25,0.265625,scene_00.png\n")
    assert places(root, fraction, place="centre", **screen) == pytest.approx(np.array([[0, 0]]))


def test_degrees_on_a_screen(tmp_path):
    """10 degrees at 60 cm are 10.58 cm: of 40 cm across from the middle, 0.5 + 0.2645."""
    root = folder(tmp_path, "t,x,y,picture\n0,10,0,scene_00.png\n")
    degrees = {**COLUMNS, "unit": "deg"}
    seen = {"screen_cm": (40, 30), "distance_cm": 60, "place": "fill", "origin": "centre"}
    across = 0.5 + 60 * np.tan(np.radians(10)) / 40
    assert places(root, degrees, **seen) == pytest.approx(np.array([[across, 0.5]]))
    with pytest.raises(ConfigError, match="unit = 'deg' needs screen_cm"):
        places(root, degrees, place="fill")


MEDIA = ("left", "top", "width", "height")


@pytest.mark.parametrize(
    ("unit", "x", "y", "options"),
    [
        ("px", 480, 392, {}),
        ("px", 480, 392, {"screen": (2, 2)}),
        ("px", 480, 632, {"origin": "bottom_left", "screen": SCREEN}),
        ("px", -160, 120, {"origin": "centre_up", "screen": SCREEN}),
        ("fraction", 480 / 1280, 392 / 1024, {"screen": SCREEN}),
        ("fraction", -160 / 1280, -120 / 1024, {"origin": "centre", "screen": SCREEN}),
        (
            "deg",
            np.degrees(np.arctan(-160 / 1280 * 40 / 60)),
            np.degrees(np.arctan(-120 / 1024 * 30 / 60)),
            {"origin": "centre", "screen": SCREEN, "screen_cm": (40, 30), "distance_cm": 60},
        ),
    ],
)
def test_a_place_that_the_table_states_counts_in_every_unit(tmp_path, unit, x, y, options):
    """A picture of 640 x 480 in the middle of the screen: a quarter across and a quarter down."""
    text = f"t,x,y,picture,{','.join(MEDIA)}\n0,{x},{y},scene_00.png,320,272,640,480\n"
    columns = {**COLUMNS, "unit": unit, "media": MEDIA}
    got = places(folder(tmp_path, text), columns, **options)
    assert got == pytest.approx(np.array([[0.25, 0.25]]))


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("fraction", {}),
        ("px", {"origin": "centre"}),
        ("deg", {"screen_cm": (40, 30), "distance_cm": 60}),
    ],
)
def test_a_place_that_the_table_states_needs_the_screen(tmp_path, unit, options):
    text = f"t,x,y,picture,{','.join(MEDIA)}\n0,0.1,0.1,scene_00.png,320,272,640,480\n"
    root, columns = folder(tmp_path, text), {**COLUMNS, "unit": unit, "media": MEDIA}
    told = f"in {unit} from origin = '{options.get('origin', 'top_left')}': set screen = "
    with pytest.raises(ConfigError, match=f"gaze.csv states .* in pixels of the screen, .* {told}"):
        places(root, columns, **options)


def test_the_place_has_to_be_said(tmp_path):
    root = folder(tmp_path, "t,x,y,picture\n0,640,512,scene_00.png\n")
    with pytest.raises(ConfigError, match=r"gaze counts on the screen: set screen"):
        places(root)
    with pytest.raises(ConfigError, match=r"where was the picture on the screen\? set place"):
        places(root, screen=SCREEN)
    with pytest.raises(DataError, match=r"1 of 1 valid samples lie outside .* row 2 \(640, 512\)"):
        places(root, place="picture")


def test_a_stimulus_without_a_file_is_named_or_counted(tmp_path):
    text = "t,x,y,picture\n0,64,48,scene_00.png\n20,64,48,break.png\n40,64,48,-\n"
    root = folder(tmp_path, text)
    with pytest.raises(DataError, match=r"row 3: stimulus 'break.png' has no picture or video"):
        Stimuli(columns=COLUMNS, place="picture").read(root)
    trials, left_out = Stimuli(columns=COLUMNS, place="picture", unknown="skip").read(root)
    assert len(trials) == 1
    assert "stimuli without a file: break.png (1)" in left_out


def test_names_with_folders_of_windows_and_without_extension(tmp_path):
    text = "t,x,y,picture\n0,64,48,C:\\exp\\Scene_00.PNG\n20,64,48,scene_00\n"
    trials, _ = Stimuli(columns=COLUMNS, place="picture").read(folder(tmp_path, text))
    assert {trial.stimulus.name for trial in trials} == {"scene_00.png"}


def test_time_begins_anew_with_a_stimulus_but_not_within_one(tmp_path):
    text = "t,x,y,picture,trial\n90,64,48,scene_00.png,1\n0,64,48,scene_00.png,2\n"
    root = folder(tmp_path, text)
    trials, _ = Stimuli(columns={**COLUMNS, "trial": "trial"}, place="picture").read(root)
    assert len(trials) == 2
    with pytest.raises(DataError, match=r"row 3: 't' goes back from 90 to 0 \(p1 on scene_00.png"):
        Stimuli(columns=COLUMNS, place="picture").read(root)


def test_an_empty_person_is_refused(tmp_path):
    text = "who,t,x,y,picture\nann,0,64,48,scene_00.png\n,20,64,48,scene_00.png\n"
    columns = {**COLUMNS, "person": "who"}
    with pytest.raises(DataError, match="row 3: 'who' is empty: whose row is it"):
        Stimuli(columns=columns, place="picture").read(folder(tmp_path, text))


def test_too_few_stimuli(tmp_path):
    root = folder(tmp_path, "t,x,y,picture\n0,64,48,scene_00.png\n")
    with pytest.raises(DataError, match="stimuli: 1 are too few for shares"):
        Stimuli(columns=COLUMNS, place="picture").load(str(root))


def test_videos_on_a_screen_are_cut_into_windows_split_by_video(tmp_path):
    rows = ["who,t,x,y,clip"]
    for i in range(6):
        write_video(tmp_path / "stimuli" / f"clip{i}.mp4", np.arange(15) / 5)
        for who in ("ann", "bob"):
            rows += [f"{who},{1000 * i + 50 * k},32,12,clip{i}.mp4" for k in range(60)]
    (tmp_path / "gaze.csv").write_text("\n".join(rows))
    columns = {**COLUMNS, "person": "who", "stimulus": "clip"}
    options = {"place": "picture", "window": 3, "step_s": 0.2, "size": (64, 48)}
    made = Stimuli(columns=columns, clock="sort", **options).load(str(tmp_path))
    ann, bob = made.people.values()
    assert ann.train.columns["points"].shape[1:] == (3, 1, 2)
    assert ann.train.columns["points"][0, 0, 0].tolist() == [0.5, 0.25]
    assert torch.equal(ann.test.columns["scene"], bob.test.columns["scene"])
    tested = set((ann.test.columns["scene"] // 100_000).tolist())
    trained = set((ann.train.columns["scene"] // 100_000).tolist())
    assert tested
    assert not tested & trained


def test_pictures_and_videos_do_not_mix(tmp_path):
    root = folder(tmp_path, "t,x,y,picture\n")
    names = [*pictures(root / "stimuli", 6), "clip.mp4"]
    write_video(root / "stimuli" / "clip.mp4", np.arange(5) / 5)
    rows = [f"{20 * i},6,4,{name}" for i, name in enumerate(names)]
    (root / "p1" / "gaze.csv").write_text("\n".join(["t,x,y,picture", *rows]))
    with pytest.raises(DataError, match="pictures and videos together"):
        Stimuli(columns=COLUMNS, place="picture").load(str(root))


def test_pictures_of_one_name_are_told_apart_by_their_folder_or_refused(tmp_path):
    for name in ("one", "two"):
        pictures(tmp_path / "stimuli" / name)
    text = "t,x,y,picture\n0,64,48,{}\n20,192,48,{}\n"
    (tmp_path / "gaze.csv").write_text(text.format(*["shown\\two\\scene_00.png"] * 2))
    made = Stimuli(columns=COLUMNS, place="picture")
    (trial,), _ = made.read(tmp_path)
    assert trial.stimulus == tmp_path / "stimuli" / "two" / "scene_00.png"
    (tmp_path / "gaze.csv").write_text(text.format(*["scene_00.png"] * 2))
    with pytest.raises(DataError, match=r"'scene_00\.png' may be one/scene_00.png or two/scene_00"):
        made.read(tmp_path)


def test_a_fixation_of_two_eyes_is_one(tmp_path):
    """The right eye lands 2 ms later and leaves 2 ms earlier; a second fixation is of one eye."""
    lines = [
        "SAMPLES GAZE LEFT RIGHT RATE 1000",
        "MSG 5 TRIALID 1",
        "MSG 5 !V TRIAL_VAR image a.png",
    ]
    lines += [f"{t} {x} 10 9 {x} 10 9" for t, x in [*((t, 10) for t in range(10, 20))]]
    lines += [f"{t} 30 10 9 30 10 9" for t in range(20, 30)]
    lines += ["EFIX R 12 17", "EFIX L 10 19", "EFIX L 21 28"]
    (tmp_path / "ann.asc").write_text("\n".join(lines))
    rows, _ = read_asc(tmp_path / "ann.asc")
    assert rows.fixation[:10].tolist() == [0.0] * 10
    trial = StimulusTrial("ann", tmp_path / "a.png", rows, rows.x / 100, rows.y / 100)
    np.testing.assert_allclose(trial.points(50), [[0.1, 0.1], [0.3, 0.1]], atol=1e-6)


def test_asc_with_two_eyes_fill_and_trial_variables(tmp_path):
    """The eyes' mean; one eye lost counts the other; FILL is the screen; a variable names it."""
    lines = [
        *(
            "MSG 1 GAZE_COORDS 0 0 1279 1023",
            "MSG 5 TRIALID 1",
            "START 5 LEFT RIGHT SAMPLES EVENTS",
        ),
        *(
            "SAMPLES GAZE LEFT RIGHT RATE 1000",
            "9 1 1 9 1 1 9 .....",
            "MSG 10 !V IMGLOAD FILL a.png",
        ),
        *("10 100 200 9 120 220 9 .....", "11 . . 0 120 220 9 .....", "12 . . 0 . . 0 ....."),
        *("MSG 13 !V TRIAL_VAR picture scene_00.png", "MSG 14 TRIAL_RESULT 0"),
    ]
    (tmp_path / "ann.asc").write_text("\n".join(lines))
    rows, screen = read_asc(tmp_path / "ann.asc", "picture")
    assert screen == SCREEN
    assert rows.x[:2].tolist() == [110, 120]
    assert rows.y[:2].tolist() == [210, 220]
    assert rows.valid.tolist() == [True, True, False]
    assert set(rows.stimulus) == {"scene_00.png"}
    assert rows.media[0].tolist() == [0, 0, *SCREEN]
    assert set(read_asc(tmp_path / "ann.asc")[0].stimulus) == {"a.png"}


def asc_of_two_pictures(folder: Path, second_ms: int, *after: str) -> Path:
    """A trial that loads a.png at 10 ms and b.png later, at other places; six samples."""
    loads = {10: "a.png 640 512 1280 1024", second_ms: "b.png 320 272 640 480"}
    lines = ["MSG 1 GAZE_COORDS 0 0 1279 1023", "MSG 5 TRIALID 7", "SAMPLES GAZE LEFT RATE 100"]
    for t in range(0, 60, 10):
        lines += [f"MSG {at} !V IMGLOAD CENTER {loads[at]}" for at in loads if t <= at < t + 10]
        lines.append(f"{t} {100 + t} 200 9")
    file = folder / "ann.asc"
    file.write_text("\n".join([*lines, "EFIX L 0 50", *after, "MSG 59 TRIAL_RESULT 0"]))
    return file


def test_two_pictures_of_a_trial_have_the_gaze_of_their_own_time(tmp_path):
    rows, _ = read_asc(asc_of_two_pictures(tmp_path, 30))
    assert rows.stimulus.tolist() == ["a.png"] * 2 + ["b.png"] * 3
    assert rows.ticks.tolist() == [10, 20, 30, 40, 50]
    assert rows.media[0].tolist() == [0, 0, 1280, 1024]
    assert rows.media[-1].tolist() == [0, 32, 640, 480]
    for name in ("a", "b"):
        rows, _ = read_asc(
            asc_of_two_pictures(tmp_path, 30, f"MSG 55 !V TRIAL_VAR which {name}.png"), "which"
        )
        assert set(rows.stimulus) == {f"{name}.png"}
        assert len(rows) == {"a": 2, "b": 3}[name]


def test_two_pictures_at_once_are_refused_unless_one_is_named(tmp_path):
    """Gaze on the left one of a pair is no gaze on the right one."""
    with pytest.raises(DataError, match=r"trial 7 shows a\.png and b\.png at once"):
        read_asc(asc_of_two_pictures(tmp_path, 15))
    file = asc_of_two_pictures(tmp_path, 15, "MSG 55 !V TRIAL_VAR which b.png")
    rows, _ = read_asc(file, "which")
    assert set(rows.stimulus) == {"b.png"}
    assert rows.media[0].tolist() == [0, 32, 640, 480]


def test_a_picture_that_is_loaded_again_goes_on(tmp_path):
    file = asc_of_two_pictures(tmp_path, 30)
    file.write_text(file.read_text().replace("b.png 320 272 640 480", "a.png 640 512 1280 1024"))
    rows, _ = read_asc(file)
    assert rows.ticks.tolist() == [10, 20, 30, 40, 50]
    assert set(rows.stimulus) == {"a.png"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("11 abc 200 9", "line 4 is '11 abc 200 9', no line of an EyeLink ASC file"),
        ("11 100", "line 4 is '11 100', no line of"),
    ],
)
def test_damaged_asc(tmp_path, line, said):
    lines = ["MSG 5 TRIALID 1", "MSG 6 !V IMGLOAD FILL a.png", "10 100 200 9", line]
    (tmp_path / "ann.asc").write_text("\n".join(lines))
    with pytest.raises(DataError, match=said):
        read_asc(tmp_path / "ann.asc")
    (tmp_path / "ann.asc").write_text("\n".join(["MSG 5 TRIALID 1", "10 100 200 9"]))
    with pytest.raises(DataError, match=r"1 trials, and none names its picture \('!V IMGLOAD'\)"):
        read_asc(tmp_path / "ann.asc")


def test_pictures_loaded_in_their_own_size(tmp_path):
    """CENTER 640 512 of a picture of 640 x 480: its corner is at 320, 272, as for TOP_LEFT."""
    pictures(tmp_path / "stimuli", 1)
    for how, x, y in (("CENTER", 640, 512), ("TOP_LEFT", 320, 272)):
        shown = f"MSG 6 !V IMGLOAD {how} scene_00.png {x} {y}"
        lines = ["MSG 5 TRIALID 1", shown, "SAMPLES GAZE LEFT RATE 500", "10 480 392 9"]
        (tmp_path / "ann.asc").write_text("\n".join(lines))
        (trial,), _ = Stimuli(preset="eyelink_asc").read(tmp_path)
        assert (trial.x[0], trial.y[0]) == pytest.approx((0.25, 0.25)), how
