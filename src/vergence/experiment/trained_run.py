"""Finished runs read from disk: their experiment, states and data, and the models that result.

Used in most packages.
"""

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
from vergence.results.run_files import nearest_runs, read_json

Metrics = Mapping[str, float]
NEWCOMER, OTHERS = "newcomer", "others"
"""Names of two evaluations of an unseen client: with the model that the method sends to unseen
clients, and the mean over the models of all clients that took part."""


@dataclass(frozen=True)
class TrainedRun:
    """One seed of a finished run of one method, with its states and models.

    Attributes:
        folder: the run directory.
        experiment: the experiment, with only this method.
        method: the method that was trained.
        task: the task, for this seed.
        server: the server's final state.
        clients: the final state of every client, by name.
        fingerprint: digest of all these states.
        solving: solver and precision with which clients were trained.
        evaluation_data: prepared data on which to predict and measure; None: the experiment's data,
            as read now.
        participants: people whose pooled validation data are used to fit thresholds, for measuring
            unseen clients, who have no labels. None: each person's own validation data are used.
        stream: random numbers for predictions outside of the run, such as those for its final
            tables. Such predictions are made without the run's defence of split learning. None: the
            run's own random numbers, with its defence.
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
        """Return the same run with other data, on which it predicts and is measured.

        Args:
            ready: the prepared data.
            participants: people whose pooled validation data are used to fit thresholds; None: each
                person's own validation data.
            stream: random numbers for predictions; None: the run's own.
        """
        return replace(self, evaluation_data=ready, participants=participants, stream=stream)

    @cached_property
    def loaded(self) -> Loaded:
        """The experiment's data, read again from their files.

        Raises:
            ConfigError, DataError: for the reasons that `validate` names.
        """
        return validate(self.experiment)

    @cached_property
    def owner(self) -> str | None:
        """The person for whom `vergence adapt` made this run; None for any other run."""
        return read_json(self.folder / "provenance.json").get("adapted", {}).get("person")

    @property
    def ready(self) -> Federation:
        """Data on which to predict and measure, prepared for the network."""
        return self.loaded.ready if self.evaluation_data is None else self.evaluation_data

    @cached_property
    def trained_on(self) -> Federation:
        """Prepared data of the people who took part.

        Raises:
            StateError: the data that are read now differ from the training data.
        """
        return participants_data(self.folder, self.loaded)

    @cached_property
    def executor(self) -> ClientExecutor:
        """Object that computes the clients' part of the method, on the data of all people."""
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
        """Pooled validation data of `participants`; None if each person's own are used."""
        if self.participants is None:
            return None
        return Samples.concatenate([splits.val for splits in self.participants.people.values()])

    def with_personal_prior(self, samples: Samples, person: str | None) -> Samples:
        """Return samples with the prior that the task computes from a person's training data.

        A prior is a prediction without learning, such as the person's mean map.

        Args:
            samples: prepared samples.
            person: person whose prior is used; None: the prior for an unseen client.
        """
        if not self.task.own_prior:
            return samples
        owner = None if person is None else self.trained_on.people[person]
        if owner is not None and self.task.tunes_prior:
            owner = self.task.tune_prior(owner, partial(self.outputs, self.model(str(person))))
        return self.task.prepare_for(samples, owner)

    def tune_prior(self, params: Params, person: str) -> Splits:
        """Return a person's data, with the prior tuned by the task for a model's parameters.

        A prior is a prediction without learning, such as the person's mean map.
        """
        return self.task.tune_prior(self.ready.people[person], partial(self.outputs, params))

    def without_own_prior(self, person: str) -> TrainedRun:
        """Return the run with data in which a person has no prior from their own training data.

        A prior is a prediction without learning, such as the person's mean map.
        """
        if not self.task.own_prior:
            return self
        own = self.ready.people[person]
        parts = Splits(
            *(self.task.prepare_for(part, None) for part in (own.train, own.val, own.test))
        )
        return replace(
            self, evaluation_data=replace(self.ready, people={**self.ready.people, person: parts})
        )

    def without_tuned_prior(self) -> TrainedRun:
        """Return the run without the prior that validation data tune, if its task has such a prior.

        Its network was trained without it, so that others may start from the network alone.
        """
        if not self.task.tunes_prior:
            return self
        return replace(self, task=replace(self.task, personal_prior=0.0))  # type: ignore[call-arg]

    def offers_newcomer(self, whole: bool = False) -> bool:
        """Return whether the server sends parameters to an unseen client.

        With `whole`, return whether the server sends all parameters of the network that an unseen
        client predicts with.
        """
        trees = self.method.prediction_trees(self.server, NEWCOMER)
        if not whole:
            return bool(trees)
        names = {name for params in trees.values() for name in params.layout.names}
        names.update(self.method.unused_by_newcomers(self.task))
        return names.issuperset(self.executor.solver.layout.names)

    def evaluation_message(self, person: str) -> Message:
        """Return the message with which the server asks for a person's final evaluation."""
        client = self.experiment.plan.silos.home(person)
        trees = self.method.prediction_trees(self.server, client)
        return Message("evaluate", trees, round=self.experiment.plan.rounds)

    def model(self, person: str, known: bool = True, train: Samples | None = None) -> Params:
        """Return the parameters with which a person predicts at the end of the run.

        Args:
            person: name of the person.
            known: whether the person's state from training is used; False: the person is treated as
                an unseen client.
            train: training data of the person that may be used; None: all of them.
        """
        worker, message = self.executor, self.evaluation_message(person)
        state = worker.state(ClientState(self.clients.get(person) if known else None))
        site = worker.site(worker.people, person, message)
        return worker.predicting(
            state, message, site if train is None else replace(site, train=train)
        )

    def newcomer(self, person: str | None = None) -> Params:
        """Return the parameters that an unseen client receives, before any local training.

        If the method sends no whole model, they are the parameters with which `person` would
        predict as an unseen client; None: the first person.
        """
        sent = self.method.prediction_trees(self.server, NEWCOMER).get("model")
        if sent is None or sent.layout != self.executor.solver.layout:
            return self.model(person or self.ready.clients[0], known=False)
        return self.executor.model(sent, self.experiment.plan.rounds)

    def outputs(self, params: Params, samples: Samples) -> Tensor:
        """Return the network's outputs with these parameters, `[samples, ...]`."""
        return self.executor.solver.outputs(params, samples)

    def measure(self, params: Params, person: str) -> Metrics:
        """Return the metrics of a model with these parameters on a person's test data."""
        return self.score(partial(self.outputs, params), person)

    def score(self, outputs: Callable[[Samples], Tensor], person: str) -> Metrics:
        """Return the metrics of a network on a person's test data.

        `outputs` is a function of samples that returns the network's outputs.
        """
        return scored(self.task, outputs, self.ready.people[person], self.validation)

    def refuse_unknown_person(self, person: str | None, people: Collection[str]) -> None:
        """Raise an error if `person` is not among `people`; None is accepted.

        Raises:
            ConfigError: nobody has this name; the message suggests the nearest one.
        """
        if person is not None and person not in people:
            raise ConfigError(f"{self.folder}: no person '{person}'{nearest(person, people)}")

    def matrix(
        self, owners: Sequence[str], people: Sequence[str]
    ) -> Iterator[tuple[str, str, Metrics]]:
        """Yield (owner, person, metrics): each owner's final model on each person's test data.

        Args:
            owners: people whose models are scored.
            people: people on whose test data they are scored.
        """
        shared, rows = None, {}
        for owner in owners:
            params = self.model(owner)
            # A method with one model for all returns the same object, which is measured once.
            if params is not shared:
                shared, rows = params, {p: self.measure(params, p) for p in people}
            for person in people:
                yield owner, person, rows[person]

    def unseen_client(self, person: str, owners: Sequence[str]) -> dict[str, Metrics]:
        """Score models on the test data of a person whose data were not used in training.

        Args:
            person: the unseen client.
            owners: the participants of the run whose models are used.

        Returns:
            Metrics by evaluation. `newcomer`: with the model for unseen clients, if the method
            sends any parameters to them. `others`: means over the final models of `owners`. `P0`:
            those of `newcomer` if the method sends a whole model, else those of `others`.
        """
        if self.participants is None:
            return replace(self, participants=self.ready.only(owners)).unseen_client(person, owners)
        return self.without_own_prior(person)._score_unseen_client(person, owners)

    def _score_unseen_client(self, person: str, owners: Sequence[str]) -> dict[str, Metrics]:
        rows = [metrics for _, _, metrics in self.matrix(owners, [person])]
        scores: dict[str, Metrics] = {
            OTHERS: {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        }
        if self.offers_newcomer():
            scores[NEWCOMER] = self.measure(self.model(person, known=False), person)
        scores["P0"] = scores[NEWCOMER] if self.offers_newcomer(whole=True) else scores[OTHERS]
        return scores


def participants_data(folder: Path, loaded: Loaded) -> Federation:
    """Return the prepared data of the people who took part in a run.

    Usually they are all people in the data that are read now. If people were added to the data
    since the run, they are the people whom the run measured.

    Args:
        folder: the run directory.
        loaded: the data that are read now.

    Raises:
        StateError: neither group has the digest of the run's data.
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
        StateError: the folder is no run directory, or holds folders of methods.
    """
    config = folder / "config.toml"
    if not config.is_file():
        raise StateError(f"{folder} is no run directory (no config.toml){nearest_runs(folder)}")
    if (experiment := load(config)).several:
        labels = ", ".join(f"{folder}/{label}" for label in experiment.methods)
        several = len(experiment.methods) > 1
        what = "several methods; name one of" if several else "the folder of its one method; name"
        raise StateError(f"{folder} holds {what} {labels}")
    return experiment


def read_run(
    folder: Path,
    seed: int | None = None,
    experiment: Experiment | None = None,
    *,
    clients: bool = True,
) -> TrainedRun:
    """Read one seed of a finished run.

    Args:
        folder: the run directory.
        seed: the seed to read; None: the first.
        experiment: the run's experiment, with one method; None: it is read from config.toml.
        clients: whether clients' states are read; in a deployment they are on other machines.

    Raises:
        StateError: the seed is not finished, or a file is damaged.
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
    """Return the folders of the runs of which a merged run consists; none for other runs.

    The keys are seeds of data splits, or names of the people who were left out.

    Raises:
        StateError: one of these runs is a merged run itself.
    """
    parts = {
        name: Path(os.path.normpath(folder / at)) for name, at in _recorded_parts(folder).items()
    }
    # Nothing writes merged runs of merged runs; a forged folder could name itself without end.
    for part in parts.values():
        if (part / "results.json").is_file() and _recorded_parts(part):
            raise StateError(f"{folder / 'results.json'} is damaged: {part} is merged itself")
    return parts


def _recorded_parts(folder: Path) -> dict[str, str]:
    results = read_json(folder / "results.json")
    return results.get("split_folders") or results.get("folds") or {}


def verify_digests(folder: Path) -> list[int]:
    """Compare every file of a finished run with its digest, without running any of its code.

    Returns:
        The seeds of the run.

    Raises:
        StateError: a file differs from its digest, or results.json and the checkpoint have
            different fingerprints.
    """
    checksums.check(folder)
    results = read(folder).runs[0].results
    if parts := _part_folders(folder):
        for part in parts.values():
            verify_digests(part)
        return results["seeds"]
    manifest = read_manifest(folder)
    for seed in results["seeds"]:
        if (about := manifest["done"].get(str(seed))) is None:
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

    A fingerprint is a digest of the final states of one seed. That of a merged run combines the
    fingerprints of the runs of which it consists; each of these runs is verified.

    Args:
        folder: the run directory.
        experiment: the run's experiment; None: it is read from config.toml.

    Returns:
        Seeds with their fingerprints, equal to those in results.json.

    Raises:
        StateError: something differs; the message names the file or the seed.
    """
    checksums.check(folder)
    experiment = experiment or one_run(folder)
    recorded = read(folder).runs[0].results["fingerprint"]
    parts = [dict(verify(part)) for part in _part_folders(folder).values()]
    fingerprints = []
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
        fingerprints.append((seed, sha))
    return fingerprints
