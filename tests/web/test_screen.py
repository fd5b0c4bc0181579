"""Places, directions and angles of the page are Python's; pictures are counted when they are taken.

Node runs the page's modules, with clocks, cameras and windows that a test makes.
"""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.data.heads import corners, turned, webcam
from vergence.data.eye_images.camera import Camera
from vergence.data.eye_images.screen_pose import Screen
from vergence.live.calibration import ABOVE_MM, CalibrationPlan
from vergence.live.eye_sources import FaceCamera

PAGE = Path(__file__).parents[2] / "src" / "vergence" / "web"
SIZE = (344.0, 194.0)
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None, reason="node runs the page's code in this test"
)
ANGLES = """
import { NINE, directionOf, gazeAt, placeOf, pointOf } from "./screen.js";
const { size, patches } = input;
const places = NINE.map((share) => placeOf(share.map((value, axis) => value * size[axis]), size));
const eyes = patches.map((patch) => places.map((place) => {
  const gaze = gazeAt(patch, place), direction = directionOf(patch, gaze);
  return { gaze, direction, point: pointOf(patch.centre, direction, size) };
}));
print({ places, eyes, behind: pointOf([0, 0, 600], [0, 0, 1], size) });
"""
WINDOWS = """
import { guessedSize, windowPlace } from "./screen.js";
print({
  places: input.views.map((view) => windowPlace(input.size, view)),
  sizes: input.screens.map(([screen, coarse]) => guessedSize(screen, coarse)),
});
"""
SLOW = """
import { samplesOfDot } from "./calibration.js";
let now = 0;
const clock = () => now, pause = async () => { now += 1; };
const patch = { pixels: [0, 9], pose: [0, 0], side: 0, centre: [0, 0, 600],
  rotation: [[1, 0, 0], [0, 1, 0], [0, 0, 1]] };
const results = [];
for (const took of [20, 700, 20000]) {
  now = 0;
  const moments = [];
  // The picture shows the moment at which the look began.
  const look = async () => {
    const pose = [now, 0];
    now += took;
    return { patches: [{ ...patch, pose }] };
  };
  const target = { unit: 3, place: [10, 20], size: [344, 194] };
  const rows = await samplesOfDot(look, async () => [0, 0], target,
    { clock, pause, ended: () => false });
  results.push(rows.map((row) => row.pose[0]));
}
print(results);
"""
WORDS = """
import { aboutRun } from "./calibration.js";
const run = { name: "eyes", fingerprint: "0123456789abcdef00", vergence: "1" };
print([true, false].map((own_variances) => aboutRun({ ...run, own_variances })));
"""
LENS = """
import { eyePatches, focalOf } from "./normalization.js";
import { gazeAt } from "./screen.js";
const { places, heads } = input;
print(heads.map(({ width, height, points, distance }) => {
  const data = new Uint8ClampedArray(width * height * 4);
  const focal = focalOf(points, { width, height }, distance);
  const labels = [1, focal].map((each) =>
    eyePatches({ data, width, height }, points, { focal: each }).map((patch) =>
      places.map((place) => gazeAt(patch, place))));
  return { focal, labels };
}));
"""
CAMERA = """
globalThis.requestAnimationFrame = (next) => setTimeout(next, 1);
let taken = 0, frames = 0, shape = [640, 480], drawn = [];
const video = {
  play: async () => {}, srcObject: { getTracks: () => [] },
  // Each third time that anybody asks there is a new picture.
  get currentTime() { taken += 1; return input.frozen && taken > 9 ? 3 : Math.floor(taken / 3); },
  get videoWidth() { return shape[0]; }, get videoHeight() { return shape[1]; },
};
const canvas = { width: 300, height: 150, getContext: () => ({
  drawImage: () => { drawn.push(Math.floor(taken / 3)); },
  getImageData: (x, y, width, height) => ({ width, height,
    data: new Uint8ClampedArray(width * height * 4) }),
}) };
globalThis.document = { createElement: (name) => (name === "video" ? video : canvas) };
const { openEyes } = await import("./eyes.js");
const eyes = await openEyes([36, 60]);
const places = async () => (await eyes.look()).patches.map(({ centre }) => centre);
globalThis.points = input.points;
const before = await places();
await eyes.fitDistance(800, () => false);
const after = await places();
const far = await eyes.fitDistance(2900, () => false).catch((error) => error.message);
shape = [480, 640];
globalThis.points = null;
const turned = await eyes.look();
const shapes = [turned.picture.width, turned.picture.height];
print({ before, after, far, shapes, drawn });
"""


