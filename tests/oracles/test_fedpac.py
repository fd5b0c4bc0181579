"""FedPAC: oracle O7 from raw features, and a client's turn by hand.

O7 (methods design note, section 4): features of one dimension, two classes, 100, 100 and 50 samples
with shares p, means m and mean squares s. Any features with these moments do: a mean m with m +- r
around it has the mean square m^2 + r^2.

The turn: b = 2, h = 1, samples (x, y) = (1, 4), (2, 4), (1, -2), class 1 where y > 0, so that the
features b x are 2, 4 (class 1) and 2 (class 0):

    p = (1/3, 2/3), m = (2, 3), s = (4, 10);  H = (2/3, 2);
    V = (1/3) (4/3 + 20/3 - 4/9 - 4) = 32/27
    head   rate 10 * 0.01: predictions 2, 4, 2, e = -2, 0, 4, gradient (-4 + 0 + 8) / 3 = 4/3:
           h = 1 - 0.4/3 = 13/15
    body   rate 0.01: predictions 2 h, 4 h, 2 h, e = -34/15, -8/15, 56/15,
           gradient h (-34 - 16 + 56) / 45 = 26/225:  b = 2 - 0.26/225 = 1.998844
    body, pulled with lamda = 1 to a class mean 5 of class 1 (class 0 unknown: one's own 2):
           gradient 26/225 + (2/3) ((2 - 5) 1 + (4 - 5) 2 + 0) = 26/225 - 10/3:  b = 2.032178
"""

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import one_hot

from tests.scripts import PLAIN, Product, Two, pairs, params, taught, values
from vergence.core.aggregation import add_up
from vergence.core.conversation import Fit
from vergence.core.messages import reply, seal
from vergence.core.params import Params
from vergence.core.requests import Request
from vergence.errors import ConfigError
from vergence.methods import fedpac
from vergence.methods.fedpac import FedPAC, combine_heads, head_weights, pool_class_means, sketched

TASK = Product(Two())
LOCAL = replace(PLAIN, lr=0.01)
METHOD = FedPAC(local=LOCAL)
DATA = pairs((1, 4), (2, 4), (1, -2))


def around(mean: float, square: float, count: int) -> list[float]:
    """Values of this mean and mean square: pairs m +- r, and m itself where the count is odd."""
    half, odd = divmod(count, 2)
    r = ((square - mean**2) * count / (2 * half)) ** 0.5
    return [mean + r] * half + [mean - r] * half + [mean] * odd


O7 = [((1, 1.5, 50), (-1, 1.5, 50)), ((1.2, 2, 50), (-1, 1.5, 50)), ((0, 1, 45), (2, 5, 5))]
ALPHA = [[0.610333, 0.358357, 0.031310], [0.363057, 0.636943, 0], [0.034997, 0, 0.965003]]


def o7():
    """Return everybody's statistics, from raw features."""
    told = []
    for classes in O7:
        features = torch.tensor([[v] for moments in classes for v in around(*moments)])
        labels = torch.tensor([k for k, (*_, count) in enumerate(classes) for _ in range(count)])
        means, counts, sketch = sketched(features, one_hot(labels, 2).float())
        told.append(Params.named(h=sketch["h"], v=sketch["v"], means=means, counts=counts))
    return told


def test_o7_h_and_v():
    told = o7()
    assert [round(float(t["v"]), 6) for t in told] == [0.01, 0.0114, 0.0272]
    expected = torch.tensor([[0.5, -0.5], [0.6, -0.5], [0.0, 0.2]])
    assert torch.allclose(torch.stack([t["h"].flatten() for t in told]), expected, atol=1e-6)
    assert [t["counts"].tolist() for t in told] == [[50, 50], [50, 50], [45, 5]]


@pytest.mark.parametrize("i", range(3))
def test_o7_alpha(i):
    told = o7()
    h = np.stack([t["h"].numpy().ravel() for t in told]).astype(float)
    v = np.array([float(t["v"]) for t in told])
    assert head_weights(h, v, i) == pytest.approx(ALPHA[i], abs=1e-5)


def test_o7_heads():
    """Heads (1, 0), (0, 1), (0, 0): a combined head shows alpha_1 and alpha_2."""
    heads = {"a": params(1, 0), "b": params(0, 1), "c": params(0, 0)}
    found = combine_heads(heads, o7())
    for client, alpha in zip("abc", ALPHA, strict=True):
        assert found[client].flat.tolist() == pytest.approx(alpha[:2], abs=1e-5)


