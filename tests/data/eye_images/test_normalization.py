"""From pictures of heads of known pose to patches and labels, and back to a point on a screen."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from tests.data.heads import EYEBALLS, IRIS, RADIUS, corners, mirrored, photograph, turned, webcam
from vergence.data.eye_images.camera import Camera, read_camera
from vergence.data.eye_images.eye_patches import verify_yaw_sign
from vergence.data.eye_images.face_patches import patches_of
from vergence.data.eye_images.mpiigaze import Mpiigaze, gaze_angles, pose_angles
from vergence.data.eye_images.normalization import (
    EYE,
    FACE,
    MPII_FACE,
    CameraView,
    eye_patch,
    eyes,
    face,
    head_pose,
    vectors,
)
from vergence.data.eye_images.screen_pose import Screen, calibrate, nine_points
from vergence.errors import DataError

PLACE = np.array([20.0, 10.0, 600.0])
TARGET = np.array([-60.0, 90.0, 0.0])
POSES = [(0, 0, 0), (12, -25, 0), (-18, 8, 35), (5, 30, -60), (-25, -30, 20)]
LENS = (-0.28, 0.09, 0.001, -0.002, 0.0)


def apart_deg(one, other):
    return np.rad2deg(Rotation.from_matrix(one.T @ other).magnitude())


def look(pose=(0, 0, 0), place=PLACE, target=TARGET, camera=None):
    """Return a picture of a head, its camera, its landmarks and its fitted pose."""
    camera = camera or webcam()
    picture = photograph(turned(*pose), place, target, camera)
    landmarks = corners(turned(*pose), place, camera)
    return picture, camera, landmarks, head_pose(landmarks, camera)


def test_the_formulas_of_the_design_note():
    """A label a user posted: (-0.01114, 0.25135, -0.9678) is pitch -14.56, yaw 0.66 degrees."""
    gaze = gaze_angles(np.array([[-0.01114, 0.25135, -0.9678]]))
    np.testing.assert_allclose(np.rad2deg(gaze), [[-14.56, 0.66]], atol=0.005)
    _, _, _, head = look((7, -12, 20))
    left, right = eyes(head)
    for eye, sign in ((left, 1), (right, -1)):
        seen = Rotation.from_matrix(eye.rotation @ head.rotation).as_rotvec()
        np.testing.assert_allclose(eye.pose, pose_angles(seen[None])[0] * [1, sign], atol=1e-9)


@pytest.mark.parametrize("camera", [webcam(), webcam(distortion=LENS)], ids=["pinhole", "lens"])
@pytest.mark.parametrize("pose", POSES)
def test_the_pose_is_found(pose, camera):
    """Half a degree is what is asked for; landmarks without noise give it to 1e-3."""
    for count in (7, 6):
        head = head_pose(corners(turned(*pose), PLACE, camera)[:count], camera)
        assert apart_deg(head.rotation, turned(*pose)) < 1e-3
        np.testing.assert_allclose(head.translation, PLACE, atol=0.01)
        assert head.error_px < 1e-3


def test_landmarks_on_whole_pixels_keep_the_pose_within_two_degrees():
    """Rounding moves landmarks by up to 0.7 pixels of a face 190 wide."""
    camera = webcam(1280, 960, 1240.0)
    for pose in POSES:
        head = head_pose(corners(turned(*pose), PLACE, camera).round(), camera)
        true = head_pose(corners(turned(*pose), PLACE, camera), camera)
        assert apart_deg(head.rotation, turned(*pose)) < 2
        for one, other in zip(eyes(head), eyes(true), strict=True):
            assert apart_deg(one.rotation.T, other.rotation.T) < 0.5


def test_a_tilted_or_distant_head_looks_as_the_upright_one():
    """The virtual camera turns with the head's roll; only shading and resolution may differ."""
    upright = look()
    expected = [eye_patch(eye, upright[0], upright[1]) for eye in eyes(upright[3])]
    tilt = Rotation.from_rotvec(np.deg2rad(35) * PLACE / np.linalg.norm(PLACE))
    cases = {
        "tilted": (tilt.as_matrix() @ turned(), PLACE, tilt.apply(TARGET)),
        "near": (turned(), 0.7 * PLACE, TARGET - 0.3 * PLACE),
    }
    for name, (rotation, place, target) in cases.items():
        camera = webcam()
        picture = photograph(rotation, place, target, camera)
        head = head_pose(corners(rotation, place, camera), camera)
        for eye, patch in zip(eyes(head), expected, strict=True):
            assert alike(eye_patch(eye, picture, camera), patch) > 0.93, name
            assert alike(eye_patch(eye, picture, camera)[:, ::-1], patch) < 0.9, name