def asked(script, folder, **given):
    """Return what a script prints that runs beside the page's modules."""
    for file in PAGE.glob("*.js"):
        shutil.copy(file, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    # What a browser has and node has not: the library, and networks that find a given face.
    (folder / "assets.js").write_text("export const ort = {}, read = async () => null;")
    (folder / "landmarks.js").write_text(
        "export const loadLandmarks = async () => async () =>"
        " globalThis.points && { points: globalThis.points };"
    )
    begin = 'import { readFileSync } from "node:fs";\nconst input = JSON.parse(readFileSync(0));\n'
    end = "\nfunction print(value) { console.log(JSON.stringify(value)); }\n"
    (folder / "run.js").write_text(begin + script + end)
    ended = subprocess.run(
        ["node", "run.js"],
        cwd=folder,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout)


def eyes_of(points, camera):
    """Return Python's patches of the seven landmarks of a face."""
    grey = np.full((camera.size[1], camera.size[0], 3), 90, np.uint8)
    return FaceCamera(lambda _: points, 36, 60, camera).patches(grey)


def test_places_and_angles_are_those_of_python(tmp_path):
    """Both eyes of two heads that are turned and not in the middle, so that no sign is lost."""
    camera, plan = webcam(), CalibrationPlan(*SIZE)
    heads = [((5, -20, 8), (40.0, 25.0, 620.0)), ((-15, 12, -20), (-60.0, 70.0, 480.0))]
    eyes = [
        eye.seen
        for angles, place in heads
        for eye in eyes_of(corners(turned(*angles), np.array(place), camera), camera)
    ]
    patches = [
        {
            "rotation": eye.rotation.tolist(),
            "centre": eye.centre.tolist(),
            "side": int(eye.mirrored),
        }
        for eye in eyes
    ]
    page = asked(ANGLES, tmp_path, size=SIZE, patches=patches)
    np.testing.assert_allclose(page["places"], plan.places_mm, atol=1e-9)
    screen = Screen.facing(SIZE[0] / 2, -ABOVE_MM)
    for eye, rows in zip(eyes, page["eyes"], strict=True):
        for target, point, row in zip(plan.places_mm, plan.points_mm, rows, strict=True):
            gaze = eye.gaze(target)
            direction = eye.direction(gaze)
            np.testing.assert_allclose(row["gaze"], gaze, atol=1e-9)
            np.testing.assert_allclose(row["direction"], direction, atol=1e-9)
            wanted = screen.points(eye.centre[None], direction[None])[0]
            np.testing.assert_allclose(row["point"], wanted, atol=1e-6)
            np.testing.assert_allclose(row["point"], point, atol=1e-6)
    assert page["behind"] is None


def view(screen, corner, fullscreen=False):
    """Return a window of 1000 x 700 pixels with a bar of 80 pixels above its page."""
    whole = {"width": 1920, "height": 1080, "availWidth": 1920, "availHeight": 1080}
    return {
        "screen": whole | screen,
        "screenX": corner[0],
        "screenY": corner[1],
        "outerWidth": 1000,
        "innerWidth": 1000,
        "outerHeight": 780,
        "innerHeight": 700,
        "document": {"fullscreenElement": {} if fullscreen else None},
    }


def test_windows_are_placed_on_their_own_screen(tmp_path):
    """The right and the left one of two screens, a dock at an edge, a full screen; and sizes."""
    dock = {"availLeft": 70, "availTop": 25, "availWidth": 1850, "availHeight": 1055}
    views = [
        view({}, (100, 50)),
        view({"availLeft": 1920, "availTop": 0}, (2020, 50)),
        view({"availLeft": -1920, "availTop": 200}, (-1820, 250)),
        view(dock, (100, 50)),
        view({}, (0, 0), fullscreen=True),
    ]
    screens = [
        [{"width": 390, "height": 844}, True],
        [{"width": 390, "height": 844}, False],
        [{"width": 844, "height": 390}, True],
        [{"width": 800, "height": 1280}, True],
        [{"width": 1280, "height": 800}, False],
    ]
    page = asked(WINDOWS, tmp_path, size=[384, 216], views=views, screens=screens)
    *windows, full = page["places"]
    for scale, corner in windows:
        assert scale == pytest.approx([0.2, 0.2])
        assert corner == pytest.approx([20, 26])
    assert full == [pytest.approx([0.384, 216 / 700]), [0, 0]]
    assert page["sizes"] == [["", ""], ["", ""], ["", ""], [127, 203], [344, 215]]


def test_pictures_count_from_when_they_were_taken(tmp_path):
    """On a slow device, a look that begins before the eye has arrived ends long after."""
    quick, slow, slowest = asked(SLOW, tmp_path)
    assert len(quick) == len(slow) == 5
    assert min(quick) >= 1000
    assert min(slow) >= 1000
    assert slowest == []


def test_a_page_says_whose_variances_it_has(tmp_path):
    own, others = asked(WORDS, tmp_path)
    assert "other people" not in own
    assert "measured on other people" in others


def test_a_measured_distance_takes_the_place_of_the_lens(tmp_path):
    """A webcam that sees 70 degrees across: by a guessed lens, labels are wrong by degrees."""
    width, height = 640, 480
    pixels = width / 2 / np.tan(np.radians(35))
    matrix = np.array([[pixels, 0, (width - 1) / 2], [0, pixels, (height - 1) / 2], [0, 0, 1.0]])
    camera, plan = Camera(matrix, (width, height), np.zeros(5)), CalibrationPlan(*SIZE)
    heads, truth = [], []
    for angles, place in [((0, 0, 0), (0.0, 60.0, 600.0)), ((8, -15, 5), (50.0, 40.0, 560.0))]:
        points = corners(turned(*angles), np.array(place), camera)
        eyes = [eye.seen for eye in eyes_of(points, camera)]
        distance = float(np.mean([eye.centre[2] for eye in eyes]))
        flat = points.ravel().tolist()
        heads.append({"points": flat, "distance": distance, "width": width, "height": height})
        truth.append([eye.gaze(place) for eye in eyes for place in plan.places_mm])
    page = asked(LENS, tmp_path, places=plan.places_mm.tolist(), heads=heads)
    for row, wanted in zip(page, truth, strict=True):
        assert row["focal"] == pytest.approx(pixels / width, rel=1e-3)
        guess, fitted = (
            np.degrees(np.abs(np.reshape(labels, (-1, 2)) - wanted).max())
            for labels in row["labels"]
        )
        assert guess > 3
        assert fitted < 0.01


def test_a_camera_s_distance_and_shape_are_those_of_the_moment(tmp_path):
    """Each picture is drawn once, a turned phone changes its shape, and a lens is fitted."""
    points = corners(turned(), np.array([0.0, 20.0, 600.0]), webcam(focal=640.0)).ravel().tolist()
    page = asked(CAMERA, tmp_path, points=points, frozen=False)
    depths = [np.mean([centre[2] for centre in page[when]]) for when in ("before", "after")]
    assert depths[0] == pytest.approx(640, abs=5)
    assert depths[1] == pytest.approx(800, abs=0.1)
    assert "290 cm" in page["far"]
    assert "measure the distance" in page["far"]
    assert page["shapes"] == [480, 640]
    assert len(set(page["drawn"])) == len(page["drawn"]) > 10


def test_a_camera_that_gives_no_new_picture_shows_no_eyes(tmp_path):
    script = CAMERA.partition("const before")[0] + (
        "const seen = [];\n"
        "for (let i = 0; i < 5; i++) seen.push((await eyes.look()).patches.length);\n"
        "print(seen);"
    )
    points = corners(turned(), np.array([0.0, 20.0, 600.0]), webcam(focal=640.0)).ravel().tolist()
    seen = asked(script, tmp_path, points=points, frozen=True)
    assert seen[0] == 2
    assert seen[-1] == 0