def test_small_weights_are_dropped_and_the_rest_add_up():
    """P = diag(1, 1999), H alike: alpha = (1999, 1) / 2000, and 0.0005 < 0.001 goes.

    With 499 instead of 1999 it is 0.002 and stays.
    """
    h = np.zeros((2, 1))
    assert head_weights(h, np.array([1.0, 1999.0]), 0) == pytest.approx([1, 0], abs=0)
    assert head_weights(h, np.array([1.0, 499.0]), 0) == pytest.approx([0.998, 0.002], abs=1e-6)


@pytest.mark.parametrize("people", [1, 2, 7])
@pytest.mark.parametrize("v", [0.0, 0.3])
def test_9_equal_statistics_give_equal_weights(people, v):
    """Methods design note, section 7, invariant 9."""
    h = np.tile([0.3, -0.2, 0.7], (people, 1))
    for i in range(people):
        alpha = head_weights(h, np.full(people, v), i)
        assert alpha == pytest.approx(np.full(people, 1 / people))


@given(st.integers(1, 12), st.integers(1, 40), st.floats(-3, 2), st.integers(0, 10**6))
def test_alpha_is_on_the_simplex_and_least(people, width, power, seed):
    """a^T P a is convex: no corner of the simplex may lie downhill, but for what is dropped."""
    rng = np.random.default_rng(seed)
    h, v = 10**power * rng.normal(size=(people, width)), 10 ** rng.uniform(-6, 0, people)
    alpha = head_weights(h, v, 0)
    assert alpha is not None
    assert (alpha >= 0).all()
    assert alpha.sum() == pytest.approx(1)
    assert ((alpha == 0) | (alpha >= 1e-3)).all()
    apart = h[0] - h
    p = np.diag(v) + apart @ apart.T
    slope = p @ alpha / p.max()
    assert alpha @ slope - slope.min() < 2e-3 * people


class Failed:
    success, x = False, np.array([0.5, 0.5])


def test_a_solver_that_fails_leaves_everybody_their_own_head(monkeypatch):
    heads = {"a": params(1, 0), "b": params(0, 1)}
    monkeypatch.setattr(fedpac, "minimize", lambda *_, **__: Failed)
    found = combine_heads(heads, o7()[:2])
    assert {c: values(h) for c, h in found.items()} == {"a": [1, 0], "b": [0, 1]}
    monkeypatch.setattr(Failed, "success", True)
    monkeypatch.setattr(Failed, "x", np.array([np.nan, 1.0]))
    assert values(combine_heads(heads, o7()[:2])["b"]) == [0, 1]


def told(means, counts):
    """Statistics with these class means and counts, d = 1."""
    means = torch.tensor(means).unsqueeze(1)
    return Params.named(h=0 * means, v=torch.ones(1), means=means, counts=torch.tensor(counts))


def test_class_means_are_pooled_by_counts():
    """(1 * 1 + 4 * 3) / 4 = 3.25; class 1 is told by nobody and keeps what was known of it."""
    first = pool_class_means([told([1.0, 0.0], [1.0, 0.0]), told([4.0, 7.0], [3.0, 2.0])], None)
    assert (first["means"].flatten().tolist(), first["counts"].tolist()) == ([3.25, 7], [4, 2])
    second = pool_class_means([told([2.0, 0.0], [5.0, 0.0])], first)
    assert (second["means"].flatten().tolist(), second["counts"].tolist()) == ([2, 7], [5, 2])


def turned(**trees):
    """Take a turn of the first client; return its state, reply and what it asked."""
    offered, asked = METHOD.offer(METHOD.server(TASK), "a"), []
    state, sealed = taught(
        METHOD, TASK, METHOD.client(TASK), {**offered, **trees}, DATA, asked=asked
    )
    return state, sealed, [a for a in asked if isinstance(a, Fit)]


def test_a_first_turn():
    state, sealed, (head, body) = turned()
    assert values(state.params) == [round(2 - 0.26 / 225, 6), round(13 / 15, 6)]
    assert tuple(sealed.trees) == ("body",)
    assert sealed.trees["body"].weight == 3.0
    assert (head.local.lr, head.local.epochs) == (0.1, 1)
    assert head.trainable == ~body.trainable == state.mask
    assert head.objective is None
    assert body.objective is None
    assert state.sketch["h"].flatten().tolist() == pytest.approx([2 / 3, 2])
    assert float(state.sketch["v"]) == pytest.approx(32 / 27)


def test_later_turns_pull_the_body_and_fall_back_to_ones_own_class_means():
    centres = Params.named(means=torch.tensor([[99.0], [5.0]]), counts=torch.tensor([0.0, 8.0]))
    state, _, (head, body) = turned(centres=centres)
    assert head.objective is None
    assert body.objective.centres.flatten().tolist() == [2, 5]
    assert values(state.params) == [round(2 - 0.01 * (26 / 225 - 10 / 3), 6), round(13 / 15, 6)]


