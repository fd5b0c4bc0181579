"""Harm to one person: blocks of test samples, references, and who shows a loss."""

import numpy as np
import pytest

from vergence.metrics.harm import LEAST, bootstrap_counts, loss_of


def blocks(values, counts=None):
    """One number per block, each the mean over `counts` frames."""
    counts = np.ones(len(values)) if counts is None else np.array(counts, dtype=float)
    return np.stack([np.array(values, dtype=float) * counts, counts], 1)


def test_a_loss_that_is_the_same_in_every_block_is_certain():
    """2.0 against 2.5 everywhere: 0.5 / 2.5 = 20 %, whatever is drawn."""
    loss = loss_of(blocks([2.0] * 10), {"FedAvg": blocks([2.5] * 10)}, False)
    assert (loss.against, loss.loss, loss.bound) == (
        "FedAvg",
        pytest.approx(0.2),
        pytest.approx(0.2),
    )
    assert loss.harmed


@pytest.mark.parametrize(("mine", "harmed"), [(1.981, False), (1.979, True), (3.0, False)])
def test_harm_begins_above_one_percent_of_the_reference(mine, harmed):
    assert loss_of(blocks([mine] * 10), {"alone": blocks([2.0] * 10)}, False).harmed is harmed


def test_where_lower_is_better_more_is_a_loss():
    assert loss_of(blocks([6.0] * 9), {"alone": blocks([5.0] * 9)}, True).loss == pytest.approx(0.2)
    assert not loss_of(blocks([4.0] * 9), {"alone": blocks([5.0] * 9)}, True).harmed


def test_a_loss_that_hangs_on_one_block_is_not_shown():
    """Nine blocks alike and one far worse: a mean loss of 10 %, and draws without that block."""
    loss = loss_of(blocks([2.0] * 9 + [0.0]), {"alone": blocks([2.0] * 10)}, False)
    assert loss.loss == pytest.approx(0.1)
    assert loss.bound == 0
    assert not loss.harmed


def test_the_reference_that_shows_most_harm_is_named_and_the_level_is_shared():
    """Of two references each is tried at half the level, so the bound of one is lower beside it."""
    rng = np.random.default_rng(0)
    mine, other = rng.normal(2, 0.3, 40), rng.normal(2.3, 0.3, 40)
    one = loss_of(blocks(mine), {"FedAvg": blocks(other)}, False)
    two = loss_of(blocks(mine), {"prior": blocks(mine - 1), "FedAvg": blocks(other)}, False)
    assert two.against == "FedAvg"
    assert two.loss == one.loss
    assert two.bound < one.bound


def test_frames_count_alike_whatever_block_they_are_in():
    """10 frames at 1.0 in each of seven blocks, 30 at 3.0 in one: mean 160 / 100, not 10 / 8."""
    mine = blocks([1.0] * 7 + [3.0], [10] * 7 + [30])
    loss = loss_of(mine, {"alone": blocks([2.0] * 8, [10] * 7 + [30])}, False)
    assert loss.loss == pytest.approx((2.0 - 1.6) / 2.0)


def test_too_few_blocks_or_no_reference_say_nothing():
    few, enough = blocks([1.0] * (LEAST - 1)), blocks([1.0] * LEAST)
    assert loss_of(few, {"alone": few * 2}, False) is None
    assert loss_of(enough, {}, False) is None


def test_nothing_to_lose_is_no_loss():
    """A reference that never scores: 0 against 0 is no loss, and better is none either."""
    nothing = blocks([0.0] * 8)
    assert loss_of(nothing, {"alone": nothing}, False).loss == 0
    assert loss_of(blocks([1.0] * 8), {"alone": nothing}, False).loss == -np.inf


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_scores_that_are_no_numbers(lower_is_better):
    """A method that diverged harms; a reference that did is none, whichever comes first."""
    fine, broken = blocks([2.0] * 8), blocks([2.0] * 7 + [np.nan])
    assert loss_of(blocks([np.nan] * 8), {"alone": fine}, lower_is_better).harmed
    assert loss_of(fine, {"FedAvg": broken}, lower_is_better) is None
    found = loss_of(fine, {"FedAvg": broken, "alone": fine}, lower_is_better)
    assert (found.against, found.harmed) == ("alone", False)


def test_draws_are_the_same_each_time_and_of_as_many_blocks():
    first = bootstrap_counts(9)
    bootstrap_counts.cache_clear()
    assert np.array_equal(first, bootstrap_counts(9))
    assert set(first.sum(1)) == {9.0}
