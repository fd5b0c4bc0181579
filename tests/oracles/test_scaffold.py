"""SCAFFOLD on one number, trained by the real solver.

f1 = x^2 / 2 and f2 = (x - 3)^2, eta 0.1, two steps, from x = 1 (methods design note, O5). Round 0
has no correction: y = 0.81 and 1.72, c_i = (x - y) / 0.2 = 0.95 and -3.6, c = -1.325, x = 1.265.
Round 1 adds c - c_i = -2.275 and 2.275 to every gradient: y1 = 1.265 -> 1.366 -> 1.4569,
y2 = 1.265 -> 1.3845 -> 1.4801; c_i = 0.95 + 1.325 - 0.9595 = 1.3155 and -3.3505.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.quadratics import F1, F2, PLAIN, begin, play
from tests.scripts import values
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.serialization import equal_states
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.participation import Participation
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.methods.scaffold import Scaffold, sgd_distance
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

LINE = ToyTask(Linear())


def number(value, expected):
    assert value == pytest.approx(expected, abs=1e-6)


def ends(before, after):
    x = values(before.server.model)[0]
    return [round(x + values(trees["model"])[0], 6) for trees in after.sent.values()]


def controls(at):
    return [values(c.control)[0] for c in at.clients.values()]


def test_o5_both_rounds():
    method = Scaffold(local=PLAIN)
    start = begin(method)
    first = play(method, start)
    assert ends(start, first) == [0.81, 1.72]
    assert controls(first) == [0.95, -3.6]
    assert values(first.server.control) == [-1.325]
    assert values(first.server.model) == [1.265]
    second = play(method, first)
    assert ends(first, second) == [1.4569, 1.4801]
    assert controls(second) == [1.3155, -3.3505]
    assert values(second.server.control) == [-1.0175]
    assert values(second.server.model) == [1.4685]


def test_option_i_by_hand():
    """c_i is the gradient at the received x: 1 and -4 at x = 1, so c = -1.5.

    Round 1, x = 1.265: corrections -2.5 and 2.5; y1 = 1.3885 -> 1.49965, y2 = 1.362 -> 1.4396;
    c_i = 1.265 and -3.47.
    """
    method = Scaffold(local=PLAIN, option="I")
    start = begin(method)
    first = play(method, start)
    assert ends(start, first) == [0.81, 1.72]
    assert controls(first) == [1.0, -4.0]
    assert values(first.server.control) == [-1.5]
    second = play(method, first)
    assert ends(first, second) == [1.49965, 1.4396]
    assert controls(second) == [1.265, -3.47]
    assert values(second.server.control) == [-1.1025]
    assert values(second.server.model) == [1.469625]


def test_it_gets_where_fedavg_does_not():
    """The optimum of f1 + f2 is 2, with gradients 2 and -2 there.

    FedAvg maps x to (0.9^2 x + 3 + 0.8^2 (x - 3)) / 2, which rests at 1.08 / 0.55 = 1.963636.
    """
    method = Scaffold(local=PLAIN)
    at = begin(method)
    for _ in range(60):
        at = play(method, at)
    assert values(at.server.model) == [2.0]
    assert controls(at) == [2.0, -2.0]


def test_where_the_clip_binds_controls_grow_until_it_does_not():
    """Steps of at most 0.5: after one round c_i = 0.5 and -0.5, in the end 2 and -2."""
    method = Scaffold(local=replace(PLAIN, clip=0.5))
    at = play(method, begin(method))
    assert controls(at) == pytest.approx([0.5, -0.5], abs=1e-5)
    for _ in range(80):
        at = play(method, at)
    assert values(at.server.model) == [2.0]
    assert controls(at) == [2.0, -2.0]


@pytest.mark.parametrize(
    ("nesterov", "end", "control"), [(False, 0.76, 0.96), (True, 0.6975, 3.025 / 3.25)]
)
def test_with_momentum_the_control_is_a_weighted_mean_of_gradients(nesterov, end, control):
    """Momentum 0.5 on f1 from 1. Plain: 1 -> 0.9 -> 0.9 - 0.1 (0.9 + 0.5) = 0.76.

    A constant gradient of 1 goes 1 + 1.5 = 2.5: c = 0.24 / 0.25, which is
    (1.5 * 1 + 1 * 0.9) / 2.5. Nesterov: 1 -> 0.85 -> 0.85 - 0.1 (0.85 + 0.5 * 1.35) = 0.6975;
    1.5 + 1.75 = 3.25: c = 0.3025 / 0.325, which is (1.75 * 1 + 1.5 * 0.85) / 3.25.
    """
    method = Scaffold(local=replace(PLAIN, momentum=0.5, nesterov=nesterov))
    start = begin(method, "1")
    at = play(method, start, {"1": F1})
    assert ends(start, at) == [end]
    number(controls(at)[0], control)


def test_travelled():
    assert sgd_distance(LocalTraining(optimizer="sgd", momentum=0.0), 7) == 7
    number(sgd_distance(LocalTraining(optimizer="sgd", momentum=0.9), 3), 1 + 1.9 + 2.71)
    number(
        sgd_distance(LocalTraining(optimizer="sgd", momentum=0.9, nesterov=True), 3),
        1.9 + 2.71 + 3.439,
    )


def test_steps_are_those_taken():
    """One epoch of two samples is K = 2, of one sample K = 1: c_2 = -0.4 / 0.1."""
    method = Scaffold(local=replace(PLAIN, steps=None, epochs=1))
    twice = Samples.concatenate([F1, F1])
    at = play(method, begin(method), {"1": twice, "2": F2})
    assert controls(at) == [0.95, -4.0]


def test_the_rate_is_the_scheduled_one():
    """From half of the rounds on a tenth: 1 -> 0.99 -> 0.9801, c = 0.0199 / 0.02."""
    method = Scaffold(local=replace(PLAIN, schedule="step"))
    at = play(method, begin(method, "1"), {"1": F1}, progress=0.5)
    assert controls(at) == [0.995]


def test_server_lr_moves_the_model_alone():
    method = Scaffold(local=PLAIN, server_lr=0.5)
    at = play(method, begin(method))
    assert values(at.server.model) == [1.1325]
    assert values(at.server.control) == [-1.325]


def test_part_of_the_people_moves_the_control_by_its_share():
    """One of four: c = 1/4 of 0.95, while the model moves by that client's whole update."""
    method = Scaffold(local=PLAIN)
    at = play(method, begin(method, "1234"), {"1": F1})
    assert values(at.server.control) == [0.2375]
    assert values(at.server.model) == [0.81]


