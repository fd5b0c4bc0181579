"""Who trains several clients at once, and a round in which nobody is there to be served."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from vergence.core.aggregation import Sum
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.params import Params
from vergence.core.requests import Fit, ServeGroups
from vergence.engine import exchange
from vergence.engine.client_executor import ClientExecutor
from vergence.engine.exchange import ClientExchange

START = Params.named(w=torch.zeros(2))
DATA = Samples({"x": torch.zeros(3, 1)})


class Trainer:
    """Counts the trainings that it is asked for together."""

    def __init__(self, name):
        self.name, self.sizes = name, []

    def fit_all(self, asks, streams, progress):
        assert len(asks) == len(streams)
        assert progress == 0.25
        self.sizes.append(len(asks))
        return [self.name] * len(asks)


def trained(turns, stacked=True, graphed=False, one_by_one=False, **ask):
    """Return who did the trainings of so many turns, and the sizes of what was done together."""
    here = SimpleNamespace(
        stacked=Trainer("stacked") if stacked else None,
        graphed=Trainer("graphed") if graphed else None,
        one_by_one=one_by_one,
        _answer=lambda *_: "alone",
        _placed=lambda ask: ask,
    )
    done = []
    each = [
        SimpleNamespace(
            ask=Fit(START, DATA, LocalTraining(optimizer="sgd"), **ask),
            go_on=done.append,
            batches=lambda: None,
            progress=0.25,
        )
        for _ in range(turns)
    ]
    ClientExecutor._train(here, each)
    trainers = filter(None, (here.stacked, here.graphed))
    return done, [size for trainer in trainers for size in trainer.sizes]


def test_two_clients_are_stacked_and_one_is_not():
    assert trained(1) == (["alone"], [])
    assert trained(2) == (["stacked"] * 2, [2])
    assert trained(3) == (["stacked"] * 3, [3])
    assert trained(3, stacked=False) == (["alone"] * 3, [])
    assert trained(3, one_by_one=True) == (["alone"] * 3, [])


def test_one_client_alone_is_graphed_where_there_are_graphs():
    assert trained(1, graphed=True) == (["graphed"], [1])
    assert trained(2, graphed=True) == (["stacked"] * 2, [2])
    assert trained(2, stacked=False, graphed=True) == (["graphed"] * 2, [2])
    assert trained(2, graphed=True, one_by_one=True) == (["alone"] * 2, [])


@pytest.mark.parametrize("special", [{"objective": "own"}, {"correction": START}])
def test_what_graphs_cannot_record_is_trained_one_by_one(special):
    assert trained(1, graphed=True, **special) == (["alone"], [])
    assert trained(2, stacked=False, graphed=True, **special) == (["alone"] * 2, [])
    assert trained(2, graphed=True, **special) == (["stacked"] * 2, [2])


def served(there, groups, loads=None):
    """Return the groups in which clients are served, whether alone, and who is told lost."""
    asked, lost = [], []

    def results(batch, _):
        asked.append((list(batch.groups), [task.client for task in batch.tasks], batch.alone))
        return {}

    here = SimpleNamespace(
        _present=lambda group, *_: [client for client in group if client in there],
        _messages=lambda to, *_: dict.fromkeys(to),
        _results=results,
        _count=lambda result, *_: lost.append((result.client, result.status)),
        _add_metrics=lambda _: None,
        clients=SimpleNamespace(file=lambda _: None, spare=lambda: None),
        loads=loads or {},
        jobs=0,
        phase=0,
    )
    ask = ServeGroups(groups, {"server": START})
    made = ClientExchange.attend(here, ask, None, 0, 0.0)
    assert made.clients == ()
    assert here.jobs == 1
    return asked[0], lost


def test_where_nobody_is_there_nobody_is_served():
    """Every client has its own copy, or they share one: a round of nobody is no error."""
    assert served((), (("a",), ("b",))) == (([], [], True), [("a", "lost"), ("b", "lost")])
    assert served((), (("a", "b"),)) == (([], [], False), [("a", "lost"), ("b", "lost")])


def test_clients_with_their_own_copies_are_dealt_to_64_groups_the_longest_work_first():
    names = [f"c{i:03d}" for i in range(130)]
    loads = {"c129": 9, "c000": 0}
    (groups, order, alone), lost = served(names, tuple((name,) for name in names), loads)
    assert alone
    assert groups == [3] * 43 + [1]  # 130 / 64, rounded up
    assert order == ["c129", *names[1:129], "c000"]
    assert Counter(status for _, status in lost) == {"lost": 130}
    assert exchange.GROUPS == 64
    (groups, _, _), _ = served(names[:2], tuple((name,) for name in names[:2]))
    assert groups == [1, 1]


def test_the_sum_of_nobody_has_no_count():
    assert Sum().count == 0
