"""Copies of batches from main memory to a GPU, ahead of the steps that read them.

Used by `training.cuda_graphs`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vergence.core.data import Batch, Samples

# One that a step reads, one that is copied, and one that is gathered.
AHEAD = 3
"""Batches that lie in a prefetcher's memory at the same time."""


class Prefetcher:
    """Gathers batches in pinned memory, and copies them to a GPU in a stream of its own.

    On other devices the same code copies without a stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.place = device, 0
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        # For each place: its batch has come to the GPU, and has been read there.
        events = [] if self.stream is None else [torch.cuda.Event() for _ in range(2 * AHEAD)]
        self.copied, self.read = events[:AHEAD], events[AHEAD:]
        self.memory: dict[str, tuple[Tensor, Tensor]] = {}

    def load(self, data: Samples, rows: Tensor) -> Batch:
        """Return the samples with the numbers `rows`, on the device.

        Work that the current stream gets before the next call may read them. The host waits only
        for the copy of the batch that lay in the same place.
        """
        if self.stream is None:
            self.place = (self.place + 1) % AHEAD
            return self._copy(data, rows)
        self.read[self.place].record()
        self.place = (self.place + 1) % AHEAD
        self.copied[self.place].synchronize()
        self.stream.wait_event(self.read[self.place])
        with torch.cuda.stream(self.stream):
            batch = self._copy(data, rows)
            self.copied[self.place].record()
        torch.cuda.current_stream(self.device).wait_event(self.copied[self.place])
        return batch

    def _copy(self, data: Samples, rows: Tensor) -> Batch:
        sources = {name: (column, rows) for name, column in data.columns.items()}
        for name, bank in data.banks.items():
            sources[name] = bank.rows, data.columns[bank.by].index_select(0, rows)
        batch: Batch = {}
        for name, (source, numbers) in sources.items():
            memory = self._memory(name, source, numbers.numel())
            pinned, there = (part[self.place, : numbers.numel()] for part in memory)
            torch.index_select(source, 0, numbers.reshape(-1), out=pinned)
            batch[name] = there.copy_(pinned, non_blocking=True).unflatten(0, numbers.shape)
        return batch

    def _memory(self, name: str, source: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return memory for so many rows of a column or bank in each place, on either side."""
        memory, kind = self.memory.get(name), (source.dtype, source.shape[1:])
        before = None if memory is None else (memory[0].dtype, memory[0].shape[2:])
        if memory is None or before != kind or memory[0].shape[1] < rows:
            if self.stream is not None:
                # Queued work may still use what lay there.
                torch.cuda.synchronize(self.device)
            pinned = torch.empty(
                (AHEAD, rows, *source.shape[1:]),
                dtype=source.dtype,
                device="cpu",
                pin_memory=self.stream is not None,
            )
            memory = self.memory[name] = pinned, torch.empty_like(pinned, device=self.device)
        return memory
