"""Fashion-MNIST: IDX files read or refused, images dealt to people once each."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import research_data
from vergence.data.images.fashion_mnist import FILES, FashionMnist, check
from vergence.data.images.idx import IdxFiles, read_idx
from vergence.data.images.partition import by_shards, by_shares
from vergence.errors import ConfigError, DataError

SPLITS = ("iid", "shards", "dirichlet")
COUNTS = {"train": 400, "test": 120}
TRAIN_IMAGES, TRAIN_LABELS = (f"train-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1"))


def zipped(data):
    """Compress without the time, which would name a test otherwise in every process."""
    return gzip.compress(data, mtime=0)


def idx(array: np.ndarray, magic: int | None = None) -> bytes:
    """Return an IDX file: 0, 0, type 8 (unsigned byte), rank; sizes big-endian; the bytes."""
    head = np.array([0x0800 + array.ndim if magic is None else magic, *array.shape], ">u4")
    return head.tobytes() + array.astype(np.uint8).tobytes()


def labels_of(part: str) -> np.ndarray:
    return np.random.default_rng(len(part)).permutation(np.arange(COUNTS[part]) % 10)


def images_of(part: str) -> np.ndarray:
    """Pixels 0 and 1 of image n are n // 256 and n % 256; pixel 2 is its label, the rest part."""
    n = np.arange(COUNTS[part])
    images = np.full((len(n), 28, 28), 7 if part == "train" else 9)
    images[:, 0, 0], images[:, 0, 1], images[:, 0, 2] = n // 256, n % 256, labels_of(part)
    return images


def fill(path: Path) -> Path:
    """Write all four files into a folder."""
    for part, stem in FILES.stems.items():
        (path / f"{stem}-images-idx3-ubyte.gz").write_bytes(zipped(idx(images_of(part))))
        (path / f"{stem}-labels-idx1-ubyte.gz").write_bytes(zipped(idx(labels_of(part))))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return fill(tmp_path_factory.mktemp("fashion"))


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def numbers(samples) -> list[int]:
    pixels = samples.columns["image"][:, 0, 0, :2].long()
    return (256 * pixels[:, 0] + pixels[:, 1]).tolist()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("people", [1, 7, 20])
def test_every_image_is_dealt_once_with_its_own_label_from_its_own_file(folder, split, people):
    federation = FashionMnist(people=people, split=split).load(str(folder))
    assert len(federation.clients) == people
    dealt = {"train": [], "test": []}
    for splits in federation.people.values():
        for name, part in (("train", splits.train), ("train", splits.val), ("test", splits.test)):
            image, label = part.columns["image"], part.columns["label"]
            assert (image.dtype, label.dtype) == (torch.uint8, torch.int64)
            assert len(part) >= 1
            assert tuple(image.shape) == (len(label), 1, 28, 28)
            assert image[:, 0, 0, 2].tolist() == label.tolist()
            assert set(image[:, 0, 5:].flatten().tolist()) == {7 if name == "train" else 9}
            dealt[name] += numbers(part)
    assert {name: sorted(found) for name, found in dealt.items()} == {
        name: list(range(count)) for name, count in COUNTS.items()
    }


def test_equal_numbers_of_which_a_tenth_is_for_validation(folder):
    """400 / 20 = 20 training images, 2 of them for validation; 120 / 20 = 6 test images."""
    for split in SPLITS:
        people = FashionMnist(people=20, split=split).load(str(folder)).people
        assert {tuple(map(len, (s.train, s.val, s.test))) for s in people.values()} == {(18, 2, 6)}


def test_everybody_has_a_validation_and_a_training_image(folder):
    """Two images each: 0.01 and 0.99 of them are one either way."""
    for val in (0.01, 0.99):
        people = FashionMnist(people=100, val=val).load(str(folder)).people
        assert all(len(s.train) >= 1 and len(s.val) >= 1 for s in people.values())


def test_people_are_ranges_of_one_tensor_per_file(folder):
    """No copies: everybody's images lie in one block, in client order."""
    people = FashionMnist(people=20).load(str(folder)).people
    parts = [p.columns["image"] for s in people.values() for p in (s.train, s.val)]
    assert len({p.untyped_storage().data_ptr() for p in parts}) == 1
    ends = np.cumsum([0, *map(len, parts)])
    assert [p.storage_offset() for p in parts] == (ends[:-1] * 784).tolist()
    assert all(p.is_contiguous() for p in parts)


def test_the_seed_alone_decides_who_gets_what(folder):
    def deal(**options):
        people = FashionMnist(people=20, **options).load(str(folder)).people
        return [numbers(s.train) for s in people.values()]

    for split in SPLITS:
        assert deal(split=split) == deal(split=split)
        assert deal(split=split) != deal(split=split, split_seed=1)
    assert deal(split="dirichlet") != deal(split="dirichlet", alpha=5.0)


def classes(samples) -> set[int]:
    return set(samples.columns["label"].tolist())


