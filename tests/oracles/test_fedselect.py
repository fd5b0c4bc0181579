"""FedSelect's two growth rules against hand-worked numbers (oracle O3)."""

from dataclasses import replace

from tests.oracles.test_fedcpf import FIRST, SECOND, chosen
from tests.scripts import Numbers, params, site, turn, values
from vergence.core.masks import Mask
from vergence.methods.fedselect import FedSelect


def test_o3_code_rule_overshoots_the_limit():
    """p = 25 %, limit 0.5: quantile positions 8 of 10, 6 of 8, 4 of 6 give 0.50, 0.8, 0.6."""
    method = FedSelect(rule="code", rate=0.25, limit=0.5)
    mask, got = Mask.none(FIRST.layout), []
    for change in (FIRST, SECOND, SECOND):
        mask = mask | method.above(change, mask)
        got.append(chosen(mask))
    assert got == [{1, 6}, {0, 1, 3, 6}, {0, 1, 3, 5, 6, 8}]
    assert mask.fraction == 0.6
    assert not method.above(SECOND, mask).count  # above the limit: this tensor is left alone


def test_paper_rule_is_exact():
    """The same vectors with p = 0.3 and limit 0.5 under the paper rule: {1,4,6}, then {0,3}."""
    method = FedSelect(rule="paper", rate=0.3, limit=0.5)
    one = method.largest(FIRST, Mask.none(FIRST.layout), site(0))
    two = one | method.largest(SECOND, one, site(0))
    assert (chosen(one), chosen(two)) == ({1, 4, 6}, {0, 1, 3, 4, 6})
    assert not method.largest(SECOND, two, site(0)).count


def test_code_rule_steps_every_third_round_from_the_last_step():
    """Mask grows in round 3 on |end - initial|, although round 3 itself moved another entry."""
    method = FedSelect(rule="code", rate=0.25, limit=0.8)
    state = method.client(Numbers((0, 0, 0, 0)))
    model = params(0, 0, 0, 0)
    ends = [params(5, 0, 0, 0), params(5, 0, 0, 0), params(5, 0, 0, 0), params(5, 0, 0, 1)]
    for at, end in enumerate(ends):
        state, _ = turn(method, state, model, [end], round=at)
        assert bool(state.mask.count) == (at == 3)
    assert chosen(state.mask) == {0}
    assert values(state.reference) == [5, 0, 0, 1]


def test_biases_stay_shared_under_the_code_rule():
    from vergence.core.params import Layout, Params

    layout = Layout(("layer.weight", "layer.bias"), ((2,), (2,)))
    change = Params(FIRST.flat[:4], layout)
    method = FedSelect(rule="code", rate=1.0, limit=0.9)
    assert chosen(method.above(change, Mask.none(layout))) == {0, 1}


def test_alternating_epochs_train_personal_then_shared_entries():
    from tests.scripts import mask, site
    from vergence.core.local_training import OptimizerState
    from vergence.core.requests import FitResult

    method = replace(FedSelect(rule="code"), epochs=2)
    conversation = method.alternate(params(0, 0), mask(1, 0), site(0))
    asked, answer = [], None
    for _ in range(4):
        ask = conversation.send(answer)
        asked.append(ask.trainable)
        answer = FitResult(ask.params + 1.0, 1, 1, OptimizerState({}, 0), {"loss": 0.0})
    assert asked == [mask(1, 0), mask(0, 1), mask(1, 0), mask(0, 1)]
