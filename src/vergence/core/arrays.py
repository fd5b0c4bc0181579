"""Arrays, torch data sets and data frames as columns of samples per person, checked and split.

Floating-point numbers become float32, integers int64; bytes (images) stay uint8. All data are
copied: later changes of the arrays do not change a run.

Used by `api.finished_run`, `api.from_objects` and `core.federation`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from numbers import Integral
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from vergence.core.data import (
    SAMPLING_WEIGHT,
    checked_weights,
    refuse_other_classes,
    warn_of_copies,
)
from vergence.core.naming import list_names
from vergence.core.options import T
from vergence.core.randomness import RandomStream
from vergence.errors import ConfigError, DataError, first_line, nearest

PARTS = ("train", "val", "test")
SHARES = (0.6, 0.2, 0.2)
FEWEST = 3
"""Smallest number of samples per person: one each for training, validation and test."""
KEPT_TYPES = (torch.float32, torch.int64, torch.uint8, torch.bool)
"""Types of columns; networks take few others."""
# A float32 has 24 bits: a range of this share of the numbers' size has 170 steps.
CLOSE, ROUNDING = 1e-5, 1e-12
READ_AGAIN = 8
"""Most items of a data set that are read twice."""
FEW_ROWS = 5
"""Of so few samples, values may be close by chance: of 50 people who have two samples of 2,000
pixels, one has a pixel with two close values."""
Columns = dict[str, Tensor]


def columns_of(samples: Any, who: str, names: Sequence[str]) -> Columns:
    """Return one person's samples as tensors `[samples, ...]`, by column name.

    Args:
        samples: a mapping of arrays, a torch data set, a data frame, or arrays in the order of
            `names`.
        who: the person's name, for error messages.
        names: names of the columns; used if `samples` has no names.

    Raises:
        DataError: the samples are not arrays of numbers with one row per sample.
    """
    # Data sets of Hugging Face have items by number, and are no subclass of torch's.
    if isinstance(samples, TorchDataset) or hasattr(samples, "with_transform"):
        samples = _items(samples, who, names)
    elif hasattr(samples, "iloc") and hasattr(samples, "columns"):
        samples = {n: samples[n] for n in as_text(samples.columns, f"{who}: columns").values()}
    elif isinstance(samples, tuple | list) and 0 < len(samples) <= len(names):
        samples = dict(zip(names, samples, strict=False))
    if not isinstance(samples, Mapping) or not samples:
        wanted = "give arrays by name, {'x': inputs, 'y': targets}, or a torch Dataset"
        raise DataError(f"{who} has a {type(samples).__name__}: {loader_hint(samples) or wanted}")
    keys = as_text(samples, f"{who}: columns")
    # NumPy would read items of a data set as of a list, and one without a last item never ends.
    if any(isinstance(value, TorchDataset) for value in samples.values()):
        raise DataError(
            f"{who} has data sets under {', '.join(map(repr, keys))}: give one data set, which is "
            "split, or parts, {'train': ..., 'val': ..., 'test': ...}"
        )
    columns = {name: _tensor(samples[key], f"{who}: {name!r}") for name, key in keys.items()}
    rows = {name: len(column) for name, column in columns.items()}
    if len(set(rows.values())) > 1:
        lengths = ", ".join(f"{name!r} {count}" for name, count in rows.items())
        raise DataError(
            f"{who}: columns differ in length ({lengths} rows): give each a row a sample"
        )
    return columns


def as_text(names: Iterable[T], what: str) -> dict[str, T]:
    """Return a dictionary from the text of every name to the name itself.

    Raises:
        DataError: two names have the same text, such as 1 and "1"; the message shows both.
    """
    by_text: dict[str, T] = {}
    for name in names:
        text = str(name)
        if text in by_text:
            raise DataError(
                f"{what} {by_text[text]!r} and {name!r} have one name, {text!r}: rename one of them"
            )
        by_text[text] = name
    return by_text


def _items(dataset: TorchDataset, who: str, names: Sequence[str]) -> Mapping[str, Tensor]:
    """Stack the items of a torch data set into one tensor per column name."""
    # Its tensors are columns already, and need not be taken apart and stacked again.
    if isinstance(dataset, TensorDataset):
        return dict(zip(_names(len(dataset.tensors), who, names), dataset.tensors, strict=True))
    rows: list[Any] = []
    try:
        # By number: an iterable data set may never end.
        rows.extend(dataset[i] for i in range(len(dataset)))  # type: ignore[arg-type]
    # The user's data set may raise anything.
    except Exception as error:
        if isinstance(error, NotImplementedError) or not hasattr(dataset, "__len__"):
            raise DataError(
                f"{who} has a {type(dataset).__name__}, which has no length or no items by number: "
                "give a map-style Dataset, or arrays to Federation.from_arrays"
            ) from None
        raise DataError(
            f"{who}: item {len(rows)} of the {type(dataset).__name__} cannot be read "
            f"({type(error).__name__}: {first_line(error)}): mend its __getitem__, or its __len__, "
            "which promises this item"
        ) from error
    if not rows:
        raise DataError(f"{who} has an empty {type(dataset).__name__}: leave this person out")
    if not isinstance(rows[0], Mapping):
        rows = [row if isinstance(row, tuple | list) else (row,) for row in rows]
    _check_parts(rows, f"{who} has a {type(dataset).__name__}")
    # A flip of every second item may leave the first as it is.
    _refuse_random(dataset, rows[:READ_AGAIN], who)
    if not isinstance(rows[0], Mapping):
        keys = _names(len(rows[0]), who, names)
        rows = [dict(zip(keys, row, strict=True)) for row in rows]
    columns: dict[str, Tensor] = {}
    for name in rows[0]:
        try:
            columns[name] = torch.stack([torch.as_tensor(row[name]) for row in rows])
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(
                f"{who}: {name!r} of the items of a {type(dataset).__name__} cannot be stacked "
                f"({reason}): every item needs numbers of one shape"
            ) from None
    return columns


def _refuse_random(dataset: TorchDataset, first: Sequence[object], who: str) -> None:
    """Refuse a data set of whose first items one is another one when it is read again.

    Raises:
        DataError: a random augmentation would be drawn once, for the whole run.
    """
    for number, one in enumerate(first):
        rows = [one, dataset[number]]
        rows = [row if isinstance(row, Mapping | tuple | list) else (row,) for row in rows]
        parts = [row.values() if isinstance(row, Mapping) else row for row in rows]
        if not all(map(_same_numbers, *parts)):
            raise DataError(
                f"{who}: item {number} of the {type(dataset).__name__} is another one each time it "
                "is read. Items are read once, which would freeze a random augmentation: take it "
                "out of the data set, and give it to task.with_transform"
            )


def _same_numbers(one: object, other: object) -> bool:
    """Return whether two readings of a data set's item are equal; NaN equals NaN."""
    floats = np.asarray(one).dtype.kind in "fc"
    return np.array_equal(np.asarray(one), np.asarray(other), equal_nan=floats)


