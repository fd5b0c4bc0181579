"""FedCPF against hand-worked numbers (methods design note, oracles O1, O2, O3)."""

from dataclasses import replace

import pytest
import torch

from tests.scripts import Numbers, aggregate, mask, params, site, turn, values
from vergence.core.conversation import drive
from vergence.core.local_training import OptimizerState
from vergence.core.masks import Mask
from vergence.core.messages import Message, reply, seal
from vergence.core.method import Global
from vergence.core.requests import Compute, FitResult
from vergence.methods.fedcpf import FedCPF, MaskWindow, Personal

ENDS = [params(1, 2, 3, 4), params(2, 4, 6, 8), params(3, 6, 9, 12)]
MASKS = [mask(0, 1, 0, 1), mask(0, 0, 1, 1), mask(1, 0, 0, 1)]


def states(method):
    """Three clients whose masks are those of O1; what they kept does not matter here."""
    start = method.client(Numbers((0, 0, 0, 0)))
    return [replace(start, mask=m) for m in MASKS]


def test_o1_masked_average_and_next_start():
    """zeta = [2,2,2,0]; theta_g = [(1+2)/2, (4+6)/2, (3+9)/2, previous 9].

    Each client keeps its own entries where its mask is 1 and takes theta_g elsewhere.
    """
    method = FedCPF(rate=0.0)
    server = Global(params(9, 9, 9, 9))
    after = [
        turn(method, s, server.model, end) for s, end in zip(states(method), ENDS, strict=True)
    ]
    new = aggregate(method, server, [sealed for _, sealed in after])
    assert values(new.model) == [1.5, 5, 6, 9]
    sent = {"model": new.model}
    nexts = [values(method.model_on(state, sent, None)) for state, _ in after]
    assert nexts == [[1.5, 2, 6, 4], [1.5, 5, 6, 8], [3, 5, 6, 12]]


def test_o1_weighted_by_samples():
    """10/30/60 samples: (10*1+30*2)/40, (30*4+60*6)/90, (10*3+60*9)/70, previous 9."""
    method = FedCPF(rate=0.0, weights="samples")
    server = Global(params(9, 9, 9, 9))
    counts = [10.0, 30.0, 60.0]
    after = [
        turn(method, s, server.model, end, examples=n)
        for s, end, n in zip(states(method), ENDS, counts, strict=True)
    ]
    new = aggregate(method, server, [sealed for _, sealed in after])
    assert values(new.model) == [1.75, 5.333333, 8.142857, 9]


def test_o1_order_of_clients_does_not_matter():
    """The literal lines 11-12 would give [0,5,9,0] or [1.5,0,3,0] by order; the sum does not."""
    method, server = FedCPF(rate=0.0), Global(params(9, 9, 9, 9))
    sealed = [
        turn(method, s, server.model, e)[1] for s, e in zip(states(method), ENDS, strict=True)
    ]
    forth = aggregate(method, server, sealed)
    back = aggregate(method, server, sealed[::-1])
    assert values(forth.model) == values(back.model) == [1.5, 5, 6, 9]


SCORES = [0.02, 0.06, 0.06, 0.17, 0.17, 0.18, 0.18]
CHANGES = [0.8, 0.4, 0.2, 0.1, 0.3, 0.5, 0.1]


@pytest.mark.parametrize(
    ("restart", "since", "mean"),
    [
        ("while", [0, 1, 1, 3, 3, 3, 3], [0.8, 0.4, 0.3, 0.1, 0.2, 0.3, 0.25]),
        ("if", [0, 1, 1, 3, 4, 4, 4], [0.8, 0.4, 0.3, 0.1, 0.3, 0.4, 0.3]),
        ("always", [0, 1, 2, 3, 4, 5, 6], CHANGES),
    ],
)
def test_o2_window(restart, since, mean):
    """r_th and the mean change of one entry, score step 0.05, one value per round."""
    window = MaskWindow(params(0.0))
    got_since, got_mean = [], []
    for at, (score, change) in enumerate(zip(SCORES, CHANGES, strict=True)):
        window, hit = window.restarts(score, 0.05, restart)
        window, average = window.add(params(change), at, hit, inclusive=True)
        got_since.append(window.since)
        got_mean.append(round(float(average.flat[0]), 9))
    assert got_since == since
    assert got_mean == mean


def test_exclusive_window_drops_the_round_of_the_restart():
    """Restart at rounds 0, 1, 3: means 0.8 (own), 0.4 (own), 0.2, 0.1 (own), 0.3, 0.4, 0.3."""
    window, got = MaskWindow(params(0.0)), []
    for at, (score, change) in enumerate(zip(SCORES, CHANGES, strict=True)):
        window, hit = window.restarts(score, 0.05, "while")
        window, average = window.add(params(change), at, hit, inclusive=False)
        got.append(round(float(average.flat[0]), 9))
    assert got == [0.8, 0.4, 0.2, 0.1, 0.3, 0.4, 0.3]


FIRST = params(0.10, 0.50, 0.30, 0.20, 0.40, 0.05, 0.60, 0.15, 0.25, 0.35)
SECOND = params(0.9, 0.9, 0.1, 0.8, 0.2, 0.7, 0.9, 0.3, 0.6, 0.5)


def chosen(grown: Mask) -> set[int]:
    return set(grown.bits.nonzero().squeeze(1).tolist())


