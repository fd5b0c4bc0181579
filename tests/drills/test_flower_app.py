"""The app that `deploy app` writes: on Flower's own programs, and what it refuses."""

import json
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from benchmarks.stock_flower import stock_flower, until
from tests.drills.deployment import CLIENTS, TABLE, fingerprints, simulated
from tests.drills.test_teacher import TEACHER
from tests.lines import Wire, greet
from vergence.cli.deploy import deploy
from vergence.deployment import flower_app
from vergence.deployment.client_registry import request
from vergence.deployment.folders import EVENTS
from vergence.deployment.protocol import unframed
from vergence.deployment.transport.flower import UNAVAILABLE
from vergence.engine.compatibility import AMONG_SETTINGS, WITH_METHODS
from vergence.errors import ConfigError, StateError
from vergence.experiment.schema import check, merge

FLOWER = pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'")
METHODS = [*TABLE["methods"], {"name": "splitfed", "ahead": 3}]
THREE = {**TABLE, "methods": METHODS}


def written(table, folder, clients=()):
    """Write an app; return its folder and the settings that Flower hands to its ends."""
    flower_app.write_app(check(dict(table)), clients, folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    return folder, project["tool"]["flwr"]["app"]["config"]


class InProcess(Wire):
    """Stands for Flower: the nodes are in this process, registered under these names."""

    def __init__(self, app, config, folder, names=CLIENTS, **said):
        self.app, self.config, self.folder = app / flower_app.PACKAGE, config, folder
        self.names, self.said = dict(enumerate(names, 1)), said

    def nodes(self):
        return dict.fromkeys(self.names, "now")

    def name(self, node):
        return self.names[node]

    def answer(self, node, data):
        name = self.names[node]
        config = {"client": name, "folder": str(self.folder / name), **self.said}
        context = SimpleNamespace(node_config=config, run_config=self.config)
        return flower_app.answer(self.app / "experiment.toml", data, context)

    def lead(self):
        """Run the server's end; return its folder."""
        results = str(self.folder / "results")
        context = SimpleNamespace(run_config={**self.config, "results": results})
        flower_app.lead(self.app / "experiment.toml", self, context)
        return self.folder / "results" / self.config["run"]


@pytest.fixture
def app(tmp_path):
    return written(TABLE, tmp_path / "app")


def test_an_app_is_a_few_files_that_a_screen_explains(app):
    folder, config = app
    package = folder / flower_app.PACKAGE
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {
        "README.md",
        "pyproject.toml",
        "__init__.py",
        "server_app.py",
        "client_app.py",
        "experiment.toml",
    }
    assert config["clients"] == "p00,p01,p02"
    assert check(tomllib.loads((package / "experiment.toml").read_text())).table == TABLE
    for end in ("server", "client"):
        assert len((package / f"{end}_app.py").read_text().splitlines()) < 10
    assert len((folder / "README.md").read_text().splitlines()) <= 50
    assert written(TABLE, folder.parent / "again")[1]["run"] != config["run"]


def test_the_command_writes_it_for_the_clients_that_are_named(tmp_path, capsys):
    experiment, out = tmp_path / "e.toml", tmp_path / "out"
    experiment.write_bytes((flower_app_of(tmp_path) / "experiment.toml").read_bytes())
    words = [str(experiment), "--clients", "p02, p00", "--out", str(out)]
    deploy(["app", *words, "--set", "run.rounds=7"], result_action="return_value")
    assert "README.md" in capsys.readouterr().out
    config = tomllib.loads((out / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["clients"] == "p02,p00"
    assert "rounds = 7" in (out / flower_app.PACKAGE / "experiment.toml").read_text()
    with pytest.raises(StateError, match="not empty"):
        written(TABLE, out)


def flower_app_of(folder):
    """Write an app beside; return its package."""
    return written(TABLE, folder / "beside")[0] / flower_app.PACKAGE


ENDS = """
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from pathlib import Path
from vergence_app import client_app, server_app

assert load_and_validate(Path("pyproject.toml"))[1] == []
assert build_fab_from_disk(Path())
assert isinstance(client_app.app, ClientApp)
assert isinstance(server_app.app, ServerApp)
"""


def test_a_node_whose_key_has_no_name_is_refused(app, tmp_path):
    """Else whoever reaches the link could take part as anybody."""
    folder, config = app
    made = InProcess(folder, config, tmp_path)
    made.name = lambda _: ""
    path = tmp_path / "server"
    path.mkdir()
    flower_app.write_settings(path, flower_app.ServerSide(CLIENTS, "", "x"))
    experiment = folder / flower_app.PACKAGE / "experiment.toml"
    (path / "experiment.toml").write_bytes(experiment.read_bytes())
    server = flower_app.AppServer(path, made)
    greet(server.registry, 1)
    assert not server.registry.connections
    assert "register it with `--name p00`" in (path / EVENTS).read_text()


@FLOWER
def test_flower_takes_it_and_finds_both_ends(app):
    subprocess.run([sys.executable, "-c", ENDS], cwd=app[0], check=True, timeout=120)


@FLOWER
def test_an_error_of_flower_has_the_number_that_is_expected():
    code = "from flwr.common.constant import ErrorCode as e; print(e.NODE_UNAVAILABLE)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert int(done.stdout) == UNAVAILABLE


def test_an_app_uses_nothing_that_replaces_parts_of_flower():
    code = (
        "import sys, vergence.deployment.flower_app as a; a.server_app(None), a.client_app(None)\n"
        "print(*(m for m in sys.modules if m.startswith('vergence.deployment.transport.')))"
    )
    code = (
        code if find_spec("flwr") else code.replace("; a.server_app(None), a.client_app(None)", "")
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["vergence.deployment.transport.flower"]


def test_both_ends_give_the_bits_of_the_simulator(tmp_path):
    app, config = written(THREE, tmp_path / "app")
    made = InProcess(app, config, tmp_path)
    folder = made.lead()
    assert fingerprints(folder / "run") == simulated(THREE, tmp_path / "here")
    told = json.loads((folder / "run" / "fedavg" / "provenance.json").read_text())["deployment"]
    assert told["engine"].startswith("stock flower ")
    assert not told["signed answers"]
    assert not (folder / "keys").exists()
    states = list((tmp_path / "p00" / "state" / config["run"] / "fedcpf").rglob("*.safetensors"))
    assert states
    assert made.lead() == folder  # a run that is done is done


REFUSED = {
    "secure sums": {"aggregation": {"name": "additive"}},
    "DP for people": {"user": {"noise": 1.0}},
    "DP-SGD": {"solver": {"noise": 1.0}},
    "a private choice of masks": {"mask": {"epsilon": 8.0, "of": "entry"}},
    "a defence at the cut": {"cut": {"name": "bottleneck", "noise": 1.0}},
    "SplitGuard": {"split_guard": {"every": 3}},
}
SUITS = {"a private choice of masks": "fedcpf", "a defence at the cut": "splitfed"}
SUITS["SplitGuard"] = "splitfed"


@pytest.mark.parametrize("setting", REFUSED)
def test_protections_that_rest_on_more_are_refused_by_name(setting, tmp_path):
    privacy = {"privacy": REFUSED[setting]}
    method = {"name": SUITS.get(setting, "fedavg")}
    plain = {key: value for key, value in TABLE.items() if key != "methods"} | {"method": method}
    experiment = check(merge(plain, privacy))
    with pytest.raises(ConfigError) as refused:
        flower_app.write_app(experiment, CLIENTS, tmp_path / "app")
    said = str(refused.value)
    assert said.startswith(f"privacy.{next(iter(REFUSED[setting]))}: ")
    assert "init`" in said
    assert "\n" not in said
    assert not (tmp_path / "app").exists()


def test_every_row_about_an_app_is_tried():
    rows = {row.one for row in AMONG_SETTINGS if row.other == "a stock Flower app"}
    assert rows == set(REFUSED)
    assert [r.other for r in WITH_METHODS if r.one == "a stock Flower app"] == [
        "answers of a teacher"
    ]


def test_a_teacher_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^PeZsl asks a teacher.*or simulate$"):
        flower_app.write_app(check(TEACHER), ["owner"], tmp_path / "app")


def test_what_no_deployment_has_is_refused_too(tmp_path):
    late = check({**TABLE, "delivery": {"name": "quorum", "replies": 2}})
    with pytest.raises(ConfigError, match="delivery"):
        flower_app.write_app(late, CLIENTS, tmp_path / "app")


def error_of(made, node=1):
    """Error in the answer to a greeting."""
    return unframed(unframed(made.answer(node, request("hello", {})))[1])[0]["error"]


def test_an_experiment_that_was_changed_by_hand_is_refused_at_both_ends(app, tmp_path):
    folder, config = app
    with (folder / flower_app.PACKAGE / "experiment.toml").open("a") as file:
        file.write("\n[privacy.user]\nnoise = 1.0\n")
    made = InProcess(folder, config, tmp_path)
    assert error_of(made).startswith("privacy.user: ")
    with pytest.raises(ConfigError, match=r"privacy\.user"):
        made.lead()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"client": ""}, "--node-config 'client=\"NAME\"'"),
        ({"client": "../p01"}, "letters, digits"),
        ({"person": "p07"}, "hold nobody named 'p07'"),
    ],
)
def test_a_node_that_cannot_begin_says_why(said, why, app, tmp_path):
    assert why in error_of(InProcess(*app, tmp_path, **said))


