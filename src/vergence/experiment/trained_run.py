"""Finished runs read back: experiment, method, task, states, data, and the models they come to."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.messages import Message
from vergence.core.method import Method
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.serialization import digest, pack, quick_digest
from vergence.core.task import Task
from vergence.engine.client_executor import ClientExecutor, Computation, LocalData
from vergence.engine.evaluation import scored
from vergence.engine.protections.setup import pruning_hooks
from vergence.engine.protections.split_defense import defended_trainer
from vergence.engine.records import ClientState
from vergence.engine.round_loop import fingerprint, records_of
from vergence.engine.storage.client_states import ClientStateIndex, ClientStateStore
from vergence.engine.storage.run_directory import (
    SolverChoice,
    filed_in,
    load_progress,
    read_manifest,
    read_whole,
)
from vergence.errors import ConfigError, StateError, nearest
from vergence.experiment import checksums
from vergence.experiment.schema import Experiment, load
from vergence.experiment.validation import Loaded, validate
from vergence.experiment.validation import digest as data_digest
from vergence.privacy.hooks import ClientHooks
from vergence.results.read import read
from vergence.results.run_files import read_json

Metrics = Mapping[str, float]
NEWCOMER, OTHERS = "newcomer", "others"
"""Evaluations of a person who took no part: by the method's newcomer, and by everybody's models."""


@dataclass(frozen=True)
class TrainedRun:
    """One seed of a finished run: whatever needs its models or states begins here.

    Attributes:
        folder: its run directory.
        experiment: the run's, of one method.
        method: of the run.
        task: of the run and seed.
        server: the server's final state.
        clients: everybody's final state.
        fingerprint: of all these states.
        solving: how clients were trained.
        given: data to predict and measure on, prepared; None: the experiment's, as read now.
        participants: data of those who took part, where others are measured: what must be chosen (a
            threshold) is chosen on their validation data together, as a stranger has no labels;
            None: on a person's own.
        stream: random numbers of predictions that are only shown, and pass no defence at a cut;
            None: the run's own, through its defence.
    """

    folder: Path
    experiment: Experiment
    method: Method
    task: Task
    server: Any
    clients: ClientStateIndex
    fingerprint: str
    solving: SolverChoice
    evaluation_data: Federation | None = None
    participants: Federation | None = None
    stream: RandomStream | None = None

    def on_data(
        self,
        ready: Federation,
        participants: Federation | None = None,
        stream: RandomStream | None = None,
    ) -> TrainedRun:
        """The same run, predicting and measured on these data."""
        return replace(self, evaluation_data=ready, participants=participants, stream=stream)

    @cached_property
    def loaded(self) -> Loaded:
        """The experiment's data, as read now.

        Raises:
            ConfigError, DataError: as of `validate`.
        """
        return validate(self.experiment)

    @cached_property
    def owner(self) -> str | None:
        """The one person whom `vergence adapt` made this run for; None of any other run."""
        return read_json(self.folder / "provenance.json").get("adapted", {}).get("person")

    @property
    def ready(self) -> Federation:
        """Data to predict and measure on, as the network wants them."""
        return self.loaded.ready if self.evaluation_data is None else self.evaluation_data

    @cached_property
    def trained_on(self) -> Federation:
        """Prepared data of the people who took part.

        Raises:
            StateError: what is read now is something else.
        """
        return participants_data(self.folder, self.loaded)

    @cached_property
    def executor(self) -> ClientExecutor:
        """Executor with the run's method and task, on everybody's data."""
        plan, data = self.experiment.plan, self.ready
        hooks: tuple[ClientHooks, ...] = pruning_hooks(plan, self.task)
        if self.stream is None:
            guard = defended_trainer(plan, self.method, self.task, data, self.folder / "state")
            hooks += () if guard is None else (guard,)
        return ClientExecutor(
            self.method,
            self.task,
            LocalData(data, data, all_here=True),
            self.stream or RandomStream("run", self.task.seed),
            Computation(self.solving.precision),
            hooks,
        )

    @cached_property
    def validation(self) -> Samples | None:
        """The validation data of all who took part, None where everybody has their own."""
        if self.participants is None:
            return None
        return Samples.concatenate([splits.val for splits in self.participants.people.values()])

    def with_personal_prior(self, samples: Samples, person: str | None) -> Samples:
        """Prepared new samples with what the task makes of a person's training data.

        Somebody new (None) has what is nobody's.
        """
        if not self.task.own_prior:
            return samples
        owner = None if person is None else self.trained_on.people[person]
        if owner is not None and self.task.own_choice:
            owner = self.task.suited(owner, partial(self.outputs, self.model(str(person))))
        return self.task.lent(samples, owner)

    def suited(self, params: Params, person: str) -> Splits:
        """A person's data as they are predicted on with these parameters."""
        return self.task.suited(self.ready.people[person], partial(self.outputs, params))

    def without_own_prior(self, person: str) -> TrainedRun:
        """The run with data of a person of whom it knows nothing: no prior of their own."""
        if not self.task.own_prior:
            return self
        own = self.ready.people[person]
        parts = Splits(*(self.task.lent(part, None) for part in (own.train, own.val, own.test)))
        return replace(
            self, evaluation_data=replace(self.ready, people={**self.ready.people, person: parts})
        )

    def offers_newcomer(self, whole: bool = False) -> bool:
        """True if a newcomer is offered anything; with `whole`, all of a network."""
        offered = self.method.predicting(self.server, NEWCOMER)
        if not whole:
            return bool(offered)
        there = {name for params in offered.values() for name in params.layout.names}
        return there.issuperset(self.executor.solver.layout.names)

    def evaluation_message(self, person: str) -> Message:
        """Message of a person's evaluation at the end."""
        home = self.experiment.plan.silos.home(person)
        offered = self.method.predicting(self.server, home)
        return Message("evaluate", offered, round=self.experiment.plan.rounds)

    def model(self, person: str, known: bool = True, train: Samples | None = None) -> Params:
        """Parameters a person predicts with, from the state of a newcomer where not `known`.

        `train`, where given, is all of the person's training data that it looks at.
        """
        worker, message = self.executor, self.evaluation_message(person)
        state = worker.state(ClientState(self.clients.get(person) if known else None))
        site = worker.site(worker.people, person, message)
        return worker.predicting(
            state, message, site if train is None else replace(site, train=train)
        )

    def newcomer(self, person: str | None = None) -> Params:
        """Parameters of the model that a stranger is sent, before any training of their own.

        Where a method sends no such model, what this person would predict with as a stranger, or
        the first one.
        """
        sent = self.method.predicting(self.server, NEWCOMER).get("model")
        if sent is None or sent.layout != self.executor.solver.layout:
            return self.model(person or self.ready.clients[0], known=False)
        return self.executor.model(sent, self.experiment.plan.rounds)

    def outputs(self, params: Params, samples: Samples) -> Tensor:
        """Outputs of the network with these parameters, `[samples, ...]`."""
        return self.executor.solver.outputs(params, samples)

    def measure(self, params: Params, person: str) -> Metrics:
        """Score parameters on a person's test data."""
        return self.score(partial(self.outputs, params), person)

    def score(self, outputs: Callable[[Samples], Tensor], person: str) -> Metrics:
        """Score any network's outputs on a person's test data."""
        return scored(self.task, outputs, self.ready.people[person], self.validation)

    def refuse_unknown_person(self, person: str | None, people: Collection[str]) -> None:
        """Refuse a person who is none of these people.

        Raises:
            ConfigError: names who comes near.
        """
        if person is not None and person not in people:
            raise ConfigError(f"{self.folder}: no person '{person}'{nearest(person, people)}")

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

    def unseen_client(self, person: str, owners: Sequence[str]) -> dict[str, Metrics]:
        """Score somebody who took no part: evaluation -> metrics.

        `newcomer` is the method's own, where it offers anything; `others` the mean over the final
        models of those who took part. P0 is the first where a whole model is offered, else the
        second: what individual learning has to offer a stranger.
        """
        if self.participants is None:
            owned = replace(self, participants=self.ready.only(owners))
            return owned.unseen_client(person, owners)
        return self.without_own_prior(person)._score_unseen_client(person, owners)

    def _score_unseen_client(self, person: str, owners: Sequence[str]) -> dict[str, Metrics]:
        rows = [metrics for _, _, metrics in self.matrix(owners, [person])]
        found: dict[str, Metrics] = {
            OTHERS: {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        }
        if self.offers_newcomer():
            found[NEWCOMER] = self.measure(self.model(person, known=False), person)
        found["P0"] = found[NEWCOMER] if self.offers_newcomer(whole=True) else found[OTHERS]
        return found


def participants_data(folder: Path, loaded: Loaded) -> Federation:
    """Prepared data of the people who took part in a run: all that are read, or those it measured.

    Raises:
        StateError: they are not what the run was trained on.
    """
    run, ready = read(folder).runs[0], loaded.ready
    sha = run.provenance["data"]["sha256"]
    if loaded.sha == sha:
        return ready
    if set(run.people) <= set(ready.clients) and data_digest(ready.only(run.people)) == sha:
        return ready.only(run.people)
    raise StateError(f"{folder} was trained on other data than what is read now; restore it")


def one_run(folder: Path) -> Experiment:
    """Return the experiment of a run directory of one method.

    Raises:
        StateError: the folder is none, or holds several methods.
    """
    config = folder / "config.toml"
    if not config.is_file():
        raise StateError(f"{folder} is no run directory (no config.toml)")
    experiment = load(config)
    if experiment.several:
        labels = ", ".join(f"{folder}/{label}" for label in experiment.methods)
        raise StateError(f"{folder} holds several methods; name one of {labels}")
    return experiment


def read_run(
    folder: Path,
    seed: int | None = None,
    experiment: Experiment | None = None,
    *,
    clients: bool = True,
) -> TrainedRun:
    """One seed (default: the first) of a finished run.

    `experiment` is the run's, of one method; default: as its config.toml says. Without `clients`
    only the server's state is read: those of a deployment's clients lie on their machines.

    Raises:
        StateError: it is not finished, or a file of it is damaged.
    """
    if (folder / "results.json").is_file() and (parts := _part_folders(folder)):
        raise StateError(
            f"{folder} is merged over runs and has no models of its own; name one of "
            f"{', '.join(map(str, parts.values()))}"
        )
    experiment = experiment or one_run(folder)
    (method,) = experiment.methods.values()
    manifest = read_manifest(folder)
    seed = experiment.plan.seeds[0] if seed is None else seed
    if str(seed) not in manifest["done"]:
        done = ", ".join(manifest["done"]) or "none"
        raise StateError(f"{folder}: seed {seed} is not finished (finished: {done})")
    task = experiment.task(seed)
    about = manifest["done"][str(seed)]
    records = records_of(experiment.plan, method, task)
    rounds = experiment.plan.rounds
    final = load_progress(folder, about["files"], rounds, records, elsewhere=not clients)
    store = ClientStateStore(folder / "state", seed, records)
    index = ClientStateIndex(store, experiment.plan.silos.lab_of)
    index.restore(final.filed)
    solving = SolverChoice(*manifest["solving"])
    return TrainedRun(
        folder, experiment, method, task, final.server, index, about["fingerprint"], solving
    )


def _part_folders(folder: Path) -> dict[str, Path]:
    """Runs that a merged directory is made of: by split seed, or by the person left out.

    Raises:
        StateError: they are merged in turn, which no run is, and could go on for ever.
    """
    parts = {
        name: Path(os.path.normpath(folder / at)) for name, at in _recorded_parts(folder).items()
    }
    for part in parts.values():
        if (part / "results.json").is_file() and _recorded_parts(part):
            raise StateError(f"{folder / 'results.json'} is damaged: {part} is merged itself")
    return parts


def _recorded_parts(folder: Path) -> dict[str, str]:
    told = read_json(folder / "results.json")
    return told.get("split_folders") or told.get("folds") or {}


def verify_digests(folder: Path) -> list[int]:
    """Compare every file of a finished run with its digest, which needs none of its code.

    Returns:
        The seeds.

    Raises:
        StateError: a byte differs somewhere, or a fingerprint is not the checkpoint's.
    """
    checksums.check(folder)
    results = read(folder).runs[0].results
    if parts := _part_folders(folder):
        for part in parts.values():
            verify_digests(part)
        return results["seeds"]
    manifest = read_manifest(folder)
    for seed in results["seeds"]:
        about = manifest["done"].get(str(seed))
        if about is None:
            raise StateError(f"{folder}: seed {seed} is not finished")
        for file, sha in (about["files"][name] for name in about["files"] if name != "clients"):
            read_whole(folder, file, sha)
        for entry in filed_in(folder, about["files"]).values():
            read_whole(folder, entry.file, entry.xxh3, quick_digest)
        if about["fingerprint"] != results["fingerprint"].get(str(seed)):
            raise StateError(
                f"{folder}: seed {seed} has one fingerprint in results.json, and "
                "another in its checkpoint; run it again"
            )
    return results["seeds"]


def verify(folder: Path, experiment: Experiment | None = None) -> list[tuple[int, str]]:
    """Recompute every fingerprint of a finished run from its state files, and check its tables.

    That of a merged run is made of those of its parts, each of which is verified.

    `experiment` is the run's; default: as its config.toml says.

    Returns:
        Seed and fingerprint of each, equal to those in results.json.

    Raises:
        StateError: a byte differs somewhere; names the file or the seed.
    """
    checksums.check(folder)
    experiment = experiment or one_run(folder)
    recorded = read(folder).runs[0].results["fingerprint"]
    parts = [dict(verify(part)) for part in _part_folders(folder).values()]
    found = []
    for seed in experiment.plan.seeds:
        if parts:
            sha = hashlib.sha256("".join(part[seed] for part in parts).encode()).hexdigest()
        else:
            run = read_run(folder, seed, experiment)
            sha = fingerprint(digest(pack(run.server)), run.clients.sha256(), run.solving)
        if sha != recorded[str(seed)]:
            raise StateError(
                f"{folder}: the states of seed {seed} give fingerprint {sha[:12]}..., "
                f"results.json says {recorded[str(seed)][:12]}..."
            )
        found.append((seed, sha))
    return found
