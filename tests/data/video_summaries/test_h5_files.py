"""Annotated videos in the usual h5 layout: written small, read, and refused where they disagree."""

import json

import numpy as np
import pytest

from tests.conftest import research_data
from vergence.data.video_summaries.h5_files import file_of, read_splits, read_videos
from vergence.errors import DataError

h5py = pytest.importorskip("h5py")


def group(rated=False):
    """Return the arrays of one video: 40 frames, 3 picks, 2 people, 2 shots."""
    users = np.zeros((2, 40), np.uint8)
    users[0, :6] = users[1, 3:9] = 1
    return {
        "n_frames": np.array(40),
        "n_steps": np.array(3),
        "picks": np.array([0, 15, 30]),
        "gtscore": np.array([0.5, 0, 0]),
        "gtsummary": np.array([1, 0, 0]),
        **({"user_anno": users + 1} if rated else {"user_summary": users}),
        "change_points": np.array([[0, 9], [10, 39]], np.int32),
        "n_frame_per_seg": np.array([10, 30]),
        "features": np.eye(3, 1024, dtype=np.float32),
        "video_name": np.bytes_("Jumps"),
    }


def write(path, groups):
    with h5py.File(path, "w") as file:
        for key, arrays in groups.items():
            for name, array in arrays.items():
                file[f"{key}/{name}"] = array
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "summe.h5"


def test_the_usual_layout_is_read(path):
    videos = read_videos(write(path, {"video_10": group(True), "video_2": group()}))
    assert list(videos) == ["video_2", "video_10"]
    first = videos["video_2"]
    assert (first.name, first.frames, first.rated, videos["video_10"].rated) == (
        *("Jumps", 40, False),
        True,
    )
    np.testing.assert_array_equal(first.shots, [[0, 9], [10, 39]])
    assert first.features.shape == (3, 1024)
    assert first.users.sum() == 12


def test_what_a_file_may_lack(path):
    bare = {k: v for k, v in group().items() if k in ("n_frames", "picks", "gtscore")}
    video = read_videos(write(path, {"video_1": {**bare, "user_anno": group(True)["user_anno"]}}))
    assert video["video_1"].name == "video_1"
    assert video["video_1"].shots is None
    assert video["video_1"].features is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"picks": None}, "lacks picks"),
        ({"user_summary": None}, "lacks user_summary or user_anno"),
        ({"n_frames": np.array(41)}, r"n_frames 41, its people's rows are \(2, 40\)"),
        ({"user_summary": np.zeros((0, 40))}, r"n_frames 40, its people's rows are \(0, 40\)"),
        ({"picks": np.array([0, 15])}, r"picks \(2,\) and gtscore \(3,\)"),
        ({"picks": np.array([0, 15, 15])}, "picks 15 after 15, must ascend from 0 to at most 39"),
        ({"picks": np.array([0, 15, 40])}, "picks 40 after 15, must ascend from 0 to at most 39"),
        ({"picks": np.array([-1, 0, 15])}, "picks -1 first, must ascend from 0 to at most 39"),
        ({"picks": np.array([7, 22, 37])}, "picks 7 first, must ascend from 0 to at most 39"),
        ({"picks": np.zeros((3, 1), int)}, r"picks \(3, 1\) and gtscore \(3,\), needs one"),
        ({"picks": np.array(0)}, r"picks \(\) and gtscore"),
        (
            {name: np.zeros(0, int) for name in ("picks", "gtscore", "features")},
            r"picks \(0,\) and gtscore \(0,\), needs one of each for every sampled frame",
        ),
        ({"features": np.zeros((4, 8))}, r"3 picks and features \(4, 8\)"),
        ({"features": np.zeros(3)}, r"3 picks and features \(3,\)"),
        ({"change_points": np.zeros((0, 2))}, r"change_points \(0, 2\), needs \[shots, 2\]"),
        ({"change_points": np.array([0, 39])}, r"change_points \(2,\), needs \[shots, 2\]"),
        ({"change_points": np.zeros((2, 3))}, r"change_points \(2, 3\), needs \[shots, 2\]"),
        ({"change_points": np.array([[0, 9], [10, 5], [6, 39]])}, "row 1 is 10 to 5,.* overlap"),
        ({"change_points": np.array([[0, 9], [12, 39]])}, "row 1 is 12 to 39,.* without gap"),
        ({"change_points": np.array([[0, 9], [10, 38]])}, "row 1 is 10 to 38,.* frames 0 to 39"),
        ({"change_points": np.array([[0, 10], [10, 39]])}, "without gap or overlap"),
        ({"change_points": np.array([[0, 9], [10, 40]])}, "frames 0 to 39"),
    ],
)
def test_a_video_that_disagrees_with_itself_is_refused(path, change, told):
    arrays = {k: v for k, v in {**group(), **change}.items() if v is not None}
    with pytest.raises(DataError, match=rf"summe\.h5: video_1.*{told}") as caught:
        read_videos(write(path, {"video_1": arrays}))
    assert "cannot read" not in str(caught.value)


def test_other_files_are_refused(path):
    with pytest.raises(DataError, match=r"missing file .*summe\.h5"):
        read_videos(path)
    path.write_bytes(b"no")
    with pytest.raises(DataError, match="cannot read"):
        read_videos(path)
    with pytest.raises(DataError, match="holds no videos"):
        read_videos(write(path, {}))


def test_the_usual_names_are_found(tmp_path):
    with pytest.raises(DataError, match=r"neither tvsum_annotations\.h5 nor eccv16_dataset_tvsum"):
        file_of(tmp_path, "tvsum")
    path = tmp_path / "eccv16_dataset_tvsum_google_pool5.h5"
    path.touch()
    assert file_of(tmp_path, "tvsum") == path


def test_splits(tmp_path):
    path = tmp_path / "splits.json"
    path.write_text(json.dumps([{"train_keys": ["a", "b"], "test_keys": ["c"]}]))
    (split,) = read_splits(path, {"a", "b", "c"})
    assert (split.train, split.test) == (("a", "b"), ("c",))
    for rows, told in [
        ([{"train_keys": ["a"], "test_keys": ["d"]}], "names d"),
        ([{"train_keys": ["a"], "test_keys": ["a"]}], "trains and tests on a"),
        ([{"train_keys": ["a"], "test_keys": []}], "tests on nothing"),
        ([{"train_keys": ["a"]}], "no file of splits"),
        ({"a": 1}, "no file of splits"),
    ]:
        path.write_text(json.dumps(rows))
        with pytest.raises(DataError, match=told):
            read_splits(path, {"a", "b", "c"})


@pytest.mark.slow
@pytest.mark.data
def test_the_annotations_have_the_published_totals():
    """Frames and steps of both sets; the usual splits test 18 and 34 videos, the others all."""
    root = research_data("video_summarisation")
    expected = {"summe": (25, 109_820, 7_336, 18), "tvsum": (50, 352_353, 23_510, 34)}
    for name, (count, frames, steps, tested) in expected.items():
        videos = read_videos(root / f"{name}_annotations.h5")
        found = videos.values()
        totals = len(videos), sum(v.frames for v in found), sum(len(v.picks) for v in found)
        assert totals == (count, frames, steps)
        usual = read_splits(root / f"splits_{name}.json", videos)
        every = read_splits(root / f"splits_{name}_non_overlapping.json", videos)
        assert len({key for split in usual for key in split.test}) == tested
        assert sorted(k for s in every for k in s.test) == sorted(videos)