THREE = {"1": F1, "2": F2, "3": Samples.concatenate([F1, F2])}


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("123"), min_size=1), st.sets(st.sampled_from("123"))),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["I", "II"]),
    st.sampled_from([0.0, 0.5]),
)
def test_the_mean_control_is_the_servers(rounds, option, momentum):
    """sum_i c_i / N = c after any rounds, with parts of the people and lost replies."""
    method = Scaffold(local=replace(PLAIN, momentum=momentum), option=option)
    at = begin(method, "123")
    for cohort, lost in rounds:
        at = play(method, at, {c: THREE[c] for c in sorted(cohort)}, lost=sorted(lost))
        mean = sum(float(c.control.flat) for c in at.clients.values()) / 3
        assert mean == pytest.approx(float(at.server.control.flat), abs=1e-9)


def run_toy(folder, presence, rounds, local=None):
    store = RunDirectory(folder, {"config": "a"})
    store.open()
    plan = Plan(rounds=rounds, evaluate_every=0, workers=1, presence=presence)
    method = Scaffold(local=local or LocalTraining(optimizer="sgd", epochs=2, batch=8))
    return run_rounds(method, LINE, federation=People(people=5).load(), plan=plan, folder=store)


@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(optimizer="sgd", batch=8),
        LocalTraining(optimizer="sgd", batch=8, nesterov=True, clip=0.1),
    ],
)
def test_the_mean_control_is_the_servers_in_a_run(tmp_path, local):
    """Two or three of five people a round, a third of the replies lost; some never take part."""
    outcome = run_toy(tmp_path, Participation(cohort=0.5, lost=0.3), 6, local)
    absent = LINE.init() * 0.0
    held = [
        outcome.clients[c].control if c in outcome.clients else absent
        for c in People(people=5).load().clients
    ]
    mean = torch.stack([control.flat for control in held]).mean(0)
    assert torch.allclose(mean, outcome.server.control.flat, atol=1e-6)
    assert outcome.server.control.norm() > 1e-3


def test_a_lost_reply_leaves_the_control_as_it_was(tmp_path, monkeypatch):
    before = run_toy(tmp_path / "one", Participation(), 1)
    monkeypatch.setattr(
        Participation, "loses", lambda _, client, at, *__: client == "p01" and at == 1
    )
    after = run_toy(tmp_path / "two", Participation(), 2)
    assert equal_states(after.clients["p01"], before.clients["p01"])
    for other in ("p00", "p02", "p03", "p04"):
        assert not equal_states(after.clients[other], before.clients[other])


def test_nobody_replied():
    method = Scaffold(local=PLAIN)
    at = play(method, begin(method))
    after = play(method, at, lost=("1", "2"))
    assert equal_states(after.server, at.server)
    assert controls(after) == controls(at)


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_option_ii_is_refused_without_sgd(optimiser):
    with pytest.raises(ConfigError, match=rf"option II .* got '{optimiser}'; use sgd, or option"):
        Scaffold(local=LocalTraining(optimizer=optimiser))
    assert Scaffold(local=LocalTraining(optimizer=optimiser), option="I").option == "I"


def test_option_i_asks_nothing_of_the_optimiser():
    method = Scaffold(local=replace(PLAIN, optimizer="adam"), option="I")
    assert controls(play(method, begin(method))) == [1.0, -4.0]
