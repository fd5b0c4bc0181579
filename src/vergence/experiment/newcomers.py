"""Unseen clients: people on whose data a finished run did not train, and the runs without them.

A run's residuals.json, by which `vergence adapt` corrects the models of such people, is written and
read here, too.

Used in `adaptation`, `experiment`, `model_tools`, `studies` and `unlearning`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vergence.core.data import Samples, Splits
from vergence.core.federation import Dataset, Federation
from vergence.core.method import Method
from vergence.core.serialization import quick_digest
from vergence.core.task import Task
from vergence.engine.plan import Plan
from vergence.errors import ConfigError, StateError, nearest
from vergence.experiment import checksums
from vergence.experiment.schema import Experiment
from vergence.experiment.trained_run import TrainedRun, one_run, participants_data, read_run
from vergence.experiment.validation import Loaded, validate
from vergence.results.read import read
from vergence.results.run_files import read_json, read_text
from vergence.results.write import write_json
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.residual_kernel import FITTED_SAMPLES, ResidualKernel

RESIDUALS = "residuals.json"
"""Name of the file with the variances of people's residuals under a run's shared model."""
# A sum of fewer people would tell of single people, and hardly of others.
FEWEST_PEOPLE = 5
MOST_PEOPLE = 200
"""Largest number of people whose residuals are added up; the first ones are taken."""


@dataclass(frozen=True)
class PersonPart(Dataset):
    """A data set that consists of some people of a loaded federation.

    Attributes:
        whole: the loaded federation.
        people: names of the people.
    """

    whole: Federation
    people: tuple[str, ...]

    def load(self, root: str | None = None) -> Federation:
        """Return the federation of these people; `root` has no effect."""
        return self.whole.only(self.people)


@dataclass(frozen=True)
class HeldOut:
    """Data of all people, and the runs that left some of them out.

    Attributes:
        loaded: data of all people.
        folders: for each person who was left out, the run directory of a run without this person.
        experiment: the experiment of these runs; None: it is read from each run directory.
    """

    loaded: Loaded
    folders: Mapping[str, Path]
    experiment: Experiment | None = None

    def only(self, person: str) -> HeldOut:
        """Return this record for one left-out person alone; unchanged if `person` is `all`.

        Raises:
            ConfigError: the person was not left out.
        """
        if person == "all":
            return self
        if person not in self.folders:
            first = next(iter(self.folders.values()))
            near = nearest(person, self.folders)
            raise ConfigError(f"{first}: '{person}' was not left out{near}")
        return replace(self, folders={person: self.folders[person]})

    def others_in_training(self, person: str) -> tuple[str, ...]:
        """Return the other left-out people who took part in the run without `person`.

        Adaptation takes the priors (predictions without learning) for `person` from them.
        """
        took_part = read(self.folders[person]).runs[0].people
        return tuple(who for who in self.folders if who in took_part)

    def run(self, person: str, seed: int | None = None) -> TrainedRun:
        """Read one seed of the run without `person`; None: its first seed."""
        folder, ready = self.folders[person], self.loaded.ready
        run = read_run(folder, seed, self.experiment)
        return run.on_data(ready, ready.only(read(folder).runs[0].people))


def new_people(folder: Path, experiment: Experiment, people: Federation) -> HeldOut:
    """Return people who took no part in a run, for adaptation and its measurement.

    Args:
        folder: the run directory.
        experiment: the run's experiment.
        people: the new people and their data, in the form of the run's data.

    Raises:
        ConfigError: somebody of this name took part in the run.
        DataError: the data do not fit the run's task or network.
    """
    took_part, task = experiment.federation(), experiment.task(experiment.plan.seeds[0])
    if both := sorted({*took_part.clients} & {*people.clients}):
        raise ConfigError(
            f"'{both[0]}' took part in {folder}: give people who did not, or other names"
        )
    for person, parts in people.people.items():
        every = Samples.concatenate([parts.train, parts.val, parts.test])
        for known in same_samples(took_part.people, every, task):
            raise ConfigError(
                f"'{person}' has samples of '{known}', who took part in {folder}: give people who "
                "did not"
            )
    whole = replace(took_part, people={**took_part.people, **people.people})
    loaded = validate(experiment.on_dataset(PersonPart(whole, tuple(whole.clients))))
    return HeldOut(loaded, dict.fromkeys(people.clients, folder), experiment)


def same_samples(people: Mapping[str, Splits], samples: Samples, task: Task) -> dict[str, int]:
    """Count which of these samples people have, by person; the person with the most is first.

    A sample that several people have, such as a picture that all of them saw, identifies nobody.

    Args:
        people: the people and their samples.
        samples: the samples in question.
        task: the task, whose inputs, labels and scored columns are compared, if both have them.
    """
    read = dict.fromkeys((*task.input_columns, *task.labels, *task.scored_columns))
    names = [name for name in read if name in samples.columns or name in samples.banks]
    rows = _row_digests(samples, names) if names else []
    owners: dict[str, set[str]] = {row: set() for row in rows}
    for person, splits in people.items():
        for part in (splits.train, splits.val, splits.test):
            # With other columns than these no sample is the same.
            if all(name in part.columns or name in part.banks for name in names):
                for row in owners.keys() & {*_row_digests(part, names)}:
                    owners[row].add(person)
    found = Counter(person for row in rows if len(owners[row]) == 1 for person in owners[row])
    return dict(found.most_common())


def _row_digests(samples: Samples, names: Sequence[str]) -> list[str]:
    """Return a digest of each sample's values in these columns, whatever the type of numbers."""
    rows = [""] * len(samples)
    for name in names:
        if bank := samples.banks.get(name):
            used, places = samples.columns[bank.by].unique(return_inverse=True)
            shas = [_digest(bank.rows[row]) for row in used.tolist()]
            values = ["".join(shas[at] for at in each) for each in places.view(len(rows), -1)]
        else:
            values = [_digest(row) for row in samples.columns[name]]
        rows = [row + value for row, value in zip(rows, values, strict=True)]
    return rows


