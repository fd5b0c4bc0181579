"""Sums on shares from folders: aggregators as ends of their own, in a process and over Flower."""

import json
import shutil
import stat
from dataclasses import replace
from importlib.util import find_spec
from io import StringIO

import pytest
from rich.console import Console

from tests import lines
from tests.drills.deployment import CLIENTS, TABLE, deployed, simulated
from vergence.deployment import folder_setup, launcher
from vergence.deployment.aggregator_node import AggregatorNode
from vergence.deployment.client_app import AnsweringClient
from vergence.deployment.folders import EXPERIMENT, NODE, ClientSide, ServerSide, settings
from vergence.deployment.keys import PARTIES, is_node_key, make_node_key, party_identity
from vergence.deployment.remote_clients import ClientLost, remote_people, remote_pool
from vergence.engine.round_loop import run_rounds
from vergence.engine.secure_sums import SumQuestion
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError, StateError
from vergence.experiment.schema import check
from vergence.privacy.secure_aggregation.additive import Aggregator
from vergence.privacy.secure_aggregation.additive_messages import AggregatorParts, SharePart
from vergence.privacy.secure_aggregation.session import Invitation
from vergence.results.write import write_toml

NAMES = ("north", "south", "west")
PRIVACY = {"aggregation": {"name": "additive", "aggregators": list(NAMES)}}
SHARES = {**TABLE, "privacy": PRIVACY}
FEDCPF = {
    **SHARES,
    "methods": TABLE["methods"][1:],
    "federation": {**TABLE["federation"], "samples": 40},
}


@pytest.fixture(autouse=True)
def without_flower(request, monkeypatch):
    if "slow" not in request.keywords:
        monkeypatch.setattr(launcher, "check_flower", lambda: None)


def made(tmp_path, table=SHARES, **more):
    folder_setup.init(check(table), CLIENTS, "127.0.0.1:8000", tmp_path / "out", **more)
    return tmp_path / "out"


def ends(deployment):
    """Return the folders of all clients and aggregators."""
    aggregators = deployment.folder / "out" / "aggregators"
    return [*map(deployment.client, CLIENTS), *(aggregators / name for name in NAMES)]


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_init_makes_a_folder_and_a_key_for_each_aggregator(tmp_path):
    out = made(tmp_path)
    theirs = {f"keys/{name}.pub" for name in CLIENTS}
    theirs |= {f"parties/{name}.pub" for name in NAMES}
    common = {"ca.crt", "deploy.toml", "experiment.toml", "node"}
    for folder in (out / "clients" / "p00", *(out / "aggregators" / name for name in NAMES)):
        assert files(folder) == theirs | common
        assert stat.S_IMODE((folder / "node").stat().st_mode) == 0o600
    assert {f"keys/{name}.pub" for name in (*CLIENTS, *NAMES)} < files(out / "server")
    assert "node" not in files(out / "server")  # it could stand for a contributor, or deal tables
    side = settings(out / "aggregators" / "north", ClientSide)
    assert (side.client, side.adds, side.data) == ("north", True, None)
    assert "vergence deploy join NAME" in (out / "README.txt").read_text()
    assert "can take their place" in (out / "README.txt").read_text()
    for folder in (out / "server", out / "clients" / "p00", out / "aggregators" / "north"):
        launcher.status(folder, said := Console(file=StringIO()))
        assert "not running" in said.file.getvalue()


def test_aggregators_may_make_their_own_keys(tmp_path):
    keys = tmp_path / "keys"
    for name in (*CLIENTS, *NAMES):
        folder_setup.make_key(tmp_path / name)
        shutil.copytree(tmp_path / name / "public", keys, dirs_exist_ok=True)
    out = made(tmp_path, keys=keys)
    for folder in (out / "clients", out / "aggregators"):
        assert not [file for file in files(folder) if file.endswith("node")]
    assert is_node_key(out / "clients" / "p00" / PARTIES / "north.pub")
    (keys / "south.pub").unlink()
    with pytest.raises(ConfigError, match="no usable key of 'south'"):
        folder_setup.init(check(SHARES), CLIENTS, "h:1", tmp_path / "no", keys=keys)


