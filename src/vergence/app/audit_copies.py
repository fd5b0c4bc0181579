"""How good a copy of an owner's teacher somebody makes who may ask it so many samples.

The attacker has the provider's means: no data, but the shape of the network, and of what enters it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call

from vergence.app.audit_people import told
from vergence.app.blocks import Record
from vergence.app.saved import Saved
from vergence.attacks.extraction import agreement, copy_into, random_samples
from vergence.attacks.score import Rate
from vergence.core.generator import MEANING, NOISE, frozen
from vergence.core.params import Params
from vergence.core.provider import Taught
from vergence.core.site import Federation
from vergence.core.task import Task
from vergence.core.zero_shot import judged, whole

ASKED = {True: (100, 10_000), False: (100, 300, 1_000, 3_000, 10_000, 30_000)}
"""Answers that are bought, quick or not."""


def copies(runs: list[Saved], data: Federation, quick: bool) -> list[Record]:
    """Return how often copies of the first owner's teacher say what it says of test samples.

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


def copied(saved: Saved, teacher: Params, known: Params, asked: Tensor, inputs: Tensor) -> Tensor:
    """Return what a copy, of other initial weights, says of inputs: `[samples, classes]`."""
    task = saved.task
    # The provider's student begins at the run's seed, the teacher one further.
    network = whole(replace(task, seed=task.seed + 2)).module()
    copy_into(network, asked, answers(task, teacher, known, asked), task.seed)
    with torch.no_grad():
        return network(inputs)


def answers(task: Task, teacher: Params, known: Params, samples: Tensor) -> Tensor:
    """Return what an owner says of samples: probabilities `[samples, classes]`."""
    with torch.no_grad():
        output = judged(whole(task), teacher.flat, samples)
        return task.told(task.among(output, known["classes"]))


def _random(saved: Saved, count: int) -> Tensor:
    return random_samples(count, *saved.task.input_range(), saved.task.seed)


def made(saved: Saved, count: int) -> Tensor:
    """Return so many samples of the run's generator, of the classes that teachers know."""
    assert isinstance(saved.method, Taught)
    synthesis = saved.method.synthesis(saved.task)
    layout, network = frozen(synthesis)
    shape, _, _ = saved.task.input_range()
    flat, found = saved.server.generator.flat, list[Tensor]()
    number = 0
    while sum(map(len, found)) < count:
        for batch in saved.method.drawn(saved.server, "extraction", number):
            values = {n: layout.view(flat, n) for n in layout.names}
            x = torch.cat([batch[NOISE], batch[MEANING]], 1)
            found.append(functional_call(network, values, x).unflatten(1, shape))
        number += 1
    return torch.cat(found)[:count].detach()
