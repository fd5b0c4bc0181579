"""Flower's own programs on this machine: a SuperLink with TLS, SuperNodes with keys, `flwr run`.

Nothing of them is replaced; they run an app that `vergence deploy app` wrote.
"""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from vergence.deployment.keys import make_certificates, private_bytes

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "OMP_NUM_THREADS": "1",
}


class StockFlower:
    """A SuperLink and a SuperNode for each client, below one folder."""

    def __init__(self, folder, programs=BIN):
        self.folder, self.programs, self.started = folder, Path(programs), []
        ports = [free_port() for _ in range(2)]
        self.address, self.port = f"127.0.0.1:{ports[0]}", ports[0]
        folder.mkdir(parents=True, exist_ok=True)
        make_certificates(folder, "127.0.0.1")
        home = folder / "home-user"
        home.mkdir()
        root = folder.resolve() / "ca.crt"
        connection = f'[superlink.lab]\naddress = "{self.address}"\nroot-certificates = "{root}"\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "lab"\n{connection}')

    def environment(self, who):
        """Return the environment of a program, with a FLWR_HOME of its own."""
        home = self.folder.resolve() / f"home-{who}"
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}

    def start(self, who, program, *words):
        """Start a program; what it prints goes to WHO.log."""
        with (self.folder / f"{who}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self.programs / program), *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment(who),
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def flwr(self, *words, check=True):
        """Run `flwr`; return what it printed."""
        done = subprocess.run(
            [str(self.programs / "flwr"), *map(str, words)],
            cwd=self.folder,
            env=self.environment("user"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def link(self):
        """Start the SuperLink, and wait until it answers."""
        tls = ["--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        self.start(
            "superlink",
            "flower-superlink",
            "--port",
            self.port,
            *tls,
            "--ssl-ca-certfile",
            "ca.crt",
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        )
        asked = ("list", "lab", "--format", "json")
        until(lambda: '"success": true' in self.flwr(*asked, check=False), 120)

    def register(self, name):
        """Make a key, and register its public half under a name."""
        key = ec.generate_private_key(ec.SECP384R1())
        private = self.folder / name
        private.write_bytes(private_bytes(key))
        private.chmod(0o600)
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        private.with_suffix(".pub").write_bytes(public)
        self.flwr("supernode", "register", f"{name}.pub", "lab", "--name", name)

    def node(self, name, **config):
        """Start a client's SuperNode."""
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        return self.start(
            name,
            "flower-supernode",
            "--superlink",
            self.address,
            "--root-certificates",
            "ca.crt",
            "--auth-supernode-private-key",
            name,
            "--port",
            free_port(),
            "--node-config",
            words,
        )

    def run(self, app, *words):
        """Start a run of an app; return its number."""
        said = json.loads(self.flwr("run", app.resolve(), "lab", "--format", "json", *words))
        return str(said["run-id"])

    def state(self, run):
        """State of a run, as `flwr list` has it."""
        (found,) = json.loads(self.flwr("list", "lab", "--run-id", run, "--format", "json"))["runs"]
        return found["status"]

    def close(self):
        """End everything."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


@contextmanager
def stock_flower(folder, names, programs=BIN):
    """Give a SuperLink and a connected SuperNode for each name; all end with this block."""
    with ExitStack() as ends:
        made = StockFlower(folder, programs)
        ends.callback(made.close)
        made.link()
        for name in names:
            made.register(name)
            made.node(name, client=name)
        yield made


def free_port():
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(holds, seconds):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.5)
