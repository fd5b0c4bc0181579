"""Who gets which image: classes dealt by a draw or by a table, and images resized."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vergence.data.images.partition import (
    TABLE_3_1,
    Dealt,
    PartitionPart,
    by_class_shares,
    by_classes,
    by_counts,
    kinds_of,
    resized,
    tabled,
    unequal_shares,
)
from vergence.errors import ConfigError

CLASSES = tuple("abcdefghij")


class Lettered(Dealt):
    @property
    def classes(self):
        return CLASSES


def part(count: int) -> PartitionPart:
    """Return so many images of each of ten classes; pixel 0 is the class."""
    labels = np.arange(count * 10) % 10
    images = torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.from_numpy(labels)
    return PartitionPart(labels, lambda: images)


def deal(train=40, published=12, **options):
    return Lettered(**options).deal({"train": part(train), "test": part(published)}, {}).people


def classes(*samples):
    return {label for s in samples for label in s.columns["label"].tolist()}


def test_table_3_1_gives_its_classes_and_shares_them_equally():
    """40 images a class. Class 2 is with persons 1, 4 and 5: 13, 13 and, left over, 14 of them."""
    people = list(deal(split="table").values())
    assert [classes(s.train, s.val) for s in people] == [set(row) for row in TABLE_3_1]
    assert [classes(s.test) for s in people] == [set(row) for row in TABLE_3_1]
    twos = [
        int((np.concatenate([p.columns["label"] for p in (s.train, s.val)]) == 2).sum())
        for s in people
    ]
    assert twos == [0, 13, 0, 0, 13, 14, 0, 0, 0, 0]
    assert len(people[8].train) + len(people[8].val) == 80  # nobody shares 8 and 9


def test_a_share_of_the_images_is_taken_of_every_class_alike():
    """A quarter of 40 and 12 images of a class is 10 and 3; with all of them nothing is drawn."""
    few = deal(take=0.25, people=5, split="iid").values()
    trained = [samples for own in few for samples in (own.train, own.val)]
    for samples, count in ((trained, 10), ([own.test for own in few], 3)):
        labels = np.concatenate([s.columns["label"] for s in samples])
        assert np.bincount(labels).tolist() == [count] * 10
        assert all((s.columns["image"][:, 0, 0, 0] == s.columns["label"]).all() for s in samples)
    with pytest.raises(ConfigError, match="take"):
        deal(take=0.0)


def test_another_share_of_the_test_images_may_be_taken():
    """A quarter of 40 and all 12 images of a class; the text says the share of what was published.

    Of 800 published training images 400 are here, a quarter of which is an eighth of all.
    """
    few = deal(take=0.25, take_test=1.0, people=5, split="iid").values()
    tests = np.concatenate([own.test.columns["label"] for own in few])
    assert np.bincount(tests).tolist() == [12] * 10
    assert sum(len(own.train) + len(own.val) for own in few) == 100
    parts, published = {"train": part(40), "test": part(12)}, {"train": 800, "test": 240}
    for options, text in (
        ({"take": 0.25}, "0.125 of the published images; "),
        (
            {"take": 0.25, "take_test": 1.0},
            "0.125 of the published training images, 0.5 of the published test images; ",
        ),
    ):
        made = Lettered(people=5, **options).deal(parts, {}, published)
        assert made.about["split"].startswith(text)
    with pytest.raises(ConfigError, match="take_test"):
        deal(take_test=0.0)


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 60), st.integers(0, 99))
def test_test_images_are_dealt_as_training_images_came_out(people, kinds, images, seed):
    """Equal numbers, and of each class what is due but for one image, if all can have that."""
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(kinds), images)
    counts = np.zeros((people, kinds), np.int64)
    np.add.at(counts, (draw.integers(people, size=5 * len(labels)), np.tile(labels, 5)), 1)
    owner = by_counts(labels, counts, draw)
    sizes = np.bincount(owner, minlength=people)
    assert sizes.sum() == len(labels)
    got = np.zeros((people, kinds), np.int64)
    np.add.at(got, (owner, labels), 1)
    due = counts * (images / np.maximum(counts.sum(0), 1))
    assert (got >= np.floor(due)).all()


def test_equal_parts_of_equal_classes_are_dealt_exactly():
    """Training 6 and 4, 4 and 6 of two classes, tests of 5 each: 3 and 2, 2 and 3."""
    owner = by_counts(np.arange(10) % 2, np.array([[6, 4], [4, 6]]), np.random.default_rng(0))
    assert [np.bincount(np.arange(10)[owner == p] % 2).tolist() for p in (0, 1)] == [[3, 2], [2, 3]]


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0])
def test_people_with_shares_of_their_own_are_tested_on_what_they_trained_on(alpha):
    """600 and 100 images a class, ten people: shares of training and test differ by rounding."""
    for s in deal(600, 100, split="dirichlet", alpha=alpha).values():
        both = torch.cat([s.train.columns["label"], s.val.columns["label"]])
        train = both.bincount(minlength=10) / 600
        test = s.test.columns["label"].bincount(minlength=10) / 100
        assert (train - test).abs().max() <= 0.02
        assert len(s.test) == 100


def test_numbers_of_a_table_are_runs_of_more_classes():
    """26 classes in 10 runs: 3 3 2 3 2 3 3 2 3 2, so the last person but one has 5 of them."""
    has = tabled("x", TABLE_3_1, 10, 26)
    assert np.flatnonzero(has[8]).tolist() == [21, 22, 23, 24, 25]
    assert has.any(0).all()
    assert np.flatnonzero(tabled("x", ((0,), (1, 0)), 2, 4)[0]).tolist() == [0, 1]


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 8), st.integers(0, 99))
def test_pathological_people_have_their_number_of_classes_and_classes_their_people(
    people, kinds, count, seed
):
    draw = np.random.default_rng(seed)
    if kinds > count or people * kinds < count:
        with pytest.raises(ConfigError, match="cannot share out"):
            kinds_of("x", people, kinds, count, draw)
        return
    has = kinds_of("x", people, kinds, count, draw)
    assert (has.sum(1) == kinds).all()
    assert has.sum(0).max() - has.sum(0).min() <= 1
    assert has.any(0).all()
    labels = draw.integers(count, size=50)
    owner = by_classes(labels, has, draw)
    assert has[owner, labels].all()
    for kind in range(count):
        shared = np.bincount(owner[labels == kind], minlength=people)[has[:, kind]]
        assert shared.max() - shared.min() <= 1


def test_pathological_is_drawn_by_the_seed_and_alike_in_both_parts():
    def told(seed):
        people = deal(split="pathological", kinds=3, split_seed=seed).values()
        assert all(classes(s.test) == classes(s.train, s.val) for s in people)
        assert all(len(classes(s.train, s.val)) == 3 for s in people)
        return [classes(s.train) for s in people]

    assert told(1) == told(1)
    assert told(1) != told(2)


def every_label(own):
    return torch.cat([s.columns["label"] for s in (own.train, own.val, own.test)])


def test_classes_are_cut_by_the_shares_of_people():
    """8 images of class 0 by 1/4, 0 and 3/4, and 5 of class 1 by 0, 1 and 0."""
    labels = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    shares = np.array([[0.25, 0.0], [0.0, 1.0], [0.75, 0.0]])
    owner = by_class_shares(labels, shares, np.random.default_rng(0))
    assert np.bincount(owner[:8], minlength=3).tolist() == [2, 0, 6]
    assert (owner[8:] == 1).all()


def test_all_but_the_last_get_a_tenth_to_the_whole_of_an_equal_part():
    """Three of four people share 90 images of class 0: 3 to 29, 3 to 29, and the rest."""
    has = np.array([[1, 0], [0, 1], [1, 0], [1, 0]], bool)
    for seed in range(50):
        shares = unequal_shares(has, np.array([90, 7]), np.random.default_rng(seed))
        images = shares * [90, 7]
        assert images[:, 1].tolist() == [0, 7, 0, 0]
        assert images[1, 0] == 0
        assert all(2.9 < images[person, 0] < 29.1 for person in (0, 2))
        assert images[:, 0].sum() == pytest.approx(90)


def test_a_table_in_unequal_numbers_keeps_its_classes():
    people = list(deal(400, 100, split="table", unequal=True, test=0.25, val=0).values())
    assert [set(every_label(s).tolist()) for s in people] == [set(row) for row in TABLE_3_1]
    assert sum(len(every_label(s)) for s in people) == 5000
    assert len({len(s.train) for s in people}) > 5


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_classes_are_divided_by_dirichlet_and_nobody_has_few(alpha):
    """5,000 images among 10 people: all are dealt, and everybody has at least 40."""
    people = deal(400, 100, split="dirichlet_by_class", alpha=alpha, test=0.25, val=0).values()
    sizes = [len(every_label(s)) for s in people]
    assert sum(sizes) == 5000
    assert 40 <= min(sizes) < 500 < max(sizes)
    most = [float(every_label(s).bincount().max()) / n for s, n in zip(people, sizes, strict=True)]
    assert np.mean(most) > (0.5 if alpha == 0.1 else 0.2)


def test_a_quarter_of_everybodys_images_is_for_test():
    """Rounded up, as PFLlib rounds the three quarters for training down; no validation with 0."""
    for val in (0, 0.1):
        people = deal(400, 100, people=7, split="iid", test=0.25, val=val).values()
        for own in people:
            images = len(every_label(own))
            assert len(own.test) == -(-images // 4)
            assert len(own.val) == round(val * (images - len(own.test)))
        together = torch.cat([every_label(own) for own in people]).bincount()
        assert together.tolist() == [500] * 10


def test_people_may_have_no_validation_images():
    assert all(len(own.val) == 0 for own in deal(people=5, split="iid", val=0).values())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "dirichlet_by_class", "alpha": 0.01, "people": 60}, "fewer people or a larger"),
        ({"people": 200, "test": 0.25}, r"at most 1\d\d"),
        ({"split": "pathological", "kinds": 11}, "set kinds to 1 to 10"),
        ({"split": "pathological", "people": 4}, "set kinds to 3 to 10, or people to 5 or more"),
        ({"split": "pathological", "people": 100}, r"set people to at most \d\d"),
        ({"split": "table", "people": 5}, "it has 10 rows; set people to 10"),
        ({"split": "table", "people": 2, "table": ((0,), (2,))}, r"once or more, got \[0, 2\]"),
        (
            {"split": "table", "people": 2, "table": ((0,), ())},
            "give each of 2 people some classes",
        ),
        ({"split": "table", "people": 1, "table": (tuple(range(11)),)}, "all of 0 to at most 9"),
        ({"people": 121}, "at most 120"),
    ],
)
def test_what_cannot_be_dealt_is_refused(options, says):
    with pytest.raises(ConfigError, match=f"test_partition:Lettered: .*{says}"):
        deal(**options)


def test_resizing_keeps_flat_images_and_averages_neighbours():
    """Twice as many pixels at halves between: 0 0 then a quarter, three quarters, 100 100."""
    flat = torch.full((2, 3, 4, 4), 77, dtype=torch.uint8)
    assert resized(flat, 9).unique().tolist() == [77]
    step = torch.tensor([[0, 100], [0, 100]], dtype=torch.uint8)[None, None]
    assert resized(step, 4)[0, 0, 0].tolist() == [0, 25, 75, 100]
    people = deal(side=16)
    assert {tuple(s.train.columns["image"].shape[1:]) for s in people.values()} == {(1, 16, 16)}
