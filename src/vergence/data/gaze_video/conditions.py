"""Conditions of recordings, such as session or lighting: words of tables and paths, and numbers.

Used by `data.gaze_video.gaze_presets`, `data.gaze_video.gaze_table`, `data.gaze_video.recording`
and `data.saliency.stimuli`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from vergence.core.data import Samples
from vergence.core.federation import CONDITIONS, Federation
from vergence.data.gaze_video.gaze_columns import GazeRows
from vergence.errors import ConfigError, DataError

IN_PATHS = ("session", "condition")
"""Named parts of a pattern of paths that are conditions, as in `{person}_{condition}.csv`."""
MOST_LEVELS = 1000
"""A condition with more levels is a measurement, such as a time, or names the stimulus."""
Words = tuple[str, ...]
"""One word for each condition."""


def condition_names(columns: Sequence[str], pattern: str) -> Words:
    """Return the names of the conditions: columns of the tables, then parts of the pattern.

    Raises:
        ConfigError: a column and a part of the pattern have the same name.
    """
    parts = [part for part in IN_PATHS if f"{{{part}}}" in pattern]
    if repeated := sorted({*columns} & {*parts}):
        raise ConfigError(
            f"'{repeated[0]}' is both in columns.conditions and in files = '{pattern}': use one"
        )
    return (*columns, *parts)


def with_path_conditions(rows: GazeRows, parts: Mapping[str, str]) -> GazeRows:
    """Return rows whose conditions are completed by the parts of the table's path."""
    words = [np.full(len(rows), parts[part]) for part in IN_PATHS if part in parts]
    return replace(rows, conditions=np.stack([*rows.conditions.T, *words], 1)) if words else rows


def with_conditions(
    federation: Federation, names: Words, words: Mapping[str, Sequence[Sequence[Words]]]
) -> Federation:
    """Return the federation with the column `conditions` int64 `[n, conditions]` in all samples.

    The column holds the number of each sample's level, and `Federation.conditions` the levels.

    Args:
        federation: the federation.
        names: names of the conditions; without any, the federation is returned unchanged.
        words: client -> for each part of the split, the words of each sample.

    Raises:
        DataError: a condition has more than `MOST_LEVELS` levels.
    """
    if not names:
        return federation
    every = [one for parts in words.values() for part in parts for one in part]
    levels = {name: tuple(sorted({one[k] for one in every})) for k, name in enumerate(names)}
    for name, known in levels.items():
        if len(known) > MOST_LEVELS:
            raise DataError(
                f"condition '{name}' has {len(known):,} levels, such as '{known[0]}' and "
                f"'{known[1]}', at most {MOST_LEVELS:,} are allowed: take it out of "
                "columns.conditions"
            )
    numbers = [{word: i for i, word in enumerate(known)} for known in levels.values()]

    def numbered(samples: Samples, own: Iterable[Words]) -> Samples:
        rows = [[n[word] for n, word in zip(numbers, one, strict=True)] for one in own]
        column = torch.tensor(rows, dtype=torch.int64).reshape(len(samples), len(names))
        return replace(samples, columns={**samples.columns, CONDITIONS: column})

    people = {}
    for client, splits in federation.people.items():
        pairs = zip(vars(splits), vars(splits).values(), words[client], strict=True)
        people[client] = replace(splits, **{part: numbered(s, own) for part, s, own in pairs})
    return replace(federation, people=people, conditions=levels)
