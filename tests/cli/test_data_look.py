"""`vergence data look`: numbers against counts by hand, pictures, refusals, and hostile names."""

import csv
import gzip
import html
import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.cli.commands import SEVERAL, vergence, write
from tests.data.fabricated_exports import EXPORTS, PICTURE_SIZE, pictures
from vergence.data.areas import hits
from vergence.data.fixations import positions
from vergence.data.gaze_tracks import GazeTrack, _shown_angle
from vergence.data.gaze_video.gaze import Gaze
from vergence.data.saliency.osie import SAMPLE
from vergence.data.saliency.stimuli import Stimuli

EXPERIMENT = """
task       = { name = "TASK" }
model      = { name = "MODEL" }
federation = { FEDERATION }
method     = "fedavg"
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
"""

RIGHT_ENDS = """() => Object.fromEntries([...document.querySelectorAll("caption")].map((each) => {
  const text = document.createRange();
  text.selectNodeContents(each);
  return [each.textContent, text.getBoundingClientRect().right];
}))"""


@pytest.fixture(autouse=True)
def without_library(monkeypatch):
    """Most tests are about what needs no library; those with it are in tests/data."""
    monkeypatch.setitem(sys.modules, "pymovements", None)
    monkeypatch.setenv("COLUMNS", "1000")


def looked(tmp_path, target, *args):
    """The command, and the text of its page."""
    out = tmp_path / "look.html"
    answer = vergence("data", "look", target, "--out", out, *args)
    assert answer.code == 0, answer.err
    return answer.out, out.read_text(encoding="utf-8")


