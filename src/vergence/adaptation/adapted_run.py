"""`vergence adapt`: makes a run directory with a model for a person who took no part in a run.

The directory is that of a run of no rounds, whose network starts from the adapted model. So every
command that reads a run also reads an adapted model.

Used by `adaptation.portable`, `adaptation.rebase`, `api.finished_run` and `cli.runs`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vergence.adaptation.choice import (
    FEWEST,
    PULLS,
    SIMPLEST_FIRST,
    AdaptationChoice,
    candidates,
    choose,
)
from vergence.adaptation.fine_tuning import SHARED, Adapter, FineTuning, PersonalModel
from vergence.adaptation.other_people import own_priors, priors_of_run
from vergence.adaptation.own_data import (
    ME,
    OwnData,
    Rows,
    prepare_person,
    read_own_data,
    rows_to_learn,
    split_rows,
)
from vergence.console import note
from vergence.core.data import Samples
from vergence.core.files import saving, write_whole
from vergence.core.params import Params
from vergence.core.randomness import RandomStream
from vergence.core.serialization import digest, pack
from vergence.core.task import StartingModel, Task
from vergence.data import own_samples
from vergence.data.noise import Noise
from vergence.errors import ConfigError, StateError, first_line, is_out_of_memory
from vergence.experiment import checksums
from vergence.experiment.newcomers import HeldOut, find_held_out, same_samples
from vergence.experiment.record_tables import local_table, table_of
from vergence.experiment.run import RoundCallback, check_vacant, start
from vergence.experiment.schema import (
    Experiment,
    TableOrigin,
    build_dataset,
    build_method,
    build_plan,
    check,
    check_combinations,
    load,
)
from vergence.experiment.starting_model import split_seed_of, starting_model
from vergence.experiment.table_binding import record_from_table
from vergence.experiment.trained_run import TrainedRun, read_run
from vergence.metrics.calibration import AngleCorrection, Correction, FittedCalibration
from vergence.models.personal_eye import PersonalEye
from vergence.results.layout import digits, finite, metric_name, number
from vergence.results.read import read, table
from vergence.tasks.gaze_angle import GazeAngle
from vergence.training.residual_kernel import KernelCorrection, ResidualKernel

LABEL, LEARNED = "adapted", "adapted_training_scores"
"""Labels in tables; the second where the scores are those of the samples it was trained on."""
PERSONAL = ("correction", "personal_prior", "prior_in")
"""Options of a task that adaptation sets for one person."""


@dataclass(frozen=True)
class Adaptation:
    """Result of `adapt`: where a person's model lies and how it was chosen.

    Attributes:
        folder: run directory of the adapted model.
        experiment: experiment of that run.
        person: name of the person.
        samples: number of samples that it was fitted to.
        choice: name of the chosen way, and the cross-validated errors of all ways.
        others: number of the person's samples that it was not fitted to.
        errors: headline metric on these of the shared and of the adapted model; empty without them.
    """

    folder: Path
    experiment: Experiment
    person: str
    samples: int
    choice: AdaptationChoice
    others: int
    errors: Mapping[str, float]


@dataclass(frozen=True)
class Source:
    """Run to adapt: one of its seeds, and corrections with priors of other people, if any."""

    trained: TrainedRun
    fitted: Mapping[str, FittedCalibration | ResidualKernel]


def adapt(
    folder: Path,
    data: Path,
    out: Path,
    person: str | None = None,
    samples: int | None = None,
    seed: int | None = None,
) -> Adaptation:
    """Make a model for a person who took no part in a run, from labelled samples of that person.

    Args:
        folder: run directory, or that of a merged leave-one-out evaluation.
        data: npz file with the task's columns, or a folder that the run's data set reads.
        out: new run directory.
        person: name of the person, where the data hold several; for an npz file the name to use,
            default "me".
        samples: number of samples to learn from, evenly spread over time; default all.
        seed: seed of the run to start from; default its first.

    Raises:
        ConfigError: the run has no model to adapt, or the person took part in it.
        DataError: the samples cannot be used.
        StateError: the run is damaged or unfinished, or `out` holds something.
    """
    source = open_source(folder, person or data.stem, seed)
    return adapt_to(source, read_own_data(data, source.trained.experiment, person), out, samples)


def open_source(
    folder: Path,
    person: str | None,
    seed: int | None = None,
    experiment: Experiment | None = None,
) -> Source:
    """Open a run to adapt; of a leave-one-out evaluation, the fold without this person.

    Raises:
        StateError: the run is damaged or unfinished.
        ConfigError: the run shares no model, or its task or network is a Python object, and no
            `experiment` is given.
    """
    if (folder / "deploy.toml").is_file():
        raise StateError(
            f"{folder} is a folder of a deployment and keeps no final model: name the run "
            "directory of its server (DIR/server/run, or a copy of it on this machine)"
        )
    if not (folder / "results.json").is_file() or not read(folder).runs[0].results.get("folds"):
        checksums.check(folder)
        trained = read_run(folder, seed, experiment, clients=False).without_tuned_prior()
        return Source(_check_adaptable(trained), priors_of_run(trained))
    everybody: HeldOut = find_held_out(folder)
    left_out = everybody.folders
    who = person if person is not None and person in left_out else next(iter(left_out))
    fold = Path(os.path.normpath(everybody.folders[who]))
    checksums.check(fold)
    trained = _check_adaptable(read_run(fold, seed, clients=False).without_tuned_prior())
    if not isinstance(trained.task, GazeAngle):
        return Source(trained, {})
    fitted = own_priors(everybody, (who,), trained.task.seed).get(who)
    return Source(trained, fitted or priors_of_run(trained))


def _check_adaptable(trained: TrainedRun) -> TrainedRun:
    # Whatever cannot start from a shared model, or would start from one that is not what it says.
    for refused, why in (
        (
            not trained.offers_newcomer(),
            "this method shares no model that a newcomer could start from",
        ),
        (
            trained.task.own_prior,
            "task.personal_prior made a prior of everybody's own training samples, and what a "
            "newcomer's few samples give was never trained with; name a run without it (0)",
        ),
        (
            isinstance(trained.task, GazeAngle)
            and (trained.task.correction or isinstance(trained.task.network, PersonalEye)),
            "its correction is one person's, and a newcomer's would take its place; name the run "
            "that this one was adapted from (provenance.json, adapted)",
        ),
        (
            read(trained.folder).runs[0].results.get("erased"),
            "somebody was erased from this run, and its model has still learned from them; name "
            "the run that `vergence privacy forget` made then",
        ),
    ):
        if refused:
            raise ConfigError(f"{trained.folder}: {why}")
    return trained


def adapt_to(source: Source, own: OwnData, out: Path, samples: int | None = None) -> Adaptation:
    """Make a model for a person whose samples have been read already; see `adapt`."""
    check_new_folder(out)
    return fit_person(source, own, rows_to_learn(len(own.samples), samples)).write(out)


def check_new_folder(out: Path) -> None:
    """Check that a new run can be written into a folder.

    Raises:
        StateError: it holds something.
    """
    if (out / "config.toml").exists():
        raise StateError(f"{out} holds a run already: choose another --out, or out= in Python")
    check_vacant(out)


@dataclass(frozen=True)
class FittedPerson:
    """Model of a person that was fitted and is not written yet.

    Attributes:
        own: the person's samples.
        rows: numbers of the samples that it was fitted to.
        adapter: what fitted it, with the run and its shared model.
        choice: the chosen way, and the cross-validated errors of all ways.
        model: the model.
    """

    own: OwnData
    rows: Rows
    adapter: Adapter
    choice: AdaptationChoice
    model: PersonalModel

    def write(self, out: Path, history: Mapping[str, Any] | None = None) -> Adaptation:
        """Write the run directory; `history` are further entries of its provenance."""
        trained, adapter = self.adapter.trained, self.adapter
        parts = (trained, self.own, self.rows, self.model, self.choice)
        experiment = write_run(*parts, out, history or {"version": 1})
        count, others = len(self.rows), len(self.own.samples) - len(self.rows)
        both = {SHARED: PersonalModel(adapter.start), LABEL: self.model}
        models = both if others and count else {}
        errors = {name: adapter.error(each) for name, each in models.items()}
        return Adaptation(out, experiment, self.own.person, count, self.choice, others, errors)


def fit_person(
    source: Source, own: OwnData, rows: Rows, allowed: Collection[str] = SIMPLEST_FIRST
) -> FittedPerson:
    """Choose a way to adapt a run's shared model to a person's samples, and fit it.

    Args:
        source: the run.
        own: the person's samples.
        rows: numbers of the samples to learn from.
        allowed: ways to choose among, besides the shared model.

    Raises:
        ConfigError: the person took part in the run.
        DataError: the samples do not fit the run's task.
        StateError: the shared model or the new one has diverged.
    """
    _refuse_known(source.trained, own)
    seed = source.trained.task.seed
    ready = prepare_person(source.trained.experiment, seed, own, rows)
    stream = RandomStream("adapt", seed)
    trained = source.trained.on_data(ready, stream=stream)
    adapter = Adapter(
        trained, own.person, FineTuning(pulls=PULLS), _corrections_for(source.fitted, own)
    )
    # Sums over several threads come in another order: the same samples must give the same bits.
    torch.set_num_threads(1)
    learned = torch.arange(len(rows))
    _check_answers(adapter, PersonalModel(adapter.start), "the shared model")
    ways = [way for way in candidates(adapter) if way in allowed]
    choice = choose(adapter, ways, learned, stream)
    model = adapter.fit(choice.way, learned, stream)
    _check_answers(adapter, model, choice.way)
    return FittedPerson(own, rows, adapter, choice, model)


def _check_answers(adapter: Adapter, model: PersonalModel, what: str) -> None:
    """Check that a model's outputs on the person's samples are finite.

    Raises:
        StateError: an output is NaN or infinite, as the parameters are NaN or too large.
    """
    outputs = adapter.outputs(model, adapter.labelled)
    if not isinstance(outputs, torch.Tensor):
        raise ConfigError(
            f"{adapter.trained.folder}: the network's output is a {type(outputs).__name__}, and "
            "adapt takes one tensor: name it, task_from(..., outputs=...)"
        )
    if not outputs.isfinite().all():
        raise StateError(
            f"{adapter.trained.folder}: {what} answers NaN or infinity on these samples: it has "
            "diverged, or somebody changed it; name another run"
        )


def _corrections_for(
    fitted: Mapping[str, FittedCalibration | ResidualKernel], own: OwnData
) -> Mapping[str, FittedCalibration | ResidualKernel]:
    """Corrections that these samples allow: those with a term per eye need a column `side`."""
    has_side = "side" in own.samples.columns
    return {
        name: kind
        for name, kind in fitted.items()
        if has_side or isinstance(kind, ResidualKernel) or not kind.spread[1].any()
    }


def _refuse_known(trained: TrainedRun, own: OwnData) -> None:
    """Refuse a person who took part in the run, by name and by samples.

    A file without a name of a person is named as its person is: anna.npz.

    Raises:
        ConfigError: the person took part; the message says how to export their model.
    """
    folder, run = trained.folder, read(trained.folder).runs[0]
    took_part = {*run.people, *trained.clients}
    names = [own.person, *([Path(own.source).stem] if own.person == ME else [])]
    # In another data set the same name, such as "p01", is another person.
    if own.name in (None, run.results["federation"]):
        for name in filter(took_part.__contains__, names):
            raise ConfigError(
                f"'{name}'{f' of {own.name}' if own.name else ''} took part in {folder}, which has "
                f"a model for them: vergence export {folder} --person {name} --out FILE.onnx; name "
                "somebody else of this name otherwise, by --person, or person= in Python"
            )
    for name, count in _known_samples(trained, took_part, own.samples).items():
        raise ConfigError(
            f"{own.source}: {count} of {len(own.samples)} samples are those of '{name}', who took "
            f"part in {folder}, which has a model for them: vergence export {folder} --person "
            f"{name} --out FILE.onnx; for somebody else leave these samples out"
        )


def _known_samples(
    trained: TrainedRun, took_part: Collection[str], samples: Samples
) -> Mapping[str, int]:
    """Return how many of these samples each participant has, most first."""
    try:
        data = trained.experiment.load_data()
    # Somebody's own data set may raise anything where its files are not.
    except Exception as error:
        if is_out_of_memory(error):
            raise
        note(
            f"{trained.folder}: its data are not here ({first_line(error)}), so names alone say "
            "whether somebody took part"
        )
        return {}
    if data.recipe is not None:
        return {}
    people = {who: splits for who, splits in data.people.items() if who in took_part}
    return same_samples(people, samples, trained.task)


def write_run(
    trained: TrainedRun,
    own: OwnData,
    rows: torch.Tensor,
    model: PersonalModel,
    choice: AdaptationChoice,
    out: Path,
    history: Mapping[str, Any],
) -> Experiment:
    """Write the run directory of an adapted model; return its experiment.

    `history` are further entries of the provenance.
    """
    learned, other = split_rows(own.samples, rows)
    whole = len(rows) in (0, len(own.samples))
    samples = learned if whole else Samples.concatenate([learned, other])
    with saving(out):
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Also where the folder existed: its files describe one person.
        out.chmod(0o700)
        write_whole(out / own_samples.FILE, own_samples.pack_samples(samples), secret=True)
    every = len(rows) == len(own.samples) and choice.way != SHARED
    settings = _settings(trained, own, len(rows), model, LEARNED if every else LABEL)
    # Users may not ask for a run of no rounds: it is checked as one of a single round.
    once = {**settings, "run": {**settings["run"], "rounds": 1}}
    made = _of_objects(trained, once, out) if "python" in settings else check(once, out)
    start_from = _starting_model(trained, own, model, choice)
    named = {**settings, "model": {**settings["model"], "start": start_from.run}}
    entry = {**_provenance(trained, own, len(rows), choice), **history}
    origin = TableOrigin(provenance={"adapted": entry})
    experiment = starting_from(made, named, start_from, origin)
    start(experiment, out, RoundCallback(bar=False))
    return experiment


def starting_from(
    made: Experiment, settings: dict[str, Any], model: StartingModel, origin: TableOrigin
) -> Experiment:
    """Return the experiment of an adapted run, which has no rounds and starts from a model.

    Args:
        made: the experiment with the run's task and network, without the model.
        settings: the adapted run's tables.
        model: the model.
        origin: entries of provenance.json.
    """
    network = replace(made.model, start=model)
    built = None if made.built is None else replace(made.built, network=network)
    plan = replace(made.plan, rounds=0)
    return check_combinations(
        replace(made, table=settings, model=network, built=built, plan=plan, origin=origin)
    )


def personal_task(task: Task, settings: dict[str, Any]) -> Task:
    """Return a task that came from Python with the corrections in an adapted run's tables."""
    network, options = settings["model"], settings["task"]
    if network["name"] == "personal_eye":
        sizes = {name: network[name] for name in ("samples", "inputs", "side")}
        task = replace(task, network=PersonalEye(task.network, **sizes))
    known = {name: options[name] for name in PERSONAL if name in options}
    if "correction" in known:
        known["correction"] = record_from_table(AngleCorrection, known["correction"], "correction")
    return replace(task, **known)


