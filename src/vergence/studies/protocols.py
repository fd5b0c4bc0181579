"""`vergence study evaluate`: an experiment under one protocol, in folds that can be interrupted.

Every protocol has a folder in OUT: `within`, `leave-one-out`, `late` and `people` contain runs,
measurements on them (`matrix`, `conditions`) lie next to these. Docs: docs/how-to/protocols.md.

Used by `cli.study` and `unlearning.folds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from vergence.core.files import csv_of, refuse_links
from vergence.core.naming import plural
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError, PartialRun
from vergence.experiment import starting_model
from vergence.experiment.newcomers import PersonPart
from vergence.experiment.run import refuse_several_splits, start_or_resume
from vergence.experiment.schema import Experiment, Table, check
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.experiment.validation import Loaded, validate
from vergence.results.harm import own_prior
from vergence.results.layout import digits, metric_name, number, spread
from vergence.results.read import StudyResults, read
from vergence.results.text_tables import TextTable
from vergence.results.write import export_csv
from vergence.studies import measures, merge_folds, merge_splits, split_runs
from vergence.studies.conditions import write_conditions
from vergence.studies.curves import Curves, present

WITHIN, LEAVE, LATE, PEOPLE = "within", "leave-one-out", "late", "people"
SAMPLES, SPLITS, LEAVE_CONDITION = "samples", "splits", "leave-condition-out"
GROWTH, UNSEEN = (5, 10, 15, 30), 5
"""Numbers of people to train on, and the number of others to measure, for protocol `people`."""
COUNTS = (5, 10, 20)
"""Numbers of training samples of each person, for protocol `samples`."""
SPLIT_SEEDS = (0, 1, 2)
"""Values of `federation.split_seed`, for protocol `splits`."""


@dataclass(frozen=True)
class StudyScene:
    """An experiment with `methods`, its data, the folder of its protocols, and a console.

    Attributes:
        experiment: the experiment.
        loaded: its data.
        out: the folder of its protocols.
        console: the console to print to.
        sizes: numbers of people to train on, for protocol `people`.
        unseen: number of other people, the last of the data, to measure in it.
        counts: numbers of training samples, for protocol `samples`.
        split_seeds: seeds of splits, for protocol `splits`.
        folds: number of parts of the people for `leave_one_out`, each left out of one training; 0:
            as many as people.
    """

    experiment: Experiment
    loaded: Loaded
    out: Path
    console: Console
    sizes: tuple[int, ...] = GROWTH
    unseen: int = UNSEEN
    counts: tuple[int, ...] = ()
    split_seeds: tuple[int, ...] = ()
    folds: int = 0

    @property
    def people(self) -> tuple[str, ...]:
        """Everybody in the data."""
        return tuple(self.loaded.raw.clients)

    def run(self, folder: Path, seed: int) -> TrainedRun:
        """Return one seed of a finished run, to be measured on everybody's data."""
        return read_run(folder, seed).on_data(self.loaded.ready)


def evaluate(
    protocol: str,
    experiment: Experiment,
    out: Path,
    console: Console,
    sizes: Sequence[int] | None = None,
    unseen: int | None = None,
    samples: Sequence[int] | None = None,
    split_seeds: Sequence[int] | None = None,
) -> None:
    """Run the missing runs of a protocol, measure, and print.

    Raises:
        ConfigError: an unknown protocol, options of another one, or an experiment or data that
            do not suit it.
        PartialRun: interrupted; the same command continues.
        StateError: OUT was begun with another experiment, code or data, or has links in it.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(f"no protocol '{protocol}'; known: {', '.join(PROTOCOLS)}")
    options = (
        ("people", sizes, PEOPLE),
        ("unseen", unseen, PEOPLE),
        ("samples", samples, SAMPLES),
        ("split-seeds", split_seeds, SPLITS),
    )
    for option, value, owner in options:
        if value is not None and protocol != owner:
            raise ConfigError(f"--{option} is for protocol {owner}; leave it out for {protocol}")
    # OUT may come from somebody else: a link in it would lead our writes to another file.
    refuse_links(out)
    experiment = split_runs.with_method_list(experiment)
    if protocol not in (SPLITS, SAMPLES):
        refuse_several_splits(experiment, f"protocol {protocol}")
    sizes, unseen = tuple(GROWTH if sizes is None else sizes), UNSEEN if unseen is None else unseen
    counts = tuple(COUNTS if samples is None else samples)
    seeds = tuple(
        experiment.plan.split_seeds or SPLIT_SEEDS if split_seeds is None else split_seeds
    )
    scene = StudyScene(experiment, validate(experiment), out, console, sizes, unseen, counts, seeds)
    try:
        PROTOCOLS[protocol](scene)
    except PartialRun as error:
        # The rest of the message advises how to resume one fold; here the whole study goes on.
        reason = str(error).partition(";")[0]
        raise PartialRun(f"{reason}; what is done is kept: give the same command again") from None
    summarise(out, console)


def run_on_people(
    scene: StudyScene, experiment: Experiment, folder: Path, people: Sequence[str]
) -> Path:
    """Run or resume an experiment on these people; a finished one stays as it is."""
    experiment = experiment.on_dataset(PersonPart(scene.loaded.raw, tuple(people)))
    start_or_resume(experiment, scene.loaded.ready.only(people), folder)
    return folder


def within(scene: StudyScene) -> Path:
    """Train on everybody and test on everybody's test part, as `vergence run` does."""
    return run_on_people(scene, scene.experiment, scene.out / WITHIN, scene.people)


