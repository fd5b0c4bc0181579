"""Arrays, torch data sets and data frames as columns of samples per person, checked and split.

Numbers that networks compute with become float32, whole numbers int64; bytes (images) stay uint8.
Everything is copied: what happens to the arrays afterwards does not reach a run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError, DataError, first_line

PARTS = ("train", "val", "test")
SHARES = (0.6, 0.2, 0.2)
FEWEST = 3
"""Samples that a person needs: one for each part."""
Columns = dict[str, Tensor]


def columns_of(given: Any, who: str, names: Sequence[str]) -> Columns:
    """One person's samples as columns of tensors.

    Args:
        given: a mapping of arrays, a torch data set, a data frame, or arrays in the order of
            `names`.
        who: whose they are, for errors.
        names: of the columns, where `given` has no names of its own.

    Raises:
        DataError: they are no arrays of numbers with a row per sample.
    """
    if isinstance(given, TorchDataset):
        given = _items(given, who, names)
    elif hasattr(given, "iloc") and hasattr(given, "columns"):
        given = {name: given[name] for name in as_text(given.columns, f"{who}: columns").values()}
    elif isinstance(given, tuple | list) and 0 < len(given) <= len(names):
        given = dict(zip(names, given, strict=False))
    if not isinstance(given, Mapping) or not given:
        raise DataError(
            f"{who} has a {type(given).__name__}: give arrays by name, {{'x': inputs, 'y': "
            "targets}, or a torch Dataset"
        )
    keys = as_text(given, f"{who}: columns")
    columns = {name: _tensor(given[key], f"{who}: {name!r}") for name, key in keys.items()}
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        told = ", ".join(f"{name!r} {count}" for name, count in rows.items())
        raise DataError(f"{who}: columns differ in length ({told} rows): give each a row a sample")
    return columns


def as_text(names: Iterable[Any], what: str) -> dict[str, Any]:
    """Names as text -> as they were given.

    Raises:
        DataError: two of them are one text, as 1 and "1"; names both.
    """
    found: dict[str, Any] = {}
    for name in names:
        text = str(name)
        if text in found:
            raise DataError(
                f"{what} {found[text]!r} and {name!r} have one name, {text!r}: rename one of them"
            )
        found[text] = name
    return found


def _items(given: TorchDataset, who: str, names: Sequence[str]) -> Mapping[str, Any]:
    """The items of a torch data set, put together column by column."""
    if isinstance(given, TensorDataset):
        return dict(zip(_names(len(given.tensors), who, names), given.tensors, strict=True))
    try:
        rows: list[Any] = [given[i] for i in range(len(given))]  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        raise DataError(
            f"{who} has a {type(given).__name__}, which has no length or no items by number: give "
            "a map-style Dataset, or arrays to Federation.from_arrays"
        ) from None
    if not rows:
        raise DataError(f"{who} has an empty {type(given).__name__}: leave this person out")
    if not isinstance(rows[0], Mapping):
        rows = [row if isinstance(row, tuple | list) else (row,) for row in rows]
    _check_parts(rows, f"{who} has a {type(given).__name__}")
    if not isinstance(rows[0], Mapping):
        keys = _names(len(rows[0]), who, names)
        rows = [dict(zip(keys, row, strict=True)) for row in rows]
    found = {}
    for name in rows[0]:
        try:
            found[name] = torch.stack([torch.as_tensor(row[name]) for row in rows])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(
                f"{who}: {name!r} of the items of a {type(given).__name__} cannot be stacked "
                f"({reason}): every item needs numbers of one shape"
            ) from None
    return found


def _check_parts(rows: Sequence[Any], whose: str) -> None:
    """Refuse items that have other parts than the first one."""
    wanted = _parts(rows[0])
    for number, row in enumerate(rows):
        if _parts(row) != wanted:
            raise DataError(
                f"{whose}, whose item {number} has {_told_parts(row)}, item 0 "
                f"{_told_parts(rows[0])}: give every item the same"
            )


def _parts(row: Any) -> Any:
    return set(row) if isinstance(row, Mapping) else len(row)


def _told_parts(row: Any) -> str:
    return f"the parts {', '.join(map(str, row))}" if isinstance(row, Mapping) else f"{len(row)}"


def _names(count: int, who: str, names: Sequence[str]) -> Sequence[str]:
    if count > len(names):
        raise DataError(
            f"{who}: items have {count} parts, and there are names for {len(names)} "
            f"({', '.join(names)}): name them all, columns=(...)"
        )
    return names[:count]


def _tensor(given: Any, where: str) -> Tensor:
    """A column as a tensor of its own memory, in a type that networks take."""
    if isinstance(given, Tensor):
        found = given.detach().cpu().clone()
    else:
        array = given.to_numpy() if hasattr(given, "to_numpy") else _array(given, where)
        if array.dtype == object:
            array = _plain(array, where)
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"{where} holds {_kind(array)}, no numbers: turn it into numbers, or leave it out"
            )
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        found = torch.tensor(array)
    if found.is_complex() or not found.ndim:
        what = "complex numbers" if found.is_complex() else "a single number"
        raise DataError(f"{where} holds {what}: give an array of real numbers with a row a sample")
    if found.dtype in (torch.float64, torch.float16, torch.bfloat16):
        return found.float()
    return found.long() if found.dtype in (torch.int8, torch.int16, torch.int32) else found


def _array(given: Any, where: str) -> np.ndarray:
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _uneven(where, first_line(error)) from None


def _uneven(where: str, reason: str) -> DataError:
    return DataError(f"{where} has rows of unequal length ({reason}): give all of them one shape")


def _plain(array: np.ndarray, where: str) -> np.ndarray:
    """Objects as numbers where all of them are: a frame's column with missing values is one.

    Raises:
        DataError: one is no number, text of digits neither; or they differ in shape.
    """
    found = []
    for item in array.ravel():
        try:
            inner = np.asarray(item)
            if inner.dtype == object and inner.ndim:
                inner = _plain(inner, where)
            if inner.dtype.kind not in "biufO" or isinstance(item, str):
                return array
            found.append(inner.astype(np.float64))
        except (TypeError, ValueError):
            return array
    shapes = list(dict.fromkeys(item.shape for item in found))
    if len(shapes) > 1:
        told = " and ".join(" x ".join(map(str, shape)) or "1" for shape in shapes[:2])
        raise _uneven(where, f"{told} numbers")
    return np.stack(found).reshape(array.shape + shapes[0]) if found else np.zeros(array.shape)


def _kind(array: np.ndarray) -> str:
    if array.dtype.kind == "O" and array.size:
        return f"{type(array.ravel()[0]).__name__} objects"
    return {"U": "text", "S": "text", "M": "dates", "m": "durations", "c": "complex numbers"}.get(
        array.dtype.kind, str(array.dtype)
    )


def check_numbers(
    columns: Mapping[str, Tensor], who: str, missing: Collection[str], rows: Sequence[Any] = ()
) -> None:
    """Accept columns of finite numbers; NaN may stand in those that `missing` names.

    Args:
        columns: of one person.
        who: whose.
        missing: columns in which NaN says that nothing was recorded.
        rows: what the rows are called, where that is not their number.

    Raises:
        DataError: names person, column and row.
    """
    for name, column in columns.items():
        if not column.is_floating_point() or not len(column):
            continue
        wrong = ~column.isfinite().reshape(len(column), -1)
        if name in missing:
            wrong &= ~column.isnan().reshape(len(column), -1)
        bad = wrong.any(1).nonzero()[:, 0]
        if len(bad):
            row = int(bad[0])
            value = float(column.reshape(len(column), -1)[row][wrong[row]][0])
            called = rows[row] if len(rows) else row
            raise DataError(
                f"{who}: {name!r} is {value} in row {called} ({len(bad)} of {len(column)} rows "
                "have no finite number): mend these rows or leave them out"
            )


def check_alike(people: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Accept people who have the same columns, of the same shape and type.

    Raises:
        DataError: names the first who differs, and how.
    """
    first = next(iter(people))
    wanted = {n: (tuple(c.shape[1:]), c.dtype) for n, c in people[first].items()}
    for person, columns in people.items():
        if columns.keys() != wanted.keys():
            raise DataError(
                f"person {person!r} has the columns {', '.join(columns)}, person {first!r} "
                f"{', '.join(wanted)}: give everybody the same"
            )
        for name, column in columns.items():
            here = (tuple(column.shape[1:]), column.dtype)
            if here != wanted[name]:
                raise DataError(
                    f"person {person!r}: {name!r} is {_told(here)} a sample, of person {first!r} "
                    f"{_told(wanted[name])}: give everybody the same"
                )