@pytest.mark.parametrize(
    ("clients", "names", "why"),
    [
        (("a", "b", "north"), NAMES, "'north' would stand for two ends"),
        (("a", "b", "server"), NAMES, "'server' would stand for two ends"),
        (CLIENTS, ("north", "main"), "'main' would stand for two ends"),
        (CLIENTS, ("north", "so uth"), "must be letters, digits"),
        (CLIENTS[:2], NAMES, "a sum is of at least 3"),
    ],
)
def test_names_that_stand_for_two_ends_are_refused(clients, names, why, tmp_path):
    privacy = {"aggregation": {"name": "additive", "aggregators": list(names)}}
    with pytest.raises(ConfigError, match=why):
        folder_setup.init(check({**SHARES, "privacy": privacy}), clients, "h:1", tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Line(lines.Line):
    """Carries requests between ends of this process; `asked` tells who was asked what."""

    def __init__(self, out, label):
        folders = {name: out / "clients" / name for name in CLIENTS}
        self.ends = {n: AnsweringClient(f, settings(f, ClientSide)) for n, f in folders.items()}
        for name in NAMES:
            folder = out / "aggregators" / name
            self.ends[name] = AggregatorNode(folder, settings(folder, ClientSide))
        run = settings(out / "server", ServerSide).run
        self.note = {"run": run, "label": label, "seed": 0}
        self.server = out / "server"
        self.why = {}

    def ask(self, name, request):
        try:
            return self.ends[name].work({**self.note, "kind": "request"}, request)
        except StateError as error:
            self.why[name] = str(error)
            raise ClientLost(str(error)) from None

    def run_rounds(self, path):
        end = self.ends[CLIENTS[0]]
        counts = {name: self.ends[name].samples for name in CLIENTS}
        folder = RunDirectory(path, {}, elsewhere=True)
        folder.open()
        identity = party_identity(self.server, self.note)
        experiment = end.experiment
        return run_rounds(
            experiment.methods[self.note["label"]],
            experiment.task(0),
            federation=remote_people("eye_synthetic", counts),
            plan=experiment.plan,
            folder=folder,
            pool_factory=remote_pool(self, identity=identity),
        ).fingerprint


@pytest.mark.slow
def test_folders_give_the_simulators_bits(tmp_path):
    here = simulated(FEDCPF, tmp_path / "here")["fedcpf"]["0"]
    out = made(tmp_path, FEDCPF)
    assert Line(out, "fedcpf").run_rounds(tmp_path / "run") == here


def test_a_client_refuses_an_aggregator_whose_key_is_not_in_its_folder(tmp_path):
    """The server's own key pair in the place of one aggregator's, everywhere but at the clients."""
    out = made(tmp_path, FEDCPF)
    south, public = out / "aggregators" / "south", tmp_path / "other.pub"
    make_node_key(south / NODE, public)
    shutil.copyfile(public, out / "server" / "keys" / "south.pub")
    for name in NAMES:
        shutil.copyfile(public, out / "aggregators" / name / PARTIES / "south.pub")
    line = Line(out, "fedcpf")
    line.run_rounds(tmp_path / "run")
    assert set(line.why) == set(CLIENTS)
    assert all("signature: this is not from 'south'" in why for why in line.why.values())


def test_an_aggregator_takes_part_in_runs_of_its_experiment_alone(tmp_path):
    out = made(tmp_path, FEDCPF)
    folder = out / "aggregators" / "north"
    end = AggregatorNode(folder, settings(folder, ClientSide))
    note = {"run": end.side.run, "label": "fedcpf", "seed": 0, "kind": "request"}
    with pytest.raises(StateError, match="no method 'fedavg' with seed 0"):
        end.work({**note, "label": "fedavg"}, b"")
    with pytest.raises(StateError, match="unknown kind 'closed'"):
        end.work({**note, "kind": "closed"}, b"")
    with pytest.raises(StateError, match="not a readable"):
        end.work(note, b"nothing")
    east = AggregatorNode(folder, replace(end.side, client="east"))
    with pytest.raises(StateError, match="'east' is no aggregator of this experiment"):
        east.work(note, b"")


def test_nobody_but_a_client_may_contribute(tmp_path):
    """A server that filled a sum up to `min_contributors` would see the replies of too few."""
    out = made(tmp_path)
    for folder in (out / "aggregators" / "north", out / "clients" / "p00"):
        register = party_identity(folder, {"run": "r", "label": "fedavg", "seed": 0}).register
        assert set(register) == {*CLIENTS, *NAMES}
    line = Line(out, "fedavg")
    adding = line.ends["north"].aggregator(line.note)
    question = SumQuestion("1.train", b"", 4, 0, 0)
    terms = adding.sums.terms_of(question, "r", 1, 3, adding.sums.policy.cipher)
    end = Aggregator("north", terms, adding.identity.sign, adding.identity.register, adding.spent)
    parts = tuple(SharePart(terms.digest, name, "north", b"") for name in ("server", *NAMES))
    end.answer(Invitation(terms.digest))
    assert not end.answer(AggregatorParts(terms.digest, parts)).names
    assert end.refused["server"] == "signature: nobody knows 'server'"
    assert all("must not" in end.refused[name] for name in NAMES)


def test_masks_that_differ_need_an_aggregator_to_deal(tmp_path):
    """With two the server would: one that lies opens entries that one person alone shares."""
    privacy = {"aggregation": {"name": "additive", "aggregators": list(NAMES[:2])}}
    with pytest.raises(ConfigError, match=r"'fedcpf'; with 2 aggregators .*name a third"):
        made(tmp_path, {**FEDCPF, "privacy": privacy})
    out = made(tmp_path, {**SHARES, "methods": ["fedavg"], "privacy": privacy})
    for folder in (out / "aggregators" / "north", out / "clients" / "p00"):
        write_toml(folder / EXPERIMENT, check({**FEDCPF, "privacy": privacy}).table)
        with pytest.raises(ConfigError, match="name a third aggregator"):
            AggregatorNode(folder, settings(folder, ClientSide))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"run": "anothername"}, "alone, not in 'anothername': a new run wants new folders"),
        ({"seed": 0.0}, "no method 'fedavg' with seed 0.0"),
        ({"seed": False}, "no method 'fedavg' with seed False"),
    ],
)
def test_no_end_takes_part_in_a_run_that_the_server_made_up(changed, why, tmp_path):
    """Else there are new books, and two sums of the same replies over different people."""
    line = Line(made(tmp_path), "fedavg")
    line.note |= changed
    line.run_rounds(tmp_path / "run")
    assert set(line.why) == set(CLIENTS)
    for name in NAMES:
        with pytest.raises(ClientLost):
            line.ask(name, b"")
    assert all(why in said for said in line.why.values())
    assert not [*(tmp_path / "out").rglob("state/*/*")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'")
def test_a_deployment_gives_the_simulators_bits(tmp_path):
    table = {**FEDCPF, "run": {**TABLE["run"], "rounds": 2}}
    with deployed(tmp_path, table) as made:
        joined = [made.run("join", folder) for folder in ends(made)]
        assert made.serve().wait(500) == 0, made.events()
        assert [process.wait(30) for process in joined] == [0] * 6
        assert made.fingerprints() == simulated(table, tmp_path / "here")
        told = json.loads((made.server / "run" / "fedcpf" / "provenance.json").read_text())
        assert told["deployment"]["aggregators"] == list(NAMES)
