"""Ways to judge models of images: by own and pooled tests, of who was away, and friends alone.

Every seed has a partition of its own, so that a person of one seed is nobody of another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.core.conversation import drive
from vergence.core.data import Samples
from vergence.core.local_training import LocalTraining
from vergence.core.params import Params
from vergence.core.requests import Fit
from vergence.experiment.schema import Experiment, check
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.experiment.validation import validate
from vergence.methods.generative.ap_fl import Befriended, GlobalMemory, mix_models
from vergence.methods.generative.sample_generator import frozen_classifier
from vergence.results.read import Run
from vergence.results.verdict_rules import count_test_images
from vergence_papers.claims import PRIOR, TablePart
from vergence_papers.data_sets import FRIENDS
from vergence_papers.partitions import Partitions, settle_partitions
from vergence_papers.running import PartResult, load_or_measure

OWN, POOLED, HARMONIC = "accuracy", "pooled_accuracy", "harmonic_accuracy"
"""Own test, everybody's, and harmonic mean of the accuracies on own and on others' classes."""
MEASURED = (OWN, POOLED, HARMONIC)
PRESENT_OWN, PRESENT_POOLED, ABSENT_OWN, ABSENT_POOLED = (names[0] for names in FRIENDS.values())
MOST = "own most frequent"
AWAY = "p008"
"""Device 8 of Table 3.1, who alone has the last classes."""
FEW = (20, 50)
"""Training images of who was away, besides all of them."""
AS_PRINTED, AS_THE_TEXT = "ap_fl", "ap_fl, read as the text"
"""Equation 3.10 with a friend of all classes; beta as the share of a friend of own classes."""
FRIEND, TUNED, COMMON, ALONE = "ap_fl friend alone", "fedavg_ft", "fedavg", "local_only"
NO_GENERATOR = "own share and FedAvg, no generator"

Cells = dict[tuple[int, str, str], float]
"""(seed, person, metric) -> value."""
Rows = dict[str, Cells]


@dataclass(frozen=True)
class OneSeed:
    """A finished run of one seed, and the images of everybody's tests."""

    saved: TrainedRun

    @property
    def method(self) -> GlobalMemory:
        """AP-FL, as it was run."""
        method = self.saved.method
        assert isinstance(method, GlobalMemory)
        return method

    def own_models(self, person: str) -> tuple[Params, Params]:
        """Return a person's theta_k and friend after the run."""
        state = self.saved.clients.get(person)
        assert isinstance(state, Befriended)
        assert state.mine is not None
        assert state.friend is not None
        return state.mine, state.friend

    @cached_property
    def everybody(self) -> Samples:
        """Everybody's test images, person after person."""
        return self.saved.executor.measure.everybody

    @cached_property
    def rows(self) -> dict[str, slice]:
        """Where each person's images are among everybody's."""
        ends = np.cumsum([len(splits.test) for splits in self.saved.ready.people.values()])
        starts = [0, *ends[:-1]]
        return {
            person: slice(int(start), int(end))
            for person, start, end in zip(self.saved.ready.clients, starts, ends, strict=True)
        }

    def right(self, params: Params) -> Tensor:
        """Return which of everybody's test images a model names rightly, bool `[n]`."""
        outputs = self.saved.outputs(params, self.everybody)
        return outputs.argmax(1) == self.everybody.columns["label"]

    def scores(self, right: Tensor, person: str) -> dict[str, float]:
        """Return the metrics of a model as a person's own, of which images it names rightly.

        A class is the person's own if the training images have it; H of somebody who has all
        classes is the accuracy on them.
        """
        own = self.saved.ready.people[person].train.columns["label"].unique()
        mine = torch.isin(self.everybody.columns["label"], own)
        theirs = mine if bool(mine.all()) else ~mine
        one, other = (float(right[at].float().mean()) for at in (mine, theirs))
        return {
            OWN: float(right[self.rows[person]].float().mean()),
            POOLED: float(right.float().mean()),
            HARMONIC: 2 * one * other / (one + other) if one + other > 0 else 0.0,
        }

    def models(self, person: str, train: Samples | None = None) -> dict[str, Params]:
        """Return the rows of one AP-FL run: its readings, and what they are made of.

        Args:
            person: whose models.
            train: training images in the place of the person's own; None: the models of the run.
        """
        method = self.method
        theta = self.saved.evaluation_message(person)["model"]
        if train is None:
            mine, friend = self.own_models(person)
        else:
            mine = self.fitted(person, theta, train, method.tune_epochs)
            friend = self.friend(person, mine, train)
        other = self.friend(person, mine, train, friend_classes="own")
        share = method.beta
        return {
            COMMON: theta,
            TUNED: mine,
            AS_PRINTED: mix_models(mine, friend, 1 - share),
            "ap_fl own share 0.01": mix_models(mine, friend, 0.99),
            "ap_fl own share 0.5": mix_models(mine, friend, 0.5),
            FRIEND: friend,
            AS_THE_TEXT: mix_models(mine, other, share),
            "ap_fl friend of own classes alone": other,
            NO_GENERATOR: mix_models(mine, theta, 1 - share),
        }

    def friend(
        self,
        person: str,
        mine: Params,
        train: Samples | None = None,
        generator: Params | None = None,
        **options: Any,
    ) -> Params:
        """Train a friend after the run, with other options of AP-FL or another generator."""
        # Share 1: the friend alone; and theta_k is there, so that no model is tuned for it.
        alone = {"beta": 1.0, "beta_literal": False, "tune_own": False}
        method = replace(self.method, **{**options, **alone})
        run = replace(self.saved, method=method)
        worker, message = run.executor, run.evaluation_message(person)
        if generator is not None:
            message = replace(message, trees={**message.trees, "generator": generator})
        site = worker.site(worker.people, person, message)
        site = site if train is None else replace(site, train=train)
        state = Befriended(method.base_method.client(run.task), mine)
        return worker.predicting(state, message, site)

    def generator(self, there: Sequence[str], **options: Any) -> Params:
        """Train a generator after the run, with other options, by theta_k of these people."""
        method = replace(self.method, **options)
        task, people = self.saved.task, self.saved.ready.people
        layout = frozen_classifier(method.judge(task))[0]
        mine = [self.own_models(person)[0].only(layout.names) for person in there]
        labels = [people[person].train.columns["label"] for person in there]
        counts = [own.bincount(minlength=len(task.class_names())).float() for own in labels]
        flat = torch.stack([params.flat for params in mine])
        talk = method.train_generator(method.server(task).generator, flat, torch.stack(counts))
        worker = replace(self.saved, method=method).executor
        return drive(talk, lambda ask: worker.answer(ask, 1.0))

    def fitted(self, person: str, start: Params, train: Samples, epochs: int) -> Params:
        """Train a model on some of a person's images alone."""
        worker = self.saved.executor
        site = worker.site(worker.people, person, self.saved.evaluation_message(person))
        local: LocalTraining = replace(self.saved.method.local, epochs=epochs, steps=None)
        fit = Fit(start, train, local)
        return worker.solver.fit(fit, site.rng.child("batches", epochs), 1.0).params


