"""What hides a person in a lab, and a lab: one noise, two epsilons, adversaries on each side."""

import csv
import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.conformance.test_methods import build, run
from tests.engine.test_silos import EXPERIMENT, LABS, SEVEN
from tests.engine.toys import table
from tests.engine.turns import watch_turns
from vergence.core.aggregation import add_up
from vergence.core.messages import SealedReply, SealedTree, reply, seal
from vergence.engine import lab_runner
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan
from vergence.engine.protections.labs import LabsProtection
from vergence.engine.protections.user_level import UserLevelHooks, UserLevelMechanism, forecast
from vergence.engine.silos import Silos
from vergence.errors import ConfigError
from vergence.experiment.run import start
from vergence.experiment.schema import check
from vergence.methods.fedavg import FedAvg
from vergence.privacy.config import Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.privacy.dp.accounting import gaussian_epsilon
from vergence.reports.ethics.facts import facts
from vergence.reports.explain import explain

PERSON = UserLevelConfig(clip=0.5, noise=4.0)
LAB = replace(PERSON, unit="lab")
UNITS = pytest.mark.parametrize("user", [PERSON, LAB], ids=["person", "lab"])


@pytest.mark.parametrize(
    ("user", "person", "lab"),
    [(PERSON, math.sqrt(3) / 4, 3 * math.sqrt(3) / 4), (LAB, math.sqrt(3) / 8, math.sqrt(3) / 4)],
    ids=["person", "lab"],
)
def test_epsilons_of_person_and_lab_worked_by_hand(user, person, lab):
    """Three rounds, noise 4 x clip; labs of 2, 3 and 2.

    A person's bound: mu = sqrt(3) / 4, and a lab of three moves a sum three times as far. A lab's
    bound: mu = sqrt(3) / 4, and a person in the smallest lab moves its mean half as far.
    """
    plan = Plan(rounds=3, silos=LABS, privacy=Privacy(user=user))
    found = forecast(user, plan, FedAvg(), 3)
    one, other = found.epsilon(1e-5), found.epsilon_of_other(1e-5)
    by_unit = {user.unit: one, "lab" if user.unit == "person" else "person": other}
    assert by_unit["person"] == pytest.approx(gaussian_epsilon(person, 1e-5))
    assert by_unit["lab"] == pytest.approx(gaussian_epsilon(lab, 1e-5))
    assert by_unit["person"] < by_unit["lab"]
    assert found.expected == (7 if user is PERSON else 3)


def test_a_person_in_a_lab_that_is_drawn_is_claimed_nothing_for_the_draw():
    """Who is drawn with everybody else in the lab is not drawn by chance beside them."""
    shares = {"presence": {"cohort": 0.5}, "run": {"rounds": 3}}
    plan = check({**EXPERIMENT, **shares}).plan
    assert forecast(PERSON, plan, FedAvg(), 3).rate == 1
    drawn = forecast(LAB, plan, FedAvg(), 3)
    assert drawn.rate == 0.5
    assert drawn.epsilon_of_other(1e-5) == pytest.approx(gaussian_epsilon(math.sqrt(3) / 8, 1e-5))


def sent_by_south(tmp_path, monkeypatch, user, changed):
    """Lab south's reply of a round, where p02's training came to what `changed` makes of it."""
    found, plain = [], lab_runner.LabRunner.turn

    def turn(self, task, kept, batch):
        taken = plain(self, task, kept, batch)
        if task.client == "south":
            found.append(taken.sealed)
        return taken

    outgoing = UserLevelHooks.outgoing

    def trained(self, reply, turn):
        return outgoing(self, changed(reply, turn.site.id), turn)

    with monkeypatch.context() as patch:
        patch.setattr(lab_runner.LabRunner, "turn", turn)
        patch.setattr(UserLevelHooks, "outgoing", trained)
        plan = {"rounds": 1, "silos": LABS, "privacy": Privacy(user=user)}
        run(build("fedavg"), tmp_path, SEVEN, **plan)
    return found[0].trees["model"].total.flat.double()