def unadapted(settings: dict[str, Any]) -> dict[str, Any]:
    """Return an adapted run's tables with the task and network of the run it was adapted from."""
    network = {name: value for name, value in settings["model"].items() if name != "start"}
    if network["name"] == "personal_eye":
        network = network["shared"]
    task = {name: value for name, value in settings["task"].items() if name not in PERSONAL}
    return {**settings, "task": task, "model": network}


def adapted_again(made: Experiment, settings: dict[str, Any], folder: Path) -> Experiment:
    """Return the experiment of an adapted run whose task or network is a Python object.

    Args:
        made: the same with the task and network of the run that it was adapted from.
        settings: the adapted run's tables.
        folder: the adapted run's directory.
    """
    assert made.built is not None
    task = personal_task(made.built, settings)
    start_from = starting_model(settings["model"]["start"], folder, load)
    made = replace(made, built=task, model=task.network)
    return starting_from(made, settings, start_from, made.origin)


def _of_objects(trained: TrainedRun, settings: dict[str, Any], out: Path) -> Experiment:
    """Return the experiment of an adapted run whose task or network is a Python object."""
    task = personal_task(trained.task, settings)
    dataset, root = build_dataset(settings["federation"], "federation", out)
    label, method = build_method(settings["method"], settings["local"])
    plan = build_plan(settings)
    return Experiment(
        settings,
        dataset,
        root,
        task.network,
        {label: method},
        plan,
        Noise(),
        tasks=type(task),
        built=task,
    )


