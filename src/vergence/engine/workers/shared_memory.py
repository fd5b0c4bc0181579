"""Memory that forked processes share, so that arrays need not be copied through pipes.

Used by `engine.workers.pools` and `engine.workers.process_main`.
"""

from __future__ import annotations

import mmap
import sys
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch import Tensor

from vergence.core.files import JsonObject
from vergence.core.masks import Mask
from vergence.core.messages import Weight
from vergence.core.params import Layout, Params
from vergence.errors import ConfigError
from vergence.system.memory import machine_bytes

# A cache line: arrays that begin on one are read and added fastest.
ALIGN = 64
# Half of the 128 TiB of addresses that a process has, for all arenas together.
ADDRESSES = 64 << 40
"""Bytes of address space for all arenas of shared memory together."""
# Addresses without this flag would count as used memory. Older versions of Python do not name it.
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class SharedArena:
    """Memory that forked processes share; pages are allocated when they are first written.

    Its range of addresses is as long as the machine's memory, if the address space allows that.

    Args:
        among: number of arenas that together must fit into the address space of a process.
    """

    # It has no name and no file, so nothing is left behind when the processes die.

    def __init__(self, among: int = 1) -> None:
        memory = machine_bytes()
        length = min(memory, ADDRESSES // among) // mmap.PAGESIZE * mmap.PAGESIZE
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NORESERVE
        try:
            self.map = mmap.mmap(-1, length, flags=flags)
        except OSError as error:
            raise ConfigError(
                f"the workers' shared memory cannot be laid out ({error.strerror}): a limit on "
                "address space (`ulimit -v`) or vm.overcommit_memory = 2 forbids it; lift it, or "
                "set run.workers = 1"
            ) from None
        self.used = 0

    def clear(self) -> None:
        """Use the memory again from its beginning."""
        self.used = 0

    def new(self, n: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor of `n` entries in the next free memory."""
        start = self.used
        self.used += -(-n * dtype.itemsize // ALIGN) * ALIGN
        return self.at(start, n, dtype)

    def at(self, start: int, n: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor of `n` entries that begins at a byte offset."""
        if not n:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.map, dtype=dtype, count=n, offset=start)

    def write(self, params: Params, layouts: Layouts) -> JsonObject:
        """Copy parameters into the arena, and return where they are, as plain data."""
        start = self.used
        self.new(params.layout.n, params.flat.dtype).copy_(params.flat)
        return self.note(params, start, layouts)

    def note(self, params: Params, start: int, layouts: Layouts) -> JsonObject:
        """Describe as plain data parameters that begin at a byte offset."""
        dtype = str(params.flat.dtype).removeprefix("torch.")
        return {"at": start, "dtype": dtype, "layout": layouts.name(params.layout)}

    def read(self, note: JsonObject, layouts: Layouts) -> Params:
        """Return the parameters that `note` describes.

        They are a view of the arena, and must not be changed.
        """
        layout = layouts.find(note["layout"])
        return Params(self.at(note["at"], layout.n, getattr(torch, note["dtype"])), layout)

    def write_weight(self, weight: Weight, layouts: Layouts) -> JsonObject | float:
        """Copy a reply's weight into the arena, and return its description.

        A weight that is a number is returned unchanged.
        """
        if isinstance(weight, Params):
            return self.write(weight, layouts)
        if not isinstance(weight, Mask):
            return weight
        bits = Params(weight.bits.view(torch.uint8), weight.layout)
        return {**self.write(bits, layouts), "mask": True}

    def read_weight(self, note: JsonObject | float, layouts: Layouts) -> Weight:
        """Return a copy of the weight that `note` describes; a number is returned unchanged."""
        if not isinstance(note, dict):
            return note
        params = self.read(note, layouts)
        flat = params.flat.clone()
        return Mask(flat.view(torch.bool), params.layout) if "mask" in note else params.like(flat)


class Layouts:
    """Short names of parameter layouts, for messages between processes.

    The name is a number if the layout was known before the fork, else tensor names and shapes.
    """

    def __init__(self, *known: Layout) -> None:
        self.known = known
        self.cache: dict[str, Layout] = {}

    def name(self, layout: Layout) -> Any:
        """Return the short name of a layout, as plain data."""
        for number, known in enumerate(self.known):
            if layout is known or layout == known:
                return number
        return [layout.names, layout.shapes]

    def find(self, name: Any) -> Layout:
        """Return the layout with this short name; each layout is built once."""
        if isinstance(name, int):
            return self.known[name]
        key = repr(name)
        if key not in self.cache:
            names, shapes = name
            self.cache[key] = Layout(tuple(names), tuple(tuple(shape) for shape in shapes))
        return self.cache[key]


class TaskTickets:
    """Counters that forked processes share: groups handed out, and groups added up.

    Both count over all batches of a run.
    """

    def __init__(self, context: BaseContext) -> None:
        self.lock = context.Lock()
        self.numbers = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")

    def draw(self, end: int) -> int | None:
        """Take the next group's number, if it is below `end`; None: no group is left."""
        with self.lock:
            number = self.numbers[0]
            if number >= end:
                return None
            self.numbers[0] = number + 1
        return number

    @property
    def settled(self) -> int:
        """Number of groups that are added up; groups are added up in order."""
        return self.numbers[1]

    def settle(self) -> None:
        """Count one more group as added up."""
        # No lock: only the process that hands out work writes this number.
        self.numbers[1] += 1
