"""FedSelect's rules against hand-worked numbers: growth (oracle O3) and alternation."""

import pytest

from tests.oracles.test_fedcpf import FIRST, SECOND, chosen
from tests.scripts import Numbers, mask, params, site, turn, values
from vergence.core.local_training import LocalTraining, OptimizerState
from vergence.core.masks import Mask
from vergence.core.messages import Message
from vergence.core.requests import FitResult
from vergence.methods.fedselect import FedSelect, Selected


def test_o3_code_rule_overshoots_the_limit():
    """p = 25 %, limit 0.5: quantile positions 8 of 10, 6 of 8, 4 of 6 give 0.50, 0.8, 0.6."""
    method = FedSelect(rule="code", rate=0.25, limit=0.5)
    grown, got = Mask.none(FIRST.layout), []
    for change in (FIRST, SECOND, SECOND):
        grown = grown | method.above(change, grown)
        got.append(chosen(grown))
    assert got == [{1, 6}, {0, 1, 3, 6}, {0, 1, 3, 5, 6, 8}]
    assert grown.fraction == 0.6
    assert not method.above(SECOND, grown).count  # above the limit: this tensor is left alone


@pytest.mark.parametrize("rule", ["published", "restated"])
def test_growth_within_the_limit_is_exact(rule):
    """The same vectors with p = 0.3 and limit 0.5: {1,4,6}, then {0,3}."""
    method = FedSelect(rule=rule, rate=0.3, limit=0.5)
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


def asked_parts(conversation, turns: int) -> list:
    """Return which entries each of a conversation's fits trains; every fit adds 1 to those."""
    asked, answer = [], None
    for _ in range(turns):
        ask = conversation.send(answer)
        asked.append(ask)
        part = ask.trainable or Mask.full(ask.params.layout)
        end = part.merge(ask.params + 1.0, ask.params)
        answer = FitResult(end, 1, 1, OptimizerState({}, 0), {"loss": 0.0})
    with pytest.raises(StopIteration) as end:
        conversation.send(answer)
    return [asked, end.value.value]


@pytest.mark.parametrize("rule", ["published", "code"])
def test_alternating_epochs_train_personal_then_shared_entries(rule):
    """Two alternations: by `local.epochs` as published, by `epochs` in the code."""
    local = LocalTraining(epochs=2 if rule == "published" else 1)
    method = FedSelect(local, rule=rule, epochs=1 if rule == "published" else 2)
    asked, (end, _) = asked_parts(method.alternate(params(0, 0), mask(1, 0), site(0)), 4)
    assert [ask.trainable for ask in asked] == [mask(1, 0), mask(0, 1)] * 2
    assert [ask.local.epochs for ask in asked] == [1] * 4
    assert [values(ask.params) for ask in asked] == [[0, 0], [1, 0], [1, 1], [2, 1]]
    assert values(end) == [2, 2]


def test_steps_are_the_length_of_each_of_two_passes():
    method = FedSelect(LocalTraining(steps=7, epochs=3))
    asked, _ = asked_parts(method.alternate(params(0, 0), mask(1, 0), site(0)), 2)
    assert [ask.local.steps for ask in asked] == [7, 7]


@pytest.mark.parametrize(
    ("rule", "personal", "fits"),
    [
        ("published", (1, 0), 2),
        ("published", (0, 0), 1),
        ("published", (1, 1), 1),
        ("restated", (1, 0), 1),
    ],
)
def test_only_the_published_rule_alternates_and_only_where_both_parts_have_entries(
    rule, personal, fits
):
    """The one fit trains all entries together, with all epochs."""
    method = FedSelect(LocalTraining(epochs=1), rule=rule, rate=0.0)
    start, bits = params(0, 0), mask(*personal)
    state = Selected(start, bits, bits, None)
    message = Message("train", {"model": start}, round=1)
    asked, (state, answer) = asked_parts(method.on_train(state, message, site(1)), fits)
    assert [ask.trainable for ask in asked] == ([bits, ~bits] if fits == 2 else [None])
    assert values(state.params) == [1, 1]
    assert answer.weight == ~bits


def test_the_published_rule_grows_by_the_change_of_the_whole_round():
    """Entry 0, which moves most, is personal; of the shared ones entry 2 moves by 3, 1 by 2."""
    method = FedSelect(rate=0.34, limit=0.7)
    bits = mask(1, 0, 0)
    state = Selected(params(0, 0, 0), bits, bits, None)
    ends = [params(9, 0, 0), params(9, 2, -3)]
    state, _ = turn(method, state, params(0, 0, 0), ends, round=1)
    assert (chosen(state.mask), state.last_mask) == ({0, 2}, bits)
    assert values(state.params) == [9, 2, -3]
