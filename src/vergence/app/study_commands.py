"""The commands of a study: settings, protocols, calibration, papers, and what became personal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vergence.app.screen import out


def sweep(
    config: Path,
    *,
    out_: Annotated[Path, Parameter(name="--out")],
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Try settings of every method, equally many of each, on validation data alone.

    Args:
        config: an experiment (TOML) with a `sweep`.
        out_: a new directory, or one in which the same sweep was interrupted.
        set_: `a.b=c` overrides a value of the file; may be given several times.
    """
    from vergence.app import sweep as trials
    from vergence.app.config import load

    trials.show(trials.sweep(load(config, set_), out_), out)


def reproduce(
    *tables: str,
    list_: Annotated[bool, Parameter(name="--list", negative="")] = False,
    check_paper: Annotated[bool, Parameter(negative="")] = False,
    on: str | None = None,
    root: str | None = None,
    seeds: int | None = None,
    rounds: int | None = None,
    out_: Annotated[Path | None, Parameter(name="--out")] = None,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Run a paper's tables again, beside its numbers, with a verdict on every claim.

    Args:
        tables: such as fedcpf/table1; fedcpf, adaptive, splitfed or apfl for all of one.
        list_: print every table id and its state.
        check_paper: compute the printed numbers again instead of running anything.
        on: data set; default ego_synthetic (fedcpf), eye_synthetic (adaptive, splitfed),
            fashion_mnist (apfl).
        root: its folder.
        seeds: how many, 5 by default; fewer is stamped fast.
        rounds: instead of the data set's own number.
        out_: default runs/reproduce/DATASET; the same command goes on.
        set_: `a.b=c` overrides a value of every experiment.
    """
    from vergence.app import reproduce as papers
    from vergence.app.papers.running import SEEDS, Wish

    given = {"--on": on, "--root": root, "--seeds": seeds, "--rounds": rounds,
             "--set": set_ or None}  # fmt: skip
    if list_:
        also = {"a table": tables or None, "--check-paper": check_paper or None}
        papers.unread("--list", {**also, **given})
        papers.listing(out, out_)
    elif check_paper:
        papers.unread("--check-paper", {**given, "--out": out_})
        papers.check_paper(tables, out)
    else:
        wish = Wish(root, SEEDS if seeds is None else seeds, rounds, tuple(set_))
        papers.reproduce(tables, out, on=on, wish=wish, out=out_)


def calibrate(
    source: Path,
    *,
    out_: Annotated[Path, Parameter(name="--out")] = Path("calibration.png"),
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
) -> None:
    """Measure what k labelled samples of a person buy: a table, a figure, and the numbers as CSV.

    Args:
        source: an npz of predictions (gaze and predictions [people, n, 2] in radians, pitch and
            yaw; left eyes first), or a run directory with people it never saw.
        out_: the figure; the numbers go beside it, as .csv.
        person: one person, or all.
        prediction: the array of predictions in the npz; default pred_lenet.
        eyes: one correction for both eyes; one per eye from its part of the k samples (apart); or
            one per eye from k samples of each (each).
        counts: numbers of calibration samples.
        draws: random choices of the samples; default 200 for predictions, 5 for a run.
        steps: batches of fine-tuning (last layer, whole model), for a run; default 50.
        lr: its learning rate, for a run; default that of the run.
        seed: of the random choices.
    """
    from vergence.app.calibrate import Options
    from vergence.app.calibrate import calibrate as measure

    options = Options(person, prediction, eyes, counts, draws, steps, lr, seed)
    measure(source, out_, options, out)


def evaluate(
    protocol: str,
    config: Path,
    *,
    out_: Annotated[Path, Parameter(name="--out")],
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    people: Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True)] = None,
    unseen: int | None = None,
) -> None:
    """Evaluate an experiment under a protocol; given again, it goes on where it was interrupted.

    Args:
        protocol: within, leave-one-out, score (both of them), late, people, matrix, conditions.
        config: the experiment (TOML).
        out_: a directory for all protocols of this experiment.
        set_: `a.b=c` overrides a value of the file; may be given several times.
        people: numbers of people to train on, for protocol people; default 5 10 15 30.
        unseen: how many others, the last of the data, are measured then; default 5.
    """
    from vergence.app.config import load
    from vergence.app.protocols import evaluate as carry_out

    carry_out(protocol, load(config, set_), out_, out, people, unseen)


def masks(folder: Path) -> None:
    """Print which layers became personal, and how far people and seeds agree, beside chance.

    Args:
        folder: what `vergence run --out` wrote, or a run directory below.
    """
    from vergence.app.anatomy import tell

    tell(folder, out)


def cross(
    *folders: Path, out_: Annotated[Path, Parameter(name="--out")] = Path("runs/cross")
) -> None:
    """Test every run's model on the people of every other run's data set.

    Args:
        folders: two or more run directories, one for each data set, of one task.
        out_: where cross.csv goes.
    """
    from vergence.app.crossing import cross as measure

    measure(folders, out_, out)


def forget(
    folder: Path,
    person: str,
    *,
    out_: Annotated[Path, Parameter(name="--out")],
    patch: int = 0,
    shadows: int = 8,
    erase: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Make a run's model without one person; say how far the old and the new remember them.

    Args:
        folder: what `vergence run --out` wrote, a run directory below, or folds of leave-one-out.
        person: who is to be forgotten.
        out_: a new directory, or one in which the same command was interrupted.
        patch: so many rounds of the others from where the run ended, which is approximate; default
            0, the exact way: the same experiment again without this person.
        shadows: runs of the same experiment without this person, of other seeds, which the
            membership audit judges by, 3 or more; 0: no audit.
        erase: when the new model stands, take what names this person out of FOLDER: states, masks,
            rows of its tables, pictures.
    """
    from vergence.app.forget import Options
    from vergence.app.forget import forget as leave

    leave(folder, person, out_, out, Options(patch, shadows, erase))
