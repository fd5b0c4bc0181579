"""Labelled samples of one person for `vergence adapt`, from an npz file or by the run's reader.

Used by `adaptation.adapted_run` and `api.finished_run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from vergence.adaptation.fine_tuning import Rows
from vergence.console import note
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.naming import registry_name
from vergence.data import own_samples
from vergence.data.io.finite_values import check_finite
from vergence.errors import ConfigError, DataError, is_out_of_memory, nearest
from vergence.experiment.schema import Experiment
from vergence.experiment.validation import without_input
from vergence.tasks.gaze_angle import GazeAngle, check_angles

ME = "me"
"""Name of a person whose file holds no name."""
GENERATED = "vergence.data.synthetic"
# Options of data sets that leave people out. They are reset to their defaults: a new person need
# not be among the run's people.
CHOOSE_PEOPLE = ("people", "viewers")


@dataclass(frozen=True)
class OwnData:
    """Labelled samples of one person, in the order of the source.

    Attributes:
        person: name of the person.
        samples: samples with the columns that the data set gives.
        source: file or folder that they were read from.
        name: name of the data set; None: not known, as for an npz file.
        licence: licence of the data.
    """

    person: str
    samples: Samples
    source: str
    name: str | None = None
    licence: str = "the person's own"


def read_own_data(source: Path, experiment: Experiment, person: str | None) -> OwnData:
    """Read one person's samples from an npz with the task's columns, or with the run's reader.

    Raises:
        DataError: there is nothing there, it is damaged, or holds NaN.
        ConfigError: several people are there and none is named, or the run's data set reads no
            files.
    """
    if not source.exists():
        raise DataError(f"there is no {source}: give the folder or file of the person's samples")
    if source.suffix == ".npz":
        own = OwnData(person or ME, own_samples.read_samples(source), str(source))
    else:
        own = _from_reader(source, experiment, person)
    parts = Splits(own.samples, own.samples, own.samples)
    check_finite(Federation(str(source), {own.person: parts}))
    return own


def _from_reader(source: Path, experiment: Experiment, person: str | None) -> OwnData:
    dataset, name = experiment.dataset, registry_name(experiment.dataset)
    if type(dataset).__module__.startswith(GENERATED) or "federation" in experiment.table.get(
        "python", []
    ):
        raise ConfigError(
            f"the run's data ('{name}') are not read from files, so {source} cannot be read as "
            f"they were: give {own_samples.WHERE}"
        )
    everybody = {f.name: f.default for f in fields(dataset) if f.name in CHOOSE_PEOPLE}
    try:
        federation = replace(dataset, **everybody).load(str(source))
    except DataError as error:
        if source.is_dir():
            raise
        raise error.reworded(f"{error}; or give {own_samples.WHERE}") from None
    people = federation.clients
    if person is None and len(people) > 1:
        shown = ", ".join(people[:5]) + (", ..." if len(people) > 5 else "")
        raise ConfigError(f"{source} holds {len(people)} people: choose --person among {shown}")
    person = people[0] if person is None else person
    if person not in people:
        raise ConfigError(f"{source}: no person '{person}'{nearest(person, people)}")
    splits = federation.people[person]
    samples = Samples.concatenate([splits.train, splits.val, splits.test])
    licence = federation.about.get("licence", "not stated")
    return OwnData(person, samples, str(source), federation.name, licence)


def rows_to_learn(count: int, wanted: int | None) -> Rows:
    """Numbers of the samples to learn from: all, or `wanted` of them, evenly spread over time.

    Raises:
        ConfigError: there are fewer.
    """
    if wanted is None:
        return torch.arange(count)
    if not 0 <= wanted <= count:
        raise ConfigError(
            f"--samples must lie in 0 to {count}, the samples there are; got {wanted}"
        )
    # The middles of equal parts, so that few samples too are spread over the whole recording.
    return ((torch.arange(wanted) + 0.5) * count / max(wanted, 1)).long()


def prepare_person(experiment: Experiment, seed: int, own: OwnData, rows: Rows) -> Federation:
    """Prepare a person's data for the run's network: samples to learn from, the others as test.

    Raises:
        DataError: a column is missing, or of another shape or type than the task takes; or angles
            are not in radians.
    """
    task = experiment.task(seed)
    learned, other = split_rows(own.samples, rows)
    raw = Federation("adapt", {own.person: Splits(learned, learned, other)})
    try:
        ready = task.prepare(experiment.model.prepare(raw))
        batch = ready.people[own.person].train.take(torch.arange(1))
        with torch.no_grad():
            output = task.forward(task.module().eval(), batch)
            task.loss(output, batch)
            if not task.chooses_by_loss:
                task.metrics(output, ready.people[own.person].train.subset(torch.arange(1)))
    except KeyError as error:
        there = ", ".join(_columns(own.samples))
        raise DataError(
            f"{own.source} lacks {error}, which task '{registry_name(task)}' needs; it has {there}"
            f"{without_input(str(error.args[0]))}"
        ) from None
    except (IndexError, RuntimeError, TypeError, ValueError, ConfigError) as error:
        if is_out_of_memory(error) or isinstance(error, NotImplementedError | RecursionError):
            # The machine or the code fails here, and not the samples.
            raise
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{own.source} is no data of the run's task '{registry_name(task)}' and model "
            f"'{registry_name(experiment.model)}': {reason}; it has "
            f"{', '.join(_columns(own.samples))}"
        ) from None
    if isinstance(task, GazeAngle) and (away := check_angles([(own.source, own.samples)])):
        note(away)
    return ready


def split_rows(samples: Samples, rows: Rows) -> tuple[Samples, Samples]:
    """Samples to learn from, and the others; all samples where one of the two would be empty."""
    other = torch.ones(len(samples), dtype=torch.bool)
    other[rows] = False
    learned = samples.subset(rows) if len(rows) else samples
    return learned, samples.subset(other.nonzero()[:, 0]) if other.any() else samples


def _columns(samples: Samples) -> Sequence[str]:
    return [
        f"{name} {str(column.dtype).removeprefix('torch.')} {list(column.shape)}"
        for name, column in samples.columns.items()
    ]