def test_o3_selection_stops_exactly_at_the_limit():
    """n = 10, p = 0.3, rho = 0.5: {1,4,6}, then two more (0 and 3), then none."""
    method = FedCPF(rate=0.3, limit=0.5)
    none = Mask.none(FIRST.layout)
    one = none | method.newly_personal(FIRST, none, site(0))
    two = one | method.newly_personal(SECOND, one, site(1))
    assert chosen(one) == {1, 4, 6}
    assert chosen(two) == {0, 1, 3, 4, 6}
    assert method.room(two) == 0


def test_inverted_control_takes_the_lowest_change():
    """The three smallest of FIRST: 0.05, 0.10, 0.15 at 5, 0, 7."""
    method = FedCPF(rate=0.3, limit=0.5, select="inverted")
    assert chosen(method.newly_personal(FIRST, Mask.none(FIRST.layout), site(0))) == {0, 5, 7}


def test_random_control_has_the_same_size_and_a_fixed_draw():
    method = FedCPF(rate=0.3, limit=0.5, select="random")
    none = Mask.none(FIRST.layout)
    a = chosen(method.newly_personal(FIRST, none, site(0)))
    assert len(a) == 3
    assert a == chosen(method.newly_personal(SECOND, none, site(0)))
    assert a != chosen(method.newly_personal(FIRST, none, site(0, client="another")))


def test_chosen_entries_stay_shared_for_the_round_that_chose_them():
    """Round 0: the old mask is empty, so everything is sent; round 1 withholds entry 1."""
    method = FedCPF(rate=0.25, limit=0.25)
    start = params(0, 0, 0, 0)
    state = method.client(Numbers((0, 0, 0, 0)))
    state, sent = turn(method, state, start, params(1, 5, 2, 3), round=0)
    assert values(sent.trees["model"].total) == [1, 5, 2, 3]
    assert chosen(state.mask) == {1}
    model = params(10, 10, 10, 10)
    assert values(method.model_on(state, {"model": model}, None)) == [10, 10, 10, 10]
    state, sent = turn(method, state, model, params(11, 15, 12, 13), round=1)
    assert values(sent.trees["model"].total) == [1, 0, 2, 3]
    assert values(method.model_on(state, {"model": model}, None)) == [10, 15, 10, 10]


def test_per_tensor_scope_keeps_the_share_of_every_tensor():
    from vergence.core.params import Layout, Params

    two = Layout(("a", "b"), ((4,), (4,)))
    score = Params(torch.tensor([9.0, 8, 7, 6, 4, 3, 2, 1]), two)
    method = FedCPF(rate=0.25, limit=0.5, scope="per_tensor")
    assert chosen(method.newly_personal(score, Mask.none(two), site(0))) == {0, 4}
    whole = replace(method, scope="global")
    assert chosen(whole.newly_personal(score, Mask.none(two), site(0))) == {0, 1}


def test_relative_change_divides_by_the_parameter():
    method = FedCPF(relative=True)
    change = method.change(params(1, 10), params(2, 12), mask(0, 0))
    assert values(change) == [1.0, 0.2]


def test_frozen_untrained_entries_are_not_trainable():
    method = FedCPF(frozen_trainable=False)
    state = Personal(params(1, 2), mask(0, 0), mask(1, 0), MaskWindow(params(0, 0)))
    from vergence.core.messages import Message

    ask = method.on_train(state, Message("train", {"model": params(3, 4)}), site(1)).send(None)
    assert ask.trainable == mask(0, 1)


def test_erased_before_anyone_sees_it():
    """A NaN in a personal entry must not reach the sum: it is erased, not multiplied by 0."""
    sealed = seal(reply(model=params(1, float("nan")), weight=mask(1, 0)), 0)
    assert values(sealed.trees["model"].total) == [1, 0]


def guarded(method, state, received, end, losses, examples=1):
    """One turn in which training ends at `end`; validation losses before and after are given."""
    losses = iter(losses)

    def answer(ask):
        if isinstance(ask, Compute):
            return next(losses)
        return FitResult(end, 1.0, 1, OptimizerState({}, 0), {"loss": 0.0, "score": 0.0})

    message = Message("train", {"model": received}, round=0)
    return drive(method.on_train(state, message, site(0, examples=examples)), answer)


def test_limit_shrinks_with_few_samples():
    """n = 4, rho = 0.5, half of enough samples: a personal share of a quarter, one entry of two."""
    start = params(0, 0, 0, 0)
    for examples, count in ((0, 0), (5, 1), (10, 2), (30, 2)):
        method = FedCPF(rate=1.0, limit=0.5, enough=10)
        state = method.client(Numbers((0, 0, 0, 0)))
        state, _ = guarded(method, state, start, params(1, 4, 3, 2), (), examples)
        assert state.mask.count == count


def test_a_turn_that_raises_validation_loss_leaves_personal_entries_and_mask_alone():
    """Entry 1 is personal, kept at 5: training to 9 is undone there; the rest is sent as ever."""
    method = FedCPF(rate=0.5, limit=1.0, guard=True)
    own = mask(0, 1, 0, 0)
    start = replace(
        method.client(Numbers((0, 0, 0, 0))), params=params(5, 5, 5, 5), last_mask=own, mask=own
    )
    end, received = params(1, 9, 3, 2), params(0, 0, 0, 0)
    worse, sent = guarded(method, start, received, end, (1.0, 1.5))
    assert values(worse.params) == [1, 5, 3, 2]
    assert worse.mask == own
    assert worse.window == start.window
    better, also = guarded(method, start, received, end, (1.0, 1.0))
    assert values(better.params) == [1, 9, 3, 2]
    assert better.mask.count == 3
    assert torch.equal(sent.trees["model"].flat, also.trees["model"].flat)
