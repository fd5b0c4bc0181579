"""A server and three clients as processes on this machine, over TLS with node keys."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
import tomli_w

from vergence.app.config import check
from vergence.app.run import start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a busy machine takes minutes to start ten processes
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower: extra 'deploy'"),
]
TABLE = {
    "task": {"name": "gaze_angle"},
    "model": {"name": "small_eye"},
    "federation": {"name": "eye_synthetic", "people": 3, "samples": 60, "size": "9x15"},
    "methods": ["fedavg", {"name": "fedcpf", "rate": 0.2}],
    "local": {"epochs": 1, "batch": 16, "lr": 0.01},
    "run": {"rounds": 2, "seeds": [0], "evaluate_every": 0, "solver": "sequential"},
}
CLIENTS = ("p00", "p01", "p02")
COMMAND = "import sys; from vergence.app.deploy_commands import deploy; deploy(sys.argv[1:])"


class Deployment:
    """Folders and commands; every process is ended with the test."""

    def __init__(self, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder, self.started = folder, []
        (folder / "exp.toml").write_text(tomli_w.dumps(TABLE))
        self.run("init", folder / "exp.toml", "--clients", ",".join(CLIENTS), "--address",
                 f"127.0.0.1:{self.port}", "--out", folder / "out").wait(120)  # fmt: skip

    @property
    def server(self):
        return self.folder / "out" / "server"

    def client(self, name):
        return self.folder / "out" / "clients" / name

    def run(self, *arguments):
        with (self.folder / "said.txt").open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *map(str, arguments)],
                stdout=said, stderr=said, stdin=subprocess.DEVNULL, cwd=self.folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        self.started.append(process)
        return process

    def events(self, folder=None):
        file = (folder or self.server) / "events.log"
        return file.read_text() if file.exists() else ""

    def until(self, words, seconds, folder=None):
        end = time.monotonic() + seconds
        while words not in self.events(folder):
            assert time.monotonic() < end, self.events() + (self.folder / "said.txt").read_text()
            time.sleep(0.2)

    def fingerprints(self):
        return {
            file.parent.name: json.loads(file.read_text())["fingerprint"]
            for file in sorted((self.server / "run").glob("*/results.json"))
        }

    def leftovers(self):
        """Return processes that still work for this deployment."""
        found = []
        for process in os.listdir("/proc"):  # noqa: PTH208
            try:
                with open(f"/proc/{process}/cmdline", "rb") as file:  # noqa: PTH123
                    words = file.read().decode(errors="replace")
            except OSError:
                continue
            if str(self.folder) in words:
                found.append(words.replace("\0", " "))
        return found


@pytest.fixture
def deployment(tmp_path):
    made = Deployment(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in made.started:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def test_the_same_bits_as_the_simulator_over_tls_with_node_keys(deployment, tmp_path):
    start(check(TABLE), tmp_path / "here")
    served = deployment.run("serve", deployment.server)
    joined = [deployment.run("join", deployment.client(name)) for name in CLIENTS]
    assert served.wait(500) == 0, deployment.events()
    assert [process.wait(30) for process in joined] == [0, 0, 0]
    here = {label: json.loads((tmp_path / "here" / label / "results.json").read_text())
            for label in ("fedavg", "fedcpf")}  # fmt: skip
    assert deployment.fingerprints() == {k: v["fingerprint"] for k, v in here.items()}
    told = json.loads((deployment.server / "run" / "fedavg" / "provenance.json").read_text())
    assert told["deployment"]["tls"]
    assert not deployment.leftovers()


def test_kill_9_of_server_and_client_changes_no_bit(deployment, tmp_path):
    """The server is killed in a round and goes on; a client is killed and comes back."""
    table = {**TABLE, "methods": [TABLE["methods"][1]]}
    start(check(table), tmp_path / "here")
    want = json.loads((tmp_path / "here" / "fedcpf" / "results.json").read_text())["fingerprint"]
    for folder in (deployment.server, *map(deployment.client, CLIENTS)):
        (folder / "experiment.toml").write_text(tomli_w.dumps(table))
    served = deployment.run("serve", deployment.server)
    joined = [deployment.run("join", deployment.client(name)) for name in CLIENTS]
    deployment.until("round 1 of 2", 300)
    served.kill()
    served.wait()
    joined[1].kill()
    joined[1].wait()
    served = deployment.run("serve", deployment.server)
    joined[1] = deployment.run("join", deployment.client("p01"))
    assert served.wait(500) == 0, deployment.events()
    assert [process.wait(30) for process in joined] == [0, 0, 0]
    assert deployment.fingerprints() == {"fedcpf": want}
    assert not deployment.leftovers()
