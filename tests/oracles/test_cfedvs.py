"""CFed-VS: groups of oracle O9, a newcomer, what leaves before training, a round by hand.

The round: model = head * body * x, all groups start at body 2 and head 1. One plain step of 0.1 on
one sample (or several alike), e = head body x - y, gradients e head x (body) and e body x (head):

    a (1, 3): e = -1: body 2.1, head 1.2;   b (1, 1) three times: e = 1: body 1.9, head 0.8;
    c (1, 5): e = -3: body 2.3, head 1.6.   a and b are in group 0, c in group 1.

    own models   0: body 2 + (0.1 - 3 * 0.1) / 4 = 1.95, head 1 + (0.2 - 3 * 0.2) / 4 = 0.9;
                 1: body 2.3, head 1.6
    shared body  2 + (0.1 - 3 * 0.1 + 0.3) / 5 = 2.02, heads as before
"""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.scripts import PLAIN, Product, Two, pairs, taught, values
from vergence.core.aggregation import add_up
from vergence.core.conversation import drive
from vergence.core.messages import reply, seal
from vergence.core.params import Params
from vergence.core.requests import FitResult
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.methods.clustered.base import model_of_group, tree_of_models, update_of
from vergence.methods.clustered.cfedvs import CFedVS, Communities
from vergence.metrics.dtw import dtw
from vergence.models.linear import Linear
from vergence.tasks.toy import ToyTask

TASK = Product(Two())
DATA = {"a": pairs((1, 3)), "b": pairs((1, 1), (1, 1), (1, 1)), "c": pairs((1, 5))}
O9 = [1, 1.2, 5, 5.3, 9]
DIFFERENCE = [0, 8, 11, 15, 16, 18]


class Told:
    """Answers for clients whose d are known, and remembers who was asked."""

    def __init__(self, *d):
        self.d, self.asked = d, []

    def __call__(self, ask):
        self.asked += ask.to
        rows = {c: torch.tensor(np.atleast_1d(self.d[int(c)])) for c in ask.to}
        return {c: seal(reply(distances=Params.named(d=row)), 0) for c, row in rows.items()}


def seated(method, *d):
    told = Told(*d)
    clients = [str(i) for i in range(len(d))]
    server = drive(method.setup(method.server(ToyTask(Linear())), clients), told)
    assert told.asked == clients
    return server


@pytest.mark.parametrize(
    ("d", "clusters", "space", "groups"),
    [
        (O9, 3, "rows", [0, 0, 1, 1, 2]),
        (O9, 3, "scalars", [0, 0, 1, 1, 2]),
        (O9[::-1], 3, "rows", [2, 1, 1, 0, 0]),
        (DIFFERENCE, 2, "rows", [0, 1, 1, 1, 1, 1]),
        (DIFFERENCE, 2, "scalars", [0, 0, 1, 1, 1, 1]),
        ([[1, 9], [1, 1], [1, 9]], 2, "rows", [1, 0, 1]),
    ],
)
def test_groups_by_ascending_mean_d(d, clusters, space, groups):
    """O9; and two proxies tell apart whom the first alone does not."""
    method = CFedVS(clusters=clusters, space=space, proxies=np.ndim(d[0]) + 1)
    assert list(seated(method, *d).groups.values()) == groups


def test_a_newcomer_joins_the_nearest_mean_and_nobody_else_is_asked_again():
    """Means of O9 are 1.1, 5.15 and 9: 4 is nearest to the second, 3.1 to the first."""
    method, server = CFedVS(), seated(CFedVS(), *O9)
    assert np.ravel(server.means) == pytest.approx([1.1, 5.15, 9])
    told = Told(*O9, 4, 3.1)
    after = drive(method.assign_groups(server, ["0", "5", "6"]), told)
    assert told.asked == ["5", "6"]
    assert (after.groups["5"], after.groups["6"]) == (1, 0)
    assert {**after.groups, **server.groups} == after.groups
    assert after.means == server.means


