"""The tables `privacy` and `poison`: what they bind to, what they refuse, and who is told."""

import json
import re

import pytest
import torch

from tests.cli.commands import TOY, go_on, run, vergence, write
from tests.conftest import ROOT
from tests.engine.toys import Interrupt, table
from vergence.core import files
from vergence.data.noise import Noise
from vergence.deployment.joined_node import deployable
from vergence.errors import ConfigError, PartialRun
from vergence.experiment import schema as config
from vergence.experiment.privacy.schema import ATTACKS, ON_DATA, build_poison, build_privacy
from vergence.experiment.provenance import config_digest
from vergence.experiment.trust import trust_in_own_file, under
from vergence.privacy.config import Privacy
from vergence.privacy.poisoning.data import DataPoison, GazeOffset
from vergence.privacy.poisoning.updates import Poison
from vergence.privacy.robust.krum import Krum
from vergence.privacy.robust.median import Median

TEN = TOY.replace("people = 3", "people = 10").replace("METHODS", 'method = "fedavg"')
TEN = TEN.replace('method = "fedavg"', 'method = { name = "fedavg" }')
JUDGED = TEN + 'privacy = { robust = { name = "krum", attackers = 0.2 } }\n'
LYING = JUDGED + 'poison = { attack = "alie", share = 0.2 }\n'


def toy(**tables):
    return config.check(
        {**config.read(ROOT / "src" / "vergence" / "experiments" / "toy.toml"), **tables}
    )


def test_a_rule_is_a_name_or_a_table():
    assert build_privacy({"robust": "median"}) == Privacy(robust=Median())
    named = {"robust": {"name": "krum", "attackers": 0.1}}
    assert build_privacy(named) == Privacy(robust=Krum(attackers=0.1))
    assert build_privacy({}) == Privacy()


def test_attacks_on_updates_and_on_data_share_a_table():
    assert build_poison({"attack": "scaling", "share": 0.1, "factor": 3.0}) == Poison(
        "scaling", 0.1, 3.0
    )
    turned = build_poison({"attack": "gaze_offset", "share": 0.1, "seed": 4, "yaw": 5.0})
    assert turned == DataPoison("gaze_offset", GazeOffset(yaw=5.0), 0.1, 4)
    noisy = build_poison({"attack": "noisy_data", "share": 0.1, "seed": 4, "std": 1.0})
    assert noisy == DataPoison("noisy_data", Noise(share=1.0, std=1.0, seed=4), 0.1, 4)
    people = [f"p{i:02d}" for i in range(10)]
    assert turned.malicious_clients(people) == Poison(share=0.1, seed=4).malicious_clients(people)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"privacy": {"robust": "medain"}}, "'medain' .did you mean 'median'"),
        ({"privacy": {"robust": {"name": "krum", "attacker": 0.1}}}, "unknown key 'attacker'"),
        ({"privacy": {"robust": {"name": "krum", "attackers": 0.5}}}, "attackers must be"),
        ({"privacy": {"robust": {"attackers": 0.1}}}, "a rule's name, or a table with a name"),
        ({"privacy": {"robust": 3}}, "privacy.robust must be a table, got 3"),
        ({"privacy": {"rubust": "median"}}, "privacy: unknown key 'rubust'"),
        ({"privacy": "median"}, "privacy must be a table"),
        ({"poison": {"attack": "alias"}}, "'alias' .did you mean 'alie'"),
        (
            {"poison": {"attack": "gaze_offset", "factor": 2.0}},
            "gaze_offset.: unknown key 'factor'",
        ),
        ({"poison": {"attack": "alie", "pitch": 2.0}}, "poison: unknown key 'pitch'"),
        ({"poison": {"attack": "noisy_data", "share": 0.6}}, "share must be"),
        ({"poison": []}, "poison must be a table"),
        (
            {"privacy": {"robust": "median"}},
            "method 'centralised': privacy.robust = 'median' cannot",
        ),
    ],
)
def test_what_is_refused_is_refused_at_load_in_one_line(tables, said):
    with pytest.raises(ConfigError, match=said) as error:
        toy(**tables)
    assert "\n" not in str(error.value)


def test_neither_table_changes_the_digest_of_an_experiment_without_it():
    """The digest of the toy preset, as it was before these tables were there."""
    table = config.read(ROOT / "src" / "vergence" / "experiments" / "toy.toml")
    assert "privacy" not in table
    # They were not named then.
    del table["local"]["optimizer"]
    del next(each for each in table["methods"] if "rule" in each)["rule"]
    assert config_digest(table).startswith("27ac3114966d")
    assert config_digest({**table, "privacy": {"robust": "median"}}) != config_digest(table)


def test_a_rule_from_a_file_is_part_of_the_digest(tmp_path):
    rule = tmp_path / "mine.py"
    rule.write_text((ROOT / "src/vergence/privacy/robust/median.py").read_text())
    toy = config.read(ROOT / "src" / "vergence" / "experiments" / "toy.toml")
    robust = {"name": str(rule), "attackers": 0.0}
    table = {**toy, "methods": ["fedavg"], "privacy": {"robust": robust}}
    with under(trust_in_own_file()):
        assert config.check(table).plan.privacy.robust.name == "mine:Median"
    before = config_digest(table)
    rule.write_text(rule.read_text() + "\n# changed\n")
    assert config_digest(table) != before


