"""Experiment files in TOML: each table becomes a dataclass instance, each `name` names a module.

Keys: `recipe` (below all files), `extends` (other files, deep-merged, later wins), `task`, `model`,
`federation`, `proxy`, `few_data`, `noise`, `method` or `methods`, `local`, `presence`, `delivery`,
`wire`, `pruning`, `privacy`, `poison`, `silos`, `run`, `sweep`, `tuning`, `study`. `--set a.b=c`
overrides all files.

Used in most packages.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vergence.core.federation import Dataset, Federation
from vergence.core.identifiers import file_name
from vergence.core.local_training import LocalTraining
from vergence.core.method import Method
from vergence.core.task import Model, Task
from vergence.data.few_data import FewSamples
from vergence.data.io.checks import data_path
from vergence.data.io.finite_values import check_finite
from vergence.data.noise import Noise
from vergence.engine import compatibility_check
from vergence.engine.asynchronous_aggregation import Delivery
from vergence.engine.early_stopping import EarlyStopping
from vergence.engine.participation import Participation
from vergence.engine.plan import Plan, until_no_gain
from vergence.engine.silos import Silos
from vergence.engine.storage.run_directory import Checkpoint
from vergence.errors import BuiltInPython, ConfigError, nearest
from vergence.experiment.code_names import default_label, is_file, resolve_code_paths
from vergence.experiment.packaged import Table, locate, merge, with_recipe
from vergence.experiment.privacy.schema import apply_poison, build_poison, build_privacy
from vergence.experiment.privacy.study_description import StudyDescription
from vergence.experiment.public_data import ReleasedSamples, public_data_of
from vergence.experiment.record_tables import rule_table, with_config_options
from vergence.experiment.registry import find
from vergence.experiment.search_space import (
    ROOTS,
    SearchRange,
    Space,
    SweepSettings,
    Tuning,
    flat,
    listed,
    setting,
)
from vergence.experiment.starting_model import starting_model
from vergence.experiment.table_binding import as_table, check_numbers, record_from_table
from vergence.experiment.trust import (
    Code,
    current_trust,
    in_run_folder,
    note_recorded_code,
    python_files,
    under,
)
from vergence.privacy.poisoning.data import DataPoison
from vergence.privacy.poisoning.updates import Poison
from vergence.results.run_files import with_former_defaults
from vergence.training.device import choose_device
from vergence.training.pruning import Gradual
from vergence.wire.codecs import Compression

KEYS = (
    "recipe",
    "extends",
    "task",
    "model",
    "federation",
    "proxy",
    "few_data",
    "noise",
    "method",
    "methods",
    "local",
    "presence",
    "delivery",
    "wire",
    "pruning",
    "early_stopping",
    "privacy",
    "poison",
    "silos",
    "run",
    "sweep",
    "tuning",
    "study",
)
LINE, DEEPEST = 1000, 16
"""Largest number of characters of an error message, and of nested tables in a setting's name."""
# A label is the name of a folder and an argument of commands: no separators, no leading dash.
LABEL = re.compile(r"\w[\w-]{0,99}")
MOST_METHODS, LONGEST_PATH = 1000, 4000
"""Largest number of methods in an experiment, each of which is trained and has a row in tables;
largest number of bytes of a path that file systems accept."""


@dataclass(frozen=True)
class TableOrigin:
    """Origin of a run that begins with states of an earlier run, instead of fresh states.

    Attributes:
        provenance: entries to add to provenance.json.
        stamp: digests of the states to begin with; a run is resumed only if they are equal.
        begin: function of a method's label (name in tables), a seed and a folder. It writes the
            states into the folder and returns a checkpoint. None: the run begins with fresh states.
    """

    provenance: Mapping[str, Any] = field(default_factory=dict)
    stamp: Mapping[str, str] = field(default_factory=dict)
    begin: Callable[[str, int, Path], Checkpoint] | None = None


