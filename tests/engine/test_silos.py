"""Labs with many people inside: one reply each, and everybody's numbers as without labs."""

import csv
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import vergence as vg
from tests.conformance.test_methods import NAMES, TASK, build, run, trees
from tests.engine.toys import dying_in, mostly_slow, table
from tests.engine.turns import watch_turns
from vergence.core.data import Samples
from vergence.core.messages import reply, seal
from vergence.core.params import Params
from vergence.data.synthetic.toy import Toy as People
from vergence.engine.compatibility import InvalidCombination
from vergence.engine.plan import Plan
from vergence.engine.silos import Silos
from vergence.errors import ConfigError
from vergence.experiment.run import start
from vergence.experiment.schema import check, load
from vergence.experiment.trained_run import read_run, verify
from vergence.methods.fedavg import FedAvg
from vergence.methods.fedcpf import FedCPF
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.wire.codecs import Compression

SEVEN = People(people=7).load()
LABS = Silos({"north": ("p00", "p04"), "south": ("p01", "p02", "p05"), "west": ("p03", "p06")})
REFUSED = {
    "ap_fl": "every single one to 'tell'",
    "centralised": "collects everybody's data",
    "cfedvs": "every single one to 'measure'",
    "feddf": "every single one to 'train'",
    "fedgen": "every single one to 'train'",
    "fedgroup": "every single one to 'probe'",
    "fedpac": "every single one to 'share'",
    "local_loss_split": "every single one to 'train'",
    "pe_zsl": "every single one to 'guide'",
    "sg_zsl": "every single one to 'guide'",
    "smashed_average": "every single one to 'count'",
    "split": "every single one to 'train'",
    "splitfed": "every single one to 'train'",
    "splitfed_u": "every single one to 'train'",
    "splitfed_v2": "every single one to 'train'",
}
COUNTED = ("qfedavg", "scaffold")
"""Methods whose server counts replies, which are fewer where people are in labs."""
QUICK = ("fedavg", "fedcpf", "scaffold", "local_only", *REFUSED)
SHARES = Privacy(aggregation=SecureAggregationConfig("additive", aggregators=("a", "b", "c")))


@pytest.mark.parametrize("name", mostly_slow(NAMES, *QUICK))
def test_a_method_ends_in_labs_where_it_ends_without_or_is_refused(name, tmp_path):
    if name in REFUSED:
        with pytest.raises(InvalidCombination, match=f"{REFUSED[name]}.*leave out"):
            run(build(name), tmp_path, SEVEN, silos=LABS)
        return
    _, labs = run(build(name), tmp_path / "labs", SEVEN, silos=LABS)
    _, alone = run(build(name), tmp_path / "alone", SEVEN, solver="sequential")
    assert {row["client"] for row in table(tmp_path / "labs", "turns.csv")} == set(LABS.labs)
    if name in COUNTED:
        return
    for one, other in zip(trees(labs.server), trees(alone.server), strict=True):
        assert torch.allclose(one.flat, other.flat, atol=1e-6)
    assert set(labs.clients) == {p for p, own in alone.clients.items() if fields(own)}
    for person in labs.clients:
        pairs = zip(trees(labs.clients[person]), trees(alone.clients[person]), strict=True)
        assert all(torch.allclose(a.flat, b.flat, atol=1e-6) for a, b in pairs)


@pytest.mark.parametrize("name", ["fedavg", "fedcpf"])
def test_bits_do_not_depend_on_workers_bytes_or_a_kill(name, tmp_path):
    prints = {
        run(build(name), tmp_path / how, SEVEN, silos=LABS, **plan)[1].fingerprint
        for how, plan in {"one": {}, "two": {"workers": 2}, "bytes": {"engine": "bytes"}}.items()
    }
    with dying_in(2):
        run(build(name), tmp_path / "killed", SEVEN, silos=LABS)
    prints.add(run(build(name), tmp_path / "killed", SEVEN, silos=LABS)[1].fingerprint)
    assert len(prints) == 1


