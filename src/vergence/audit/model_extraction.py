"""Model extraction audit: agreement between an owner's teacher and copies made from its answers.

The attacker knows as much as the provider: the architecture and the input shape, and no data.

Used by `audit.run`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vergence.attacks.model_extraction import agreement, copy_into, random_samples
from vergence.attacks.score import Rate
from vergence.audit.identity import rate_record
from vergence.core.data import Samples
from vergence.core.federation import Federation
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.experiment.trained_run import TrainedRun
from vergence.methods.generative.provider import Taught
from vergence.methods.generative.sample_generator import classifier, judge_outputs
from vergence.results.text_tables import Record
from vergence.training.sequential import Solver

# Numbers of answers that the attacker asks for, True: quick. An owner who limits answers sees from
# the row of each number what a limit would protect.
ASKED = {True: (100, 10_000), False: (100, 300, 1_000, 3_000, 10_000, 30_000)}


def extraction_rates(runs: list[TrainedRun], data: Federation, quick: bool) -> list[Record]:
    """Return the rates at which copies of the first owner's teacher agree with it on test samples.

    Args:
        runs: runs of all seeds, whose teachers are counted together.
        data: data of the owners.
        quick: fewer numbers of answers.
    """
    name, samples = next((name, splits.test) for name, splits in data.people.items())
    taught = [saved for saved in runs if saved.clients[name].teacher is not None]
    records = []
    for source, ways in (("random samples", _random), ("samples of the generator", _generated)):
        for count in ASKED[quick] if taught else ():
            rates, scores, chances = [], [], []
            for saved in taught:
                task, owner = saved.task, saved.clients[name]
                inputs = task.inputs(samples.take(torch.arange(len(samples))))[0]
                there = teacher_answers(task, owner.teacher, owner.known, inputs)
                output = copy_output(saved, owner.teacher, owner.known, ways(saved, count), inputs)
                rates.append(agreement(output, there))
                scores.append(task.metrics(output, samples))
                # A copy that always names the teacher's commonest class agrees this often.
                chances.append(int(there.argmax(1).bincount().max()))
            rate = Rate(sum(r.hits for r in rates), sum(r.of for r in rates))
            finds = f"a copy of the teacher, by {count:,} answers to {source}: says the same"
            mean = {m: sum(s[m] for s in scores) / len(scores) for m in scores[0]}
            records.append({**rate_record(finds, rate, sum(chances) / rate.of), **mean})
    return records


def copy_output(
    saved: TrainedRun, teacher: Params, known: Params, asked: Tensor, inputs: Tensor
) -> Tensor:
    """Train a copy on answers to `asked`; return its output for `inputs`, `[samples, classes]`."""
    task = saved.task
    # The provider's student starts from the run's seed, the teacher from the next one: a copy that
    # started from the same weights would agree by that alone.
    network = classifier(replace(task, seed=task.seed + 2)).module()
    copy_into(network, asked, teacher_answers(task, teacher, known, asked), task.seed)
    with torch.no_grad():
        return network(inputs)


def teacher_answers(task: Task, teacher: Params, known: Params, samples: Tensor) -> Tensor:
    """Return an owner's teacher's answers: probabilities `[samples, classes]`."""
    # Of the classes that the owner has: a teacher never answers with others.
    with torch.no_grad():
        output = judge_outputs(classifier(task), teacher.flat, samples.clone())
        return task.prediction(task.restrict_to_known(output, known["classes"]))


def _random(saved: TrainedRun, count: int) -> Tensor:
    return random_samples(count, *saved.task.input_range(), saved.task.seed)


def _generated(saved: TrainedRun, count: int) -> Tensor:
    """Generate `count` samples with the run's generator, of the classes that teachers know."""
    assert isinstance(saved.method, Taught)
    solver, parts = Solver(saved.method.synthesis(saved.task)), list[Tensor]()
    number = 0
    while sum(map(len, parts)) < count:
        for batch in saved.method.generator_inputs(saved.server, "extraction", number):
            parts.append(solver.outputs(saved.server.generator, Samples(batch)))
        number += 1
    return torch.cat(parts)[:count]
