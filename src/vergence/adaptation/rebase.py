"""`vergence adapt --rebase`: a new common model for somebody to whom an earlier one was adapted.

The person's samples are in the earlier run's folder, so a fleet of devices can get a new version of
the common model without asking anybody to calibrate again.

Used by `cli.runs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vergence.adaptation.adapted_run import (
    Adaptation,
    FittedPerson,
    check_new_folder,
    fit_person,
    open_source,
)
from vergence.adaptation.choice import block_numbers, is_better, of_video
from vergence.adaptation.own_data import OwnData, Rows
from vergence.data import own_samples
from vergence.errors import ConfigError, StateError
from vergence.experiment import checksums
from vergence.experiment.trained_run import one_run
from vergence.results.layout import digits, metric_name, number
from vergence.results.read import Run, read

Scores = Mapping[str, tuple[float, float]]
# Of equal models whose losses on 200 frames have an autocorrelation of .95, six blocks call 6 %
# better, twelve blocks (as in the choice of a way) 12 %, and single frames 37 %.
VIDEO_BLOCKS = 6
CROSS_VALIDATED = "cross-validated on the samples learned from"


@dataclass(frozen=True)
class Rebased:
    """Result of `rebase`.

    Attributes:
        earlier: run directory of the earlier adaptation.
        common: run directory of the new common model.
        version: number of the version that the new common model is for this person.
        metric: name of the metric of the scores.
        scores: scores on the person's samples, before and after, by how they were measured.
        adapted: the new adaptation; None: it was not better on these samples, and nothing was
            written.
        comparable: whether both models have cross-validated errors on the same samples. Without
            them a gain may be chance, and nothing is written.
    """

    earlier: Path
    common: Path
    version: int
    metric: str
    scores: Scores
    adapted: Adaptation | None
    comparable: bool = True


def rebase(
    earlier: Path, common: Path, out: Path | None = None, seed: int | None = None
) -> Rebased:
    """Adapt a new common model to the person of an earlier adaptation, from the samples in it.

    The new model is written only if it is better in cross-validation on the samples that were
    learned from, by more than two standard errors of the difference, and not worse on the others
    where there are some. A common model that is hardly better is no reason to change a person's.
    One without cross-validated errors on the same samples is not taken.

    Args:
        earlier: run directory that `adapt` or `rebase` wrote.
        common: run directory of the new common model, or that of a merged leave-one-out evaluation.
        out: new run directory; None: `earlier` with the next number, as me-2 after me.
        seed: seed of the new run to start from; default its first.

    Raises:
        ConfigError: `earlier` is no adaptation, is one of this common model, or is scored by
            another metric.
        DataError: the samples do not fit the new run's task.
        StateError: a run is damaged or unfinished, the samples are gone, or `out` holds something.
    """
    run, record = _earlier_run(earlier)
    out = next_folder(earlier, record.get("version", 1)) if out is None else out
    check_new_folder(out)
    own, rows = _stored_samples(earlier, record)
    source = open_source(common, own.person, seed)
    task = source.trained.task
    if source.trained.fingerprint == record["fingerprint"]:
        raise ConfigError(f"{earlier} is adapted from the model in {common} already")
    if task.headline != record["headline"]:
        raise ConfigError(
            f"{earlier} is scored by {record['headline']} and {common} by {task.headline}, which "
            "cannot be compared: name a run of the same task"
        )
    fitted = fit_person(source, own, rows)
    lower = task.chooses_by_loss or task.headline in task.lower_is_better
    scores = _scores(run, record, fitted)
    version = record.get("version", 1) + 1
    made = None
    # Written as "not worse", so that a NaN is worse than any number.
    taken = all(after <= before if lower else after >= before for before, after in scores.values())
    earlier_units, units = record.get("held_out", ()), fitted.choice.held_out
    comparable = CROSS_VALIDATED in scores and len(units) == len(earlier_units) > 1
    if comparable:
        block = block_numbers(len(units), of_video(fitted.adapter.labelled), VIDEO_BLOCKS)
        taken = taken and is_better(units, earlier_units, block)
    if taken and comparable:
        names = ("run", "fingerprint", "version")
        before = {"folder": str(earlier), "model": run.results["fingerprint"][str(record["seed"])]}
        before |= {name: record[name] for name in names if name in record}
        history = {"version": version, "before": before, "scores": dict(scores)}
        made = fitted.write(out, history)
    return Rebased(earlier, common, version, task.headline, scores, made, comparable)


def next_folder(folder: Path, version: int) -> Path:
    """Return the folder of the next version: me-2 after me, me-3 after me-2.

    A number at the end that is not the version belongs to the name: wearer-12 is a person, and
    wearer-13 another, so that wearer-12-2 follows.

    Args:
        folder: folder of the earlier version.
        version: its number, from 1.
    """
    name, _, number = folder.name.rpartition("-")
    if name and version > 1 and number == str(version):
        return folder.with_name(f"{name}-{version + 1}")
    return folder.with_name(f"{folder.name}-2")


def _earlier_run(folder: Path) -> tuple[Run, dict[str, Any]]:
    """Return an adapted run, and what its provenance.json says of the adaptation."""
    run = read(folder).runs[0]
    if (record := run.provenance.get("adapted")) is None:
        raise ConfigError(
            f"{folder} is no run of `vergence adapt`: give the folder that it made, and the new "
            "common model by --rebase"
        )
    path = folder / own_samples.FILE
    # Before the checksums, for which a file that was deleted is damaged.
    if not path.is_file():
        raise StateError(
            f"{path} is gone, and a correction is fitted anew to these samples: numbers of the "
            "earlier one are of another network's features and cannot take their place; adapt the "
            "new model with new samples, by --data"
        )
    checksums.check(folder)
    return run, record


def _stored_samples(folder: Path, record: Mapping[str, Any]) -> tuple[OwnData, Rows]:
    """Return the person's samples in an adapted run, and the numbers of those learned from."""
    path, dataset = folder / own_samples.FILE, one_run(folder).dataset
    assert isinstance(dataset, own_samples.OwnSamples)
    samples = own_samples.read_samples(path)
    own = OwnData(dataset.person, samples, str(path), licence=dataset.licence)
    # The samples that were learned from come first.
    return own, torch.arange(record["samples"])


