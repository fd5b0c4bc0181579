"""An HDF5 file gives out what lies in it, and claims no more than its size lets expect."""

import numpy as np
import pytest

from tests.adversary.files.data_files import ended
from tests.cli.commands import write
from vergence.data.video_summaries.h5_files import read_videos
from vergence.errors import DataError

h5py = pytest.importorskip("h5py")
SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----\nnot yours\n"


@pytest.fixture
def home(tmp_path):
    """A user's home: a key, and annotations of their own."""
    (tmp_path / "key").write_bytes(SECRET)
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["users"] = np.eye(3, 45, dtype=np.uint8)
        one(file, "video_1")
    return tmp_path


def one(file, key="video_1", **instead):
    """Write a video of 45 frames; some of its arrays otherwise."""
    group = file.create_group(key)
    arrays = {
        "n_frames": 45,
        "picks": np.arange(0, 45, 15),
        "gtscore": np.zeros(3),
        "user_summary": np.zeros((3, 45), np.uint8),
    }
    for name, array in (arrays | instead).items():
        if array is not None:
            group[name] = array
    return group


def external(file, home):
    one(file).create_dataset("features", (3, 9), np.uint8, external=[(str(home / "key"), 0, 27)])


def external_text(file, home):
    kept = [(str(home / "key"), 0, len(SECRET))]
    one(file).create_dataset("video_name", (1,), f"S{len(SECRET)}", external=kept)


def virtual(file, home):
    layout = h5py.VirtualLayout((3, 45), np.uint8)
    layout[:] = h5py.VirtualSource(str(home / "mine.h5"), "users", (3, 45))
    one(file, user_summary=None).create_virtual_dataset("user_summary", layout)


def linked(file, home):
    one(file, user_summary=h5py.ExternalLink(str(home / "mine.h5"), "/users"))


def linked_on(file, home):
    file["elsewhere"] = h5py.ExternalLink(str(home / "mine.h5"), "/")
    one(file, user_summary=h5py.SoftLink("/elsewhere/users"))


def linked_video(file, home):
    file["video_1"] = h5py.ExternalLink(str(home / "mine.h5"), "/video_1")


def vast(file, _):
    one(file).create_dataset("features", (3, 2**34), np.float32, chunks=(1, 2**20))


def vast_chunk(file, _):
    group = one(file)
    more = {"maxshape": (None, None), "chunks": (2**15, 2**15), "compression": "gzip"}
    group.create_dataset("features", (3, 4), np.uint8, **more)


def many(file, _):
    """2,000 names of one array of 50 MB."""
    shared = file.create_dataset("shared", (3, 2**24), np.uint8, chunks=(1, 2**20))
    for number in range(2000):
        one(file, f"video_{number}", n_frames=2**24, user_summary=shared)


def packed_twice(file, _):
    kept = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    kept.set_chunk((3, 45))
    kept.set_deflate(9)
    kept.set_deflate(9)
    group, space = one(file, user_summary=None), h5py.h5s.create_simple((3, 45))
    h5py.h5d.create(group.id, b"user_summary", h5py.h5t.NATIVE_UINT8, space, kept)


def many_texts(file, _):
    one(file).create_dataset("video_name", (2**20,), h5py.string_dtype())


def text_for_numbers(file, _):
    one(file, gtscore=["a", "b", "c"])


NASTY = {
    external: "the values of features lie in other files",
    external_text: "the values of video_name lie in other files",
    virtual: "the values of user_summary lie in other files",
    linked: "user_summary is a link that leads elsewhere",
    linked_on: "user_summary is a link|elsewhere is a link",
    linked_video: "video_1 is a link that leads elsewhere",
    vast: "features claims 206,158,430,208 bytes",
    vast_chunk: "features claims 1,073,741,824 bytes",
    many: "user_summary claims 50,331,648 bytes",
    packed_twice: "user_summary is packed twice over",
    many_texts: "video_name holds 1,048,576 texts",
    text_for_numbers: "gtscore holds no numbers",
}


def sent(home, make):
    path = home / "sent.h5"
    with h5py.File(path, "w") as file:
        make(file, home)
    return path


@pytest.mark.parametrize("make", NASTY, ids=lambda make: make.__name__)
def test_a_file_gives_out_what_lies_in_it(home, make):
    with pytest.raises(DataError, match=rf"sent\.h5: ({NASTY[make]})"):
        read_videos(sent(home, make))


def test_a_file_as_it_should_be_is_read(home):
    found = read_videos(sent(home, lambda file, _: one(file, video_name="a dog")))
    assert found["video_1"].name == "a dog"
    assert found["video_1"].users.shape == (3, 45)


def test_rows_of_noughts_packed_well_are_read(home):
    """Ten people say of two hours of film, frame by frame, that nothing of it belongs in."""

    def make(file, _):
        frames = 216_000
        group = one(
            file,
            n_frames=frames,
            picks=np.arange(0, frames, 15),
            gtscore=np.zeros(frames // 15),
            user_summary=None,
        )
        zeros = np.zeros((10, frames), np.uint8)
        group.create_dataset("user_summary", data=zeros, compression="gzip", compression_opts=9)

    assert not read_videos(sent(home, make))["video_1"].users.any()


def test_more_memory_than_there_is_ends_in_one_line(home, monkeypatch):
    def none_left(*_):
        raise MemoryError

    path = sent(home, lambda file, _: one(file))
    monkeypatch.setattr(h5py.Dataset, "__getitem__", none_left)
    with pytest.raises(DataError, match=r"cannot read .*sent\.h5 \(MemoryError\)"):
        read_videos(path)


def test_tvsum_s_matlab_file_and_faces_are_read_the_same_way(home):
    """Their references and groups lead nowhere else either."""
    from vergence.data.eye_images.mpiifacegaze import _opened
    from vergence.data.video_summaries.annotations import originals

    with h5py.File(home / "ydata.mat", "w") as file:
        cells = {
            field: file.create_dataset(f"tvsum50/{field}", (1, 1), h5py.ref_dtype)
            for field in ("video", "category", "user_anno")
        }
        where = [(str(home / "key"), 0, len(SECRET))]
        kept = file.create_dataset("kept", (len(SECRET),), np.uint8, external=where)
        for refs in cells.values():
            refs[0, 0] = kept.ref
    with pytest.raises(DataError, match="video lie in other files"):
        originals(home / "ydata.mat")
    with h5py.File(home / "p00.mat", "w") as file:
        file["Data"] = h5py.ExternalLink(str(home / "mine.h5"), "/video_1")
    with (
        pytest.raises(DataError, match="Data is a link that leads elsewhere"),
        _opened(home / "p00.mat"),
    ):
        pass


def test_the_command_ends_in_one_line(home):
    sent(home, external).rename(home / "tvsum_annotations.h5")
    text = f"""
task       = {{ name = "video_summary" }}
model      = {{ name = "linear" }}
federation = {{ name = "tvsum", root = "{home}" }}
method     = "fedavg"
"""
    said = ended("run", write(home, text), "--out", home / "out")
    assert said.code in (2, 3), said.err
    assert len(said.err.strip().splitlines()) == 1
    assert SECRET.decode()[:20] not in said.out + said.err