def test_shards_give_two_classes_in_training_and_the_same_in_test(folder):
    """40 images a class, 40 shards of 10: a shard has one class. So have test shards of 3 of 12."""
    counts = set()
    for s in FashionMnist(people=20, split="shards").load(str(folder)).people.values():
        seen = classes(s.train) | classes(s.val)
        assert classes(s.test) <= seen
        counts.add(len(seen))
    assert counts <= {1, 2}
    assert 2 in counts


def test_small_alpha_gives_few_classes_and_large_alpha_all(folder):
    def spread(alpha):
        deal = FashionMnist(people=10, split="dirichlet", alpha=alpha).load(str(folder))
        return np.mean([len(classes(s.train)) for s in deal.people.values()])

    assert spread(0.01) < 3.5 < spread(0.5) < 9 < spread(1000.0)


def test_shares_are_kept_while_classes_last():
    """Two people, two classes of 50: one wants class 0 only, the other class 1 only."""
    labels, draw = np.arange(100) % 2, np.random.default_rng(0)
    owner = by_shares(labels, np.eye(2), draw)
    assert (owner == labels).all()


def test_where_classes_are_used_up_the_others_fill_in():
    """Both want class 0 only: one of them gets its 50, the other the 50 of class 1."""
    labels, draw = np.arange(100) % 2, np.random.default_rng(0)
    owner = by_shares(labels, np.array([[1.0, 0.0], [1.0, 0.0]]), draw)
    (first,), (second,) = (set(owner[labels == c]) for c in (0, 1))
    assert {first, second} == {0, 1}


@given(
    st.integers(1, 9),
    st.integers(0, 60),
    st.integers(2, 5),
    st.sampled_from([0.01, 1.0, 100.0]),
    st.integers(0, 99),
)
def test_dealing_by_shares_gives_everybody_as_many(people, images, kinds, alpha, seed):
    draw = np.random.default_rng(seed)
    labels = draw.integers(kinds, size=images)
    shares = draw.dirichlet(np.full(kinds, alpha), people)
    sizes = np.bincount(by_shares(labels, np.nan_to_num(shares), draw), minlength=people)
    assert sizes.sum() == images
    assert sizes.max() - sizes.min() <= 1


@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 99))
def test_shards_are_runs_of_sorted_classes_of_equal_length(people, images, seed):
    draw = np.random.default_rng(seed)
    labels = draw.integers(3, size=images)
    shards = draw.permutation(2 * people)  # every shard an owner of its own
    owner = by_shards(labels, shards, draw)
    sizes = np.bincount(owner, minlength=2 * people)
    assert sizes.max() - sizes.min() <= 1
    at = np.argsort(shards)[owner]  # the place of the shard in the order of classes
    assert (np.diff(labels[np.lexsort((labels, at))]) >= 0).all()


# --- files


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (TRAIN_IMAGES, None, "missing file"),
        (TRAIN_LABELS, None, "missing file"),
        (TRAIN_IMAGES, b"", "cannot read"),
        (TRAIN_IMAGES, b"not gzip at all", "cannot read"),
        (TRAIN_LABELS, zipped(b""), "no IDX file of labels"),
        (TRAIN_LABELS, zipped(idx(np.zeros(400), magic=0x0D01)), "no IDX file of labels"),
        (TRAIN_IMAGES, zipped(idx(np.zeros(400))), "no IDX file of images"),
        (TRAIN_IMAGES, zipped(idx(np.zeros((400, 32, 32)))), "no IDX file of images"),
        (TRAIN_IMAGES, zipped(idx(np.zeros((399, 28, 28)))), "399 images for 400 labels"),
        (TRAIN_LABELS, zipped(idx(np.zeros(400))[:-1]), "holds 399 bytes, its header says 400"),
        (TRAIN_LABELS, zipped(idx(np.zeros(400)) + b"x"), "holds 401 bytes"),
        (TRAIN_LABELS, zipped(idx(np.full(400, 10))), "labels must be 0 to 9, got 10"),
    ],
)
def test_a_bad_file_is_named_with_what_to_do(copy, name, content, says):
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        FashionMnist(people=5).load(str(copy))
    assert name in str(caught.value)
    assert "github.com/zalandoresearch/fashion-mnist" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [1, 10, 200, -9, -1])
def test_a_truncated_file_is_refused(copy, kept):
    path = copy / TRAIN_IMAGES
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"cannot read .*copy it anew"):
        FashionMnist(people=5).load(str(copy))


def test_a_flipped_byte_is_noticed(copy):
    """The gzip checksum covers the content."""
    path = copy / TRAIN_LABELS
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError):
        FashionMnist(people=5).load(str(copy))


def test_more_or_fewer_items_than_published_are_read(tmp_path):
    path = tmp_path / "x.gz"
    for count in (0, 3, 300):
        path.write_bytes(zipped(idx(np.arange(count * 4).reshape(count, 2, 2) % 251)))
        found = read_idx(path, (2, 2), 100, "")
        assert (found.reshape(-1) == np.arange(count * 4) % 251).all()


