"""Export of a run's parameters, curves and results to MLflow (extra `mlflow`), from its folder.

There is one MLflow run per method and seed, identified by a digest of experiment, code, data and
seed: a run that is sent again, from any folder, adds only what is new.

Used by `cli.study`.
"""

# MLflow is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import tomli_w

from vergence.core.naming import dotted, plural
from vergence.errors import ConfigError, PartialRun
from vergence.monitoring.method_progress import MethodProgress
from vergence.monitoring.status import Status, server_of, status
from vergence.privacy.config import HIDING
from vergence.results.layout import COSTS
from vergence.results.read import table
from vergence.results.run_files import read_config, read_json

KEY = "vergence.key"
ENDS = {"finished": "FINISHED", "interrupted": "KILLED", "running": "RUNNING"}
# MLflow refuses longer texts of parameters, and more metrics in one request.
LONGEST, MANY = 6000, 900
FILES = ("config.toml", "results.json", "people.csv", "report.html")
"""Files of a finished run that MLflow gets."""
OF_PEOPLE = (
    "presence.gone",
    "presence.back",
    "few_data.label_poor",
    "tuning.people",
    "sweep.people",
    "privacy.robust.root",
    "study.responsible",
    "study.contact",
)
"""Settings that name people."""
# Seconds between two looks at a run that goes on, each of which reads its tables anew.
AGAIN = 5.0


def send(
    folder: Path, to: str, experiment: str = "vergence", watch: bool = False, people: bool = False
) -> str:
    """Send what MLflow does not have yet; return a line that says what was sent.

    Args:
        folder: what `vergence run --out` wrote, a run directory below, or a deployment's folder.
        to: MLflow's tracking address.
        experiment: the MLflow experiment.
        watch: go on until the run ends.
        people: send results of single people also where the run hides people.

    Raises:
        ConfigError: MLflow is not installed.
        StateError: the folder holds no run.
        PartialRun: MLflow does not answer, or refuses.
    """
    needed(to)
    sent, runs, hidden = 0, set(), False
    with quiet(to):
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=to)
        there = client.get_experiment_by_name(experiment)
        home = there.experiment_id if there else client.create_experiment(experiment)
        while True:
            at = status(folder)
            for run, path, seed in places(folder, at):
                it = SentMetrics(client, home, run, path, seed, people)
                number, added = it.send()
                sent, runs, hidden = sent + added, runs | {number}, hidden or it.hides
            if not watch or at.running is None:
                break
            time.sleep(AGAIN)
    less = "; nothing of single people, as the run hides them (--with-people)" if hidden else ""
    sizes = f"{plural(len(runs), 'run')}, {plural(sent, 'new value')}"
    return f"{shown(to)}: experiment '{experiment}', {sizes}{less}"


def shown(to: str) -> str:
    """Return a tracking address without the secrets that it may hold: user, password, query."""
    try:
        parts = urlsplit(to)
    except ValueError:
        return "the address given"
    if not parts.netloc and not parts.query:
        return to
    host = f"***@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    query = "?***" if parts.query else ""
    return f"{parts.scheme}://{host}{parts.path}{query}"


def without_secrets(text: str, to: str) -> str:
    """Return MLflow's text without the secrets of the tracking address."""
    # Libraries quote the address in errors, whole or in parts, encoded or not.
    parts = urlsplit(to)
    text = text.replace(to, shown(to)).replace(parts.netloc, parts.netloc.rpartition("@")[2])
    secrets = [parts.password or "", *(value for _, value in parse_qsl(parts.query))]
    for secret in {form for each in secrets if each for form in (each, unquote(each))}:
        text = text.replace(secret, "***")
    return text


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
    """Turn off MLflow's telemetry and its printing; its errors become one line."""
    # A server that is down answers after 2 tries; MLflow's default waits for minutes.
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
            text = without_secrets(line, to)[:300]
            # `from None`: the traceback of the cause would print the address with its password.
            raise PartialRun(f"MLflow at {shown(to)}: {text}") from None


def places(folder: Path, status: Status) -> Iterator[tuple[MethodProgress, Path, int]]:
    """Yield every run that has begun, with its directory, once for each seed begun."""
    home = server_of(folder)
    out = folder if home is None else home / "run"
    for run in status.runs:
        path = out / run.label if (out / run.label / "config.toml").is_file() else out
        if (path / "provenance.json").is_file() and run.seed is not None:
            begun = run.seeds[: run.seeds.index(run.seed) + 1]
            yield from ((run, path, seed) for seed in begun)


