"""Summaries judged: knapsack against every subset, F and ranks by hand, published outputs."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.conftest import research_data
from vergence.errors import ConfigError, DataError
from vergence.metrics import summaries
from vergence.metrics.summaries import (
    HumanSelections,
    agreement,
    capacity,
    counted_f,
    counted_human_f,
    f_score,
    human_agreement,
    human_f,
    kendall,
    knapsack,
    overlap,
    random_f,
    rest_agreement,
    shot_values,
    spearman,
    spread,
    summary,
)

ITEMS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=7)


def mask(*rows):
    return np.array([[c == "x" for c in row] for row in rows])


@settings(max_examples=40)
@given(ITEMS, st.integers(0, 30))
def test_no_subset_that_fits_is_worth_more(items, room):
    values = np.array([v for v, _ in items], float)
    weights = np.array([w for _, w in items], int)
    chosen = knapsack(values, weights, room)
    every = [list(c) for n in range(len(items) + 1) for c in combinations(range(len(items)), n)]
    best = max(values[c].sum() for c in every if weights[c].sum() <= room)
    assert weights[chosen].sum() <= room
    assert values[chosen].sum() == best


def test_of_equal_values_the_earlier_is_taken():
    np.testing.assert_array_equal(knapsack(np.ones(3), np.full(3, 2), 4), [True, True, False])


def test_what_cannot_be_weighed_or_shared_is_refused():
    with pytest.raises(DataError, match="at least one frame, got a weight of 0"):
        knapsack(np.ones(2), np.array([1, 0]), 3)
    for share in (0, 1.01, float("nan")):
        with pytest.raises(ConfigError, match=r"must lie in \(0, 1\]"):
            capacity(100, share)


def test_capacity_is_cut_to_whole_frames():
    assert [capacity(n) for n in (4494, 100, 6)] == [674, 15, 0]


def test_a_frame_has_the_score_of_the_last_pick():
    """Picks 1 and 3 of 6 frames: none before the first, the tail has the last."""
    found = spread(np.array([0.5, 0.25]), np.array([1, 3]), 6)
    np.testing.assert_array_equal(found, [0, 0.5, 0.5, 0.25, 0.25, 0.25])
    np.testing.assert_array_equal(shot_values(found, np.array([[0, 1], [2, 5]])), [0.25, 0.3125])


def test_the_best_shots_that_fit_are_the_summary():
    """Room for 5 of 10: shots of 4, 3, 2, 1 worth 5, 4, 3, 0; 3 + 2 frames are worth 7, 4 + 1 5."""
    per_frame = np.repeat([5.0, 4, 3, 0], [4, 3, 2, 1])
    shots = np.array([[0, 3], [4, 6], [7, 8], [9, 9]])
    np.testing.assert_array_equal(summary(per_frame, shots, 0.5), mask("----xxxxx-")[0])


def test_f_by_hand():
    """Two of four chosen frames in a user's three: P 1/2, R 2/3, F 4/7; another meets none."""
    machine, users = mask("xxxx----")[0], mask("--xxx---", "-----xxx")
    assert overlap(machine, users[0]) == pytest.approx((4 / 7, 1 / 2, 2 / 3))
    assert f_score(machine, users, "max") == pytest.approx(4 / 7)
    assert f_score(machine, users, "mean") == pytest.approx(2 / 7)
    assert overlap(mask("----")[0], mask("xx--")[0]) == (0, 0, 0)


def test_people_are_compared_with_the_others_only():
    """xx-- and x--- share F 2/3; the third meets nobody: max (2/3, 2/3, 0), mean half of that."""
    users = mask("xx--", "x---", "---x")
    assert human_f(users, "max") == pytest.approx(4 / 9)
    assert human_f(users, "mean") == pytest.approx(2 / 9)


def test_a_random_row_is_drawn_on_the_same_shots():
    """One shot fits, whatever its score: the row says so. Of two that fit one each, some do."""
    rng = np.random.default_rng(0)
    users = np.zeros((1, 300), bool)
    users[0, :40] = True
    one, two = np.array([[0, 39], [40, 299]]), np.array([[0, 39], [40, 79], [80, 299]])
    assert random_f(one, users, "max", rng) == 1
    assert {random_f(two, users, "max", rng) for _ in range(20)} == {0, 1}


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=2, max_size=90))
def test_rank_correlations_are_those_of_scipy(steps):
    """With ties; where a row is constant SciPy says NaN, here it agrees with nobody: 0."""
    rows = np.array(steps, float).T
    tau, rho = kendall(rows), spearman(rows)
    for i, j in combinations(range(3), 2):
        if np.ptp(rows[i]) and np.ptp(rows[j]):
            assert tau[i, j] == pytest.approx(stats.kendalltau(rows[i], rows[j]).statistic)
            assert rho[i, j] == pytest.approx(stats.spearmanr(rows[i], rows[j]).statistic)
        else:
            assert tau[i, j] == rho[i, j] == 0