def measured(run: Run) -> Cells:
    """Return both accuracies of everybody's final model."""
    own = run.final(OWN, POOLED)
    return dict(zip(zip(own.seed, own.person, own.metric, strict=True), own.value, strict=True))


def befriended(
    runs: Partitions, label: str, seed: int, people: Sequence[str], few: bool = False
) -> Rows:
    """Return the rows of one seed of AP-FL; if `few`, also those of people with few images."""
    own, found = one_seed(runs, label, seed), Rows()

    def add(row: str, person: str, right: Tensor) -> None:
        scores = own.scores(right, person)
        found.setdefault(row, {}).update({(seed, person, m): scores[m] for m in MEASURED})

    common: Tensor | None = None
    for person in people:
        for row, model in own.models(person).items():
            # One model for all is measured once.
            right = own.right(model) if row != COMMON or common is None else common
            common = right if row == COMMON else common
            add(row, person, right)
        train = own.saved.ready.people[person].train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        for count in FEW if few else ():
            models = own.models(person, train.subset(order[:count]))
            for row, model in models.items():
                if row != COMMON:
                    add(f"{row}, {count} images", person, own.right(model))
        for count in (*FEW, len(train)) if few else ():
            plan, local = own.saved.experiment.plan, own.saved.method.local
            some, epochs = train.subset(order[:count]), plan.rounds * local.epochs
            model = own.fitted(person, own.saved.task.init(), some, epochs)
            suffix = f", {count} images" if count in FEW else ""
            add(ALONE + suffix, person, own.right(model))
    return found


def one_seed(runs: Partitions, label: str, seed: int) -> OneSeed:
    """Read one seed of a run, with its data."""
    experiment, study = runs.each[seed]
    saved = read_run(study.run(label).folder, seed)
    return OneSeed(saved.on_data(validate(experiment).ready))


def every_row(runs: Partitions, out: Path, few: bool = False) -> Rows:
    """Return all rows, those of AP-FL's readings among them, of everybody or of who was away."""
    found: Rows = {}
    for run in runs.study.runs:
        people = [AWAY] if few else run.people
        if run.method != "ap_fl":
            found[run.label] = {at: v for at, v in measured(run).items() if at[1] in people}
            continue
        for seed in runs.each:
            measure = partial(befriended, runs, run.label, seed, people, few)
            own = measured_cells(out / f"readings{seed}.json", measure)
            for row, cells in own.items():
                found.setdefault(row, {}).update(cells)
    return found