def _settings(
    trained: TrainedRun, own: OwnData, count: int, model: PersonalModel, label: str
) -> dict[str, Any]:
    """Settings of an adapted model's experiment, without the model that it starts from."""
    whole = trained.experiment.table
    task = dict(whole["task"])
    if "personal_prior" in task:
        task["personal_prior"] = getattr(trained.task, "personal_prior", 0.0)
    network = {key: value for key, value in whole["model"].items() if key != "start"}
    if isinstance(model.correction, KernelCorrection):
        samples, inputs = model.correction.centres.shape
        size = {"samples": samples, "inputs": inputs, "side": "side" in own.samples.columns}
        network = {"name": "personal_eye", "shared": network, **size}
    if isinstance(model.correction, Correction):
        task["correction"] = table_of(AngleCorrection.of(model.correction))
    if model.prior is not None:
        task |= {"personal_prior": model.exponent, "prior_in": "prediction"}
    precision = trained.solving.precision
    python = [part for part in whole.get("python", []) if part in ("task", "model")]
    if python and "initial" in network:
        # The description of the network has the initial parameters of this seed.
        network |= {"initial": digest(pack(Params.of(trained.task.module())))}
    return {
        **({"python": python} if python else {}),
        "task": task,
        "model": network,
        "federation": {
            "name": "own_samples",
            "person": own.person,
            "learned": count,
            "licence": own.licence,
        },
        "method": {"name": "fedavg", "label": label},
        "local": local_table(trained.method.local),
        "run": {
            "rounds": 0,
            "seeds": [trained.task.seed],
            "evaluate_every": 0,
            "workers": 1,
            "precision": precision,
            "device": "cpu",
        },
    }