def leave_one_out(scene: StudyScene) -> Path:
    """Train without one person and score that person, for everybody in turn.

    With `folds` the people are dealt to so many parts, and training is without one part in turn.

    Raises:
        ConfigError: there are too few people, or the start model has seen them.
    """
    people, count = scene.people, scene.folds or len(scene.people)
    if not 2 <= count <= len(people):
        raise ConfigError(
            f"leave-one-out needs two people or more, and 2 to {len(people)} folds; the data has "
            f"{plural(len(people), 'person')} for {plural(count, 'fold')}"
        )
    # A start model that was trained on a person knows that "unseen" client already.
    starting_model.refuse_overlap(scene.experiment.model.start, scene.loaded.raw.name, {*people})
    folds, others = {}, {}
    for first in range(count):
        # Neighbours are dealt to different parts, as data sets often order people by group.
        part = people[first::count]
        rest = [p for p in people if p not in part]
        scene.console.print(
            f"without {', '.join(part)} ({first + 1} of {count})", highlight=False, soft_wrap=True
        )
        folder = scene.out / LEAVE / "folds" / "-".join(part)
        made = run_on_people(scene, scene.experiment, folder, rest)
        folds |= dict.fromkeys(part, made)
        others |= dict.fromkeys(part, rest)
    folds = {person: folds[person] for person in people}

    def score(label: str, person: str, seed: int) -> Mapping[str, Mapping[str, float]]:
        return scene.run(folds[person] / label, seed).unseen_client(person, others[person])

    how = f"leave people out in {count} folds" if scene.folds else "leave one person out"
    split = f"{how}: trained on all others, tested on the test part of"
    merge_folds.merge(scene.experiment, scene.loaded, scene.out / LEAVE, folds, score, split)
    _print_spent(scene.out / LEAVE, scene.console)
    return scene.out / LEAVE


