"""The `vergence` command."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.table import Table

from vergence.app.bench_commands import bench
from vergence.app.deploy_commands import deploy
from vergence.app.network_commands import audit, export, prune, split_plan, swaps, unlabelled
from vergence.app.screen import out
from vergence.app.study_commands import (
    calibrate,
    cross,
    evaluate,
    forget,
    masks,
    reproduce,
    sweep,
)
from vergence.app.video_commands import summarise
from vergence.app.watch_commands import mlflow, status
from vergence.errors import ConfigError, PartialRun, VergenceError

app = App(
    name="vergence",
    help="Train personalised gaze models across people without collecting their data.",
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
data = App(name="data", help="Data sets: what there is, and whether yours is whole.")
app.command(data)
for command in (sweep, evaluate, calibrate, cross, reproduce, masks, forget):
    app.command(command)
for command in (unlabelled, swaps, prune, export, audit):
    app.command(command)
for command in (status, mlflow, summarise):
    app.command(command)
app.command(split_plan, name="split-plan")
app.command(deploy)
app.command(bench)


@app.command
def run(
    config: Path,
    *,
    out_: Annotated[Path, Parameter(name="--out")],
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Run an experiment file into a new directory, then print the table and write the report.

    Args:
        config: the experiment (TOML).
        out_: a new directory; `methods = [...]` makes one run directory each below it.
        set_: `a.b=c` overrides a value of the file; may be given several times.
    """
    from vergence.app.config import load
    from vergence.app.run import start

    start(load(config, set_), out_)
    _present(out_)


@app.command
def resume(folder: Path) -> None:
    """Go on with an interrupted run, to the same bits as if it had never stopped."""
    from vergence.app.config import load
    from vergence.app.run import resume as go_on
    from vergence.errors import StateError

    if (folder / "sweep.toml").is_file():
        from vergence.app import sweep as trials

        trials.show(trials.resume(folder), out)
        return
    if not (folder / "config.toml").is_file():
        raise StateError(f"{folder} holds no run (no config.toml): start one with `vergence run`")
    go_on(load(folder / "config.toml"), folder)
    _present(folder)


@app.command
def compare(
    *folders: Path,
    metric: str | None = None,
    reference: str | None = None,
    margin: float | None = None,
    unit: Literal["person", "person-seed"] = "person",
    unseen: Annotated[bool, Parameter(negative="")] = False,
    allow: list[str] = [],  # noqa: B006
    table: Literal["methods", "fairness", "tests", "ranks"] | None = None,
    style: Annotated[Literal["table", "csv", "markdown"], Parameter(name="--format")] = "table",
) -> None:
    """Print methods side by side, how they treat people, and which differences are real.

    Runs whose data, split, people, seeds, budget or tuning differ are refused.

    Args:
        folders: what `vergence run --out` wrote, or single run directories below.
        metric: the metric to test differences of; default the task's headline.
        reference: pair every method with this one; default with FedAvg and with local-only.
        margin: differences up to this, in the metric's units, are of no importance: adds an
            equivalence test. Choose it before looking.
        unit: what is one observation: a person, seeds averaged first, or a person in one seed.
        unseen: leave out the people on whom a sweep chose settings; the output says whom.
        allow: a field in which runs may differ all the same, such as rounds or local.lr; may be
            given several times. The output says so.
        table: print this table alone; CSV holds one table, by default methods.
        style: how to print.
    """
    from vergence.app import compare as tables

    study = tables.gather(folders, allow)
    notes = tables.agree(study.runs, allow)
    if unseen:
        study, note = tables.unseen(study)
        notes.append(note)
    parts = tables.blocks(study, metric, reference, margin, unit)
    if style == "table":
        tables.print_parts(parts, out, table, notes)
    else:
        sys.stdout.write(tables.written(study, parts, style, table, notes))