def test_a_run_of_another_name_than_a_folders_is_refused(app, tmp_path):
    folder, config = app
    assert "run must be letters" in error_of(InProcess(folder, {**config, "run": "../a"}, tmp_path))


def test_a_node_under_another_name_than_it_was_registered_with_is_refused(app, tmp_path):
    """Flower proves which key a node has; its operator says whose key that is."""
    folder, config = app
    made = InProcess(folder, config, tmp_path, client="p01")
    path = tmp_path / "server"
    path.mkdir()
    flower_app.write_settings(path, flower_app.ServerSide(CLIENTS, "", "x"))
    experiment = folder / flower_app.PACKAGE / "experiment.toml"
    (path / "experiment.toml").write_bytes(experiment.read_bytes())
    server = flower_app.AppServer(path, made)
    for node in (1, 2):
        greet(server.registry, node)
    assert set(server.registry.connections) == {"p01"}
    assert server.registry.connections["p01"].node == 2
    assert "its node is registered as 'p00'" in (path / EVENTS).read_text()


@FLOWER
@pytest.mark.slow
@pytest.mark.timeout(1800)  # Flower starts an interpreter for every message
def test_the_bits_of_the_simulator_on_flowers_own_programs(tmp_path):
    """Over TLS, with registered keys; the run is stopped after a method, and started again."""
    once = {**THREE, "run": {**THREE["run"], "rounds": 1}}
    app, config = written(once, tmp_path / "app")
    here = simulated(once, tmp_path / "here")
    with stock_flower(tmp_path / "flower", CLIENTS) as made:
        folder = made.folder / config["results"] / config["run"]
        first = made.run(app)
        until(lambda: "round 1 of 1" in events(folder), 400)
        made.flwr("stop", first, "lab")
        again = made.run(app)
        until(lambda: made.state(again).startswith("finished"), 1300)
        assert made.state(again) == "finished:completed", events(folder)
        assert events(folder).count("round 1 of 1") == 3  # none of them twice
    assert fingerprints(folder / "run") == here
    assert set(here) == {"fedavg", "fedcpf", "splitfed"}


def events(folder):
    """Return a server's events."""
    return (folder / EVENTS).read_text() if (folder / EVENTS).exists() else ""
