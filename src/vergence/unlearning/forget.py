"""`vergence privacy forget`: a run's model without one person, and an audit of both models.

Retraining repeats the experiment on the data of all others, which gives the model that would have
been. A patch lets the others train some more rounds from the end of the run, without the states
kept under the person's name: what the models learned from the person fades, and the audit measures
how far.

Used by `cli.privacy`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from vergence.attacks.membership import chance_without
from vergence.audit.forgotten_membership import FPR, losses_without, mean_log_loss
from vergence.core.files import refuse_links, saving, write_text
from vergence.core.naming import list_names
from vergence.engine.storage.run_directory import Checkpoint
from vergence.engine.storage.state_journal import StateRef
from vergence.errors import ConfigError, StateError, nearest
from vergence.experiment import starting_model
from vergence.experiment.newcomers import PersonPart
from vergence.experiment.privacy import register
from vergence.experiment.run import progress_bar, resume, start
from vergence.experiment.schema import Experiment, TableOrigin, check, data_root, load
from vergence.experiment.trained_run import read_run
from vergence.experiment.validation import Loaded, validate
from vergence.metrics.intervals import with_number
from vergence.results.layout import digits, metric_name, number
from vergence.results.read import Run, StudyResults, read
from vergence.results.text_tables import TextTable, csv_text
from vergence.unlearning import data_footprint
from vergence.unlearning.folds import folds, forget_folds, refuse_deployment

SHOWN = 50
"""Largest number of names that an error message lists."""
REMEMBERED = (
    "would be remembered through it, whatever is trained after it; forget them in that run, start "
    "from the model made then, and delete this folder"
)
"""Reason why a person is not forgotten whose data the starting model was trained on."""
# Part of the names of the states that a patched run starts from, which must not be those of states
# that the run writes itself.
BEGUN = "begun"


@dataclass(frozen=True)
class ForgetOptions:
    """Options of `vergence privacy forget`.

    Attributes:
        patch: number of rounds of a patch; 0: retrain.
        shadows: number of shadow runs of the audit; 0: no audit.
        erase: delete the person's data from the run directory afterwards.
    """

    patch: int = 0
    shadows: int = 8
    erase: bool = False

    def __post_init__(self) -> None:
        if self.patch < 0:
            raise ConfigError(f"--patch takes a number of rounds, or 0; got {self.patch}")
        # Of two shadow runs no spread can be estimated.
        if self.shadows not in (0, *range(3, 1000)):
            raise ConfigError(f"--shadows takes 3 runs or more, or 0; got {self.shadows}")


@dataclass(frozen=True)
class ForgottenPerson:
    """A finished run, the person to forget, and the data.

    Attributes:
        everybody: data of all who took part, None if the person's were deleted already.
        others: data of the other people.
    """

    study: StudyResults
    experiment: Experiment
    person: str
    everybody: Loaded | None
    others: PersonPart

    @property
    def folder(self) -> Path:
        """Directory of the finished run."""
        return self.study.folder


def forget(folder: Path, person: str, out: Path, console: Console, options: ForgetOptions) -> None:
    """Train a model without a person, audit both models for traces of them, erase if asked to.

    After an interruption a second call continues.

    Raises:
        ConfigError: nobody of this name took part, the run's plan does not allow it, the starting
            model was trained on the person, or the directory belongs to a deployment.
        StateError: the run is unfinished, its data have changed, a directory holds symbolic links
            to other places, or `out` holds something else.
    """
    refuse_deployment(folder)
    # Files are deleted and written below the folder: a link could lead either to other places.
    refuse_links(folder)
    if folds(study := read(folder)):
        if options.patch or options.erase:
            raise ConfigError(
                f"{folder} is of leave-one-out: every fold is trained again, and the old ones are "
                "deleted as a whole; leave out --patch and --erase"
            )
        forget_folds(study, person, out, console)
        return
    parts = study.runs[0].results.get("split_folders") or {}
    if parts:
        places = dict.fromkeys(
            os.path.normpath(run.folder / at if not study.several else run.folder / at / "..")
            for run in study.runs
            for at in run.results["split_folders"].values()
        )
        raise ConfigError(
            f"{study.folder} is merged over splits and has no models of its own: forget in each "
            f"of {', '.join(places)}, then delete {study.folder}, whose tables name everybody"
        )
    case = open_case(folder, person)
    print_footprint(case, console, options)
    _make(case, out, options.patch)
    made = read(out)
    # A second call after the audit must not repeat its shadow runs.
    if not (out / "forget.csv").exists():
        blocks = [comparison(case, run, made.run(run.label), options) for run in case.study.runs]
        spent = register.sentences(case.experiment.plan, case.others.load)
        _write(out, blocks, spent)
        for block in blocks:
            block.show(console)
        for line in spent:
            console.print(line, soft_wrap=True, highlight=False)
    console.print(f"model: {out}; table: {out / 'forget.md'}", soft_wrap=True, highlight=False)
    # Last: until the new model and its audit stand, the old run is the only copy.
    if options.erase:
        data_footprint.erase(case.folder, person)
        console.print(f"erased from {case.folder}; its fingerprints are those of what is left")


def open_case(folder: Path, person: str) -> ForgottenPerson:
    """Read a finished run and its data, and check that the person can be forgotten.

    Raises:
        ConfigError, StateError: see `forget`.
    """
    study, experiment = read(folder), load(folder / "config.toml")
    erased = ["erased" in run.results for run in study.runs]
    if all(erased) or (any(erased) and all(person in run.people for run in study.runs)):
        raise ConfigError(
            f"{folder}: somebody was erased here; forget '{person}' in the run made then"
        )
    if experiment.plan.delivery.replay is not None:
        raise ConfigError(f"{folder} replays who came when; it cannot be replayed without somebody")
    whole = experiment.dataset.load(data_root(experiment.root))
    whole.refuse_many("forgetting somebody")
    starting_model.refuse_overlap(experiment.model.start, whole.name, [person], REMEMBERED)
    measured = dict.fromkeys(who for run in study.runs for who in run.people)
    known = list(dict.fromkeys([*whole.clients, *measured]))
    # The run's digest of the data says on whom it was trained: on all people of the folder, or on
    # those in its tables, where an earlier forgetting left somebody out.
    for trained in (tuple(whole.clients), tuple(measured)):
        if not set(trained) <= set(whole.clients):
            continue
        poor = tuple(who for who in experiment.few_data.label_poor if who in trained)
        few = replace(experiment.few_data, label_poor=poor)
        loaded = validate(replace(experiment, dataset=PersonPart(whole, trained), few_data=few))
        if loaded.sha == study.runs[0].provenance["data"]["sha256"]:
            _check_can_be_forgotten(folder, person, trained)
            rest = tuple(who for who in trained if who != person)
            return ForgottenPerson(study, experiment, person, loaded, PersonPart(whole, rest))
    _check_can_be_forgotten(folder, person, known)
    if person in whole.clients:
        raise StateError(f"{folder} was trained on other data than what is read now; restore it")
    rest = tuple(who for who in measured if who != person)
    return ForgottenPerson(study, experiment, person, None, PersonPart(whole, rest))


def _check_can_be_forgotten(folder: Path, person: str, trained: Sequence[str]) -> None:
    if person not in trained:
        near = nearest(person, trained)
        near = near if "did you mean" in near else ""
        raise ConfigError(
            f"{folder}: nobody called '{person}' took part{near}; these did: "
            f"{list_names(trained, SHOWN)}"
        )
    if len(trained) == 1:
        raise ConfigError(f"{folder}: '{person}' took part alone; remove the folder instead")


def print_footprint(case: ForgottenPerson, console: Console, options: ForgetOptions) -> None:
    """Print which data about the person the directory holds, and what is erased."""
    console.print(f"{case.folder} keeps of {case.person}:", highlight=False, soft_wrap=True)
    for run in case.study.runs:
        items = ", ".join(data_footprint.remains(run, case.person)) or "nothing"
        console.print(f"  {run.label}: {items}", highlight=False, soft_wrap=True)
    if case.study.several and (tables := data_footprint.rows(case.folder, case.person)):
        console.print(f"  for all: {', '.join(tables)}", highlight=False, soft_wrap=True)
    for what in data_footprint.STAYS:
        console.print(f"  not to be taken out: {what}", highlight=False, soft_wrap=True)
    end = (
        "this is erased when the new model stands"
        if options.erase
        else ("all of it is left there; give the same command with --erase to erase what can be")
    )
    console.print(f"  {end}; the data itself is left alone", highlight=False, soft_wrap=True)


def _make(case: ForgottenPerson, out: Path, patch: int) -> None:
    """Train the new model, or resume its training; one that is finished is not trained again."""
    if out.resolve().is_relative_to(case.folder.resolve()):
        raise ConfigError(f"--out {out} lies in the run it is made from; choose another place")
    experiment = experiment_without(case, patch)
    if not (out / "config.toml").exists():
        start(experiment, out)
        return
    there = [
        path
        for path in (out, *(out / label for label in experiment.methods))
        if (path / "provenance.json").is_file()
    ]
    records = [Run(path, "", {}).provenance for path in there]
    ours = experiment.origin.provenance["forgotten"], validate(experiment).sha
    same = all((each.get("forgotten"), each["data"]["sha256"]) == ours for each in records)
    if not same or load(out / "config.toml").table != experiment.table:
        raise StateError(f"{out} holds another run; choose another --out")
    resume(experiment, out)


def experiment_without(case: ForgottenPerson, patch: int) -> Experiment:
    """Experiment on the other people's data; a patch starts from the run's final states.

    Raises:
        ConfigError: the plan cannot be continued by a patch.
    """
    plan, table = case.experiment.plan, dict(case.experiment.table)
    presence = dict(table.get("presence", {}))
    if case.person in presence.get("gone", {}):
        presence["gone"] = {c: at for c, at in presence["gone"].items() if c != case.person}
    if case.person in presence.get("back", []):
        presence["back"] = [c for c in presence["back"] if c != case.person]
    if case.person in (poor := table.get("few_data", {}).get("label_poor", [])):
        others = [c for c in poor if c != case.person]
        table["few_data"] = {**table["few_data"], "label_poor": others}
    if plan.presence.trace:
        presence["trace"] = str(Path(plan.presence.trace).resolve())
    if presence:
        table["presence"] = presence
    prints = {run.label: run.results["fingerprint"] for run in case.study.runs}
    # The new run must not name the person whom it forgets.
    provenance = {
        "command": ["PERSON" if arg == case.person else arg for arg in ("vergence", *sys.argv[1:])],
        "forgotten": {"people": 1, "way": "patch" if patch else "retrain", "from": prints},
    }
    origin = TableOrigin(provenance)
    if patch:
        # Both plan their course over a fixed number of rounds: budget and sparsity would be wrong.
        for what, there in {"pruning": plan.pruning.amount, "privacy": plan.privacy.spends}.items():
            if there:
                raise ConfigError(
                    f"{case.folder}: rounds after the end are not in the plan of {what}; retrain: "
                    "leave out --patch"
                )
        table["run"] = {**table.get("run", {}), "rounds": patch}
        # The best evaluation of a patch may be its beginning, which has learned from the person.
        if case.experiment.plan.early_stopping.restores:
            table["early_stopping"] = {**table["early_stopping"], "restore_best": False}
        begun = "+".join(sha for shas in prints.values() for sha in shas.values())
        origin = TableOrigin(provenance, {"states": begun}, lambda *at: _begin(case, *at))
    made = check(table, case.folder)
    return replace(made, dataset=case.others, root=None, origin=origin)


def _begin(case: ForgottenPerson, label: str, seed: int, state: Path) -> Checkpoint:
    """Copy the final states of one method and seed, without the person's, as a checkpoint."""
    # Round 0: for the new run the end of the old one is the beginning.
    saved = read_run(case.study.run(label).folder, seed)
    filed = {}
    for client, entry in saved.clients.filed.items():
        if client != case.person:
            name = f"seed{seed}.client.{client}.{BEGUN}.safetensors"
            with saving(state.parent):
                shutil.copyfile(saved.folder / "state" / entry.file, state / name)
            filed[client] = StateRef(name, entry.xxh3, entry.share)
    return Checkpoint(0, data_footprint.stripped(saved.server, case.person), filed)


