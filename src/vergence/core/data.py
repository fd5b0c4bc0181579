"""Samples of one client: columns, rows that many samples share, and the three parts of a split.

Used in most packages.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from vergence.errors import ConfigError, DataError

Batch = dict[str, Tensor]
PICTURES = ("image", "eyes", "frames")
"""Names of columns and banks (`SharedRows`) that hold pictures."""
SAMPLING_WEIGHT = "sampling_weight"
"""Name of the column of weights: a sample is drawn in proportion to its weight."""
FEWEST, LOOKED_AT = 8, 17
"""The search for overlapping windows needs more than 8 samples, and reads only the first 17."""


def copy_of(batch: Mapping[str, Tensor]) -> Batch:
    """Return copies of the columns, for code that may change columns in place."""
    return {name: column.clone() for name, column in batch.items()}


def checked_weights(weights: Tensor, samples: int, where: str) -> Tensor:
    """Return weights of samples in random draws as float64 `[samples]`, on the CPU.

    `where` names the weights in the error message.

    Raises:
        DataError: there is not one finite number of at least 0 per sample, or all of them are 0.
    """
    bad = (~((weights >= 0) & weights.isfinite())).nonzero()
    fits = weights.shape == (samples,)
    if fits and not len(bad) and weights.any():
        return weights.double().cpu()
    value = f"{float(weights[bad[0, 0]]):g} in row {int(bad[0, 0])}" if fits and len(bad) else 0
    raise DataError(
        f"{where} must be {samples} finite numbers of at least 0, one a sample and not all of them "
        "0, as a sample is drawn in proportion to its weight; got "
        f"{value or '0 for every sample' if fits else f'the shape {list(weights.shape)}'}",
        code="bad-value",
    )


@dataclass(frozen=True)
class SharedRows:
    """A bank: rows that many samples share (frames, images, cached features).

    `rows` is a tensor with one entry per row. `by` is the name of an integer column of the samples,
    of shape `[samples]` or `[samples, frames]`: it holds the numbers of each sample's rows.
    """

    rows: Tensor
    by: str

    def __repr__(self) -> str:
        return f"SharedRows: {len(self.rows)}, each {list(self.rows.shape[1:])}, by '{self.by}'"


@dataclass(frozen=True)
class Samples:
    """One part (such as the training part) of one client's data, in memory.

    Every column is a tensor `[samples, ...]`. A bank holds rows that several samples share; a
    column holds the numbers of each sample's rows (`SharedRows`). `take` returns a batch: the
    columns, and each bank's rows under the bank's name. Networks, losses and metrics get copies,
    never these columns themselves: a line such as `x -= x.mean(0)` must not change later batches.
    """

    columns: Mapping[str, Tensor]
    banks: Mapping[str, SharedRows] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __repr__(self) -> str:
        return f"Samples: {len(self) if self.columns else 0}, {self.shapes()}"

    def shapes(self) -> str:
        """Return as text the names of columns and banks (shared rows), with the shape of a row."""
        shared = {f"shared {name}": bank.rows for name, bank in self.banks.items()}
        tensors = {**self.columns, **shared}.items()
        return ", ".join(f"{n} {list(rows.shape[1:])}" for n, rows in tensors) or "no columns"

    def take(self, rows: Tensor | slice) -> Batch:
        """Return a batch: the samples with the numbers `rows` (int64 `[batch]`, or a slice).

        The batch is a copy: the receiver may change it.
        """
        if isinstance(rows, slice):
            batch = {name: column[rows].clone() for name, column in self.columns.items()}
        else:
            # `index_select` copies, as `clone` does above.
            batch = {name: column.index_select(0, rows) for name, column in self.columns.items()}
        for name, bank in self.banks.items():
            batch[name] = bank.rows[batch[bank.by]]
        return batch

    def copy(self) -> Samples:
        """Return samples with copies of the columns; banks (shared rows) are not copied."""
        return replace(self, columns=copy_of(self.columns))

    def bytes(self) -> int:
        """Return the size in bytes of the columns, and of the shared rows that the samples use."""
        total = sum(c.numel() * c.element_size() for c in self.columns.values())
        for bank in self.banks.values():
            rows = self.columns[bank.by].unique().numel()
            total += rows * bank.rows[0].numel() * bank.rows.element_size()
        return total

    @property
    def kind(self) -> str:
        """Noun for one sample: "window of 4 frames", "picture" or "sample".

        If several samples share a picture, each is called "sample".
        """
        ids = {
            name: self.columns[bank.by].unsqueeze(-1).flatten(1)
            for name, bank in self.banks.items()
        }
        frames = max((rows.shape[1] for rows in ids.values()), default=1) if len(self) else 1
        if frames > 1:
            return f"window of {frames} frames"
        shared = any(len(rows.unique()) < len(rows) for rows in ids.values())
        pictures = any(name in PICTURES for name in (*self.columns, *ids))
        return "picture" if pictures and not shared else "sample"

    def overlap(self) -> int:
        """Return the largest number of samples that share a frame; 1 if windows do not overlap.

        A frame is a row of a bank (shared rows). It can also be one step of a column `[samples,
        steps, ...]` whose samples are windows, cut in order from one recording. Samples that
        use exactly the same rows of a bank count once.
        """
        most = [1]
        for bank in self.banks.values():
            rows = self.columns[bank.by].unsqueeze(-1).flatten(1).sort(1).values.unique(dim=0)
            # A sample that names a row twice counts once for it.
            again = rows.diff(dim=1, prepend=rows[:, :1] - 1) == 0
            most += rows[~again].bincount().tolist()
        for column in self.columns.values():
            most.append(_windows_of_a_step(column))
            # Data sets differ in whether steps or channels come last.
            if column.dim() == 3:
                most.append(_windows_of_a_step(column.transpose(1, 2)))
        return max(most)

    def subset(self, rows: Tensor) -> Samples:
        """Return the samples with the numbers `rows`; banks (shared rows) are not copied."""
        return replace(self, columns={n: column[rows] for n, column in self.columns.items()})

    @staticmethod
    def concatenate(parts: list[Samples]) -> Samples:
        """Join several people's samples.

        Banks (shared rows) are joined too, unless all people have the same tensor.
        """
        columns = {n: [p.columns[n] for p in parts] for n in parts[0].columns}
        banks: dict[str, SharedRows] = {}
        moved: set[str] = set()
        for name, bank in parts[0].banks.items():
            rows = [p.banks[name].rows for p in parts]
            # By identity: comparing banks number by number would take longer than joining them.
            if any(r is not rows[0] for r in rows):
                starts = torch.tensor([0, *map(len, rows)]).cumsum(0)
                # Several banks may be looked up by one column, whose numbers move only once.
                if bank.by not in moved:
                    shifted = zip(columns[bank.by], starts, strict=False)
                    columns[bank.by] = [column + start for column, start in shifted]
                    moved.add(bank.by)
                bank = SharedRows(torch.cat(rows), bank.by)
            banks[name] = bank
        return Samples({n: torch.cat(c) for n, c in columns.items()}, banks)


@dataclass(frozen=True)
class Splits:
    """One client's data in three parts.

    Client code sees `train` and `val`; only the engine uses `test`.
    """

    train: Samples
    val: Samples
    test: Samples

    def __post_init__(self) -> None:
        for name, part in vars(self).items():
            if not isinstance(part, Samples):
                raise ConfigError(
                    f"Splits: {name} must be Samples, columns by name; got "
                    f"{type(part).__module__}.{type(part).__name__}: write Samples({{'x': inputs, "
                    "'y': targets}), tensors whose first dimension counts samples"
                )

    def __repr__(self) -> str:
        sizes = "/".join(str(len(part) if part.columns else 0) for part in vars(self).values())
        return f"Splits: {sizes} samples, {self.train.shapes()}"


def _windows_of_a_step(column: Tensor) -> int:
    """Return how many samples of a column `[samples, steps, ...]` contain the same time step.

    The samples are taken for overlapping windows if most of them repeat the previous sample,
    shifted by a fixed number of steps. Otherwise, and for constant columns, the number is 1.
    """
    column = column[:LOOKED_AT]
    steps = column.shape[1] if column.dim() > 1 and len(column) > FEWEST else 1
    for hop in range(1, steps):
        one, other = column[:-1, hop:].flatten(1), column[1:, :-hop].flatten(1)
        alike = (one == other).all(1) & (one != column[1:, hop:].flatten(1)).any(1)
        if 2 * alike.sum() > len(alike):
            return -(-steps // hop)
    return 1


FEW_COPIES = 5
"""Number of different test samples that may be training samples, too, without a warning."""


def refuse_other_classes(samples: Mapping[str, object]) -> None:
    """Refuse data sets, such as ImageFolder, that number the same classes differently.

    Raises:
        DataError: a class has two numbers, or a number has two classes; the message names both.
    """
    known: dict[tuple[str, object], tuple[str, object]] = {}
    for who, data in samples.items():
        for part in data.values() if isinstance(data, Mapping) else [data]:
            # A `Subset` has its whole data set.
            numbers = getattr(getattr(part, "dataset", part), "class_to_idx", None)
            pairs = numbers.items() if isinstance(numbers, Mapping) else ()
            # Names of classes may be integers, so that names and numbers are compared apart.
            both = ((("name", a), b) for a, b in pairs), ((("number", b), a) for a, b in pairs)
            for key, value in chain(*both):
                first, other = known.setdefault(key, (who, value))
                if value != other:
                    raise DataError(
                        f"class {key[1]!r} is {value!r} of person {who!r}, and {other!r} of person "
                        f"{first!r}: give all data sets one class_to_idx, and set the targets by it"
                    )


def warn_of_copies(people: Mapping[str, Mapping[str, Mapping[str, Tensor]]]) -> None:
    """Warn if most test samples of a person are also among the person's training samples."""
    for person, own in people.items():
        # Of large samples the memory need not hold a copy of all: their hashes are compared.
        train, test = (
            [
                hash(tuple(cell.tobytes() for cell in row))
                for row in zip(
                    *(c.numpy() for name, c in own[part].items() if name != SAMPLING_WEIGHT),
                    strict=True,
                )
            ]
            for part in ("train", "test")
        )
        copies = sum(map(set(train).__contains__, test))
        if 2 * copies > len(test) and len({*test} & {*train}) > FEW_COPIES:
            warnings.warn(
                f"{copies} of {len(test)} test samples of person {person!r} are training "
                "samples, too, so that scores are too good: leave copies out, or split first",
                stacklevel=4,
            )
            return