@dataclass(frozen=True)
class Experiment:
    """A checked experiment, in which every name is known and every value in range.

    Attributes:
        table: the merged tables of the experiment file.
        dataset: the data set.
        root: folder of the data files, as the experiment names it, or None.
        model: the model, which builds the network.
        methods: the methods, by label (the method's name in tables).
        plan: rounds, seeds and other settings of the run.
        noise: noise added to some people's data.
        sweep: settings of a sweep, or None.
        tuning: record of the sweep that chose the settings, or None.
        poison: the attack of malicious clients, or None.
        origin: states of an earlier run with which this run begins.
        proxy: source of the server's public samples, or None.
        tasks: class of the task.
        code: the user's Python code from which the experiment is built, by file or module.
        built: the task, if it is a Python object that `table` only describes; else None.
        few_data: limit on each person's training samples.
        study: description of the study for an ethics board.
        default_length: how long the run trains, and why, if the experiment does not say it.
    """

    table: Table
    dataset: Dataset
    root: str | None
    model: Model
    methods: Mapping[str, Method]
    plan: Plan
    noise: Noise
    sweep: SweepSettings | None = None
    tuning: Tuning | None = None
    poison: Poison | DataPoison | None = None
    origin: TableOrigin = TableOrigin()
    proxy: Dataset | ReleasedSamples | None = None
    tasks: type[Task] = Task
    code: Mapping[str, Code] = field(default_factory=dict)
    built: Task | None = None
    few_data: FewSamples = FewSamples()
    study: StudyDescription = StudyDescription()
    default_length: str = ""

    def task(self, seed: int) -> Task:
        """Return the task for one seed."""
        if self.built is not None:
            return replace(self.built, seed=seed)
        table = {key: value for key, value in self.table["task"].items() if key != "name"}
        return record_from_table(self.tasks, table, "task", network=self.model, seed=seed)

    def federation(self, *, tested: bool = True) -> Federation:
        """Load the data, and change them as the experiment's tables say.

        `few_data` limits training samples, `noise` adds Gaussian noise to some people's inputs, an
        attack on data (`poison`) changes malicious people's samples, and `proxy` gives the server
        public samples.

        Args:
            tested: whether test data are checked too.

        Raises:
            DataError: a file is unusable, or a number is NaN or infinite.
        """
        loaded = self.load_data()
        check_finite(loaded, tested=tested)
        whole = self.noise.apply(loaded)
        return self.with_public_data(
            whole if self.poison is None else apply_poison(whole, self.poison)
        )

    def load_data(self) -> Federation:
        """Load the data, with at most as many training samples per person as `few_data` allows."""
        return self.few_data.apply(self.dataset.load(data_root(self.root)))

    def with_public_data(self, federation: Federation) -> Federation:
        """Return the federation with the server's public samples, if the experiment has a `proxy`.

        Without `proxy` it is unchanged.
        """
        if self.proxy is None:
            return federation
        if isinstance(self.proxy, ReleasedSamples):
            whole = self.proxy.move_to_server(federation)
            source = f"{self.proxy.share:g} of everybody's training samples, given up"
        else:
            samples = public_data_of(
                self.proxy, data_root(self.table["proxy"].get("root")), self.model
            )
            whole = replace(federation, proxies=samples)
            source = f"training samples of {self.table['proxy']['name']}"
        about = {**federation.about, "proxies": f"{source}; their labels are not looked at"}
        return replace(whole, about=about)

    def on_dataset(self, dataset: Dataset) -> Experiment:
        """Return the same experiment on other data, which are not changed.

        Noise, `few_data` and an attack on data are left out; an attack on updates stays.
        """
        # Noise and poison are in loaded data already; attacks on updates happen in training.
        poison = None if isinstance(self.poison, DataPoison) else self.poison
        return replace(self, dataset=dataset, noise=Noise(), few_data=FewSamples(), poison=poison)

    @property
    def several(self) -> bool:
        """True if the file lists `methods` (one run directory each), False if one `method`."""
        return "methods" in self.table

    def method_config(self, label: str) -> Table:
        """Return the experiment's table with a single method, as in its config.toml.

        `label` is the method's name in tables.
        """
        table = {k: v for k, v in self.table.items() if k != "methods"}
        named = dict(zip(self.methods, method_tables(self.table), strict=True))
        return {**table, "method": named[label]}

    def with_method(self, label: str) -> Experiment:
        """Return the same experiment with a single method; `label` is its name in tables.

        Audits and readers of finished runs call this.
        """
        return replace(self, table=self.method_config(label), methods={label: self.methods[label]})

    @property
    def remarks(self) -> tuple[str, ...]:
        """Comments to write at the top of a run's config.toml."""
        parts = python_parts(self.table)
        return (f"{parts}; the tables below describe, and do not build them.",) if parts else ()

    def files(self, table: Table) -> dict[str, str]:
        """Return the SHA-256 of each Python file or module that a table names, by its name."""
        return {name: self.code[name].sha for name in python_files(table) if name in self.code}