def comparison(case: ForgottenPerson, old: Run, new: Run, options: ForgetOptions) -> TextTable:
    """Table of the audit of the old and the new model, and of the other people's results."""
    headline, lower = old.headline, old.headline in old.lower_is_better
    models = {"before": old, "patched" if options.patch else "retrained": new}
    rest = case.others.people
    notes = [
        f"{metric_name(headline)}: mean over the {len(rest)} who remain, and the worst of "
        "them; seconds: of all rounds and seeds."
    ]
    if options.patch:
        notes.append("A patch is approximate: only retraining gives the model that never saw them.")
    chances: Mapping[str, Sequence[float]] = {}
    try:
        chances = audited(case, models, options.shadows)
        notes.append(
            "chance: how often a model that never saw this person fits their training samples as "
            f"well, judged by {options.shadows} runs without them, first seed; found: seeds in "
            f"which it is below {FPR:.0%}, as it is for one unseen client in a hundred."
        )
    except ConfigError as error:
        notes.append(f"Not audited: {error}.")
    records = []
    for name, run in models.items():
        scores = with_number(v for who, v in run.scores(headline).items() if who in rest)
        chance = chances.get(name, [])
        records.append(
            {
                "label": run.label,
                "model": name,
                "chance": chance[0] if chance else None,
                "found": sum(each < FPR for each in chance) if chance else None,
                "seeds": len(run.seeds),
                headline: float(np.mean(scores)),
                "worst": max(scores) if lower else min(scores),
                "seconds": run.results["seconds"],
            }
        )
    places = digits([record[headline] for record in records])
    cells = [
        [
            record["model"],
            "" if record["chance"] is None else f"{record['chance']:.2%}",
            "" if record["found"] is None else f"{record['found']} of {record['seeds']}",
            number(record[headline], places),
            number(record["worst"], places),
            f"{record['seconds']:.1f}",
        ]
        for record in records
    ]
    heads = [
        "model",
        "chance",
        f"found at {FPR:.0%} FPR",
        metric_name(headline),
        "worst",
        "seconds",
    ]
    return TextTable(
        f"{old.label}: one person forgotten", heads, cells, notes=notes, records=records
    )


