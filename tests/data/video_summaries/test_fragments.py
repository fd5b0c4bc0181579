"""Rated clips: cut where they should be, urns as likely as each other, hands as full."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vergence.data.synthetic.clip_synthetic import draw_clip, rate_clip
from vergence.data.video_summaries.fragments import (
    PARTS,
    RatedClip,
    deal_items,
    favourites,
    fragments,
    samples_of,
    urns,
)
from vergence.errors import ConfigError


def clip(seed=0):
    """Picks every third frame: 20 frames, 7 steps, shots of 0-4, 5-11, 12-19."""
    rng = np.random.default_rng(seed)
    shots = np.array([[0, 4], [5, 11], [12, 19]])
    return RatedClip(
        rng.normal(size=(7, 2)),
        np.arange(0, 20, 3),
        rng.random(7),
        rng.random((3, 7)),
        rng.random((3, 20)) < 0.3,
        shots,
    )


def test_a_fragment_has_its_steps_frames_and_shots():
    """Steps 2 to 5 are frames 6 to 17: of the second shot 6 frames, of the third 6."""
    whole = clip()
    part = whole.cut(2, 6)
    assert part.picks.tolist() == [0, 3, 6, 9]
    assert part.shots.tolist() == [[0, 5], [6, 11]]
    np.testing.assert_array_equal(part.features, whole.features[2:6])
    np.testing.assert_array_equal(part.ratings, whole.ratings[:, 2:6])
    np.testing.assert_array_equal(part.choices, whole.choices[:, 6:18])


@settings(max_examples=10)
@given(st.integers(0, 99), st.integers(1, 4))
def test_fragments_are_the_whole_clip_cut(seed, count):
    whole, rng = clip(seed), np.random.default_rng(seed)
    parts = fragments(whole, urns(7, count, 1, rng))
    assert [len(parts), sum(map(len, parts))] == [count, 7]
    np.testing.assert_array_equal(np.concatenate([p.choices for p in parts], 1), whole.choices)
    np.testing.assert_array_equal(np.concatenate([p.target for p in parts]), whole.target)
    for part in parts:
        covered = np.concatenate([np.arange(a, b + 1) for a, b in part.shots])
        assert covered.tolist() == list(range(part.choices.shape[1]))


def test_every_way_to_fill_the_urns_is_as_likely():
    """Eight balls, three urns with two at least: two free balls, six ways; 6000 draws.

    The chance that chi-squared of 5 degrees of freedom exceeds 20.5 is 0.001.
    """
    rng = np.random.default_rng(0)
    ways = Counter(tuple(urns(8, 3, 2, rng)) for _ in range(6000))
    assert len(ways) == 6
    assert all(sum(way) == 8 and min(way) >= 2 for way in ways)
    assert sum((n - 1000) ** 2 / 1000 for n in ways.values()) < 20.5
    assert urns(5, 1, 5, rng) == [5]
    with pytest.raises(ConfigError, match="5 steps cannot be cut into 3 fragments of at least 2"):
        urns(5, 3, 2, rng)


@settings(max_examples=10)
@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 4), st.integers(1, 6))
def test_clips_go_to_those_who_hold_their_class(kinds, classes, people):
    holders = {kind: [p for p in range(people) if (kind - p) % 4 < classes] for kind in range(4)}
    kinds = [kind for kind in kinds if holders[kind]]
    hands = deal_items(kinds, holders, people)
    assert sorted(i for hand in hands for i in hand) == list(range(len(kinds)))
    assert all(person in holders[kinds[i]] for person, hand in enumerate(hands) for i in hand)


def test_hands_differ_by_one_where_everybody_holds_all():
    hands = deal_items([0, 1, 2, 0, 1, 2, 0], dict.fromkeys(range(3), range(3)), 3)
    assert [len(hand) for hand in hands] == [3, 2, 2]


def test_favourites_are_the_best_shots_that_fit():
    """20 frames, room for 3: the second best shot, of 3, as the best, of 4, does not fit."""
    shots = np.array([[0, 3], [4, 6], [7, 19]])
    ratings = np.repeat([[5.0, 4.0, 1.0]], [4, 3, 13], axis=1)
    assert favourites(ratings, shots)[0].nonzero()[0].tolist() == [4, 5, 6]


def test_columns_are_as_wide_for_all_and_counts_are_of_frames():
    rng = np.random.default_rng(0)
    short, long = clip(), rate_clip(long_x := draw_clip(rng, 0.1, 60, 0.0, 2), long_x[:, 1], rng)
    people = {"a": dict.fromkeys(PARTS, (short,)), "b": dict.fromkeys(PARTS, (long, short))}
    splits = samples_of(people)
    one, two = splits["a"].train, splits["b"].test
    for name, column in one.columns.items():
        assert column.shape[1:] == two.columns[name].shape[1:]
    assert two.columns["steps"].tolist() == [len(long), 7]
    taken = two.take(slice(1, 2))
    np.testing.assert_allclose(taken["features"][0, :7], short.features, rtol=1e-6)
    assert one.columns["both"][0].diagonal()[:3].tolist() == short.choices.sum(1).tolist()
    assert int(one.columns["both"][0, 0, 1]) == (short.choices[0] & short.choices[1]).sum()
    assert one.columns["inside"][0, 1, :3].tolist() == short.choices[:, 5:12].sum(1).tolist()
    assert one.banks["ratings"].rows[:, 3:].isnan().all()
