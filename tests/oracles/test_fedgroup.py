"""FedGroup: oracle O17, groups and newcomers by hand, and a round of two groups."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.scripts import PLAIN, Numbers, Product, Two, pairs, params, taught, values
from vergence.core.aggregation import add_up
from vergence.core.conversation import drive
from vergence.core.messages import reply, seal
from vergence.methods.clustered.base import model_of_group
from vergence.methods.clustered.fedgroup import FedGroup, cosines_to_directions, dissimilarity

O17 = [(1, 0, 0.1), (0.9, 0.1, 0), (0, 1, 0.1), (0.1, 0.9, 0)]
UPDATES = {name: params(*update) for name, update in zip("abcd", O17, strict=True)}
TASK = Numbers((1.0, 1.0, 1.0))


def answering(updates, asked=None):
    def answer(ask):
        if asked is not None:
            asked.append((ask.verb, list(ask.to)))
        return {c: seal(reply(model=updates[c]), 0) for c in ask.to if c in updates}

    return answer


def begun(method, names="abcd", updates=UPDATES):
    return drive(method.setup(method.server(TASK), list(names)), answering(updates))


def test_o17_dissimilarities():
    one, two, three = (UPDATES[name] for name in "abc")
    assert dissimilarity(one, two) == pytest.approx(0.005524, abs=1e-6)
    assert dissimilarity(one, three) == pytest.approx(0.495050, abs=1e-6)
    assert dissimilarity(one, one * 3.0) == pytest.approx(0, abs=1e-12)
    assert dissimilarity(one, -one) == pytest.approx(1)


def test_o17_directions():
    """The first is common to all; the sign of the second separates the pairs."""
    found = cosines_to_directions(np.array(O17), 2)
    first = [0.708881, 0.778905, 0.708881, 0.778905]
    second = [0.703598, 0.624695, -0.703598, -0.624695]
    assert abs(found[:, 0]) == pytest.approx(first, abs=1e-6)
    assert found[:, 1] * np.sign(found[0, 1]) == pytest.approx(second, abs=1e-6)
    _, _, directions = np.linalg.svd(np.array(O17))
    rows = np.array(O17) / np.linalg.norm(O17, axis=1, keepdims=True)
    assert abs(found) == pytest.approx(abs(rows @ directions[:2].T))


@pytest.mark.parametrize("names", ["abcd", "dcba", "cadb"])
def test_o17_groups_start_from_the_mean_of_their_people(names):
    """Groups {a, b} and {c, d}; 1 + (1 + 0.9) / 2 = 1.95, 1 + 0.1 / 2 = 1.05."""
    server = begun(FedGroup(clusters=2), names)
    assert server.groups == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert values(model_of_group(server.models, 0)) == [1.95, 1.05, 1.05]
    assert values(model_of_group(server.models, 1)) == [1.05, 1.95, 1.05]
    assert values(model_of_group(server.directions, 1)) == [0.05, 0.95, 0.05]


def test_newcomers_join_who_points_their_way_for_good():
    method, asked = FedGroup(clusters=2), []
    late = {"e": params(0.3, 0.2, 0), "f": params(0, 5, 0), "a": params(0, 9, 0)}
    server = begun(method)
    after = drive(method.assign_groups(server, ["a", "e", "f", "g"]), answering(late, asked))
    assert asked == [("probe", ["e", "f", "g"])]
    assert after.groups == {**server.groups, "e": 0, "f": 1}
    assert after.models.flat.equal(server.models.flat)


def test_twenty_people_a_group_are_probed():
    asked, clients = [], [f"p{i}" for i in range(50)]
    updates = {c: params(*O17[i % 4]) for i, c in enumerate(clients)}
    method = FedGroup(clusters=2)
    server = drive(method.setup(method.server(TASK), clients), answering(updates, asked))
    ((_, first),) = asked
    assert len(server.groups) == len(first) == 40
    assert first == sorted(first, key=clients.index)
    again = replace(method.server(TASK), seed=1)
    drive(method.setup(again, clients), answering(updates, asked))
    assert asked[1] != asked[0]


def test_a_group_of_nobody_keeps_the_common_start_and_gets_no_newcomers():
    method = FedGroup(clusters=3)
    server = begun(method, "a")
    assert server.groups == {"a": 0}
    assert values(model_of_group(server.models, 2)) == [1, 1, 1]
    after = drive(method.assign_groups(server, ["b"]), answering({"b": params(-1, -1, 0)}))
    assert after.groups == {"a": 0, "b": 0}


def test_a_probe_and_a_round_by_hand():
    """Head * body * x at body 2 and head 1; a probe of two steps of 0.1, a turn of one.

    a (1, 3): e = -1: body 2.1, head 1.2; then e = 2.52 - 3 = -0.48: body 2.1 + 0.0576, head
    1.2 + 0.1008. In the round a trains group 0 from (2, 1), and group 1 stays as it is.
    """
    task, data = Product(Two()), pairs((1, 3))
    method = FedGroup(local=PLAIN, clusters=2, probe=2)
    start = method.server(task)
    _, probe = taught(method, task, None, {"model": start.start}, data, verb="probe")
    assert values(probe.trees["model"].total) == [0.1576, 0.3008]
    assert probe.metrics == {}
    server = replace(start, groups={"a": 0}, directions=start.models)

    def answer(ask):
        sealed = [
            taught(method, task, None, m.trees, data, facts=m.facts)[1] for m in ask.to.values()
        ]
        return add_up(sealed, ask.like)

    after = drive(method.round(server, ["a"]), answer)
    assert values(model_of_group(after.models, 0)) == [2.1, 1.2]
    assert values(model_of_group(after.models, 1)) == [2, 1]
    assert torch.equal(after.start.flat, start.start.flat)