def _scores(run: Run, record: Mapping[str, Any], fitted: FittedPerson) -> Scores:
    """Return the scores of the earlier and the new model on the person's samples."""
    scores, choice = {}, fitted.choice
    if choice.errors and record["errors"]:
        earlier = record["errors"][record["way"]]
        scores[CROSS_VALIDATED] = (earlier, choice.errors[choice.way])
    others = len(fitted.own.samples) - len(fitted.rows)
    # Without other samples the run's score is of those learned from: only where too few of them
    # allow no cross-validation it is better than nothing.
    if (others and len(fitted.rows)) or not scores:
        (earlier,) = run.scores(record["headline"]).values()
        where = f"on the other {others} samples" if others else "on the samples"
        scores[where] = (earlier, fitted.adapter.error(fitted.model))
    return scores


def show(made: Rebased, console: Console) -> None:
    """Print the scores before and after, whether a model was written, and the next command."""
    name = metric_name(made.metric)
    for where, (before, after) in made.scores.items():
        places = digits((before, after))
        line = f"{name} {where}: {number(after, places)}, before {number(before, places)}"
        console.print(line, soft_wrap=True, highlight=False)
    if made.adapted is None and not made.comparable:
        text = (
            f"{made.earlier} stays as it is: it and the model in {made.common} have no "
            "cross-validated errors on the same samples, so a gain may be chance; nothing is "
            f"written. Adapt the new model from two or more samples: vergence adapt {made.common} "
            "--data SAMPLES --out FOLDER"
        )
    elif made.adapted is None:
        text = (
            f"{made.earlier} stays as it is: the model in {made.common} is not better for these "
            "samples by more than two standard errors; nothing is written"
        )
    else:
        folder, way = made.adapted.folder, made.adapted.choice.way
        text = (
            f"version {made.version}, {way}\nmodel:  {folder}\n"
            f"next: vergence export {folder} --out {folder}.onnx"
        )
    console.print(text, soft_wrap=True, highlight=False)
