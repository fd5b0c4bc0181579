"""`vergence privacy forget` for leave-one-out evaluations; deployments are refused.

Used by `unlearning.forget`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vergence.deployment.folders import SETTINGS
from vergence.errors import ConfigError, StateError, nearest
from vergence.experiment.newcomers import PersonPart
from vergence.experiment.privacy import register
from vergence.experiment.schema import TableOrigin, load
from vergence.experiment.validation import validate
from vergence.results.read import StudyResults, read
from vergence.studies.protocols import LEAVE, evaluate


def refuse_deployment(folder: Path) -> None:
    """Refuse the directory of a deployment: the person's data are not on this machine.

    Raises:
        ConfigError: the directory belongs to a deployment; the message says what to do.
    """
    if (folder / SETTINGS).is_file():
        raise ConfigError(
            f"{folder} is a deployment's: it has no data to train again on, and the person's data "
            "and own state lie on their machine, where only they can delete them; take their key "
            "away (vergence deploy revoke FOLDER CLIENT), begin a new deployment without them "
            "(vergence deploy init), then delete this folder, whose models learned from them"
        )


def folds(study: StudyResults) -> Mapping[str, Path]:
    """Return the directory of the fold of each person that was left out; empty for other runs."""
    run = study.runs[0]
    return {who: run.folder / at for who, at in run.results.get("folds", {}).items()}


def forget_folds(study: StudyResults, person: str, out: Path, console: Console) -> None:
    """Repeat a leave-one-out evaluation on everybody except one person.

    Raises:
        ConfigError: no fold left this person out, too few people remain, or `out` has other folds.
        StateError: the data of the others are not the data that the run was trained on.
    """
    there, folder = folds(study), study.folder
    if person not in there:
        raise ConfigError(
            f"{folder}: nobody called '{person}' was left out{nearest(person, there)}"
        )
    if person in read(there[person]).runs[0].people:
        raise ConfigError(
            f"{folder} has folds in which everybody takes part: make them again from data without "
            f"'{person}' (vergence study evaluate)"
        )
    # The fold that left this person out never saw them; all others are trained again without them.
    rest = tuple(who for who in there if who != person)
    if len(rest) < 2:
        raise ConfigError(f"{folder}: one person is left, whom nobody could be left out beside")
    if out.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"--out {out} lies in the folder it is made from; choose another place")
    own = folder / "config.toml"
    experiment = load(own if own.is_file() else there[person].parent / "config.toml")
    others = experiment.on_dataset(PersonPart(experiment.load_data(), rest))
    trained = read(there[person]).runs[0].provenance["data"]["sha256"]
    if validate(others).sha != trained:
        raise StateError(
            f"{folder} was trained on other data of the others than is read; restore it"
        )
    provenance = {
        "command": ["PERSON" if arg == person else arg for arg in ("vergence", *sys.argv[1:])],
        "forgotten": {"people": 1, "way": "retrain", "from": {}},
    }
    evaluate("leave-one-out", replace(others, origin=TableOrigin(provenance)), out, console)
    for line in register.sentences(experiment.plan, others.load_data):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(
        f"new folds: {out / LEAVE}\n"
        f"{there[person].parent} never learned from {person}, but was measured on them; "
        f"{len(rest)} other folds of {folder} learned from them: delete it.\n"
        "not audited: the models of folds are given to nobody; forget in one of them to ask it",
        soft_wrap=True,
        highlight=False,
    )
