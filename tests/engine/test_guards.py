"""A reply that must not be counted: its reason is named, and it is as if the client were silent."""

from dataclasses import replace

import pytest
import torch

from tests.engine.toys import LOCAL, mostly_slow, run_toy, table
from tests.engine.turns import watch_turns
from vergence.core.masks import Mask
from vergence.core.messages import SealedTree
from vergence.core.params import Layout, Params
from vergence.core.serialization import equal_states
from vergence.engine.participation import Participation
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedselect import FedSelect
from vergence.privacy.config import Privacy
from vergence.privacy.reply_checks import HEAVIEST
from vergence.privacy.robust.dnc import DnC
from vergence.privacy.robust.norm_bound import NormBound

METHODS = {
    "fedavg": FedAvg(local=LOCAL),
    "fedcpf": FedCPF(local=LOCAL, rate=0.2),
    "fedcpf by samples": FedCPF(local=LOCAL, rate=0.2, weights="samples"),
    "fedselect": FedSelect(local=LOCAL, rate=0.2),
}
OTHER = Layout(("weight", "bias"), ((1, 5), (1,)))
RENAMED = Layout(("w", "bias"), ((1, 4), (1,)))
RESHAPED = Layout(("weight", "bias"), ((4, 1), (1,)))


def tree(change):
    """Return a harm to the tree `model` of a sealed reply."""
    return lambda sealed: replace(sealed, trees={"model": change(sealed.trees["model"])})


def value(number):
    def change(t):
        flat = t.total.flat.clone()
        flat[2] = number
        return replace(t, total=t.total.like(flat))

    return tree(change)


def weight(number):
    """Set the weight of all entries, or of one where every entry has its own."""

    def change(t):
        if isinstance(t.weight, float):
            return replace(t, weight=number)
        bits = t.weight.bits if isinstance(t.weight, Mask) else t.weight.flat
        each = bits.to(torch.float32).clone()
        each[3] = number
        return replace(t, weight=Params(each, t.total.layout))

    return tree(change)


def layout(other):
    def change(t):
        flat = torch.zeros(other.n)
        mine = isinstance(t.weight, float)
        return SealedTree(Params(flat, other), t.weight if mine else Mask.full(other))

    return tree(change)


def foreign_weights(t):
    return replace(t, weight=Mask.full(OTHER))


def infinite(t):
    """Set numbers that are finite, and are not when one is divided by the other."""
    if isinstance(t.weight, float):
        return SealedTree(t.total.like(torch.full_like(t.total.flat, 1e30)), 1e-30)
    each = t.weight.bits.float() if isinstance(t.weight, Mask) else (t.weight.flat > 0).float()
    return SealedTree(t.total.like(1e30 * each), Params(1e-30 * each, t.total.layout))


HARMS = {
    "an answer to another round": (lambda s: replace(s, round=7), "round: answers round 7, now is"),
    "a missing tree": (lambda s: replace(s, trees={}), "names: sent []"),
    "an undeclared tree": (
        lambda s: replace(s, trees={**s.trees, "diary": s.trees["model"]}),
        "names: sent ['diary'",
    ),
    "other tensor names": (layout(RENAMED), "names: the tensors of 'model'"),
    "another number of entries": (layout(OTHER), "shape: the tensors of 'model'"),
    "as many entries in another shape": (layout(RESHAPED), "shape: the tensors of 'model'"),
    "another dtype": (
        tree(lambda t: replace(t, total=Params(t.total.flat.double(), t.total.layout))),
        "dtype: 'model' is torch.float64",
    ),
    "nan": (value(float("nan")), "finite: 'model' holds NaN"),
    "infinity": (value(float("inf")), "finite: 'model' holds NaN or infinity"),
    "a metric that is nan": (
        lambda s: replace(s, metrics={"loss": float("nan")}),
        "finite: metric 'loss' is nan",
    ),
    "a metric that is no number": (
        lambda s: replace(s, metrics={"loss": "low"}),
        "finite: metric 'loss' is low",
    ),
    "a negative weight": (weight(-1.0), "weight: 'model' claims a weight outside [0, 1e+09]"),
    "a weight that is nan": (weight(float("nan")), "weight: 'model' claims"),
    "too large a weight": (weight(HEAVIEST * 1.01), "weight: 'model' claims"),
    "an update that its weight makes infinite": (
        tree(infinite),
        "finite: 'model' over its weight is infinite",
    ),
    "weights for other entries": (tree(foreign_weights), "shape: 'model' has weights for other"),
}


@pytest.mark.parametrize("name", mostly_slow(METHODS, "fedavg", "fedcpf"))
@pytest.mark.parametrize("harm", HARMS)
def test_a_bad_reply_counts_for_nothing(tmp_path, monkeypatch, name, harm):
    """p01 misbehaves in round 2 of 4 (its mask has changed by then); then it behaves again."""
    change, says = HARMS[harm]

    def once(task, sealed):
        return change(sealed) if (task.client, task.message.round) == ("p01", 2) else None

    with monkeypatch.context() as patch:
        watch_turns(patch, once)
        bad = run_toy(tmp_path / "bad", METHODS[name])
    with monkeypatch.context() as patch:
        patch.setattr(Participation, "loses", lambda _, client, at, __: (client, at) == ("p01", 2))
        silent = run_toy(tmp_path / "silent", METHODS[name])
    assert bad.fingerprint == silent.fingerprint
    assert equal_states(bad.server, silent.server)
    rows = table(tmp_path / "bad", "turns.csv")
    blamed = {(t["round"], t["client"]) for t in rows if t["status"] != "ok"}
    assert blamed == {("3", "p01")}
    (reason,) = {t["status"] for t in rows} - {"ok"}
    assert reason.startswith("quarantined: ")
    assert says in reason


@pytest.mark.parametrize("number", [0.0, 1.0, HEAVIEST])
def test_weights_at_the_edges_are_allowed(tmp_path, monkeypatch, number):
    watch_turns(monkeypatch, lambda _, sealed: weight(number)(sealed))
    run_toy(tmp_path, METHODS["fedavg"])
    assert {t["status"] for t in table(tmp_path, "turns.csv")} == {"ok"}


def test_everybody_quarantined_leaves_the_server_as_it_was(tmp_path, monkeypatch):
    harm = value(float("nan"))
    watch_turns(monkeypatch, lambda _, sealed: harm(sealed))
    outcome = run_toy(tmp_path, METHODS["fedcpf"])
    assert not outcome.server.model.flat.any()
    assert outcome.clients == {}
    rounds = table(tmp_path, "rounds.csv")
    assert {r["value"] for r in rounds if r["metric"] == "replies"} == {"0.0"}
    assert not [r for r in rounds if r["metric"] == "loss"]


@pytest.mark.parametrize("rule", [NormBound(), DnC(sample=3)])
def test_a_tiny_weight_does_not_end_a_robust_run(tmp_path, monkeypatch, rule):
    """Values over weights are what rules compare: infinite ones would have made all of it NaN."""
    harm = tree(infinite)
    watch_turns(monkeypatch, lambda task, sealed: harm(sealed) if task.client == "p01" else None)
    outcome = run_toy(tmp_path, METHODS["fedavg"], people=6, rounds=1, privacy=Privacy(robust=rule))
    assert torch.isfinite(outcome.server.model.flat).all()
    rows = table(tmp_path, "turns.csv")
    assert [t["client"] for t in rows if "over its weight" in t["status"]] == ["p01"]