def _check_parts(rows: Sequence[Sized], whose: str) -> None:
    """Refuse items that do not have the same number or names of entries as the first item."""
    wanted = _parts(rows[0])
    for number, row in enumerate(rows):
        if _parts(row) != wanted:
            raise DataError(
                f"{whose}, whose item {number} has {_parts_text(row)}, item 0 "
                f"{_parts_text(rows[0])}: give every item the same"
            )


def _parts(row: Sized) -> object:
    return set(row) if isinstance(row, Mapping) else len(row)


def _parts_text(row: Sized) -> str:
    return f"the parts {', '.join(map(str, row))}" if isinstance(row, Mapping) else f"{len(row)}"


def _names(count: int, who: str, names: Sequence[str]) -> Sequence[str]:
    if count > len(names):
        raise DataError(
            f"{who}: items have {count} parts, and there are names for {len(names)} "
            f"({', '.join(names)}): name them all, columns=(...)"
        )
    return names[:count]


def _tensor(column: object, where: str) -> Tensor:
    """Copy a column into a tensor of a type that networks take."""
    if isinstance(column, Tensor):
        if column.layout is not torch.strided or column.is_nested or column.is_quantized:
            raise DataError(f"{where} is a sparse, nested or quantized tensor: give a plain one")
        tensor = column.detach().cpu().clone()
    else:
        # A masked entry holds a number that nobody measured, such as -9999.
        if np.ma.is_masked(column):
            column = np.ma.filled(np.ma.asarray(column).astype(np.float64), np.nan)
        array = getattr(column, "to_numpy", lambda: _array(column, where))()
        if array.dtype == object:
            array = _plain(array, where)
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"{where} holds {_kind(array)}, no numbers: turn it into numbers, or leave it out"
            )
        # torch has few operations on unsigned integers wider than a byte.
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            array = array.astype(np.int64)
        # Nor has it `longdouble`, other machines' byte order, or steps backwards.
        native = np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
        tensor = torch.tensor(array.astype(native, order="C"))
    if tensor.is_complex() or not tensor.ndim:
        what = "complex numbers" if tensor.is_complex() else "a single number"
        raise DataError(f"{where} holds {what}: give an array of real numbers with a row a sample")
    if tensor.dtype is torch.float64:
        _refuse_close(tensor, where)
    if tensor.dtype in (torch.float64, torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor if tensor.dtype in KEPT_TYPES else tensor.long()


def _refuse_close(column: Tensor, where: str) -> None:
    """Refuse numbers that become equal in float32, such as a recording's Unix times in seconds.

    Raises:
        DataError: the numbers of a feature differ by less than `CLOSE` of their size, and by more
            than the rounding errors of float64.
    """
    if len(column) > FEW_ROWS:
        rows = column.reshape(len(column), -1)
        low, high = rows.aminmax(dim=0)
        size, differ = torch.maximum(low.abs(), high.abs()), high - low
        for at in ((differ < CLOSE * size) & (differ > ROUNDING * size)).nonzero()[:, 0].tolist():
            if (rows[:, at].float() != rows[:, at]).any():
                raise DataError(
                    f"{where} has numbers from {low[at].item()!r} to {high[at].item()!r}, whose "
                    "differences float32 cannot hold: subtract the smallest one, as a clock's start"
                )


def _array(column: object, where: str) -> np.ndarray:
    try:
        return np.asarray(column)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _uneven(where, first_line(error)) from None


def _uneven(where: str, reason: str) -> DataError:
    return DataError(f"{where} has rows of unequal length ({reason}): give all of them one shape")


def _plain(array: np.ndarray, where: str) -> np.ndarray:
    """Convert an array of Python objects to floats, if all objects are numbers or number arrays.

    Otherwise the array is returned unchanged; a string of digits is no number. A data frame's
    column with missing values can be an array of objects.

    Raises:
        DataError: the objects are arrays of different shapes.
    """
    numbers = []
    for item in array.ravel():
        try:
            inner = np.asarray(item)
            if inner.dtype == object and inner.ndim:
                inner = _plain(inner, where)
            if inner.dtype.kind not in "biufO" or isinstance(item, str):
                return array
            numbers.append(inner.astype(np.float64))
        except (TypeError, ValueError):
            return array
    shapes = list(dict.fromkeys(item.shape for item in numbers))
    if len(shapes) > 1:
        shapes_text = " and ".join(" x ".join(map(str, shape)) or "1" for shape in shapes[:2])
        raise _uneven(where, f"{shapes_text} numbers")
    return np.stack(numbers).reshape(array.shape + shapes[0]) if numbers else np.zeros(array.shape)


def _kind(array: np.ndarray) -> str:
    if array.dtype.kind == "O" and array.size:
        return f"{type(array.ravel()[0]).__name__} objects"
    return {"U": "text", "S": "text", "M": "dates", "m": "durations", "c": "complex numbers"}.get(
        array.dtype.kind, str(array.dtype)
    )


def loader_hint(thing: object) -> str:
    """Return what to give in place of a DataLoader, its iterator or a sampler; else ""."""
    # Iterators of DataLoaders have no public class.
    loader = isinstance(thing, DataLoader | Sampler) or "DataLoaderIter" in type(thing).__name__
    return "batches are drawn here: give the data set itself, loader.dataset" if loader else ""


def check_numbers(
    columns: Mapping[str, Tensor], who: str, missing: Collection[str], rows: Sequence[object] = ()
) -> None:
    """Check that columns hold finite numbers; only columns named in `missing` may hold NaN.

    Args:
        columns: the columns of one person.
        who: the person's name, for error messages.
        missing: names of the columns in which NaN means that nothing was recorded.
        rows: labels of the rows, for error messages; default: the row numbers.

    Raises:
        DataError: a number is not finite; the message names the person, the column and the row.
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
    """Check that all people have the same columns, of the same shapes and types.

    Raises:
        DataError: a person's columns differ from the first person's; the message names both
            people and the difference.
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
                    f"person {person!r}: {name!r} is {_shape_text(here)} a sample, of person "
                    f"{first!r} {_shape_text(wanted[name])}: give everybody the same"
                )