def test_people_whose_data_changed_join_the_nearest_mean_when_measured_anew():
    """Every second round: "0", now at 8.5, goes to the third group; "1" is not asked and stays."""
    method = CFedVS(local=PLAIN, remeasure=2)
    server, told = seated(method, *O9), Told(8.5, 8.5)
    silent = add_up([], {"models": server.models})

    def trained(ask):
        if ask.verb == "measure":
            return told(ask)
        group = next(iter(ask.to.values())).facts["group"]
        start = model_of_group(server.models, group)
        fitted = FitResult(start, 1.0, 1, None)
        return add_up([seal(update_of(start, fitted, 1.0, group, 3), 0)], ask.like)

    unheard = drive(method.round(server, ["0"]), lambda _: silent)
    assert unheard == server
    first = drive(method.round(server, ["0"]), trained)
    assert (first.groups, first.rounds, told.asked) == (server.groups, 1, [])
    second = drive(method.round(first, ["0"]), trained)
    assert told.asked == ["0"]
    assert second.groups == {**server.groups, "0": 2}
    assert second.means == server.means
    never = drive(replace(method, remeasure=0).round(first, ["0"]), trained)
    assert never.groups == server.groups


def test_who_does_not_answer_is_in_no_group_and_gets_the_model_of_the_largest():
    method = CFedVS()
    start = method.server(ToyTask(Linear()))
    assert drive(method.setup(start, ["0"]), lambda _: {}) == start
    models = [start.models.like(torch.full_like(start.models.flat, g)) for g in range(3)]
    apart = tree_of_models([model_of_group(m, 0) for m in models])
    server = replace(seated(method, *O9), models=apart, groups={"0": 0, "1": 1, "2": 1})
    sent = {c: float(method.offer(server, c)["model"].flat[0]) for c in ("0", "1", "stranger")}
    assert sent == {"0": 0, "1": 1, "stranger": 1}


def test_a_client_tells_one_number_per_proxy_and_nothing_else():
    people = People(people=1).load()
    train, task = people.people["p00"].train, ToyTask(Linear())
    for proxies in (1, 3):
        method = CFedVS(proxies=proxies)
        sent = {"proxies": method.server(task).proxies}
        _, sealed = taught(method, task, None, sent, train, verb="measure")
        clips = [clip.numpy() for clip in task.sequences(train)]
        d = [
            np.mean([dtw(clip, proxy.numpy()) for clip in clips])
            for proxy in sent["proxies"].values()
        ]
        assert sealed.trees["distances"].total.flat.tolist() == pytest.approx(d)
        assert len(d) == proxies
        assert (set(sealed.trees), sealed.metrics) == ({"distances"}, {})


def test_four_bytes_per_person_leave_before_training(tmp_path):
    folder = RunDirectory(tmp_path, {"config": "a", "code": "b", "data": "c"})
    folder.open()
    plan = Plan(rounds=1, evaluate_every=0, workers=1, engine="bytes")
    run_rounds(
        CFedVS(), ToyTask(Linear()), federation=People(people=4).load(), plan=plan, folder=folder
    )
    with (tmp_path / "turns.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["round"] == "0"]
    up = {(r["client"], r["verb"], r["tree"]): int(r["bytes_up"]) for r in rows}
    assert {key: n for key, n in up.items() if n} == {
        (f"p0{i}", "measure", "distances"): 4 for i in range(4)
    }


@pytest.mark.parametrize(
    ("share_body", "expected"),
    [
        (False, [[1.95, 0.9], [2.3, 1.6]]),
        (True, [[2.02, 0.9], [2.02, 1.6]]),
    ],
)
def test_a_round_by_hand(share_body, expected):
    method = CFedVS(local=PLAIN, clusters=2, share_body=share_body)
    models = tree_of_models([TASK.init()] * 2, method.common_layers(TASK))
    server = Communities(models, Params.named(), {"a": 0, "b": 0, "c": 1})

    def answer(ask):
        sealed = [
            taught(method, TASK, None, message.trees, DATA[c], facts=message.facts)[1]
            for c, message in ask.to.items()
        ]
        return add_up(sealed, ask.like)

    after = drive(method.round(server, list(DATA)), answer)
    assert [values(model_of_group(after.models, g)) for g in range(2)] == expected


def test_a_task_without_sequences_is_refused():
    with pytest.raises(ConfigError, match="has no sequences of nobody's"):
        CFedVS().check(TASK)
    CFedVS(clusters=1).check(TASK)
