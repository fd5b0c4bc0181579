"""Averaged BatchNorm with every method: statistics are the clients' weighted mean; it learns."""

from collections import defaultdict
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import vergence as vg
from tests.conformance.test_methods import SUITED, WITH_SLOW_KIN
from tests.engine.toys import LOCAL, run_toy
from tests.engine.turns import watch_turns
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.engine.round_loop import RoundLoop
from vergence.experiment.registry import find
from vergence.methods.feddf import FedDF
from vergence.methods.fedgen import FedGen
from vergence.methods.scaffold import ControlVariate
from vergence.tasks.toy import ToyTask

REFUSING = {
    **dict.fromkeys(("split", "splitfed", "splitfed_v2", "splitfed_u"), "more than once"),
    **dict.fromkeys(("local_loss_split", "smashed_average"), "more than once"),
    **dict.fromkeys(("pe_zsl", "sg_zsl"), "means and variances are nobody's"),
    "fedridge": "the body does not train",
    "ap_fl": "every batch of made-up samples would count",
}
STEPS = {
    "reptile": {"rate": 3.0, "server_lr": 1.5},
    "pfedme": {"lamda": 15.0, "w_lr": 0.1, "beta": 1.5},
    "scaffold": {"server_lr": 1.5},
    "fedavgm": {"beta": 0.9, "server_lr": 1.5},
    "fedadam": {"server_lr": 3.0, "tau": 0.03},
    "fedyogi": {"server_lr": 3.0, "tau": 0.03},
    "fedadagrad": {"server_lr": 3.0},
}
"""Steps so long that a variance on the way would end below zero."""


@dataclass(frozen=True)
class Normed(vg.Model):
    """A network with BatchNorm whose statistics are averaged."""

    inputs: int = 4
    momentum: float = 0.1

    def build(self):
        norm = nn.BatchNorm1d(6, momentum=self.momentum)
        return vg.average_batch_norm(nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, 1)))


TASK = ToyTask(Normed())
MODELS = {"model", "body", "models", "params"}
"""Attributes of states that are models, or parts of one."""
STATISTICS = set(TASK.averaged_statistics())


@pytest.fixture(params=WITH_SLOW_KIN)
def name(request):
    return request.param


def built(name, **options):
    return find("methods", name, Method)(local=LOCAL, **{**SUITED.get(name, {}), **options})


def counted(state):
    """Statistics in a state, by tensor name, with all its parameters."""
    if isinstance(state, ControlVariate):  # has corrections, of gradients, and no model
        assert not any(state.control[n].any() for n in STATISTICS)
    trees = [v for k, v in vars(state).items() if k in MODELS and isinstance(v, Params)]
    names = [(t, n) for t in trees for n in t if n.partition("@")[0] in STATISTICS]
    return {n: t[n].clone() for t, n in reversed(names)}


def watched(method, path, patch, task=TASK, **plan):
    """Run a method; return its outcome, and per round what the server had and what came in."""
    rounds, sent, plain = [], defaultdict(list), RoundLoop.one_round

    def one_round(self, at, server):
        after = plain(self, at, server)
        rounds.append((counted(server), counted(after)))
        return after

    def hear(task, sealed):
        if task.message.verb == "train":
            sent[task.message.round].append(sealed)

    patch.setattr(RoundLoop, "one_round", one_round)
    watch_turns(patch, hear)
    return run_toy(path, method, task=task, **plan), rounds, sent


def mean_of(replies, name):
    """The weighted mean of an entry over sealed replies, which hold weight * update."""
    total, weights = 0.0, 0.0
    for sealed in replies:
        tree = next(t for t in sealed.trees.values() if name in t.total)
        weight = tree.weight
        if not isinstance(weight, float):
            bits = getattr(weight, "bits", None)
            flat = weight.flat if bits is None else bits.float()
            weight = weight.layout.view(flat, name)
        total, weights = total + tree.total[name], weights + weight
    return torch.where(torch.as_tensor(weights) > 0, total / weights, 0.0)


def positive(state):
    return all((v > 0).all() for n, v in counted(state).items() if "variance" in n)


def test_statistics_are_the_weighted_mean_of_what_clients_sent(name, tmp_path, monkeypatch):
    method = built(name)
    if name in REFUSING:
        with pytest.raises(vg.ConfigError, match=f"cannot average .*{REFUSING[name]}.*group_norm"):
            method.check(TASK) if name != "ap_fl" else Method.check(method, TASK)
        return
    outcome, rounds, sent = watched(method, tmp_path, monkeypatch)
    assert positive(outcome.server)
    assert all(positive(state) for state in outcome.clients.values())
    if method.keeps_statistics or name == "lg_fedavg":  # whose clients keep all but the head
        assert not counted(outcome.server)
        return
    assert all(before for before, _ in rounds), "the server has statistics"
    # Its student ends with what it counted on public samples.
    for at, (before, after) in enumerate([] if isinstance(method, FedDF) else rounds):
        assert any(not torch.equal(before[n], after[n]) for n in after)
        for n, value in after.items():
            assert torch.allclose(value, before[n] + mean_of(sent[at], n), atol=1e-5), n


@pytest.mark.parametrize("longer", STEPS)
def test_long_steps_of_other_entries(longer, tmp_path, monkeypatch):
    """With a momentum near 1 a variance moves far, and three times as far would be below zero."""
    method, task = built(longer, **STEPS[longer]), ToyTask(Normed(momentum=0.9))
    local = replace(LOCAL, lr=1e-6)  # weights hardly move, so that numbers stay finite
    outcome, rounds, sent = watched(replace(method, local=local), tmp_path, monkeypatch, task)
    assert positive(outcome.server)
    for at, (before, after) in enumerate(rounds):
        for n, value in after.items():
            assert torch.allclose(value, before[n] + mean_of(sent[at], n), atol=1e-5)
            if "variance" in n:
                assert (value > 0).all()


def test_it_learns(name, tmp_path):
    """Scores in evaluation mode, by the statistics: an error below that of predicting 0."""
    if name in REFUSING:
        pytest.skip("refuses the network")
    method, task = built(name), TASK
    if isinstance(method, FedGen):  # made-up features pull less at outputs of one kind of person
        method = replace(method, alpha=0.001, beta=0.001)
    alike = vg.data.Toy(people=3, strength=0.3).load()
    run_toy(tmp_path, method, task=task, federation=alike, rounds=10, evaluate_every=5)
    lines = [line.split(",") for line in (tmp_path / "people.csv").read_text().splitlines()]
    after = [float(line[-1]) for line in lines if line[2:4] == ["P0", "error"]]
    zero = [float(s.test.columns["y"].square().mean().sqrt()) for s in alike.people.values()]
    assert sum(after) / len(after) < 0.8 * sum(zero) / len(zero)
