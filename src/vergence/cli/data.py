"""`vergence data`: data sets listed, shown and checked, skew and partitions, eye patches cut.

Used by `cli.commands`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table

from vergence.cli.app import Flag, OutFile
from vergence.console import out
from vergence.core.naming import plural
from vergence.experiment.trust import ask_for_trust

data = App(
    name="data", help="Data sets: what there is, whether yours is whole, how people's data differ."
)


@data.command(name="list")
def list_data() -> None:
    """List the data sets vergence reads."""
    from vergence.core.federation import Dataset
    from vergence.experiment.registry import find, names

    table = Table("name", "what it is")
    for name in names("data", Dataset):
        table.add_row(name, (find("data", name, Dataset).__doc__ or "").partition("\n")[0])
    out.print(table)


@data.command(name="import")
def import_data(
    folder: Path,
    *,
    out_: OutFile,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
) -> None:
    """Look at a folder of your recordings: name the format, and write an experiment that runs.

    Args:
        folder: recordings of people, or tables with a column that names them.
        out_: the new experiment file (.toml).
        set_: `federation.key=value`, for what the files do not say; may be given several times.
    """
    from vergence.cli.data_import import import_folder

    import_folder(folder, out_, set_, out)


@data.command
@ask_for_trust
def look(
    target: Path,
    *,
    out_: OutFile = Path("look.html"),
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    areas: Path | None = None,
) -> None:
    """Look at people's gaze or eye images before a model sees them: one page with pictures.

    Args:
        target: a folder of recordings, or an experiment file (.toml).
        out_: the page (.html), which needs no network; an older one is replaced.
        set_: `federation.key=value`, for what the files do not say; may be given several times.
        areas: a table of areas of interest: stimulus, area, and left, top, right, bottom, or mask;
            gaze in them is printed, and goes by person and stimulus into NAME_areas.csv.
    """
    from vergence.cli.data_look import look as look_at

    look_at(target, out_, set_, out, areas)


@data.command
@ask_for_trust
def check(name: str, *, root: str | None = None) -> None:
    """Count and verify a data set's files; say what is missing and where a licence holder gets it.

    Args:
        name: a data set (see `vergence data list`), or an experiment file (.toml) with its options.
        root: its folder; relative to the working directory, else to VERGENCE_DATA.
    """
    from vergence.cli.data_check import check as run_checks

    failed = run_checks(name, root, out)
    if failed:
        from vergence.errors import DataError

        raise DataError(f"{name}: {plural(failed, 'check')} failed, see above")


@data.command
@ask_for_trust
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
    from vergence.studies.skew import show

    show(target, root, out, set_, picture)


@data.command
@ask_for_trust
def partition(
    target: str,
    *,
    root: str | None = None,
    set_: Annotated[list[str], Parameter(name="--set")] = [],  # noqa: B006
    picture: Path | None = None,
) -> None:
    """Show how many training samples of each class each person has.

    Args:
        target: a data set (see `vergence data list`) or an experiment file (.toml).
        root: its folder; relative to the working directory, else to VERGENCE_DATA.
        set_: `federation.key=value` or `noise.key=value`; may be given several times.
        picture: draw the numbers as discs, people by classes (.png, .svg, .pdf).
    """
    from vergence.studies.class_partition import show

    show(target, root, out, set_, picture)


@data.command
def patches(
    source: Path,
    out_: OutFile,
    *,
    camera: Path | None = None,
    targets: Path | None = None,
    contact_sheet: Flag = False,
) -> None:
    """Find a face in a picture, a folder or a video, and write its normalised eye patches.

    Args:
        source: a picture, a folder of pictures, or a video, of one person.
        out_: the new .npz.
        camera: JSON of a calibrated camera; by default the focal length is guessed.
        targets: CSV (frame, x, y, z) of points looked at, mm in the camera frame.
        contact_sheet: draw the patches beside the .npz, as .png.
    """
    from vergence.video.eye_patches import show, write_patches

    patches = write_patches(source, out_, camera=camera, targets=targets, sheet=contact_sheet)
    show(patches, out_, out, guessed=camera is None, sheet=contact_sheet)
