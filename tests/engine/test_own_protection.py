"""A protection of somebody's own: one file, applied and told wherever a built-in one is."""

import json
import re
from dataclasses import replace

import pytest

from tests.cli.commands import vergence, write
from tests.deployment.test_remote_clients import COUNTS, PEOPLE, Loop
from tests.engine.toys import STAMP, run_toy
from vergence.core.randomness import RandomStream
from vergence.deployment.client_node import ClientNode
from vergence.deployment.remote_clients import remote_people, remote_pool
from vergence.engine.client_executor import ClientExecutor, LocalData
from vergence.engine.client_runner import ClientRunner
from vergence.engine.protections.setup import client_hooks
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.client_states import ClientStateStore
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.experiment.privacy.schema import build_privacy
from vergence.experiment.privacy.spent import statements
from vergence.experiment.trust import trust_in_own_file, under
from vergence.methods.fedavg import FedAvg
from vergence.models.linear import Linear
from vergence.privacy.config import Privacy, SecureAggregationConfig
from vergence.privacy.hooks import ClientHooks, ServerHooks, Statement
from vergence.privacy.robust.median import Median
from vergence.reports.ethics.wording import PrivacyMeans
from vergence.tasks.toy import ToyTask

ROUNDING = '''
"""Updates rounded before they leave, and a count of the sums that were made of them."""

from dataclasses import dataclass, replace

import torch

from vergence.privacy.hooks import ClientHooks, Protection, ServerHooks


@dataclass(frozen=True)
class Rounded(ClientHooks):
    digits: int

    def outgoing(self, reply, turn):
        def short(tree):
            return tree.like(torch.round(tree.flat, decimals=self.digits))

        return replace(reply, trees={name: short(tree) for name, tree in reply.trees.items()})


@dataclass(frozen=True)
class Counting(ServerHooks):
    path: object

    def release(self, whole, phase, number, asked):
        with self.path.open("a") as file:
            file.write(f"{phase} {asked}\\\\n")
        return whole


@dataclass(frozen=True)
class Rounding(Protection):
    digits: int = 1

    refuses = {"secure sums": "rounding after the words are packed changes nothing"}

    def client(self, run):
        return Rounded(self.digits)

    def server(self, run):
        return Counting(run.state / "sums.txt")

    def forecast(self, run):
        many = f"{self.digits} digits after the point"
        return [f"updates leave with {many} in all {run.rounds} rounds"]

    def spent(self, run):
        return {"sums": len((run.state / "sums.txt").read_text().splitlines())}
'''.replace("\\\\n", "\\n")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rounding.py"
    path.write_text(ROUNDING)
    return path


@pytest.fixture
def rounding(file):
    with under(trust_in_own_file()):
        return build_privacy({"own": [{"name": str(file), "digits": 1}]})