def load(
    path: Path | str,
    sets: Sequence[str] = (),
    trust_code: bool = False,
    only: str | None = None,
) -> Experiment:
    """Read, merge and check an experiment file.

    Args:
        path: the file, or the name of an experiment of the package.
        sets: texts `a.b=c`, each of which overrides a value of the file.
        trust_code: whether the Python code that the file names may run, wherever it comes from.
        only: label of the method to keep; other methods are neither checked nor built. None: all
            methods.

    Raises:
        ConfigError: a key or value is wrong; the message names it, what is allowed, and the file.
        UntrustedCode: the file names Python code that may not run.
    """
    if isinstance(sets, str):
        raise ConfigError(f"sets must be a list of key=value texts, got the text '{sets}'")
    path = locate(Path(path))
    try:
        with under(replace(current_trust(), trust_code=True) if trust_code else current_trust()):
            table = read(path)
            # By the run's files, and not by its name: people call their experiments so, too.
            if in_run_folder(path):
                # A run directory that leaves the own prior open is older than its default.
                task = table.get("task")
                if isinstance(task, dict) and task.get("name") == "gaze_map":
                    task.setdefault("personal_prior", 0.0)
            for item in sets:
                override(table, item)
            table = with_recipe(table)
            return check(table if only is None else with_one_method(table, only), path.parent)
    except ConfigError as error:
        where = "" if str(path) in str(error) else f" ({path})"
        raise error.reworded(f"{short(str(error))}{where}") from None
    # A number may be too large, or tables may be nested too deep.
    except (OverflowError, RecursionError) as error:
        raise ConfigError(f"too large: {error} ({path})") from None


def short(text: str) -> str:
    """Return a message; the middle of one longer than `LINE` characters is left out."""
    return text if len(text) <= LINE else f"{text[: LINE // 2]} ... {text[-LINE // 2 :]}"


def read(path: Path, above: tuple[Path, ...] = (), sender: Path | None = None) -> Table:
    """Read a TOML file, and merge it with the files that it extends; its own values win.

    Args:
        path: the file.
        above: the files that extend this file, directly or through others.
        sender: the file of `above` that is in a run folder, and so may be somebody else's; None:
            all these files are the user's.

    Raises:
        ConfigError: a file is missing, is not TOML, or extends itself.
    """
    if not is_file(path):
        run = path / "config.toml"
        hint = f"; name the experiment's file, or that of the run: {run}" if is_file(run) else ""
        raise ConfigError(f"no experiment file at {short(str(path))}{hint}")
    if path.resolve() in above:
        raise ConfigError(f"{path}: extends leads back to this file; take it out there")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); mend it") from None
    check_numbers(table, str(path))
    if in_run_folder(path):
        sender, table = path, with_former_defaults(table)
    else:
        # In a run folder names stay as the run recorded them.
        table = resolve_code_paths(table, path.parent)
    # Whoever made a run folder chose what its config extends: this code needs trust, too.
    if sender is not None:
        note_recorded_code(sender, table)
    merged: Table = {}
    below = table.pop("extends", [])
    if not isinstance(below, list) or not all(isinstance(other, str) for other in below):
        raise ConfigError(f"{path}: extends must be a list of file names; got {below!r}")
    for other in below:
        merged = merge(merged, read(path.parent / other, (*above, path.resolve()), sender))
    # A file may replace the `method` of one that it extends by `methods`, and vice versa.
    if "methods" in table:
        merged.pop("method", None)
    if "method" in table:
        merged.pop("methods", None)
    return merge(merged, table)


def override(table: Table, item: str) -> None:
    """Set one value of a table in place, from the text `a.b=c` of the option `--set`.

    A value that is not valid TOML is taken as a string.

    Raises:
        ConfigError: the text has no `=`, or names a setting that cannot exist.
    """
    path, equals, text = item.partition("=")
    if not equals:
        raise ConfigError(f"--set takes key=value, got '{item}'")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    # So that texts need no quotes inside of the shell's quotes.
    except tomllib.TOMLDecodeError:
        value = text
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--set {path}: no value is like this ({error})") from None
    check_numbers(value, f"--set {short(path)}")
    *parents, last = path.split(".")
    if len(parents) > DEEPEST:
        raise ConfigError(f"--set {path}: no setting lies {len(parents)} tables deep")
    for key in parents:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {item}: '{key}' is not a table")
    table[last] = value


