"""The commands about networks: where to cut one, what it learned, how small it gets, ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vergence.app.screen import out


def split_plan(
    config: Path,
    *,
    out_: Annotated[Path | None, Parameter(name="--out")] = None,
    markdown: Annotated[bool, Parameter(negative="")] = False,
    device: float = 2.0,
    server: float = 200.0,
    up: float = 10.0,
    down: float = 50.0,
    delay: float = 20.0,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Work out what every cut of a network would cost: bytes, FLOPs, memory and time, untrained.

    Args:
        config: an experiment (TOML).
        out_: a picture (.png, .svg, .pdf); the numbers go beside it, as .csv.
        markdown: print the tables in Markdown.
        device: what a client's device computes in training, in GFLOP/s.
        server: what the server computes for one client, in GFLOP/s.
        up: Mbit/s from the device.
        down: Mbit/s to the device.
        delay: ms that a message is on its way, each way.
        set_: `a.b=c` overrides a value of the file; may be given several times.
    """
    from vergence.app.config import load
    from vergence.app.split_pace import Speeds
    from vergence.app.split_plan import show

    speeds = Speeds(device, server, up, down, delay)
    show(load(config, set_), out, out_, markdown, speeds)


def unlabelled(
    *folders: Path,
    out_: Annotated[Path, Parameter(name="--out")] = Path("unlabelled.csv"),
    shots: int = 100,
    source: Literal["first", "all"] = "all",
    draws: int = 5,
    epochs: int = 30,
    steps: int = 300,
    seed: int = 0,
) -> None:
    """Measure gaze of unseen people from a few labels, on encoders trained without labels.

    Args:
        folders: run directories that left out the same people.
        out_: the table, as .csv.
        shots: labelled images.
        source: of the first person of the training, or across all.
        draws: random choices of the shots.
        epochs: of the few-shot network.
        steps: of the network trained on the shots alone.
        seed: of the random choices.
    """
    from vergence.app.unlabelled import Options
    from vergence.app.unlabelled import unlabelled as measure

    measure(folders, out_, Options(shots, source, draws, epochs, steps, seed), out)


def swaps(
    folder: Path,
    *,
    out_: Annotated[Path, Parameter(name="--out")] = Path("swaps.png"),
    columns: int = 6,
    person: str | None = None,
) -> None:
    """Draw a stranger's eyes again with swapped gaze and eye codes.

    Args:
        folder: a run directory of task cross_encoder with people it never saw.
        out_: the figure.
        columns: how many glances.
        person: who; default the first one left out.
    """
    from vergence.app.plot_swaps import swaps as draw

    draw(folder, out_, columns, person)
    out.print(f"figure: {out_}", soft_wrap=True)


def audit(
    folder: Path,
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    person: str | None = None,
) -> None:
    """Attack a run as its server, and whoever gets its model, could: tables in FOLDER/audit.

    Args:
        folder: a run directory of one method.
        quick: less of everything: two minutes of processor time for small runs.
        person: whose pictures are looked for; default the first.
    """
    from vergence.app.audit import audit as attack

    attack(folder, out, quick, person)


def prune(
    folder: Path,
    *,
    out_: Annotated[Path, Parameter(name="--out")],
    person: str = "all",
    amounts: Annotated[tuple[float, ...], Parameter(consume_multiple=True)] = (
        0.9,
        0.95,
        0.99,
        0.999,
    ),
    tune: int = 0,
    cut: str | None = None,
    rounds: int = 200,
) -> None:
    """Prune a run's models: error, zeros, size and time per amount; a table, a picture, the models.

    Args:
        folder: run directory of one method, or of leave-one-out.
        out_: a directory for prune.csv, prune.md, prune.png and the pruned models.
        person: one person, or all.
        amounts: shares of the linear layers' weights.
        tune: batches of training afterwards.
        cut: a stage of the network; zeros and sizes of client and server are told apart.
        rounds: timed repetitions.
    """
    from vergence.app.prune import Options
    from vergence.app.prune import prune as measure

    measure(folder, out_, out, Options(person, amounts, tune, cut, rounds))


def export(
    folder: Path,
    *,
    out_: Annotated[Path, Parameter(name="--out")],
    person: str | None = None,
    seed: int | None = None,
) -> None:
    """Write the model a person predicts with as one ONNX file, checked against torch and timed.

    Args:
        folder: run directory of one method.
        out_: the file (.onnx).
        person: whose model; default what a newcomer gets.
        seed: of which seed; default the first.
    """
    from vergence.app.export import export as write

    write(folder, out_, out, person, seed)
