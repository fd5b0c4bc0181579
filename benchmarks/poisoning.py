"""Attacks against robust rules: mean error and worst person, as a Markdown table and as JSON.

python -m benchmarks.poisoning --seeds 0 1 2 --json poisoning.json: every attack under every
defence, for every share of liars. The experiment is experiments/robust.toml, less its own rule and
attack. Every defence is told the true share of liars; who lies is drawn anew for every seed, and
FLTrust trusts somebody who is honest at every share. Everybody is measured on their own, honest
test data, liars too. Cells that the JSON file holds already are not run again.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common.options import options
from benchmarks.common.runs import people_scores, robust, run_folder
from vergence.engine.round_loop import run_rounds
from vergence.experiment import schema as config
from vergence.experiment.run import progress_bar
from vergence.privacy.poisoning.updates import malicious_clients
from vergence.results.write import write_json

ATTACKS: dict[str, dict[str, Any]] = {
    "sign_flip": {"factor": 4.0},
    "scaling": {"factor": 10.0},
    "alie": {},
    "min_max": {},
    "gaze_offset": {"pitch": 20.0},
    "noisy_data": {"std": 0.5},
}
TARGETED = ("gaze_offset",)
"""Attacks that want a certain error, and not just a bad model."""
DEFENCES = ("none", "median", "trimmed_mean", "krum", "multi_krum", "norm_bound", "fltrust", "dnc")
COUNTING = ("median", "trimmed_mean", "krum", "multi_krum", "dnc")
"""Defences that are told how many may lie."""
CLEAN = "clean"
CLOSE = 1.1
"""Errors up to so many times the clean one count as held."""
Cell = tuple[str, float, str, int]
"""Attack, share of liars, defence, seed."""


def cells(given: argparse.Namespace) -> Iterator[Cell]:
    """Yield what is to be run: without liars once, then the grid."""
    for seed in given.seeds:
        yield from ((CLEAN, 0.2, defence, seed) for defence in given.defences)
        yield from (
            (*cell, seed) for cell in itertools.product(given.attacks, given.shares, given.defences)
        )


def table_of(cell: Cell, rounds: int | None) -> dict[str, Any]:
    """Return the experiment of a cell."""
    attack, share, defence, seed = cell
    table = robust(seed, rounds)
    if attack != CLEAN:
        table["poison"] = {"attack": attack, "share": share, "seed": seed, **ATTACKS[attack]}
    if defence != "none":
        rule: dict[str, Any] = {"name": defence}
        if defence in COUNTING:
            rule["attackers"] = share
        if defence == "fltrust":
            people = [f"p{i:02d}" for i in range(table["federation"]["people"])]
            liars = malicious_clients(people, 0.49, seed)
            rule["root"] = next(person for person in people if person not in liars)
        table["privacy"] = {"robust": rule}
    return table


def measured(cell: Cell, rounds: int | None) -> dict[str, float]:
    """Run a cell; return every person's angular error in degrees."""
    torch.set_num_threads(1)
    experiment = config.check(table_of(cell, rounds))
    task, (method,) = experiment.task(cell[3]), experiment.methods.values()
    with run_folder() as folder:
        ready = experiment.model.prepare(experiment.federation())
        run_rounds(method, task, federation=ready, plan=experiment.plan, folder=folder)
        return people_scores(folder, task.headline)


def name(cell: Cell) -> str:
    return "/".join(map(str, cell))


def run(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run all cells that are not there yet; write the file after each."""
    found = json.loads(given.json.read_text()) if given.json.exists() else {}
    wanted = list(cells(given))
    left = [cell for cell in wanted if name(cell) not in found]
    with progress_bar() as bar, ProcessPoolExecutor(given.jobs) as pool:
        line = bar.add_task(
            "poisoning", total=len(wanted), completed=len(wanted) - len(left), score=""
        )
        waiting = {pool.submit(measured, cell, given.rounds): cell for cell in left}
        for done in as_completed(waiting):
            found[name(waiting[done])] = done.result()
            write_json(given.json, found)
            bar.update(line, advance=1, score=name(waiting[done]))
    return {name(cell): found[name(cell)] for cell in wanted}


def summary(
    found: dict[str, dict[str, float]], attack: str, share: float, defence: str, seeds: list[int]
) -> tuple[float, float]:
    """Return the mean over people and the worst person, both averaged over seeds."""
    runs = [list(found[name((attack, share, defence, seed))].values()) for seed in seeds]
    return float(np.mean([np.mean(r) for r in runs])), float(np.mean([max(r) for r in runs]))


def markdown(found: dict[str, dict[str, float]], given: argparse.Namespace) -> str:
    """Return the table: mean error (worst person), one row for every attack and share."""
    lines = [
        f"| attack | liars | {' | '.join(given.defences)} |",
        f"|---|--:|{'--:|' * len(given.defences)}",
    ]
    rows = [(CLEAN, 0.2), *itertools.product(given.attacks, given.shares)]
    for attack, share in rows:
        told = [summary(found, attack, share, d, given.seeds) for d in given.defences]
        shown = " | ".join(f"{mean:.2f} ({worst:.2f})" for mean, worst in told)
        lines.append(f"| {attack} | {'0' if attack == CLEAN else f'{share:.0%}'} | {shown} |")
    return "\n".join(lines)


def verdicts(found: dict[str, dict[str, float]], given: argparse.Namespace) -> Iterator[str]:
    """Say which defence holds best against each attack, and whether any is near the clean sum."""
    clean, _ = summary(found, CLEAN, 0.2, "none", given.seeds)
    for attack, share in itertools.product(given.attacks, given.shares):
        mean, best = min(
            (summary(found, attack, share, d, given.seeds)[0], d) for d in given.defences
        )
        kind = "targeted" if attack in TARGETED else "untargeted"
        held = "holds" if mean <= CLOSE * clean else "NONE holds; nearest"
        yield (
            f"{attack} ({kind}), {share:.0%}: {held} {best}, {mean:.2f} = {mean / clean:.2f} x "
            f"the clean sum's {clean:.2f}"
        )


def main() -> None:
    """Run the grid, print table and verdicts."""
    given = options(
        __doc__,
        attacks={"nargs": "+", "choices": ATTACKS, "default": list(ATTACKS)},
        defences={"nargs": "+", "choices": DEFENCES, "default": list(DEFENCES)},
        shares={"nargs": "+", "type": float, "default": [0.1, 0.2, 0.3]},
        seeds={"nargs": "+", "type": int, "default": [0, 1, 2]},
        rounds={"type": int},
        jobs=2,
        json=Path("poisoning.json"),
    )
    began = time.perf_counter()
    found = run(given)
    print(markdown(found, given))
    print("\n" + "\n".join(verdicts(found, given)))
    print(f"\n{time.perf_counter() - began:.0f} s; numbers: {given.json}")


if __name__ == "__main__":
    main()
