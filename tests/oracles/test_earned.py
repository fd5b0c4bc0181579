"""Earned personalisation on one number, plain gradient steps of 0.1, two of them a turn.

The common model is FedAvg's. One's own starts at the candidate of lowest validation loss: with
f2 = (x - 3)^2 as training and validation data, own 2 and model 1, candidates 1, 1.5, 2 have losses
4, 2.25, 1, so it starts at 2 and ends at 2 + 0.2 * 1 = 2.2, + 0.2 * 0.8 = 2.36. The common model
goes 1 -> 1.4 -> 1.72, an update of 0.72. One training sample is fewer than two folds: nothing is
held out of it, and validation data decide.
"""

import pytest
import torch

from tests.oracles.test_fedavg import F1, F2, PLAIN, One, Quadratic
from tests.scripts import params, values
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.data import Samples
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError
from vergence.methods.earned import Earned, Mixing
from vergence.metrics.held_out import smallest
from vergence.training.sequential import Solver

TASK = Quadratic(One())
METHOD = Earned(grid=2, local=PLAIN)
MODEL = params(1.0)


def samples(*places):
    """One quadratic (x - place)^2 each."""
    there = torch.tensor(places).double()
    return Samples({"a": torch.ones_like(there), "b": there})


def turn(own, train=F2, val=F2, verb="train"):
    solver, stream = Solver(TASK), RandomStream("t")
    site = ClientContext("a", train, val, TASK, 0, stream)

    def answer(ask):
        return solver.fit(ask, stream) if hasattr(ask, "local") else solver.compute(ask)

    handler = getattr(METHOD, f"on_{verb}")
    mine = Mixing(params(own), (params(own),) * 2)
    return drive(handler(mine, Message(verb, {"model": MODEL}), site), answer)


def test_own_goes_on_from_where_validation_data_says():
    state, sent = turn(2.0)
    assert values(state.params) == [2.36]
    assert state.share == 1.0
    assert values(sent.trees["model"]) == [0.72]  # FedAvg's, whatever one's own model does
    assert sent.weight == 1.0


def test_a_worse_own_model_starts_again_from_the_common_one():
    """Own -5: candidates 1, -2, -5 have losses 4, 25, 64."""
    state, _ = turn(-5.0)
    assert values(state.params) == [1.72]
    assert state.share == 0.0


def test_half_way():
    """Validation data f1 = x^2 / 2 with own -1: candidates 1, 0, -1; the mean is at the minimum."""
    state, _ = turn(-1.0, val=F1)
    assert state.share == 0.5
    assert values(state.params) == [pytest.approx(0 + 0.2 * 3 + 0.2 * 2.4)]


def test_of_equal_losses_the_common_model_wins():
    """Own 5 and model 1 are as far from 3; the mean is better than both, so grid 1 decides."""
    coarse = Earned(grid=1, local=PLAIN)
    solver = Solver(TASK)
    site = ClientContext("a", F2, F2, TASK, 0, RandomStream("t"))
    mine = Mixing(params(5.0), (params(5.0),) * 2)
    assert drive(coarse.best(mine, MODEL, site), solver.compute) == 0.0


def test_settling_fine_tunes_as_far_as_it_pays():
    """The best candidate is own, 2; three more steps: 2.2, 2.36, 2.488, better still."""
    state, sent = turn(2.0, verb="settle")
    assert values(state.params) == [2.488]
    assert values(METHOD.model_on(state, {"model": MODEL}, None)) == [2.488]
    assert not sent.trees
    assert not sent.metrics


def test_settling_leaves_a_model_alone_that_fine_tuning_harms():
    """Validation data f1: the common model 1 is best, and f2's steps lead away from its minimum."""
    state, _ = turn(2.0, val=F1, verb="settle")
    assert values(state.params) == [1.0]


def test_settling_half_way():
    """Validation data (x - 1.8)^2: own 2 is best, goes to 2.488; then the middle, 1.744, is."""
    state, _ = turn(2.0, val=samples(1.8), verb="settle")
    assert values(state.params) == [1.744]
    assert state.share == 1.0, "what is kept is the mix"


def test_prediction_is_the_mix_last_chosen():
    for share, expected in ((0.0, 1.0), (0.5, 1.5), (1.0, 2.0)):
        mix = METHOD.model_on(Mixing(params(2.0), (), share), {"model": MODEL}, None)
        assert values(mix) == [expected]
    fresh = METHOD.client(TASK)
    assert torch.equal(METHOD.model_on(fresh, {"model": MODEL}, None).flat, MODEL.flat)


