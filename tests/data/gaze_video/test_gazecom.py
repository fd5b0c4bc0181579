"""GazeCom: windows, gaze at the frames, the split by clip for all viewers alike, bad input."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import research_data
from vergence.data.gaze_video.gazecom import Gazecom, check, read_gaze
from vergence.errors import ConfigError, DataError

CLIPS = [f"clip{i}" for i in range(6)]
STEPS = 500


def rows_of(person, clip, offset):
    """x grows with the 25 Hz row, y tells person and clip; everything is valid."""
    return {
        "person": np.full(STEPS, person),
        "clip": np.full(STEPS, clip),
        "t_s": (np.arange(STEPS) * 0.04).astype(np.float32),
        "x": (np.arange(STEPS) / STEPS).astype(np.float32),
        "y": np.full(STEPS, offset, np.float32),
        "valid": np.ones(STEPS, np.uint8),
    }


def table(seen):
    parts = [
        rows_of(person, clip, (10 * p + c) / 100)
        for p, (person, clips) in enumerate(seen.items())
        for c, clip in enumerate(CLIPS)
        if clip in clips
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


SEEN = {"P01": CLIPS, "P02": CLIPS[:2], "P03": CLIPS[:5]}


def write(folder, columns=None):
    np.savez(folder / "gaze_25hz.npz", **(columns or table(SEEN)))
    (folder / "frame_donors.csv").write_text("person,clip\nP03,clip0\nP03,clip1\n")
    for c, clip in enumerate(CLIPS):
        home = folder / "frames" / clip
        home.mkdir(parents=True, exist_ok=True)
        for i in range(100):
            target = home / f"f{i:04d}.jpg"
            if not target.exists():
                Image.new("RGB", (32, 18), (40 * c, 2 * i, 0)).save(target, quality=95)


@pytest.fixture(scope="module")
def shared_root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gazecom")
    write(folder)
    return folder


@pytest.fixture
def root(tmp_path):
    write(tmp_path)
    return tmp_path


OPTIONS = {"size": (32, 18), "clips": (3, 1, 2)}


def load(root, **options):
    return Gazecom(**{**OPTIONS, **options}).load(str(root))


def test_windows_point_at_their_frames_and_gaze(shared_root):
    """Frame f of a clip starts at row 5 f, where x = f / 100; 12 windows of 8 in 100 frames."""
    federation = load(shared_root)
    assert federation.clients == ("P01", "P03")
    person = federation.people["P01"]
    assert [len(p) for p in (person.train, person.val, person.test)] == [36, 12, 24]
    columns = person.test.columns
    assert columns["frame_ids"].shape == (24, 8)
    assert columns["points"].shape == (24, 8, 1, 2)
    frame, clip = columns["frame_ids"] % 100, columns["frame_ids"] // 100
    torch.testing.assert_close(columns["points"][:, :, 0, 0], frame / 100)
    torch.testing.assert_close(columns["points"][:, :, 0, 1], clip / 100)
    assert torch.equal(columns["scene"], clip[:, 0] * 1000 + frame[:, 0])
    assert torch.equal(frame[:12, 0], torch.arange(0, 96, 8))
    batch = person.test.take(torch.tensor([3, 20]))
    assert batch["frames"].shape == (2, 8, 18, 32, 3)
    shown = batch["frames"].float().mean((2, 3))
    assert (shown[..., 0] - 40 * (batch["frame_ids"] // 100)).abs().max() <= 3
    assert (shown[..., 1] - 2 * (batch["frame_ids"] % 100)).abs().max() <= 3


def test_one_bank_and_one_split_for_everybody(shared_root):
    federation = load(shared_root)
    parts = ("train", "val", "test")
    rows = {
        id(getattr(s, p).banks["frames"].rows) for s in federation.people.values() for p in parts
    }
    assert len(rows) == 1
    clips = [
        {int(c) for s in federation.people.values() for c in getattr(s, p).columns["scene"] // 1000}
        for p in parts
    ]
    assert [len(c) for c in clips] == [3, 1, 2]
    assert len(set.union(*clips)) == 6


def test_who_lacks_clips_is_left_out_and_named(shared_root):
    federation = load(shared_root)
    assert "P02" not in federation.people
    assert "P02 [" in federation.about["left_out"]
    with pytest.raises(DataError, match=r"P02 has \[.*\] clips .* each part needs 1"):
        load(shared_root, people=("P02",))


def test_leaving_people_out_moves_no_clip(shared_root):
    both, one = load(shared_root), load(shared_root, people=("P01",))
    assert one.clients == ("P01",)
    for part in ("train", "val", "test"):
        a, b = (getattr(f.people["P01"], part).columns["scene"] for f in (both, one))
        assert torch.equal(a, b)


@pytest.mark.slow
def test_other_seeds_test_other_clips_and_still_serve_everybody(shared_root):
    tested = set()
    for seed in range(6):
        federation = load(shared_root, split_seed=seed)
        assert federation.clients == ("P01", "P03")
        scenes = federation.people["P01"].test.columns["scene"] // 1000
        tested.add(tuple(scenes.unique().tolist()))
    assert len(tested) > 1


def test_windows_may_skip_frames_and_overlap(shared_root):
    """Every 0.4 s, 4 frames span 7: starts 0, 8, .. 88 (12); with hop 4: 0, 4, .. 92 (24)."""
    apart = load(shared_root, every_s=0.4, window=4).people["P01"].val.columns["frame_ids"]
    assert torch.equal(apart[0] % 100, torch.tensor([0, 2, 4, 6]))
    assert len(apart) == 12
    overlapping = load(shared_root, every_s=0.4, window=4, hop=4).people["P01"].val
    assert len(overlapping) == 24


def test_lost_gaze_takes_a_valid_neighbour_or_stays_nan(tmp_path):
    """Frame 3 is row 15. Row 15 lost: row 14 counts. 14 and 15 lost: row 16. All three: NaN.
    Frame 0 has no row before it: the last row of the clip must not count."""
    columns = table({"P01": ["clip0"]})
    lost = [0, 1, 15, 20, 19, 25, 24, 26]
    columns["valid"][lost] = 0
    columns["x"][lost] = columns["y"][lost] = -1
    np.savez(tmp_path / "gaze_25hz.npz", **columns)
    names, people = read_gaze(tmp_path)
    assert names == ["clip0"]
    x = people["P01"][0][:, 0]
    np.testing.assert_allclose(x[[1, 2, 3, 4]], [5 / 500, 10 / 500, 14 / 500, 21 / 500], rtol=1e-6)
    assert np.isnan(people["P01"][0][[0, 5]]).all()
    assert np.isfinite(x).sum() == 98


def test_windows_without_any_gaze_are_dropped_and_counted(tmp_path):
    columns = table(SEEN)
    first = (columns["person"] == "P01") & (columns["clip"] == "clip2") & (columns["t_s"] < 1.62)
    columns["valid"][first] = 0
    write(tmp_path, columns)
    person = load(tmp_path).people["P01"]
    assert sum(len(p) for p in (person.train, person.val, person.test)) == 71
    assert "1 windows without any valid gaze" in load(tmp_path).about["left_out"]


def test_donors_can_be_left_out(shared_root):
    federation = load(shared_root, exclude_donors=True)
    assert len(federation.people["P01"].train) == 36
    if "P03" in federation.people:
        s = federation.people["P03"]
        scenes = torch.cat([p.columns["scene"] for p in (s.train, s.val, s.test)]) // 1000
        assert set(scenes.tolist()) == {2, 3, 4}
    else:
        assert "P03 [" in federation.about["left_out"]


def shorten(name):
    def change(folder):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return change


def spoil(name, value, row=1234):
    def change(folder):
        columns = table(SEEN)
        columns[name][row] = value
        np.savez(folder / "gaze_25hz.npz", **columns)

    return change


def forget(key):
    def change(folder):
        columns = table(SEEN)
        del columns[key]
        np.savez(folder / "gaze_25hz.npz", **columns)

    return change


def cut_column(folder):
    columns = table(SEEN)
    columns["x"] = columns["x"][:-1]
    np.savez(folder / "gaze_25hz.npz", **columns)


def blind(folder):
    columns = table(SEEN)
    columns["valid"][columns["person"] == "P03"] = 0
    np.savez(folder / "gaze_25hz.npz", **columns)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "gaze_25hz.npz").unlink(), "missing file .*gaze_25hz.npz"),
        (lambda f: (f / "frame_donors.csv").unlink(), "missing file .*frame_donors.csv"),
        (lambda f: (f / "frame_donors.csv").write_text("who\nP01\n"), "needs columns person"),
        (lambda f: (f / "frames" / "clip4" / "f0007.jpg").unlink(), "missing file .*f0007.jpg"),
        (shorten("gaze_25hz.npz"), "cannot read .*gaze_25hz.npz"),
        (shorten("frames/clip4/f0007.jpg"), "cannot decode .*f0007.jpg"),
        (forget("valid"), "another version, it lacks valid"),
        (cut_column, "columns differ in length"),
        (spoil("x", np.nan), "valid gaze is NaN or infinite in 1 of 6500 rows, first in row 1234"),
        (spoil("y", 1.2), r"outside \[0, 1\]"),
        (spoil("t_s", 21), "t_s must be 0 to 19.96 s"),
        (blind, "P03 has no window with valid gaze"),
    ],
)
def test_bad_files_give_one_clear_line(root, change, says):
    change(root)
    with pytest.raises(DataError, match=says) as caught:
        load(root, exclude_donors="person" in says or "donors" in says)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"people": ("P9",)}, DataError, "unknown person 'P9'"),
        ({"clips": (5, 1, 2)}, DataError, "asks for 8 clips, the data hold 6"),
        ({"window": 101}, DataError, "shorter than a window of 101 frames"),
        ({"window": 60, "every_s": 0.4}, DataError, "119 frames"),
        ({"every_s": 0.3}, ConfigError, "multiple of 0.2"),
        ({"window": 0}, ConfigError, "window must be >= 1"),
        ({"clips": (3, 0, 2)}, ConfigError, "clips must be >= 1"),
        ({"min_clips": 2}, ConfigError, "min_clips must be 1 to 1"),
        ({"size": (0, 18)}, ConfigError, "size must be >= 16 and <= 4096"),
    ],
)
def test_bad_options_are_named(shared_root, options, error, says):
    with pytest.raises(error, match=says):
        load(shared_root, **options)


def test_a_split_that_serves_nobody_is_refused(tmp_path):
    write(tmp_path, table({"P01": CLIPS[:2], "P02": CLIPS}))
    columns = table({"P01": CLIPS[:2], "P02": CLIPS[2:4]})
    np.savez(tmp_path / "gaze_25hz.npz", **columns)
    with pytest.raises(DataError, match="nobody has 1 clips in every part"):
        load(tmp_path, clips=(1, 1, 1))


def test_no_root_is_refused():
    with pytest.raises(DataError, match="not packaged: name its folder"):
        Gazecom().load()


def test_check_says_what_is_missing(shared_root):
    lines = {line.what: line for line in check(shared_root)}
    assert (lines["people"].actual, lines["people"].expected, lines["people"].ok) == (
        "3",
        "36",
        False,
    )
    assert lines["gaze and frames"].ok


@pytest.mark.data
@pytest.mark.slow
def test_the_real_folder_is_complete_and_keeps_all_36_viewers():
    """gaze_5hz.csv is the 25 Hz file at the frame times; rounded to four decimals."""
    folder = research_data("gazecom_video")
    assert all(line.ok for line in check(folder))
    federation = Gazecom(size=(32, 18)).load(str(folder))
    assert len(federation.people) == 36
    assert min(len(s.test) for s in federation.people.values()) >= 12
    rows = np.genfromtxt(folder / "gaze_5hz.csv", delimiter=",", names=True, dtype=None)
    names, gaze = read_gaze(folder)
    valid = rows[rows["valid"] == 1]
    ours = np.array([gaze[r["person"]][names.index(r["clip"])][r["frame"]] for r in valid[::50]])
    theirs = np.stack([valid[::50]["x"], valid[::50]["y"]], 1)
    assert np.abs(ours - theirs).max() < 1e-4


def cells(**more):
    """Three samples of one viewer, 40 ms apart."""
    columns = {
        "person": np.array(["a", "a", "a"]),
        "clip": np.array(["c", "c", "c"]),
        "t_s": np.array([0.0, 0.04, 0.08]),
        "x": np.array([0.0, 0.5, 1.0]),
        "y": np.array([1.0, 0.5, 0.0]),
        "valid": np.array([1, 1, 1]),
    }
    return columns | {name: np.asarray(value) for name, value in more.items()}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"x": [-1e-6, 0.5, 1]}, "outside"),
        ({"y": [0, 0.5, 1 + 1e-6]}, "outside"),
        ({"x": [0, np.nan, 1]}, "valid gaze is NaN or infinite in 1 of 3 rows, first in row 1"),
        ({"t_s": [0, np.nan, 1]}, "t_s is NaN"),
        ({"t_s": [-0.04, 0, 1]}, r"t_s must be 0 to 19\.96 s"),
        ({"t_s": [0, 0.04, 20.0]}, r"t_s must be 0 to 19\.96 s"),
        ({"x": [0.5]}, "differ in length"),
    ],
)
def test_cells_of_gaze_that_are_refused(tmp_path, more, said):
    np.savez(tmp_path / "gaze_25hz.npz", **cells(**more))
    with pytest.raises(DataError, match=said):
        read_gaze(tmp_path)


def test_gaze_of_frames_is_that_of_their_time_or_of_a_neighbour(tmp_path):
    """Frames are 0.2 s apart, five samples; invalid gaze may be anything but counts as none."""
    t = np.array([0.04, 0.2, 0.36, 0.44, 0.56, 19.76, 19.84])
    x = np.arange(1, 8) / 10
    valid = np.array([1, 1, 1, 1, 0, 1, 1])
    x[4] = np.nan
    people = {"person": np.full(7, "a"), "clip": np.full(7, "c"), "t_s": t, "x": x}
    np.savez(tmp_path / "gaze_25hz.npz", **cells(**people, y=x / 2, valid=valid))
    names, gaze = read_gaze(tmp_path)
    assert names == ["c"]
    found = gaze["a"][0]
    assert found.shape == (100, 2)
    assert found[[0, 1, 2, 99], 0] == pytest.approx([0.1, 0.2, 0.3, 0.6])
    assert found[[0, 1, 2, 99], 1] == pytest.approx([0.05, 0.1, 0.15, 0.3])
    assert np.isnan(found[3:99]).all()


def test_windows_of_a_clip_by_hand():
    """Windows of three frames two apart span five: starts 0, 40 and 80 of 100 fit, not 120."""
    own = {7: np.arange(200.0).reshape(100, 2), 3: np.full((100, 2), np.nan)}
    columns, tracked = Gazecom(window=3, hop=40)._windows(own, 2, [100] * 8)
    assert columns["frame_ids"][:3].tolist() == [[700, 702, 704], [740, 742, 744], [780, 782, 784]]
    assert columns["scene"].tolist() == [7000, 7040, 7080, 3000, 3040, 3080]
    assert columns["points"][1, :, 0].tolist() == [[80, 81], [84, 85], [88, 89]]
    assert tracked.tolist() == [True] * 3 + [False] * 3
    columns, _ = Gazecom(window=3, hop=95)._windows(own, 2, [100] * 8)
    assert columns["scene"].tolist() == [7000, 7095, 3000, 3095]
    columns, _ = Gazecom(window=3, hop=96)._windows(own, 2, [100] * 8)
    assert columns["scene"].tolist() == [7000, 3000]
    columns, _ = Gazecom(window=4)._windows(own, 5, [100] * 8)
    assert columns["scene"][:5].tolist() == [7000, 7020, 7040, 7060, 7080]


def test_steps_and_spans_at_their_limits():
    assert Gazecom(every_s=0.6)._stride() == 3
    Gazecom(window=100)._check_span(1, 100)
    Gazecom(window=34, every_s=0.6)._check_span(3, 100)
    for options, stride, said in (
        ({"window": 101}, 1, r"101 frames\)"),
        ({"window": 35, "every_s": 0.6}, 3, r"103 frames\)"),
    ):
        with pytest.raises(DataError, match=said):
            Gazecom(**options)._check_span(stride, 100)
    for options, kind, said in (
        ({"every_s": 0.3}, ConfigError, "multiple of 0.2 s"),
        ({"every_s": 0.2 + 2e-6}, ConfigError, "multiple"),
        ({"every_s": 0.05}, ConfigError, "multiple"),
        ({"min_clips": 0}, ConfigError, "min_clips must be 1 to 2"),
        ({"min_clips": 3}, ConfigError, "min_clips must be 1 to 2"),
    ):
        with pytest.raises(kind, match=said):
            Gazecom(**options)._stride()
    assert Gazecom(min_clips=2, every_s=0.2 + 5e-7)._stride() == 1


def test_clips_are_dealt_by_the_first_shuffle_that_serves_everybody():
    gaze = {"a": dict.fromkeys(range(9)), "b": dict.fromkeys((0, 1, 2)), "c": {0: None, 1: None}}
    made = Gazecom(clips=(4, 2, 3), split_seed=1)
    parts = made._deal(gaze, 9)
    assert [len(part) for part in parts] == [4, 2, 3]
    assert all(len(part & {0, 1, 2}) == 1 for part in parts)
    rng = np.random.default_rng(1)
    while True:
        order = rng.permutation(9)
        own = [set(order[5:].tolist()), set(order[3:5].tolist()), set(order[:3].tolist())]
        if all(part & {0, 1, 2} for part in own):
            break
    assert parts == own
    with pytest.raises(DataError, match="asks for 9 clips, the data hold 8"):
        made._deal(gaze, 8)
    few = {p: dict.fromkeys(c) for p, c in (("x", (0, 1, 2)), ("y", (0, 1, 3)), ("z", (2, 3, 4)))}
    with pytest.raises(DataError, match="somebody has only 3 clips"):
        Gazecom(clips=(1, 1, 3))._deal({**few, "w": dict.fromkeys((0, 1, 4))}, 5)
