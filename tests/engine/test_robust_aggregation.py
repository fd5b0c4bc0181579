"""Rules and liars within a run: rounds by hand, states, the same bits everywhere, refusals."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from tests.deployment.test_remote_clients import PEOPLE, there
from tests.engine.toys import LOCAL, STAMP, Interrupt, mostly_slow, run_toy, table, untimed
from vergence.core import files
from vergence.core.messages import reply
from vergence.core.serialization import equal_states
from vergence.data.synthetic.toy import Toy as People
from vergence.engine import compatibility_check
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.protections import robust_aggregation
from vergence.engine.protections.robust_aggregation import replies
from vergence.engine.round_loop import run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.methods.centralised import Centralised
from vergence.methods.ditto import Ditto
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedavg_ft import FedAvgFT
from vergence.methods.fedcpf import FedCPF
from vergence.methods.fedpac import FedPAC
from vergence.methods.local_only import LocalOnly
from vergence.methods.scaffold import Scaffold
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.models.linear import Linear
from vergence.privacy.config import Privacy
from vergence.privacy.poisoning.updates import Poison
from vergence.privacy.robust.dnc import DnC
from vergence.privacy.robust.fltrust import FLTrust
from vergence.privacy.robust.krum import Krum
from vergence.privacy.robust.median import Median
from vergence.privacy.robust.trimmed_mean import TrimmedMean
from vergence.tasks.toy import ToyTask
from vergence.wire.codecs import Compression

SAID = {"p00": 1.0, "p01": 2.0, "p02": 9.0, "p03": 100.0, "p04": -50.0}
IDS = tuple(SAID)


@dataclass(frozen=True)
class Told(FedAvg):
    """People who learn nothing: each asks for the same number in every entry."""

    said: dict[str, float] = field(default_factory=lambda: SAID)
    weights: dict[str, float] = field(default_factory=dict)

    def on_train(self, c, msg, site):
        update = msg["model"] * 0.0 + self.said[site.id]
        return c, reply(model=update, weight=self.weights.get(site.id, 1.0), metrics={"loss": 1.0})


def protected(rule):
    return {"privacy": Privacy(robust=rule)}


def moved(path, method, **plan):
    """How far one round takes every entry of the model, which starts anywhere."""
    plan = {"rounds": 1, "people": 5, **plan}
    after = run_toy(path, method, **plan).server.model
    before = run_toy(path / "still", Told(said=dict.fromkeys(SAID, 0.0)), people=5, rounds=1)
    (change,) = {round(float(v), 4) for v in after.flat - before.server.model.flat}
    return change


# --- by hand


def test_the_median_of_a_round_by_hand(tmp_path):
    """Of -50, 1, 2, 9, 100 it is 2, whoever claims a billion samples; their mean is 12.4."""
    liar = Told(weights={"p03": 1e8})
    assert moved(tmp_path / "sum", Told()) == 12.4
    assert moved(tmp_path / "lie", liar) == 100
    outcome = run_toy(tmp_path / "a", liar, people=5, rounds=3, **protected(Median()))
    start = run_toy(tmp_path / "b", Told(said=dict.fromkeys(SAID, 0.0)), people=5).server.model
    assert torch.equal(outcome.server.model.flat, start.flat + 2 + 2 + 2)
    assert {row["status"] for row in table(tmp_path / "a", "turns.csv")} == {"ok"}


def test_krum_leaves_out_with_a_reason_and_counts_one_reply(tmp_path):
    """f = 1, so the 2 nearest: 1 has 1^2 + 8^2, 2 has 1^2 + 7^2, 9 has 7^2 + 8^2; the rest more."""
    assert moved(tmp_path, Told(), **protected(Krum())) == 2
    statuses = {row["client"]: row["status"] for row in table(tmp_path, "turns.csv")}
    reason = "left out: krum: another update is nearer to its neighbours"
    assert statuses == {client: "ok" if client == "p01" else reason for client in IDS}
    counted = [r["value"] for r in table(tmp_path, "rounds.csv") if r["metric"] == "replies"]
    assert counted == ["1.0"]


def test_whom_a_rule_leaves_out_goes_on_from_its_new_state(tmp_path):
    """All were asked the same in the first round, and keep what they made of it."""
    method = Ditto(local=LOCAL)
    plain = run_toy(tmp_path / "a", method, people=5, rounds=1)
    judged = run_toy(tmp_path / "b", method, people=5, rounds=1, **protected(Krum()))
    assert sum(row["status"] != "ok" for row in table(tmp_path / "b", "turns.csv")) == 4
    assert not equal_states(plain.server, judged.server)
    for client in IDS:
        assert equal_states(plain.clients[client], judged.clients[client])


def test_fltrust_by_hand(tmp_path):
    """The root says 2 in every entry: 1 and 4 point there, each scaled to 2; -3 and 0 do not. Where
    nobody points where the root does, nothing is added: the root itself has no vote."""
    said = {"p00": 2.0, "p01": 1.0, "p02": 4.0, "p03": -3.0, "p04": 0.0}
    assert moved(tmp_path / "a", Told(said=said), **protected(FLTrust(root="p00"))) == 2
    left = {r["client"] for r in table(tmp_path / "a", "turns.csv") if r["status"] != "ok"}
    assert left == {"p03", "p04"}
    lonely = {**dict.fromkeys(IDS, 1.0), "p04": -2.0}
    assert moved(tmp_path / "b", Told(said=lonely), **protected(FLTrust(root="p04"))) == 0


def test_the_trusted_person_is_asked_in_every_round(tmp_path):
    """Two are drawn; with the root they are three, unless it was drawn."""
    plan = {"rounds": 6, "presence": Participation(cohort=2), **protected(FLTrust(root="p03"))}
    run_toy(tmp_path, Told(said=dict.fromkeys(IDS, 1.0)), people=5, **plan)
    for at in range(1, 7):
        asked = [r["client"] for r in table(tmp_path, "turns.csv") if r["round"] == str(at)]
        assert "p03" in asked
        assert asked == sorted(asked)
        assert len(asked) in (2, 3)


def test_without_the_trusted_reply_a_round_adds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Participation, "loses", lambda _, client, *__: client == "p00")
    same_all = Told(said=dict.fromkeys(IDS, 1.0))
    assert moved(tmp_path, same_all, **protected(FLTrust(root="p00"))) == 0
    statuses = {row["status"] for row in table(tmp_path, "turns.csv")}
    said = "left out: fltrust: no update of p00 came, which the others are held to"
    assert statuses == {"lost", said}


def test_too_few_replies_add_nothing(tmp_path, monkeypatch):
    """Two of five come; f = 1 of two, so the median needs three."""
    monkeypatch.setattr(Participation, "loses", lambda _, client, *__: client not in ("p00", "p01"))
    assert moved(tmp_path, Told(), **protected(Median())) == 0
    told = [row["status"] for row in table(tmp_path, "turns.csv")][:2]
    assert told == ["left out: too few: median needs 3 replies, 2 came"] * 2


def test_nobody_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(Participation, "loses", lambda *_: True)
    assert moved(tmp_path, Told(), **protected(Median())) == 0


# --- liars


def test_liars_within_a_plain_sum_by_hand(tmp_path):
    """One of five: its update comes back with the other sign, and its weight as it was."""
    poison = Poison("sign_flip", share=0.2)
    (liar,) = poison.malicious_clients(IDS)
    signed = {client: -v if client == liar else v for client, v in SAID.items()}
    found = moved(tmp_path, Told(), poison=poison)
    assert found == pytest.approx(sum(signed.values()) / 5, abs=1e-4)


def test_a_lie_that_overflows_is_quarantined_and_its_state_goes_back(tmp_path):
    poison = Poison("scaling", share=0.2, factor=1e39)
    (liar,) = poison.malicious_clients(IDS)
    method = Ditto(local=LOCAL)
    found = run_toy(tmp_path, method, people=5, rounds=2, poison=poison)
    assert set(found.clients) == set(IDS) - {liar}
    told = {r["client"]: r["status"] for r in table(tmp_path, "turns.csv")}
    assert told.pop(liar) == "quarantined: finite: 'model' holds NaN or infinity"
    assert set(told.values()) == {"ok"}
    assert len(list((tmp_path / "state").glob("*.client.*.safetensors"))) == 4


def test_a_share_of_nobody_changes_no_bit(tmp_path):
    plain = run_toy(tmp_path / "a", FedCPF(local=LOCAL, rate=0.2)).fingerprint
    nobody = run_toy(tmp_path / "b", FedCPF(local=LOCAL, rate=0.2), poison=Poison(share=0.0))
    assert nobody.fingerprint == plain


def error(path):
    rows = table(path, "people.csv")
    found = [float(r["value"]) for r in rows if (r["evaluation"], r["metric"]) == ("P0", "error")]
    return sum(found) / len(found)


@pytest.mark.slow
def test_the_median_beats_the_sum_where_a_fifth_flips_signs(tmp_path):
    """Ten people who are nearly alike; two send minus ten times what they learned: that the sum
    goes wrong. The median hears everybody once, the clean sum by examples."""
    people = People(people=10, strength=0.2).load()
    poison = Poison("sign_flip", share=0.2, factor=10.0)
    runs = {
        "clean": {},
        "sum": {"poison": poison},
        "median": {"poison": poison, **protected(Median())},
    }
    for name, plan in runs.items():
        folder = RunDirectory(tmp_path / name, STAMP)
        folder.open()
        plan = Plan(rounds=12, evaluate_every=0, workers=1, **plan)
        run_rounds(
            FedAvg(local=LOCAL), ToyTask(Linear()), federation=people, plan=plan, folder=folder
        )
    clean, added, median = (error(tmp_path / name) for name in runs)
    assert median < 1.2 * clean
    assert added > 2 * clean


# --- the same bits


JUDGED = {
    "median": (FedCPF(local=LOCAL, rate=0.2), protected(Median())),
    "krum": (Ditto(local=LOCAL), protected(Krum(attackers=0.0))),
    "dnc": (FedAvg(local=LOCAL), protected(DnC(sample=3))),
    "fltrust": (FedAvg(local=LOCAL), protected(FLTrust(root="p02"))),
    "lies": (FedAvgFT(local=LOCAL, tune_epochs=1), {"poison": Poison("min_max", share=0.2)}),
    "both": (
        FedCPF(local=LOCAL, rate=0.2),
        {**protected(TrimmedMean()), "poison": Poison("alie", share=0.3)},
    ),
}


@pytest.mark.parametrize("name", mostly_slow(JUDGED, "krum", "both"))
def test_the_same_bits_for_any_workers_through_bytes_and_elsewhere(name, tmp_path):
    method, plan = JUDGED[name]
    plan = {**plan, "solver": "sequential"}
    whole = run_toy(tmp_path / "a", method, people=4, **plan)
    tables = untimed(tmp_path / "a")
    for kind, more in (("two", {"workers": 2}), ("bytes", {"engine": "bytes"})):
        found = run_toy(tmp_path / kind, method, people=4, **{**plan, **more})
        assert found.fingerprint == whole.fingerprint
        assert untimed(tmp_path / kind) == tables
    assert PEOPLE.clients == IDS[:4]
    assert there(method, tmp_path, **plan).fingerprint == whole.fingerprint
    assert table(tmp_path / "server", "turns.csv") == table(tmp_path / "a", "turns.csv")


@pytest.mark.parametrize("name", ["krum", "both"])
def test_resumed_after_an_interrupt_to_the_same_bits(name, tmp_path, monkeypatch):
    method, plan = JUDGED[name]
    whole = run_toy(tmp_path / "whole", method, people=4, **plan)
    for k in (3, 8, 13):
        path = tmp_path / str(k)
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_whole", Interrupt(k, after=True))
            with pytest.raises(KeyboardInterrupt):
                run_toy(path, method, people=4, **plan)
        assert run_toy(path, method, people=4, **plan).fingerprint == whole.fingerprint
        assert untimed(path) == untimed(tmp_path / "whole")


# --- what is refused


def check(plan, method, people):
    compatibility_check.check(plan, method)
    robust_aggregation.check(plan, people)


def refused(method, match, people=10, **plan):
    with pytest.raises(ConfigError, match=match) as error:
        check(Plan(**plan), method, [f"p{i:02d}" for i in range(people)])
    assert "\n" not in str(error.value)


LIES = {"poison": Poison("alie", share=0.2)}


@pytest.mark.parametrize(
    ("method", "match"),
    [
        (Centralised(), "cannot judge Centralised: everybody's data lies in one place"),
        (SplitFedV2(), "cannot judge SplitFedV2: its clients are served batch by batch"),
        (FedPAC(), "cannot judge FedPAC: its own server looks at every single reply to 'share'"),
        (Scaffold(), "cannot judge Scaffold: its updates of model and control belong together"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_methods_that_no_rule_can_judge(method, match):
    refused(method, match, **protected(Median()))


def test_masks_and_rules_of_whole_updates():
    refused(
        FedCPF(),
        "cannot judge FedCPF: the rule compares whole updates.*median",
        **protected(Krum()),
    )
    check(Plan(**protected(Median())), FedCPF(), IDS)


def test_attacks_without_an_update_to_change():
    refused(SplitFedV2(), r"'alie' cannot change.*poison training data", **LIES)
    refused(FedPAC(), r"'alie' cannot change.*'share'", **LIES)
    check(Plan(**LIES), Scaffold(), IDS)
    check(Plan(**LIES, **protected(Median())), LocalOnly(), IDS)


def test_deliveries_and_codecs_that_leave_nothing_to_compare():
    late = {"delivery": Delivery("fedbuff")}
    with pytest.raises(ConfigError, match=r"'fedbuff' takes replies as they arrive.*robust"):
        Plan(**late, **protected(Median()))
    with pytest.raises(ConfigError, match=r"'fedbuff' takes replies as they arrive.*poison"):
        Plan(**late, **LIES)
    with pytest.raises(ConfigError, match=r"'alie' replaces updates, which wire\.codec has"):
        Plan(**LIES, wire=Compression("int8"))
    Plan(**protected(Median()), wire=Compression("int8"))


def test_cohorts_in_which_a_rule_could_never_decide():
    """Of ten Krum needs 7; a cohort of 4 or a quorum of 3 has f = 1, and 5 are needed."""
    check(Plan(**protected(Krum())), FedAvg(), [f"p{i}" for i in range(10)])
    for plan in (
        {"presence": Participation(cohort=4)},
        {"presence": Participation(cohort=0.4)},
        {"delivery": Delivery("quorum", replies=4)},
    ):
        refused(FedAvg(), "'krum' needs 5 replies of a cohort of 4", **plan, **protected(Krum()))
    assert replies(Plan(presence=Participation(cohort=30)), 10) == 10
    refused(
        FedAvg(), "needs 1 replies of a cohort of 0", people=1, **protected(FLTrust(root="p00"))
    )


def test_fltrust_wants_somebody_who_is_there_and_honest():
    refused(FedAvg(), "name one, as .*root = 'p00'", **protected(FLTrust()))
    refused(FedAvg(), "no client 'p77'", **protected(FLTrust(root="p77")))
    people = [f"p{i:02d}" for i in range(10)]
    liar = Poison("alie", share=0.2).malicious_clients(people)[0]
    refused(
        FedAvg(),
        f"trusts '{liar}', whom poison.seed = 0 makes a liar",
        **LIES,
        **protected(FLTrust(root=liar)),
    )


def test_a_run_that_cannot_be_judged_is_refused_before_it_begins(tmp_path):
    with pytest.raises(ConfigError, match="cannot judge"):
        run_toy(tmp_path, Scaffold(local=LOCAL), **protected(Median()))
    assert not table(tmp_path, "turns.csv")
    with pytest.raises(ConfigError, match="needs 5 replies of a cohort of 3"):
        run_toy(tmp_path, FedAvg(local=replace(LOCAL)), **protected(Krum()))
