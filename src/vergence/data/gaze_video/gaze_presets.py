"""Presets: names and meanings of the columns in exports of tracker makers, with sources.

A preset is a file in the folder `presets`: a named set of options for the data sets `gaze_table`
and `stimuli`. If a maker has changed column names over time, the preset has several sets of
columns. The first set that a file has is used. Exports of several files (scene video, frame times,
camera) are read by a special data set, named in `reader`. The names were taken from the pages in
`source`. They were not tried on original files of Tobii Pro Lab, EyeLink, SMI and Tobii Pro Glasses
3.

Used by `data.format_detection`, `data.gaze_video.gaze_table` and `data.saliency.stimuli`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from vergence.core.options import NamedOptions
from vergence.data.gaze_video.conditions import condition_names
from vergence.data.gaze_video.gaze_columns import GazeColumns, column, read_header
from vergence.errors import ConfigError, DataError, meant

OWN_RECORDINGS = {
    "licence": "of the recordings at root; none is packaged",
    "citation": "own recordings",
}
"""What a run states about recordings that users made themselves."""


@dataclass(frozen=True)
class GazePreset:
    """Options for the export of one tracker maker.

    Attributes:
        title: the export's name in messages to the user.
        data: name of the data set that has these options.
        source: the page or repository where the format is described.
        files: patterns of the tables' paths; the first one that fits any file is used.
        columns: possible sets of columns, tried in this order; empty if the export has its own
            reader.
        known_by: names of columns that together identify this export; empty: the file names do.
        unlike: prefixes of column names; a table with such a column is not from this export.
        place: to what x and y refer, as in the option `place` of `stimuli`; "": the files do not
            tell.
        reader: name of the data set whose reader is used instead of columns; "": none.
        options: option values that `vergence data import` writes, because the files do not state
            them.
        notes: names of options -> what the user should check.
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
        """Return whether a table with these columns comes from this export.

        The table must have all columns in `known_by`, and none with a prefix in `unlike`.
        """
        other = any(name.startswith(start) for name in header for start in self.unlike)
        return not other and all(column(header, name) for name in self.known_by)

    def column_sets(self, own: GazeColumns) -> list[GazeColumns]:
        """Return the preset's sets of columns, each completed by the user's columns `own`.

        In each set, the columns of `own` take precedence.
        """
        return [own.or_from(columns) for columns in self.columns]

    def columns_for(self, own: GazeColumns, path: Path) -> GazeColumns:
        """Return the first set of columns that a file has.

        In each set, the columns of `own` take precedence.

        Raises:
            ConfigError: the set lacks time, place or the unit of the place.
            DataError: the file has none of the sets.
        """
        header = read_header(path, self.title)
        lacking = []
        for columns in self.column_sets(own):
            if not (lacks := columns.missing_in(header)):
                columns.check_needed(("t", "x", "y", "unit"), "add it to the preset, or to columns")
                return columns
            lacking.append(f"'{lacks[0]}'")
        raise DataError(
            f"{path} lacks {' or '.join(dict.fromkeys(lacking))}, one of which the {self.title} "
            f"has; its header has {', '.join(header)[:300]}: export these columns too, or set "
            "columns"
        )


def read_preset(path: Path) -> GazePreset:
    """Read a preset from a .toml file.

    Entries of the file's table `shared` are added to every set of columns.

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
    """Return the preset that `name` names: a packaged preset, or the path of a .toml file.

    Raises:
        ConfigError: there is no such preset, or it is for a data set other than `data`.
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


@dataclass(frozen=True)
class GazeTableOptions(NamedOptions):
    """Options of data sets of gaze tables: how tables are found, and what their columns mean.

    Attributes:
        preset: name of the preset of a tracker maker, or path of a preset in a .toml file, instead
            of `columns`. Options that are set take precedence over the preset's.
        columns: names and units of the tables' columns.
        files: pattern of the tables' paths below root, such as `{person}/*.csv`; default: every
            table that has the columns.
        without: patterns of tables that are not read.
    """

    preset: str = ""
    columns: GazeColumns = field(default_factory=GazeColumns)
    files: str = ""
    without: tuple[str, ...] = ()
    data: ClassVar[str]
    """Name of the data set, as presets have it."""

    def __post_init__(self) -> None:
        if isinstance(self.columns, Mapping):
            object.__setattr__(self, "columns", GazeColumns(**self.columns))
        super().__post_init__()
        condition_names(self.columns.conditions, self.files)
        if self.preset:
            preset_of(self.preset, self.data)


def columns_of(
    preset: str, data: str, own: GazeColumns, files: str, needed: Sequence[str]
) -> tuple[GazePreset | None, Sequence[str], list[GazeColumns]]:
    """Return the preset (or None), the patterns of table paths, and the possible sets of columns.

    Args:
        preset: the name of the preset, or "".
        data: name of the data set that reads the tables.
        own: the columns that the user has set.
        files: the user's pattern of table paths, or "".
        needed: columns that the user must set if there is no preset.

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