def audited(
    case: ForgottenPerson, models: Mapping[str, Run], shadows: int
) -> dict[str, list[float]]:
    """Probability that a model without the person fits their samples as well, by model and seed.

    Raises:
        ConfigError: the audit is not possible; the message says why.
    """
    if not shadows:
        raise ConfigError("--shadows 0 asks for none")
    if case.everybody is None:
        raise ConfigError("the data of this person is gone already, and shadow runs need it")
    ready, label = case.everybody.ready, models["before"].label
    fits = {
        name: [
            mean_log_loss(read_run(run.folder, seed).on_data(ready), case.person)
            for seed in run.seeds
        ]
        for name, run in models.items()
    }
    with progress_bar() as bar:
        line = bar.add_task(f"audit {label}", total=shadows, score="")
        outside = losses_without(
            case.experiment,
            label,
            ready,
            case.person,
            shadows,
            lambda: bar.update(line, advance=1),
        )
    unit = list(ready.clients).index(case.person)
    return {
        name: chance_without(torch.stack(each), outside, unit).tolist()
        for name, each in fits.items()
    }


def _write(out: Path, blocks: Sequence[TextTable], spent: Sequence[str]) -> None:
    """Write the table, which does not name the person, and what was spent on the others."""
    records = [record for block in blocks for record in block.records]
    texts = {
        "forget.md": "\n".join([*(block.markdown() for block in blocks), *spent]),
        "forget.csv": csv_text(records),
    }
    for name, text in texts.items():
        write_text(out / name, text)
