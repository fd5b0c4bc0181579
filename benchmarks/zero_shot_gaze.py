"""Gaze zones that nobody was seen to look into: closed form, and a network that regresses gaze.

python -m benchmarks.zero_shot_gaze: ESZSL (pixels of unit length, lambda = gamma), learned from the
seen zones, by where zones lie and by vectors that mean nothing; and a network of the experiment's
size (experiments/zero_shot_gaze.toml) that learns gaze itself in the seen zones: its zone is that
whose middle is nearest. Means over --draws owners, and over --seeds initial networks of each.
--unseen: numbers of the zones, row by row from the lowest on the left.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.options import options
from vergence.core.data import Splits
from vergence.core.randomness import RandomStream
from vergence.data.eye_images.gaze_zones import NAMES, UNSEEN
from vergence.data.eye_images.gaze_zones import GazeZones as Zones
from vergence.data.owner import OWNER
from vergence.data.zero_shot.semantics import meanings
from vergence.metrics.angles import angular_error_deg
from vergence.metrics.zero_shot import eszsl
from vergence.models.mlp import Mlp
from vergence.tasks.gaze_zones import PLACES, GazeZonesTask

COLUMNS = ("T1", "u", "s", "H")
DEGREES = ("unseen_error_deg", "seen_error_deg")


def main() -> None:
    args = options(
        "Gaze zones that nobody looked into",
        unseen={"type": int, "nargs": "+", "default": UNSEEN},
        draws={"type": int, "default": 3, "help": "people, one at a time"},
        nuisance={"type": float, "default": 1.0, "help": "of pictures"},
        seeds=3,
        epochs={"type": int, "default": 40, "help": "of the regression"},
        lamda=0.1,
    )
    torch.set_num_threads(1)
    task = GazeZonesTask(Mlp(135, (64, 32), len(NAMES)), unseen=tuple(args.unseen))
    found: dict[str, list[dict[str, float]]] = {}
    for draw in range(args.draws):
        zones = Zones("quasi", nuisance=args.nuisance, unseen=task.unseen_classes, seed=draw)
        data = zones.load()
        owner = data.people[OWNER]
        for prior, scores in task.priors(data).items():
            found.setdefault(prior, []).append(scores[OWNER])
        for source, times in (("directions", 1), ("random", 5)):
            found.setdefault(f"ESZSL, {source}", []).extend(
                closed_form(task, owner, source, time, args.lamda) for time in range(times)
            )
        for seed in range(args.seeds):
            gaze = regression(owner, seed, args.epochs)
            off = angular_error_deg(gaze, owner.test.columns["gaze"])
            zone = task.metrics(-torch.cdist(gaze, PLACES), owner.test)
            found.setdefault("regression, nearest zone", []).append(zone)
            found.setdefault("regression, as it is", []).append(task.errors(off, owner.test))
    print("| | T1 | u | s | H | degrees, unseen | seen |\n|---|---:|---:|---:|---:|---:|---:|")
    for what, scores in found.items():
        line(what, scores)


def closed_form(
    task: GazeZonesTask, owner: Splits, source: str, time: int, lamda: float
) -> dict[str, float]:
    """Score ESZSL, learned from the seen zones."""
    meaning = meanings(NAMES, source, f"{time} {{}}" if time else "{}").vectors
    x, unknown = (
        part.columns["x"] / part.columns["x"].norm(dim=1, keepdim=True)
        for part in (owner.train, owner.test)
    )
    told = eszsl(x, owner.train.columns["y"], meaning, lamda)
    return task.metrics(unknown @ told @ meaning.T, owner.test)


def regression(owner: Splits, seed: int, epochs: int) -> Tensor:
    """Return the gaze `[n, 2]` in radians that a network says which learned the seen zones'."""
    torch.manual_seed(seed)
    train = owner.train
    network = Mlp(135, (64, 32), 2).build()
    adam, rng = (
        torch.optim.Adam(network.parameters(), 1e-3),
        RandomStream("regression", seed).torch(),
    )
    for _ in range(epochs):
        for rows in torch.randperm(len(train), generator=rng).split(32):
            adam.zero_grad()
            said = network(4 * train.columns["x"][rows] - 2)
            (said - train.columns["gaze"][rows]).abs().mean().backward()
            adam.step()
    with torch.no_grad():
        return network(4 * owner.test.columns["x"] - 2)


def line(what: str, scores: Sequence[dict[str, float]]) -> None:
    shares = [
        f"{100 * np.mean([s[c] for s in scores]):.1f}" if c in scores[0] else "" for c in COLUMNS
    ]
    degrees = [f"{np.mean([s[c] for s in scores]):.1f}" for c in DEGREES]
    print(f"| {what} | {' | '.join([*shares, *degrees])} |", flush=True)


if __name__ == "__main__":
    main()
