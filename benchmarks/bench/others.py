"""The peers: what each needs, whether it is there, and how its script is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vergence.errors import ConfigError, nearest

HERE = Path(__file__).parent / "peers"
LOOK = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, {!r})))"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray's own is 15, by which its workers lose to anything else
}


@dataclass(frozen=True)
class Peer:
    """Another simulator.

    Attributes:
        script: its adapter, below `peers`.
        modules: what its Python must be able to import.
        install: what to do when it cannot.
        checkout: environment variable that names a source folder, where no package exists.
    """

    script: str
    modules: tuple[str, ...]
    install: str
    checkout: str | None = None

    def missing(self, python: str | None) -> str | None:
        """Return what to do before this peer can be run, None if nothing."""
        if self.checkout is not None:
            place = os.environ.get(self.checkout)
            if place is None or not (Path(place) / "flcore").is_dir():
                return f"not installed: {self.install}"
        try:
            look = [python or sys.executable, "-c", LOOK.format(self.modules)]
            known = subprocess.run(look, capture_output=True, check=False).returncode == 0
        except OSError:
            return f"not run: no Python at {python}"
        return None if known else f"not installed: {self.install}"

    def command(self, folder: Path, python: str | None) -> list[str]:
        """Return how to start it on the job in a folder."""
        return [python or sys.executable, str(HERE / self.script), str(folder)]

    def env(self, folder: Path) -> dict[str, str]:
        """Return its environment, beyond ours; its own workers find the job there too."""
        home = {"FLWR_HOME": str(folder / "flwr")}
        return {**QUIET, **home, "VERGENCE_BENCH_JOB": str(folder), "PYTHONPATH": str(HERE)}


PEERS = {
    "flower": Peer(
        "flower_peer.py", ("torch", "flwr", "ray"), "pip install torch 'flwr[simulation]==1.42.0'"
    ),
    "pfl": Peer("pfl_peer.py", ("torch", "pfl"), "pip install torch 'pfl[pytorch]==0.6.0'"),
    "pfllib": Peer(
        "pfllib_peer.py",
        ("torch", "h5py", "sklearn", "matplotlib"),
        "set PFLLIB to the folder `system` of a checkout of github.com/TsingZ0/PFLlib, and "
        "pip install torch h5py scikit-learn matplotlib",
        checkout="PFLLIB",
    ),
}


def check_names(names: Iterable[str]) -> None:
    """Refuse a peer that is none.

    Raises:
        ConfigError: names the nearest one.
    """
    for name in names:
        if name not in PEERS:
            raise ConfigError(f"bench: no peer '{name}'{nearest(name, PEERS)}")