def table(page, caption):
    """Rows of the page's table below a caption or heading, as texts of cells."""
    (text,) = re.findall(rf'id="{caption}".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    cells = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
    return [[html.unescape(c) for c in cells.findall(row)] for row in text.split("</tr>")][:-1]


def counted(t, valid, outside=None):
    """Cells of one person's row by hand: time, samples, Hz, valid, outside, gaps, longest."""
    t, valid = np.asarray(t), np.asarray(valid)
    outside = np.zeros(len(t), bool) if outside is None else outside
    between = np.diff([t[0], *t[valid], t[-1]])
    lost = between[between > 0.5]
    shares = (f"{100 * part.mean():.1f}%" for part in (valid, outside))
    longest = f"{max(lost, default=0):.1f} s"
    hz = f"{1 / np.median(np.diff(t)):.0f}"
    return [f"{t[-1] - t[0]:.1f} s", f"{len(t)}", hz, *shares, f"{len(lost)}", longest]


def test_pupil_folder(tmp_path):
    root = tmp_path / "data"
    EXPORTS["pupil_player"](root)
    path = root / "p1" / "exports" / "000" / "gaze_positions.csv"
    lines = path.read_text().splitlines()
    # A gap of two seconds: rows are gone, as trackers leave them out.
    path.write_text("\n".join(lines[:200] + lines[240:]) + "\n")
    text, page = looked(tmp_path, root)
    assert "format: Pupil Player export" in text
    rows = csv.DictReader(path.read_text().splitlines())
    rows = sorted(rows, key=lambda row: float(row["gaze_timestamp"]))
    t = np.array([float(row["gaze_timestamp"]) for row in rows])
    valid = np.array([float(row["confidence"]) >= 0.6 for row in rows])
    (first, second) = table(page, "people")
    assert first[:2] == ["p1", "1"]
    assert first[2:9] == counted(t, valid)
    assert first[7:9] == ["1", "2.0 s"]
    assert second[7:9] == ["0", "0.0 s"]
    assert "2 recordings read, 2 people" in page
    # 36 fixations of 980 ms stand in the maker's table.
    assert table(page, "fixations")[0][:4] == ["p1", "the maker's", "36", "980 ms"]
    assert page.count('class="lost"') == 1
    assert page.count("data:image/jpeg") == 2 * 4


def test_tobii_folder(tmp_path):
    root = tmp_path / "data"
    EXPORTS["tobii_glasses3"](root)
    text, page = looked(tmp_path, root)
    (path,) = root.glob("p1/*/gazedata.gz")
    entries = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    gaze = [entry for entry in entries if entry["type"] == "gaze"]
    t = [entry["timestamp"] for entry in gaze]
    assert table(page, "people")[0][2:9] == counted(t, ["gaze2d" in e["data"] for e in gaze])
    assert "no fixations by a library: the detection of fixations needs pymovements" in text
    assert "pip install 'vergence[look]'" in html.unescape(page)
    assert "<td>I-" not in page


def test_eyelink_folder(tmp_path):
    """Samples are lines that begin with a number, from the message that loads the picture on."""
    root = tmp_path / "data"
    EXPORTS["eyelink_asc"](root)
    text, page = looked(tmp_path, root)
    seconds, valid, fixations = 0.0, [], []
    for trial in (root / "p1.asc").read_text().split("TRIALID")[2:]:
        lines = trial.split("IMGLOAD")[1].splitlines()
        samples = [line.split() for line in lines if line[:1].isdigit()]
        seconds += (float(samples[-1][0]) - float(samples[0][0])) / 1e3
        valid += [words[1] != "." for words in samples]
        fixations += [line for line in lines if line.startswith("EFIX")]
    row = table(page, "people")[0]
    assert row[1:4] == ["8", f"{seconds:.1f} s", str(len(valid))]
    assert row[5] == f"{100 * np.mean(valid):.1f}%"
    assert table(page, "fixations")[0][2] == str(len(fixations)) == "16"
    assert "left out: p1_log.txt, p2_log.txt, participants.csv (no gaze)" in page
    assert "left out: p1_log.txt, p2_log.txt, participants.csv (no gaze)" in text
    assert page.count(", 2 viewings</figcaption>") == 8


def test_published_fixations(tmp_path):
    """Of OSIE's packaged pictures: fixations after the first, their lengths, and no clock."""
    federation = 'name = "osie", viewers = [3, 5]'
    text = EXPERIMENT.replace("TASK", "gaze_map").replace("FEDERATION", federation)
    text = text.replace('"MODEL"', '"glc_features", grid = [30, 40], width = 32')
    _, page = looked(tmp_path, write(tmp_path, text, "osie.toml"))
    with np.load(SAMPLE / "fixations.npz") as published:
        viewer, order = published["viewer"], published["order"]
        lengths, x = published["duration_ms"], published["x"]
    own = (viewer == 3) & (order >= 1)
    row = table(page, "fixations")[0]
    assert row[:3] == ["v03", "the maker's", f"{own.sum():,}"]
    assert row[3] == f"{np.median(lengths[own]):.0f} ms"
    assert table(page, "people")[0][3].split(",")[0] == f"{100 * np.median(x[own]):.0f}"
    assert "samples per second" not in page
    assert "Without those of a library" not in page


def test_eye_images(tmp_path):
    federation = 'name = "eye_synthetic", people = 3, size = "9x15"'
    text = EXPERIMENT.replace("TASK", "gaze_angle").replace("MODEL", "small_eye")
    path = write(tmp_path, text.replace("FEDERATION", federation), "eyes.toml")
    answer, page = looked(tmp_path, path)
    from vergence.experiment.schema import load

    people = load(path).dataset.load(None).people
    (name, parts) = next(iter(people.items()))
    every = np.concatenate([part.columns["gaze"].numpy() for part in vars(parts).values()])
    low, high = np.percentile(np.degrees(every[:, 1]), (5, 95))
    row = table(page, "people")[0]
    yaw = f"{low:.1f} to {high:.1f}".replace("-", "−")
    assert row[:3] == [name, f"{len(every):,}", yaw]
    assert yaw in answer
    assert page.count("data:image/jpeg") == 2 * 3


HOSTILE = "<img src=x onerror=alert(1)>&\u202e"


def test_hostile_names_stay_text_and_nothing_is_fetched(tmp_path):
    root = tmp_path / "data"
    EXPORTS["pupil_neon"](root)
    (root / "p1").rename(root / HOSTILE)
    text, page = looked(tmp_path, root)
    assert "<img" not in page
    assert "onerror=alert(1)&gt;" in page
    assert "\u202e" not in page + text
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|<script|<iframe", page)
    assert set(re.findall(r'(?:src|href)="([^"]{0,11})', page)) == {
        "data:image/",
        *("#left_out", "#people", "#fixations", "#pictures", "#recordings"),
    }
    assert "Content-Security-Policy\" content=\"default-src 'none'; img-src data:" in page


def test_wide_tables_scroll_and_do_not_widen_the_page(tmp_path):
    root = tmp_path / "data"
    EXPORTS["gazepoint"](root)
    _, page = looked(tmp_path, root)
    boxes = re.findall(r'<div class="scroll"[^>]*><table>', page)
    assert len(boxes) == page.count("<table") == 2
    assert 'name="viewport" content="width=device-width' in page


def test_settings_that_files_do_not_state(tmp_path):
    root = tmp_path / "data"
    EXPORTS["imotions"](root)
    vergence("data", "look", root, "--out", tmp_path / "l.html").complains(2, "screen")
    _, page = looked(tmp_path, root, "--set", "federation.screen=[1280,1024]")
    assert len(table(page, "people")) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('name = "pupil", root = "ROOT/none"', ("ROOT/none", "correct root")),
        ('name = "pupil", root = "ROOT"', ("no recordings found", "ROOT")),
        ('name = "pupil", root = "ROOT/data", people = ["zoe"]', ("zoe", "people there: p1, p2")),
    ],
)
def test_recordings_that_are_not_there(tmp_path, settings, words):
    text = EXPERIMENT.replace("TASK", "gaze_map").replace("FEDERATION", settings)
    text = text.replace('"MODEL"', '"glc_causal", grid = [30, 40], width = 32')
    EXPORTS["pupil_neon"](tmp_path / "people" / "data")
    own = tmp_path / ("people" if "data" in settings else "empty")
    own.mkdir(exist_ok=True)
    path = write(tmp_path, text.replace("ROOT", str(own)), "own.toml")
    answer = vergence("data", "look", path, "--out", tmp_path / "l.html")
    answer.complains(3, *(word.replace("ROOT", str(own)) for word in words))


