"""`run.split_seeds`: an experiment run once per split of its data, merged into one run per method.

Every seed of a generator makes other people, who are all in the merged run, as `p01@2`.
Docs: docs/reference/runs.md.

Used by `api.train` and `studies.protocols`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from vergence.errors import ConfigError, StateError
from vergence.experiment import checksums, provenance, starting_model
from vergence.experiment.newcomers import PersonPart
from vergence.experiment.run import RoundCallback, locked, run_stamp, start_or_resume
from vergence.experiment.schema import Experiment, check
from vergence.experiment.validation import Loaded, validate
from vergence.results import write as results
from vergence.studies import merge_splits

SPLIT, GENERATED = "split_seed", "seed"


@dataclass(frozen=True)
class DataSplit:
    """One split: the experiment on it, and its data."""

    experiment: Experiment
    loaded: Loaded


def with_method_list(experiment: Experiment, home: Path | None = None) -> Experiment:
    """Return the experiment with its one method as a list, so that every run has a folder.

    `home` is the folder of the run, which contains the model that it starts from.

    Raises:
        ConfigError: it is made of Python objects, which no other split can be read from.
        StateError: `home` holds a merged run.
    """
    if experiment.table.get("python"):
        raise ConfigError(
            "run.split_seeds reads the data again for every split, and these are Python objects: "
            "give a data set of vergence.data, or call train once for each split"
        )
    if experiment.several:
        return experiment
    if home is not None and (home / "results.json").is_file():
        raise StateError(
            f"{home} is merged over splits, and finished; the folder to go on with is {home.parent}"
        )
    table = {key: value for key, value in experiment.table.items() if key != "method"}
    made = check({**table, "methods": [experiment.table["method"]]}, home)
    return replace(made, origin=experiment.origin)


def key_of(experiment: Experiment) -> str:
    """Return the option of the data set whose value differs between splits.

    Raises:
        ConfigError: the data set has no such option.
    """
    known = {each.name for each in fields(experiment.dataset)}
    # A split seed first: it keeps the people, whereas a generator's seed makes others.
    if (found := next((key for key in (SPLIT, GENERATED) if key in known), None)) is None:
        raise ConfigError(
            f"splits: '{experiment.table['federation']['name']}' has no split_seed, and is not "
            "generated from a seed, so it has one split; take a data set that has more"
        )
    return found


def data_splits(
    experiment: Experiment, seeds: Sequence[int], home: Path | None = None
) -> dict[int, DataSplit]:
    """Return every split of an experiment, by its seed, checked before anything trains.

    `home` is as in `with_method_list`.

    Raises:
        ConfigError: fewer than two different seeds, or splits that cannot be merged.
    """
    if len(seeds) < 2 or len(set(seeds)) != len(seeds):
        raise ConfigError(f"splits: give two or more different split seeds; got {tuple(seeds)}")
    if experiment.plan.privacy.spends:
        raise ConfigError(
            "run.split_seeds with differential privacy: every split is a release of its own about "
            "the same people, and no table would show what they spent together; take one of the two"
        )
    taken = [
        label for label in experiment.methods if label.startswith("split") and label[5:].isdigit()
    ]
    if taken:
        raise ConfigError(
            f"run.split_seeds writes folders split0, split1, ...: give '{taken[0]}' another label"
        )
    key, table = key_of(experiment), dict(experiment.table)
    table["run"] = {k: v for k, v in table.get("run", {}).items() if k != "split_seeds"}
    found = {}
    for seed in seeds:
        made = check({**table, "federation": {**table["federation"], key: seed}}, home)
        made = replace(made, origin=experiment.origin)
        found[seed] = DataSplit(made, validate(made))
    first = found[seeds[0]].loaded
    for seed, each in found.items():
        if key == SPLIT and tuple(each.loaded.raw.clients) != tuple(first.raw.clients):
            raise ConfigError(
                f"splits: split_seed {seed} has other people than split_seed {seeds[0]}; name "
                "people who are in every split (people), or take other seeds"
            )
    # Equal data twice would pass for an independent repetition.
    if len({each.loaded.sha for each in found.values()}) < len(seeds):
        raise ConfigError(f"splits: {key} does not change this data: its split is not random")
    return found


def run_and_merge(
    experiment: Experiment,
    splits: Mapping[int, DataSplit],
    out: Path,
    one: Callable[[DataSplit, Path], object],
) -> None:
    """Let `one` run or resume each split in its folder `out/splitN`; merge them in `out`."""
    folders = {seed: out / f"split{seed}" for seed in splits}
    for seed, each in splits.items():
        one(each, folders[seed])
    generated = key_of(experiment) == GENERATED
    loaded = {seed: each.loaded for seed, each in splits.items()}
    merge_splits.merge(experiment, loaded, out, folders, generated)
    # Last, as a seal covers every file of its folder.
    for folder in (*(out / label for label in experiment.methods), out):
        checksums.seal(folder)


def run(
    experiment: Experiment, out: Path, follower: RoundCallback, *, resumed: bool = False
) -> Loaded:
    """Run or resume an experiment on each of its `run.split_seeds`; return the first's data.

    Raises:
        StateError: `out` holds a run already, or a run of another experiment.
        PartialRun: interrupted; finished work stays.
    """
    splits = data_splits(experiment, experiment.plan.split_seeds, out)
    first = next(iter(splits.values())).loaded
    # The SHA-256 of the data of all splits.
    shas = "".join(each.loaded.sha for each in splits.values())
    stamp = run_stamp(
        experiment, experiment.table, replace(first, sha=hashlib.sha256(shas.encode()).hexdigest())
    )
    inner = replace(
        follower,
        advice_interrupted=lambda _: follower.advice_interrupted(out),
        advice_exists=lambda _: follower.advice_exists(out),
    )

    def one(each: DataSplit, folder: Path) -> None:
        part = PersonPart(each.loaded.raw, tuple(each.loaded.raw.clients))
        start_or_resume(each.experiment.on_dataset(part), each.loaded.ready, folder, inner)

    with locked(out):
        if resumed:
            provenance.check_settings(out, experiment.table)
            # A sealed folder is finished: its files are checked by their digests.
            if not checksums.sealed(out):
                provenance.check(out, stamp)
        elif (out / "config.toml").exists():
            raise StateError(f"{out} holds a run already: {follower.advice_exists(out)}")
        else:
            # First: other files of a folder are only read as a run's if it has a stamp.
            provenance.write(out, stamp)
            starting_model.write_copy(experiment.model.start, out)
            results.write_toml(out / "config.toml", experiment.table, experiment.remarks)
        run_and_merge(experiment, splits, out, one)
    return first
