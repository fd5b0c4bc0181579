"""People a finished run never saw: their models, their scores, and the models' matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vergence.core.data import Samples
from vergence.core.federation import Dataset, Federation
from vergence.core.messages import Message
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData
from vergence.engine.protections.split_defense import defended_trainer
from vergence.errors import ConfigError, StateError, nearest
from vergence.experiment.run import Loaded, digest, load_data
from vergence.experiment.saved_run import SavedRun, one_run, read_saved
from vergence.results.read import read

Metrics = Mapping[str, float]
NEWCOMER, OTHERS = "newcomer", "others"
"""Evaluations of a person who took no part: by the method's newcomer, and by everybody's models."""


@dataclass(frozen=True)
class PersonPart(Dataset):
    """Some people of data that is loaded already."""

    whole: Federation
    people: tuple[str, ...]

    def load(self, root: str | None = None) -> Federation:
        """Return these people alone."""
        return self.whole.only(self.people)


@dataclass(frozen=True)
class NewcomerEvaluator:
    """One seed of a finished run, and data to measure its models on; `ready` is prepared.

    What must be chosen (a threshold) is chosen on a person's own validation data; where `trained`
    is given, the people who took part, on theirs together: a stranger has no labelled data.
    """

    saved: SavedRun
    ready: Federation
    trained: Federation | None = None

    @cached_property
    def validation(self) -> Samples | None:
        """The validation data of all who took part, None where everybody has their own."""
        if self.trained is None:
            return None
        return Samples.concatenate([splits.val for splits in self.trained.people.values()])

    @cached_property
    def worker(self) -> ClientExecutor:
        """Computes with the run's task and method, on everybody's data."""
        saved, plan = self.saved, self.saved.experiment.plan
        guard = defended_trainer(plan, saved.method, saved.task, self.ready, saved.folder / "state")
        return ClientExecutor(
            saved.method,
            saved.task,
            LocalData(self.ready, self.ready),
            RandomStream("run", saved.task.seed),
            Computation(pruning=plan.pruning),
            () if guard is None else (guard,),
        )

    def shares(self, whole: bool = False) -> bool:
        """True if a newcomer is offered anything; with `whole`, all of a network."""
        offered = self.saved.method.predicting(self.saved.server, NEWCOMER)
        if not whole:
            return bool(offered)
        there = {name for params in offered.values() for name in params.layout.names}
        return there.issuperset(self.worker.solver.layout.names)

    def model(self, person: str, known: bool = True) -> Params:
        """Parameters a person predicts with, from the state of a newcomer where not `known`."""
        saved, worker = self.saved, self.worker
        state: Any = saved.method.client(saved.task)
        if known:
            state = saved.clients.get(person, state)
        offered = saved.method.predicting(saved.server, person)
        message = Message("evaluate", offered, round=saved.experiment.plan.rounds)
        site = worker.site(worker.people, person, message)
        return worker.predicting(state, message, site)

    def given(self) -> Params:
        """Return the model a stranger is sent, before any training of their own.

        Where a method sends no such model, what the first person would predict with as a stranger.
        """
        saved = self.saved
        sent = saved.method.predicting(saved.server, NEWCOMER).get("model")
        if sent is None or sent.layout != self.worker.solver.layout:
            return self.model(self.ready.clients[0], known=False)
        return self.worker.pruned(sent, saved.experiment.plan.rounds)

    def measure(self, params: Params, person: str) -> Metrics:
        """Score parameters on a person's test data."""
        task, data, outputs = self.saved.task, self.ready.people[person], self.worker.solver.outputs
        test = outputs(params, data.test)
        if not task.chooses:
            return task.metrics(test, data.test)
        val = data.val if self.validation is None else self.validation
        return task.evaluate(test, data.test, outputs(params, val), val)

    def matrix(
        self, owners: Sequence[str], people: Sequence[str]
    ) -> Iterator[tuple[str, str, Metrics]]:
        """Yield (owner, person, metrics) of every owner's final model on everybody's test data."""
        shared, rows = None, {}
        for owner in owners:
            params = self.model(owner)
            if params is not shared:  # a method with one model for everybody hands out that one
                shared, rows = params, {p: self.measure(params, p) for p in people}
            for person in people:
                yield owner, person, rows[person]

    def stranger(self, person: str, owners: Sequence[str]) -> dict[str, Metrics]:
        """Score somebody who took no part: evaluation -> metrics.

        `newcomer` is the method's own, where it offers anything; `others` the mean over the final
        models of those who took part. P0 is the first where a whole model is offered, else the
        second: what individual learning has to offer a stranger.
        """
        if self.trained is None:
            return replace(self, trained=self.ready.only(owners)).stranger(person, owners)
        rows = [metrics for _, _, metrics in self.matrix(owners, [person])]
        found: dict[str, Metrics] = {
            OTHERS: {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        }
        if self.shares():
            found[NEWCOMER] = self.measure(self.model(person, known=False), person)
        found["P0"] = found[NEWCOMER] if self.shares(whole=True) else found[OTHERS]
        return found


@dataclass(frozen=True)
class HeldOut:
    """Somebody's data, and the runs (person -> run directory) that were trained without them."""

    loaded: Loaded
    folders: Mapping[str, Path]

    def judge(self, person: str, seed: int | None = None) -> NewcomerEvaluator:
        """Return one seed of the run without this person."""
        folder, ready = self.folders[person], self.loaded.ready
        people = read(folder).runs[0].people
        return NewcomerEvaluator(read_saved(folder, seed), ready, ready.only(people))


def unseen(folder: Path, person: str = "all") -> HeldOut:
    """Find who was left out of a run directory, or of those a leave-one-out directory names.

    Raises:
        ConfigError: nobody, or not this person, was left out.
        StateError: the data is not what the run was trained on.
    """
    run = read(folder).runs[0]
    folders = {who: folder / at for who, at in run.results.get("folds", {}).items()}
    first = next(iter(folders.values()), folder)
    loaded, trained = load_data(one_run(first)), read(first).runs[0]
    if digest(loaded.ready.only(trained.people)) != trained.provenance["data"]["sha256"]:
        raise StateError(f"{first} was trained on other data than what is read now; restore it")
    if not folders:
        folders = {who: folder for who in loaded.ready.clients if who not in trained.people}
    if not folders:
        raise ConfigError(
            f"{folder}: everybody took part in this run; make runs with somebody left out: "
            "vergence study evaluate leave-one-out CONFIG --out DIR"
        )
    if person != "all":
        if person not in folders:
            raise ConfigError(f"{folder}: '{person}' was not left out{nearest(person, folders)}")
        folders = {person: folders[person]}
    return HeldOut(loaded, folders)