def _starting_model(
    trained: TrainedRun, own: OwnData, model: PersonalModel, choice: AdaptationChoice
) -> StartingModel:
    """Adapted parameters as a starting model, with everybody whose data they were trained on."""
    results, earlier = read(trained.folder).runs[0].results, trained.experiment.model.start
    took_part = dict.fromkeys(table(trained.folder / "turns.csv", "client").client)
    before = () if earlier is None else earlier.learned_from
    if choice.way != SHARED:
        before = (("own_samples", (own.person,)), *before)
    params = model.params
    if isinstance(model.correction, KernelCorrection):
        params = model.correction.params(params)
    return StartingModel(
        f"{trained.folder}, adapted",
        digest(pack(params)),
        results["federation"],
        tuple(took_part),
        params,
        split_seed_of(trained.experiment.dataset),
        before,
    )


def _provenance(
    trained: TrainedRun, own: OwnData, count: int, choice: AdaptationChoice
) -> dict[str, Any]:
    """Entry of provenance.json about an adaptation."""
    return {
        "run": str(trained.folder),
        "sha256": checksums.sum_of(trained.folder / checksums.NAME),
        "fingerprint": trained.fingerprint,
        "method": read(trained.folder).runs[0].method,
        "seed": trained.task.seed,
        "person": own.person,
        "samples": count,
        "way": choice.way,
        "folds": choice.folds,
        "headline": trained.task.headline,
        "errors": finite(dict(choice.errors)),
        "held_out": list(choice.held_out),
    }