def measured_cells(path: Path, measure: Callable[[], Rows]) -> Rows:
    """Return rows that were measured before, or measure them and write them down."""
    told = load_or_measure(
        path,
        lambda: {
            row: [[*key, value] for key, value in cells.items()] for row, cells in measure().items()
        },
    )
    return {
        row: {(seed, person, metric): value for seed, person, metric, value in cells}
        for row, cells in told.items()
    }


def over_seeds(cells: Cells, metric: str) -> dict[str, float]:
    """Return seed -> mean over people's models.

    People of a seed share the common model, the generator and the partition: they are no
    independent units, and a common model has one pooled score, whoever holds it.
    """
    found: dict[str, list[float]] = {}
    for (seed, _, each), value in cells.items():
        if each == metric:
            found.setdefault(f"seed {seed}", []).append(value)
    return {seed: float(np.mean(values)) for seed, values in found.items()}


def constants(runs: Partitions, people: Sequence[str]) -> Cells:
    """Return the scores of always naming a person's own most frequent class."""
    found: Cells = {}
    for seed, (_, study) in runs.each.items():
        for person in people:
            told = study.priors[MOST][person]
            found |= {(seed, person, metric): told[metric] for metric in (OWN, POOLED)}
            found[seed, person, HARMONIC] = 0.0
    return found


def both_tests(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody on own images and on pooled ones, seed by seed."""
    runs = settle_partitions(experiment, out)
    rows = every_row(runs, out)
    rows[MOST] = constants(runs, runs.study.runs[0].people)
    return replace(_result(part, runs, rows), base=COMMON + part.suffix)


def absent(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score who was away while others trained, and is back, seed by seed."""
    runs = settle_partitions(experiment, out)
    rows = every_row(runs, out, few=True)
    rows[MOST] = constants(runs, [AWAY])
    return _result(part, runs, rows)


def _result(part: TablePart, runs: Partitions, rows: Rows) -> PartResult:
    scores = {
        row + part.suffix + (PRIOR if row == MOST else ""): {
            metric: values for metric in MEASURED if (values := over_seeds(cells, metric))
        }
        for row, cells in rows.items()
    }
    lower, images = runs.study.lower_is_better, count_test_images(runs.study.runs[0], POOLED)
    return PartResult(scores, runs.study, lower=lower, images={POOLED: images})


def friends(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score friends alone, those of people who took part and those of who was away.

    The first method is run; of the others, which differ from it in how the generator learns, only
    the generator and the friends are trained, after this run.
    """
    table = deepcopy(dict(experiment.table))
    table["methods"] = table["methods"][:1]
    runs = settle_partitions(check(table), out)
    base, *others = experiment.methods
    away = set(experiment.plan.presence.back)
    scores = {}
    for label in others:
        first, own = experiment.methods[base], experiment.methods[label]
        names = [field.name for field in fields(first)]
        options = {n: getattr(own, n) for n in names if getattr(own, n) != getattr(first, n)}
        found: Cells = {}
        for seed in runs.each:
            path = out / f"{label}{seed}.json"
            measure = partial(_friends, runs, base, seed, away, options)
            found |= measured_cells(path, measure)[FRIEND]
        there, gone = (
            {key: v for key, v in found.items() if (key[1] in away) == absent}
            for absent in (False, True)
        )
        scores[label + part.suffix] = {
            PRESENT_OWN: over_seeds(there, OWN),
            PRESENT_POOLED: over_seeds(there, POOLED),
            **(
                {ABSENT_OWN: over_seeds(gone, OWN), ABSENT_POOLED: over_seeds(gone, POOLED)}
                if away
                else {}
            ),
        }
    return PartResult(scores, runs.study, lower=runs.study.lower_is_better)


def _friends(
    runs: Partitions, label: str, seed: int, away: Collection[str], options: Mapping[str, Any]
) -> Rows:
    own = one_seed(runs, label, seed)
    people = own.saved.ready.clients
    generator = own.generator([who for who in people if who not in away], **options)
    found: Cells = {}
    for person in people:
        mine = own.own_models(person)[0]
        friend = own.friend(person, mine, generator=generator, **options)
        scores = own.scores(own.right(friend), person)
        found |= {(seed, person, metric): scores[metric] for metric in MEASURED}
    return {FRIEND: found}


PROTOCOLS = {"both_tests": both_tests, "absent": absent, "friends": friends}
