"""Our engine as a process that does rounds when its clock says so.

`python -m benchmarks.bench.lane JOB METHOD OPTIONS`; OPTIONS is JSON: `scored` (validation rows per
client), `saves`, and `plan`, further fields of `vergence.engine.round_loop.Plan`.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench.gate import Gate
from benchmarks.bench.plain import Job
from benchmarks.bench.workloads import METHODS, federation, local, task
from vergence.core.params import Params
from vergence.engine.participation import Participation
from vergence.engine.round_loop import Plan, run_rounds
from vergence.engine.storage.run_directory import RunDirectory


def run(
    job: Job, method: str, options: Mapping[str, Any], gate: Gate, place: Path
) -> dict[str, Any]:
    """Run a job's rounds through the gate; return its steps, bytes and final loss.

    The run's folder is made below `place` and left there: its owner removes both.
    """
    learner = METHODS[method](local=local(job))
    people = federation(job, options["scored"])
    problem = task(job.network, job.loss)
    given = {
        "rounds": job.rounds,
        "evaluate_every": 0,
        "checkpoint_every": 1 if options["saves"] else job.rounds,
        "presence": Participation(cohort=len(job.cohorts[0])),
    }
    plan = Plan(**{**given, **options.get("plan", {})})
    folder = RunDirectory(Path(tempfile.mkdtemp(dir=place)), {"config": "benchmark"})
    folder.open()

    def tick(*_: object) -> None:
        gate.between_rounds()

    done = run_rounds(learner, problem, federation=people, plan=plan, folder=folder, tick=tick)
    told = tables(folder.path)
    module = load(job, done.server.model)
    return told | {"loss": job.cost(module), "norm": norm(module)}


def load(job: Job, model: Params) -> torch.nn.Module:
    """Return the job's network with these parameters."""
    module = job.module()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(model[name])
    return module


def norm(module: torch.nn.Module) -> float:
    """Return the L2 norm of all parameters."""
    squares = [float(p.detach().double().square().sum()) for p in module.parameters()]
    return sum(squares) ** 0.5


def tables(place: Path) -> dict[str, Any]:
    """Read what the run's tables say: steps of each round, bytes per client of the last."""
    with (place / "turns.csv").open(newline="") as file:
        turns = [row for row in csv.DictReader(file) if row["verb"] == "train"]
    steps: dict[int, int] = {}
    for row in turns:
        steps[int(row["round"])] = steps.get(int(row["round"]), 0) + int(row["steps"])
    last = [row for row in turns if int(row["round"]) == max(steps)]
    return {
        "steps": sum(steps.values()),
        "bytes_up": sum(int(r["bytes_up"]) for r in last) / len(last),
        "bytes_down": sum(int(r["bytes_down"]) for r in last) / len(last),
    }


def main(folder: str, method: str, options: str) -> None:
    """Run and tell."""
    gate = Gate()
    place = Path(folder)
    gate.tell(final=run(Job.load(place), method, json.loads(options), gate, place))


if __name__ == "__main__":
    main(*sys.argv[1:])