def test_refusals(tmp_path):
    out = ("--out", tmp_path / "l.html")
    vergence("data", "look", write(tmp_path, SEVERAL), *out).complains(3, "toy", "x, y", "gaze")
    (tmp_path / "notes").mkdir()
    vergence("data", "look", tmp_path / "notes", *out).complains(3, "holds no gaze")
    vergence("data", "look", tmp_path / "none", *out).complains(2, "neither a folder", ".toml")
    vergence("data", "look", tmp_path, "--out", tmp_path / "l.txt").complains(2, ".html")
    assert not (tmp_path / "l.html").exists()


AREA_COLUMNS = 't = "t", x = "x", y = "y", unit = "px", t_unit = "ms", stimulus = "picture"'


def test_gaze_in_areas_of_interest_by_person_and_condition(tmp_path):
    """Rectangles in pixels or fractions, and a mask, count the same samples as by hand."""
    pictures(tmp_path / "lab" / "stimuli", 2)
    rng = np.random.default_rng(0)
    rows = {"S1": rng.uniform((0, 0), PICTURE_SIZE, (60, 2)), "S2": np.full((60, 2), 100.0)}
    lines = ["person,t,x,y,picture,session"]
    for who, places in rows.items():
        for i, (x, y) in enumerate(places):
            name = f"scene_0{i // 30}.png"
            lines.append(f"{who},{20 * (i % 30)},{x},{y},{name},{i // 30}")
    (tmp_path / "lab" / "gaze.csv").write_text("\n".join(lines))
    columns = f'columns = {{ {AREA_COLUMNS}, person = "person", conditions = ["session"] }}'
    text = EXPERIMENT.replace("TASK", "gaze_map").replace("MODEL", "glc_features")
    root = (tmp_path / "lab").as_posix()
    file = write(
        tmp_path,
        text.replace(
            "{ FEDERATION }",
            f'{{ name = "stimuli", root = "{root}", place = "picture", {columns} }}',
        ),
    )
    mask = np.zeros((48, 64), np.uint8)
    mask[5:20, 3:32] = 255
    Image.fromarray(mask).save(tmp_path / "face.png")
    tables = {
        "px.csv": "stimulus,area,left,top,right,bottom\n*,face,30,50,320,200\nscene_01,sky,0,0,9,9",
        "fractions.csv": "stimulus;area;left;top;right;bottom\n"
        "*;face;0,046875;0,1041666666;0,5;0,4166666667\n",
        "masks.csv": "stimulus,area,mask\nSCENE_00.PNG,face,face.png\nscene_01,face,face.png\n",
    }
    inside = {
        who: (places[:, 0] >= 30)
        & (places[:, 0] < 320)
        & (places[:, 1] >= 50)
        & (places[:, 1] < 200)
        for who, places in rows.items()
    }
    for name, table_text in tables.items():
        (tmp_path / name).write_text(table_text)
        said, _ = looked(tmp_path, file, "--areas", tmp_path / name)
        with (tmp_path / "look_areas.csv").open(newline="") as opened:
            found = [row for row in csv.DictReader(opened) if row["area"] == "face"]
        assert len(found) == 4
        for row in found:
            own = inside[row["person"]][30 * int(row["conditions"]) :][:30]
            assert float(row["share"]) == pytest.approx(own.mean()), (name, row)
            assert float(row["dwell_s"]) == pytest.approx(own.sum() / 50)
            if own.any():
                assert float(row["first_s"]) == pytest.approx(np.argmax(own) / 50)
        assert "Gaze in areas of interest" in said
    (tmp_path / "px.csv").write_text("stimulus,area,left,top,right,bottom\nother,a,1,1,9,9\n")
    args = ("data", "look", file, "--out", tmp_path / "look.html", "--areas")
    vergence(*args, tmp_path / "px.csv").complains(3, "no area is on what was shown")
    (tmp_path / "px.csv").write_text("stimulus,area,left,top,right,bottom\n*,a,9,1,9,9\n")
    vergence(*args, tmp_path / "px.csv").complains(3, "row 2", "left must be below right")
    (tmp_path / "px.csv").write_text("stimulus,area,left,top,right\n*,a,9,1,9\n")
    vergence(*args, tmp_path / "px.csv").complains(3, "no column 'bottom'", "mask")