def test_blocks_do_not_change_kendall(monkeypatch):
    rows = np.random.default_rng(1).integers(0, 9, (4, 150)).astype(float)
    whole = kendall(rows)
    monkeypatch.setattr(summaries, "BLOCK", 7)
    np.testing.assert_allclose(kendall(rows), whole, atol=1e-12)


def test_agreement_is_with_each_person_not_with_their_mean():
    """Each has one pair of six reversed: 4/6. Their mean ties those two pairs: 4 / sqrt(6 4)."""
    people = np.array([[1.0, 2, 4, 3], [2, 1, 3, 4]])
    found = agreement([1, 2, 3, 4], people)
    assert found == pytest.approx((4 / 6, 0.8))
    assert agreement([1, 2, 3, 4], people.mean(0)[None]).tau == pytest.approx(4 / np.sqrt(24))
    assert human_agreement(people) == pytest.approx((2 / 6, 0.6))


@pytest.mark.slow
@pytest.mark.data
def test_published_summaries_come_out_frame_for_frame():
    """SUM-Ind's 50 of SumMe, from its scores and the shots; F to 5e-9."""
    import h5py

    from vergence.data.video_summaries.h5_files import read_videos

    root = research_data("video_summarisation")
    videos = read_videos(root / "summe_annotations.h5")
    seen = 0
    with h5py.File(root / "reference_runs.h5") as file:
        for splits in file["SumMe"].values():
            for split in splits.values():
                for key, run in split.items():
                    video = videos[key]
                    ours = summary(spread(run["score"][()], video.picks, video.frames), video.shots)
                    np.testing.assert_array_equal(ours, run["machine_summary"][()] > 0)
                    f = f_score(ours, video.users > 0, "max")
                    assert f == pytest.approx(run.attrs["f_measure"], abs=5e-9)
                    seen += 1
    assert seen == 50


@pytest.mark.slow
@pytest.mark.data
def test_raters_of_tvsum_agree_as_published():
    from vergence.data.video_summaries.h5_files import read_videos

    videos = read_videos(research_data("video_summarisation") / "tvsum_annotations.h5").values()
    people = np.mean([human_agreement(v.users[:, v.picks]) for v in videos], 0)
    assert people == pytest.approx((0.177, 0.204), abs=5e-4)
    best = np.mean([agreement(v.mean_score, v.users[:, v.picks]) for v in videos], 0)
    assert best == pytest.approx((0.378, 0.473), abs=5e-4)


def test_people_against_the_mean_of_the_others():
    """Three people, four steps; one disagrees with the other two, who agree."""
    people = np.array([[1, 2, 3, 4], [1, 2, 3, 4], [4, 3, 2, 1]], float)
    # The first two: the mean of 1234 and 4321 is constant, 0; the third against 1234: -1.
    assert rest_agreement(people) == pytest.approx((-1 / 3, -1 / 3))


@pytest.mark.parametrize("over", ["max", "mean"])
@settings(max_examples=20)
@given(seed=st.integers(0, 99))
def test_counts_of_frames_give_the_same_f(over, seed):
    """People who chose nothing are left out."""
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.choice(40, 6, replace=False))
    ends[-1] = 39
    shots = np.stack([np.append(0, ends[:-1] + 1), ends], 1)
    users = rng.random((4, 40)) < 0.3
    users[2] = False
    kept = rng.random(6) < 0.5
    machine = np.zeros(40, bool)
    for first, last in shots[kept]:
        machine[first : last + 1] = True
    inside = np.add.reduceat(users.astype(int), shots[:, 0], axis=1).T
    chosen = HumanSelections(inside, users.astype(int) @ users.T)
    there = users[[0, 1, 3]]
    assert counted_f(kept, shots, chosen, over) == pytest.approx(f_score(machine, there, over))
    assert counted_human_f(chosen, over) == pytest.approx(human_f(there, over))


def test_where_nobody_chose_anything_f_is_nothing():
    nobody = HumanSelections(np.zeros((1, 2), int), np.zeros((2, 2), int))
    shots = np.array([[0, 9]])
    assert counted_f(np.array([True]), shots, nobody, "mean") == 0
    assert counted_human_f(nobody, "max") == 0


def test_who_chose_a_single_frame_counts():
    """The summary is frames 0 to 3; one person chose frame 0 alone, the other 0 to 7.

    F is 2 / (4 + 1) and 2 * 4 / (4 + 8); against each other they have 2 / (1 + 8).
    """
    shots = np.array([[0, 3], [4, 9]])
    people = HumanSelections(np.array([[1, 4], [0, 4]]), np.array([[1, 1], [1, 8]]))
    kept = np.array([True, False])
    assert counted_f(kept, shots, people, "max") == pytest.approx(2 / 3)
    assert counted_f(kept, shots, people, "mean") == pytest.approx((2 / 5 + 2 / 3) / 2)
    for over in ("max", "mean"):
        assert counted_human_f(people, over) == pytest.approx(2 / 9)


def test_one_person_alone_has_nobody_to_agree_with():
    alone = HumanSelections(np.array([[3]]), np.array([[3]]))
    assert counted_human_f(alone, "mean") == 0
    assert counted_f(np.array([True]), np.array([[0, 2]]), alone, "max") == 1