ENGINES = {
    "simulator": {},
    "bytes": {"engine": "bytes"},
    "two workers": {"workers": 2},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_it_holds_in_every_engine(engine, rounding, tmp_path):
    """Sums of updates of one digit; without it they have more. Once a round the server counts."""
    plain = run_toy(tmp_path / "plain", FedAvg())
    here = run_toy(tmp_path / "here", FedAvg(), privacy=rounding)
    there = run_toy(tmp_path / "there", FedAvg(), privacy=rounding, **ENGINES[engine])
    assert there.fingerprint == here.fingerprint != plain.fingerprint
    counted = (tmp_path / "there" / "state" / "sums.txt").read_text().split("\n")
    assert counted == ["0 3", "1 3", "2 3", "3 3", ""]


def test_the_server_hook_follows_a_robust_rule(rounding, tmp_path):
    """What a rule makes of replies is a sum like any other, and passes `release`."""
    run_toy(tmp_path, FedAvg(), people=5, rounds=2, privacy=replace(rounding, robust=Median()))
    assert (tmp_path / "state" / "sums.txt").read_text().split("\n") == ["0 5", "1 5", ""]


def test_it_holds_where_clients_are_elsewhere(rounding, tmp_path):
    """The bits of a deployment are those of the simulator: each client rounds by itself."""
    plan = {"rounds": 3, "evaluate_every": 0, "solver": "sequential", "privacy": rounding}
    here = run_toy(tmp_path / "here", FedAvg(), federation=PEOPLE, **plan).fingerprint

    class Rounding(Loop):
        def home(self, client):
            own, task, folder = PEOPLE.only((client,)), ToyTask(Linear(4)), self.folder / client
            folder.mkdir(parents=True, exist_ok=True)
            hooks = client_hooks(self.plan, self.method, task, own, folder)
            data = LocalData(own, own)
            worker = ClientExecutor(self.method, task, data, RandomStream("run", 0), hooks=hooks)
            runner = ClientRunner(worker, ClientStateStore(folder, 0, worker.records))
            return ClientNode(runner, client, plan=self.plan)

    line = Rounding(FedAvg(), tmp_path / "homes")
    line.plan = Plan(**plan)
    folder = RunDirectory(tmp_path / "server", STAMP, elsewhere=True)
    folder.open()
    pool, task = remote_pool(line), ToyTask(Linear(4))
    people = remote_people("toy", COUNTS)
    there = run_rounds(
        FedAvg(), task, federation=people, plan=line.plan, folder=folder, pool_factory=pool
    )
    assert there.fingerprint == here


def test_it_is_told_before_and_after(file, tmp_path):
    """By `explain`, the ethics page and results.json, in its own words and numbers."""
    config = write(
        tmp_path,
        f"""
        task = {{ name = "toy" }}
        model = {{ name = "linear" }}
        federation = {{ name = "toy", people = 3 }}
        method = "fedavg"
        privacy.own = [{{ name = "{file}", digits = 2 }}]
        run = {{ rounds = 3, seeds = [0], workers = 1 }}
        """,
    )
    said = "updates leave with 2 digits after the point in all 3 rounds"
    explained = vergence("explain", config, "--trust-code")
    assert said in re.sub(r"\s+", " ", explained.out)
    assert vergence("run", config, "--out", tmp_path / "out").code == 0
    told = json.loads((tmp_path / "out" / "results.json").read_text())["privacy"]
    assert told["own"] == {"Rounding": {"sums": 3}}
    assert vergence("privacy", "ethics", tmp_path / "out", "--trust-code").code == 0
    page = (tmp_path / "out" / "ethics.html").read_text()
    assert said.replace("updates", "Updates") in re.sub(r"\s+", " ", page)
    vergence("explain", config).complains(2, "--trust-code")


def test_it_is_refused_where_its_row_says_so(rounding):
    with pytest.raises(ConfigError, match=r"privacy\.own: rounding after the words are packed"):
        Plan(privacy=Privacy(own=rounding.own, aggregation=SecureAggregationConfig()))
    with pytest.raises(ConfigError, match=r"privacy\.own is known on this machine alone"):
        Plan(privacy=rounding, engine="ray")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ([{"name": "rounding"}], r"name a Python file or a class of yours.*got 'rounding'"),
        ([{"digits": 2}], "name a Python file"),
        ({"name": "rounding.py"}, "must be a list of tables"),
        ([3], "must be a table, got 3"),
    ],
)
def test_what_names_no_protection_is_refused(own, words):
    with under(trust_in_own_file()), pytest.raises(ConfigError, match=words):
        build_privacy({"own": own})


def test_it_may_not_look_at_single_replies(rounding, tmp_path):
    """Else a robust rule, secure sums and noise for people would be passed over without a word."""

    class Looking(ServerHooks):
        def looks_at(self, exposed):
            return True

    class LookingOn(type(rounding.own[0])):
        def server(self, run):
            return Looking()

    privacy = replace(rounding, own=(LookingOn(),))
    with pytest.raises(ConfigError, match=r"LookingOn looks at single replies.*privacy\.robust"):
        run_toy(tmp_path, FedAvg(), privacy=privacy)
    assert len((tmp_path / "turns.csv").read_text().splitlines()) == 1, "somebody was asked"


def test_what_it_says_of_who_sees_what_is_marked_and_replaces_nothing(rounding):
    """A page for a board must not say, in this software's name, what nobody has checked."""
    friend = "The server is a friend."

    class Friendly(type(rounding.own[0])):
        def statements(self, run):
            return [Statement("server", friend), Statement("participants", friend)]

    plan = Plan(privacy=replace(rounding, own=(Friendly(),)))
    said = statements(plan, FedAvg(), ToyTask(Linear(inputs=4)))
    marked = f"Friendly, which this software has not checked: {friend}"
    assert [one.text for one in said if friend in one.text] == [marked, marked]
    means = PrivacyMeans.__new__(PrivacyMeans)
    object.__setattr__(means, "statements", said)
    plain = ["The server is trusted with each person's update, and not to keep it."]
    assert means.sentences_or("server", plain) == [*plain, marked]


def test_an_option_that_it_has_not_is_refused(file):
    with (
        under(trust_in_own_file()),
        pytest.raises(ConfigError, match=r"unknown key 'digit'.*digits"),
    ):
        build_privacy({"own": [{"name": str(file), "digit": 2}]})


def test_hooks_that_change_answers_say_which():
    """A hook that is never asked would be a protection that is not there."""
    with pytest.raises(TypeError, match="Silent overrides answer"):

        class Silent(ClientHooks):
            def answer(self, ask, turn, then):
                return then(ask)
