"""APFL on one number and FedALA on head * body * x, by hand.

APFL: f1 = x^2 / 2, rate 0.1, received w = 1, own v = 3, alpha = 0.5, two batches of the one sample.

    batch 1   mix = 2, grad 2;  alpha = 0.5 - 0.1 (3 - 1) 2 = 0.1;  mix = 0.3 + 0.9 = 1.2
              w = 0.9;  v = 3 - 0.1 * 0.1 * 1.2 = 2.988
    batch 2   mix = 0.2988 + 0.81 = 1.1088
              w = 0.81;  v = 2.988 - 0.01 * 1.1088 = 2.976912

With alpha fixed at 0.5: mix 2, v = 2.9; mix 1.9, v = 2.805.

FedALA: own b = 2, h = 1; the model has b = 3, h = 3; the head has a mix W = 1; x = 1, y = 4, mix
rate 0.02. d loss / d W = e b (3 - 1) with e = 3 (1 + 2 W) - 4, since the body is the model's:

    pass 1   W = 1:    e = 5,    W = 1 - 0.02 * 30 = 0.4
    pass 2   W = 0.4:  e = 1.4,  W = 0.4 - 0.02 * 8.4 = 0.232
    train    b = 3, h = 1.464: e = 0.392;  b = 3 - 0.0392 * 1.464 = 2.942611,
             h = 1.464 - 0.0392 * 3 = 1.3464
"""

from dataclasses import replace

import pytest

from tests.oracles.test_fedavg import F1, F2, One, Quadratic
from tests.scripts import PLAIN, Product, Two, aggregate, pairs, params, taught, values
from vergence.core.conversation import Fit
from vergence.core.data import Samples
from vergence.core.method import Global
from vergence.core.randomness import RandomStream
from vergence.core.requests import Compute
from vergence.methods.apfl import APFL, Mixed
from vergence.methods.fedala import AdaptiveAggregation, FedALA, mix_models
from vergence.training.batches import batches

TASK = Quadratic(One())
STEPS = replace(PLAIN, epochs=2)
RECEIVED = {"model": params(1.0)}


def test_apfl_two_batches():
    method = APFL(local=STEPS)
    state, sealed = taught(method, TASK, Mixed(params(3.0), 0.5), RECEIVED, F1)
    assert values(state.params) == [2.976912]
    assert state.alpha == pytest.approx(0.1)
    assert values(sealed.trees["model"].total) == [-0.19]
    shown = method.model_on(state, {"model": params(2.0)}, None)
    assert float(shown.flat) == pytest.approx(0.1 * 2.976912 + 0.9 * 2)


def test_apfl_with_alpha_fixed():
    method = APFL(local=STEPS, adaptive=False)
    state, sealed = taught(method, TASK, Mixed(params(3.0), 0.5), RECEIVED, F1)
    assert (values(state.params), state.alpha) == ([2.805], 0.5)
    assert values(sealed.trees["model"].total) == [-0.19]


def test_apfl_alpha_is_learned_once_a_turn():
    asked = []
    taught(APFL(local=STEPS), TASK, Mixed(params(3.0), 0.5), RECEIVED, F1, asked=asked)
    assert [type(a) for a in asked] == [Compute, Fit, Fit, Fit, Fit]
    assert asked[0].want == "gradient"


@pytest.mark.parametrize(
    ("data", "own", "received", "expected"), [(F1, 9.0, 1.0, 0.0), (F2, 3.0, -10.0, 1.0)]
)
def test_apfl_alpha_stays_in_the_unit_interval(data, own, received, expected):
    """f1: (9 - 1) * 5 = 40, so 0.5 - 4; f2: 13 * 2 (-3.5 - 3) = -169, so 0.5 + 16.9."""
    state, _ = taught(
        APFL(local=PLAIN), TASK, Mixed(params(own), 0.5), {"model": params(received)}, data
    )
    assert state.alpha == expected


def test_apfl_ends_of_alpha():
    """1: v trains alone, 3, 2.7, 2.43. 0: v does not move and the mix is the received model."""
    for alpha, end, shown in ((1.0, 2.43, 2.43), (0.0, 3.0, 7.0)):
        method = APFL(local=STEPS, adaptive=False, alpha=alpha)
        assert method.client(TASK).alpha == alpha
        state, _ = taught(method, TASK, Mixed(params(3.0), alpha), RECEIVED, F1)
        assert values(state.params) == [end]
        assert values(method.model_on(state, {"model": params(7.0)}, None)) == [shown]


def test_apfl_two_different_batches_train_both_models_on_the_same_one():
    """One sample of f1 and one of f2, in the order drawn: gradients x and 2 (x - 3)."""
    local, alpha, w, v = replace(PLAIN, batch=1), 0.5, 1.0, 3.0
    both = Samples.concatenate([F1, F2])
    order = [int(b) for b in batches(both, local, RandomStream("test", 0).child("order"), None)]
    slopes = [(lambda x: x), (lambda x: 2 * (x - 3))]
    alpha -= 0.1 * (v - w) * slopes[order[0]](alpha * v + (1 - alpha) * w)
    alpha = min(max(alpha, 0.0), 1.0)
    for number in order:
        mix = alpha * v + (1 - alpha) * w
        w, v = w - 0.1 * slopes[number](w), v - 0.1 * alpha * slopes[number](mix)
    state, sealed = taught(APFL(local=local), TASK, Mixed(params(3.0), 0.5), RECEIVED, both)
    assert float(state.params.flat) == pytest.approx(v)
    assert float(sealed.trees["model"].total.flat) == pytest.approx(2 * (w - 1))  # two samples
    assert state.alpha == pytest.approx(alpha)