def _told(shape: tuple[tuple[int, ...], torch.dtype]) -> str:
    sizes = " x ".join(map(str, shape[0])) or "one number"
    return f"{sizes} ({str(shape[1]).removeprefix('torch.')})"


def check_shares(shares: Sequence[float]) -> None:
    """Accept three shares that make a whole.

    Raises:
        ConfigError: they are not.
    """
    numbers = isinstance(shares, tuple | list) and all(isinstance(s, int | float) for s in shares)
    whole = numbers and len(shares) == 3 and min(shares) > 0
    if not whole or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ConfigError(
            "split must be three positive numbers with sum 1, for training, validation and test, "
            f"as (0.6, 0.2, 0.2); got {shares!r}"
        )


def split_rows(
    counts: Mapping[str, int], shares: Sequence[float] = SHARES, shuffle: int | None = None
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Sample numbers of everybody's training, validation and test part.

    In the order given: neighbours in a recording are alike, and a test sample between two that were
    trained on would be answered by heart. With `shuffle`, a seed, each person's samples are drawn
    at random, for samples without an order.

    Raises:
        ConfigError: the shares are none.
        DataError: somebody's samples are too few; names everybody of whom that is true.
    """
    check_shares(shares)
    ends = {
        who: [int(n * s + 1e-9) for s in (shares[0], shares[0] + shares[1])]
        for who, n in counts.items()
    }
    few = [who for who, (a, b) in ends.items() if not 0 < a < b < counts[who]]
    if few:
        told = ", ".join(f"{who} ({counts[who]})" for who in few[:5])
        more = f" and {len(few) - 5} more" if len(few) > 5 else ""
        raise DataError(
            f"too few samples to split {'/'.join(f'{100 * s:g}' for s in shares)} into training, "
            f"validation and test: {told}{more}; leave these people out, give them more (at least "
            f"{FEWEST}), or give the parts yourself: {{'train': ..., 'val': ..., 'test': ...}}"
        )
    found = {}
    for who, (a, b) in ends.items():
        order = np.arange(counts[who])
        if shuffle is not None:
            order = RandomStream("split", shuffle, who).numpy().permutation(counts[who])
        train, val, test = (torch.from_numpy(np.sort(part)) for part in np.split(order, [a, b]))
        found[who] = (train, val, test)
    return found


def split_people(
    people: Any,
    names: Sequence[str],
    shares: Sequence[float] = SHARES,
    shuffle: int | None = None,
    missing: Collection[str] = (),
) -> tuple[dict[str, dict[str, Columns]], str]:
    """Everybody's columns by part, and in words how they were split.

    Args:
        people: person -> samples (see `columns_of`), or person -> {"train", "val", "test"} of them.
        names: of columns that have none.
        shares: of the three parts.
        shuffle: a seed; None: in the order given.
        missing: columns in which NaN says that nothing was recorded.

    Raises:
        DataError: as of `columns_of`, `check_numbers`, `check_alike` and `split_rows`; or only some
            come in parts.
        ConfigError: shares that make no whole.
    """
    if not isinstance(people, Mapping) or not people:
        got = "nobody" if isinstance(people, Mapping) else f"a {type(people).__name__}"
        raise DataError(
            "people must be a mapping, person -> {'x': inputs, 'y': targets}, with at least one "
            f"person; got {got}"
        )
    given = {who: people[person] for who, person in as_text(people, "people").items()}
    parted = [
        p for p, data in given.items() if isinstance(data, Mapping) and set(data) == set(PARTS)
    ]
    if not parted:
        whole = {p: _checked(data, f"person {p!r}", names, missing) for p, data in given.items()}
        refuse_empty({person: rows_in(columns) for person, columns in whole.items()})
        check_alike(whole)
        return _split(whole, shares, shuffle)
    if rest := [p for p in given if p not in parted]:
        raise DataError(
            f"person {parted[0]!r} comes in parts (train, val, test), person {rest[0]!r} does not: "
            "give all of them in parts, or none"
        )
    found = {
        p: {part: _checked(data[part], f"person {p!r}, {part}", names, missing) for part in PARTS}
        for p, data in given.items()
    }
    refuse_empty({f"{p} ({part})": rows_in(found[p][part]) for p in found for part in PARTS})
    check_alike({f"{p}, {part}": found[p][part] for p in found for part in PARTS})
    return found, "as given"


def refuse_empty(counts: Mapping[str, int]) -> None:
    """Refuse people without samples, who are of no shape to compare with others.

    Raises:
        DataError: names them.
    """
    if empty := [who for who, count in counts.items() if not count]:
        raise DataError(f"without samples: {', '.join(empty)}; leave these people out")


def _checked(given: Any, who: str, names: Sequence[str], missing: Collection[str]) -> Columns:
    columns = columns_of(given, who, names)
    check_numbers(columns, who, missing)
    return columns


def _split(
    whole: Mapping[str, Columns], shares: Sequence[float], shuffle: int | None
) -> tuple[dict[str, dict[str, Columns]], str]:
    rows = split_rows({p: rows_in(c) for p, c in whole.items()}, shares, shuffle)
    how = "in the order given" if shuffle is None else f"at random with seed {shuffle}"
    found = {
        person: {
            part: {name: column[at] for name, column in whole[person].items()}
            for part, at in zip(PARTS, parts, strict=True)
        }
        for person, parts in rows.items()
    }
    return found, f"{'/'.join(f'{100 * share:g}' for share in shares)} {how}"


def rows_in(columns: Columns) -> int:
    """Number of samples in columns."""
    return len(next(iter(columns.values())))


def by_person(
    frame: Any, person: str, columns: Mapping[str, Any] | None, missing: Collection[str] = ()
) -> dict[str, Columns]:
    """Everybody's columns of a data frame, people in the order in which they appear.

    Args:
        frame: a pandas DataFrame.
        person: the column that says whose a row is.
        columns: name of a column of samples -> a column of the frame, or several side by side;
            None: every other column under its own name.
        missing: columns in which NaN says that nothing was recorded.

    Raises:
        DataError: a column is not there, holds no number (names person, column and row), or a row
            does not say whose it is.
    """
    if not hasattr(frame, "iloc"):
        raise DataError(
            f"from_frame takes a pandas DataFrame with a row a sample, got a {type(frame).__name__}"
        )
    if columns is None:
        columns = as_text([name for name in frame.columns if name != person], "columns")
    if not isinstance(columns, Mapping) or not columns:
        raise DataError(
            "from_frame: columns must say what samples hold, as {'x': ['pupil', 'speed'], 'y': "
            f"'gaze_x'}}; got {columns!r}"
        )
    several = {name for name, held in columns.items() if _are_several(held, frame)}
    wanted: dict[str, Any] = {
        name: list(held) if name in several else held for name, held in columns.items()
    }
    used: list[Any] = [c for n, held in wanted.items() for c in (held if n in several else [held])]
    check_columns(frame, (person, *used))
    unknown = frame.index[frame[person].isna()]
    if len(unknown):
        raise DataError(f"{person!r} is missing in row {unknown[0]}: say whose it is, or drop it")
    may_lack = [wanted[name] for name in missing if name in wanted]
    empty = [
        c
        for c in used
        if any(c == held or (isinstance(held, list) and c in held) for held in may_lack)
    ]
    as_text(frame[person].drop_duplicates().tolist(), "people")
    found = {}
    for who, rows in frame.groupby(person, sort=False, observed=True):
        whose = f"person {str(who)!r}"
        for name in dict.fromkeys(used):
            check_numbers(
                {name: _tensor(rows[name], f"{whose}: {name!r}")}, whose, empty, rows.index
            )
        found[str(who)] = columns_of({n: _side(rows[c]) for n, c in wanted.items()}, whose, ())
    return found


def check_columns(frame: Any, names: Iterable[Any]) -> None:
    """Accept columns that a data frame has, each once.

    Raises:
        DataError: names the one that is not there, or there twice.
    """
    known = list(frame.columns)
    for name in names:
        if name not in known:
            there = ", ".join(map(str, known))
            raise DataError(f"the frame has no column {name!r}; it has {there}")
        if known.count(name) > 1:
            raise DataError(f"the frame has {known.count(name)} columns {name!r}: rename them")


def _are_several(held: Any, frame: Any) -> bool:
    """True if these are names of columns, and not the name of one, which may be a tuple too."""
    if isinstance(held, str) or (isinstance(held, tuple) and held in list(frame.columns)):
        return False
    return isinstance(held, Iterable)


def _side(held: Any) -> Any:
    """A frame's column, or several of them side by side."""
    if held.ndim == 1:
        return held
    return torch.stack([_tensor(held[name], str(name)).float() for name in held.columns], 1)