def alike(one, other):
    return np.corrcoef(one.ravel().astype(float), other.ravel().astype(float))[0, 1]


@pytest.mark.parametrize(
    "view", [EYE, CameraView(960, 600, 224, 224), CameraView(960, 300, 90, 50)]
)
def test_the_homography_puts_the_eye_in_the_middle(view):
    """Its centre, a point 10 mm along its x axis at 600 mm: focal / distance pixels per mm."""
    _, camera, _, head = look((5, 20, -30))
    for eye in eyes(head, view):
        sign = -1 if eye.mirrored else 1
        away = np.linalg.norm(eye.centre)
        places = np.stack([eye.centre, eye.centre + 10 * eye.rotation[0]])
        pixels = np.concatenate([camera.project(places), np.ones((2, 1))], 1)
        there = pixels @ eye.warp(camera).T
        there = there[:, :2] / there[:, 2:]
        middle = [(view.width - 1) / 2, (view.height - 1) / 2]
        np.testing.assert_allclose(there[0], middle, atol=1e-6)
        step = 10 * view.focal / view.distance
        np.testing.assert_allclose(there[1] - there[0], [sign * step, 0], atol=1e-6)
        assert away == pytest.approx(np.linalg.norm(eye.rotation @ eye.centre))


def test_the_iris_is_where_the_label_says():
    """R sin of the angles, 1.6 pixels per mm, from where the patch shows the eyeball's centre."""
    for target in ([-250.0, 40.0, 0.0], [200.0, -60.0, 50.0], [0.0, 200.0, 0.0]):
        picture, camera, _, head = look((4, 6, -10), target=np.array(target))
        for eye, ball in zip(eyes(head), EYEBALLS[::-1], strict=True):
            patch = eye.cut(picture, camera)
            rows, columns = np.nonzero(patch < 100)
            inner = np.hypot(rows - 17.5, columns - 29.5) < 13
            assert inner.sum() > 100
            ray = vectors(eye.gaze(np.array(target)))
            flip = -1 if eye.mirrored else 1
            shift = eye.rotation @ (head.rotation @ ball + head.translation - eye.centre)
            x = 29.5 + 1.6 * (flip * shift[0] + np.sqrt(RADIUS**2 - IRIS**2) * ray[0])
            assert columns[inner].mean() == pytest.approx(x, abs=1.2)


def test_a_mirrored_picture_swaps_the_eyes():
    """For any pose the left eye becomes the right one, mirrored as networks see it."""
    for camera in (webcam(), webcam(distortion=LENS)):
        camera = Camera(
            np.array([[620, 0, 319.5], [0, 620, 244], [0, 0, 1]]),
            camera.size,
            camera.distortion * [1, 1, 1, 0, 1],
        )
        picture, _, landmarks, head = look((-8, 17, 12), camera=camera)
        flipped, swapped = mirrored(picture, landmarks)
        other = head_pose(swapped, camera)
        target = TARGET * [-1, 1, 1]
        for eye, twin in zip(eyes(head), eyes(other)[::-1], strict=True):
            one, two = eye_patch(eye, picture, camera), eye_patch(twin, flipped, camera)
            assert (np.abs(one.astype(int) - two) > 1).mean() < 0.01
            np.testing.assert_allclose(eye.pose, twin.pose, atol=1e-6)
            np.testing.assert_allclose(eye.gaze(TARGET), twin.gaze(target), atol=1e-6)
            straight, turned_back = eye.direction(eye.pose), twin.direction(twin.pose)
            np.testing.assert_allclose(straight * [-1, 1, 1], turned_back, atol=1e-6)


def test_gaze_to_the_patch_and_back():
    """Camera frame to label to camera frame, and the point of the screen that was looked at."""
    tilted = Rotation.from_euler("xyz", [12, -5, 3], degrees=True).as_matrix()
    screen = Screen(tilted @ Screen.facing(0, 0).rotation, np.array([160.0, -12.0, 5.0]))
    wanted = nine_points(344, 194)
    for pose in POSES:
        _, _, _, head = look(pose)
        for eye in eyes(head):
            for point, target in zip(wanted, screen.place(wanted), strict=True):
                true = (target - eye.centre) / np.linalg.norm(target - eye.centre)
                found = eye.direction(eye.gaze(target))
                np.testing.assert_allclose(found, true, atol=1e-9)
                seen = screen.points(eye.centre[None], found[None])
                np.testing.assert_allclose(seen, point[None], atol=1e-6)


def test_gaze_is_not_scaled():
    """The recipe of 2014 scaled z, which changes angles with the distance; here none does."""
    _, _, _, head = look()
    eye = eyes(head)[0]
    far, near = eye.gaze(TARGET), eyes(head, CameraView(distance=300))[0].gaze(TARGET)
    np.testing.assert_array_equal(far, near)


