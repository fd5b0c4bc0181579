"""A finished run: its numbers as data frames, and each person's model as a torch module.

Used by `api.comparison`, `api.explanation`, `api.reopened` and `api.train`.
"""

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
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from vergence.adaptation.own_data import ME, OwnData
from vergence.api import predictions
from vergence.core.arrays import check_numbers, columns_of
from vergence.core.data import Samples, Splits
from vergence.core.federation import Federation
from vergence.core.naming import plural, registry_name
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
from vergence.results.baselines import constant_notes
from vergence.results.divergence import run_notes
from vergence.tasks.gaze_angle import GazeAngle, check_angles
from vergence.training.sequential import Solver

if TYPE_CHECKING:
    from pandas import DataFrame

    from vergence.model_tools.onnx_export import Exported

P0 = "P0"
"""Name of the evaluation point at which people's models are measured after the last download."""


class FinishedRun:
    """One method's finished run.

    Attributes:
        folder: the run directory. If `train` got no `out`, it is deleted with this object.
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
        """Names of the people who were evaluated, in client order."""
        return list(self.record.people)

    @property
    def headline(self) -> str:
        """Name of the headline metric, which tables put first."""
        return self.record.headline

    @property
    def fingerprint(self) -> dict[int, str]:
        """Seed -> digest of all final states; it is equal for runs that are equal bit for bit."""
        return {int(s): sha for s, sha in self.record.results["fingerprint"].items()}

    @property
    def privacy(self) -> dict[str, Any]:
        """Privacy budgets that the run spent, as in results.json; empty without a budget.

        `privacy["person"]["epsilon"]` is the epsilon of `privacy.user`; `privacy["sample"]` is the
        budget of `privacy.solver`.
        """
        return dict(self.record.results.get("privacy") or {})

    @cached_property
    def scores(self) -> DataFrame:
        """Score of each person (rows) in each metric (columns), averaged over seeds.

        The headline metric is the first column.
        """
        import pandas as pd

        columns = {metric: self.record.scores(metric) for metric in self.record.estimates}
        frame = pd.DataFrame(columns, index=pd.Index(self.people, name="person"))
        frame.columns.name = "metric"
        return frame

    @cached_property
    def summary(self) -> DataFrame:
        """One row per metric: mean over people, 95 % interval, standard deviation, worst person.

        The interval is Student's t interval over people; it is NaN for one person.
        """
        import pandas as pd

        rows = {metric: estimate._asdict() for metric, estimate in self.record.estimates.items()}
        names = {"lo": "ci95_low", "hi": "ci95_high"}
        frame = pd.DataFrame.from_dict(rows, orient="index").rename(columns=names)
        frame.index.name = "metric"
        return frame

    @cached_property
    def history(self) -> DataFrame:
        """One row per round (and seed): means over people, training loss, bytes and seconds.

        Metrics are NaN in rounds in which people were not evaluated (`evaluate_every`). Round 0 is
        before training. A round after the last one is a method's final step.
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

    @cached_property
    def curves(self) -> DataFrame:
        """Scores of each person after each evaluated round: one row per seed, round, person, point.

        `round`, `person` and `point` are as in `history` and `scores`: point P0 is the model with
        which a person predicts, V0 the same on validation samples. Metrics are columns, the
        headline first. The last round has the scores of the final models, or the best round if
        early stopping went back to it. Runs with `evaluate_every=0`, runs of older versions, and
        runs whose `privacy` hides single people have this round alone.
        """
        return self.record.curves

    @property
    def experiment(self) -> Experiment:
        """The experiment of the run.

        Raises:
            BuiltInPython: parts of the experiment are Python objects, which `open_run` was not
                given.
            UntrustedCode: its config names Python code, and `open_run` had no `trust_code=True`.
        """
        if self._experiment is None:
            with under(trust_for_opening(self._trust_code)):
                self._experiment = one_run(self.folder)
        return self._experiment

    @property
    def loaded(self) -> Loaded:
        """The data of the run; if the run was opened from a folder, they are read again.

        Raises:
            StateError: the data are not those that the run was trained on.
        """
        if self._loaded is None:
            loaded = validate(self.experiment)
            # Scores on other data would stand next to those of the run, as if they were of it.
            if loaded.sha != self.record.provenance["data"]["sha256"]:
                raise StateError(
                    f"{self.folder} was trained on other data than is read now; restore it"
                )
            self._loaded = loaded
        return self._loaded

    def model(self, person: str | None = None, *, seed: int | None = None) -> nn.Module:
        """Return the network with which a person predicts, in evaluation mode.

        Args:
            person: one of `people`; None: a new person, before any training on their data.
            seed: a seed of the run; default: the first.

        Raises:
            ConfigError: nobody of this name took part, or the method has no model for new people.
        """
        trained = self._trained(seed)
        return module_with(trained.task, self._params(trained, person))

    def predict(self, person: str | None, samples: Any, *, seed: int | None = None) -> Tensor:
        """Return the outputs of a person's network on samples; the first dimension is samples.

        Args:
            person: one of `people`; None: a new person.
            samples: `Samples` with the columns of the data set, or arrays by name. A task with one
                input column (`images`, `toy`, `task_from` by default) also takes that array alone.
                `gaze_angle` takes `image` and `pose`.
            seed: a seed of the run; default: the first.

        Raises:
            ConfigError: nobody of this name took part.
            DataError: the samples are not finite numbers, or lack a column that the network reads,
                or have another type or shape than in training.
        """
        trained = self._trained(seed)
        task = trained.task
        raw = samples if isinstance(samples, Samples) else _samples_by_name(samples, task)
        self._check_kinds(raw, task.labels)
        inputs = {n: raw.columns[n] for n in task.input_columns or ("x",) if n in raw.columns}
        # NaN is allowed where it means "not recorded" in training data as well.
        check_numbers(inputs, "samples", self.loaded.raw.missing)
        if isinstance(task, GazeAngle):
            check_angles([("samples", raw)])
        federation = Federation("given", {"given": Splits(raw, raw, raw)})
        ready = task.network.prepare(federation).people["given"].test
        example = next(iter(trained.ready.people.values())).train
        # A user's task made from one of the package may read fewer columns than that one names, so
        # only columns that the run was trained on are required.
        columns, known = ({**s.columns, **s.banks} for s in (ready, example))
        if not {*task.input_columns} & known.keys() <= columns.keys():
            single = not isinstance(samples, Samples | Mapping | tuple)
            raise DataError(
                f"predict: task {registry_name(task)} takes arrays by name: "
                f"{', '.join(task.input_columns)}; got "
                f"{'one array' if single else ', '.join(columns)}"
            )
        person = trained.owner if person is None else person
        ready = trained.with_personal_prior(ready, person)
        params = self._params(trained, person)
        # A defence at the cut layer protects what is sent; here nothing leaves the person.
        try:
            return Solver(task).outputs(params, ready)
        # Networks such as those of `transformers` check the shape themselves.
        except (RuntimeError, ValueError) as error:
            self._check_rows(raw, task.labels, error)
            raise

    def predictions(self, *, seed: int | None = None) -> DataFrame:
        """Return what every person's model predicts for the person's test samples.

        Args:
            seed: a seed of the run; default: the first.

        Returns:
            A row per test sample: person, number of the sample, labels and outputs; for a
            classifier also `target` and `predicted`, the numbers of classes.

        Raises:
            ConfigError: outputs are maps or sequences; `predict` returns those.
        """
        return predictions.predictions(self._trained(seed))

    def confusion(self, *, seed: int | None = None) -> DataFrame:
        """Return the numbers of all people's test samples by true (rows) and predicted class.

        Raises:
            ConfigError: the run predicts no classes.
        """
        return predictions.confusion(self.predictions(seed=seed))

    def classes(self, *, seed: int | None = None) -> DataFrame:
        """Return samples, precision, recall and F1 of every class, over all people's test samples.

        Raises:
            ConfigError: the run predicts no classes.
        """
        return predictions.classes(self.predictions(seed=seed))

    def adapt(
        self,
        samples: Any,
        *,
        person: str = ME,
        seed: int | None = None,
        out: Path | str | None = None,
    ) -> FinishedRun:
        """Adapt the shared model to a new person with labelled samples; return the new run.

        Cross-validation on these samples chooses the kind of adaptation. If none is better than the
        shared model, that model is kept. `run.record.provenance["adapted"]` has the choice and the
        errors.

        Args:
            samples: labelled samples: `Samples` with the columns of the data set, or arrays by
                name.
            person: a name for the person from whom the samples are.
            seed: a seed of the run; default: the first.
            out: folder for the run directory; default: a temporary one, deleted with the run.

        Raises:
            ConfigError: the run has no model to adapt.
            DataError: the samples are of another task or shape.
            StateError: `out` is not empty.
        """
        from vergence.adaptation.adapted_run import adapt_to, open_source

        if not isinstance(samples, Samples):
            samples = Samples(columns_of(samples, "samples", ()))
        keeper = ScratchFolder() if out is None else None
        folder = keeper.path if keeper else Path(str(out))
        own = OwnData(person, samples, "samples")
        with under(trust_for_opening(self._trust_code)):
            made = adapt_to(open_source(self.folder, None, seed, self._experiment), own, folder)
        return FinishedRun(folder, made.experiment, None, keeper)

    def export(
        self,
        out: Path | str,
        *,
        person: str | None = None,
        seed: int | None = None,
        frames: int | Literal["dynamic"] | None = None,
        batch: int | Literal["dynamic"] = 1,
        int8: Literal["static", "dynamic"] | None = None,
        float16: bool = False,
    ) -> Exported:
        """Write the model with which a person predicts as an ONNX file, checked against torch.

        Args:
            out: the file (.onnx).
            person: one of `people`; None: a new person; of an adapted run, its person.
            seed: a seed of the run; default: the first.
            frames: frames in a window of a video network: a number, or "dynamic" for any; default
                the run's.
            batch: samples in a call: a number, or "dynamic" for any.
            int8: weights and activations in eight bits; "static" takes the range of activations
                from training samples of the people who took part, "dynamic" finds it in every call.
            float16: numbers in half precision.

        Raises:
            ConfigError: the extra `export` is missing, the task or network cannot be exported,
                nobody of this name took part, the method has no model for new people, or options
                exclude each other.
            DataError: the file's answers differ from torch's by more than 1e-5; nothing is written.
        """
        from rich.console import Console

        from vergence.model_tools.onnx_export import CallShape, export
        from vergence.model_tools.reduced_precision import precision_of

        shape, precision = CallShape(frames, batch), precision_of(int8, float16)
        quiet = Console(quiet=True)
        given = (person, seed, shape, self.experiment, precision)
        return export(self.folder, Path(out), quiet, *given)

    def calibrate(
        self,
        people: Federation,
        *,
        counts: Sequence[int] = (0, 1, 3, 9, 27, 81),
        draws: int = 1,
    ) -> DataFrame:
        """Measure what labelled samples buy new people, for every way that `adapt` tries.

        The samples are drawn from a person's training part, and the error is that of the test part.

        Args:
            people: people who took no part in the run.
            counts: numbers of samples.
            draws: random choices of these samples for each person.

        Returns:
            The headline metric, a row for each person and way, a column for each number of samples.

        Raises:
            ConfigError: somebody took part in the run, or the run has no model to adapt.
            DataError: the data do not fit the run's task or network, or a person has fewer samples.
        """
        from vergence.experiment.newcomers import new_people
        from vergence.studies.calibration import CalibrationOptions, curves_of_run, frame_of

        held_out = new_people(self.folder, self.experiment, people)
        options = CalibrationOptions(counts=tuple(counts), draws=draws, adapt=True)
        return frame_of(curves_of_run(held_out, options))

    def common_model(self) -> StartingModel:
        """Return the model that a new person would be sent.

        Another network may get it as its option `start`.

        Raises:
            ConfigError: the method shares no whole model.
        """
        return common_model(str(self.folder), self.experiment)

    def save(self, folder: Path | str) -> FinishedRun:
        """Copy the run directory, and return the run in its new folder.

        Raises:
            StateError: the folder exists already.
        """
        target = Path(folder)
        if target.exists():
            raise StateError(f"{target} is there already; choose another folder")
        # The lock belongs to whoever writes in the old folder.
        shutil.copytree(self.folder, target, ignore=shutil.ignore_patterns(".lock"))
        return FinishedRun(target, self._experiment, self._loaded, trust_code=self._trust_code)

    def report(self) -> Path:
        """Write report.html into the run directory, and return its path.

        The page needs no other files.
        """
        from vergence.reports.html import report

        return report(self.folder)

    def verify(self) -> dict[int, str]:
        """Recompute the fingerprint of every seed from the state files; return seed -> fingerprint.

        Raises:
            StateError: something differs; the message names the file or the seed.
        """
        return dict(verify(self.folder, self.experiment))

    def _check_kinds(self, samples: Samples, labels: Sequence[str]) -> None:
        """Check that the input columns have the number types with which the run was trained.

        Raises:
            DataError: a column has another type, and the message says how to convert it; or there
                is no sample.
        """
        if not len(samples):
            raise DataError("samples: there are 0 rows to predict; give at least one")
        trained = next(iter(self.loaded.raw.people.values())).train.columns
        for name in sorted((trained.keys() & samples.columns.keys()) - set(labels)):
            column, wanted = samples.columns[name], trained[name]
            kinds = [str(each.dtype).removeprefix("torch.") for each in (column, wanted)]
            if kinds[0] != kinds[1]:
                raise DataError(
                    f"samples: {name!r} is {kinds[0]}, and the run was trained on {kinds[1]}: give "
                    f"{name}.astype({kinds[1]!r})"
                )
            if column.ndim != wanted.ndim:
                raise DataError(
                    f"samples: {name!r} is {column.ndim}-dimensional, and the run was trained on "
                    f"{wanted.ndim}-dimensional: give {name}[None] for one sample"
                )

    def _check_rows(self, samples: Samples, labels: Sequence[str], error: Exception) -> None:
        """Explain the network's error if rows of a column have another shape than in training.

        Raises:
            DataError: a column has another shape; the message names both shapes.
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
        # None stands for somebody new: a method that shares nothing has no model for them.
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
        title = f"Run {self.label}: {self._people_text()}, in {self.folder}"
        return "\n".join([title, lines, *self._note_lines()])

    def _repr_html_(self) -> str:
        title = html.escape(f"{self.label}: {self._people_text()}")
        table = self.summary.to_html(float_format="{:.4g}".format)
        notes = "".join(f"<p>{html.escape(line)}</p>" for line in self._note_lines())
        return f"<p><b>{title}</b></p>{table}{notes}"

    def _people_text(self) -> str:
        count, trained = len(self.people), self.record.results.get("clients", 0)
        return plural(count, "person") + (f" measured of {trained}" if trained > count else "")

    def _note_lines(self) -> list[str]:
        """Return the lines on the run and on spent privacy that the command line also prints."""
        notes = [*run_notes(self.record), *constant_notes(runs.read(self.folder))]
        if not self.privacy:
            return notes
        tuned = "tuning" in tomllib.loads(self.record.config)
        return [*notes, *spent.screen_lines(self.label, self.privacy, tuned)]


def _samples_by_name(arrays: Any, task: Task) -> Samples:
    """Make samples from arrays; a single array becomes the first input column."""
    named = arrays if isinstance(arrays, Mapping | tuple) else (arrays,)
    return Samples(columns_of(named, "samples", (*(task.input_columns or ("x",)), *task.labels)))


class ScratchFolder:
    """A temporary folder that is removed with this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="vergence-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, process: int) -> None:
    # A worker that was forked from this process has a copy of the object, and must not remove it.
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def module_with(task: Any, params: Params) -> nn.Module:
    """Build a task's network with these parameters, in evaluation mode."""
    module = task.module()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in params:
                parameter.copy_(params[name])
    return module.eval()