def test_a_folder_must_be_named_and_be_there(tmp_path):
    for root in (None, str(tmp_path / "no")):
        with pytest.raises(DataError, match=r"fashion_mnist.*root"):
            FashionMnist().load(root)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"people": 121}, "121 people .* split 'iid'; set people to at most 120"),
        ({"people": 61, "split": "shards"}, "at most 60"),
    ],
)
def test_too_many_people_are_refused_and_the_most_are_not(folder, options, says):
    with pytest.raises(ConfigError, match=says):
        FashionMnist(**options).load(str(folder))
    FashionMnist(**{**options, "people": options["people"] - 1}).load(str(folder))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"people": 0}, "people must be >= 1"),
        ({"split": "random"}, "split must be one of iid, dirichlet, dirichlet_by_class, shards"),
        ({"alpha": 0.0}, "alpha must be > 0"),
        ({"val": 1.0}, "val must be"),
    ],
)
def test_bad_options_are_named(options, says):
    with pytest.raises(ConfigError, match=f"fashion_mnist: {says}"):
        FashionMnist(**options)


def test_check_counts_and_tells_what_is_wrong(copy):
    few = check(copy)
    assert [(c.what, c.actual, c.ok) for c in few] == [
        ("train images", "400", False),
        ("images of the rarest class, train", "40", False),
        ("test images", "120", False),
        ("images of the rarest class, test", "12", False),
    ]
    (copy / TRAIN_IMAGES).unlink()
    assert next(c.what for c in check(copy)) == "train images and labels"


@pytest.mark.slow
@pytest.mark.data
def test_the_published_files():
    root = research_data("fashion_mnist")
    assert all(c.ok for c in check(root))
    federation = FashionMnist().load(str(root))
    assert {tuple(map(len, (s.train, s.val, s.test))) for s in federation.people.values()} == {
        (54, 6, 10)
    }
    labels = torch.cat([s.test.columns["label"] for s in federation.people.values()])
    assert labels.bincount().tolist() == [1000] * 10
    images = torch.cat([s.train.columns["image"] for s in federation.people.values()])
    assert float(images.float().mean()) / 255 == pytest.approx(0.2860, abs=0.002)


def test_the_first_wrong_label_is_named(copy):
    labels = np.zeros(400)
    labels[[7, 9]] = 12, 11
    (copy / TRAIN_LABELS).write_bytes(zipped(idx(labels)))
    with pytest.raises(DataError, match="labels must be 0 to 9, got 12: "):
        FILES.labels(copy, "train")
    (copy / TRAIN_LABELS).write_bytes(zipped(idx(labels % 10)))
    assert FILES.labels(copy, "train").tolist() == (labels % 10).tolist()


def test_labels_that_begin_at_one_and_images_by_columns(tmp_path):
    turned = IdxFiles({"a": "x"}, {"a": 3}, ("p", "q", "r"), "here", first=1, turned=True)
    images = np.arange(3 * 28 * 28).reshape(3, 28, 28) % 251
    (tmp_path / "x-labels-idx1-ubyte.gz").write_bytes(zipped(idx(np.array([3, 1, 2]))))
    (tmp_path / "x-images-idx3-ubyte.gz").write_bytes(zipped(idx(images)))
    part = turned.parts(tmp_path)["a"]
    assert part.labels.tolist() == [2, 0, 1]
    assert part.labels.dtype == np.int64
    found = part.images()
    assert found.shape == (3, 1, 28, 28)
    assert np.array_equal(found[:, 0].numpy(), images.transpose(0, 2, 1))
    for wrong in (0, 4):
        (tmp_path / "x-labels-idx1-ubyte.gz").write_bytes(zipped(idx(np.array([3, wrong, 2]))))
        with pytest.raises(DataError, match=f"labels must be 1 to 3, got {wrong}: here"):
            turned.labels(tmp_path, "a")
    (line, *_) = turned.check(tmp_path)
    assert (line.what, line.actual) == (
        "a images and labels",
        "unreadable",
    )


@pytest.mark.parametrize("expected", [1, 2, 100])
def test_an_idx_file_is_read_whatever_was_expected(tmp_path, expected):
    (tmp_path / "a").write_bytes(zipped(idx(np.arange(12).reshape(2, 2, 3))))
    found = read_idx(tmp_path / "a", (2, 3), expected, "here")
    assert found.tolist() == np.arange(12).reshape(2, 2, 3).tolist()
    found[0, 0, 0] = 9
    for inner in ((3, 2), (2,), (2, 3, 1), ()):
        with pytest.raises(DataError, match="is no IDX file of") as caught:
            read_idx(tmp_path / "a", inner, expected, "here")
        assert ("of labels" in str(caught.value)) == (inner == ())
    head = [0x0803, 2, 2, 3]
    with pytest.raises(DataError, match=f"header is {head[:2]}".replace("[", r"\[")):
        read_idx(tmp_path / "a", (), expected, "here")