@pytest.mark.slow
def test_rendered_eyes_pass_the_test_of_signs():
    rng = np.random.default_rng(2)
    columns: dict[str, list] = {"image": [], "gaze": []}
    camera = webcam(160, 120, 420.0)
    for _ in range(100):
        target = np.array([*rng.uniform(-250, 250, 2), 0])
        picture, _, _, head = look(tuple(rng.uniform(-10, 10, 3)), target=target, camera=camera)
        for eye in eyes(head):
            columns["image"].append(eye_patch(eye, picture, camera))
            columns["gaze"].append(eye.gaze(target))
    stacked = {name: np.stack(values) for name, values in columns.items()}
    verify_yaw_sign([stacked], "rendered")
    with pytest.raises(DataError, match="flip the signs"):
        verify_yaw_sign([{**stacked, "gaze": stacked["gaze"] * [1, -1]}], "rendered")


def test_a_face_keeps_its_colours_and_what_lies_outside_is_black():
    grey, camera, _, head = look()
    picture = np.stack([grey, grey // 2, grey // 4], -1)
    cut = face(head, MPII_FACE).cut(picture, camera)
    assert cut.shape == (224, 224, 3)
    np.testing.assert_allclose(cut[..., 1], cut[..., 0] / 2, atol=1.5)
    np.testing.assert_array_equal(cut[..., 0], face(head, MPII_FACE).cut(grey, camera))
    wide = face(head, CameraView(400, 600, 500, 500))
    assert not wide.inside(camera)
    assert face(head, MPII_FACE).inside(camera)
    assert (wide.cut(grey, camera)[0] == 0).all()


def test_a_picture_finer_than_the_patch_is_averaged():
    """Stripes one pixel wide vanish to grey instead of aliasing."""
    camera = webcam(2560, 1920, 4800.0)
    stripes = np.zeros((1920, 2560), np.uint8)
    stripes[:, ::2] = 200
    head = head_pose(corners(turned(), PLACE * [0, 0, 1], camera), camera)
    patch = eyes(head)[0].cut(stripes, camera)
    assert np.abs(patch.astype(int) - 100).max() < 30


def test_patches_are_a_data_set(tmp_path: Path):
    """Both eyes of 30 of 32 pictures: one has no face, one an eye at the edge."""
    rng = np.random.default_rng(3)
    camera = webcam(160, 120, 420.0)
    shown, landmarks, targets = [], [], {}
    for number in range(32):
        place = PLACE if number != 4 else np.array([98.0, 10, 600])
        target = np.array([*rng.uniform(-200, 200, 2), 0])
        picture, _, points, _ = look((3, -4, 5), place, target, camera)
        shown.append(np.repeat(picture[..., None], 3, 2))
        landmarks.append(None if number == 2 else points)
        targets[number] = target
    queue = iter(landmarks)
    found = patches_of(shown, camera, lambda _: next(queue), targets)
    assert (found.no_face, found.cut_off, found.frames) == ((2,), (4,), 32)
    assert found.columns["image"].shape == (60, 1, 36, 60)
    assert found.columns["side"].tolist() == [0] * 30 + [1] * 30
    assert found.columns["frame"][:30].tolist() == [n for n in range(32) if n not in (2, 4)]
    np.savez(tmp_path / "p00.npz", **found.stored())
    person = Mpiigaze().load(str(tmp_path)).people["p00"]
    assert sum(len(part.columns["gaze"]) for part in (person.train, person.val, person.test)) == 60
    one = found.columns["rotation"][0], found.columns["centre"][0]
    ray = vectors(found.columns["gaze"][0].astype(float)) @ one[0]
    wanted = targets[0] - one[1]
    np.testing.assert_allclose(ray, wanted / np.linalg.norm(wanted), atol=1e-5)


def test_without_targets_there_is_no_gaze_and_without_faces_an_error():
    picture, camera, landmarks, _ = look()
    rgb = np.repeat(picture[..., None], 3, 2)
    found = patches_of([rgb], None, lambda _: landmarks)
    assert "gaze" not in found.columns
    known = patches_of([rgb], camera, lambda _: landmarks)
    turn = np.abs(found.columns["pose"] - known.columns["pose"]).max()
    assert 0 < np.rad2deg(turn) < 5, "a guessed focal length costs a few degrees"
    with pytest.raises(DataError, match="no eye patches in 2 pictures: 2 without a face"):
        patches_of([rgb, rgb], None, lambda _: None)


def test_landmarks_that_are_no_face_are_refused():
    camera = webcam()
    good = corners(turned(), PLACE, camera)
    for bad, said in (
        (good[:5], r"six or seven finite landmarks, got shape \(5, 2\)"),
        (good * np.nan, "finite"),
        (np.ones((7, 2)), "same place"),
    ):
        with pytest.raises(DataError, match=said):
            head_pose(bad, camera)
    assert FACE.shape == (7, 3)


def test_cameras(tmp_path: Path):
    """Through the lens and back; files; a smaller picture sees the same in fewer pixels."""
    camera = webcam(distortion=LENS)
    pixels = np.array([[0.0, 0], [639, 479], [320, 100]])
    np.testing.assert_allclose(camera.project(camera.rays(pixels)), pixels, atol=1e-6)
    assert np.abs(webcam().rays(pixels) - camera.rays(pixels)).max() > 0.01
    path = tmp_path / "camera.json"
    told = {"matrix": camera.matrix.tolist(), "size": [640, 480], "distortion": list(LENS)}
    path.write_text(json.dumps(told))
    np.testing.assert_array_equal(read_camera(path).project(np.ones(3)), camera.project(np.ones(3)))
    half = camera.of_size(320, 240)
    np.testing.assert_allclose(
        half.rays(np.array([-0.5, -0.5])), camera.rays(np.array([-0.5, -0.5]))
    )
    np.testing.assert_allclose(half.rays(np.array([0.5, 0.5])), camera.rays(np.array([1.5, 1.5])))
    with pytest.raises(DataError, match="640 x 480 pixels, a picture has 640 x 360"):
        camera.of_size(640, 360)
    for wrong in ({"size": [640, 480]}, {**told, "matrix": [[1]]}, {**told, "distortion": [1]}, []):
        path.write_text(json.dumps(wrong))
        with pytest.raises(DataError, match=r"camera\.json"):
            read_camera(path)


def gazes(screen, noise_deg=0.0, seed=0, spread=15.0):
    """Return origins, directions and targets of somebody who looks at nine points."""
    rng = np.random.default_rng(seed)
    targets = nine_points(344, 194)
    origins = np.array([10.0, 40.0, 600.0]) + rng.normal(0, spread, (9, 3))
    rays = screen.place(targets) - origins
    turn = np.deg2rad(rng.normal(0, noise_deg, (9, 3))) * [1, 1, 0]
    return origins, Rotation.from_rotvec(turn).apply(rays), targets


@pytest.mark.slow
def test_nine_points_tell_where_the_screen_is():
    """Exact gaze gives it back; one degree of noise costs about the two centimetres it is worth."""
    tilted = Rotation.from_euler("xyz", [12, -5, 3], degrees=True).as_matrix()
    screen = Screen(tilted @ Screen.facing(0, 0).rotation, np.array([160.0, -12.0, 5.0]))
    fitted = calibrate(*gazes(screen))
    assert next(iter(fitted)) == "plane"
    plane = fitted["plane"].model
    assert isinstance(plane, Screen)
    np.testing.assert_allclose(plane.offset, screen.offset, atol=1e-3)
    assert fitted["plane"].error_cm < 1e-4 > fitted["plane"].error_deg
    noisy = [calibrate(*gazes(screen, 1.0, seed))["plane"] for seed in range(6)]
    assert 0.8 < np.mean([fit.error_cm for fit in noisy]) < 2.6
    for fit in noisy:
        assert fit.error_deg == pytest.approx(np.rad2deg(np.arctan(fit.error_cm / 60)), rel=0.25)


def test_bent_gaze_of_a_still_head_is_for_the_quadratic():
    """Points are a quadratic of the reported angles, bent by a third at the edges: no plane's."""
    screen = Screen.facing(172, -8)
    origins, _, targets = gazes(screen, spread=0.0)
    x, y = ((targets - [172, 97]) / [172, 97]).T
    bent = np.stack([targets[:, 0] + 60 * x * y, targets[:, 1] + 40 * x**2], 1)
    angles = np.stack([0.3 * y, 0.25 * x], 1)
    fitted = calibrate(origins, vectors(angles), bent)
    assert next(iter(fitted)) == "quadratic"
    assert fitted["quadratic"].error_cm < 1e-6 < 0.5 < fitted["plane"].error_cm
    found = fitted["quadratic"].model.points(origins, vectors(angles))
    np.testing.assert_allclose(found, bent, atol=1e-6)


def test_looking_away_is_no_point_and_too_few_points_no_calibration():
    screen = Screen.facing(172, -8)
    origins, rays, targets = gazes(screen)
    assert np.isnan(screen.points(origins, -rays)).all()
    np.testing.assert_allclose(screen.points(origins, rays), targets, atol=1e-9)
    with pytest.raises(DataError, match=r"7 points or more"):
        calibrate(origins[:6], rays[:6], targets[:6])
    rays[3] = np.nan
    with pytest.raises(DataError, match="NaN"):
        calibrate(origins, rays, targets)
