"""Presets: what makers' exports call their columns, what those are, and where that is written.

A preset is a file in `presets`: a named set of options of the data sets `gaze_table` and `stimuli`.
Where a maker has changed its names there are several sets of columns, and the first that a file has
is used. Exports that are more than one table (scene video, frame times, camera) are read by the
data set of their own, named in `reader`. Names were taken from the pages in `source`; no original
files of Tobii Pro Lab, EyeLink, SMI and Tobii Pro Glasses 3 were at hand.
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
    """Options that fit a maker's export.

    Attributes:
        title: the export, in words.
        data: the data set that reads it.
        source: the page or repository where the format is described.
        files: patterns of the tables' paths; the first that fits a file is used.
        columns: sets of columns, tried in this order; none where a reader of its own does it.
        known_by: names of columns that no other export has; none: the names of the files do it.
        unlike: beginnings of names of columns that this export does not have.
        place: where gaze counts from, see `stimuli`; "" = the files do not tell.
        reader: the data set whose reader is used.
        options: options that `vergence data import` writes, because the files do not tell them.
        notes: what is to be looked at, by option.
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
        """Check that a table with these columns is of this export."""
        other = any(name.startswith(start) for name in header for start in self.unlike)
        return not other and all(column(header, name) for name in self.known_by)

    def sets(self, own: GazeColumns) -> list[GazeColumns]:
        """The sets of columns, with `own` in their places."""
        return [own.over(columns) for columns in self.columns]

    def fitting(self, own: GazeColumns, path: Path) -> GazeColumns:
        """The first set of columns that a file has, with `own` in their places.

        Raises:
            DataError: it has none of them.
        """
        header = read_header(path, self.title)
        lacking = []
        for columns in self.sets(own):
            lacks = columns.lacking(header)
            if not lacks:
                return columns
            lacking.append(f"'{lacks[0]}'")
        raise DataError(
            f"{path} lacks {' or '.join(dict.fromkeys(lacking))}, one of which the {self.title} "
            f"has; its header has {', '.join(header)[:300]}: export these columns too, or say "
            "columns"
        )


def read_preset(path: Path) -> GazePreset:
    """Read a preset's file; `shared` of it goes into every set of columns.

    Raises:
        ConfigError: it is missing, or is no preset.
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
    """The preset of this name, or in this .toml file, for a data set.

    Raises:
        ConfigError: there is none, or it is for another data set.
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
    """The preset if one is named, the patterns of tables, and the sets of columns they may have.

    Args:
        preset: its name, or "".
        data: the data set that reads the tables.
        own: columns that are given.
        files: the pattern that is given.
        needed: columns without which there must be a preset.

    Raises:
        ConfigError: there is no such preset, or a column is not given.
    """
    if preset:
        found = preset_of(preset, data)
        return found, (files,) if files else found.files, found.sets(own)
    names = ", ".join(name for name, known in PRESETS.items() if known.data == data)
    own.check_needed(
        needed,
        f"or preset, one of {names}; see 'vergence data import', which finds them, and "
        "docs/how-to/own_recordings.md",
    )
    return None, (files,) if files else (), [own]
