"""Model extraction audit: agreement of copies made from so many answers of an owner's teacher.

The attacker has the provider's means: no data, but the shape of the network, and of what enters it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vergence.attacks.model_extraction import agreement, copy_into, random_samples
from vergence.attacks.score import Rate
from vergence.audit.identity import told
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.experiment.trained_run import TrainedRun
from vergence.methods.generative.provider import Taught
from vergence.methods.generative.sample_generator import classifier, judged
from vergence.results.text_tables import Record
from vergence.training.sequential import Solver

ASKED = {True: (100, 10_000), False: (100, 300, 1_000, 3_000, 10_000, 30_000)}
"""Answers that are bought, quick or not."""


def copies(runs: list[TrainedRun], data: Federation, quick: bool) -> list[Record]:
    """Rates at which copies of the first owner's teacher agree with it on test samples.

    Args:
        runs: one of every seed, whose teachers are counted together.
        data: of the owners.
        quick: fewer budgets.
    """
    name, samples = next((name, splits.test) for name, splits in data.people.items())
    taught = [saved for saved in runs if saved.clients[name].teacher is not None]
    found = []
    for source, ways in (("random samples", _random), ("samples of the generator", made)):
        for count in ASKED[quick] if taught else ():
            rates, scores, chances = [], [], []
            for saved in taught:
                task, owner = saved.task, saved.clients[name]
                inputs = task.inputs(samples.take(torch.arange(len(samples))))[0]
                there = answers(task, owner.teacher, owner.known, inputs)
                output = copied(saved, owner.teacher, owner.known, ways(saved, count), inputs)
                rates.append(agreement(output, there))
                scores.append(task.metrics(output, samples))
                chances.append(int(there.argmax(1).bincount().max()))
            rate = Rate(sum(r.hits for r in rates), sum(r.of for r in rates))
            finds = f"a copy of the teacher, by {count:,} answers to {source}: says the same"
            mean = {m: sum(s[m] for s in scores) / len(scores) for m in scores[0]}
            found.append({**told(finds, rate, sum(chances) / rate.of), **mean})
    return found


def copied(
    saved: TrainedRun, teacher: Params, known: Params, asked: Tensor, inputs: Tensor
) -> Tensor:
    """Output of a copy, of other initial weights, for inputs: `[samples, classes]`."""
    task = saved.task
    # The provider's student begins at the run's seed, the teacher one further.
    network = classifier(replace(task, seed=task.seed + 2)).module()
    copy_into(network, asked, answers(task, teacher, known, asked), task.seed)
    with torch.no_grad():
        return network(inputs)


def answers(task: Task, teacher: Params, known: Params, samples: Tensor) -> Tensor:
    """Answers of an owner for samples: probabilities `[samples, classes]`."""
    with torch.no_grad():
        output = judged(classifier(task), teacher.flat, samples.clone())
        return task.prediction(task.among(output, known["classes"]))


def _random(saved: TrainedRun, count: int) -> Tensor:
    return random_samples(count, *saved.task.input_range(), saved.task.seed)


def made(saved: TrainedRun, count: int) -> Tensor:
    """Return so many samples of the run's generator, of the classes that teachers know."""
    assert isinstance(saved.method, Taught)
    solver, found = Solver(saved.method.synthesis(saved.task)), list[Tensor]()
    number = 0
    while sum(map(len, found)) < count:
        for batch in saved.method.drawn(saved.server, "extraction", number):
            found.append(solver.outputs(saved.server.generator, Samples(batch)))
        number += 1
    return torch.cat(found)[:count]
