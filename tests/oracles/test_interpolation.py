"""Interpolation on one number, plain gradient steps of 0.1, two of them a turn.

The common model is FedAvg's. One's own starts at the candidate of lowest validation loss: with
f2 = (x - 3)^2 as training and validation data, own 2 and model 1, candidates 1, 1.5, 2 have losses
4, 2.25, 1, so it starts at 2 and ends at 2 + 0.2 * 1 = 2.2, + 0.2 * 0.8 = 2.36. The common model
goes 1 -> 1.4 -> 1.72, an update of 0.72.
"""

import pytest
import torch

from tests.oracles.test_fedavg import F1, F2, PLAIN, One, Quadratic
from tests.scripts import params, values
from vergence import methods
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.data import Samples
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError
from vergence.experiment.registry import find
from vergence.methods.interpolation import Interpolation, Mixing
from vergence.metrics.held_out import simplest_near_best
from vergence.training.sequential import Solver

TASK = Quadratic(One())
METHOD = Interpolation(grid=2, local=PLAIN)
MODEL = params(1.0)


def samples(*places):
    """One quadratic (x - place)^2 each."""
    there = torch.tensor(places).double()
    return Samples({"a": torch.ones_like(there), "b": there})


def turn(own, train=F2, val=F2, verb="train", alone=1.0):
    solver, stream = Solver(TASK), RandomStream("t")
    site = ClientContext("a", train, val, TASK, 0, stream)

    def answer(ask):
        return solver.fit(ask, stream) if hasattr(ask, "local") else solver.compute(ask)

    handler = getattr(METHOD, f"on_{verb}")
    return drive(
        handler(Mixing(params(own), params(alone)), Message(verb, {"model": MODEL}), site), answer
    )


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


def chosen(method, own, val):
    """Share of one's own model that is chosen."""
    site = ClientContext("a", F2, val, TASK, 0, RandomStream("t"))
    best = method.best_candidate(method.candidates(params(own), MODEL), site)
    return drive(best, Solver(TASK).compute)[1]


def test_of_equal_losses_the_common_model_wins():
    """Own 5 and model 1 are as far from 3; the mean is better than both, so grid 1 decides."""
    assert chosen(Interpolation(grid=1, local=PLAIN), 5.0, F2) == 0.0


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


def test_one_who_is_best_alone_keeps_the_model_that_never_met_the_common_one():
    """Beside own 2 on f2, a model alone goes on by itself: from 8 to 7, to 6.2, never mixed.

    Validation data (x - 8)^2 choose 8, which training alone reached, and no mix comes near.
    """
    state, _ = turn(2.0, alone=8.0)
    assert values(state.alone) == [pytest.approx(6.2)]
    settled, _ = turn(2.0, val=samples(8.0), verb="settle", alone=8.0)
    assert values(settled.params) == [8.0]
    assert settled.share == 1.0


def test_training_alone_is_the_last_of_the_candidates():
    """Of equal losses a mix wins: own 2 and alone 4 are as far from 3, fine-tuning is nearer."""
    state, _ = turn(2.0, val=samples(3.0), verb="settle", alone=3.512)
    assert values(state.params) == [2.488]


def test_settling_half_way():
    """Own 2.6 on validation data (x - 1.8)^2: the middle, 1.8, is best, before tuning to 2.38."""
    state, _ = turn(2.6, val=samples(1.8), verb="settle")
    assert values(state.params) == [pytest.approx(1.8)]
    assert state.share == 1.0, "what is kept is the mix"


def test_settling_takes_a_mix_of_what_fine_tuning_made():
    """Own 2 goes to 2.488; of all mixes with 1 its middle is nearest to the 1.78 of validation."""
    state, _ = turn(2.0, val=samples(1.78), verb="settle")
    assert values(state.params) == [pytest.approx(1.744)]


def test_settling_undoes_fine_tuning_that_no_mix_mends():
    """Own 2 is right; after fine-tuning candidates are 1.744 and 2.488, both worse."""
    state, _ = turn(2.0, val=samples(2.0), verb="settle")
    assert values(state.params) == [2.0]


def test_prediction_is_the_mix_last_chosen():
    for share, expected in ((0.0, 1.0), (0.5, 1.5), (1.0, 2.0)):
        mix = METHOD.model_on(Mixing(params(2.0), MODEL, share), {"model": MODEL}, None)
        assert values(mix) == [expected]
    fresh = METHOD.client(TASK)
    assert torch.equal(METHOD.model_on(fresh, {"model": MODEL}, None).flat, MODEL.flat)


def test_a_smaller_share_within_one_standard_error_is_taken():
    """Two blocks: candidate 1 is better by 0.5 in one, worse by 0.1 in the other, 0.2 in the mean.

    Weighted deviations 0.5 * 0.3 twice, spread sqrt(2 * 0.15^2 * 2 / 1) = 0.3.
    """
    losses = [[1.0, 0.5], [0.1, 0.2]]
    assert simplest_near_best(losses, [4, 4], 1.0) == 0
    assert simplest_near_best(losses, [4, 4], 0.5) == 1
    assert simplest_near_best(losses, [4, 4], 0.0) == 1
    assert simplest_near_best([[1.0, 0.5], [1.0, 0.5]], [4, 4], 1.0) == 1, "no spread, no doubt"


def test_blocks_count_by_their_samples():
    """Of 1 and 9 samples the second block decides: candidate 0 there is better."""
    assert simplest_near_best([[1.0, 0.0], [0.0, 0.2]], [1, 9], 0.0) == 0
    assert simplest_near_best([[1.0, 0.0], [0.0, 0.2]], [5, 5], 0.0) == 1


def test_validation_data_are_judged_in_blocks_of_neighbours():
    """Candidates 1, 3 for share 0, 1: one of four samples wants 1, three want 3.

    Losses of share 0: 0, 4, 4, 4, of share 1: 4, 0, 0, 0; mean difference 2, deviations 6, 2, 2, 2,
    of the mean sqrt(48 / 16 * 4 / 3) = 2: within one standard error, and not within 0.99.
    """
    val = samples(1.0, 3.0, 3.0, 3.0)
    assert chosen(Interpolation(grid=1, errors=1.0001, local=PLAIN), 3.0, val) == 0.0
    assert chosen(Interpolation(grid=1, errors=0.99, local=PLAIN), 3.0, val) == 1.0
    assert chosen(Interpolation(grid=1, errors=0, local=PLAIN), 3.0, val) == 1.0


def test_no_validation_data_are_an_error_that_says_so():
    with pytest.raises(ConfigError, match="is a validation part empty"):
        chosen(METHOD, 2.0, samples())


def test_an_own_model_that_diverged_is_not_taken():
    """One's own loss is no number, or infinite, in a block: the common model; also if all are."""
    nan, inf = float("nan"), float("inf")
    assert simplest_near_best([[2.0, 1.0, nan], [2.0, 1.0, 0.1]], [4, 4], 0.0) == 1
    assert simplest_near_best([[2.0, inf], [2.0, 0.0]], [4, 4], 1.0) == 0
    assert simplest_near_best([[nan, nan], [nan, inf]], [4, 4], 1.0) == 0


def test_the_former_name_works_with_a_warning():
    with pytest.warns(FutureWarning, match="called 'interpolation' now"):
        assert find("methods", "earned", Method) is Interpolation
    with pytest.warns(FutureWarning, match="called Interpolation now"):
        assert methods.Earned is Interpolation
    assert "Earned" not in dir(methods)