def check(table: Table, home: Path | None = None) -> Experiment:
    """Check an experiment's merged table and build it; `home` is the folder of its file, if any."""
    if parts := python_parts(table):
        raise BuiltInPython(
            f"{parts}, which no file names: go on in Python with the call of vergence.train that "
            "began it, its out and resume=True; have its models by vergence.open_run(FOLDER, "
            "task=..., people=...), which has adapt(samples), export(FILE) and calibrate(people)"
        )
    table = with_recipe(table)
    for key in (key for key in table if key not in KEYS):
        raise ConfigError(f"unknown key '{key}'{nearest(key, KEYS)}")
    if "extends" in table:
        raise ConfigError("extends works in an experiment file only, not with --set")
    for key in ("task", "model", "federation"):
        if not isinstance(table.get(key), dict) or "name" not in table[key]:
            raise ConfigError(f"the experiment needs {key} = {{ name = ... }}")
    if ("method" in table) == ("methods" in table):
        had = "both" if "method" in table else "neither"
        raise ConfigError(
            f"the experiment needs either method = {{...}} or methods = [...]; it has {had}"
            f"{': to replace methods of a file, set that key which it has' * (had == 'both')}"
        )
    plan = build_plan(table, home)
    dataset, root = build_dataset(table["federation"], "federation", home)
    tasks = find("tasks", table["task"]["name"], Task)
    table = with_class_names(table, dataset, tasks)
    proxy = build_proxy(table["proxy"]) if "proxy" in table else None
    model = build_model(table["model"], home)
    # A device that is missing is refused now, before anything is written.
    choose_device(plan.device)
    methods = build_methods(table)
    table = with_rates(table, list(methods.values()))
    plan, length = with_default_length(table, plan, list(methods.values()))
    sweep = build_sweep(table, list(methods))
    tuning = record_from_table(Tuning, table["tuning"], "tuning") if "tuning" in table else None
    ran = current_trust().loaded_code
    code = {name: ran[name] for name in python_files(table) if name in ran}
    poison = plan.poison or (build_poison(table["poison"]) if "poison" in table else None)
    return check_combinations(
        Experiment(
            with_length(table, plan),
            dataset,
            root,
            model,
            methods,
            plan,
            record_from_table(Noise, table.get("noise", {}), "noise"),
            sweep,
            tuning,
            poison,
            proxy=proxy,
            tasks=tasks,
            code=code,
            few_data=record_from_table(FewSamples, table.get("few_data", {}), "few_data"),
            study=record_from_table(StudyDescription, table.get("study", {}), "study"),
            default_length=length,
        )
    )


def build_plan(table: Table, home: Path | None = None) -> Plan:
    """Build the plan of a run from the tables `run`, `presence`, `delivery`, `privacy` and others.

    `home` is the folder of the experiment file, where a presence trace may be.
    """
    presence = record_from_table(Participation, table.get("presence", {}), "presence")
    # The trace lies next to the experiment, or one folder above the config of a method's run.
    if presence.trace and home:
        places = (folder / presence.trace for folder in (home, home.parent))
        trace = next((str(path) for path in places if path.is_file()), presence.trace)
        presence = replace(presence, trace=trace)
    delivery = record_from_table(Delivery, table.get("delivery", {}), "delivery")
    pruning = record_from_table(Gradual, table.get("pruning", {"amount": 0.0}), "pruning")
    poison = build_poison(table["poison"]) if "poison" in table else None
    return record_from_table(
        Plan,
        table.get("run", {}),
        "run",
        presence=presence,
        delivery=delivery,
        wire=record_from_table(Compression, table.get("wire", {}), "wire"),
        pruning=pruning,
        early_stopping=record_from_table(
            EarlyStopping, table.get("early_stopping", {}), "early_stopping"
        ),
        privacy=build_privacy(table.get("privacy", {})),
        poison=poison if isinstance(poison, Poison) else None,
        silos=record_from_table(Silos, {"labs": table.get("silos", {})}, "silos"),
    )


