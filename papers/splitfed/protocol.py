"""Protocols of the SplitFed thesis: people who took no part in training, and defences.

People who took no part are met by one other's model, by a pruned one, or with a few labels. Of
defences it is said what they cost, what they leave to an attacker, and how they do behind liars.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from vergence.audit.smashed_data import reconstruction_errors, sends_smashed
from vergence.core.params import Params
from vergence.core.task import Task
from vergence.engine.round_loop import run_rounds
from vergence.engine.storage.run_directory import RunDirectory
from vergence.errors import ConfigError
from vergence.experiment.newcomers import find_held_out as find_unseen
from vergence.experiment.schema import Experiment, check, merge
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.experiment.validation import validate
from vergence.model_tools.pruning_report import PARTS, PruningRow, sides, zeros
from vergence.model_tools.pruning_study import measure, subjects
from vergence.results.read import Run, StudyResults
from vergence.results.read import read as read_study
from vergence.studies import few_shot as unlabelled
from vergence.studies import protocols
from vergence.studies.protocols import StudyScene
from vergence.tasks.cross_encoder import CrossEncoderTask
from vergence.training.pruning import Pruning, stored_bytes
from vergence_papers import running
from vergence_papers.claims import OTHERS, TablePart
from vergence_papers.data_sets import DEFENDED, PRUNED
from vergence_papers.running import PartResult, load_or_measure, priors_of, settle

UNSEEN = 9
"""So many people, the last of the data, are kept out of one training, as in Table 4.9; at most a
third of them."""
ERROR = "angle_error_deg"
SHOTS = unlabelled.FewShotOptions(source="first")
"""100 labelled pictures of one person of the training, as in the SplitFed thesis, section 3.2."""
KIB = 1024
SECONDS, SENT, FOUND, EPSILON, LIED = (names[0] for names in DEFENDED.values())
LOWER = frozenset({SECONDS, SENT, EPSILON, LIED})
MEAN_PICTURE = "mean picture of the others (prior)"
"""The row of an attacker who looks at nothing that was sent."""
PACED = 6
"""Rounds that are timed, between one that warms up and one that also measures everybody.

Verdicts on time are over these, not over people.
"""
VICTIMS = 5
UNITS = ("person", "sample", "picture", "pixel")
LIARS: Mapping[str, Any] = {"attack": "sign_flip", "factor": 4.0, "share": 0.2}

ByPerson = dict[str, list[float]]


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean over seeds of every person."""
    return {person: float(np.mean(v)) for person, v in values.items()}


