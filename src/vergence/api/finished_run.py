"""A finished run: its numbers as data frames, and everybody's models as torch modules."""

from __future__ import annotations

import html
import os
import shutil
import tempfile
import tomllib
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vergence.adaptation.own_data import ME, OwnData
from vergence.core.arrays import columns_of
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.naming import called, plural
from vergence.core.params import Params
from vergence.core.task import StartingModel, Task
from vergence.errors import ConfigError, DataError, StateError, nearest
from vergence.experiment.privacy import spent
from vergence.experiment.schema import Experiment
from vergence.experiment.starting_model import common_model
from vergence.experiment.trained_run import TrainedRun, one_run, read_run, verify
from vergence.experiment.trust import trust_for_opening, under
from vergence.experiment.validation import Loaded, validate
from vergence.results import read as runs
from vergence.results.divergence import divergence_notes
from vergence.training.sequential import Solver

if TYPE_CHECKING:
    from pandas import DataFrame

P0 = "P0"
"""The point that scores are of: what a person predicts with after the last round's download."""


class FinishedRun:
    """One method's finished run.

    Attributes:
        folder: its run directory; gone with this object where `train` was given no `out`.
    """

    def __init__(
        self,
        folder: Path | str,
        experiment: Experiment | None = None,
        loaded: Loaded | None = None,
        keeper: ScratchFolder | None = None,
        *,
        trust_code: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.record, *more = runs.read(self.folder).runs
        if more or self.record.folder != self.folder:
            folders = ", ".join(str(run.folder) for run in (self.record, *more))
            raise StateError(f"{folder} holds several runs; open one of {folders}")
        self._experiment, self._loaded, self._keeper = experiment, loaded, keeper
        self._trust_code = trust_code

    @property
    def label(self) -> str:
        """Name of the run in tables."""
        return self.record.label

    @property
    def people(self) -> list[str]:
        """Everybody who was measured, in client order."""
        return list(self.record.people)

    @property
    def headline(self) -> str:
        """The metric that tables put first."""
        return self.record.headline

    @property
    def fingerprint(self) -> dict[int, str]:
        """Seed -> the digest of all final states: equal where a run was repeated bit for bit."""
        return {int(s): sha for s, sha in self.record.results["fingerprint"].items()}

    @property
    def privacy(self) -> dict[str, Any]:
        """Privacy budgets that were spent, as in results.json; empty where there was none.

        `privacy["person"]["epsilon"]` is of `privacy.user`, `privacy["sample"]` of
        `privacy.solver`.
        """
        return dict(self.record.results.get("privacy") or {})

    @cached_property
    def scores(self) -> DataFrame:
        """Person x metric: each person's own test samples, seeds averaged, the headline first."""
        import pandas as pd

        columns = {metric: self.record.scores(metric) for metric in self.record.estimates}
        frame = pd.DataFrame(columns, index=pd.Index(self.people, name="person"))
        frame.columns.name = "metric"
        return frame

    @cached_property
    def summary(self) -> DataFrame:
        """Metric x mean over people, ends of its 95 % interval, deviation and worst person.

        The interval is Student's, over people; there is none (NaN) for one person.
        """
        import pandas as pd

        rows = {metric: estimate._asdict() for metric, estimate in self.record.estimates.items()}
        names = {"lo": "ci95_low", "hi": "ci95_high"}
        frame = pd.DataFrame.from_dict(rows, orient="index").rename(columns=names)
        frame.index.name = "metric"
        return frame

    @cached_property
    def history(self) -> DataFrame:
        """A row per round (and seed): means over people, training loss, bytes and seconds.

        Metrics of people stand in the rounds in which they were measured (`evaluate_every`), others
        are NaN there. Round 0 is before training; a round after the last one is a method's finish.
        """
        import pandas as pd

        cells: dict[tuple[int, int], dict[str, float]] = {}
        for row in self.record.rounds.itertuples():
            here = cells.setdefault((row.seed, row.round), {})
            lead = "" if row.evaluation == P0 else f"{row.evaluation}_"
            here[f"{lead}{row.metric}"] = row.value
            here |= {"bytes_up": row.bytes_up, "bytes_down": row.bytes_down, "seconds": row.seconds}
        index = pd.MultiIndex.from_tuples(cells, names=["seed", "round"])
        frame = pd.DataFrame(list(cells.values()), index=index)
        return frame.droplevel("seed") if len(self.record.seeds) == 1 else frame

    @property
    def experiment(self) -> Experiment:
        """The experiment of the run.

        Raises:
            BuiltInPython: parts of it are Python objects, and were not given to `open_run`.
            UntrustedCode: its config names Python code, and `open_run` was not told to trust it.
        """
        if self._experiment is None:
            with under(trust_for_opening(self._trust_code)):
                self._experiment = one_run(self.folder)
        return self._experiment

    @property
    def loaded(self) -> Loaded:
        """The data of the run, read again where it was opened from a folder.

        Raises:
            StateError: the data are not those that the run was trained on.
        """
        if self._loaded is None:
            found = validate(self.experiment)
            if found.sha != self.record.provenance["data"]["sha256"]:
                raise StateError(
                    f"{self.folder} was trained on other data than is read now; restore it"
                )
            self._loaded = found
        return self._loaded

    def model(self, person: str | None = None, *, seed: int | None = None) -> nn.Module:
        """The network that a person predicts with, in evaluation mode.

        Args:
            person: one of `people`; None: somebody new, before any training of their own.
            seed: of the run; default its first.

        Raises:
            ConfigError: nobody of this name took part, or the method has no model for a newcomer.
        """
        trained = self._trained(seed)
        return module_with(trained.task, self._params(trained, person))

    def predict(self, person: str | None, samples: Any, *, seed: int | None = None) -> Tensor:
        """The outputs of a person's network on samples, `[samples, ...]`.

        Args:
            person: one of `people`; None: somebody new.
            samples: `Samples` as the data set gives them, or arrays by name; where the task has one
                input column (`images`, `toy`, `task_from` by default), that array alone will do.
                `gaze_angle` takes `image` and `pose`.
            seed: of the run; default its first.

        Raises:
            ConfigError: nobody of this name took part.
            DataError: samples hold no numbers, or none of the kind or shape of the training, or
                lack a column that the network reads.
        """
        trained = self._trained(seed)
        task = trained.task
        found = samples if isinstance(samples, Samples) else _samples_by_name(samples, task)
        self._check_kinds(found, task.labels)
        given = Federation("given", {"given": Splits(found, found, found)})
        ready = task.network.prepare(given).people["given"].test
        learned = next(iter(trained.ready.people.values())).train
        # Accept prepared samples with all that the network reads and the run was trained on. A task
        # of one's own, made from one of the package, may read fewer columns than that one says.
        there, before = ({**s.columns, **s.banks} for s in (ready, learned))
        if not {*task.input_columns} & before.keys() <= there.keys():
            alone = not isinstance(samples, Samples | Mapping | tuple)
            raise DataError(
                f"predict: task {called(task)} takes arrays by name: "
                f"{', '.join(task.input_columns)}; got {'one array' if alone else ', '.join(there)}"
            )
        person = trained.owner if person is None else person
        ready = trained.with_personal_prior(ready, person)
        params = self._params(trained, person)
        try:
            return Solver(task).outputs(params, ready)  # past no defence
        except RuntimeError as error:
            self._check_rows(found, task.labels, error)
            raise

    def adapt(
        self,
        samples: Any,
        *,
        person: str = ME,
        seed: int | None = None,
        out: Path | str | None = None,
    ) -> FinishedRun:
        """A run with a model for somebody who took no part, made from labelled samples of theirs.

        The way is chosen by cross-validation on the samples alone, and the shared model is kept
        where nothing is better; `run.record.provenance["adapted"]` says which, and the errors.

        Args:
            samples: `Samples` as the data set gives them, or arrays by name, labels among them.
            person: a name for whom they are of.
            seed: of the run; default its first.
            out: where the run directory is kept; default a temporary one, which goes with the run.

        Raises:
            ConfigError: the run has no model to adapt.
            DataError: the samples are of another task or shape.
            StateError: `out` holds something.
        """
        from vergence.adaptation.adapted_run import adapt_to, open_source

        if not isinstance(samples, Samples):
            samples = Samples(columns_of(samples, "samples", ()))
        keeper = ScratchFolder() if out is None else None
        folder = keeper.path if keeper else Path(str(out))
        own = OwnData(person, samples, "samples")
        made = adapt_to(open_source(self.folder, None, seed, self._experiment), own, folder)
        return FinishedRun(folder, made.experiment, None, keeper)

    def common_model(self) -> StartingModel:
        """The model that somebody new is sent, for another network's `start`.

        Raises:
            ConfigError: the method shares no whole model.
        """
        return common_model(str(self.folder), self.experiment)

    def save(self, folder: Path | str) -> FinishedRun:
        """Copy the run directory to where it stays; the run is then read from there.

        Raises:
            StateError: something lies there already.
        """
        target = Path(folder)
        if target.exists():
            raise StateError(f"{target} is there already; choose another folder")
        shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns(".lock"))
        return FinishedRun(target, self._experiment, self._loaded, trust_code=self._trust_code)

    def report(self) -> Path:
        """Write report.html, one page that stands by itself, into the run directory."""
        from vergence.reports.html import report

        return report(self.folder)

    def verify(self) -> dict[int, str]:
        """Recompute the fingerprint of every seed from the state files.

        Raises:
            StateError: a byte differs somewhere; names the file or the seed.
        """
        return dict(verify(self.folder, self.experiment))

    def _check_kinds(self, samples: Samples, labels: Sequence[str]) -> None:
        """Accept samples of the kinds of numbers that the run was trained on.

        Raises:
            DataError: names the column, and says how to mend it; or there is no sample.
        """
        if not len(samples):
            raise DataError("samples: there are 0 rows to predict; give at least one")
        trained = next(iter(self.loaded.raw.people.values())).train.columns
        for name in sorted((trained.keys() & samples.columns.keys()) - set(labels)):
            column, wanted = samples.columns[name], trained[name].dtype
            if column.dtype != wanted:
                here, there = (str(kind).removeprefix("torch.") for kind in (column.dtype, wanted))
                raise DataError(
                    f"samples: {name!r} is {here}, and the run was trained on {there}: give "
                    f"{name}.astype({there!r})"
                )

    def _check_rows(self, samples: Samples, labels: Sequence[str], error: RuntimeError) -> None:
        """Refuse samples of another shape than the run was trained on, where torch failed.

        Raises:
            DataError: names the column, and the shape of a row of both.
        """
        trained = next(iter(self.loaded.raw.people.values())).train.columns
        for name in sorted((trained.keys() & samples.columns.keys()) - set(labels)):
            here, there = (list(each[name].shape[1:]) for each in (samples.columns, trained))
            if here != there:
                raise DataError(
                    f"samples: a row of {name!r} has the shape {here}, and the run was trained on "
                    f"rows of {there}"
                ) from error

    def _trained(self, seed: int | None) -> TrainedRun:
        return read_run(self.folder, seed, self.experiment).on_data(self.loaded.ready)

    def _params(self, trained: TrainedRun, person: str | None) -> Params:
        if person is None:
            if not trained.offers_newcomer():
                raise ConfigError(
                    f"{self.label} shares no model that somebody new could begin with; name one of "
                    f"{', '.join(self.people)}"
                )
            return trained.newcomer()
        known = trained.ready.clients
        if person not in known:
            raise ConfigError(f"nobody called '{person}' took part{nearest(str(person), known)}")
        return trained.model(person)

    def __repr__(self) -> str:
        lines = self.summary.to_string(float_format="{:.4g}".format)
        title = f"Run {self.label}: {plural(len(self.people), 'person')}, in {self.folder}"
        return "\n".join([title, lines, *self._note_lines()])

    def _repr_html_(self) -> str:
        title = html.escape(f"{self.label}: {plural(len(self.people), 'person')}")
        table = self.summary.to_html(float_format="{:.4g}".format)
        told = "".join(f"<p>{html.escape(line)}</p>" for line in self._note_lines())
        return f"<p><b>{title}</b></p>{table}{told}"

    def _note_lines(self) -> list[str]:
        """Lines about divergence, and what was spent on privacy, as the command line says it."""
        told = divergence_notes(self.record)
        if not self.privacy:
            return told
        tuned = "tuning" in tomllib.loads(self.record.config)
        return [*told, *spent.screen_lines(self.label, self.privacy, tuned)]


def _samples_by_name(given: Any, task: Task) -> Samples:
    """Arrays as samples; one array alone is the first input."""
    named = given if isinstance(given, Mapping | tuple) else (given,)
    return Samples(columns_of(named, "samples", (*(task.input_columns or ("x",)), *task.labels)))


class ScratchFolder:
    """A temporary folder that is removed with this object, by the process that made it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="vergence-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # and not a worker that was forked from it
        shutil.rmtree(path, ignore_errors=True)


def module_with(task: Any, params: Params) -> nn.Module:
    """A task's network with these parameters, in evaluation mode."""
    module = task.module()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in params:
                parameter.copy_(params[name])
    return module.eval()