@pytest.mark.parametrize("privacy", [Privacy(), SHARES], ids=["plain", "shares"])
def test_the_average_of_masks_counts_people_entry_by_entry(privacy, tmp_path, monkeypatch):
    """Five entries; who shares what, and changes by how much, is made up.

    north: p00 shares all but the second and sends 1, p04 shares the first and sends 4; south sends
    2 of the first two by each of its three; west sends 8 of the last by one of its two.
    Means: (1 + 4 + 3 * 2) / 5 = 2.2, 3 * 2 / 3 = 2, 1, 1, (1 + 8) / 2 = 4.5; under secure sums
    entries of fewer than three labs stay as they are: all of them, though three people of south
    share the second.
    """
    share = {"p00": "10111", "p04": "10000", "p03": "00001", "p06": "00000"}
    value = {"p00": 1.0, "p04": 4.0, "p03": 8.0, "p06": 3.0}

    def answered(task, sealed):
        model = task.message["model"]
        bits = torch.tensor([c == "1" for c in share.get(task.client, "11000")])
        weight = model.like(bits.to(model.flat.dtype))
        ones = model.like(torch.full_like(model.flat, value.get(task.client, 2.0)))
        return replace(seal(reply(model=ones, weight=weight), 0), metrics=sealed.metrics)

    watch_turns(monkeypatch, answered)
    _, done = run(FedCPF(), tmp_path, SEVEN, rounds=1, silos=LABS, privacy=privacy)
    moved = (done.server.model - TASK.init()).flat
    want = [2.2, 2, 1, 1, 4.5] if privacy == Privacy() else [0.0] * 5
    assert torch.allclose(moved, torch.tensor(want), atol=1e-5)
    weights = sorted({row["weight"] for row in table(tmp_path, "turns.csv")})
    assert weights == (["1", "2", "3"] if privacy == Privacy() else [""])


@pytest.mark.parametrize(("name", "privacy"), [("fedavg", "pairwise"), ("fedcpf", "additive")])
def test_secure_sums_over_labs_are_the_protocols_own_bits(name, privacy, tmp_path):
    privacy = replace(SHARES, aggregation=SecureAggregationConfig(privacy))
    plan = {"silos": LABS, "privacy": privacy, "rounds": 2}
    _, here = run(build(name), tmp_path / "here", SEVEN, **plan)
    _, there = run(build(name), tmp_path / "there", SEVEN, engine="bytes", **plan)
    assert there.fingerprint == here.fingerprint
    _, plain = run(build(name), tmp_path / "plain", SEVEN, silos=LABS, rounds=2)
    if name == "fedavg":
        assert torch.allclose(here.server.model.flat, plain.server.model.flat, atol=1e-6)
    told = {
        (row["examples"], row["steps"], row["weight"])
        for row in table(tmp_path / "here", "turns.csv")
    }
    assert told == {("0", "0", "")}


def test_secure_sums_are_of_labs_and_never_of_two(tmp_path):
    two = Silos({"north": ("p00", "p01", "p02", "p03"), "south": ("p04", "p05", "p06")})
    privacy = Privacy(aggregation=SecureAggregationConfig())
    with pytest.raises(ConfigError, match="2 people are asked at once, and a sum is of at least 3"):
        run(FedAvg(), tmp_path, SEVEN, silos=two, privacy=privacy)


def test_a_reply_that_cannot_count_is_left_out_inside_the_lab(tmp_path, monkeypatch):
    """As if the person were silent; the lab's own folder says so, and its reply does not."""

    def broken(task, sealed):
        if task.client == "p02":
            tree = sealed.trees["model"]
            bad = tree.total.like(tree.total.flat * float("nan"))
            return replace(sealed, trees={"model": replace(tree, total=bad)})
        return None

    watch_turns(monkeypatch, broken)
    folder, _ = run(build("fedcpf"), tmp_path, SEVEN, rounds=1, silos=LABS)
    assert {row["status"] for row in table(tmp_path, "turns.csv")} == {"ok"}
    with (folder.state / "left_out.seed0.csv").open() as file:
        told = list(csv.reader(file))
    assert told == [["south", "0", "p02", "finite: 'model' holds NaN or infinity"]]


