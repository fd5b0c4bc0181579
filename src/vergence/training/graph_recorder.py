"""Recorder of work on a GPU as a CUDA graph, started again as a whole."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

Program = Callable[[], None]
RECORDING = threading.Lock()
"""Held while one recorder of this process records: one that ends must not switch the collection of
garbage on under another."""


class CudaGraphRecorder:
    """Records work on one stream of a GPU; on a CPU, runs it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Not the default stream: recording on that one is not allowed, and a stream of its own
        # has workspaces of its own, which graphs replayed side by side must not share.
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.default = torch.default_generator
        if self.stream is not None:
            self.default = torch.cuda.default_generators[self.stream.device.index]
        # Recordings read seed and place of the numbers that dropout draws from memory of their
        # generator when they run: side by side they need one each.
        self.numbers = self.default.clone_state() if self.stream is not None else self.default

    def here(self) -> AbstractContextManager[object]:
        """Make this the current stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def capture(self, work: Program) -> Program:
        """Program that repeats this work; called inside `here`, after the work has run warm."""
        if self.stream is None:
            return work
        graph = torch.cuda.CUDAGraph()
        # Collecting an old graph would end this recording: CUDA frees none meanwhile.
        with RECORDING:
            collecting = gc.isenabled()
            gc.disable()
            try:
                with torch.cuda.graph(graph, stream=self.stream):
                    work()
            finally:
                if collecting:
                    gc.enable()
        return partial(_replay, graph, work)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Let what is recorded here draw its random numbers from this recorder's generator."""
        if self.stream is None:
            yield
            return
        before = self.default.graphsafe_get_state()
        self.default.graphsafe_set_state(self.numbers)
        try:
            yield
        finally:
            self.default.graphsafe_set_state(before)

    def seed(self, number: int) -> None:
        """Begin the random numbers of what is run from here on, dropout's."""
        self.numbers.manual_seed(number)

    def settle(self) -> None:
        """Wait until all of it is done."""
        if self.stream is not None:
            self.stream.synchronize()

    def begin(self) -> None:
        """Wait for what the caller has queued: start parameters may still be being computed."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def end(self, made: Iterable[Tensor]) -> None:
        """Let the caller's stream wait for this one, and use what was made here."""
        if self.stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            for tensor in made:
                tensor.record_stream(current)


def _replay(graph: torch.cuda.CUDAGraph, _work: Program) -> None:
    """Start a graph. `_work` keeps the tensors alive whose memory the graph reads."""
    graph.replay()
