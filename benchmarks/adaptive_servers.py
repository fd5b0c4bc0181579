"""Tau and the rate of FedAdam, as multiples of the first mean update, on people nobody trained on.

    python -m benchmarks.adaptive_servers
    python -m benchmarks.adaptive_servers --on mpiigaze_crops

The first trains on six generated people (seed 201) and measures four others; the second trains on
seven people of the crops (16 steps a round, 15 rounds) and measures p00, p03, p06 and p09. The
error is that of validation data, in degrees, after all rounds; everybody trains in every round.
FedAdam takes tau and its rate as `adapt = "auto"` does, with other shares of the root mean square
of the first mean update. Every row is a line of standard output. The first takes ten minutes, the
second two, on one free core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from vergence.core.federation import Federation
from vergence.core.local_training import LocalTraining
from vergence.core.method import root_mean_square
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.task import Task
from vergence.experiment.schema import Table, check
from vergence.experiment.validation import validate
from vergence.methods.fedadam import FedAdam
from vergence.training.sequential import Solver

SHARES = (
    ("reddi", 0.1, 0.5),
    ("reddi", 0.1, 1.0),
    ("reddi", 0.1, 2.0),
    ("reddi", 0.1, 4.0),
    ("reddi", 0.03, 1.0),
    ("reddi", 0.03, 2.0),
    ("reddi", 0.3, 0.5),
    ("reddi", 3.0, 9.0),
    ("seed_exact", 3.0, 9.0),
    ("corrected", 0.1, 0.5),
    ("corrected", 0.1, 1.0),
    ("corrected", 0.1, 2.0),
    ("seed_exact", 0.1, 0.5),
    ("seed_exact", 0.1, 2.0),
)
"""Variant, tau and server_lr, the last two in root mean squares of the first mean update."""
UNSEEN = ("p00", "p03", "p06", "p09")
GROUNDS: dict[str, tuple[Table, int, LocalTraining, tuple[float, ...]]] = {
    "eye_synthetic": (
        {"name": "eye_synthetic", "people": 10, "samples": 300, "size": "9x15", "seed": 201},
        25,
        LocalTraining(optimizer="sgd", epochs=1, batch=32, nesterov=True),
        (0.05, 0.005),
    ),
    "mpiigaze_crops": (
        {"name": "mpiigaze_crops", "root": "eyes/mpiigaze_9x15"},
        15,
        LocalTraining(optimizer="sgd", steps=16, batch=32, nesterov=True),
        (0.05,),
    ),
}
"""Federation, rounds, training of clients, and their rates."""


def shared_by(tau: float, server_lr: float) -> type[FedAdam]:
    """Return FedAdam whose `auto` takes these shares."""

    class Shared(FedAdam):
        """FedAdam with shares of its own."""

        tau_share, rate_share = tau, server_lr

    return Shared


def error(
    task: Task,
    ready: Federation,
    rounds: int,
    local: LocalTraining,
    method: FedAdam | None,
    unseen: Sequence[str],
) -> tuple[float, float]:
    """Train, and return the mean error of the unseen people and the size of the first update.

    `method` None is FedAvg.
    """
    solver, model = Solver(task), task.init()
    train = [c for c in ready.clients if c not in unseen]
    server = None if method is None else method.server(task)
    first = 0.0
    for at in range(rounds):
        update: Params | None = None
        for client in train:
            ask = Fit(model, ready.people[client].train, local)
            own = solver.fit(ask, RandomStream("k", at, client), at / rounds).params - model
            update = own if update is None else update + own
        assert update is not None
        update = update * (1 / len(train))
        first = first or root_mean_square(update)
        if method is None:
            model = model + update
        else:
            server = method.step(server, update)  # type: ignore[arg-type]
            model = server.model
    errors = []
    for client in unseen:
        val = ready.people[client].val
        errors.append(task.metrics(solver.outputs(model, val), val)[task.headline])
    return sum(errors) / len(errors), first


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line of CSV for each row."""
    parser = argparse.ArgumentParser(description="Tau and rate of FedAdam on unseen people.")
    parser.add_argument("--on", choices=list(GROUNDS), default="eye_synthetic")
    name = parser.parse_args(arguments).on
    torch.set_num_threads(1)
    federation, rounds, local, rates = GROUNDS[name]
    table = {
        "task": {"name": "gaze_angle"},
        "model": {"name": "small_eye"},
        "federation": federation,
        "method": {"name": "fedavg"},
    }
    experiment = check(table)
    ready = validate(experiment).ready
    task = experiment.task(100 if federation.get("root") else 201)
    unseen = UNSEEN if federation.get("root") else ready.clients[6:]
    sys.stdout.write("client rate,server,tau,server_lr,error,first update\n")
    for lr in rates:
        own = LocalTraining(**{**vars(local), "lr": lr})
        for variant, tau, server_lr in (("fedavg", 0.0, 0.0), *SHARES):
            method = None
            if tau:
                kind = shared_by(tau, server_lr)
                method = kind(adapt="auto", variant=variant)  # type: ignore[arg-type]
            found, first = error(task, ready, rounds, own, method, unseen)
            sizes = f"{tau:g} r,{server_lr:g} r" if tau else ","
            sys.stdout.write(f"{lr:g},{variant},{sizes},{found:.2f},{first:.2g}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