def test_a_lab_of_which_nobody_counts_is_quarantined(tmp_path, monkeypatch):
    def broken(task, sealed):
        if task.client in LABS.labs["west"]:
            tree = sealed.trees["model"]
            return replace(sealed, trees={"other": tree})
        return None

    watch_turns(monkeypatch, broken)
    run(build("fedavg"), tmp_path, SEVEN, rounds=1, silos=LABS)
    status = {row["client"]: row["status"] for row in table(tmp_path, "turns.csv")}
    assert status.pop("west").startswith("quarantined: of nobody in it a reply counts, as of the")
    assert set(status.values()) == {"ok"}


def test_a_labs_file_of_states_holds_its_own_people_alone(tmp_path):
    _, done = run(build("fedcpf"), tmp_path, SEVEN, rounds=1, silos=LABS)
    index: Any = done.clients
    kept = index.store.read(index.filed["south"].file)
    assert sorted(kept.state.people) == ["p01", "p02", "p05"]
    assert isinstance(kept.state.people["p01"].params, Params)


EXPERIMENT = {
    "task": {"name": "toy"},
    "model": {"name": "linear", "inputs": 4},
    "federation": {"name": "toy", "people": 7},
    "method": {"name": "fedcpf", "rate": 0.4},
    "run": {"rounds": 2},
    "silos": {lab: list(people) for lab, people in LABS.labs.items()},
}


def test_a_finished_run_has_every_persons_model_and_scores(tmp_path):
    start(check(EXPERIMENT), tmp_path / "run")
    assert {row["person"] for row in table(tmp_path / "run", "people.csv")} == set(SEVEN.clients)
    saved = read_run(tmp_path / "run")
    models = {person: saved.model(person).flat for person in SEVEN.clients}
    assert not torch.equal(models["p01"], models["p02"])
    assert verify(tmp_path / "run") == [(0, saved.fingerprint)]


def test_labs_from_python_are_written_into_the_runs_config(tmp_path):
    plan = Plan(rounds=2, workers=1, silos=LABS)
    people = People(people=7)
    made = vg.train(build("fedcpf"), TASK, people, plan=plan, out=tmp_path / "a", progress=False)
    start(load(tmp_path / "a" / "config.toml"), tmp_path / "b")
    assert vg.open_run(tmp_path / "b").fingerprint == made.fingerprint


@pytest.mark.parametrize(
    ("labs", "why"),
    [
        ({"north": [], "south": ["p00"]}, "lab 'north' has nobody in it"),
        ({"north": ["p00"], "south": ["p00", "p01"]}, "'p00' is in two labs"),
        ({"p00": ["p00"], "south": ["p01"]}, "is there twice"),
        ({"a/b": ["p00"]}, "would lead to another folder"),
    ],
)
def test_labs_that_cannot_be_are_refused(labs, why):
    with pytest.raises(ConfigError, match=why):
        check({**EXPERIMENT, "silos": labs})


@pytest.mark.parametrize(
    ("labs", "why"),
    [
        ({"north": ["p00", "anna"]}, "nobody is called 'anna' in the data; there are 'p00', 'p01'"),
        ({"north": ["p00", "p01"]}, "'p02', 'p03', 'p04', 'p05', 'p06' of the data are in no lab"),
    ],
)
def test_everybody_of_the_data_is_in_a_lab_and_nobody_else(labs, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        start(check({**EXPERIMENT, "silos": labs}), tmp_path / "run")


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"wire": Compression(codec="int8")}, "a lab adds up replies as they are"),
        ({"solver": "stacked"}, "one after the other, on this machine; leave out run.solver"),
    ],
)
def test_settings_that_labs_do_not_go_with_are_refused(plan, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        run(FedAvg(), tmp_path, SEVEN, silos=LABS, **plan)


def test_labs_without_data_have_as_many_samples_as_their_people():
    grouped = LABS.grouped(SEVEN)
    each = {person: len(splits.train) for person, splits in SEVEN.people.items()}
    assert {lab: len(splits.train) for lab, splits in grouped.people.items()} == {
        lab: sum(each[person] for person in people) for lab, people in LABS.labs.items()
    }
    assert isinstance(grouped.people["north"].train, Samples)