def _shape_text(shape: tuple[tuple[int, ...], torch.dtype]) -> str:
    sizes = " x ".join(map(str, shape[0])) or "one number"
    return f"{sizes} ({str(shape[1]).removeprefix('torch.')})"


def check_shares(shares: Sequence[float]) -> None:
    """Check that the shares of a split are three positive numbers with sum 1.

    Raises:
        ConfigError: the shares are anything else.
    """
    numbers = isinstance(shares, tuple | list) and all(isinstance(s, int | float) for s in shares)
    whole = numbers and len(shares) == 3 and min(shares) > 0
    if not whole or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ConfigError(
            "split must be three positive numbers with sum 1, for training, validation and test, "
            f"as (0.6, 0.2, 0.2); got {shares!r}"
        )


def split_rows(
    counts: Mapping[str, int],
    shares: Sequence[float] = SHARES,
    shuffle: int | None = None,
    classes: Mapping[str, Tensor] | None = None,
) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Return the sample numbers of each person's training, validation and test part.

    Args:
        counts: each person's number of samples.
        shares: fractions of the samples for the three parts.
        shuffle: a seed: the samples of each part are chosen at random. None: the first samples
            are for training, the next for validation, the last for test.
        classes: each person's class numbers `[samples]`. If given, each class is divided among the
            parts in about the proportions `shares`. The samples are then chosen at random; without
            `shuffle` the seed is 0.

    Raises:
        ConfigError: the shares are not three positive numbers with sum 1.
        DataError: people have too few samples to split; the message names them.
    """
    check_shares(shares)
    # In the order of the recording: neighbouring samples are alike, so a test sample between two
    # training samples would be known by heart. 1e-9 undoes rounding errors of shares times counts.
    ends = {
        who: [int(n * s + 1e-9) for s in (shares[0], shares[0] + shares[1])]
        for who, n in counts.items()
    }
    few = [who for who, (a, b) in ends.items() if not 0 < a < b < counts[who]]
    if few:
        names = list_names([f"{who} ({counts[who]})" for who in few])
        raise DataError(
            f"too few samples to split {'/'.join(f'{100 * s:g}' for s in shares)} into training, "
            f"validation and test: {names}; leave these people out, give them more (at least "
            f"{FEWEST}), or give the parts yourself: {{'train': ..., 'val': ..., 'test': ...}}"
        )
    parts_of = {}
    for who, (a, b) in ends.items():
        order = np.arange(counts[who])
        # With a stream per person, leaving somebody out changes nobody else's split.
        if shuffle is not None or classes is not None:
            order = RandomStream("split", shuffle or 0, who).numpy().permutation(counts[who])
        if classes is not None:
            order = order[np.argsort(_places(classes[who].numpy()[order]), kind="stable")]
        # A shuffle decides which part a sample is in; within a part the samples keep their order.
        train, val, test = (torch.from_numpy(np.sort(part)) for part in np.split(order, [a, b]))
        parts_of[who] = (train, val, test)
    return parts_of


def _places(classes: np.ndarray) -> np.ndarray:
    """Return each sample's relative position within its class, between 0 and 1.

    The two samples of a class of two have the positions 0.25 and 0.75.
    """
    places = np.empty(len(classes))
    for name, count in zip(*np.unique(classes, return_counts=True), strict=True):
        places[classes == name] = (np.arange(count) + 0.5) / count
    return places


def split_people(
    people: object,
    names: Sequence[str],
    shares: Sequence[float] = SHARES,
    shuffle: int | None = None,
    missing: Collection[str] = (),
    stratify: str = "",
    min_samples: int = 0,
    weights: Mapping[str, object] | None = None,
) -> tuple[dict[str, dict[str, Columns]], str]:
    """Split each person's samples into the parts "train", "val" and "test".

    Args:
        people: each person's samples (see `columns_of`), or each person's parts by name, which
            are not split again; "val" and "test" may be left out.
        names: names for columns that have none.
        shares: fractions of the samples for the three parts.
        shuffle: a seed for a random split; None: the parts follow the order of the samples.
        missing: names of the columns in which NaN means that nothing was recorded.
        stratify: a column of class numbers. Each class is divided among the parts in about the
            proportions `shares`.
        min_samples: people with fewer samples, or training samples, are left out.
        weights: each person's weights of (training) samples; see `weights_by_person`.

    Returns:
        The columns by person and part, and one line of text that describes the split.

    Raises:
        DataError: as in `columns_of`, `check_numbers`, `check_alike` and `split_rows`; also if only
            some people's samples are given in parts, or nobody has test samples.
        ConfigError: the shares are not three positive numbers with sum 1.
    """
    if not isinstance(people, Mapping) or not people:
        got = "nobody" if isinstance(people, Mapping) else f"a {type(people).__name__}"
        raise DataError(
            "people must be a mapping, person -> {'x': inputs, 'y': targets}, with at least one "
            f"person; got {got}"
        )
    samples = {who: people[person] for who, person in as_text(people, "people").items()}
    refuse_other_classes(samples)
    chances = weights_by_person(weights, samples)
    if not are_in_parts(samples):
        whole = {p: _checked(data, f"person {p!r}", names, missing) for p, data in samples.items()}
        refuse_empty({person: rows_in(columns) for person, columns in whole.items()})
        _add_weights({person: {"train": columns} for person, columns in whole.items()}, chances)
        check_alike(whole)
        whole, left_out = _with_enough(whole, whole, min_samples)
        every, how = _split(whole, shares, shuffle, stratify)
        warn_of_copies(every)
        return every, how + left_out
    if stratify:
        raise ConfigError("stratify is for people whose samples are split; they come in parts")
    parts = {
        p: {part: _checked(data[part], f"person {p!r}, {part}", names, missing) for part in data}
        for p, data in samples.items()
    }
    _add_weights(parts, chances)
    every, how = _all_parts(parts, min_samples)
    warn_of_copies(every)
    return every, how


def weights_by_person(
    weights: Mapping[str, object] | None, people: Iterable[str]
) -> dict[str, object]:
    """Return each person's weights of samples by the person's name; empty if there are none.

    Raises:
        DataError: they are no mapping, or do not name the same persons as `people`.
    """
    if weights is None:
        return {}
    names = as_text(weights, "weights") if isinstance(weights, Mapping) else {}
    if different := sorted(names.keys() ^ set(people)):
        raise DataError(
            "weights must be {person: numbers} for the very people of the data, and "
            f"{different[0]!r} is {'no person' if different[0] in names else 'without weights'}"
            f"{nearest(different[0], people) if different[0] in names else ''}"
        )
    return {who: weights[key] for who, key in names.items()}


def _add_weights(
    people: Mapping[str, Mapping[str, Columns]], weights: Mapping[str, object]
) -> None:
    """Add weights of training samples to the columns of each person's parts; others weigh 1.

    Raises:
        DataError: they are not one usable number for each sample.
    """
    for person, numbers in weights.items():
        for part, columns in people[person].items():
            where, rows = f"person {person!r}: 'weights'", rows_in(columns)
            columns[SAMPLING_WEIGHT] = (
                checked_weights(_tensor(numbers, where), rows, where).float()
                if part == "train"
                else torch.ones(rows)
            )


def _all_parts(
    people: Mapping[str, dict[str, Columns]], min_samples: int
) -> tuple[dict[str, dict[str, Columns]], str]:
    """Return people's samples with all parts, those that were left out without rows.

    Raises:
        DataError: a part has no samples, people differ in their columns, nobody has enough
            training samples, or nobody has test samples.
    """
    every = {(p, part): columns for p, own in people.items() for part, columns in own.items()}
    refuse_empty({f"{p} ({part})": rows_in(columns) for (p, part), columns in every.items()})
    check_alike({f"{p}, {part}": columns for (p, part), columns in every.items()})
    parts, left_out = _with_enough(
        people, {p: own["train"] for p, own in people.items()}, min_samples
    )
    untested = [p for p, own in parts.items() if "test" not in own]
    if len(untested) == len(parts):
        raise DataError(
            "nobody has test samples, so that nothing could be measured: give some people a 'test' "
            "part"
        )
    for own in parts.values():
        none = {name: column[:0] for name, column in own["train"].items()}
        own |= {part: none for part in PARTS if part not in own}
    how = "as given"
    if untested:
        how += f"; {len(untested)} of {len(parts)} people train only, without test samples"
    return parts, how + left_out


def _with_enough(
    people: Mapping[str, T], columns: Mapping[str, Columns], min_samples: int
) -> tuple[dict[str, T], str]:
    """Return the people with enough samples, and a text that names the others.

    Raises:
        DataError: nobody has enough samples.
        ConfigError: `min_samples` is no whole number.
    """
    if isinstance(min_samples, bool) or not isinstance(min_samples, Integral) or min_samples < 0:
        raise ConfigError(
            f"min_samples must be a whole number, 0 or more, as min_samples=10; got {min_samples!r}"
        )
    few = [person for person, own in columns.items() if rows_in(own) < min_samples]
    if len(few) == len(people):
        most = max(rows_in(own) for own in columns.values())
        raise DataError(f"nobody has min_samples={min_samples} samples; give at most {most}")
    text = f"; left out, with fewer than {min_samples} samples: {list_names(few)}" if few else ""
    return {person: own for person, own in people.items() if person not in few}, text


def are_in_parts(samples: Mapping[str, object]) -> bool:
    """Return whether everybody's samples come in parts.

    Raises:
        DataError: those of only some people do.
    """
    parted = [person for person, data in samples.items() if _are_parts(data, person)]
    if parted and (rest := [person for person in samples if person not in parted]):
        raise DataError(
            f"person {parted[0]!r} comes in parts (train, val, test), person {rest[0]!r} does not: "
            "give all of them in parts, or none"
        )
    return bool(parted)


def _warn_of_sorted_rows(parts_of: Mapping[str, Mapping[str, Columns]]) -> None:
    """Warn if rows are sorted by a class, so that people's test parts have classes of their own."""
    for name, column in next(iter(parts_of.values()))["train"].items():
        if column.is_floating_point() or column.ndim != 1:
            continue
        new = [
            person
            for person, own in parts_of.items()
            for whole in [torch.cat([own[part][name] for part in PARTS]).long()]
            # A column with another value in every row counts rows, and names no classes.
            if 2 * len(whole.unique()) <= len(whole)
            and (whole.diff() >= 0).all()
            and not torch.isin(own["test"][name].long(), own["train"][name].long()).all()
        ]
        if new:
            warnings.warn(
                f"rows of person {new[0]!r} are sorted by {name!r}: the last ones, for test, have "
                f"classes that no training row has; give shuffle=0 or stratify={name!r}",
                stacklevel=4,
            )