@app.command
def report(
    folder: Path,
    *,
    figure: str | None = None,
    for_: Annotated[Literal["ethics"] | None, Parameter(name="--for")] = None,
    out_: Annotated[Path | None, Parameter(name="--out")] = None,
) -> None:
    """Write one self-contained HTML file, or one figure alone.

    Args:
        folder: what `vergence run --out` wrote, or a run directory below.
        figure: persons, classes, per_class, slope, convergence, masks, layers, overlap, bytes,
            strip, tokens, overview.
        for_: `ethics`: what happens to people's data, in plain words, with JSON and cards beside;
            `folder` may then be an experiment file that has not been run.
        out_: where a figure goes (.png, .svg, .pdf), default FIGURE.png in the folder; with
            `--for ethics` a folder.
    """
    if for_ is not None:
        from vergence.app.ethics import ethics

        out.print(f"page: {ethics(folder, out_)}", soft_wrap=True)
        return
    from vergence.app import report as pages

    if figure is None:
        out.print(f"report: {pages.report(folder)}", soft_wrap=True)
    else:
        path = pages.figure(folder, figure, out_ or folder / f"{figure}.png")
        out.print(f"figure: {path}", soft_wrap=True)


@app.command
def predict(
    model: Path,
    video: Path,
    *,
    out_: Annotated[Path | None, Parameter(name="--out")] = None,
    person: str | None = None,
) -> None:
    """Write a video with heat map, predicted point and, where known, true gaze; and a CSV.

    Args:
        model: run directory of one method.
        video: any video; true gaze is read from a gaze_2d.csv beside it.
        out_: the overlay; default VIDEO_overlay.mp4 in the working directory.
        person: predict as this participant; default as a newcomer.
    """
    from vergence.app.predict import predict as draw

    written = draw(model, video, out_ or Path(f"{video.stem}_overlay.mp4"), person)
    slowed = f", slowed {written.slow_down:.0f}x" if written.slow_down > 1 else ""
    out.print(f"overlay: {written.video} ({written.frames} frames{slowed})", soft_wrap=True)
    out.print(f"table:   {written.table}", soft_wrap=True)


@app.command
def methods() -> None:
    """List the methods, what each lets the server learn, and its source."""
    from vergence.app.binding import find, names
    from vergence.core.method import Method

    table = Table("name", "what it does", "server learns")
    for name in names("methods", Method):
        kind = find("methods", name, Method)
        seen = [
            f"{verb}: {'each reply' if e.reveal == 'each' else 'a sum'}"
            f"{' and the masks' if e.weight == 'mask' else ''}"
            if e.trees
            else f"{verb}: metrics"
            for verb, e in kind.exposure.items()
        ]
        table.add_row(name, (kind.__doc__ or "").partition("\n")[0],
                      "everything" if kind.pooled else "; ".join(seen))  # fmt: skip
    out.print(table)


@app.command
def explain(
    config: Path,
    *,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    matrix: Annotated[bool, Parameter(negative="")] = False,
    style: Annotated[Literal["table", "markdown"], Parameter(name="--format")] = "table",
) -> None:
    """Print who learns what in a round of an experiment, and draw the flow of data.

    Args:
        config: the experiment (TOML).
        set_: `a.b=c` overrides a value of the file; may be given several times.
        matrix: instead, which methods and settings can be combined on its task and network.
        style: how to print the matrix.
    """
    from vergence.app.config import load

    if matrix:
        from vergence.app.matrix import show

        show(load(config, set_), out, style)
        return
    from vergence.app.explain import explain as tell

    tell(load(config, set_), out)


@app.command
def verify(folder: Path) -> None:
    """Recompute every fingerprint of a finished run; fails on one flipped byte.

    Args:
        folder: a run directory, or what `vergence run --out` wrote.
    """
    from vergence.app import seals
    from vergence.app.runs import read
    from vergence.app.saved import verify as recompute

    seals.check(folder)
    for found in read(folder).runs:
        for seed, sha in recompute(found.folder):
            out.print(f"{found.label} seed {seed}: {sha} ok", soft_wrap=True, highlight=False)


