"""`vergence data look`: shows the gaze or the eye images of a data set before a model sees them.

Used by `cli.data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pandas import DataFrame
from rich.console import Console

from vergence.cli.data_import import people_table, print_plain, read_folder
from vergence.core.naming import registry_name
from vergence.data.areas import AreaHits, hits, read_areas
from vergence.data.gaze_quality import outside_notes, quality_of_people
from vergence.data.gaze_tracks import GazeTrack, read_tracks, sample_tracks
from vergence.errors import ConfigError, DataError, printable
from vergence.experiment.schema import data_root, load
from vergence.reports.data_look import look_at_eyes, look_at_gaze, write_page
from vergence.results.layout import number
from vergence.results.text_tables import TextTable
from vergence.results.write import export_csv


def look(
    target: Path, out: Path, sets: Sequence[str], console: Console, areas: Path | None = None
) -> None:
    """Print what a folder of recordings or an experiment's data hold, and write the page.

    Args:
        target: a folder of recordings, whose format is detected as by `vergence data import`; or an
            experiment file (.toml).
        out: the page (.html); it may be there already.
        sets: settings `federation.key=value`, for what the files do not say.
        console: where to print.
        areas: table of areas of interest, if any.

    Raises:
        ConfigError: target or page is neither, or an option is missing or unfit.
        DataError: a file cannot be used, or the data hold neither gaze nor eye images.
    """
    if out.suffix != ".html":
        raise ConfigError(f"--out must be an .html file, got {out}")
    if target.is_dir():
        found, _, _, tracks, left_out = read_folder(target, sets, console)
        values = {"tracks": tracks, **look_at_gaze(tracks)}
        values["origin"] = f"{found.title}, {found.certainty} ({found.evidence})"
        values |= {"left_out": left_out, "notes": list(found.notes.values())}
    elif target.suffix == ".toml":
        values = _experiment_values(target, sets)
    else:
        raise ConfigError(
            f"{target} is neither a folder of recordings nor an experiment file (.toml): give one "
            "of them"
        )
    if values.get("people"):
        console.print(people_table([person["quality"] for person in values["people"]]))
    if (table := _table(values)).lines:
        table.show(console)
    tracks = values.pop("tracks", None)
    if areas is not None:
        show_areas(tracks, areas, out.with_name(f"{out.stem}_areas.csv"), console)
    for line in (values["left_out"], *(f"look at this: {note}" for note in values["notes"])):
        print_plain(console, line)
    if values.get("missing"):
        print_plain(console, f"no fixations by a library: {values['missing']}")
    write_page(out, title=target.resolve().name.removesuffix(".toml"), **values)
    print_plain(console, f"wrote {out}; it shows people's own data: look before you give it away")


def _experiment_values(target: Path, sets: Sequence[str]) -> dict[str, Any]:
    """Return values for the page from the data of an experiment.

    Raises:
        DataError: the data hold neither gaze nor eye images.
    """
    experiment = load(target, sets)
    dataset, root = experiment.dataset, data_root(experiment.root)
    name, read = registry_name(dataset), read_tracks(dataset, Path(root) if root else None)
    if read is None:
        federation = dataset.load(root)
        left_out = f"left out: {federation.about.get('left_out', 'nothing')}"
        first = next(iter(federation.people.values())).train
        if {"image", "gaze"} <= first.columns.keys():
            values = look_at_eyes(federation)
            return {**values, "origin": f"data set {name}", "left_out": left_out, "notes": []}
        if not ("points" in first.columns and "frames" in first.banks):
            raise DataError(
                f"{target}: nothing to look at: samples of '{name}' have the columns "
                f"{', '.join(first.columns)}; gaze on pictures or videos (points), or eye images "
                "with angles (image, gaze), can be looked at"
            )
        read = sample_tracks(federation, getattr(dataset, "frame_step_s", None)), left_out
    tracks, left_out = read
    notes = outside_notes(quality_of_people(tracks), name)
    made = {"origin": f"data set {name}", "left_out": left_out, "notes": notes}
    return {"tracks": tracks, **look_at_gaze(tracks), **made}


def show_areas(
    tracks: Sequence[GazeTrack] | None, areas: Path, path: Path, console: Console
) -> None:
    """Write the gaze in areas of interest, and print each area's mean share over people.

    Raises:
        ConfigError: the data are eye images, and have no gaze on pictures.
        DataError: the table of areas cannot be used.
    """
    if tracks is None:
        raise ConfigError("--areas needs gaze on pictures or videos, and these are eye images")
    found = list(hits(tracks, read_areas(areas)))
    export_csv(path, AreaHits._fields, found)
    frame: Any = DataFrame(found, columns=list(AreaHits._fields)).dropna(subset=["share"])
    by_person = frame.groupby(["area", "conditions", "person"])[["share", "dwell_s"]].mean()
    rows = [
        [area, words or "-", str(len(own)), *(number(value, 3) for value in own.mean().tolist())]
        for (area, words), own in by_person.groupby(level=["area", "conditions"])
    ]
    heads = ["area", "conditions", "people", "share of gaze", "seconds"]
    TextTable("Gaze in areas of interest: mean over people", heads, rows, keys=2).show(console)
    print_plain(console, f"by person and stimulus: {path}")


def _table(values: dict[str, Any]) -> TextTable:
    """Return the table of fixations, or that of gaze angles."""
    if "eyes" in values:
        heads = ("person", "samples", "yaw 5 to 95 %", "pitch 5 to 95 %", "middle")
        lines = [
            [
                *(printable(person), f"{count:,}"),
                *(f"{number(low, 1)} to {number(high, 1)}" for low, _, high in sides),
                ", ".join(number(middle, 1) for _, middle, _ in sides),
            ]
            for person, count, sides, _ in values["eyes"]
        ]
        return TextTable("Gaze angles in degrees", heads, lines)
    heads = ("person", "by", "fixations", "median ms", "saccades", "median size")
    lines = [
        [
            *(printable(person["quality"].person), f["method"], f"{f['fixations']:,}"),
            *(
                number(f["length_ms"], 0),
                f"{f['saccades']:,}",
                f"{number(f['distance'], 1)} {f['unit']}",
            ),
        ]
        for person in values["people"]
        for f in person["fixations"]
    ]
    return TextTable("Fixations and saccades", heads, lines, keys=2)