def late(scene: StudyScene) -> Path:
    """Let one person join after half of the rounds, for everybody in turn."""
    presence, rounds = scene.experiment.plan.presence, scene.experiment.plan.rounds
    if presence.trace or presence.rhythm:
        raise ConfigError("late writes a presence trace of its own: take trace and rhythm out")
    named = zip(scene.experiment.methods.items(), scene.experiment.table["methods"], strict=True)
    entries = []
    for (label, method), entry in named:
        # Pooled data have one client, which cannot be late for a single person.
        if not method.pooled:
            entries.append(entry)
            continue
        scene.console.print(f"late: without {label}, which has everybody's data from the start")
    if not entries:
        raise ConfigError("late: no method is left in which a person can be absent")
    late_table = {**scene.experiment.table, "methods": entries}
    folds = {}
    for place, person in enumerate(scene.people, start=1):
        scene.console.print(f"{person} is late ({place} of {len(scene.people)})", highlight=False)
        folder = scene.out / LATE / "folds" / person
        lines = [(c, rounds // 2 if c == person else 0, 1, 1) for c in scene.people]
        folder.mkdir(parents=True, exist_ok=True)
        trace = folder / f"late_{person}.csv"
        trace.write_text(
            csv_of([("client", "round", "idle", "charging"), *lines]),
            encoding="utf-8",
            newline="\n",
        )
        folds[person] = run_on_people(
            scene, _with_presence_trace(late_table, trace), folder, scene.people
        )

    def score(label: str, person: str, seed: int) -> Mapping[str, Mapping[str, float]]:
        values = read(folds[person] / label).runs[0].values
        own = values[(values.person == person) & (values.seed == seed)]
        points = own.groupby("evaluation", sort=False)
        return {point: dict(zip(at.metric, at.value, strict=True)) for point, at in points}

    split = f"one person joins at round {rounds // 2} of {rounds}; tested on"
    merge_folds.merge(check(late_table), scene.loaded, scene.out / LATE, folds, score, split)
    _print_spent(scene.out / LATE, scene.console)
    return scene.out / LATE


def _print_spent(folder: Path, console: Console) -> None:
    """Print the budget that the folds of each method spend together on the same people."""
    for run in read(folder).runs:
        for unit, block in run.results.get("privacy", {}).items():
            if isinstance(block, Mapping) and "folds_together" in block:
                text = (
                    f"privacy of {run.label}: {block['folds_together']} folds on the same people "
                    f"spend epsilon {block['epsilon']:.3g} together, all seeds, per {unit}; "
                    "methods add up too"
                )
                console.print(text, highlight=False, soft_wrap=True)


def _with_presence_trace(table: Table, trace: Path) -> Experiment:
    """Return an experiment with a trace of presence."""

    def under(name: str) -> Experiment:
        return check({**table, "presence": {**table.get("presence", {}), "trace": name}})

    # config.toml names the file without its folder, as OUT may be moved.
    return replace(under(str(trace.resolve())), table=under(trace.name).table)


def growth(scene: StudyScene) -> None:
    """Train on more and more people, and measure the same others as unseen clients.

    Every seed draws its own order of people; a seed's larger sets include its smaller ones.
    """
    sizes, people = scene.sizes, scene.people
    needed = max(sizes) + scene.unseen
    if min(sizes) < 1 or scene.unseen < 1 or needed > len(people):
        raise ConfigError(
            f"people: training on {', '.join(map(str, sizes))} and testing on {scene.unseen} "
            f"others takes {needed} people, the data has {len(people)}: give fewer, or more data"
        )
    known, left_out = people[: -scene.unseen], people[-scene.unseen :]
    starting_model.refuse_overlap(scene.experiment.model.start, scene.loaded.raw.name, {*left_out})
    values: dict[str, np.ndarray] = {}
    seeds = scene.experiment.plan.seeds
    for column, size in enumerate(sizes):
        for seed in seeds:
            scene.console.print(f"{plural(size, 'person')}, seed {seed}", highlight=False)
            # The same permutation for every size: a larger set includes the smaller one, so that
            # the curve shows more people and not other people.
            drawn = RandomStream("people", seed).numpy().permutation(len(known))[:size]
            chosen = [known[int(i)] for i in sorted(drawn)]
            folder = scene.out / PEOPLE / f"n{size:02d}" / f"seed{seed}"
            run_on_people(scene, with_key(scene.experiment, "run", "seeds", [seed]), folder, chosen)
            for label in scene.experiment.methods:
                table = values.setdefault(label, np.zeros((len(left_out), len(sizes))))
                trained = scene.run(folder / label, seed)
                for row, person in enumerate(left_out):
                    got = trained.unseen_client(person, chosen)["P0"]
                    table[row, column] += got[trained.task.headline] / len(seeds)
    task = scene.experiment.task(seeds[0])
    how = f"newcomers; local-only: others' models; {plural(len(seeds), 'seed')}"
    ends, name = task.bounds.get(task.headline), "people in training"
    curves = Curves(task.headline, name, left_out, sizes, values, how, bounds=ends)
    present(curves, scene.out / PEOPLE / "people.png", scene.console)


def learning(scene: StudyScene) -> None:
    """Train with more and more samples of each person, and measure on the same test part.

    A larger number of samples includes the smaller ones. With `run.evaluate_people` the same few
    people are measured at each; with `run.split_seeds` they are measured on every split.
    """
    counts = scene.counts
    if not counts or len(set(counts)) != len(counts):
        raise ConfigError(f"samples: give different numbers, at least one; got {counts}")
    # All are checked before anything trains.
    trainings = {
        count: training_on(
            scene, with_key(scene.experiment, "few_data", "samples_per_person", count)
        )
        for count in sorted(counts)
    }
    values: dict[str, list[dict[str, float]]] = {}
    titles: dict[str, str] = {}
    task = scene.experiment.task(0)
    headline = task.headline
    for count, train in trainings.items():
        scene.console.print(f"{plural(count, 'sample')} of each person", highlight=False)
        there = read(train(scene.out / SAMPLES / f"n{count:03d}"))
        rows = {run.label: run.scores(headline) for run in there.runs}
        titles |= {run.label: run.title for run in there.runs}
        for label, found in {**own_priors(there, headline), **rows}.items():
            values.setdefault(label, []).append(found)
    people = tuple(values[next(iter(scene.experiment.methods))][0])
    arrays = {
        label: np.array([[found[person] for person in people] for found in columns]).T
        for label, columns in values.items()
    }
    how = f"within people; {plural(len(scene.experiment.plan.seeds), 'seed')}"
    if splits := scene.experiment.plan.split_seeds:
        how += f"; {plural(len(splits), 'split')}"
    curves = Curves(
        headline,
        "training samples",
        people,
        tuple(sorted(counts)),
        arrays,
        how,
        titles,
        bounds=task.bounds.get(headline),
    )
    present(curves, scene.out / SAMPLES / "samples.png", scene.console)


def training_on(scene: StudyScene, experiment: Experiment) -> Callable[[Path], Path]:
    """Check an experiment, on each of its splits; return a function that runs it in a folder."""
    if not experiment.plan.split_seeds:
        own = replace(scene, loaded=validate(experiment))
        return lambda folder: run_on_people(own, experiment, folder, scene.people)
    splits = split_runs.data_splits(experiment, experiment.plan.split_seeds)
    return lambda folder: on_splits(scene, experiment, splits, folder)


def own_priors(study: StudyResults, metric: str) -> dict[str, dict[str, float]]:
    """Return the scores of the baselines from each person's own data, by their names."""
    return {
        name: {person: metrics[metric] for person, metrics in study.priors[name].items()}
        for name in own_prior(study.runs[0])
    }


def with_key(experiment: Experiment, part: str, key: str, value: Any) -> Experiment:
    """Return the experiment with one key of one of its tables set to this value."""
    table = experiment.table
    return check({**table, part: {**table.get(part, {}), key: value}})


def several_splits(scene: StudyScene) -> Path:
    """Run the experiment on several splits of the same people, and merge person by person."""
    # All splits are checked before anything trains.
    made = split_runs.data_splits(scene.experiment, scene.split_seeds)
    on_splits(scene, scene.experiment, made, scene.out / SPLITS)
    merge_splits.show(read(scene.out / SPLITS), scene.console)
    return scene.out / SPLITS


def on_splits(
    scene: StudyScene,
    experiment: Experiment,
    splits: Mapping[int, split_runs.DataSplit],
    folder: Path,
) -> Path:
    """Run or resume an experiment on each split, and merge the runs."""

    def one(split: split_runs.DataSplit, inner: Path) -> None:
        scene.console.print(f"split {inner.name.removeprefix('split')}", highlight=False)
        own = replace(scene, loaded=split.loaded)
        run_on_people(own, split.experiment, inner, own.people)

    split_runs.run_and_merge(experiment, splits, folder, one)
    return folder


def matrix(scene: StudyScene) -> None:
    """Measure everybody's final model on everybody's test data."""
    folder = within(scene)
    measures.write_matrix(scene.experiment, scene.run, folder, scene.people, scene.console)


def conditions(scene: StudyScene) -> None:
    """Split everybody's error by the recorded conditions of samples."""
    folder = within(scene)
    known = scene.loaded.raw.conditions
    write_conditions(scene.experiment, scene.run, folder, scene.people, known, scene.console)


def leave_condition_out(scene: StudyScene) -> None:
    """Train without one level of a condition, and test on it alone, for each level in turn."""
    known = {name: levels for name, levels in scene.loaded.raw.conditions.items() if levels[1:]}
    if not known:
        raise ConfigError(
            f"{LEAVE_CONDITION}: the data have no condition with two levels; name columns of the "
            "tables in federation.columns.conditions"
        )
    task = scene.experiment.task(0)
    # Every level is checked before anything trains.
    trainings = {
        (name, level): training_on(
            scene, with_key(scene.experiment, "few_data", "tested_on", [name, level])
        )
        for name, levels in known.items()
        for level in levels
    }
    lines, rows = [], []
    for place, ((name, level), train) in enumerate(trainings.items(), start=1):
        scene.console.print(f"without {name} {level} ({place} of {len(trainings)})", soft_wrap=True)
        # A level may be any text, and no name of a folder.
        folder = train(scene.out / LEAVE_CONDITION / "folds" / f"{place:03d}")
        found = {run.label: run.scores(task.headline) for run in read(folder).runs}
        lines += [
            (label, name, level, person, task.headline, repr(score))
            for label, scores in found.items()
            for person, score in scores.items()
        ]
        means = [float(np.mean([*scores.values()])) for scores in found.values()]
        rows.append([f"{name} {level}", *(number(mean, digits(means)) for mean in means)])
    path = scene.out / LEAVE_CONDITION / "levels.csv"
    export_csv(path, ("label", "condition", "level", "person", "metric", "value"), lines)
    heading = f"{metric_name(task.headline)} on a level that nobody trained on: mean over people"
    TextTable(heading, ["tested on", *scene.experiment.methods], rows).show(scene.console)
    scene.console.print(f"table: {path}", soft_wrap=True)


def score(scene: StudyScene) -> None:
    """Run both protocols that the combined score needs."""
    within(scene)
    leave_one_out(scene)


PROTOCOLS: Mapping[str, Callable[[StudyScene], Any]] = {
    WITHIN: within,
    LEAVE: leave_one_out,
    "score": score,
    LATE: late,
    PEOPLE: growth,
    "matrix": matrix,
    "conditions": conditions,
    LEAVE_CONDITION: leave_condition_out,
    SAMPLES: learning,
    SPLITS: several_splits,
}


def combined(specific: float, independent: float, lower_is_better: bool) -> float:
    """Return a method's combined score for people it was trained on and for unseen clients.

    It is the harmonic mean, 2 / (1 / specific + 1 / independent), and 0 if either is not above 0;
    for errors it is their mean.
    """
    # The harmonic mean of 1 / error is 1 / mean error: what a user sees on average who is a
    # participant with probability one half.
    if lower_is_better:
        return (specific + independent) / 2
    if min(specific, independent) <= 0:
        return 0.0
    return 2 / (1 / specific + 1 / independent)


def summarise(out: Path, console: Console) -> None:
    """Print and write the headline under each finished protocol of OUT, and the combined score."""
    done = {
        name: read(out / name)
        for name in (WITHIN, LEAVE, LATE)
        if (out / name / "index.json").exists()
    }
    if not done:
        return
    first = next(iter(done.values()))
    lower = first.headline in first.lower_is_better
    columns: dict[str, dict[str, dict[str, float]]] = {}
    for run in first.runs:
        scores = {
            name: found.scores(first.headline)
            for name, study in done.items()
            if (found := next((r for r in study.runs if r.label == run.label), None)) is not None
        }
        if WITHIN in scores and LEAVE in scores:
            scores["combined"] = {
                p: combined(value, scores[LEAVE][p], lower)
                for p, value in scores[WITHIN].items()
                if p in scores[LEAVE]
            }
        columns[run.label] = scores
    names = list(dict.fromkeys(name for scores in columns.values() for name in scores))
    places = digits(float(np.mean(list(v.values()))) for s in columns.values() for v in s.values())
    ends = first.runs[0].bounds(first.headline)
    rows = [
        [
            first.run(label).title,
            *(spread(s[n].values(), places, ends) if n in s else "" for n in names),
        ]
        for label, s in columns.items()
    ]
    sense = ", lower is better" if lower else ""
    heading = f"{metric_name(first.headline)}: mean and 95 % interval over people{sense}"
    TextTable(heading, ["", *names], rows).show(console)
    export_csv(
        out / "protocols.csv",
        ("label", "protocol", "person", "metric", "value"),
        (
            (label, name, person, first.headline, repr(float(value)))
            for label, scores in columns.items()
            for name, values in scores.items()
            for person, value in values.items()
        ),
    )