def chosen(own, folds, train, val):
    site = ClientContext("a", train, val, TASK, 0, RandomStream("t"))
    mine = Mixing(params(own), tuple(params(x) for x in folds))
    return drive(METHOD.best(mine, MODEL, site), Solver(TASK).compute)


def test_what_one_has_learned_by_heart_does_not_count():
    """Own 3 is right on both training samples, but models that have not seen them are at -5.

    By training data the candidates of shares 0, 1/2, 1 are 1, -2, -5, with losses 4, 25, 64; the
    one validation sample says 4, 1, 0: means 4, 17, 42.7.
    """
    assert chosen(3.0, (3.0, 3.0), samples(3.0, 3.0), samples(3.0)) == 1.0
    assert chosen(3.0, (-5.0, -5.0), samples(3.0, 3.0), samples(3.0)) == 0.0


def test_each_fold_is_judged_by_the_model_that_has_not_seen_it():
    """Fold 0 wants 3, fold 1 wants 1: with 3 and 1 share 1 is right on both; the other way on none.

    Losses of shares 0, 1/2, 1 in the second case: 4 each on fold 0, and 0, 1, 4 on fold 1.
    """
    train, val = samples(3.0, 1.0), samples(3.0)
    assert chosen(3.0, (3.0, 1.0), train, val) == 1.0
    assert chosen(1.0, (1.0, 3.0), train, val) == 0.0


def test_a_model_is_trained_without_each_fold():
    """Fold 0 is (x - 3)^2, fold 1 is x^2 / 2, all start at 1: without 0 0.81, without 1 1.72."""
    train = Samples(
        {"a": torch.tensor([1.0, 0.5]).double(), "b": torch.tensor([3.0, 0.0]).double()}
    )
    state, _ = turn(1.0, train=train)
    assert [values(each) for each in state.folds] == [[pytest.approx(0.81)], [1.72]]


def test_a_smaller_share_within_one_standard_error_is_taken():
    """Two blocks: candidate 1 is better by 0.5 in one, worse by 0.1 in the other, 0.2 in the mean.

    Weighted deviations 0.5 * 0.3 twice, spread sqrt(2 * 0.15^2 * 2 / 1) = 0.3.
    """
    losses = [[1.0, 0.5], [0.1, 0.2]]
    assert smallest(losses, [4, 4], 1.0) == 0
    assert smallest(losses, [4, 4], 0.5) == 1
    assert smallest(losses, [4, 4], 0.0) == 1
    assert smallest([[1.0, 0.5], [1.0, 0.5]], [4, 4], 1.0) == 1, "no spread, no doubt"


def test_blocks_count_by_their_samples():
    """Of 1 and 9 samples the second block decides: candidate 0 there is better."""
    assert smallest([[1.0, 0.0], [0.0, 0.2]], [1, 9], 0.0) == 0
    assert smallest([[1.0, 0.0], [0.0, 0.2]], [5, 5], 0.0) == 1


def test_without_folds_validation_data_decide_alone():
    """Own 3 was never right on the training samples (1), but is on the validation sample."""
    site = ClientContext("a", samples(1.0, 1.0), samples(3.0), TASK, 0, RandomStream("t"))
    alone = Earned(grid=2, folds=0, local=PLAIN)
    assert alone.client(TASK).folds == ()
    assert drive(alone.best(Mixing(params(3.0), ()), MODEL, site), Solver(TASK).compute) == 1.0


def test_one_fold_is_refused():
    with pytest.raises(ConfigError, match="2 and more, got 1"):
        Earned(folds=1)


def test_an_own_model_that_diverged_is_not_taken():
    """One's own loss is no number, or infinite, in a block: the common model; also if all are."""
    nan, inf = float("nan"), float("inf")
    assert smallest([[2.0, 1.0, nan], [2.0, 1.0, 0.1]], [4, 4], 0.0) == 1
    assert smallest([[2.0, inf], [2.0, 0.0]], [4, 4], 1.0) == 0
    assert smallest([[nan, nan], [nan, inf]], [4, 4], 1.0) == 0


@pytest.mark.parametrize(
    ("count", "first"), [(2, [0]), (5, [0, 1, 3]), (16, [0, 1, 4, 5, 8, 9, 12, 13])]
)
def test_every_fold_has_runs_from_all_over_the_samples(count, first):
    """Two folds of up to four runs each: data of two halves (left eyes, right eyes) are in both."""
    train = samples(*map(float, range(count)))
    (held, rest), (other, others) = METHOD.parts(train)
    assert held.columns["b"].flatten().tolist() == first
    assert sorted(held.columns["b"].tolist() + other.columns["b"].tolist()) == [*range(count)]
    assert torch.equal(rest.columns["b"], other.columns["b"])
    assert torch.equal(others.columns["b"], held.columns["b"])
