"""Robust rules behind secure sums: what they are shown is sums of groups."""

from dataclasses import replace

import pytest
import torch

from tests.engine.toys import run_toy, table
from vergence.core.conversation import Conversation
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.engine.participation import Participation
from vergence.engine.protections.robust_aggregation import RobustAggregator, among_groups
from vergence.errors import ConfigError
from vergence.experiment.schema import check
from vergence.methods.fedavg import FedAvg
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.privacy.robust.base import RobustRule
from vergence.privacy.robust.groups import deal
from vergence.privacy.robust.median import Median
from vergence.privacy.robust.multi_krum import MultiKrum

LOCAL = LocalTraining(optimizer="sgd", epochs=1, batch=8, lr=0.05)
GROUPED = Privacy(Median(attackers=0.05), SecureAggregationConfig(groups=4))


class Lying(FedAvg):
    """Of all its clients, p02 sends minus 200 times what it learned."""

    def on_train(self, c, msg, site) -> Conversation:
        state, reply = yield from super().on_train(c, msg, site)
        if site.id == "p02":
            reply = replace(reply, trees={n: t * -200.0 for n, t in reply.trees.items()})
        return state, reply


@pytest.fixture
def shown(monkeypatch):
    """Everything that rules were shown."""
    plain, found = RobustRule.combine, []

    def combine(self, replies, *rest):
        found.append((self, dict(replies)))
        return plain(self, replies, *rest)

    monkeypatch.setattr(RobustRule, "combine", combine)
    return found


def test_a_rule_sees_the_mean_of_every_group_and_nobody(tmp_path, shown):
    """Against the same rule where it looks at everybody, dealt into groups by hand."""
    method, once = FedAvg(local=LOCAL), {"people": 12, "rounds": 1}
    run_toy(tmp_path / "a", method, privacy=GROUPED, **once)
    run_toy(tmp_path / "b", method, privacy=Privacy(Median(attackers=0.05)), **once)
    (rule, sums), (_, single) = shown
    assert set(sums) == {"group 1", "group 2", "group 3"}
    assert rule == Median(attackers=1 / 3)  # one of twelve, in one of three groups
    stream = RandomStream("run", 0).child("jury", "0", 1)
    for number, group in enumerate(deal(list(single), 4, stream), 1):
        trees = [single[client].trees["model"] for client in group]
        total = sum(tree.total.flat.double() for tree in trees)
        whole = sums[f"group {number}"].trees["model"]
        assert whole.weight == pytest.approx(sum(tree.weight for tree in trees))
        torch.testing.assert_close(whole.total.flat.double(), total, atol=1e-5, rtol=1e-6)


def test_a_liar_spoils_its_group_and_no_other(tmp_path):
    """Fifteen people, five groups of three, one liar: multi-Krum leaves out its two neighbours."""
    privacy = Privacy(MultiKrum(attackers=0.05), SecureAggregationConfig(groups=3))
    plan = {"people": 15, "rounds": 3}
    found = run_toy(tmp_path / "a", Lying(local=LOCAL), privacy=privacy, **plan)
    bare = run_toy(tmp_path / "b", Lying(local=LOCAL), **plan)
    honest = run_toy(tmp_path / "c", FedAvg(local=LOCAL), **plan)
    for at in "123":
        rows = [r for r in table(tmp_path / "a", "turns.csv") if r["round"] == at]
        out = {r["client"]: r["status"] for r in rows if r["status"] != "ok"}
        assert "p02" in out
        assert all(status.startswith("left out: group ") for status in out.values())
        assert len(out) % 3 == 0
    apart = [float((o.server.model.flat - honest.server.model.flat).norm()) for o in (found, bare)]
    assert apart[0] < 0.1 * apart[1]


def test_any_number_of_workers_gives_the_same_bits(tmp_path):
    plan = {"people": 12, "privacy": GROUPED, "presence": Participation(lost=0.1)}
    runs = [
        run_toy(tmp_path / str(n), FedAvg(local=LOCAL), workers=n, **plan).fingerprint
        for n in (1, 2)
    ]
    assert runs[0] == runs[1]


def test_a_group_of_which_too_few_answer_is_not_opened(tmp_path, shown):
    plan = {
        "people": 6,
        "privacy": replace(GROUPED, aggregation=SecureAggregationConfig(groups=3)),
        "rounds": 6,
    }
    plan["privacy"] = Privacy(Median(attackers=0.0), SecureAggregationConfig(groups=3))
    run_toy(tmp_path, FedAvg(local=LOCAL), presence=Participation(lost=0.2), **plan)
    statuses = {r["status"] for r in table(tmp_path, "turns.csv")}
    assert "lost: a sum of 2 is not opened, 3 are needed" in statuses
    assert all(len(replies) <= 2 for _, replies in shown)


def test_liars_may_each_sit_in_another_group():
    assert among_groups(Median(attackers=0.1), 20, 5) == Median(attackers=2 / 5)
    assert among_groups(Median(attackers=0.1), 20, 4) is None


TABLE = {
    "task": {"name": "toy"},
    "model": {"name": "linear"},
    "federation": {"name": "toy", "people": 12},
    "methods": ["fedavg"],
}


@pytest.mark.parametrize(
    ("privacy", "more", "why"),
    [
        ({"aggregation": {"groups": 4}}, {}, "groups are for a robust rule to judge"),
        ({"aggregation": {"groups": 2}, "robust": "median"}, {}, "groups of 2 are smaller than"),
        (
            {"aggregation": {"groups": 4}, "robust": "median"},
            {"run": {"engine": "bytes"}},
            "sums of groups are simulated only",
        ),
        (
            {"aggregation": {"groups": 4}, "robust": {"name": "fltrust", "root": "p00"}},
            {},
            "that person's single update",
        ),
        (
            {"aggregation": {"groups": 4, "name": "additive"}, "robust": "median"},
            {"methods": ["fedcpf"]},
            "groups would show whose",
        ),
    ],
)
def test_what_groups_cannot_do_is_refused_at_load(privacy, more, why):
    with pytest.raises(ConfigError, match=why) as error:
        check({**TABLE, "privacy": privacy, **more})
    assert "\n" not in str(error.value)


def test_too_few_groups_are_refused_before_training(tmp_path):
    privacy = Privacy(Median(attackers=0.2), SecureAggregationConfig(groups=4))
    with pytest.raises(ConfigError, match="12 clients in groups of 4 are 3 sums, and 3 liars may"):
        run_toy(tmp_path, FedAvg(local=LOCAL), people=12, privacy=privacy)
    assert RobustAggregator(Median(), None, ()).sums is None
