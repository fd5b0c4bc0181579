"""Clients of split learning that lie at the cut: error and worst person, by lie and depth of cut.

python -m benchmarks.cut_poisoning --json cut_poisoning.json: SplitFed on the people of
experiments/robust.toml; a fifth of them send changed smashed data beside true labels, in every
batch. Without liars the cut changes nothing (SplitFed V1 is FedAvg), so that one clean row will do.
`noticed` is the share of lying batches outside of the range that honest people's smashed data span.

A server that serves a client batch by batch trains on what the client says its layers gave. The
label beside is true, the protocol is kept, and the reply is finite: the guards find nothing. How
much harm a lie does depends on how much of the network learns from it: the layers behind the cut.

Source of the question: SplitFed thesis, section 5.1, "Robustness to model poisoning attacks".
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from benchmarks.attacks.split_parties import Lie, lying
from benchmarks.common.options import options
from benchmarks.common.report import report
from benchmarks.common.runs import people_scores, robust, run_folder
from vergence.core.federation import Federation
from vergence.core.requests import Forward
from vergence.core.stages import stages_of
from vergence.core.task import Task
from vergence.engine.round_loop import run_rounds
from vergence.experiment import schema as config
from vergence.experiment.run import progress_bar
from vergence.methods.split.base import BatchwiseSplit
from vergence.methods.split.splitfed import SplitFed
from vergence.methods.split.splitfed_v2 import SplitFedV2
from vergence.privacy.poisoning.updates import malicious_clients
from vergence.privacy.split.output_range import Span
from vergence.training.steps import Trainer

METHODS = {"splitfed": SplitFed, "splitfed_v2": SplitFedV2}
ROOM = 0.25
"""By how much honest ranges are widened before anybody is suspected."""


def noise(smashed: Tensor, draws: Generator) -> Tensor:
    """Return Gaussian numbers of the batch's mean and deviation: nothing of any image."""
    return smashed.mean() + smashed.std() * torch.randn(smashed.shape, generator=draws)


def exchanged(smashed: Tensor, _: Generator) -> Tensor:
    """Return the smashed data of the batch's other images: real, beside another's label."""
    return smashed.roll(1, 0)


def mirrored(smashed: Tensor, _: Generator) -> Tensor:
    """Return every feature mirrored at the batch's mean of it: the label's opposite, so to say."""
    return 2 * smashed.mean(0) - smashed


def scaled(smashed: Tensor, _: Generator) -> Tensor:
    """Return ten times the smashed data: loud, and outside of any honest range."""
    return 10 * smashed


LIES: Mapping[str, Lie] = {
    "noise": noise,
    "exchanged": exchanged,
    "mirrored": mirrored,
    "scaled": scaled,
}


def ready(seed: int, rounds: int, cut: str, method: str) -> tuple[Any, Task, Federation, Any]:
    """Return plan, task, people and method of a run."""
    table = robust(seed, rounds)
    table["method"] = {"name": method, "cut": cut}
    table["local"] = {**table["local"], "clip": 0.0}
    experiment = config.check(table)
    (made,) = experiment.methods.values()
    federation = experiment.model.prepare(experiment.federation())
    return experiment.plan, experiment.task(seed), federation, made


def run(
    lie: str | None, cut: str, method: str, share: float, seed: int, rounds: int
) -> tuple[float, float, float]:
    """Return mean error, worst person, and the share of lying batches that a range notices."""
    plan, task, federation, made = ready(seed, rounds, cut, method)
    liars = malicious_clients(federation.clients, share, seed)
    if lie is not None:
        made = lying(made, liars, LIES[lie])
    with run_folder() as folder:
        server = run_rounds(made, task, federation=federation, plan=plan, folder=folder).server
        errors = people_scores(folder, task.headline).values()
    noticed = 0.0 if lie is None else caught(server.front, made, task, federation, liars, lie)
    return statistics.mean(errors), max(errors), noticed


def caught(
    front: Any,
    method: BatchwiseSplit[Any, Any],
    task: Task,
    federation: Federation,
    liars: tuple[str, ...],
    lie: str,
) -> float:
    """Return the share of liars' batches outside of the median of honest people's ranges."""
    piece = method.front(task)
    trainer, draws = Trainer(piece), torch.Generator().manual_seed(0)

    def smashed(client: str) -> torch.Tensor:
        batch = federation.people[client].train.take(slice(None))
        return trainer.forward(Forward(front, batch, lambda _: piece)).clone()

    honest = [Span.of(smashed(c)) for c in federation.clients if c not in liars]
    span = Span.agreed(honest).widened(ROOM)
    lies = [LIES[lie](batch, draws) for c in liars for batch in smashed(c).split(32)]
    return sum(span.fault("smashed", said) is not None for said in lies) / len(lies)


def measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a line per lie and cut, averaged over seeds."""
    task = ready(0, 1, "", given.method)[1]
    cuts = given.cuts or stages_of(task.network)[:-1]
    plan = [(None, cuts[0]), *((lie, cut) for lie in given.lies for cut in cuts)]
    lines = []
    with progress_bar() as bar:
        line = bar.add_task("lies at the cut", total=len(plan) * len(given.seeds), score="")
        for lie, cut in plan:
            found = []
            for seed in given.seeds:
                found.append(run(lie, cut, given.method, given.share, seed, given.rounds))
                bar.update(line, advance=1, score=f"{lie}/{cut}")
            mean, worst, noticed = (statistics.mean(x) for x in zip(*found, strict=True))
            lines.append(
                {
                    "lie": lie or "none",
                    "cut": cut if lie else "any",
                    "mean": mean,
                    "worst": worst,
                    "noticed": noticed,
                }
            )
    return lines


def markdown(lines: list[dict[str, Any]]) -> str:
    """Return the table: mean error (worst person), and how often the range notices."""
    clean, lies = lines[0], list(dict.fromkeys(x["lie"] for x in lines[1:]))
    cuts = list(dict.fromkeys(x["cut"] for x in lines[1:]))
    cell = {(x["lie"], x["cut"]): x for x in lines[1:]}
    without = f"{clean['mean']:.2f} ({clean['worst']:.2f})"
    table = [
        f"| lie | {' | '.join(f'cut after {c}' for c in cuts)} | noticed |",
        "|---|" + "--:|" * (len(cuts) + 1),
        f"| none | {' | '.join([without] * len(cuts))} | |",
    ]
    for lie in lies:
        shown = [f"{cell[lie, c]['mean']:.2f} ({cell[lie, c]['worst']:.2f})" for c in cuts]
        noticed = ", ".join(f"{cell[lie, c]['noticed']:.0%}" for c in cuts)
        table.append(f"| {lie} | {' | '.join(shown)} | {noticed} |")
    return "\n".join(table)


def main() -> None:
    """Run everything, print the table, write the numbers."""
    given = options(
        __doc__.splitlines()[0],
        method={"choices": METHODS, "default": "splitfed"},
        lies={"nargs": "+", "choices": LIES, "default": list(LIES)},
        cuts={"nargs": "+", "help": "stages; default: all but the last"},
        share=0.2,
        seeds={"nargs": "+", "type": int, "default": [0, 1, 2]},
        rounds=5,
        json=Path("cut_poisoning.json"),
    )
    torch.set_num_threads(1)
    began = time.perf_counter()
    lines = measured(given)
    closing = f"degrees, mean (worst person); {time.perf_counter() - began:.0f} s"
    report(given.json, lines, markdown(lines), closing)


if __name__ == "__main__":
    main()
