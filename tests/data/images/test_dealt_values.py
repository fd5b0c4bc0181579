"""Owners of images and the order of a person's images, as stored, and limits on both sides."""

import numpy as np
import pytest
import torch

from tests.data.synthetic.stored_sums import assert_stored
from vergence.data.images import partition
from vergence.data.images.partition import (
    Dealt,
    PartitionPart,
    by_classes,
    by_counts,
    by_shards,
    by_shares,
    check_counts,
    kinds_of,
    resized,
    tabled,
)
from vergence.errors import ConfigError

SPLITS = {"iid": {}, "shards": {}, "dirichlet": {"alpha": 0.3}, "pathological": {"kinds": 3}}
TABLE = ((0, 1), (2,), (1, 3), (0, 2, 3))


class Lettered(Dealt):
    name = "lettered"

    @property
    def classes(self):
        return tuple("abcdefg")


def part(count, seed):
    """Images of seven classes, not equally many; pixels 0 and 1 are the number of an image."""
    labels = np.random.default_rng(seed).integers(0, 7, count)
    n = torch.arange(count)
    images = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = n // 256, n % 256
    return PartitionPart(labels, lambda: images)


PARTS = {"train": part(410, 1), "test": part(130, 2)}


def numbers(samples):
    pixels = samples.columns["image"][:, 0, 0, :2].long()
    return (256 * pixels[:, 0] + pixels[:, 1]).tolist()


@pytest.mark.parametrize("split", [*SPLITS, "table"])
@pytest.mark.parametrize("take", [1.0, 0.6])
def test_images_of_people_stay(split, take):
    more = {"people": 4, "table": TABLE} if split == "table" else {"people": 5, **SPLITS[split]}
    made = Lettered(split=split, take=take, split_seed=3, val=0.2, **more)
    federation = made.deal(PARTS, {"licence": "none"})
    found, dealt = [], {"train": [], "test": []}
    for splits in federation.people.values():
        for name, samples in (
            ("train", splits.train),
            ("train", splits.val),
            ("test", splits.test),
        ):
            rows = numbers(samples)
            found.append(rows)
            dealt[name] += rows
            assert samples.columns["label"].tolist() == PARTS[name].labels[rows].tolist()
        share = len(splits.val) / (len(splits.train) + len(splits.val))
        assert share == pytest.approx(0.2, abs=0.5 / (len(splits.train) + len(splits.val)) + 1e-9)
    for name, data in PARTS.items():
        kept = np.bincount(data.labels[dealt[name]], minlength=7)
        assert kept.tolist() == [round(take * n) for n in np.bincount(data.labels).tolist()]
        assert len(set(dealt[name])) == len(dealt[name])
    assert_stored(f"dealt images, {split}, {take:g}", found)
    assert ("0.6 of the published images; " in federation.about["split"]) == (take == 0.6)


def test_owners_by_each_rule_stay():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 5, 83)
    shares = draw.dirichlet(np.full(5, 0.2), 6)
    shares[0] = [1e-12, 0, 0, 0, 0]
    has = kinds_of("x", 6, 2, 5, draw)
    found = {
        "shards": by_shards(labels, draw.permutation(12) // 2, draw),
        "shares": by_shares(labels, shares, draw),
        "counts": by_counts(labels, draw.integers(0, 9, (6, 5)), draw),
        "nothing of a class": by_counts(labels, np.eye(6, 5, dtype=np.int64), draw),
        "classes": by_classes(labels, has, draw),
        "has": has,
    }
    assert (found["shards"] >= 0).all()
    assert np.bincount(found["shares"], minlength=6).tolist() == [13, 14, 14, 14, 14, 14]
    assert_stored("owners of images", found)


def test_shards_are_equal_runs_of_sorted_images():
    """Ten images, four shards: runs of 3, 2, 3 and 2 images, in the order of classes."""
    labels = np.array([3, 0, 2, 1, 0, 3, 1, 2, 0, 1])
    owner = by_shards(labels, np.array([2, 0, 1, 3]), np.random.default_rng(0))
    assert sorted(labels[owner == 2].tolist()) == [0, 0, 0]
    assert sorted(labels[owner == 0].tolist()) == [1, 1]
    assert sorted(labels[owner == 1].tolist()) == [1, 2, 2]
    assert sorted(labels[owner == 3].tolist()) == [3, 3]


@pytest.mark.parametrize(
    ("split", "train", "test", "most"),
    [("iid", 20, 11, 10), ("iid", 21, 9, 9), ("shards", 40, 13, 6), ("shards", 9, 40, 4)],
)
def test_as_many_people_as_get_images(split, train, test, most):
    parts = {"train": part(train, 0), "test": part(test, 1)}
    made = Lettered(split=split, people=most).deal(parts, {})
    assert len(made.people) == most
    assert min(len(s.val) for s in made.people.values()) == 1
    with pytest.raises(ConfigError, match=f"{most + 1} people cannot .* at most {most}$"):
        Lettered(split=split, people=most + 1).deal(parts, {})


@pytest.mark.parametrize(("people", "last"), [(10, "p009"), (1000, "p999"), (1001, "p1000")])
def test_names_have_three_digits_or_as_many_as_the_last_one(people, last):
    parts = {"train": part(2 * people, 0), "test": part(people, 1)}
    names = list(Lettered(people=people).deal(parts, {}).people)
    assert names[-1] == last
    assert {len(name) for name in names} == {len(last)}


def test_tables_and_kinds_at_their_limits():
    assert tabled("x", ((0, 1, 2, 3),), 1, 4).tolist() == [[True] * 4]
    for table, said in ((((0, 1, 2, 3, 4),), "0 to at most 3"), (((1, 2),), r"got \[1, 2\]")):
        with pytest.raises(ConfigError, match=said):
            tabled("x", table, 1, 4)
    draw = np.random.default_rng(1)
    assert kinds_of("x", 2, 2, 4, draw).sum(0).tolist() == [1, 1, 1, 1]
    assert kinds_of("x", 1, 4, 4, draw).all()
    for people, kinds, said in (
        (2, 1, "set kinds to 2 to 4, or people to 4 or more"),
        (3, 1, "set kinds to 2 to 4"),
        (1, 3, "set kinds to 4 to 4, or people to 2 or more"),
        (9, 5, "9 people with 5 classes each"),
    ):
        with pytest.raises(ConfigError, match=said):
            kinds_of("x", people, kinds, 4, draw)


def test_resizing_in_chunks_is_resizing_at_once(monkeypatch):
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (7, 3, 9, 9), np.uint8))
    whole = [resized(images, side) for side in (4, 9, 14)]
    assert torch.equal(whole[1], images)
    monkeypatch.setattr(partition, "CHUNK", 2)
    for side, made in zip((4, 9, 14), whole, strict=True):
        assert torch.equal(resized(images, side), made)
    assert_stored("resized images", whole[::2], 1e-3)


def test_counts_of_a_check():
    """Seven classes of ten images each; the rarest one of the test part is not there at all."""
    labels = {"train": np.arange(70) % 7, "test": np.arange(6)}
    read = {name: PartitionPart(own, lambda own=own: own) for name, own in labels.items()}
    lines = check_counts(read.__getitem__, {"train": 70, "test": 13}, 7, "here")
    assert [(c.what, c.actual, c.expected, c.ok) for c in lines] == [
        ("train images", "70", "70", True),
        ("images of the rarest class, train", "10", "10", True),
        ("test images", "6", "13", False),
        ("images of the rarest class, test", "0", "1", False),
    ]