def test_a_poisoned_run_says_so_everywhere(tmp_path):
    out = run(tmp_path, LYING)
    about = json.loads((out / "provenance.json").read_text())["data"]["POISONED"]
    assert re.fullmatch(r"alie by 2 of 10 people, on purpose: p\d\d, p\d\d", about)
    assert f"POISONED: {about}" in vergence("compare", out).out.replace("\n", " ")
    vergence("report", out)
    page = (out / "report.html").read_text()
    assert "<b>POISONED</b>" in page
    assert "left out: krum: another update is nearer" in page
    status = vergence("status", out).out
    assert "POISONED on purpose: alie" in status
    assert "27 × left out: krum" in status.replace("\n", " ")
    explained = vergence("explain", write(tmp_path, LYING)).out
    assert "20% of the people lie about what they send (alie)" in explained


def test_a_run_without_liars_mentions_none(tmp_path):
    out = run(tmp_path, JUDGED)
    vergence("report", out)
    printed = [vergence("compare", out).out, vergence("status", out).out]
    written = [(out / name).read_text() for name in ("provenance.json", "report.html")]
    assert not any("POISON" in text for text in (*printed, *written))


def test_explain_says_who_sees_single_updates_and_what_is_assumed(tmp_path):
    said = " ".join(vergence("explain", write(tmp_path, JUDGED)).out.split())
    assert "every single update: krum compares them" in said
    assert "no more than 20% of a round's replies, rounded up, come from liars" in said
    trusts = TEN + 'privacy = { robust = { name = "fltrust", root = "p03" } }\n'
    said = " ".join(vergence("explain", write(tmp_path, trusts)).out.split())
    assert "p03 is honest" in said
    assert "which way p03's update points" in said


def test_data_attacks_spoil_the_liars_training_data_alone():
    base = {
        "federation": {"name": "eye_synthetic", "people": 5, "samples": 40, "size": "9x15"},
        "task": {"name": "gaze_angle"},
        "model": {"name": "small_eye"},
    }
    clean = toy(**base).federation()
    for attack, name in (("gaze_offset", "gaze"), ("noisy_data", "image")):
        lying = toy(**base, poison={"attack": attack, "share": 0.2}).federation()
        (liar,) = build_poison({"attack": attack, "share": 0.2}).malicious_clients(clean.clients)
        assert lying.about["POISONED"] == f"{attack} by 1 of 5 people, on purpose: {liar}"
        for person, splits in lying.people.items():
            mine, theirs = splits.train.columns[name], clean.people[person].train.columns[name]
            assert bool((mine != theirs).any()) == (person == liar)
            held = clean.people[person].test.columns
            assert all(torch.equal(v, held[k]) for k, v in splits.test.columns.items())


def test_data_that_is_spoiled_is_not_spoiled_again():
    """As folds and sweeps take it: data once loaded; attacks on updates stay."""
    turned = toy(poison={"attack": "gaze_offset", "share": 0.2})
    assert turned.on_dataset(turned.dataset).poison is None
    lying = toy(methods=["fedavg"], poison={"attack": "alie", "share": 0.2})
    assert lying.on_dataset(lying.dataset).poison == lying.poison == lying.plan.poison


def test_a_deployment_names_its_precision():
    """Nobody but the plan says what `auto` is, and it does not know the clients' processors."""
    with pytest.raises(ConfigError, match=r"run\.precision = 'auto' looks at the processor"):
        deployable(toy(methods=["fedavg"], run={"precision": "auto"}))
    deployable(toy(methods=["fedavg"], run={"precision": "half"}))


def test_a_deployment_is_not_poisoned():
    with pytest.raises(ConfigError, match="poison: a deployment has real people"):
        deployable(toy(methods=["fedavg"], poison={"attack": "noisy_data", "share": 0.2}))
    deployable(toy(methods=["fedavg"], privacy={"robust": "median"}))
    cut = {
        "task": {"name": "gaze_angle"},
        "model": {"name": "small_eye"},
        "privacy": {"aggregation": "secure"},
    }
    deployable(toy(methods=["splitfed"], **cut))
    with pytest.raises(ConfigError, match="sends 'smashed', of which nobody knows beforehand"):
        deployable(toy(methods=["smashed_average"], **cut))


def test_runs_under_other_rules_stand_in_one_table_only_on_request(tmp_path):
    one, two = run(tmp_path, JUDGED, out="one"), run(tmp_path, TEN, out="two")
    vergence("compare", one, two).complains(2, "privacy.robust differs", "same privacy")
    assert vergence("compare", one, two, "--allow", "privacy").code == 0
    three = run(tmp_path, LYING, out="three")
    vergence("compare", one, three).complains(2, "poison.attack differs", "or neither")


def test_killed_and_resumed_it_gives_the_same_tables(tmp_path, monkeypatch):
    whole = run(tmp_path, LYING, out="whole")
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", Interrupt(5, after=True))
        with pytest.raises((KeyboardInterrupt, PartialRun)):
            run(tmp_path, LYING)
    go_on(tmp_path / "out")
    assert table(tmp_path / "out", "turns.csv") == table(whole, "turns.csv")
    assert table(tmp_path / "out", "people.csv") == table(whole, "people.csv")
    assert vergence("verify", tmp_path / "out").code == 0


def test_the_guide_names_every_attack_and_leads_to_its_keys():
    text = (ROOT / "docs/how-to/robust.md").read_text()
    assert "(../reference/experiment.md#poison)" in text
    assert all(f"`{attack}`" in text for attack in ATTACKS)
    assert set(ON_DATA) < set(ATTACKS)


def test_settings_of_a_plan_that_clash_are_one_line_of_a_command(tmp_path):
    asked = 'privacy = { solver = { name = "dp_sgd", clip = 1.0, noise = 1.0 } }\n'
    file = write(tmp_path, TEN + asked)
    stacked = ("--set", "run.solver=stacked", "--out", tmp_path / "out")
    vergence("run", file, *stacked).complains(2, "privacy.solver", "leave out run.solver")