def test_what_is_shared_is_the_head_the_new_means_and_the_old_h_and_v():
    state, *_ = turned()
    b, h = values(state.params)
    offered = METHOD.offer(METHOD.server(TASK), "a")
    after, sealed = taught(METHOD, TASK, state, offered, DATA, verb="share")
    assert after is state
    assert values(sealed.trees["head"].total) == [h]
    statistics = sealed.trees["statistics"].total
    assert statistics["means"].flatten().tolist() == pytest.approx([b, 1.5 * b], abs=1e-5)
    assert statistics["counts"].tolist() == [1, 2]
    assert statistics["h"].flatten().tolist() == pytest.approx([2 / 3, 2])
    assert not sealed.metrics


def held(server, bodies, shared):
    """Hold a round: updates of the body with their weights, then heads and statistics."""
    conversation = METHOD.round(server, list(shared))
    first = conversation.send(None)
    assert isinstance(first, Request)
    assert (first.verb, first.reveal) == ("train", "aggregate")
    sealed = [
        seal(reply(body=server.body.like(torch.tensor([by]).double()), weight=n), 0)
        for by, n in bodies
    ]
    second = conversation.send(add_up(sealed, {"body": server.body}))
    assert (second.verb, second.reveal) == ("share", "each")
    each = {
        c: seal(reply(head=server.head.like(torch.tensor([by]).double()), statistics=s), 0)
        for c, (by, s) in shared.items()
    }
    with pytest.raises(StopIteration) as end:
        conversation.send(each)
    return end.value.value


def test_the_servers_round():
    """Updates 0.4 and 0.8 of 3 and 1 samples: b = 2 + 0.5. Equal H, V = 0.1 and 0.3: alpha = (3/4,
    1/4) for both; heads 1 and 3 give 1.5, and 2 for whoever has none."""
    both, ones = torch.ones(2), torch.ones(2, 1)
    one = Params.named(h=ones, v=torch.tensor([0.1]), means=ones, counts=both)
    other = Params.named(h=ones, v=torch.tensor([0.3]), means=2 * ones, counts=both)
    start = METHOD.server(TASK)
    assert set(METHOD.offer(start, "a")) == {"body", "head"}
    server = held(start, [(0.4, 3.0), (0.8, 1.0)], {"a": (1.0, one), "b": (3.0, other)})
    assert values(server.body) == [2.5]
    assert [values(METHOD.offer(server, c)["head"]) for c in "abz"] == [[1.5], [1.5], [2.0]]
    assert METHOD.offer(server, "z")["centres"]["means"].flatten().tolist() == [1.5, 1.5]
    later = held(server, [(0.0, 1.0)], {"b": (5.0, other)})
    assert [values(METHOD.offer(later, c)["head"]) for c in "abz"] == [[1.5], [5.0], [5.0]]


def test_predicts_with_the_body_and_the_combined_head():
    state, *_ = turned()
    trees = {
        "body": TASK.init().only(["body.weight"]) * 3.0,
        "head": TASK.init().only(["head.weight"]) * 7.0,
    }
    assert values(METHOD.model_on(state, trees, None)) == [6.0, 7.0]


def test_the_second_request_sends_nothing_down():
    """Methods design note, 0.4: body, head and class means travel down once a round."""
    conversation = METHOD.round(METHOD.server(TASK), ["a"])
    conversation.send(None)
    request = conversation.send(add_up([], {"body": METHOD.server(TASK).body}))
    assert request.to["a"] is not None
    assert not request.to["a"].trees


def test_head_epochs_multiply_steps():
    asked = []
    method = replace(METHOD, local=replace(LOCAL, steps=3), head_epochs=2)
    offered = method.offer(method.server(TASK), "a")
    taught(method, TASK, method.client(TASK), offered, DATA, asked=asked)
    head, body = (a for a in asked if isinstance(a, Fit))
    assert (head.local.steps, body.local.steps) == (6, 3)


class Three(Two):
    """One more layer of weight 3 between body and head."""

    def build(self):
        net, middle = super().build(), nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(middle.weight, 3.0)
        return nn.Sequential(OrderedDict(body=net.body, middle=middle, head=net.head))


def test_needs_classes():
    class Classless(Product):
        classes = 0

    with pytest.raises(ConfigError, match="tells no classes apart, which fedpac needs"):
        METHOD.check(Classless(Two()))
