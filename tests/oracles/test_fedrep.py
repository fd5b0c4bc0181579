"""FedRep and FedBABU, a round by hand on head * body * x (see tests/oracles/test_fedper.py).

b = 2, h = 1, rate 0.1, x = 1; e = h b - y, gradients e h (body) and e b (head). A wants 4, B wants
0 and has three samples, all alike. FedRep with two passes of the head, then one of the body:

    A   head   e = -2:   h = 1 + 0.2 * 2 = 1.4;     e = 2.8 - 4 = -1.2: h = 1.4 + 0.12 * 2 = 1.64
        body   e = 3.28 - 4 = -0.72:   b = 2 + 0.072 * 1.64 = 2.11808
    B   head   e = 2: h = 0.6;  e = 1.2: h = 0.36
        body   e = 0.72:  b = 2 - 0.072 * 0.36 = 1.97408
    b = (2.11808 + 3 * 1.97408) / 4 = 2.01008 by samples

Body first would give A b = 2.2.
"""

from dataclasses import replace

import pytest

from tests.scripts import PLAIN, Product, Two, pairs, summed, taught, values
from vergence.core.requests import Request
from vergence.methods.fedbabu import FedBABU
from vergence.methods.fedrep import FedRep

TASK = Product(Two())
A, B = pairs((1, 4)), pairs((1, 0), (1, 0), (1, 0))
DECAYING = replace(PLAIN, weight_decay=0.5, momentum=0.9)


def one_round(method, *data):
    server, state = method.server(TASK), method.client(TASK)
    offered = method.offer(server, "a")
    turns = [taught(method, TASK, state, offered, samples) for samples in data]
    server = summed(method, server, [sealed for _, sealed in turns], offered)
    return server, [state for state, _ in turns], [sealed for _, sealed in turns]


@pytest.mark.parametrize(("weights", "expected"), [("samples", 2.01008), ("equal", 2.04608)])
def test_fedrep_trains_the_head_first_then_the_body(weights, expected):
    server, (a, b), sealed = one_round(FedRep(local=PLAIN, head_epochs=2, weights=weights), A, B)
    assert values(a.params) == [2.11808, 1.64]
    assert values(b.params) == [1.97408, 0.36]
    assert values(server.model) == [expected]
    assert {tuple(s.trees) for s in sealed} == {("body",)}
    assert [len(s.trees["body"].total) for s in sealed] == [1, 1]


def test_fedrep_goes_on_from_its_own_head():
    """Second turn, received b = 1, own h = 1.64: e = 1.64 - 4 = -2.36, h = 1.64 + 0.236 = 1.876;
    e = 1.876 - 4 = -2.124, b = 1 + 0.2124 * 1.876 = 1.398462."""
    method = FedRep(local=PLAIN, head_epochs=1)
    start = method.client(TASK)
    state = replace(start, params=start.params.like(start.params.flat.new_tensor([2.1, 1.64])))
    received = {"body": start.params.only(["body.weight"]) * 0.5}
    state, sealed = taught(method, TASK, state, received, A, round=1)
    assert values(state.params) == [1.398462, 1.876]
    assert values(sealed.trees["body"].total) == [0.398462]


def test_fedrep_freezes_the_other_part_even_from_decay_and_momentum():
    asked = []
    method = FedRep(local=DECAYING)
    taught(
        method, TASK, method.client(TASK), method.offer(method.server(TASK), "a"), A, asked=asked
    )
    head, body = asked
    assert (head.local.epochs, body.local.epochs) == (4, 1)
    assert head.trainable == ~body.trainable
    assert head.trainable.bits.tolist() == [False, True]
    assert float(body.params["body.weight"]) == 2.0


def test_fedrep_ends_with_the_head_alone():
    """From b = 2.01008 and h = 1.64, one pass: e = 3.296531 - 4, h = 1.64 + 0.0703469 * 2.01008."""
    method = FedRep(local=PLAIN, head_epochs=2, final_epochs=1)
    server, (a, _), _ = one_round(method, A, B)
    request = method.finish(server, ["a"]).send(None)
    assert isinstance(request, Request)
    assert request.verb == "tune"
    state, sealed = taught(method, TASK, a, method.offer(server, "a"), A, verb="tune")
    assert values(state.params) == [2.01008, 1.781403]
    assert not sealed.trees
    assert values(method.model_on(state, {"body": server.model}, None)) == [2.01008, 1.781403]


def test_fedrep_with_steps_instead_of_epochs():
    method = FedRep(local=replace(PLAIN, steps=3), head_epochs=2)
    assert method.passes(2).steps == 6
    assert FedRep(local=PLAIN).passes(2).epochs == 2


def test_fedrep_may_leave_the_end_out():
    method = FedRep(final_epochs=0)
    with pytest.raises(StopIteration):
        method.finish(method.server(TASK), ["a"]).send(None)


@pytest.mark.parametrize(("weights", "expected"), [("equal", 2.095), ("samples", 1.9525)])
def test_fedbabu_leaves_the_head_alone(weights, expected):
    """h = 1 in both steps. A, y = 4: b = 2.2, 2.38. B, y = 1 three times: b = 1.9, 1.81.

    (2.38 + 1.81) / 2 = 2.095;  (2.38 + 3 * 1.81) / 4 = 1.9525.
    """
    method = FedBABU(local=replace(PLAIN, epochs=2), weights=weights)
    server, states, sealed = one_round(method, A, pairs((1, 1), (1, 1), (1, 1)))
    assert values(server.model) == [expected]
    ends = [values(s.trees["body"].total / s.trees["body"].weight) for s in sealed]
    assert ends == [[0.38], [-0.19]]
    for state in states:
        assert values(state.params) == [2.0, 1.0]
        shown = method.model_on(state, {"body": server.model}, None)
        assert values(shown) == [expected, 1.0]


def test_fedbabu_decay_does_not_reach_the_head():
    asked = []
    method = FedBABU(local=DECAYING)
    _, sealed = taught(
        method, TASK, method.client(TASK), method.offer(method.server(TASK), "a"), A, asked=asked
    )
    assert asked[0].trainable.bits.tolist() == [True, False]
    assert values(sealed.trees["body"].total) == [0.1]  # 0.1 * (2 - 0.5 * 2): decay of the body


def test_fedbabu_fine_tunes_the_whole_network_at_the_end():
    """From b = 1.5 and h = 1: e = -2.5, b = 1.5 + 0.25 * 1, h = 1 + 0.25 * 1.5; what is received
    later no longer counts."""
    asked = []
    method = FedBABU(local=PLAIN, tune_epochs=1)
    received = {"body": TASK.init().only(["body.weight"]) * 0.75}
    start = method.client(TASK)
    state, sealed = taught(method, TASK, start, received, A, verb="tune", asked=asked)
    assert values(state.params) == [1.75, 1.375]
    assert not sealed.trees
    assert asked[0].trainable is None
    assert values(method.model_on(state, {"body": received["body"] * 9.0}, None)) == [1.75, 1.375]
    assert values(method.model_on(start, received, None)) == [1.5, 1.0]
    request = method.finish(method.server(TASK), ["a", "b"]).send(None)
    assert (request.verb, list(request.to)) == ("tune", ["a", "b"])