class SentMetrics:
    """One seed of a run, and its MLflow run."""

    def __init__(
        self,
        client: Any,
        home: str,
        run: MethodProgress,
        path: Path,
        seed: int,
        people: bool = False,
    ) -> None:
        self.client, self.run, self.path, self.seed = client, run, path, seed
        self.table = read_config(path / "config.toml")
        self.provenance = read_json(path / "provenance.json")
        # MLflow may be a server of a whole group: of a run that hides people, nothing goes there
        # that is about a single person.
        self.hides = not people and bool({*HIDING} & self.table.get("privacy", {}).keys())
        key = self.key()
        there = client.search_runs([home], f"tags.`{KEY}` = '{key}'", max_results=1)
        self.number = there[0].info.run_id if there else self.begin(home, key)
        self.status = there[0].info.status if there else ""

    def key(self) -> str:
        """Return the SHA-256 of all that determines a seed's results, as the key of its MLflow run.

        It covers experiment, code, data and seed.
        """
        from vergence.experiment.provenance import config_digest

        about = {
            "config": config_digest(self.table),
            "code": self.provenance["code"]["sha256"],
            "data": self.provenance["data"]["sha256"],
            "seed": self.seed,
        }
        # A deployment's server has nobody's data: two deployments are two runs.
        if "deployment" in self.provenance:
            about["deployment"] = self.provenance["deployment"].get("run", "")
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def begin(self, home: str, key: str) -> str:
        """Create the MLflow run with its parameters."""
        from mlflow.entities import Param

        code, data = self.provenance["code"], self.provenance["data"]
        tags = {
            KEY: key,
            "vergence.version": code["version"],
            "vergence.code": code["sha256"],
            "vergence.data": data["sha256"],
            # A command line may name people, in `--set` or in the path of a folder.
            **({} if self.hides else {"vergence.command": _as_text(self.provenance["command"])}),
        }
        name = f"{self.run.label} seed {self.seed}"
        number = self.client.create_run(home, tags=tags, run_name=name).info.run_id
        table = {**self.experiment(), "label": self.run.label, "seed": self.seed}
        params = [Param(k, _as_text(v)[:LONGEST]) for k, v in dotted(table)]
        # MLflow takes at most 100 parameters in a request.
        self.client.log_batch(number, params=params[:100])
        for at in range(100, len(params), 100):
            self.client.log_batch(number, params=params[at : at + 100])
        return number

    def send(self) -> tuple[str, int]:
        """Send the new rounds, and the files of a finished run; return the MLflow run's number.

        The number of values that were sent is returned with it.
        """
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
        """Return "point/metric" -> round -> value of this seed; costs are called "cost/name"."""
        rows = table(self.path / "rounds.csv", growing=True)
        rows = rows[rows.seed == self.seed]
        # A round's costs stand in each of its lines.
        once = rows.drop_duplicates("round").set_index("round")
        # MLflow allows few characters in a metric's name, and 250 of them.
        measured = {
            re.sub(r"[^\w\-. /]", "_", f"{point}/{metric}")[:250]: dict(
                zip(own["round"], own.value, strict=True)
            )
            for (point, metric), own in rows.groupby(["evaluation", "metric"], sort=False)
        }
        costs = {f"cost/{name}": once[name].dropna().to_dict() for name in COSTS}
        return measured | {name: curve for name, curve in costs.items() if curve}

    def leave(self) -> None:
        """Send the fingerprint and files of a finished run that MLflow does not have."""
        there = {file.path for file in self.client.list_artifacts(self.number)}
        missing = [n for n in FILES if n not in there and (self.path / n).is_file()]
        if "results.json" in missing:
            results = read_json(self.path / "results.json")
            sha = results.get("fingerprint", {}).get(str(self.seed), "")
            self.client.set_tag(self.number, "vergence.fingerprint", sha)
            if self.hides:
                self.client.log_text(self.number, json.dumps(of_nobody(results)), "results.json")
        if self.hides and "config.toml" in missing:
            self.client.log_text(self.number, tomli_w.dumps(self.experiment()), "config.toml")
        for name in () if self.hides else missing:
            self.client.log_artifact(self.number, str(self.path / name))

    def experiment(self) -> dict[str, Any]:
        """Return the experiment; of a run that hides people, without settings that name them."""
        return unnamed(self.table) if self.hides else self.table


def unnamed(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return an experiment without the settings that name people."""
    return {
        key: unnamed(value, f"{above}{key}.") if isinstance(value, Mapping) else value
        for key, value in table.items()
        if f"{above}{key}" not in OF_PEOPLE
    }


def of_nobody(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return results.json without results of single people, such as names and worst scores."""
    metrics = {
        name: {k: v for k, v in block.items() if k != "worst"}
        for name, block in results["metrics"].items()
    }
    privacy = {
        name: {k: v for k, v in block.items() if k != "accused"}
        if isinstance(block, Mapping)
        else block
        for name, block in results.get("privacy", {}).items()
    }
    rest = {k: v for k, v in results.items() if k not in ("people", "fairness")}
    return {**rest, "metrics": metrics, "privacy": privacy}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
