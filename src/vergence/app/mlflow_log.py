"""A run's parameters, curves and results in MLflow (extra `mlflow`), read from its folder.

One MLflow run per method and seed, found again by a digest of what gives the bits: the same run
sent again adds what is new, from whatever folder.
"""

# MLflow is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vergence.app.growing import column_rows
from vergence.app.standing import Standing
from vergence.app.status import Status, server_of, status
from vergence.errors import ConfigError, PartialRun

KEY = "vergence.key"
ENDS = {"finished": "FINISHED", "interrupted": "KILLED", "running": "RUNNING"}
LONGEST, MANY = 6000, 900
"""Of a parameter's text, and metrics in one request, by MLflow's limits."""
COLUMNS = ("seed", "round", "evaluation", "metric", "value", "bytes_up", "bytes_down", "seconds",
           "personal_fraction")  # fmt: skip
FILES = ("config.toml", "results.json", "people.csv", "report.html")
"""What a finished run leaves with MLflow."""
AGAIN = 5.0
"""Seconds between two looks at a run that goes on."""


def send(folder: Path, to: str, experiment: str = "vergence", watch: bool = False) -> str:
    """Send what MLflow does not have yet; return what was sent, in a line.

    Raises:
        ConfigError: MLflow is not installed.
        StateError: the folder holds no run.
        PartialRun: MLflow does not answer, or refuses.
    """
    needed(to)
    sent, runs = 0, set()
    with quiet(to):
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=to)
        found = client.get_experiment_by_name(experiment)
        home = found.experiment_id if found else client.create_experiment(experiment)
        while True:
            at = status(folder)
            for run, path, seed in places(folder, at):
                number, added = Sent(client, home, run, path, seed).send()
                sent, runs = sent + added, runs | {number}
            if not watch or at.running is None:
                break
            time.sleep(AGAIN)
    return f"{to}: experiment '{experiment}', {len(runs)} runs, {sent} new values"


def needed(to: str) -> None:
    """Refuse to go on without MLflow.

    Raises:
        ConfigError: it is not installed, or not what a database needs.
    """
    missing = [name for name in ("mlflow", "sqlalchemy", "alembic") if find_spec(name) is None]
    if missing and ("mlflow" in missing or to.startswith("sqlite")):
        raise ConfigError(f"{missing[0]} is not installed: pip install 'vergence[mlflow]'")


@contextmanager
def quiet(to: str) -> Iterator[None]:
    """Let MLflow neither tell its makers of its use, nor print; its errors become one line."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.exceptions import MlflowException

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        try:
            yield
        except MlflowException as error:
            line = str(error).strip().partition("\n")[0]
            raise PartialRun(f"MLflow at {to}: {line[:300]}") from None


def places(folder: Path, found: Status) -> Iterator[tuple[Standing, Path, int]]:
    """Yield every run that has begun, its directory, and its seeds."""
    home = server_of(folder)
    out = folder if home is None else home / "run"
    for run in found.runs:
        path = out / run.label if (out / run.label / "config.toml").is_file() else out
        if (path / "provenance.json").is_file() and run.seed is not None:
            begun = run.seeds[: run.seeds.index(run.seed) + 1]
            yield from ((run, path, seed) for seed in begun)


class Sent:
    """One seed of a run, as MLflow has it."""

    def __init__(self, client: Any, home: str, run: Standing, path: Path, seed: int) -> None:
        self.client, self.run, self.path, self.seed = client, run, path, seed
        self.table = tomllib.loads((path / "config.toml").read_text())
        self.provenance = json.loads((path / "provenance.json").read_text())
        key = self.key()
        there = client.search_runs([home], f"tags.`{KEY}` = '{key}'", max_results=1)
        self.number = there[0].info.run_id if there else self.begin(home, key)
        self.status = there[0].info.status if there else ""

    def key(self) -> str:
        """Return the SHA-256 of what gives a seed's bits: experiment, code, data and seed.

        A deployment's server has nobody's data: two deployments are two runs, whoever took part.
        """
        from vergence.app.stamp import config_digest

        about = {"config": config_digest(self.table), "code": self.provenance["code"]["sha256"],
                 "data": self.provenance["data"]["sha256"], "seed": self.seed}  # fmt: skip
        if "deployment" in self.provenance:
            about["deployment"] = self.provenance["deployment"].get("run", "")
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def begin(self, home: str, key: str) -> str:
        """Create the MLflow run with its parameters."""
        from mlflow.entities import Param

        code, data = self.provenance["code"], self.provenance["data"]
        tags = {
            KEY: key, "vergence.version": code["version"], "vergence.code": code["sha256"],
            "vergence.data": data["sha256"], "vergence.command": _told(self.provenance["command"]),
        }  # fmt: skip
        name = f"{self.run.label} seed {self.seed}"
        number = self.client.create_run(home, tags=tags, run_name=name).info.run_id
        table = {**self.table, "label": self.run.label, "seed": self.seed}
        params = [Param(k, v[:LONGEST]) for k, v in flat(table)]
        self.client.log_batch(number, params=params[:100])
        for at in range(100, len(params), 100):
            self.client.log_batch(number, params=params[at : at + 100])
        return number

    def send(self) -> tuple[str, int]:
        """Send the rounds that are not there yet, and what a finished run left; return how many."""
        from mlflow.entities import Metric

        now, fresh = int(1000 * time.time()), []
        for name, curve in self.curves().items():
            there = {m.step for m in self.client.get_metric_history(self.number, name)}
            fresh += [Metric(name, v, now, at) for at, v in curve.items() if at not in there]
        for at in range(0, len(fresh), MANY):
            self.client.log_batch(self.number, metrics=fresh[at : at + MANY])
        state = "finished" if self.seed != self.run.seed else self.run.state
        if self.run.state == "finished":
            self.leave()
        if state == "running":
            self.client.update_run(self.number, status=ENDS[state])
        elif ENDS[state] != self.status:
            self.client.set_terminated(self.number, ENDS[state])
        return self.number, len(fresh)

    def curves(self) -> dict[str, dict[int, float]]:
        """Return point/metric -> round -> value of this seed, and cost/..."""
        found: dict[str, dict[int, float]] = {}
        for seed, at, point, metric, value, *costs in column_rows(
            self.path / "rounds.csv", COLUMNS
        ):
            if seed != str(self.seed):
                continue
            found.setdefault(mlflow_name(f"{point}/{metric}"), {})[int(at)] = float(value)
            for name, cost in zip(COLUMNS[5:], costs, strict=True):
                if cost:
                    found.setdefault(f"cost/{name}", {}).setdefault(int(at), float(cost))
        return found

    def leave(self) -> None:
        """Send fingerprint and files of a finished run, as far as they are not there."""
        there = {file.path for file in self.client.list_artifacts(self.number)}
        missing = [n for n in FILES if n not in there and (self.path / n).is_file()]
        if "results.json" in missing:
            results = json.loads((self.path / "results.json").read_text())
            sha = results.get("fingerprint", {}).get(str(self.seed), "")
            self.client.set_tag(self.number, "vergence.fingerprint", sha)
        for name in missing:
            self.client.log_artifact(self.number, str(self.path / name))


def mlflow_name(name: str) -> str:
    """Return a metric's name with the characters that MLflow allows."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)[:250]


def flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested tables by dotted name."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", _told(value)


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