def _digest(row: torch.Tensor) -> str:
    return quick_digest(row.float().contiguous().numpy().tobytes())


def find_held_out(folder: Path, person: str = "all") -> HeldOut:
    """Find the people who were left out of a run, or of the runs of a leave-one-out directory.

    Args:
        folder: the directory.
        person: one of these people; `all`: all of them.

    Raises:
        ConfigError: nobody was left out, or this person was not.
        StateError: the data that are read now differ from the run's training data.
    """
    run = read(folder).runs[0]
    folders = {who: folder / at for who, at in run.results.get("folds", {}).items()}
    first = next(iter(folders.values()), folder)
    loaded = validate(one_run(first))
    trained = participants_data(first, loaded).clients
    if not folders:
        folders = {who: folder for who in loaded.ready.clients if who not in trained}
    if not folders:
        raise ConfigError(
            f"{folder}: everybody took part in this run; make runs with somebody left out: "
            "vergence study evaluate leave-one-out CONFIG --out DIR"
        )
    return HeldOut(loaded, folders).only(person)


def guards_people(plan: Plan) -> bool:
    """Return whether a plan has protections whose accounts do not cover people's residuals."""
    privacy = plan.privacy
    return bool({*privacy.hiding} - {"aggregation"} or privacy.robust or privacy.own)


def has_residuals(plan: Plan, method: Method, task: Task) -> bool:
    """Return whether a run on one machine writes residuals.json, if enough people take part.

    It does for gaze angles, and under no protection other than secure sums: the others promise
    something about people, and their accounts do not cover these numbers.
    """
    return (
        isinstance(task, GazeAngle)
        and not (task.personal_prior or task.correction or guards_people(plan))
        and bool(method.prediction_trees(method.server(task), ""))
    )


def fewest_people(plan: Plan) -> int:
    """Return the smallest number of people whose residuals a run adds up.

    Secure sums promise that nothing is known of fewer people than a sum has.
    """
    return max(FEWEST_PEOPLE, plan.privacy.least)


def write_residuals(folder: Path, finals: Sequence[TrainedRun]) -> None:
    """Write residuals.json: by seed, variances of people's residuals under the shared model.

    They are fitted to a sum over people of what each person's validation samples say of variances
    (`GazeAngle.residual_evidence`). `vergence adapt` corrects a new person's model by them.
    """
    entries = {}
    for run in finals:
        kernel, count = fit_residuals(run, run.ready.clients[:MOST_PEOPLE])
        plan = run.experiment.plan
        plan = plan.known(plan.silos.count(len(run.ready.clients)))
        if kernel is not None and count >= fewest_people(plan):
            entries[str(run.task.seed)] = {
                "people": count,
                "variances": kernel.variances.T.tolist(),
            }
    # A run of more rounds may find the file of its earlier model, which is not of this one.
    (folder / RESIDUALS).unlink(missing_ok=True)
    if entries:
        write_json(folder / RESIDUALS, entries)


def fit_residuals(run: TrainedRun, people: Sequence[str]) -> tuple[ResidualKernel | None, int]:
    """Fit variances to validation residuals of people under the shared model of a run.

    Returns:
        The process, None if nobody has such residuals, and the number of people who have.
    """
    evidence = [each for who in people if (each := _evidence(run, who)) is not None]
    if not evidence:
        return None, 0
    return ResidualKernel.of(torch.stack(evidence).sum(0)), len(evidence)


def _evidence(run: TrainedRun, person: str) -> torch.Tensor | None:
    """Return what a person's validation samples say of variances, None without such samples."""
    assert isinstance(run.task, GazeAngle)
    val = run.ready.people[person].val
    if not len(val) or not run.task.has_kernel_inputs(val):
        return None
    # Those that are used anyway, so that a large network need not see the others.
    val = val.subset(torch.linspace(0, len(val) - 1, min(FITTED_SAMPLES, len(val))).long())
    evidence = run.task.residual_evidence(run.outputs(run.newcomer(person), val), val)
    return evidence if evidence.isfinite().all() else None


def read_residuals(folder: Path, seed: int) -> ResidualKernel | None:
    """Return the process with the variances in a run's residuals.json, None if it has none.

    Raises:
        StateError: the file is damaged, or was not written by the run.
    """
    if not (folder / RESIDUALS).is_file():
        return None
    # The sums of a run that wrote no such file have no line on it.
    if checksums.sealed(folder) and RESIDUALS not in read_text(folder / checksums.NAME):
        raise StateError(
            f"{folder / RESIDUALS} was put there after the run was sealed; delete this file"
        )
    entry = read_json(folder / RESIDUALS).get(str(seed))
    if entry is None:
        return None
    return ResidualKernel(torch.tensor(entry["variances"], dtype=torch.float64).T)