@data.command(name="list")
def list_data() -> None:
    """List the data sets vergence reads."""
    from vergence.app.binding import find, names
    from vergence.core.site import Dataset

    table = Table("name", "what it is")
    for name in names("data", Dataset):
        table.add_row(name, (find("data", name, Dataset).__doc__ or "").partition("\n")[0])
    out.print(table)


@data.command
def skew(
    target: str,
    *,
    root: str | None = None,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    picture: Path | None = None,
) -> None:
    """Measure how people's data differ: every skew of every client, against all others.

    Args:
        target: a data set (see `vergence data list`) or an experiment file (.toml).
        root: its folder; relative to the working directory, else to VERGENCE_DATA.
        set_: `federation.key=value` or `noise.key=value`; may be given several times.
        picture: write the shares as a heat map (.png, .svg, .pdf).
    """
    from vergence.app.skew import show

    show(target, root, out, set_, picture)


@data.command
def partition(
    target: str,
    *,
    root: str | None = None,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    picture: Path | None = None,
) -> None:
    """Show who has how many training samples of which class.

    Args:
        target: a data set (see `vergence data list`) or an experiment file (.toml).
        root: its folder; relative to the working directory, else to VERGENCE_DATA.
        set_: `federation.key=value` or `noise.key=value`; may be given several times.
        picture: draw it (.png, .svg, .pdf): people by classes, a disc for each.
    """
    from vergence.app.partition import show

    show(target, root, out, set_, picture)


@data.command
def patches(
    source: Path,
    out_: Path,
    *,
    landmarker: Path,
    camera: Path | None = None,
    targets: Path | None = None,
    contact_sheet: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Find a face in a picture, a folder or a video, and write its normalised eye patches.

    Args:
        source: a picture, a folder of pictures, or a video, of one person.
        out_: the new .npz.
        landmarker: MediaPipe's face landmarker, a .task file.
        camera: JSON of a calibrated camera; by default the focal length is guessed.
        targets: CSV (frame, x, y, z) of points looked at, mm in the camera frame.
        contact_sheet: draw the patches beside the .npz, as .png.
    """
    from vergence.app.patches import show, write_patches

    found = write_patches(
        source, out_, landmarker, camera=camera, targets=targets, sheet=contact_sheet
    )
    show(found, out_, out, guessed=camera is None, sheet=contact_sheet)


@data.command
def check(name: str, *, root: str | None = None) -> None:
    """Count, verify, and say what is missing and where a licence holder gets it.

    Args:
        name: a data set (see `vergence data list`).
        root: its folder; relative to the working directory, else to VERGENCE_DATA.
    """
    from vergence.app.checking import check as look

    failed = look(name, root, out)
    if failed:
        from vergence.errors import DataError

        raise DataError(f"{name}: {failed} check{'s' if failed > 1 else ''} failed, see above")


def _present(folder: Path) -> None:
    from vergence.app import compare as tables
    from vergence.app import report as pages
    from vergence.app.budget import lines

    study = tables.gather([folder], tables.ANYTHING)
    notes = tables.agree(study.runs, tables.ANYTHING)
    tables.print_parts(tables.blocks(study), out, notes=notes)
    for each in study.runs:
        for line in lines(each.label, each.results.get("privacy", {})):
            out.print(line, soft_wrap=True, highlight=False, markup=False)
        if each.folder != folder:
            pages.report(each.folder)
    out.print(f"report: {pages.report(folder)}", soft_wrap=True)


def main() -> None:
    """Run the command line: errors are one line on stderr, exit codes as documented.

    0 ok, 2 usage or config, 3 data, 5 partial run.
    """
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(str(error).splitlines()[0] if str(error) else "unusable arguments", 2)
    except VergenceError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", PartialRun.exit_code)


def _fail(text: str, code: int) -> None:
    Console(stderr=True).print(f"vergence: {text}", soft_wrap=True, highlight=False, markup=False)
    sys.exit(code)


__all__ = ["ConfigError", "app", "main"]