def _are_parts(data: object, person: str) -> bool:
    """Return whether a person's samples come in parts.

    Raises:
        DataError: they do, and a part has another name, or nothing is for training.
    """
    if not isinstance(data, Mapping) or not set(PARTS) & set(data):
        return False
    if set(data) <= set(PARTS) and "train" in data:
        return True
    # A column may be called `test`, too; it then holds numbers.
    if not any(isinstance(part, Mapping | TorchDataset | tuple) for part in data.values()):
        return False
    names = " and ".join(map(repr, data))
    raise DataError(
        f"person {person!r} has the parts {names}: give 'train', and 'val' and 'test' if there "
        "are samples for them"
    )


def refuse_empty(counts: Mapping[str, int]) -> None:
    """Refuse people without samples.

    Raises:
        DataError: people have no samples; the message names them.
    """
    # Before `check_alike`: columns without rows have no shape to compare with those of others.
    if empty := [who for who, count in counts.items() if not count]:
        raise DataError(f"without samples: {', '.join(empty)}; leave these people out")


def _checked(samples: object, who: str, names: Sequence[str], missing: Collection[str]) -> Columns:
    columns = columns_of(samples, who, names)
    check_numbers(columns, who, missing)
    return columns


def _split(
    whole: Mapping[str, Columns], shares: Sequence[float], shuffle: int | None, stratify: str
) -> tuple[dict[str, dict[str, Columns]], str]:
    how, classes = (
        "in the order given" if shuffle is None else f"at random with seed {shuffle}",
        None,
    )
    if stratify:
        person, columns = next(iter(whole.items()))
        column = columns.get(stratify)
        if column is None or column.ndim != 1 or column.is_floating_point():
            got = ", ".join(f"{n} ({c.dtype} {list(c.shape[1:])})" for n, c in columns.items())
            raise DataError(
                f"stratify={stratify!r} must be a column with a class number (an integer) for each "
                f"sample; person {person!r} has {got}"
            )
        how = f"with alike shares of {stratify!r}, at random with seed {shuffle or 0}"
        classes = {person: columns[stratify] for person, columns in whole.items()}
    rows = split_rows({p: rows_in(c) for p, c in whole.items()}, shares, shuffle, classes)
    parts_of = {
        person: {
            part: {name: column[at] for name, column in whole[person].items()}
            for part, at in zip(PARTS, parts, strict=True)
        }
        for person, parts in rows.items()
    }
    if shuffle is None and not stratify:
        _warn_of_sorted_rows(parts_of)
    return parts_of, f"{'/'.join(f'{100 * share:g}' for share in shares)} {how}"


