"""`vergence study`: settings, protocols, calibration, other data sets, few labels, MLflow.

Used by `cli.commands`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from vergence.cli.app import Flag, OutFile, OutFolder
from vergence.console import out
from vergence.experiment.trust import allow_own_code, ask_for_trust

study = App(
    name="study", help="Settings chosen fairly, protocols, and what follows from finished runs."
)


@study.command
@allow_own_code
def sweep(
    config: Path,
    *,
    out_: OutFolder | None = None,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    unseen: int | None = None,
) -> None:
    """Try the same number of settings for every method, compared on validation data alone.

    Args:
        config: an experiment (TOML) with a `sweep`.
        out_: a new directory, or one in which the same sweep was interrupted. Default
            runs/NAME_sweep, where NAME is the file's, without .toml.
        set_: `a.b=c` overrides a value of the file; may be given several times.
        unseen: train on all but so many people, and choose on the validation data of these, for
            claims about unseen clients; the same as --set sweep.unseen=N.
    """
    from vergence.experiment.schema import load
    from vergence.studies import sweep as trials

    folder = Path("runs") / f"{config.stem}_sweep" if out_ is None else out_
    items = set_ if unseen is None else [*set_, f"sweep.unseen={unseen}"]
    trials.show(trials.sweep(load(config, items), folder), out)


@study.command
@allow_own_code
def evaluate(
    protocol: str,
    config: Path,
    *,
    out_: OutFolder | None = None,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    people: Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True)] = None,
    unseen: int | None = None,
    samples: Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True)] = None,
    split_seeds: Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True)] = None,
) -> None:
    """Evaluate an experiment under a protocol; called again, it goes on where it was interrupted.

    Args:
        protocol: within, leave-one-out, score (both of them), late, people, matrix, conditions,
            leave-condition-out, samples, splits.
        config: the experiment (TOML).
        out_: a directory for all protocols of this experiment. Default runs/NAME_protocols,
            where NAME is the file's, without .toml.
        set_: `a.b=c` overrides a value of the file; may be given several times.
        people: numbers of people to train on, for protocol people; default 5 10 15 30.
        unseen: for protocol people, how many others are then evaluated, the last in the data;
            default 5.
        samples: numbers of training samples of each person, for protocol samples; default 5 10 20.
        split_seeds: values of federation.split_seed, for protocol splits; default 0 1 2.
    """
    from vergence.experiment.schema import load
    from vergence.studies.protocols import evaluate as carry_out

    folder = Path("runs") / f"{config.stem}_protocols" if out_ is None else out_
    carry_out(protocol, load(config, set_), folder, out, people, unseen, samples, split_seeds)


@study.command
@ask_for_trust
def calibrate(
    *sources: Path,
    out_: OutFile = Path("calibration.png"),
    person: str = "all",
    prediction: str | None = None,
    eyes: Literal["together", "apart", "each"] = "together",
    counts: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (
        0,
        1,
        5,
        9,
        20,
        50,
        100,
    ),
    draws: int = 0,
    steps: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    pulls: Annotated[tuple[float, ...], Parameter(consume_multiple=True)] = (),
    adapt: Flag = False,
) -> None:
    """Measure how much k labelled samples of a person improve gaze: a table, a figure, a CSV.

    Args:
        sources: an npz of predictions (gaze and predictions [people, n, 2] in radians, pitch and
            yaw; left eyes first), or a run directory with people it never saw; with --adapt several
            runs, drawn side by side.
        out_: the figure; the numbers go beside it, as .csv.
        person: one person, or all.
        prediction: the array of predictions in the npz; default pred_lenet.
        eyes: one correction for both eyes (together); one per eye from its part of the k samples
            (apart); or one per eye from k samples of each (each).
        counts: numbers of calibration samples.
        draws: random choices of the samples; default 200 for predictions, 5 for a run.
        steps: batches of fine-tuning (last layer, whole model), for a run; default 50.
        lr: learning rate of fine-tuning, for a run; default that of the run.
        seed: of the random choices.
        pulls: strengths of a penalty on the distance to the initial weights; fine-tuning uses the
            one that is best for the other people.
        adapt: add what `vergence adapt` chooses by itself, training on the k samples alone, and
            their constant mean; with the improvement, and the number of people each harms.
    """
    from vergence.studies.calibration import CalibrationOptions
    from vergence.studies.calibration import calibrate as measure

    options = CalibrationOptions(
        person, prediction, eyes, counts, draws, steps, lr, seed, pulls, adapt
    )
    measure(sources, out_, options, out)


@study.command
@ask_for_trust
def cross(*folders: Path, out_: OutFolder = Path("runs/cross")) -> None:
    """Test every run's model on the people of every other run's data set.

    Args:
        folders: two or more run directories, one for each data set, of one task.
        out_: where cross.csv goes.
    """
    from vergence.studies.cross_dataset import cross as measure

    measure(folders, out_, out)


@study.command
@ask_for_trust
def unlabelled(
    *folders: Path,
    out_: OutFile = Path("unlabelled.csv"),
    shots: int = 100,
    source: Literal["first", "all"] = "all",
    draws: int = 5,
    epochs: int = 30,
    steps: int = 300,
    seed: int = 0,
) -> None:
    """Measure the gaze error of unseen people with a few labels, on encoders trained without any.

    Args:
        folders: run directories that left out the same people.
        out_: the table, as .csv.
        shots: number of labelled images.
        source: take them from the first person of the training, or from all.
        draws: number of random choices of the labelled images.
        epochs: passes of training the small network on top of the encoder.
        steps: steps of training a network on the labelled images alone.
        seed: of the random choices.
    """
    from vergence.studies.few_shot import FewShotOptions
    from vergence.studies.few_shot import unlabelled as measure

    measure(folders, out_, FewShotOptions(shots, source, draws, epochs, steps, seed), out)


@study.command
@ask_for_trust
def swaps(
    folder: Path,
    *,
    out_: OutFile = Path("swaps.png"),
    columns: int = 6,
    person: str | None = None,
) -> None:
    """Draw the eyes of an unseen client again with swapped gaze and eye codes.

    Args:
        folder: a run directory of task cross_encoder with people it never saw.
        out_: the figure.
        columns: number of glances, one a column.
        person: the unseen client; default the first one left out.
    """
    from vergence.studies.swaps import swaps as draw

    draw(folder, out_, columns, person)
    out.print(f"figure: {out_}", soft_wrap=True)


@study.command
def mlflow(
    folder: Path,
    *,
    to: str,
    experiment: str = "vergence",
    watch: Flag = False,
    with_people: Flag = False,
) -> None:
    """Send a run to MLflow: one MLflow run per method and seed; again, only what is new.

    Args:
        folder: what `vergence run --out` wrote, a run directory below, or a deployment's folder.
        to: MLflow's tracking address, such as http://127.0.0.1:5000 or sqlite:///mlflow.db.
        experiment: the MLflow experiment.
        watch: go on sending until the run ends.
        with_people: send results of single people (people.csv, the report, names) also where the
            run hides people by `privacy`; without, they are then left out.
    """
    from vergence.monitoring.mlflow_export import send

    with suppress(KeyboardInterrupt):
        out.print(send(folder, to, experiment, watch, with_people), soft_wrap=True, highlight=False)
