"""Batches of several clients at once, gathered into resident memory.

Used by `training.stacked`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vergence.core.data import Batch, Samples
from vergence.core.local_training import LocalTraining
from vergence.core.randomness import RandomStream
from vergence.core.task import Task
from vergence.training.batches import batches


class BufferPool:
    """Named memory that is allocated once, grows when it is too small, and is never cleared."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.memory: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a contiguous tensor of this shape, which still has the numbers of its last use."""
        n = math.prod(shape)
        memory = self.memory.get(name)
        if memory is None or memory.numel() < n or memory.dtype != dtype:
            memory = self.memory[name] = torch.empty(n, dtype=dtype, device=self.device)
        return memory[:n].view(*shape)


class BatchBuffer:
    """The batches `[clients, batch, ...]` of clients with equally many samples.

    Every client's samples come in the order in which `training.batches` draws them. The next batch
    overwrites a batch.
    """

    def __init__(
        self,
        data: Sequence[Samples],
        local: LocalTraining,
        streams: Sequence[RandomStream],
        room: BufferPool,
        task: Task,
    ) -> None:
        self.room, self.clients = room, len(data)
        pairs = zip(data, streams, strict=True)
        rows_by_batch = [list(batches(one, local, stream, task)) for one, stream in pairs]
        self.sizes = [len(rows) for rows in rows_by_batch[0]]
        rows = torch.stack([torch.cat(parts) for parts in rows_by_batch]).to(room.device)
        self.columns = {
            name: _Source([samples.columns[name] for samples in data], rows)
            for name in data[0].columns
        }
        self.banks = {
            name: (bank.by, [samples.banks[name].rows for samples in data])
            for name, bank in data[0].banks.items()
        }

    @property
    def steps(self) -> int:
        """Number of batches."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[Batch]:
        at = 0
        for size in self.sizes:
            span = slice(at, at + size)
            batch = {
                name: self._column(name, source, span) for name, source in self.columns.items()
            }
            for name, (by, rows) in self.banks.items():
                batch[name] = self._bank(name, rows, batch[by])
            yield batch
            at += size

    def _column(self, name: str, source: _Source, span: slice) -> Tensor:
        part = source.rows[:, span]
        shape = (*part.shape, *source.tensors[0].shape[1:])
        out = self.room.take(f"column {name}", shape, source.tensors[0].dtype)
        _gather(source.tensors, part, out)
        return out

    def _bank(self, name: str, rows: list[Tensor], numbers: Tensor) -> Tensor:
        shape = (*numbers.shape, *rows[0].shape[1:])
        out = self.room.take(f"bank {name}", shape, rows[0].dtype)
        # One call for all clients where they share a bank, such as the frames of one video.
        tensors = rows[:1] if all(r is rows[0] for r in rows) else rows
        _gather(tensors, numbers.flatten(1), out.flatten(1, numbers.ndim - 1))
        return out


class _Source:
    """The tensors of a column, one for all clients or one for each, and the rows to take."""

    def __init__(self, columns: list[Tensor], rows: Tensor) -> None:
        self.tensors, self.rows = columns, rows
        base = _shared(columns)
        if base is not None:
            whole, starts = base
            self.tensors = [whole]
            self.rows = rows + torch.tensor(starts, device=rows.device).unsqueeze(1)


def _gather(tensors: list[Tensor], rows: Tensor, out: Tensor) -> None:
    """Fill `out` `[clients, batch, ...]` with the rows `[clients, batch]` of one tensor or each."""
    if len(tensors) == 1:
        _select(tensors[0], rows.reshape(-1), out.flatten(0, 1))
        return
    for tensor, numbers, part in zip(tensors, rows.unbind(), out.unbind(), strict=True):
        _select(tensor, numbers, part)


def _select(tensor: Tensor, rows: Tensor, out: Tensor) -> None:
    if tensor.device == out.device:
        torch.index_select(tensor, 0, rows, out=out)
    # The samples lie elsewhere: only the rows of the batch are moved to the device.
    else:
        out.copy_(tensor[rows.to(tensor.device)])


def _shared(columns: list[Tensor]) -> tuple[Tensor, list[int]] | None:
    """Return the tensor of which all columns are parts, and the row at which each starts.

    Columns that were laid out together (`device.move_to_device`) are gathered by one call.
    """
    first = columns[0]
    width = first[0].numel()
    if not width or not all(column.is_contiguous() for column in columns):
        return None
    # Rows of one storage can be read as one matrix if all columns start at the same place of a row.
    home = first.untyped_storage().data_ptr()
    if any(column.untyped_storage().data_ptr() != home for column in columns[1:]):
        return None
    offsets = [int(column.storage_offset()) for column in columns]
    rest = offsets[0] % width
    if any(offset % width != rest for offset in offsets):
        return None
    starts = [offset // width for offset in offsets]
    rows = max(starts) + len(first)
    return first.as_strided((rows, *first.shape[1:]), first.stride(), rest), starts
