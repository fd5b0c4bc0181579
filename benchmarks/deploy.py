"""What an exchange over Flower costs: a server and clients as processes of this machine, with TLS.

python -m benchmarks.deploy [--clients 15] [--methods fedavg,splitfed] [--rounds 4] [--main-server]
python -m benchmarks.deploy --methods fedavg --sums pads
python -m benchmarks.deploy --methods fedavg,fedcpf --sums shares
python -m benchmarks.deploy --methods fedavg --app

Every method runs in the simulator, too: fingerprints must be equal. Seconds per round are the
median over rounds but the first. `clients` is the time of the slowest client's own work in a round,
by its own clock; what is left is transport: Flower, its polls, forks, TLS, and the work of server
and aggregators. Exchanges are those that follow each other; with aggregators, theirs too. With
`--app` Flower's own programs run what `vergence deploy app` writes, in place of a deployment.
"""

import csv
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import tomli_w

from benchmarks.common.options import options
from benchmarks.stock_flower import stock_flower, until
from vergence.deployment.flower_app import write_app
from vergence.experiment.run import start
from vergence.experiment.schema import check

COMMAND = [sys.executable, "-c", "from vergence.cli.main import main; main()"]


SHARES = {"name": "additive", "aggregators": ["north", "south", "west"]}
SUMS = {
    "plain": {},
    "pads": {"privacy": {"aggregation": "secure"}},
    "shares": {"privacy": {"aggregation": SHARES}},
}


def table(clients, methods, rounds, people, sums):
    """Return the experiment: small eye patches, three or four batches a round."""
    return {
        "task": {"name": "gaze_angle"},
        "model": {"name": people["model"]},
        "federation": {
            "name": "eye_synthetic",
            "people": clients,
            "samples": 60,
            "size": people["size"],
        },
        "methods": [{"name": name} for name in methods],
        "local": {"optimizer": "sgd", "epochs": 1, "batch": 16, "lr": 0.01},
        "run": {"rounds": rounds, "evaluate_every": 0, "solver": "sequential"},
        **SUMS[sums],
    }


def deployed(made, folder, clients, main):
    """Run a deployment to its end; return the server's folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = [f"p{number:02d}" for number in range(clients)]
    (folder / "exp.toml").write_text(tomli_w.dumps(made))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(*arguments, **options):
        return subprocess.Popen(
            [*COMMAND, "deploy", *map(str, arguments)],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            **options,
        )

    quiet = {"stdout": subprocess.DEVNULL}
    roles = ["--main-server"] if main else []
    run(
        "init",
        "exp.toml",
        "--clients",
        ",".join(names),
        "--address",
        f"127.0.0.1:{port}",
        "--out",
        "d",
        *roles,
        **quiet,
    ).wait()
    homes = [Path("d/clients") / name for name in names] + ([Path("d/main")] if main else [])
    homes += [path.relative_to(folder) for path in (folder / "d" / "aggregators").glob("*")]
    started = [run("join", home, **quiet) for home in homes]
    try:
        if run("serve", "d/server").wait():
            sys.exit("the server stopped; what it printed says why")
    finally:
        for process in started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.terminate()
    return folder / "d" / "server"


def in_app(made, folder, clients):
    """Run a Flower app on Flower's own programs to its end; return the server's folder."""
    names = [f"p{number:02d}" for number in range(clients)]
    write_app(check(made), names, folder / "app")
    project = tomllib.loads((folder / "app" / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    with stock_flower(folder / "flower", names) as flower:
        run = flower.run(folder / "app")
        until(lambda: flower.state(run).startswith("finished"), 3600)
    return folder / "flower" / config["results"] / config["run"]


def costs(server, label):
    """Return seconds per round, of these the slowest client's, exchanges, and bytes per client.

    Last, bytes of the aggregator that has most.
    """
    events = [json.loads(line) for line in (server / "events.jsonl").read_text().splitlines()]
    ends = [
        datetime.fromisoformat(e["time"]).timestamp()
        for e in events
        if e["event"] == "round" and e.get("label") == label
    ]
    with (server / "exchanges.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = []
    for begin, end in pairwise(ends):
        worked, asked, size = (defaultdict(float) for _ in range(3))
        for row in rows:
            if begin < float(row["time"]) <= end:
                worked[row["client"]] += float(row["own"])
                asked[row["client"]] += 1
                size[row["client"]] += int(row["bytes_down"]) + int(row["bytes_up"])
        people = [name for name in asked if name.startswith("p")]
        others = [name for name in asked if name not in people]
        count = max(map(asked.get, people)) + max(map(asked.get, others), default=0)
        found.append(
            (
                end - begin,
                max(map(worked.get, people)),
                count,
                statistics.mean(map(size.get, people)),
                max(map(size.get, others), default=0),
            )
        )
    return [statistics.median(values) for values in zip(*found, strict=True)]


def main():
    """Measure, and print a Markdown table."""
    asked = options(
        __doc__.partition("\n")[0],
        clients=3,
        methods="fedavg,fedcpf,fedselect,scaffold,splitfed",
        rounds=4,
        model="small_eye",
        size="9x15",
        main_server={"action": "store_true"},
        sums={"choices": SUMS, "default": "plain"},
        app={"action": "store_true"},
    )
    methods = asked.methods.split(",")
    people = {"model": asked.model, "size": asked.size}
    made = table(asked.clients, methods, asked.rounds, people, asked.sums)
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        start(check(made), folder / "here")
        if asked.app:
            server = in_app(made, folder, asked.clients)
        else:
            server = deployed(made, folder, asked.clients, asked.main_server)
        print(
            f"\n{asked.clients} clients, {asked.rounds} rounds, sums: {asked.sums}, "
            f"load {os.getloadavg()[0]:.1f}\n"
        )
        print("| method | same bits | s per round | clients | transport | exchanges | MB | other |")
        print("|---|---|---:|---:|---:|---:|---:|---:|")
        for label in methods:
            here, there = (
                json.loads((root / label / "results.json").read_text())["fingerprint"]
                for root in (folder / "here", server / "run")
            )
            whole, own, count, size, other = costs(server, label)
            same = "yes" if here == there else "NO"
            print(
                f"| {label} | {same} | {whole:.2f} | {own:.2f} | {whole - own:.2f} | "
                f"{count:g} | {size / 1e6:.3f} | {other / 1e6:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
