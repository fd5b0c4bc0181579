"""Ways to trained people who took no part: by one other's model, pruned, or with a few labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from vergence.core.params import Params
from vergence.core.task import Task
from vergence.errors import ConfigError
from vergence.experiment.newcomers import unseen as find_unseen
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.experiment.validation import validate
from vergence.model_tools.pruning_report import PARTS, PruningRow, sides, zeros
from vergence.model_tools.pruning_study import measure, subjects
from vergence.reproduce import running
from vergence.reproduce.claims import OTHERS, TablePart
from vergence.reproduce.data_sets import PRUNED
from vergence.reproduce.running import PartResult
from vergence.results.read import StudyResults
from vergence.results.read import read as read_study
from vergence.studies import few_shot as unlabelled
from vergence.studies import protocols
from vergence.studies.protocols import StudyScene
from vergence.tasks.cross_encoder import CrossEncoderTask
from vergence.training.pruning import Pruning, stored_bytes

UNSEEN = 9
"""So many people, the last of the data, are kept out of one training, as in Table 4.9; at most a
third of them."""
ERROR = "angle_error_deg"
SHOTS = unlabelled.FewShotOptions(source="first")
"""100 labelled pictures of one person of the training, as in the SplitFed thesis, section 3.2."""
KIB = 1024

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
                trained = read_run(run.folder / fold, seed).on(ready)
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
    return PartResult(scores, study, lower=sizes | study.lower_is_better)


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
    folder = protocols.ran(scene, experiment, out / protocols.PEOPLE, people[:-count])
    return read_study(folder), people[-count:]


def strangers(part: TablePart, experiment: Experiment, out: Path) -> PartResult:
    """Score a few people with models that were trained without any of them."""
    study, people = without(part, experiment, out)
    scores = {}
    for run in study.runs:
        runs = [find_unseen(run.folder).run(people[0], seed) for seed in run.seeds]
        told = {
            p: [each.stranger(p, run.people)["P0"][study.headline] for each in runs] for p in people
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
            add(run.label + part.suffix, read_off(scene, model, apart(trained.task)))
            if part.rows:
                mean, random, alone = part.rows
                add(mean, scene.constant())
                add(random, read_off(scene, trained.task.init(), False))
                add(alone, scene.supervised())
    scores = {label: {ERROR: means(values)} for label, values in found.items()}
    return PartResult(scores, study, lower=frozenset({ERROR}))


def apart(task: Task) -> bool:
    """True if a task gives the gaze code a meaning of its own; other codes are read whole."""
    return isinstance(task, CrossEncoderTask) or bool(getattr(task, "equal", 0))


def read_off(scene: unlabelled.FewShotScene, params: Params, gaze: bool) -> unlabelled.Errors:
    """Return the errors of the small network on gaze codes, or on whole codes."""
    wanted = (unlabelled.CODES[0 if gaze else 1], unlabelled.READERS[0])
    return next(errors for *kind, errors in scene.encoder(params) if tuple(kind) == wanted)
