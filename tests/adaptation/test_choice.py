"""Choice by cross-validation on the samples alone: folds and the one-standard-error rule."""

import numpy as np
import pytest
import torch
from scipy.stats import norm, t

from vergence.adaptation.choice import block_numbers, fold_numbers, of_video, simplest_way, units
from vergence.core.data import Samples


def test_few_samples_are_left_out_in_turn_and_more_are_dealt_to_five_folds():
    assert fold_numbers(3).tolist() == [0, 1, 2]
    assert fold_numbers(10).tolist() == list(range(10))
    assert fold_numbers(11).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert np.bincount(fold_numbers(27)).tolist() == [6, 5, 6, 5, 5]


def test_a_sample_counts_for_itself_or_with_those_of_its_target():
    plain = Samples({"gaze": torch.arange(8.0).reshape(4, 2)})
    assert units(plain).tolist() == [0, 1, 2, 3]
    assert units(Samples({"points": torch.zeros(3, 1, 1, 2)})).tolist() == [0, 1, 2]
    target = torch.tensor([2, 2, 7, 2])
    assert units(Samples({**plain.columns, "target": target})).tolist() == [0, 0, 1, 0]


def test_both_eyes_of_a_frame_count_as_one_sample():
    """Left eyes first, then the right eyes of the same frames, whose yaw is mirrored."""
    left = torch.tensor([[0.1, 0.3], [0.2, 0.4]])
    gaze = torch.cat([left, left * torch.tensor([1.0, -1.0])])
    side = torch.tensor([0, 0, 1, 1])
    assert units(Samples({"gaze": gaze, "side": side})).tolist() == [0, 1, 0, 1]
    assert units(Samples({"gaze": gaze})).tolist() == [0, 1, 2, 3]


def test_a_sample_that_is_there_twice_counts_once():
    gaze = torch.tensor([[0.1, 0.3], [0.2, 0.3], [0.1, 0.3]])
    assert units(Samples({"gaze": gaze})).tolist() == [0, 1, 0]
    column = torch.zeros(3, 1, dtype=torch.int64)
    assert units(Samples({"gaze": gaze, "side": column})).tolist() == [0, 1, 0]


def test_viewings_of_a_picture_count_as_one_sample():
    """Windows of a video are other samples, even where they share frames."""
    points = torch.zeros(3, 1, 4, 2)
    pictures = {"points": points, "frame_ids": torch.tensor([[4], [9], [4]])}
    assert units(Samples(pictures)).tolist() == [0, 1, 0]
    windows = {"points": points, "frame_ids": torch.tensor([[4, 5], [5, 6], [4, 6]])}
    assert units(Samples(windows)).tolist() == [0, 1, 2]


def test_a_way_within_one_error_of_the_best_does_not_leave_the_shared_model():
    """Differences 1, -1, 2, 0 have mean 0.5 and error sqrt(5/3) / 2 = 0.645, times t = 1.197."""
    shared = np.array([3.0, 1.0, 4.0, 2.0])
    other = shared - np.array([1.0, -1.0, 2.0, 0.0])
    assert float(np.std([1, -1, 2, 0], ddof=1) / 2) == pytest.approx(0.6455, abs=1e-4)
    assert float(t.ppf(norm.cdf(1), 3)) == pytest.approx(1.197, abs=1e-3)
    assert simplest_way({"shared": shared, "other": other}) == "shared"
    assert simplest_way({"shared": shared, "other": other - 1}) == "other"


def test_two_errors_speak_against_what_other_people_say():
    """Differences 2, 0, 3, 1: mean 1.5, error 0.645; one is 0.77 wide, two are 2.13 (t = 3.31)."""
    fitted = np.array([3.0, 1.0, 4.0, 2.0])
    other = fitted - np.array([2.0, 0.0, 3.0, 1.0])
    assert simplest_way({"fitted": fitted, "other": other}) == "other"
    assert simplest_way({"fitted": fitted, "other": other}, needed=2.0) == "fitted"
    assert simplest_way({"fitted": fitted, "other": other - 1.0}, needed=2.0) == "other"


def test_few_samples_make_an_error_wider():
    """Two differences 1 and 2: mean 1.5, error 0.5, times t = 1.84 with one degree of freedom."""
    shared = np.array([5.0, 5.0])
    assert simplest_way({"shared": shared, "other": shared - [1.0, 2.0]}) == "other"
    assert simplest_way({"shared": shared, "other": shared - [0.2, 1.8]}) == "shared"
    assert float(t.ppf(norm.cdf(1), 1)) == pytest.approx(1.837, abs=1e-3)


def test_a_simpler_way_wins_over_a_better_one_that_is_within_its_error():
    shared = np.full(8, 9.0)
    simple = np.array([5.0, 6.0] * 4)
    best = simple - np.array([0.9, -0.8] * 4)
    assert best.mean() < simple.mean()
    assert simplest_way({"shared": shared, "simple": simple, "best": best}) == "simple"


def test_nothing_is_chosen_that_is_worse_than_the_shared_model_in_the_mean():
    shared = np.array([1.0, 1.0, 1.0, 9.0])
    noisy = np.array([0.0, 0.0, 13.0, 0.0])
    best = np.array([0.5, 0.5, 0.5, 8.5])
    assert simplest_way({"shared": shared, "noisy": noisy, "best": best}) == "best"
    assert simplest_way({"shared": shared, "noisy": noisy}) == "shared"


def test_frames_of_a_video_are_judged_in_runs_of_neighbours_and_pictures_one_by_one():
    frames = torch.arange(3)[:, None]
    assert of_video(Samples({"frame_ids": frames}))
    assert of_video(Samples({"frame_ids": frames, "scene": torch.full((3,), -1)}))
    assert not of_video(Samples({"frame_ids": frames, "scene": torch.arange(3)}))
    assert not of_video(Samples({"gaze": torch.zeros(3, 2)}))
    assert np.bincount(block_numbers(81, video=True)).tolist() == [
        7,
        7,
        7,
        6,
        7,
        7,
        7,
        6,
        7,
        7,
        7,
        6,
    ]
    assert (
        block_numbers(9, video=True).tolist()
        == block_numbers(9, video=False).tolist()
        == list(range(9))
    )
    assert block_numbers(81, video=False).tolist() == list(range(81))


def test_alike_neighbours_do_not_make_an_error_smaller():
    """Twelve runs of ten, all samples of a run alike: 120 of them know no more than 12.

    Differences are 2 in half of the runs and -1.4 in the others: mean 0.3, error of twelve
    1.776 / sqrt(12) = 0.513, times t = 1.05; of 120 taken as independent 0.156.
    """
    apart = np.repeat([2.0, -1.4] * 6, 10)
    losses = {"shared": np.full(120, 9.0), "other": 9.0 - apart}
    assert simplest_way(losses) == "other"
    assert simplest_way(losses, block_numbers(120, video=True)) == "shared"
