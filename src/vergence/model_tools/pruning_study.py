"""`vergence model prune`: error, size and speed of a finished run's models after pruning.

Used by `cli.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge
from rich.console import Console
from torch import Tensor, nn

from vergence.core.data import Samples
from vergence.core.files import replacing, write_text
from vergence.core.masks import Mask
from vergence.core.naming import plural
from vergence.core.options import NamedOptions
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.requests import Fit
from vergence.core.stages import pieces
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.experiment.newcomers import HeldOut, find_held_out
from vergence.experiment.run import progress_bar
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.model_tools.latency import medians
from vergence.model_tools.pruning_report import PruningRow, picture, report_table
from vergence.results.figure_style import save
from vergence.results.read import read
from vergence.training.pruning import (
    Pruning,
    bind_parameters,
    pack_pruned,
    prunable_weights,
    prune_request,
    removable_layers,
    remove_pruned_units,
    with_sparse_layers,
)

AMOUNTS = (0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True)
class PruningOptions(NamedOptions, label="prune"):
    """Settings of the measurement.

    Attributes:
        person: one person, or all: those the run left out, else those who took part.
        amounts: shares of the linear layers' weights that are removed.
        tune: number of training batches afterwards, in which removed weights stay zero.
        cut: a stage of the network; sizes up to it (client) and behind it (server) are separate.
        rounds: timed repetitions.
    """

    person: str = "all"
    amounts: tuple[float, ...] = AMOUNTS
    tune: Annotated[int, Ge(0)] = 0
    cut: str | None = None
    rounds: Annotated[int, Ge(1)] = 200


@dataclass(frozen=True)
class PrunedModel:
    """One model of one seed, with the people who predict with it and data to train it on."""

    trained: TrainedRun
    params: Params
    people: tuple[str, ...]
    train: Callable[[], Samples]


def prune(
    folder: Path, out: Path, console: Console, options: PruningOptions = PruningOptions()
) -> list[PruningRow]:
    """Prune every model that people of a run predict with; print, write and draw the results.

    Args:
        folder: run directory of one method, or of leave-one-out.
        out: a directory for prune.csv, prune.md, prune.png and the pruned models: of the first
            seed and, where everybody has their own, of the first person.
        console: where the table goes.
        options: what to measure.

    Raises:
        ConfigError: an unknown person, or a network without such layers or stage.
        StateError: an unfinished run, or other data than it was trained on.
    """
    found = subjects(folder, options.person)
    first = found[0].trained.task
    if options.cut is not None:
        # A wrong stage is refused here, before minutes of measuring.
        pieces(first, options.cut)
    lines = table(first, options.amounts)
    with progress_bar() as bar:
        task = bar.add_task("pruning", total=len(lines) * len(found), score="")
        for subject in found:
            for line in lines:
                measure(line, subject, options.tune)
                bar.advance(task)
    clock(lines, first, found[0], options.rounds)
    people = tuple(dict.fromkeys(p for subject in found for p in subject.people))
    left = ", left out of training" if found[0].trained.participants else ""
    seeds = plural(len({subject.trained.task.seed for subject in found}), "seed")
    heading = f"{folder}: pruned; {plural(len(people), 'person')}{left}, {seeds}"
    block = report_table(heading, lines, first, options.tune, options.cut)
    block.show(console)
    for name, text in (("prune.csv", block.csv()), ("prune.md", block.markdown())):
        write_text(out / name, text)
    for line in lines:
        with replacing(out / f"{line.name.replace(' ', '_')}.safetensors") as scratch:
            scratch.write_bytes(pack_pruned(line.tensors, {"pruning": line.name}))
    save(picture(lines, first.headline), out / "prune.png")
    console.print(f"written: {out}", soft_wrap=True)
    return lines


def table(task: Task, amounts: Sequence[float]) -> list[PruningRow]:
    """Return the rows: as trained, linear layers, and convolutions where there are any."""
    network = task.module()
    lines = [PruningRow("as trained", None)]
    lines += [PruningRow(f"linear {a:g}", Pruning(a)) for a in amounts]
    try:
        prunable_weights(network, "conv")
    except ConfigError:
        return [*lines, PruningRow("neurons 0.5", Pruning(0.5, "linear", structured=True))]
    return [
        *lines,
        PruningRow("conv 0.9", Pruning(0.9, "conv")),
        PruningRow("both 0.9", Pruning(0.9, "both")),
        PruningRow("global 0.9", Pruning(0.9, "both", "global")),
        PruningRow("filters and neurons 0.5", Pruning(0.5, "both", structured=True)),
    ]


def subjects(folder: Path, person: str) -> list[PrunedModel]:
    """Return every model to prune, of every seed of a run; a shared model once."""
    run = read(folder).runs[0]
    if "folds" in run.results:
        return strange(find_held_out(folder, person))
    first = read_run(folder)
    took_part, ready = first.trained_on.clients, first.ready
    # People whom the run left out come first: what pruning costs on new people is the question.
    others = [p for p in ready.clients if p not in took_part]
    unseen = others if person == "all" else [p for p in others if p == person]
    if unseen:
        return strange(HeldOut(first.loaded, dict.fromkeys(unseen, folder)))
    people = run.people if person == "all" else [person]
    if not set(people) <= set(ready.clients):
        raise ConfigError(f"{folder}: no person '{person}'; known: {', '.join(run.people)}")
    return [s for seed in run.seeds for s in known(read_run(folder, seed).on_data(ready), people)]


def known(trained: TrainedRun, people: Sequence[str]) -> list[PrunedModel]:
    """Return the models of people who took part, each with the data of those who share it."""
    # A model that several people share is the same object for all of them.
    owners: dict[int, tuple[Params, list[str]]] = {}
    for person in people:
        params = trained.model(person)
        owners.setdefault(id(params), (params, []))[1].append(person)

    def data(names: Sequence[str]) -> Callable[[], Samples]:
        return lambda: Samples.concatenate([trained.ready.people[p].train for p in names])

    return [
        PrunedModel(trained, params, tuple(names), data(names)) for params, names in owners.values()
    ]


def strange(folds: HeldOut) -> list[PrunedModel]:
    """Return the models that people left out predict with, trainable on those who took part."""
    first = folds.run(next(iter(folds.folders)))
    if not first.offers_newcomer(whole=True):
        raise ConfigError(
            f"{first.folder}: this method shares no whole model that an unseen client could use"
        )

    def one(trained: TrainedRun, person: str) -> PrunedModel:
        everybody = trained.participants
        assert everybody is not None
        trained = trained.without_own_prior(person)
        return PrunedModel(
            trained,
            trained.model(person, known=False),
            (person,),
            lambda: Samples.concatenate([s.train for s in everybody.people.values()]),
        )

    seeds = first.experiment.plan.seeds
    return [one(folds.run(p, seed), p) for seed in seeds for p in folds.folders]


def measure(line: PruningRow, subject: PrunedModel, tune: int) -> None:
    """Prune one model and score it for its people; with `tune`, train it on and score it again."""
    task, trained = subject.trained.task, subject.trained
    params, network = subject.params, task.module()
    pruning, full = line.pruning, Mask.full(params.layout)
    keep = full if pruning is None else pruning.mask_of_remaining(network, params)
    pruned = made(line, network, keep, params)
    if line.network is None:
        line.network, line.tensors = pruned, dict(pruned.named_parameters())
    for person in subject.people:
        line.error.setdefault(person, []).append(score(trained, pruned, person))
    if not tune:
        return
    local = replace(trained.method.local, steps=tune, schedule="constant")
    ask = prune_request(Fit(params, subject.train(), local), keep)
    after = trained.executor.solver.fit(ask, RandomStream("prune", task.seed, line.name)).params
    pruned = made(line, task.module(), keep, after)
    for person in subject.people:
        line.tuned.setdefault(person, []).append(score(trained, pruned, person))


def made(line: PruningRow, network: nn.Module, keep: Mask, params: Params) -> nn.Module:
    """Return the pruned network; where possible, filters and neurons are removed from it."""
    # In memory of its own: what is read from a file is not aligned, and slower.
    whole = bind_parameters(network, params.like(keep.keep(params).flat.clone()))
    structured = line.pruning is not None and line.pruning.structured
    return (
        remove_pruned_units(whole, keep)
        if structured and removable_layers(whole) is not None
        else whole
    )


@torch.no_grad()
def score(trained: TrainedRun, network: nn.Module, person: str, batch: int = 64) -> float:
    """Return a person's headline metric with a network of any size."""
    task = trained.task

    def outputs(part: Samples) -> Tensor:
        return torch.cat(
            [
                task.forward(network, part.take(slice(at, at + batch))).float()
                for at in range(0, len(part), batch)
            ]
        )

    return trained.score(outputs, person)[task.headline]


def clock(lines: Sequence[PruningRow], task: Task, subject: PrunedModel, rounds: int) -> None:
    """Time one sample through every network, with dense and with sparse linear layers, in turn."""
    one = subject.trained.ready.people[subject.people[0]].test.take(slice(0, 1))
    networks = [line.network for line in lines if line.network is not None]

    def call(network: nn.Module) -> Callable[[], object]:
        return torch.no_grad()(lambda: task.forward(network, one))

    both = [*networks, *map(with_sparse_layers, networks)]
    times = medians([call(network) for network in both], rounds)
    for line, dense, sparse in zip(lines, times, times[len(lines) :], strict=False):
        line.dense_ms, line.sparse_ms = dense, sparse