def check_combinations(experiment: Experiment) -> Experiment:
    """Return the experiment if its settings and methods can be combined.

    A task whose own prior is left open gets it, or none (`with_prior_setting`).

    Raises:
        ConfigError: two settings, or a setting and a method, exclude each other; the message names
            both.
    """
    if experiment.few_data and isinstance(experiment.proxy, ReleasedSamples):
        raise ConfigError(
            "few_data with proxy.share: people would give up some of the few samples that they "
            "are left; name a data set as proxy, or leave out one of the two"
        )
    if not experiment.plan.rounds and experiment.model.start is None:
        raise ConfigError(
            "run: rounds must be >= 1; got 0, which is for a run that only measures the model that "
            "it starts from (model.start)"
        )
    experiment = with_prior_setting(experiment)
    task = experiment.task(experiment.plan.seeds[0])
    for label, method in experiment.methods.items():
        try:
            compatibility_check.check(experiment.plan, method, task)
        except ConfigError as error:
            raise ConfigError(f"method '{label}': {error}") from error
    return experiment


def with_prior_setting(experiment: Experiment) -> Experiment:
    """Return the experiment with the own prior that its task leaves open (None) written down.

    It is `auto`, or 0 where a method refuses priors or `privacy.solver` hides single samples. Run
    directories have the choice in their config.toml, so that it stays what it was.
    """
    task = experiment.task(experiment.plan.seeds[0])
    if getattr(task, "personal_prior", 0.0) is not None:
        return experiment
    choice: str | float = "auto" if experiment.plan.privacy.solver is None else 0.0
    for method in experiment.methods.values():
        try:
            method.check(replace(task, personal_prior=choice))
        except ConfigError:
            # If the prior is not the reason, the run is refused without it, too.
            choice = 0.0
    table = {**experiment.table, "task": {**experiment.table["task"], "personal_prior": choice}}
    built = experiment.built and replace(experiment.built, personal_prior=choice)
    return replace(experiment, table=table, built=built)


def python_parts(table: Mapping[str, Any]) -> str:
    """Return a text on the parts of a run that are Python objects, such as its task.

    Return "" if names in an experiment file give all parts.
    """
    parts = table.get("python", [])
    if not isinstance(parts, list) or not parts:
        return ""
    objects = "is a Python object" if len(parts) == 1 else "are Python objects"
    return f"the {', '.join(map(str, parts))} of this run {objects}"


def with_class_names(table: Table, dataset: Dataset, kind: type[Task]) -> Table:
    """Return the table, with the data set's class names as the option `names` of the task.

    It is unchanged if the task has no such option, or has a value for it, or if the data set has no
    class names. `kind` is the class of the task.
    """
    takes = "names" in {known.name for known in fields(kind)}
    classes = getattr(dataset, "classes", ())
    if not takes or not classes or table["task"].get("names"):
        return table
    return {**table, "task": {**table["task"], "names": list(classes)}}


def build_model(table: Table, home: Path | None = None) -> Model:
    """Build the network that the table `model` names, with the model that it starts from, if any.

    `home` is the folder of the experiment file.
    """
    options = dict(table)
    name, run = options.pop("name"), options.pop("start", None)
    more: dict[str, Any] = {} if run is None else {"start": starting_model(run, home, load)}
    if isinstance(options.get("shared"), dict):
        # The model inside `personal_eye`.
        more["shared"] = build_model(options.pop("shared"))
    return record_from_table(find("models", name, Model), options, f"model ({name})", **more)


def build_task(table: Table) -> Task:
    """Build the task that an experiment's tables name, with its network."""
    options = dict(table["task"])
    kind = find("tasks", options.pop("name"), Task)
    return record_from_table(kind, options, "task", network=build_model(table["model"]))


def build_proxy(table: Any) -> Dataset | ReleasedSamples:
    """Build the source of the server's public samples: a data set, or released samples.

    `check` calls this.
    """
    if isinstance(table, dict) and "name" not in table:
        return record_from_table(ReleasedSamples, table, "proxy")
    return build_dataset(table, "proxy")[0]