@pytest.mark.parametrize(("weights", "expected"), [("samples", 1.4925), ("equal", 1.265)])
def test_apfl_averages_the_common_models(weights, expected):
    """Ends 0.81 and 1.72 as in FedAvg, the second with three samples."""
    three = Samples({n: c.repeat(3) for n, c in F2.columns.items()})
    method = APFL(local=STEPS, weights=weights)
    sealed = [taught(method, TASK, method.client(TASK), RECEIVED, d)[1] for d in (F1, three)]
    assert values(aggregate(method, Global(params(1.0)), sealed).model) == [expected]


PRODUCT = Product(Two())
MODEL = {"model": Product(Two(3.0, 3.0)).init()}
DATA = pairs((1, 4))
ALA = FedALA(local=PLAIN, rate=0.02, share=1.0, first_epochs=2)


def ala(turns, mix=1.0):
    start = ALA.client(PRODUCT)
    return AdaptiveAggregation(start.params, start.mix * mix, turns)


def test_fedala_first_turn_starts_from_the_model_and_learns_no_mix():
    """b = 3, h = 3: e = 5, b = 3 - 0.5 * 3, h = 3 - 0.5 * 3."""
    asked = []
    state, sealed = taught(ALA, PRODUCT, ALA.client(PRODUCT), MODEL, DATA, asked=asked)
    assert [type(a) for a in asked] == [Fit]
    assert values(state.params) == [1.5, 1.5]
    assert values(sealed.trees["model"].total) == [-1.5, -1.5]
    assert (values(state.mix), state.turns) == ([1.0], 1)


def test_fedala_second_turn_learns_the_mix_for_its_first_epochs():
    asked = []
    state, sealed = taught(ALA, PRODUCT, ala(1), MODEL, DATA, asked=asked)
    assert [type(a) for a in asked] == [Compute, Compute, Fit]
    assert (values(state.mix), state.turns) == ([0.232], 2)
    assert values(asked[2].params) == [3.0, 1.464]
    assert values(state.params) == [2.942611, 1.3464]
    assert values(sealed.trees["model"].total) == [-0.057389, -1.6536]


def test_fedala_third_turn_goes_on_for_one_pass():
    """W = 0.232, h = 1.464: e = 0.392, W = 0.232 - 0.02 * 2.352 = 0.18496."""
    asked = []
    state, _ = taught(ALA, PRODUCT, ala(2, 0.232), MODEL, DATA, asked=asked)
    assert [type(a) for a in asked] == [Compute, Fit]
    assert (values(state.mix), state.turns) == ([0.18496], 3)
    assert values(asked[1].params) == [3.0, 1.36992]


def test_fedala_a_pass_is_one_pass_whatever_local_training_takes():
    for local in (replace(PLAIN, epochs=3), replace(PLAIN, steps=5)):
        state, _ = taught(replace(ALA, local=local), PRODUCT, ala(2, 0.232), MODEL, DATA)
        assert values(state.mix) == [0.18496]


@pytest.mark.parametrize(
    ("target", "mix", "expected"), [(4, 1.0, 0.0), (100, 0.5, 1.0), (-100, 0.5, 0.0)]
)
def test_fedala_the_mix_stays_in_the_unit_interval(target, mix, expected):
    """Rate 1: y = 4, 1 - 30 < 0; y = 100, e = 6 - 100 and 0.5 + 564 > 1; y = -100 the other."""
    method = replace(ALA, rate=1.0)
    state, _ = taught(method, PRODUCT, ala(2, mix), MODEL, pairs((1, target)))
    assert values(state.mix) == [expected]


def test_fedala_lower_layers_are_the_models():
    """Own (2, 1), model (3, 3), W = 0.25: body 3, head 1.5; `layers` may name others."""
    own = PRODUCT.init()
    assert values(mix_models(own, MODEL["model"], own.only(["head.weight"]) * 0.25)) == [3.0, 1.5]
    assert values(ALA.model_on(ala(5, 0.25), MODEL, None)) == [3.0, 1.5]
    lower = FedALA(layers=("body.*",)).client(PRODUCT)
    assert lower.mix.layout.names == ("body.weight",)
    assert values(mix_models(own, MODEL["model"], lower.mix * 0.25)) == [2.25, 3.0]


def test_fedala_learns_the_mix_on_a_share_of_the_data():
    """Seven of ten samples, the same ones in both passes, others in another round."""
    data = pairs(*((1.0 + i, 4.0) for i in range(10)))
    seen = []
    for at in (1, 2):
        asked = []
        taught(
            replace(ALA, share=0.7, rate=1e-4), PRODUCT, ala(1), MODEL, data, round=at, asked=asked
        )
        rows = [sorted(a.data.columns["x"].tolist()) for a in asked if isinstance(a, Compute)]
        assert [len(r) for r in rows] == [7, 7]
        assert rows[0] == rows[1]
        assert len(asked[-1].data) == 10
        seen.append(rows[0])
    assert seen[0] != seen[1]


@pytest.mark.parametrize(("weights", "expected"), [("samples", [1.9, 0.8]), ("equal", [2.0, 1.0])])
def test_fedala_averages_as_fedavg(weights, expected):
    """First turns from b = 2, h = 1: y = 4 ends at (2.2, 1.4), y = 0 three times at (1.8, 0.6)."""
    method, start = replace(ALA, weights=weights), PRODUCT.init()
    data = (DATA, pairs((1, 0), (1, 0), (1, 0)))
    state = method.client(PRODUCT)
    sealed = [taught(method, PRODUCT, state, {"model": start}, d)[1] for d in data]
    assert values(aggregate(method, Global(start), sealed).model) == expected
