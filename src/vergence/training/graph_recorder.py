"""Recorder of work on a GPU as a CUDA graph, which is started again as a whole.

Used by `training.cuda_graphs`.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

Program = Callable[[], None]
# One recorder at a time: one that ends must not switch garbage collection on under another.
RECORDING = threading.Lock()


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
        """Return a program that repeats this work, which must have run before, inside `here`."""
        if self.stream is None:
            return work
        graph = torch.cuda.CUDAGraph()
        # Collecting an old graph would end this recording: CUDA frees none meanwhile.
        with RECORDING:
            collecting = gc.isenabled()
            gc.disable()
            try:
                # Another thread may write a checkpoint meanwhile, or page-lock memory for it.
                mode = "thread_local"
                with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=mode):
                    work()
            finally:
                if collecting:
                    gc.enable()
        return partial(_replay, graph, work)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Let work recorded in the block draw random numbers from this recorder's generator."""
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
        """Seed the random numbers (of dropout) for the work that follows."""
        self.numbers.manual_seed(number)

    def settle(self) -> None:
        """Wait until all queued work is done."""
        if self.stream is not None:
            self.stream.synchronize()

    def begin(self) -> None:
        """Let this stream wait for the work that the caller has queued."""
        # The start parameters may not be computed yet.
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def upload(self, tensor: Tensor) -> Tensor:
        """Return a tensor on the device, without waiting for a copy there."""
        if self.stream is None or not tensor.is_cpu:
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def end(self, made: Iterable[Tensor]) -> None:
        """Let the caller's stream wait for this one, and use the tensors made here."""
        if self.stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            for tensor in made:
                # Else the allocator gives the memory away when this stream has done with it.
                tensor.record_stream(current)


def _replay(graph: torch.cuda.CUDAGraph, _work: Program) -> None:
    """Start a graph."""
    # `_work` is a parameter so that the tensors live on whose memory the graph reads.
    graph.replay()