def build_dataset(table: Table, where: str, home: Path | None = None) -> tuple[Dataset, str | None]:
    """Build the data set that a table names, and find the folder of its files.

    Args:
        table: name, options and `root`.
        where: the table's name, for messages.
        home: the experiment's folder, where the files of some data sets are.
    """
    if not isinstance(table, dict) or "name" not in table:
        raise ConfigError(f"the experiment needs {where} = {{ name = ... }}")
    options = dict(table)
    name, root = options.pop("name"), options.pop("root", None)
    if root is not None and not isinstance(root, str):
        raise ConfigError(f"{where}: root must be the name of a folder; got {root!r}")
    if root and (len(os.fsencode(root)) > LONGEST_PATH or not root.isprintable()):
        raise ConfigError(
            f"{where}: root must be the name of a folder: printable, {LONGEST_PATH} bytes at most; "
            f"got {root!r}"
        )
    dataset = record_from_table(find("data", name, Dataset), options, f"{where} ({name})")
    if dataset.next_to_experiment and root is None and home is not None:
        root = str(home.absolute())
    return dataset, root


def method_tables(table: Table) -> list[Table]:
    """Return the entries of an experiment's methods, each as a table with a `name`."""
    entries = table["methods"] if "methods" in table else [table["method"]]
    if not isinstance(entries, list) or not entries:
        raise ConfigError(
            f"methods must be a list with at least one method, as ['fedavg']; got {entries!r}"
        )
    if len(entries) > MOST_METHODS:
        raise ConfigError(
            f"{len(entries):,} methods are listed, and each is trained in turn: at most "
            f"{MOST_METHODS:,} in one experiment; split it into several"
        )
    return [method_table(entry) for entry in entries]


def with_one_method(table: Table, label: str) -> Table:
    """Return the experiment's table with only the method of this label.

    `load` calls this.

    Raises:
        ConfigError: no method has this label; the message lists the labels.
    """
    labels = [str(e.get("label", default_label(e["name"]))) for e in method_tables(table)]
    if label not in labels:
        raise ConfigError(f"no method '{label}', but {', '.join(labels)}{nearest(label, labels)}")
    if "methods" not in table:
        return table
    methods = [e for e, known in zip(table["methods"], labels, strict=True) if known == label]
    return {**table, "methods": methods}


def method_table(entry: Any) -> Table:
    """Return a method's entry as a table with a `name`; an entry may also be just a name."""
    table = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise ConfigError(f"a method is a name, or a table with a name; got {table!r}")
    return table


def build_methods(table: Table) -> dict[str, Method]:
    """Build an experiment's methods, by label."""
    methods, folders = dict[str, Method](), dict[str, str]()
    for entry in method_tables(table):
        label, method = build_method(entry, table.get("local", {}))
        # A label is a folder's name, in which capitals do not count on Windows and macOS.
        if (twin := folders.setdefault(file_name(label), label)) in methods:
            raise ConfigError(f"two methods share a folder, '{twin}' and '{label}': label one anew")
        methods[label] = method
    return methods


def build_method(entry: Table, local: Table) -> tuple[str, Method]:
    """Build a method from its entry; return its label and the method.

    The entry's own table `local` overrides values of the experiment's. A method that extends
    another method has the other's entry as `base` (default: fedavg). Both train with the same
    settings.

    Args:
        entry: the method's table in the experiment.
        local: the experiment's table `local`, with options of local training.
    """
    entry = dict(entry)
    name = entry.pop("name")
    kind = find("methods", name, Method)
    label = entry.pop("label", default_label(name))
    check_label(label)
    entry.pop("sweep", None)
    own = as_table(entry.pop("local", {}), "local")
    merged = merge(as_table(local, "local"), own)
    merged.setdefault("optimizer", kind.local.optimizer)
    parts: dict[str, Any] = {"local": record_from_table(LocalTraining, merged, "local")}
    if "base" in {f.name for f in fields(kind)}:
        parts["base"] = build_method(method_table(entry.pop("base", "fedavg")), merged)[1]
    return label, record_from_table(kind, entry, f"method ({name})", **parts)


def with_default_length(table: Table, plan: Plan, methods: Sequence[Method]) -> tuple[Plan, str]:
    """Return the plan, with a default where the table names no rounds, and a line on it or ""."""
    if "rounds" in table.get("run", {}):
        return plan, ""
    return until_no_gain(plan, all(method.closed_form for method in methods))