def rows_in(columns: Columns) -> int:
    """Return the number of samples: the number of rows of the first column."""
    return len(next(iter(columns.values())))


def by_person(
    frame: Any, person: str, columns: Mapping[str, object] | None, missing: Collection[str] = ()
) -> dict[str, Columns]:
    """Return each person's columns of a data frame, in the order in which people appear.

    Args:
        frame: a pandas DataFrame.
        person: name of the frame's column that names each row's person.
        columns: maps each column of samples to one column of the frame, or to several columns,
            which become one tensor. None: every column except `person`, under its own name.
        missing: names of the columns in which NaN means that nothing was recorded.

    Raises:
        DataError: the frame lacks a column, a row names no person, or an entry is no finite
            number (the message names the person, the column and the row).
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
    several = {
        name: list(sources) for name, sources in columns.items() if _are_several(sources, frame)
    }
    wanted = {**columns, **several}
    used: list[Any] = [c for name, own in wanted.items() for c in several.get(name, [own])]
    check_columns(frame, (person, *used))
    unknown = frame.index[frame[person].isna()]
    if len(unknown):
        raise DataError(f"{person!r} is missing in row {unknown[0]}: say whose it is, or drop it")
    may_lack = [wanted[name] for name in missing if name in wanted]
    empty = [
        c
        for c in used
        if any(c == sources or (isinstance(sources, list) and c in sources) for sources in may_lack)
    ]
    as_text(frame[person].drop_duplicates().tolist(), "people")
    people = {}
    # `observed`: a category that no row has is no person.
    for who, rows in frame.groupby(person, sort=False, observed=True):
        whose = f"person {str(who)!r}"
        for name in dict.fromkeys(used):
            check_numbers(
                {name: _tensor(rows[name], f"{whose}: {name!r}")}, whose, empty, rows.index
            )
        people[str(who)] = columns_of({n: _side(rows[c]) for n, c in wanted.items()}, whose, ())
    return people


def check_columns(frame: Any, names: Iterable[object]) -> None:
    """Check that a data frame has each of the columns `names` once.

    Raises:
        DataError: a column is missing or occurs twice; the message names it.
    """
    known = list(frame.columns)
    for name in names:
        if name not in known:
            there = ", ".join(map(str, known))
            raise DataError(f"the frame has no column {name!r}; it has {there}")
        if known.count(name) > 1:
            raise DataError(f"the frame has {known.count(name)} columns {name!r}: rename them")


def _are_several(columns: object, frame: Any) -> TypeGuard[Iterable[object]]:
    """Return whether `columns` is several column names, and not one.

    A string, or a tuple that is itself a column of the frame, is one name.
    """
    if isinstance(columns, str) or (isinstance(columns, tuple) and columns in list(frame.columns)):
        return False
    return isinstance(columns, Iterable)


def _side(columns: Any) -> object:
    """Return a pandas Series as it is; return a DataFrame as a tensor `[rows, columns]`."""
    if columns.ndim == 1:
        return columns
    # Exact, as a clock may be whole numbers, too.
    return torch.stack([_tensor(columns[name], str(name)).double() for name in columns.columns], 1)