def test_areas_of_a_recording_whose_condition_changes_and_of_fixations_without_times():
    t_s = np.arange(100) / 50
    x = np.where(t_s < 1, 0.9, 0.1)
    words = np.where(t_s < 1, "A", "B")[:, None]
    gaze = Gaze.build("a", t_s, x, np.full(100, 0.5))
    areas = {"*": {"left": lambda xy, _: xy[:, 0] < 0.5}}
    found = [*hits([GazeTrack("a", "p1", gaze, conditions=words)], areas)]
    assert [(h.conditions, h.samples, h.share, h.dwell_s) for h in found] == [
        ("A", 50, 0.0, 0.0),
        ("B", 50, 1.0, pytest.approx(1.0)),
    ]
    lengths = np.array([0.2, 0.3, 0.5, 0.1])
    still = Gaze.build("b", np.zeros(4), np.array([0.9, 0.8, 0.2, 0.9]), np.full(4, 0.5))
    (one,) = hits([GazeTrack("b", "p1", still, lengths_s=lengths)], areas)
    assert (one.share, one.dwell_s, one.first_s) == (0.25, 0.5, pytest.approx(0.5))
    (one,) = hits([GazeTrack("b", "p1", still)], areas)
    assert np.isnan([one.dwell_s, one.first_s]).all()


def test_degrees_of_a_picture_that_a_screen_stretches():
    """A square picture fills a screen of 53 x 30 cm: its height is that of the screen."""
    track = GazeTrack("a", "p1", Gaze.build("a", np.zeros(1), *np.full((2, 1), 0.5)))
    options = {"place": "fill", "screen_cm": (53.0, 30.0), "distance_cm": 60.0}
    columns = {"t": "t", "x": "x", "y": "y", "unit": "px", "t_unit": "ms", "stimulus": "s"}
    fov_deg, aspect = _shown_angle(Stimuli(columns=columns, **options))
    square = np.zeros((400, 400, 3), np.uint8)
    track = replace(track, picture=square, fov_deg=fov_deg, aspect=aspect)
    ends, unit = positions(track, np.array([[0.5, 0.0], [0.5, 1.0], [0.0, 0.5], [1.0, 0.5]]))
    assert unit == "\u00b0"
    assert ends[1, 1] - ends[0, 1] == pytest.approx(2 * np.degrees(np.arctan(15 / 60)))
    assert ends[3, 0] - ends[2, 0] == pytest.approx(2 * np.degrees(np.arctan(26.5 / 60)))
    assert _shown_angle(Stimuli(columns=columns, offset=(0, 0), **options)) == (None, None)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium")
def test_headings_of_wide_tables_break_on_a_phone(tmp_path):
    """A table scrolls in its box; its heading would end in the middle of a word."""
    playwright = pytest.importorskip("playwright.sync_api", reason="extra `browser`")
    EXPORTS["tobii_glasses3"](tmp_path / "data")
    looked(tmp_path, tmp_path / "data")
    with playwright.sync_playwright() as start:
        browser = start.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 390, "height": 900})
        page.goto((tmp_path / "look.html").as_uri())
        ends = page.evaluate(RIGHT_ENDS)
    assert ends["Single recordings, those with the least valid gaze first"] < 390
    assert max(ends.values()) < 390
