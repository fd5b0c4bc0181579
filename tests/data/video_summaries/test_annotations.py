"""SumMe and TVSum as their authors published them: written small, read, refused where damaged."""

import numpy as np
import pytest
from scipy.io import savemat

from vergence.data.video_summaries.h5_files import file_of, read_videos
from vergence.data.video_summaries.summe import SumMe
from vergence.errors import DataError

h5py = pytest.importorskip("h5py")
RATINGS = np.arange(2 * 40).reshape(2, 40) % 4 + 1
CHOSEN = np.zeros((40, 3))
CHOSEN[:16, 0] = 4
CHOSEN[3:9, 2] = 7


def summe(root):
    folder = root / "GT"
    folder.mkdir()
    for name in ("Jumps", "Air_Force_One"):
        savemat(folder / f"{name}.mat", {"user_score": CHOSEN, "nFrames": 40})
    return folder


def as_lines(root):
    rows = [f"v{k}\tVT\t{','.join(map(str, row))}" for k in (7, 3) for row in RATINGS]
    (root / "data").mkdir()
    path = root / "data/ydata-tvsum50-anno.tsv"
    path.write_text("\n".join(rows) + "\n")
    return path


def as_struct(root):
    path = root / "ydata-tvsum50.mat"
    fields = {
        "video": [np.array(list(map(ord, f"v{k}"))) for k in (7, 3)],
        "category": [np.array(list(map(ord, "VT")))] * 2,
        "user_anno": [RATINGS] * 2,
    }
    with h5py.File(path, "w") as file:
        for field, cells in fields.items():
            table = file.create_dataset(f"tvsum50/{field}", (2, 1), h5py.ref_dtype)
            for row, cell in enumerate(cells):
                file[f"#refs#/{field}{row}"] = cell
                table[row, 0] = file[f"#refs#/{field}{row}"].ref
    return path


def test_summe_s_folder_is_read(tmp_path):
    folder = summe(tmp_path)
    assert file_of(tmp_path, "summe") == folder
    videos = read_videos(folder)
    assert [(k, v.name) for k, v in videos.items()] == [
        ("video_1", "Air_Force_One"),
        ("video_2", "Jumps"),
    ]
    first = videos["video_1"]
    np.testing.assert_array_equal(first.users, CHOSEN.T > 0)
    np.testing.assert_array_equal(first.picks, [0, 15, 30])
    assert first.mean_score == pytest.approx([1 / 3, 1 / 3, 0]), "of three people"
    assert (first.rated, first.shots, first.features) == (False, None, None)


@pytest.mark.parametrize("write", [as_lines, as_struct])
def test_tvsum_s_files_say_the_same(write, tmp_path):
    path = write(tmp_path)
    assert file_of(tmp_path, "tvsum") == path
    videos = read_videos(path)
    assert [(k, v.name, v.category) for k, v in videos.items()] == [
        ("video_1", "v7", "VT"),
        ("video_2", "v3", "VT"),
    ]
    np.testing.assert_array_equal(videos["video_2"].users, RATINGS)
    assert videos["video_1"].rated
    assert videos["video_1"].mean_score == pytest.approx([0, 0.75, 0.5]), "ratings of 1, 4, 3"


def test_ratings_that_are_no_table_are_refused(tmp_path):
    path = as_struct(tmp_path)
    with h5py.File(path, "a") as file:
        del file["#refs#/user_anno1"]
        file["#refs#/user_anno1"] = RATINGS[0]
        file["tvsum50/user_anno"][1, 0] = file["#refs#/user_anno1"].ref
    with pytest.raises(DataError, match=r"user_anno of v3 is \(40,\), needs \[people, frames\]"):
        read_videos(path)


def test_what_lacks_features_cannot_be_trained_on(tmp_path):
    summe(tmp_path)
    with pytest.raises(DataError, match="Air_Force_One has no features"):
        SumMe().load(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.tsv", "v\tVT\t1,2\nv\tVT\t1\n", "different numbers of frames of v"),
        ("a.tsv", "v\tVT\n", "line 1"),
        ("a.tsv", "v\tVT\t1,x\n", "line 1"),
        ("a.tsv", "", "holds no videos"),
        ("a.mat", "no", "cannot read"),
    ],
)
def test_damaged_files_are_refused(name, text, told, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=told):
        read_videos(tmp_path / name)


@pytest.mark.parametrize("content", [{"score": CHOSEN}, {"user_score": "no"}])
def test_damaged_folders_are_refused(content, tmp_path):
    savemat(tmp_path / "a.mat", content)
    with pytest.raises(DataError, match=r"lacks 'user_score'|no table of frames"):
        read_videos(tmp_path)


@pytest.mark.parametrize("score", [np.zeros((4, 3, 2)), np.array([["a", "b"]]), np.zeros(0, "U1")])
def test_scores_that_are_no_table_of_numbers_are_refused(tmp_path, score):
    savemat(tmp_path / "Jumps.mat", {"user_score": score})
    with pytest.raises(DataError, match=r"Jumps\.mat: user_score is no table"):
        read_videos(tmp_path)