def following(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody with the own model of the next person; of the last, with the first one's.

    A second row has the mean over the models of all others.
    """
    (label,) = experiment.methods
    found = running.matrix(part, experiment, out)
    assert found.matrix is not None
    (metric,) = found.scores[OTHERS]
    ahead = np.diag(np.roll(found.matrix, -1, axis=0))
    row, people = label + part.suffix, found.people
    scores = {
        row: {metric: dict(zip(people, map(float, ahead), strict=True))},
        f"{row}, mean over all others": found.scores[OTHERS],
    }
    return PartResult(scores, found.study, found.matrix, people)


def training(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score models on the training samples of those they were trained on, by who was left out."""
    study = running.left_out(part, experiment, out).study
    ready = validate(experiment).ready
    scores = {}
    for run in study.runs:
        errors: ByPerson = {}
        for person, fold in run.results["folds"].items():
            for seed in run.seeds:
                trained = read_run(run.folder / fold, seed).on_data(ready)
                others = [p for p in ready.clients if p != person]
                errors.setdefault(person, []).append(
                    float(np.mean([on_training(trained, other) for other in others]))
                )
        scores[run.label + part.suffix] = {study.headline: means(errors)}
    return PartResult(scores, study)


def on_training(trained: TrainedRun, person: str) -> float:
    """Return the headline of what a person's model makes of their own training samples."""
    params, samples = trained.model(person), trained.ready.people[person].train
    task = trained.task
    return task.metrics(trained.outputs(params, samples), samples)[task.headline]


def pruned(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score people left out with pruned models; zeros and stored sizes stand beside the error."""
    study = running.left_out(part, experiment, out).study
    (run,) = study.runs
    found = subjects(run.folder, "all")
    task, method = found[0].trained.task, found[0].trained.method
    lines = [PruningRow(name, pruning_of(name)) for name in part.rows]
    for subject in found:
        for line in lines:
            measure(line, subject, 0)
    cut = method.front(task).network.of[-1]  # type: ignore[attr-defined]
    scores = {}
    for line in lines:
        by_metric = {study.headline: means(line.error)}
        for side, tensors in sides(line, task, cut).items():
            sizes = {"zeros": 100 * zeros(tensors), "size": stored_bytes(tensors) / KIB}
            for what, value in sizes.items():
                by_metric[PRUNED[f"{what} {side}"][0]] = dict.fromkeys(line.error, value)
        scores[line.name] = by_metric
    sizes = frozenset(PRUNED[f"size {side}"][0] for side in PARTS)
    return PartResult(scores | priors_of(study), study, lower=sizes | study.lower_is_better)


def pruning_of(name: str) -> Pruning | None:
    """Pruning of a network by a row such as `linear 0.9`, None where there is no amount."""
    layers, _, amount = name.partition(" ")
    if layers == "linear":
        return Pruning(float(amount))
    return Pruning(float(amount), "conv") if layers == "conv" else None


def without(
    part: TablePart, experiment: Experiment, out: Path
) -> tuple[StudyResults, tuple[str, ...]]:
    """Train without the last people of the data; return the runs, and who was left out.

    Raises:
        ConfigError: fewer than three people.
    """
    scene = StudyScene(experiment, validate(experiment), out, Console(stderr=True))
    count = min(UNSEEN, len(scene.people) // 3)
    if not count:
        raise ConfigError(
            f"{part.name} keeps a third of the people out of training; take three or more, got "
            f"{len(scene.people)}"
        )
    people = scene.people
    folder = protocols.run_on_people(scene, experiment, out / protocols.PEOPLE, people[:-count])
    return read_study(folder), people[-count:]


def strangers(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score a few people with models that were trained without any of them."""
    study, people = without(part, experiment, out)
    scores = {}
    for run in study.runs:
        runs = [find_unseen(run.folder).run(people[0], seed) for seed in run.seeds]
        told = {
            p: [each.unseen_client(p, run.people)["P0"][study.headline] for each in runs]
            for p in people
        }
        scores[run.label + part.suffix] = {study.headline: means(told)}
    return PartResult(scores, study, lower=study.lower_is_better)


def few_shot(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score a few people nobody trained on with gaze read from frozen codes after 100 labels.

    The part's own rows, if any, are the shots' mean, an untrained encoder, and the shots alone.
    """
    study, people = without(part, experiment, out)
    found: dict[str, ByPerson] = {}

    def add(label: str, errors: unlabelled.Errors) -> None:
        for person, error in errors.items():
            found.setdefault(label, {}).setdefault(person, []).append(error)

    for run in study.runs:
        strange = find_unseen(run.folder)
        for seed in run.seeds:
            scene = unlabelled.FewShotScene(strange.run(people[0], seed), people, SHOTS)
            trained = scene.trained
            model = trained.newcomer(people[0])
            add(run.label + part.suffix, read_off(scene, model, code_has_meaning(trained.task)))
            if part.rows:
                mean, random, alone = part.rows
                add(mean, scene.constant())
                add(random, read_off(scene, trained.task.init(), False))
                add(alone, scene.supervised())
    scores = {label: {ERROR: means(values)} for label, values in found.items()}
    return PartResult(scores, study, lower=frozenset({ERROR}))


def code_has_meaning(task: Task) -> bool:
    """True if a task gives the gaze code a meaning of its own; other codes are read whole."""
    return isinstance(task, CrossEncoderTask) or bool(getattr(task, "equal", 0))


def read_off(scene: unlabelled.FewShotScene, params: Params, gaze: bool) -> unlabelled.Errors:
    """Return the errors of the small network on gaze codes, or on whole codes."""
    wanted = (unlabelled.CODES[0 if gaze else 1], unlabelled.READERS[0])
    return next(errors for *kind, errors in scene.encoder(params) if tuple(kind) == wanted)


def attacked(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody, and say what a round cost and what an attacker made of people's pictures.

    The attacker is the inverse network on the first seed's run, and the first few are its victims.
    """
    study = settle(experiment, out)
    (run,) = study.runs
    costs = load_or_measure(out / "costs.json", lambda: measured(experiment, run))
    rounds = load_or_measure(out / "seconds.json", lambda: seconds(experiment))
    sent = sum(run.results["bytes"].values()) / 1024
    by_metric = metrics_and_epsilon(run) | {
        SECONDS: {f"round {number}": took for number, took in enumerate(rounds, 2)},
        SENT: dict.fromkeys(run.people, sent),
    }
    scores = {run.label + part.suffix: by_metric, **priors_of(study)}
    if costs["found"]:
        by_metric[FOUND] = costs["found"]
        scores[MEAN_PICTURE] = {FOUND: costs["mean"]}
    return PartResult(scores, study, lower=LOWER | study.lower_is_better)


def lied_to(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score everybody where all are honest, and once more where a fifth turns updates round."""
    study = settle(experiment, out)
    liars = settle(check(merge(experiment.table, {"poison": dict(LIARS)})), out / "liars")
    scores = {
        run.label + part.suffix: metrics_and_epsilon(run)
        | {LIED: liars.run(run.label).scores(study.headline)}
        for run in study.runs
    }
    lower = LOWER | study.lower_is_better
    return PartResult(scores | priors_of(study), study, lower=lower)


def metrics_and_epsilon(run: Run) -> dict[str, dict[str, float]]:
    """Return metric -> person -> value, and the epsilon of the largest unit that has one."""
    found = {metric: run.scores(metric) for metric in run.results["metrics"]}
    told = run.results.get("privacy", {})
    spent = [float(told[unit]["epsilon"]) for unit in UNITS if unit in told]
    if spent:
        found[EPSILON] = dict.fromkeys(run.people, spent[0])
    return found


def measured(experiment: Experiment, run: Run) -> dict[str, Any]:
    """Return each victim's MSE (x 1000): found, and by the mean."""
    ready = validate(experiment).ready
    (method,) = experiment.methods.values()
    saved = read_run(run.folder)
    victims = run.people[:VICTIMS] if sends_smashed(method) else []
    found = {person: reconstruction_errors(saved, ready, person) for person in victims}
    return {
        "found": {person: 1000 * mine for person, (mine, _) in found.items()},
        "mean": {person: 1000 * mean for person, (_, mean) in found.items()},
    }


def seconds(experiment: Experiment) -> list[float]:
    """Return the CPU seconds of some rounds, server and clients all in this process.

    Messages travel as bytes, so that sums are held by their protocols; sums of groups, which have
    none in one process, are simulated.
    """
    secure = experiment.plan.privacy.aggregation
    engine = "simulator" if secure is not None and secure.groups else "bytes"
    plan = replace(
        experiment.plan,
        rounds=PACED + 2,
        engine=engine,
        workers=1,
        evaluate_every=0,
        points=("P0",),
    )
    (method,) = experiment.methods.values()
    ticks: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        folder = RunDirectory(Path(place), {"config": "", "code": "", "data": ""})
        folder.open()
        run_rounds(
            method,
            experiment.task(plan.seeds[0]),
            federation=validate(experiment).ready,
            plan=plan,
            folder=folder,
            tick=lambda *_: ticks.append(time.process_time()),
        )
    return [b - a for a, b in pairwise(ticks)][1:-1]


PROTOCOLS = {
    "next": following,
    "training": training,
    "pruned": pruned,
    "strangers": strangers,
    "few_shot": few_shot,
    "attacked": attacked,
    "lied_to": lied_to,
}