def show(made: Adaptation, console: Console) -> None:
    """Print the cross-validated error of every way, the chosen one, and the new run directory."""
    choice, headline = made.choice, made.experiment.task(0).headline
    if choice.errors:
        grid = Table("way", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        grid.add_column(metric_name(headline), justify="right")
        places = digits(choice.errors.values())
        for way, error in choice.errors.items():
            grid.add_row(way, number(error, places), style="bold" if way == choice.way else "")
        alone = choice.folds == made.samples
        fold = "one sample" if alone else f"one of {choice.folds} folds"
        console.print(f"Cross-validated on {made.samples} samples, {fold} left out at a time:")
        console.print(grid)
    console.print(Text(choice_sentence(made)), soft_wrap=True)
    if made.errors:
        places = digits(made.errors.values())
        mine, shared = (number(made.errors[name], places) for name in (LABEL, SHARED))
        where = f"On the other {made.others} samples: {metric_name(headline)}"
        console.print(Text(f"{where} {mine}, {shared} unchanged."), soft_wrap=True)
    console.print(Text(f"model:  {made.folder}"), soft_wrap=True)
    text = f"next: vergence export {made.folder} --out {made.folder}.onnx"
    console.print(Text(text), soft_wrap=True)


def choice_sentence(made: Adaptation) -> str:
    """Sentence on the way that was chosen, and why."""
    choice, name = made.choice, metric_name(made.experiment.task(0).headline)
    if not choice.errors:
        few = (
            "are too few to hold one out"
            if made.samples < FEWEST
            else f"hold fewer than {FEWEST} that can be scored and show different targets"
        )
        what = (
            "Kept the shared model"
            if choice.way == SHARED
            else f"Chose {choice.way}, whose priors are of the run's own people"
        )
        return f"{what}: {made.samples} labelled samples {few}; give {FEWEST} or more."
    shared, mine = choice.errors[SHARED], choice.errors[choice.way]
    if choice.way == SHARED:
        first = next(iter(choice.errors))
        why = (
            "no way was better on held-out samples by more than one standard error"
            if first == SHARED
            else f"on held-out samples {first} had {choice.errors[first]:.3g}"
        )
        return f"Kept the shared model ({name} {shared:.3g}): {why}."
    return f"Chose {choice.way}: {name} {mine:.3g} on held-out samples, {shared:.3g} unchanged."