def scaled(times):
    """What p02 sends, so many times as long; everybody else sends as it is."""

    def changed(answer, person):
        tree = answer.trees["model"]
        return replace(answer, trees={"model": tree * times}) if person == "p02" else answer

    return changed


@UNITS
def test_whoever_a_person_is_a_labs_reply_moves_no_further_than_the_epsilon_counts(
    user, tmp_path, monkeypatch
):
    """The adversary trains to anything it likes; south has three people."""
    silent = sent_by_south(tmp_path / "0", monkeypatch, user, scaled(0.0))
    loud = sent_by_south(tmp_path / "1", monkeypatch, user, scaled(1e6))
    moved = float((loud - silent).norm())
    most = user.clip if user is PERSON else user.clip / 3
    assert 0.99 * most < moved <= most
    everybody = user.clip * 3 if user is PERSON else user.clip
    assert float(loud.norm()) <= everybody


@UNITS
def test_a_lab_that_sends_more_than_its_people_may_is_refused_by_the_server(user):
    """Each lab up to the bound of its own people: north has two, south three."""
    hooks = UserLevelHooks(user, silos=LABS)
    plan = Plan(rounds=1, silos=LABS, privacy=Privacy(user=user))
    step = forecast(user, plan, FedAvg(), 3).level.step
    model = FedAvg().server(check(EXPERIMENT).task(0)).model
    for lab, people in (("south", 3), ("north", 2)):
        bound = user.clip * (people if user is PERSON else 1)
        for length, fault in ((bound, None), (bound + step, f"clip = {user.clip:g}")):
            flat = torch.zeros_like(model.flat)
            flat[0] = length
            sent = SealedReply(0, {"model": SealedTree(model.like(flat), 1.0)}, {})
            found = hooks.fault(sent, lab)
            assert found is None if fault is None else fault in str(found)


def test_sums_are_exact_whichever_labs_are_asked(tmp_path):
    """Labs of 700, 600, 1 and 1 people: the average of two labs is 651 people, their sum 1300.

    On a grid of 14 bits sums of 1024 people are exact in float32.
    """
    people = [f"p{i:04}" for i in range(1302)]
    labs = {
        "big": people[:700],
        "wide": people[700:1300],
        "x": people[1300:1301],
        "y": people[1301:],
    }
    silos = Silos({lab: tuple(members) for lab, members in labs.items()})
    user = replace(PERSON, bits=14)
    asked = [
        Plan(
            rounds=1, presence=Participation(cohort=cohort), silos=silos, privacy=Privacy(user=user)
        )
        for cohort in (1, 2)
    ]
    with pytest.raises(ConfigError, match=r"1300 people on a grid of 14 bits .*bits <= 13"):
        forecast(user, asked[1], FedAvg(), 4)
    mechanism = UserLevelMechanism(user, asked[0], FedAvg(), 4, tmp_path, 0)
    model = FedAvg().server(check(EXPERIMENT).task(0)).model
    sent = seal(reply(model=model.like(torch.zeros_like(model.flat))), 0)
    mechanism.release(add_up([sent], {}), "0", 0, 1)
    with pytest.raises(ConfigError, match="1300 people"):
        mechanism.release(add_up([sent, sent], {}), "setup", 0, 2)


@UNITS
def test_nobody_learns_that_a_persons_training_overflowed(user, tmp_path, monkeypatch):
    """Status, weight and size of replies are as in any other round; the lab's own file says it."""

    def broken(task, sealed):
        tree = sealed.trees["model"]
        bad = replace(tree, total=tree.total.like(tree.total.flat * float("nan")))
        ill = task.client in ("p02", "p03", "p06")
        return replace(sealed, trees={"model": bad}) if ill else None

    plan = {"rounds": 1, "silos": LABS, "privacy": Privacy(user=user)}
    run(build("fedavg"), tmp_path / "well", SEVEN, **plan)
    watch_turns(monkeypatch, broken)
    folder, _ = run(build("fedavg"), tmp_path / "ill", SEVEN, **plan)
    told = [
        [
            {k: row[k] for k in ("client", "status", "weight", "bytes_up")}
            for row in table(at, "turns.csv")
        ]
        for at in (tmp_path / "well", tmp_path / "ill")
    ]
    assert told[0] == told[1]
    with (folder.state / "privacy" / "zeros.seed0.csv").open() as file:
        assert {row[0] for row in csv.reader(file)} == {"p02", "p03", "p06"}


