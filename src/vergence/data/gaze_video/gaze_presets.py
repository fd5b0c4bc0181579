"""Presets: names and meanings of the columns in makers' exports, with their sources.

A preset is a file in `presets`: a named set of options of the data sets `gaze_table` and `stimuli`.
Where a maker has changed its names there are several sets of columns, and the first one that a file
has is used. Exports of more than one table (scene video, frame times, camera) have a data set of
their own, named in `reader`. Names were taken from the pages in `source`; no original
files of Tobii Pro Lab, EyeLink, SMI and Tobii Pro Glasses 3 were at hand.

Used by `data.format_detection`, `data.gaze_video.gaze_table` and `data.saliency.stimuli`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from vergence.data.gaze_video.gaze_columns import GazeColumns, column, read_header
from vergence.errors import ConfigError, DataError, meant


@dataclass(frozen=True)
class GazePreset:
    """Options for a maker's export.

    Attributes:
        title: name of the export, for people.
        data: the data set that reads it.
        source: the page or repository where the format is described.
        files: patterns of the tables' paths; the first that fits a file is used.
        columns: sets of columns, tried in this order; none where the export has its own reader.
        known_by: names of columns that no other export has; none: the files' names identify it.
        unlike: beginnings of names of columns that this export does not have.
        place: origin of the coordinates, see `stimuli`; "" = the files do not tell.
        reader: the data set whose reader is used.
        options: options that `vergence data import` writes, because the files do not tell them.
        notes: what the user should check, by option.
    """

    title: str
    data: str
    source: str
    files: tuple[str, ...]
    columns: tuple[GazeColumns, ...] = ()
    known_by: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    place: str = ""
    reader: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    # A misspelt key of a preset's file is an error.
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    def matches(self, header: Collection[str]) -> bool:
        """Return whether a table with these columns comes from this export."""
        other = any(name.startswith(start) for name in header for start in self.unlike)
        return not other and all(column(header, name) for name in self.known_by)

    def column_sets(self, own: GazeColumns) -> list[GazeColumns]:
        """Return the sets of columns, in each of which the columns of `own` take precedence."""
        return [own.or_from(columns) for columns in self.columns]

    def columns_for(self, own: GazeColumns, path: Path) -> GazeColumns:
        """Return the first set of columns that a file has; columns of `own` take precedence.

        Raises:
            DataError: the file has none of the sets.
        """
        header = read_header(path, self.title)
        lacking = []
        for columns in self.column_sets(own):
            lacks = columns.missing_in(header)
            if not lacks:
                return columns
            lacking.append(f"'{lacks[0]}'")
        raise DataError(
            f"{path} lacks {' or '.join(dict.fromkeys(lacking))}, one of which the {self.title} "
            f"has; its header has {', '.join(header)[:300]}: export these columns too, or set "
            "columns"
        )


def read_preset(path: Path) -> GazePreset:
    """Read a preset's file; its table `shared` is a part of every set of columns.

    Raises:
        ConfigError: the file is missing, or is not a preset.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        shared = table.pop("shared", {})
        table["columns"] = [{**shared, **own} for own in table.get("columns", ())]
        return TypeAdapter(GazePreset).validate_python(table)
    except (OSError, TypeError, ValueError, ConfigError) as fault:
        raise ConfigError(
            f"{path} is no preset ({' '.join(str(fault).split())[:300]}): write it as the files in "
            "src/vergence/data/gaze_video/presets"
        ) from None


PRESETS = {
    path.stem: read_preset(path)
    for path in sorted(Path(__file__).with_name("presets").glob("*.toml"))
}


def preset_of(name: str, data: str) -> GazePreset:
    """Return the preset of this name, or in this .toml file, for a data set.

    Raises:
        ConfigError: there is no such preset, or it is for another data set.
    """
    if name.endswith(".toml"):
        preset = read_preset(Path(name))
    elif name in PRESETS:
        preset = PRESETS[name]
    else:
        allowed = ", ".join(key for key, preset in PRESETS.items() if preset.data == data)
        raise ConfigError(
            f"{data}: preset must be one of {allowed}, or your own .toml file; got "
            f"'{name}'{meant(name, PRESETS)}"
        )
    if preset.data != data:
        where = "on a screen" if preset.data == "stimuli" else "in a scene video"
        raise ConfigError(
            f"{data}: preset '{name}' is gaze {where}: use the data set '{preset.data}'"
        )
    return preset


def columns_of(
    preset: str, data: str, own: GazeColumns, files: str, needed: Sequence[str]
) -> tuple[GazePreset | None, Sequence[str], list[GazeColumns]]:
    """Return the preset (or None), the patterns of tables, and their possible sets of columns.

    Args:
        preset: the name of the preset, or "".
        data: the data set that reads the tables.
        own: the user's columns.
        files: the user's pattern, or "".
        needed: columns that the user must set where there is no preset.

    Raises:
        ConfigError: there is no such preset, or a needed column is not set.
    """
    if preset:
        export = preset_of(preset, data)
        return export, (files,) if files else export.files, export.column_sets(own)
    names = ", ".join(name for name, known in PRESETS.items() if known.data == data)
    own.check_needed(
        needed,
        f"or preset, one of {names}; see 'vergence data import', which finds them, and "
        "docs/how-to/own_recordings.md",
    )
    return None, (files,) if files else (), [own]