def with_length(table: Table, plan: Plan) -> Table:
    """Return a table that has a plan's rounds, and its rule by which a run ends early."""
    run = {**table.get("run", {}), "rounds": plan.rounds}
    ends = {**table.get("early_stopping", {}), **rule_table(plan.early_stopping)}
    return {**table, "run": run, **({"early_stopping": ends} if ends else {})}


def with_rates(table: Table, methods: Sequence[Method]) -> Table:
    """Return a table that names every method's optimiser, learning rate and `IN_CONFIG` options.

    A run's config has them, so that it means the same when defaults change.

    Args:
        table: the experiment's table.
        methods: its methods, in the order of the table.
    """
    common = record_from_table(LocalTraining, table.get("local", {}), "local")
    named = {"optimizer": common.optimizer, "lr": common.lr}
    # Nothing is reordered: the digest of a table that names both stays as it was.
    table = {**table, "local": {**table.get("local", {}), **named}}
    entries = table["methods"] if "methods" in table else [table["method"]]
    whole = []
    for entry, full, method in zip(entries, method_tables(table), methods, strict=True):
        own = full.get("local", {})
        merged = merge(table["local"], own)
        differ = {
            k: getattr(method.local, k) for k in named if getattr(method.local, k) != merged[k]
        }
        entry = {**full, "local": {**own, **differ}} if differ else entry
        whole.append(with_config_options(entry, method))
    return table | ({"methods": whole} if "methods" in table else {"method": whole[0]})


def check_label(label: Any) -> None:
    """Check that a method's label can be used in tables and as the name of a folder.

    Raises:
        ConfigError: the label cannot be used.
    """
    if not isinstance(label, str) or not LABEL.fullmatch(label):
        fitting = re.sub(r"[^\w-]+", "_", str(label)).strip("_-")[:50] or "mine"
        raise ConfigError(
            f"method label {label!r:.60} must be letters, digits, _ and -, 1 to 100, and not begin "
            f"with -: write '{fitting}'"
        )


def build_sweep(table: Table, labels: Sequence[str]) -> SweepSettings | None:
    """Build the settings of a sweep; None if the experiment has none.

    A method's search space consists of the common settings and the method's own.

    Args:
        table: the experiment's table.
        labels: labels of its methods.
    """
    owns = {
        label: entry.get("sweep") for label, entry in zip(labels, method_tables(table), strict=True)
    }
    if "sweep" not in table:
        lone = next((label for label, own in owns.items() if own is not None), None)
        if lone:
            raise ConfigError(
                f"method '{lone}' has a sweep, the experiment none: add sweep = {{ search = "
                '"random", trials = 12 } to it'
            )
        return None
    entries = as_table(table["sweep"], "sweep")
    # The short form: sweep = { "method.limit" = [...] }.
    short = {k: v for k, v in entries.items() if k.partition(".")[0] in ROOTS}
    common = as_table(entries.get("space", {}), "sweep.space")
    shared, brief = build_space(common, "sweep.space"), build_space(short, "sweep")
    for key in shared.keys() & brief.keys():
        raise ConfigError(f"sweep: {key} is given twice, in sweep and in sweep.space; keep one")
    spaces = {}
    for label, own in owns.items():
        where = f"sweep of '{label}'"
        settings = as_table({} if own is None else own, where).items()
        named = {k if k.partition(".")[0] in ROOTS else f"method.{k}": v for k, v in settings}
        spaces[label] = {**shared, **brief, **build_space(named, where)}
    rest = {k: v for k, v in entries.items() if k not in short and k != "space"}
    return record_from_table(SweepSettings, rest, "sweep", spaces=spaces)


def build_space(table: Table, where: str) -> Space:
    """Build a search space: for each setting, by dotted name, a tuple of values or a range.

    `where` is the table's name, for messages. `build_sweep` calls this.
    """
    space: dict[str, tuple[Any, ...] | SearchRange] = {}
    for key, value in flat(table).items():
        place = f"{where}: {setting(key, where)}"
        try:
            space[key] = (
                record_from_table(SearchRange, value, place)
                if isinstance(value, dict)
                else listed(value, place)
            )
        except ConfigError as error:
            text = str(error)
            raise ConfigError(text if text.startswith(place) else f"{place}: {text}") from None
    return space


def data_root(root: str | None) -> str | None:
    """Return the path of a data set's folder; None for None.

    A relative path is below the folder in the environment variable VERGENCE_DATA, by default
    ../shared/data.
    """
    return root and data_path(root)
