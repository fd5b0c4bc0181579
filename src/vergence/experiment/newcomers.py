"""Unseen clients: people on whose data a finished run did not train, and the runs without them.

Used in `adaptation`, `model_tools`, `studies` and `unlearning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vergence.core.federation import Dataset, Federation
from vergence.errors import ConfigError, nearest
from vergence.experiment.trained_run import TrainedRun, one_run, participants_data, read_run
from vergence.experiment.validation import Loaded, validate
from vergence.results.read import read


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
    """

    loaded: Loaded
    folders: Mapping[str, Path]

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
        return HeldOut(self.loaded, {person: self.folders[person]})

    def others_in_training(self, person: str) -> tuple[str, ...]:
        """Return the other left-out people who took part in the run without `person`.

        Adaptation takes the priors (predictions without learning) for `person` from them.
        """
        took_part = read(self.folders[person]).runs[0].people
        return tuple(who for who in self.folders if who in took_part)

    def run(self, person: str, seed: int | None = None) -> TrainedRun:
        """Read one seed of the run without `person`; None: its first seed."""
        folder, ready = self.folders[person], self.loaded.ready
        return read_run(folder, seed).on_data(ready, ready.only(read(folder).runs[0].people))


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