@UNITS
def test_secure_sums_with_noise_in_the_labs_shares_are_the_protocols_own_bits(user, tmp_path):
    privacy = Privacy(user=user, aggregation=SecureAggregationConfig())
    plan = {"rounds": 2, "silos": LABS, "privacy": privacy}
    (tmp_path / "there" / "state" / "privacy").mkdir(parents=True, mode=0o700)
    here, _ = run(build("fedavg"), tmp_path / "here", SEVEN, **plan)
    secret = (here.state / "privacy" / "secret").read_bytes()
    kept = tmp_path / "there" / "state" / "privacy" / "secret"
    kept.write_bytes(secret)
    kept.chmod(0o600)
    _, there = run(build("fedavg"), tmp_path / "there", SEVEN, engine="bytes", **plan)
    _, again = run(build("fedavg"), tmp_path / "here", SEVEN, **plan)
    assert there.fingerprint == again.fingerprint


@UNITS
def test_results_say_what_was_spent_on_a_person_and_on_a_lab(user, tmp_path):
    given = {"clip": user.clip, "noise": user.noise, "unit": user.unit}
    start(check({**EXPERIMENT, "privacy": {"user": given}}), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "results.json").read_text())["privacy"]
    assert told["person"]["epsilon"] < told["lab"]["epsilon"]
    times = 3 if user is PERSON else 1
    want = gaussian_epsilon(times * math.sqrt(2) / user.noise, 1e-5)
    assert told["lab"]["epsilon"] == pytest.approx(want, rel=1e-3)
    assert "nor against the lab that somebody is in" in told["lab"]["against"]


@pytest.mark.parametrize(
    ("user", "silos", "why"),
    [
        (LAB, Silos(), "no silos say who is in one"),
        (replace(LAB, delta=0.34), LABS, "delta must be below 1 / 3, the number of labs"),
        (replace(PERSON, delta=0.15), LABS, "delta must be below 1 / 7, the number of people"),
    ],
)
def test_promises_that_would_be_none_are_refused(user, silos, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        run(FedAvg(), tmp_path, SEVEN, silos=silos, privacy=Privacy(user=user))


@pytest.mark.parametrize(
    ("secrecy", "seen"),
    [
        (None, "each lab's sum over its people, 2 or more; of tests each lab's means"),
        (
            SecureAggregationConfig(),
            "sums over several labs, of no lab alone (each has 2 people or more); of tests each "
            "lab's means",
        ),
    ],
)
def test_explain_says_what_a_server_over_labs_sees(secrecy, seen):
    plan = Plan(silos=LABS, privacy=Privacy(aggregation=secrecy))
    anywhere: Any = None
    said = {s.who: s.text for s in LabsProtection(plan).statements(anywhere)}
    assert said["server, over labs"] == seen


@UNITS
def test_the_page_for_a_board_and_explain_say_whose_promise_is_whose(user, capsys):
    given = {"clip": user.clip, "noise": user.noise, "unit": user.unit}
    experiment = check({**EXPERIMENT, "privacy": {"user": given}})
    explain(experiment, Console(width=400))
    said = capsys.readouterr().out
    for unit in ("person", "lab"):
        assert f"per {unit}, seed and method" in said
    assert "every lab's sum" in said
    assert "every person's" not in said
    plan = facts(experiment, "fedcpf", experiment.federation(), None)
    person, lab = plan["budget"]["person"]["epsilon"], plan["budget"]["lab"]["epsilon"]
    assert 0 < person < lab
    assert dict(plan["sees"])["whoever runs the server"].startswith("of each lab, added up over")
    assert f"another about each lab as a whole. Its worth: {plan['budget']['lab']['worth']}" in str(
        plan["verdict"]
    )
    assert None not in plan["verdict"]
    assert any("Inside a lab nothing hides a person" in line for line in plan["residual"])
