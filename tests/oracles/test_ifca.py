"""IFCA: oracle O16, and a round by hand with models of their own and with a shared body.

The round: two clusters, model = head * body * x, both start at body 2 and heads 1 and -1. One plain
step of 0.1 on one sample, e = head body x - y, gradients e head x (body) and e body x (head):

    a (1, 3): losses 0.5 and 12.5, chooses 0, e = -1: body 2 + 0.1 = 2.1, head 1 + 0.2 = 1.2
    b (1, -3): losses 12.5 and 0.5, chooses 1, e = 1: body 2 + 0.1 = 2.1, head -1 - 0.2 = -1.2
    c (1, 1) twice: losses 0.5 and 4.5, chooses 0, e = 1: body 2 - 0.1 = 1.9, head 1 - 0.2 = 0.8

    own models   0: body 2 + (0.1 - 2 * 0.1) / 3 = 1.966667, head 1 + (0.2 - 2 * 0.2) / 3 = 0.933333
                 1: body 2.1, head -1.2
    shared body  2 + (0.1 + 0.1 - 2 * 0.1) / 4 = 2, heads as before
"""

from dataclasses import replace

import pytest

from tests.scripts import PLAIN, Product, Two, pairs, taught, values
from vergence.core.aggregation import add_up
from vergence.core.client import ClientContext
from vergence.core.conversation import drive
from vergence.core.messages import Message
from vergence.core.randomness import RandomStream
from vergence.methods.clustered.base import model_of_group, tree_of_models
from vergence.methods.clustered.ifca import IFCA, Models, lowest
from vergence.models.small_eye import SmallEye
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.sequential import Solver

TASK = Product(Two())
DATA = {"a": pairs((1, 3)), "b": pairs((1, -3)), "c": pairs((1, 1), (1, 1))}


def test_o16_choices():
    """Design note, O16: clusters 2, 1, 1, counted from 1; of equal losses the lowest number."""
    losses = [[0.3, 0.2], [0.1, 0.4], [0.2, 0.2]]
    assert [1 + lowest(row) for row in losses] == [2, 1, 1]


def begun(method):
    start = TASK.init()
    other = start.put(-start.only(["head.weight"]))
    return Models(tree_of_models([start, other], method.common_layers(TASK)))


@pytest.mark.parametrize(
    ("share_body", "weights", "expected"),
    [
        (False, "samples", [[1.966667, 0.933333], [2.1, -1.2]]),
        (True, "samples", [[2.0, 0.933333], [2.0, -1.2]]),
        (False, "equal", [[2.0, 1.0], [2.1, -1.2]]),
        (True, "equal", [[2.033333, 1.0], [2.033333, -1.2]]),
    ],
)
def test_a_round_by_hand(share_body, weights, expected):
    method = IFCA(local=PLAIN, clusters=2, share_body=share_body, weights=weights)
    server = begun(method)
    offered = method.offer(server, "")
    sealed = [taught(method, TASK, method.client(TASK), offered, data)[1] for data in DATA.values()]
    heard = add_up(sealed, offered)
    after = drive(method.round(server, list(DATA)), lambda _: heard)
    assert [values(model_of_group(after.models, j)) for j in range(2)] == expected


def test_what_was_not_chosen_is_not_sent():
    """Of two models of two numbers, or of a common body and two heads, one's own two."""
    for share_body, places in ((False, [0, 2]), (True, [0, 1])):
        method = IFCA(local=PLAIN, clusters=2, share_body=share_body)
        offered = method.offer(begun(method), "")
        (tree,) = taught(method, TASK, None, offered, DATA["a"])[1].trees.values()
        assert tree.weight.flat.nonzero().flatten().tolist() == places
        assert tree.total.flat.nonzero().flatten().tolist() == places


def test_an_empty_cluster_keeps_its_model():
    method = IFCA(local=PLAIN, clusters=2)
    server = begun(method)
    offered = method.offer(server, "")
    heard = add_up([taught(method, TASK, None, offered, DATA["a"])[1]], offered)
    after = drive(method.round(server, ["a"]), lambda _: heard)
    assert model_of_group(after.models, 1).flat.equal(model_of_group(server.models, 1).flat)


def rounds_of(method, server, count, *clients):
    for _ in range(count):
        offered = method.offer(server, "")
        sealed = [taught(method, TASK, None, offered, DATA[c])[1] for c in clients]
        heard = add_up(sealed, offered)
        server = drive(method.round(server, list(clients)), lambda _, heard=heard: heard)
    return server


def test_a_model_nobody_chose_in_ten_rounds_makes_all_start_anew_once():
    method = IFCA(local=PLAIN, clusters=2)
    spare = tree_of_models([TASK.init(), TASK.init()])
    server = replace(begun(method), spare=(spare,))
    nine = rounds_of(method, server, 9, "a")
    assert (nine.rounds, nine.trained_clusters, len(nine.spare)) == (9, (0,), 1)
    ten = rounds_of(method, nine, 1, "a")
    assert ten.models.flat.equal(spare.flat)
    assert (ten.spare, ten.rounds, ten.trained_clusters) == ((), 0, ())
    assert rounds_of(method, ten, 11, "a").rounds == 11


def test_a_model_chosen_once_is_not_empty_and_silence_is_no_round():
    method = IFCA(local=PLAIN, clusters=2)
    server = replace(begun(method), spare=(begun(method).models,))
    both = rounds_of(method, server, 1, "a", "b")
    assert both.trained_clusters == (0, 1)
    assert len(rounds_of(method, both, 12, "a").spare) == 1
    assert rounds_of(method, server, 12) == server


def test_later_starts_are_other_ones_and_one_model_has_none():
    task = GazeAngle(SmallEye(), seed=3)
    body, _ = task.parts()
    server = IFCA(clusters=2, restarts=2, share_body=True).server(task)
    assert len(server.spare) == 2
    starts = [
        model_of_group(models, j) for models in (server.models, *server.spare) for j in (0, 1)
    ]
    assert len({float(start.only(body).flat.sum()) for start in starts}) == 3
    assert len({float(start.flat.sum()) for start in starts}) == 6
    assert IFCA(clusters=1, restarts=2).server(task).spare == ()


def test_everybody_predicts_with_the_model_of_lowest_training_loss():
    method = IFCA(local=PLAIN, clusters=2)
    server, solver, found = begun(method), Solver(TASK), {}
    for client, data in DATA.items():
        site = ClientContext(client, data, pairs((1, -9)), TASK, 0, RandomStream())
        message = Message("evaluate", method.offer(server, client))
        model = drive(method.model_on(None, message, site), solver.compute)
        found[client] = float(model["head.weight"])
    assert found == {"a": 1, "b": -1, "c": 1}


def test_clusters_start_differently_and_shared_bodies_alike():
    """Where all started alike, ties would send everybody to the first."""
    task = GazeAngle(SmallEye(), seed=3)
    body, _ = task.parts()
    for share_body in (False, True):
        method = IFCA(clusters=3, share_body=share_body)
        models = [model_of_group(method.server(task).models, j) for j in range(3)]
        assert models[0].layout == task.init().layout
        assert models[0].flat.equal(task.init().flat)
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert not models[one].flat.equal(models[other].flat)
            assert models[one].only(body).flat.equal(models[other].only(body).flat) == share_body
    again = replace(task, seed=4)
    assert not method.server(again).models.flat.equal(method.server(task).models.flat)
