"""Cross-dataset tests: every run's model on all people of every run's data.

Used by `cli.study`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from vergence.core.naming import by_key
from vergence.errors import ConfigError
from vergence.experiment.trained_run import one_run, read_run
from vergence.experiment.validation import Loaded, validate
from vergence.results.layout import digits, metric_name, spread
from vergence.results.read import Run, read
from vergence.results.text_tables import TextTable
from vergence.results.write import export_csv
from vergence.studies.comparability import ANYTHING, DATA, check_comparable

HEADS = ("trained_on", "tested_on", "seed", "person", "metric", "value")


def cross(folders: Sequence[Path], out: Path, console: Console) -> None:
    """Write cross.csv and print mean and 95 % interval over people, rows trained, columns tested.

    On its own data a run keeps its scores (P0); on other data everybody is an unseen client, whose
    model is what the method offers to people without a state. Notes list the runs' other
    differences.

    Raises:
        ConfigError: fewer than two runs, runs of different tasks, a method without a whole network
            for unseen clients, or one that cannot take another run's data.
    """
    if len(runs := [run for folder in folders for run in read(folder).runs]) < 2:
        raise ConfigError("cross needs two or more runs, one for each data set")
    if len(kinds := {run.results["task"] for run in runs}) > 1:
        raise ConfigError(f"cross needs runs of one task; got {', '.join(sorted(kinds))}")
    names = _names(runs)
    seen: dict[str, str] = {}
    for name, run in names.items():
        # A run without a digest of its data counts as one with data of its own.
        twin = seen.setdefault(str(run.provenance["data"].get("sha256", name)), name)
        if twin != name:
            raise ConfigError(
                f"{twin} and {name} were trained on the same people and data: nobody there is new "
                "to either; give one run for each data set"
            )
    data = {name: validate(one_run(run.folder)) for name, run in names.items()}
    metric, lines = runs[0].headline, []
    cells: dict[tuple[str, str], list[float]] = {}
    for name, run in names.items():
        for other, loaded in data.items():
            rows = (
                _own_rows(run) if other == name else _newcomer_rows(run, data[name], loaded, other)
            )
            lines += [(name, other, *row) for row in rows]
            people = by_key((who, float(value)) for _, who, what, value in rows if what == metric)
            # Over seeds first: intervals are over people, who are the independent ones.
            cells[name, other] = [float(np.mean(values)) for values in people.values()]
    export_csv(out / "cross.csv", HEADS, lines)
    for note in check_comparable(list(names.values()), ANYTHING, DATA):
        console.print(Text(f"Note: {note}", style="yellow"), soft_wrap=True)
    heading = f"{metric_name(metric)}: trained on the row, tested on the column"
    places = digits(float(np.mean(values)) for values in cells.values())
    ends = runs[0].bounds(metric)
    grid = [[n, *(spread(cells[n, other], places, ends) for other in names)] for n in names]
    TextTable(heading, ["", *names], grid).show(console)
    console.print(f"numbers: {out / 'cross.csv'}", soft_wrap=True)


def _names(runs: Sequence[Run]) -> dict[str, Run]:
    named: dict[str, Run] = {}
    for run in runs:
        # Two parts of the path: the last alone is often the name of the method.
        name = "/".join(run.folder.resolve().parts[-2:])
        if name in named:
            raise ConfigError(f"{run.folder} and {named[name].folder} end alike; rename one")
        named[name] = Run(run.folder, name, run.results)
    return named


Row = tuple[int, str, str, str]


def _own_rows(run: Run) -> list[Row]:
    own = run.final()
    return list(zip(own.seed, own.person, own.metric, own.value.map(repr), strict=True))


def _newcomer_rows(run: Run, own: Loaded, loaded: Loaded, where: str) -> list[Row]:
    rows: list[Row] = []
    for seed in run.seeds:
        trained = read_run(run.folder, seed).on_data(loaded.ready, own.ready)
        if not trained.offers_newcomer(whole=True):
            lacks = (
                "shares only a part of its network"
                if trained.offers_newcomer()
                else "shares nothing"
            )
            raise ConfigError(
                f"'{run.method}' ({run.folder}) {lacks}, so that people it never met would get "
                "parts trained for nobody; cross takes methods with a whole server model, such as "
                "fedavg"
            )
        for person in loaded.ready.clients:
            # Nothing of this person's own data may help, as for somebody who just arrived.
            met = trained.without_own_prior(person)
            try:
                found: Mapping[str, float] = met.measure(met.model(person, False), person)
            # Inputs of another shape, or a missing column, may fail anywhere in task and network.
            except (ConfigError, RuntimeError, KeyError) as error:
                reason = str(error).partition("\n")[0]
                raise ConfigError(
                    f"{run.folder} cannot take the data of {where}: {reason}"
                ) from None
            rows += [(seed, person, metric, repr(float(v))) for metric, v in found.items()]
    return rows
